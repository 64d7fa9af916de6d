"""What is judged of states: a clean transfer holds, and whatever is planted is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast.protocols.state import PATIENCE_NS
from trace_builder import Script

from ringcast.rules.membership import GroupFacts
from ringcast.rules.state import Content, chain, run_hash, state_bound_ns
from ringcast.rules.table import STATE, feed_all
from ringcast.trace.rows import (
    ASIDE,
    CRASH,
    DELIVER,
    HANDED,
    PHASE,
    START,
    STATE_BEGUN,
    STATE_DIGEST,
    STATE_END,
    STATE_ENTRY,
    STATE_LOST,
    STATE_RECEIVED,
    STATE_REFUSED,
    STATE_WAIT,
    STATE_WANTED,
)

if TYPE_CHECKING:
    from ringcast.rules.table import Verdict
    from ringcast.trace.rows import Facts, Row

SECOND = 1_000_000_000
FACTS = GroupFacts(nodes=3, gst_ns=90 * SECOND, end_ns=200 * SECOND, state_ns=SECOND)
IDS = ["T1", "T2", "T3", "T4", "T-L1"]


def message(sender: str, seqno: int) -> bytes:
    return f"{sender}{seqno}".encode()


def messages(sender: str, *seqnos: int) -> Content:
    """What an application has that was handed just these."""
    payloads = [message(sender, seqno) for seqno in seqnos]
    return Content(len(seqnos), seqnos[-1], run_hash(payloads))


class Story(Script):
    def takes(self, node: str, sender: str, first: int, last: int, *, aside: bool = False) -> Row:
        if aside:
            return self._run(DELIVER, node, sender, first, last, detail=ASIDE)
        return self._run(DELIVER, node, sender, first, last)

    def gets(self, node: str, sender: str, first: int, last: int) -> Row:
        """Later than it was taken."""
        return self._run(HANDED, node, sender, first, last)

    def _run(self, event: str, node: str, sender: str, first: int, last: int, **more: Any) -> Row:
        hash = run_hash(message(sender, seqno) for seqno in range(first, last + 1))
        columns = {"stream": 0, "seqno": first, "seqno2": last, "block_hash": hash, **more}
        return self(event, node, peer=sender, **columns)

    def wants(self, joiner: str, provider: str, number: int, **state: Content) -> None:
        self(STATE_WANTED, provider, peer=joiner, seqno=number)
        self._entries(provider, state)

    def begins(self, joiner: str, provider: str, number: int, **cut: int) -> None:
        self(STATE_BEGUN, joiner, peer=provider, seqno=number)
        for sender, seqno in cut.items():
            self(STATE_DIGEST, joiner, peer=sender, stream=0, seqno=seqno)

    def receives(self, joiner: str, provider: str, **state: Content) -> None:
        self(STATE_RECEIVED, joiner, peer=provider, seqno=1)
        self._entries(joiner, state)

    def ends(self, node: str, **state: Content) -> None:
        self(STATE_END, node)
        self._entries(node, state)

    def _entries(self, node: str, state: dict[str, Content]) -> None:
        for sender, (count, last, hash) in state.items():
            columns = {"seqno": last, "size": count, "block_hash": hash}
            self(STATE_ENTRY, node, peer=sender, stream=0, **columns)


A3 = messages("a", 1, 2, 3)
A7 = messages("a", 1, 2, 3, 4, 5, 6, 7)


def joined() -> Story:
    """a has been handed three of its own messages; b joins, and its windows open there."""
    story = Story()
    for node in "abc":
        story(START, node)
    story.view("a", 1, "a")
    story.takes("a", "a", 1, 2)
    story.takes("a", "a", 3, 3)
    for node in "ab":
        story.view(node, 2, "ab")
    story.open("b", "a", 3)
    story(STATE_WAIT, "b")
    story.takes("b", "a", 4, 5, aside=True)
    return story


def received(**changes: Any) -> Story:
    """It gets that state, and what follows."""
    story = joined()
    story.wants("b", "a", 1, a=A3)
    story.begins("b", "a", 1, a=changes.get("cut", 3))
    story.now = 10 * SECOND
    story.receives("b", "a", a=changes.get("state", A3))
    return story


def clean() -> Story:
    story = received()
    story.rows.insert(0, Story()(PHASE, "", 0, kind="heal"))
    story.gets("b", "a", 4, 5)
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
    rules = [make() for make in STATE]
    feed_all(rules, numbered(story))
    return {rule.id: rule.finish(facts) for rule in rules}


def violated(story: Story, facts: Facts = FACTS) -> set[str]:
    return {id for id, verdict in verdicts(story, facts).items() if verdict.violations}


def test_a_clean_transfer_holds_and_is_judged() -> None:
    found = verdicts(clean())
    assert list(found) == IDS
    assert not violated(clean())
    assert found["T1"].premises == 2  # the cut, and the content
    assert found["T2"].premises == 3
    assert found["T3"].premises == 3  # one given, two at the end
    assert found["T4"].status == "vacuous"
    assert found["T-L1"].premises == 1
    assert found["T-L1"].worst == 10 * SECOND / state_bound_ns(FACTS)


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
    story = joined()
    story.wants("b", "a", 1, a=A3)
    story.begins("b", "a", 1, a=3)
    story.receives("b", "a")
    assert "T1" in violated(story)


@pytest.mark.parametrize("cut", [2, 4])
def test_a_state_of_the_wrong_cut(cut: int) -> None:
    (violation,) = verdicts(received(cut=cut))["T1"].violations
    assert violation.text.endswith("a had come to 3")


def test_a_cut_that_leaves_somebody_out() -> None:
    story = joined()
    story.wants("b", "a", 1, a=A3)
    story.begins("b", "a", 1)
    assert violated(story) == {"T1"}


def test_a_provider_may_have_come_to_where_a_window_opened() -> None:
    """Of a sender that was away it has nothing yet, and what it had before is in the state."""
    story = joined()
    story.open("a", "c", 20)
    story.wants("b", "a", 1, a=A3)
    story.begins("b", "a", 1, a=3, c=20)
    story.receives("b", "a", a=A3)
    story.gets("b", "a", 4, 5)
    assert not violated(story)
    story.begins("b", "a", 1, a=3, c=21)
    assert violated(story) == {"T1"}


def test_a_state_that_nobody_gave() -> None:
    story = joined()
    story.begins("b", "a", 1, a=3)
    assert violated(story) == {"T1"}


def test_a_state_that_was_for_somebody_else() -> None:
    story = joined()
    story.wants("c", "a", 1, a=A3)
    story.begins("b", "a", 1, a=3)
    assert violated(story) == {"T1"}


def test_a_message_that_is_in_the_state_and_comes_too() -> None:
    story = received()
    row = story.gets("b", "a", 3, 5)
    (violation,) = verdicts(story)["T2"].violations
    assert violation.rows[-1].idx == row.idx
    assert violation.text == "b#1 is handed a:3..5, which it has had through 3"


def test_a_message_that_comes_twice() -> None:
    story = clean()
    story.gets("b", "a", 5, 5)
    assert violated(story) == {"T2"}


def test_a_message_that_is_left_out() -> None:
    story = received()
    story.gets("b", "a", 5, 5)
    (violation,) = verdicts(story)["T2"].violations
    assert violation.text == "b#1 is handed a:5..5, due was 4"


def test_the_last_message_that_is_left_out() -> None:
    story = received()
    story.gets("b", "a", 4, 4)
    assert violated(story) == {"T2"}
    slow = replace(FACTS, stopped_members=frozenset({"b#1"}))
    assert not violated(story, slow)
    story(CRASH, "b")
    assert not violated(story)


def test_a_message_before_the_state() -> None:
    story = joined()
    story.gets("b", "a", 4, 5)
    assert violated(story) == {"T2"}


def test_messages_that_do_not_follow_on_the_state() -> None:
    """The second provider is behind the place where the joiner's windows have opened."""
    story = joined()
    story.takes("c", "a", 1, 2)
    story.wants("b", "c", 1, a=messages("a", 1, 2))
    story.begins("b", "c", 1, a=2)
    story.receives("b", "c", a=messages("a", 1, 2))
    story.gets("b", "a", 4, 5)
    assert violated(story) == {"T2"}


def departed(handed: bool) -> Story:
    """The same, but the sender is gone: what it left here is left out, or not."""
    story = joined()
    story.takes("c", "a", 1, 2)
    story.view("b", 3, "bc")
    story.wants("b", "c", 1, a=messages("a", 1, 2))
    story.begins("b", "c", 1, a=2)
    story.receives("b", "c", a=messages("a", 1, 2))
    if handed:
        story.gets("b", "a", 4, 5)
    return story


def test_of_who_departed_what_does_not_follow_is_left_out() -> None:
    assert not violated(departed(handed=False))
    assert violated(departed(handed=True)) == {"T2"}


def test_who_was_away_begins_anew() -> None:
    story = departed(handed=False)
    story.view("b", 4, "bca")
    story.open("b", "a", 20)
    story.takes("b", "a", 21, 22)
    assert not violated(story)
    story.takes("b", "a", 24, 24)
    assert violated(story) == {"T2"}


def test_who_was_away_must_not_hide_a_message_that_was_lost() -> None:
    story = received()
    story.gets("b", "a", 4, 4)
    story.open("b", "a", 20)
    story.takes("b", "a", 21, 21)
    assert violated(story) == {"T2"}


def passed_by(offset: int, *, cut: int | None = None) -> Story:
    """c comes after b, is heard by it and goes, all while b waits for its state."""
    story = joined()
    story.view("b", 3, "abc")
    story.open("b", "c", offset)
    story.takes("b", "c", offset + 1, offset + 2, aside=True)
    story.view("b", 4, "ab")
    known = {} if cut is None else {"c": cut}
    story.wants("b", "a", 1, a=A3)
    story.begins("b", "a", 1, a=3, **known)
    story.receives("b", "a", a=A3)
    story.gets("b", "a", 4, 5)
    return story


@pytest.mark.parametrize("offset", [0, 13])
def test_who_came_and_went_meanwhile_is_not_left_out(offset: int) -> None:
    story = passed_by(offset)
    (violation,) = verdicts(story)["T2"].violations
    assert (
        violation.text == f"b#1 has taken c through {offset + 2}; its application got it through 0"
    )
    story.gets("b", "c", offset + 1, offset + 2)
    assert not violated(story)


def test_who_came_and_went_meanwhile_is_left_out_where_its_provider_had_less() -> None:
    assert "T2" not in violated(passed_by(13, cut=12))
    assert "T2" in violated(passed_by(13, cut=13))


def test_who_came_and_went_and_came_back_must_not_hide_what_was_lost() -> None:
    story = passed_by(13)
    story.view("b", 5, "abc")
    story.open("b", "c", 20)
    story.takes("b", "c", 21, 21)
    (violation,) = verdicts(story)["T2"].violations
    assert violation.text == "b#1 is handed c:21..21, due was 1"
    story.takes("b", "c", 22, 22)
    assert len(verdicts(story)["T2"].violations) == 1


def test_behind_a_state_that_is_lost_nothing_is_left_out() -> None:
    story = passed_by(13, cut=12)
    del story.rows[-3:]  # what follows on the beginning of the state
    story(STATE_REFUSED, "a", peer="b", seqno=1)
    story(STATE_LOST, "b")
    story.gets("b", "a", 4, 5)
    assert "T2" in violated(story)
    story.gets("b", "c", 14, 15)
    assert "T2" not in violated(story)


def test_an_application_that_forgets() -> None:
    story = clean()
    story.ends("b", a=messages("a", 1, 2, 3, 4, 5, 6))
    assert violated(story) == {"T3"}


def test_an_application_that_mixes_up() -> None:
    story = clean()
    story.ends("b", a=messages("a", 1, 2, 3, 5, 4, 6, 7))
    (violation,) = verdicts(story)["T3"].violations
    assert "7 messages through 7" in violation.text


def test_a_state_that_is_wrong_is_told_where_it_is_given() -> None:
    """Whoever gets it is not to blame."""
    story = joined()
    story.wants("b", "a", 1, a=messages("a", 1, 3))
    story.begins("b", "a", 1, a=3)
    story.receives("b", "a", a=messages("a", 1, 3))
    story.gets("b", "a", 4, 5)
    (violation,) = verdicts(story)["T3"].violations
    assert violation.rows[0].event == STATE_WANTED
    assert violated(story) == {"T3"}


def test_fragments_count_for_the_place_and_not_for_the_content() -> None:
    story = clean()
    story(DELIVER, "b", peer="a", stream=0, seqno=8, seqno2=9, kind="fragment")
    story.ends("b", a=A7._replace(last=9))
    assert not violated(story)


# Lost states


def test_a_state_is_lost_if_everybody_waits_or_refuses() -> None:
    story = joined()
    story(STATE_LOST, "b")
    (violation,) = verdicts(story)["T4"].violations
    assert violation.text == "b#1 has lost its state, and a#1 has one"
    story = joined()
    story(STATE_REFUSED, "a", peer="b", seqno=1)
    story(STATE_LOST, "b")
    story.gets("b", "a", 4, 5)
    assert not violated(story)
    story = joined()
    story(STATE_WAIT, "a")
    story(STATE_LOST, "b")
    story.gets("b", "a", 4, 5)
    assert not violated(story)


def test_whoever_has_its_state_since_before_the_view_could_give_it() -> None:
    story = Story()
    story.view("a", 1, "a")
    story(STATE_WAIT, "a")
    story(STATE_RECEIVED, "a", peer="c", seqno=0)
    for node in "ab":
        story.view(node, 2, "ab")
    story(STATE_WAIT, "b")
    story(STATE_LOST, "b")
    assert "T4" in violated(story)


def test_whoever_is_yet_to_hear_that_it_was_let_in_has_none() -> None:
    """b is alone, and has lost its state. In the same step it lets c in."""
    story = joined()
    story.view("b", 3, "b")
    story.view("b", 4, "bc")
    story(STATE_LOST, "b")
    story.gets("b", "a", 4, 5)
    assert not violated(story)
    founder = Story()
    founder.view("c", 1, "c")
    founder.rows += story.rows
    assert violated(founder) == {"T4"}


# In time


def waiting(since: int) -> Story:
    story = joined()
    story.rows[-2] = story.rows[-2]._replace(mono_ns=since)
    assert story.rows[-2].event == STATE_WAIT
    story.rows.insert(0, Story()(PHASE, "", 0, kind="heal")._replace(mono_ns=50 * SECOND))
    return story


def test_a_state_that_does_not_come() -> None:
    story = waiting(since=50 * SECOND)
    late = replace(FACTS, end_ns=51 * SECOND + state_bound_ns(FACTS))
    assert violated(story, late) == {"T-L1"}
    assert not violated(story, replace(FACTS, end_ns=50 * SECOND + state_bound_ns(FACTS)))
    story(CRASH, "b")
    assert not violated(story, late)


def test_who_has_waited_for_long_has_more_patience() -> None:
    assert state_bound_ns(FACTS, 3 * PATIENCE_NS) - state_bound_ns(FACTS) == 5 * PATIENCE_NS
    story = waiting(since=50 * SECOND - 3 * PATIENCE_NS)
    late = replace(FACTS, end_ns=51 * SECOND + state_bound_ns(FACTS))
    assert not violated(story, late)


# Apart and together


@given(st.lists(st.integers(0, 2), min_size=60, max_size=60))
def test_members_may_be_fed_apart(places: list[int]) -> None:
    story = clean()
    story.gets("b", "a", 7, 7)
    story.ends("b")
    rows = numbered(story)
    members = sorted({(row.node, row.inc) for row in rows})
    at = {member: places[place] for place, member in enumerate(members)}
    for make in STATE:
        whole, parts = make(), [make() for _ in range(3)]
        feed_all([whole], rows)
        for row in rows:
            feed_all([parts[at[row.node, row.inc]]], [row])
        parts[0].merge(parts[1])
        parts[0].merge(parts[2])
        assert parts[0].finish(FACTS) == whole.finish(FACTS)


def test_without_an_order_of_the_run_some_of_it_is_not_known() -> None:
    rows = [row._replace(run_idx=-1) for row in clean().rows]
    for make in STATE[2:4]:
        rule = make()
        feed_all([rule], [*rows, Story()(STATE_LOST, "b")._replace(run_idx=-1)])
        assert rule.finish(FACTS).undecidable is not None
