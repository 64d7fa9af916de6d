"""What is judged of states: a clean transfer holds, and whatever is planted is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from trace_builder import Script

from ringcast.rules import bounds
from ringcast.rules.state import Content, chain, run_hash
from ringcast.rules.table import STATE
from ringcast.rules.table import verdicts as judge_all
from ringcast.trace.rows import (
    ASIDE,
    CRASH,
    DELIVER,
    HANDED,
    PHASE,
    START,
    STATE_BEGUN,
    STATE_END,
    STATE_ENTRY,
    STATE_LOST,
    STATE_RECEIVED,
    STATE_REFUSED,
    STATE_WAIT,
    STATE_WANTED,
    Facts,
)

if TYPE_CHECKING:
    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Row

SECOND = 1_000_000_000
FACTS = Facts(nodes=3, gst_ns=90 * SECOND, end_ns=200 * SECOND, state_ns=SECOND)
IDS = ["T1", "T2", "T3", "T4", "T5", "T-L1"]


def message(sender: str, seqno: int) -> bytes:
    return f"{sender}{seqno}".encode()


def messages(sender: str, *seqnos: int) -> Content:
    """What an application has that was handed just these."""
    payloads = [message(sender, seqno) for seqno in seqnos]
    return Content(len(seqnos), seqnos[-1], run_hash(payloads))


class Story(Script):
    def takes(self, node: str, sender: str, first: int, last: int, *, aside: bool = False) -> Row:
        """What is put aside may be of a view that the application has not been told of."""
        view = self.installed if aside else self.shown
        detail = ASIDE if aside else ""
        return self._run(DELIVER, node, sender, first, last, view.get(node), detail=detail)

    def gets(self, node: str, sender: str, first: int, last: int) -> Row:
        """Later than it was taken."""
        return self._run(HANDED, node, sender, first, last, self.shown.get(node))

    def _run(
        self,
        event: str,
        node: str,
        sender: str,
        first: int,
        last: int,
        view: Row | None,
        **more: Any,
    ) -> Row:
        hash = run_hash(message(sender, seqno) for seqno in range(first, last + 1))
        columns = {"stream": 0, "seqno": first, "seqno2": last, "block_hash": hash, **more}
        return self(event, node, peer=sender, **columns, **self._in(view))

    def wants(self, taker: str, provider: str, number: int, **state: Content) -> None:
        self(STATE_WANTED, provider, peer=taker, seqno=number)
        self._entries(provider, state)

    def begins(self, taker: str, provider: str, number: int) -> None:
        self(STATE_BEGUN, taker, peer=provider, seqno=number)

    def receives(self, taker: str, provider: str, view: int = 2, **state: Content) -> None:
        self(STATE_RECEIVED, taker, peer=provider, seqno=1, view=view, view_creator="a#1")
        self._entries(taker, state)

    def loses(self, taker: str, view: int = 2) -> None:
        self(STATE_LOST, taker, view=view, view_creator="a#1")

    def ends(self, node: str, **state: Content) -> None:
        self(STATE_END, node)
        self._entries(node, state)

    def _entries(self, node: str, state: dict[str, Content]) -> None:
        for sender, (count, last, hash) in state.items():
            columns = {"seqno": last, "size": count, "block_hash": hash}
            self(STATE_ENTRY, node, peer=sender, stream=0, **columns)


A3 = messages("a", 1, 2, 3)
A7 = messages("a", 1, 2, 3, 4, 5, 6, 7)


def founded() -> Story:
    """a has been handed three of its own messages."""
    story = Story()
    for node in "abc":
        story(START, node)
    story.view("a", 1, "a")
    story.takes("a", "a", 1, 2)
    story.takes("a", "a", 3, 3)
    return story


def joined() -> Story:
    """b joins, and waits: two more are put aside."""
    story = founded()
    for node in "ab":
        story.view(node, 2, "ab")
    story(STATE_WAIT, "b")
    story.takes("b", "a", 4, 5, aside=True)
    return story


def asked() -> Story:
    """a is asked for its state, right behind the view."""
    story = joined()
    story.wants("b", "a", 1, a=A3)
    story.begins("b", "a", 1)
    return story


def received(state: Content = A3, view: int = 2) -> Story:
    """b gets that state."""
    story = asked()
    story.now = 10 * SECOND
    story.receives("b", "a", view, a=state)
    return story


def clean() -> Story:
    """And what follows."""
    story = received()
    story.rows.insert(0, Story()(PHASE, "", 0, kind="heal"))
    story.gets("b", "a", 4, 4)
    story.gets("b", "a", 5, 5)
    story.takes("a", "a", 4, 7)
    story.takes("b", "a", 6, 6)
    story.takes("b", "a", 7, 7)
    for node in "ab":
        story.ends(node, a=A7)
    return story


def numbered(story: Story) -> list[Row]:
    """The rows with their order in the run, whatever was put between them."""
    return [row._replace(run_idx=place) for place, row in enumerate(story.rows)]


def verdicts(story: Story, facts: Facts = FACTS) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in judge_all(STATE, numbered(story), facts)}


def violated(story: Story, facts: Facts = FACTS) -> set[str]:
    return {id for id, verdict in verdicts(story, facts).items() if verdict.violations}


def test_a_clean_transfer_holds_and_is_judged() -> None:
    found = verdicts(clean())
    assert list(found) == IDS
    assert not violated(clean())
    assert found["T1"].premises == 2  # where it was given, and what came
    assert found["T2"].premises == 4
    assert found["T3"].premises == 3  # one given, two at the end
    assert found["T4"].status == "vacuous"
    assert found["T5"].premises == 1
    assert found["T-L1"].premises == 1
    assert found["T-L1"].worst == 10 * SECOND / bounds.state_ns(FACTS)


def test_hashes_of_runs_make_the_hash_of_the_whole() -> None:
    parts = [[b"a"], [b"", b"b"], [b"c", b"a", b""]]
    hash = 0
    for part in parts:
        hash = chain(hash, run_hash(part), len(part))
    assert hash == run_hash([payload for part in parts for payload in part])
    assert run_hash([b"a", b"b"]) != run_hash([b"b", b"a"])
    assert run_hash([b""]) != run_hash([b"", b""])


# What is planted


def test_a_state_of_other_content() -> None:
    story = received(state=messages("a", 1, 3, 2))
    story.gets("b", "a", 4, 5)
    assert violated(story) == {"T1"}


def test_a_state_without_its_last_entry() -> None:
    story = asked()
    story.receives("b", "a")
    assert "T1" in violated(story)


def test_a_state_that_is_given_behind_a_message_of_its_view() -> None:
    story = joined()
    story.takes("a", "a", 4, 4)
    story.wants("b", "a", 1, a=messages("a", 1, 2, 3, 4))
    (violation,) = verdicts(story)["T1"].violations
    assert violation.text == "a#1 gives its state to b behind messages of its view"


def test_a_state_of_another_cut() -> None:
    story = received(view=1)
    story.gets("b", "a", 4, 5)
    (violation,) = verdicts(story)["T1"].violations
    assert violation.text == "b#1 takes the state at view 1; a#1 gave it at view 2"


def test_a_state_that_nobody_gave() -> None:
    story = joined()
    story.begins("b", "a", 1)
    story.receives("b", "a", a=A3)
    assert "T1" in violated(story)


def test_a_state_that_was_for_somebody_else() -> None:
    story = joined()
    story.wants("c", "a", 1, a=A3)
    story.begins("b", "a", 1)
    story.receives("b", "a", a=A3)
    story.gets("b", "a", 4, 5)
    assert violated(story) == {"T1"}


def test_a_message_that_is_in_the_state_and_comes_too() -> None:
    story = received()
    row = story.gets("b", "a", 3, 5)
    (violation,) = verdicts(story)["T2"].violations
    assert violation.rows[-1].idx == row.idx
    assert violation.text == "b#1 is handed a:3..5, which is not what was put aside next"


def test_a_message_that_comes_twice() -> None:
    story = clean()
    story.gets("b", "a", 5, 5)
    assert violated(story) == {"T2"}


def test_a_message_that_is_left_out() -> None:
    story = received()
    story.gets("b", "a", 5, 5)
    assert violated(story) == {"T2"}


def test_the_last_message_that_is_left_out() -> None:
    story = received()
    story.gets("b", "a", 4, 4)
    (violation,) = verdicts(story)["T2"].violations
    assert violation.text == "b#1 has put a:5..5 aside, and its application never got it"
    slow = replace(FACTS, stopped_members=frozenset({"b#1"}))
    assert not violated(story, slow)
    story(CRASH, "b")
    assert not violated(story)


def test_a_live_message_before_what_was_put_aside() -> None:
    story = received()
    story.takes("b", "a", 6, 6)
    story.gets("b", "a", 4, 5)
    assert violated(story) == {"T2"}


def test_a_message_before_the_state() -> None:
    story = joined()
    story.gets("b", "a", 4, 5)
    assert violated(story) == {"T2"}
    story = joined()
    story.takes("b", "a", 6, 6)
    assert violated(story) == {"T2"}


def second() -> Story:
    """a dies; c, who has the state as well, gives it at the next view."""
    story = joined()
    story.view("c", 1, "c")
    story.takes("c", "a", 1, 5)
    for node in "bc":
        story.view(node, 3, "bc")
    story.takes("b", "c", 1, 1, aside=True)
    story.wants("b", "c", 1, a=messages("a", 1, 2, 3, 4, 5))
    story.begins("b", "c", 1)
    story.receives("b", "c", 3, a=messages("a", 1, 2, 3, 4, 5))
    return story


def test_what_was_kept_before_the_cut_of_the_second_state_is_in_it() -> None:
    story = second()
    assert violated(story) == {"T2"}
    story.gets("b", "c", 1, 1)
    assert not violated(story)
    story.gets("b", "a", 4, 5)
    assert violated(story) == {"T2"}


def test_behind_a_state_that_is_lost_comes_what_was_kept_for_it() -> None:
    story = asked()
    story(STATE_REFUSED, "a", peer="b", seqno=1)
    story.loses("b")
    assert violated(story) == {"T2"}
    story.gets("b", "a", 4, 5)
    assert not violated(story)


def test_who_has_a_state_may_take_another_where_parts_come_together() -> None:
    story = clean()
    story.view("b", 3, "ab")
    story(STATE_WAIT, "b")
    row = story.takes("b", "a", 8, 8)
    (violation,) = verdicts(story)["T2"].violations
    assert violation.rows[-1].idx == row.idx


def test_an_application_that_forgets() -> None:
    story = clean()
    story.ends("b", a=messages("a", 1, 2, 3, 4, 5, 6))
    assert violated(story) == {"T3", "T5"}


def test_an_application_that_mixes_up() -> None:
    story = clean()
    story.ends("b", a=messages("a", 1, 2, 3, 5, 4, 6, 7))
    (violation,) = verdicts(story)["T3"].violations
    assert "7 messages through 7" in violation.text


def test_a_state_that_is_wrong_is_told_where_it_is_given() -> None:
    """Whoever gets it is not to blame."""
    story = joined()
    story.wants("b", "a", 1, a=messages("a", 1, 3))
    story.begins("b", "a", 1)
    story.receives("b", "a", a=messages("a", 1, 3))
    story.gets("b", "a", 4, 5)
    (violation,) = verdicts(story)["T3"].violations
    assert violation.rows[0].event == STATE_WANTED
    assert violated(story) == {"T3"}


def test_fragments_count_for_the_place_and_not_for_the_content() -> None:
    story = clean()
    for node in "ab":
        story(DELIVER, node, peer="a", stream=0, seqno=8, seqno2=9, kind="fragment")
        story.ends(node, a=A7._replace(last=9))
    assert not violated(story)


# Lost states


@pytest.mark.parametrize("whom", ["b", "c"])
def test_a_state_is_lost_if_who_has_it_has_refused_somebody_of_the_view(whom: str) -> None:
    story = joined()
    story.loses("b")
    story.gets("b", "a", 4, 5)
    (violation,) = verdicts(story)["T4"].violations
    assert violation.text == "b#1 has lost its state, and a#1 has one"
    story = joined()
    story(STATE_REFUSED, "a", peer=whom, seqno=1)
    story.loses("b")
    story.gets("b", "a", 4, 5)
    assert ("T4" in violated(story)) is (whom == "c")


def test_a_state_is_lost_if_nobody_came_to_the_view_with_one() -> None:
    """What others got or lost since does not count."""
    story = founded()
    story(STATE_WAIT, "a")
    for node in "ab":
        story.view(node, 2, "ab")
    story(STATE_WAIT, "b")
    story.loses("a")
    story.loses("b")
    assert not violated(story)


@pytest.mark.parametrize("is_behind", [True, False])
def test_who_is_behind_in_reading_came_without_a_state_though_it_says_so_later(
    is_behind: bool,
) -> None:
    story = founded()
    story.install("a", 2, "ab")
    story.view("b", 2, "ab")
    story(STATE_WAIT, "b")
    story.loses("b")
    if is_behind:
        story(STATE_WAIT, "a")
    story.show("a")
    if not is_behind:
        story(STATE_WAIT, "a")
    assert ("T4" in violated(story)) is not is_behind


def test_whoever_has_its_state_since_before_the_view_could_give_it() -> None:
    story = Story()
    story.view("a", 1, "a")
    story(STATE_WAIT, "a")
    story(STATE_RECEIVED, "a", peer="c", seqno=0, view=1)
    for node in "ab":
        story.view(node, 2, "ab")
    story(STATE_WAIT, "b")
    story.loses("b")
    assert "T4" in violated(story)


# One state in one view


def met() -> Story:
    """a has been handed a message of its own before it meets b, and each keeps what it has."""
    story = Story()
    story.view("a", 1, "a")
    story.takes("a", "a", 1, 1)
    for node in "ab":
        story.view(node, 2, "ab")
        story.takes(node, "b", 1, 2)
    story.ends("a", a=messages("a", 1), b=messages("b", 1, 2))
    story.ends("b", b=messages("b", 1, 2))
    return story


def test_two_states_in_one_view() -> None:
    found = verdicts(met())
    (violation,) = found["T5"].violations
    assert violation.text.startswith("b#1 has of a#1 0 messages through 0 (0); a#1 has 1 messages")
    assert found["T5"].premises == 1
    assert violated(met()) == {"T5"}


def test_members_of_two_views_may_have_two_states() -> None:
    story = met()
    story.view("b", 3, "b")
    assert not violated(story)


def test_who_takes_nothing_may_have_less() -> None:
    assert not violated(met(), replace(FACTS, stopped_members=frozenset({"b#1"})))


@pytest.mark.parametrize("whom", ["b", "c"])
def test_who_was_refused_its_state_and_lost_it_may_have_another(whom: str) -> None:
    story = met()
    story(STATE_REFUSED, "a", peer=whom, seqno=1)
    assert violated(story) == {"T5"}
    story.loses("b")
    assert ("T5" in violated(story)) is (whom == "c")


def test_of_who_left_those_who_went_on_together_may_have_different_messages() -> None:
    story = Story()
    for node in "abc":
        story.view(node, 1, "abc")
        story.takes(node, "b", 1, 2)
    story.takes("a", "c", 1, 2)
    story.takes("b", "c", 1, 1)
    for node in "ab":
        story.view(node, 2, "ab")
    for node, seqnos in (("a", (1, 2)), ("b", (1,))):
        story.ends(node, b=messages("b", 1, 2), c=messages("c", *seqnos))
    assert not violated(story)
    assert verdicts(story)["T5"].premises == 1
    story.ends("b", b=messages("b", 1), c=messages("c", 1))
    assert "T5" in violated(story)


# In time


def waiting(since: int) -> Story:
    story = joined()
    story.rows[-2] = story.rows[-2]._replace(mono_ns=since)
    assert story.rows[-2].event == STATE_WAIT
    story.rows.insert(0, Story()(PHASE, "", 0, kind="heal")._replace(mono_ns=50 * SECOND))
    return story


def test_a_state_that_does_not_come() -> None:
    story = waiting(since=50 * SECOND)
    late = replace(FACTS, end_ns=51 * SECOND + bounds.state_ns(FACTS))
    assert violated(story, late) == {"T-L1"}
    assert not violated(story, replace(FACTS, end_ns=50 * SECOND + bounds.state_ns(FACTS)))
    story(CRASH, "b")
    assert not violated(story, late)


def test_who_has_waited_for_long_has_more_patience() -> None:
    patience = bounds.STATE_PATIENCE_NS
    assert bounds.state_ns(FACTS, 3 * patience) - bounds.state_ns(FACTS) == 5 * patience
    story = waiting(since=50 * SECOND - 3 * patience)
    late = replace(FACTS, end_ns=51 * SECOND + bounds.state_ns(FACTS))
    assert not violated(story, late)


def test_without_an_order_of_the_run_some_of_it_is_not_known() -> None:
    rows = [row._replace(run_idx=-1) for row in clean().rows]
    rows.append(Story()(STATE_LOST, "b")._replace(run_idx=-1))
    assert all(verdict.undecidable for verdict in judge_all(STATE[2:4], rows, FACTS))
