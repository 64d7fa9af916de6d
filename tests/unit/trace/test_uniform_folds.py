"""What is judged of uniform messages: a clean run holds, and whatever is planted is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast.rules.uniform_liveness import UniformFacts, resolve_bound_ns
from trace_builder import Script

from ringcast.rules.membership import LEAVE
from ringcast.rules.table import UNIFORM, feed_all
from ringcast.trace.rows import (
    BACK,
    CRASH,
    DELIVER,
    ESTATE,
    OPEN,
    PHASE,
    PURGE,
    RESOLVED,
    SEND,
    STOP,
    TX,
    VIEW,
    WIN,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.rules.table import Rule, Verdict
    from ringcast.trace.rows import Facts, Row

RULES: list[Callable[[], Rule]] = [make for make in UNIFORM if make().id.startswith("U")]
IDS = ["U1", "U2", "U3", "U4", "U5", "U6", "U7", "U-L1", "U-L2", "U-L3"]
MS = 1_000_000
FACTS = UniformFacts(
    tau_ns=100 * MS,
    delta_ns=10 * MS,
    ack_delay_ns=5 * MS,
    nack_messages_max=8,
    capacity={f"{name}#1": 8 for name in "abcd"},
    nodes=4,
    leave_ns=500 * MS,
    gst_ns=2000 * MS,
    end_ns=9000 * MS,
)


class Story(Script):
    """Rows of the uniform stream; times in milliseconds."""

    def at(self, ms: float) -> Story:
        self.now = round(ms * MS)
        return self

    def installs(self, node: str, counter: int, members: str) -> Row:
        keys = tuple(f"{member}#1" for member in members)
        return self(VIEW, node, view=counter, view_creator=keys[0], members=keys)

    def opens(self, node: str, peer: str, offset: int = 0) -> Row:
        self.holds(node, peer, offset)
        return self(OPEN, node, peer=peer, stream=1, seqno=offset)

    def holds(self, node: str, peer: str, received: int) -> Row:
        kind = "send" if node == peer else "receive"
        return self(WIN, node, peer=peer, stream=1, kind=kind, received=received)

    def sends(self, node: str, first: int, last: int) -> Row:
        row = self(SEND, node, stream=1, seqno=first, seqno2=last, low=0, hr=first - 1, cap=8)
        self.holds(node, node, last)
        return row

    def commits(self, node: str, through: int, view: int) -> Row:
        return self(TX, node, stream=1, kind="commit", seqno=through, view=view)

    def takes(self, node: str, peer: str, first: int, last: int) -> Row:
        return self(DELIVER, node, peer=peer, stream=1, seqno=first, seqno2=last)

    def purges(self, node: str, through: int) -> Row:
        return self(PURGE, node, stream=1, seqno=through, hd=through)

    def estate(self, node: str, stage: str, hd: int, received: int, **columns: Any) -> Row:
        columns = {"peer": "c", "stream": 1, "view": 2} | columns
        return self(ESTATE, node, kind=stage, hd=hd, received=received, **columns)


def together() -> Story:
    """a, b and c are in one view, with windows for each other."""
    story = Story()
    story(PHASE, "", 0, kind="warm")
    for node in "abc":
        story.installs(node, 1, "abc")
        for peer in "abc".replace(node, ""):
            story.opens(node, peer)
    return story


def torn() -> Story:
    """Then c has sent three, committed two, and dies; b has heard of none."""
    story = together()
    story.at(10).sends("c", 1, 3)
    story.at(20).holds("a", "c", 2)
    story.holds("b", "c", 3)
    story.at(30).commits("c", 2, view=1)
    story.takes("c", "c", 1, 2)
    story.at(40).takes("a", "c", 1, 2)
    story(CRASH, "c")
    story.at(900)(PHASE, "", 0, kind="heal")
    story.at(1000).installs("a", 2, "ab")
    story.estate("a", "collect", 2, 2)
    story.at(1010).installs("b", 2, "ab")
    story.estate("b", "collect", 0, 3)
    return story


def resolved() -> Story:
    """a takes over: it fetches the third, and both deliver all."""
    story = torn()
    story.at(1040).estate("a", "hold", 2, 3, seqno=3)
    story.at(1050).estate("b", "hold", 0, 3, seqno=3)
    story.at(1060).estate("a", "commit", 2, 3, seqno=3)
    story.takes("a", "c", 3, 3)
    story.at(1070).estate("b", "commit", 0, 3, seqno=3)
    story.takes("b", "c", 1, 3)
    story.at(1080).estate("a", RESOLVED, 3, 3, seqno=3)
    story.at(1090).estate("b", RESOLVED, 3, 3, seqno=3)
    return story


def clean() -> Story:
    """Then d comes and goes; a sends before that, while it goes, and in the end."""
    story = resolved()
    story.at(1100).sends("a", 1, 1)
    story.holds("b", "a", 1)
    story.at(1110).commits("a", 1, view=2)
    story.takes("a", "a", 1, 1)
    story.at(1120).takes("b", "a", 1, 1)
    story.at(1200).purges("a", 1)
    for node in "abd":
        story.at(1210).installs(node, 3, "abd")
    story.commits("a", 1, view=3)
    story.opens("d", "a", 1)
    story.opens("d", "b", 0)
    story.opens("a", "d", 0)
    story.opens("b", "d", 0)
    story.at(2000)(PHASE, "", 0, kind="liveness")
    story.at(2010)(LEAVE, "d")
    story.at(2050)(STOP, "d", detail="left")
    for node in "ab":
        story.at(2060).installs(node, 4, "ab")
        story.estate(node, "collect", 0, 0, peer="d", view=4)
        story.at(2080).estate(node, RESOLVED, 0, 0, peer="d", view=4)
    story.at(2100).sends("a", 2, 3)
    story.at(2105).holds("b", "a", 3)
    story.at(2115).commits("a", 3, view=4)
    story.takes("a", "a", 2, 3)
    story.at(2125).takes("b", "a", 2, 3)
    story.at(2140).purges("a", 3)
    story.at(8000)(PHASE, "", 0, kind="end")
    return story


def verdicts(story: Story, facts: Facts = FACTS) -> dict[str, Verdict]:
    rules = [make() for make in RULES]
    feed_all(rules, story.rows)
    return {rule.id: rule.finish(facts) for rule in rules}


def violated(story: Story, facts: Facts = FACTS) -> set[str]:
    return {id for id, verdict in verdicts(story, facts).items() if verdict.violations}


def without(story: Story, *dropped: tuple[str, str, str]) -> Story:
    """The same run without the deliveries and other rows named: (event, node, peer or kind)."""
    story.rows = [
        row
        for row in story.rows
        if not any(
            row.event == event and row.node == node and what in (row.peer, row.kind)
            for event, node, what in dropped
        )
    ]
    return story


def test_a_clean_run_holds_and_every_predicate_judges() -> None:
    found = verdicts(clean())
    assert list(found) == IDS
    assert {id: verdict.status for id, verdict in found.items()} == dict.fromkeys(IDS, "held")


# All or none


def test_what_the_dead_delivered_a_survivor_does_not() -> None:
    story = without(clean(), (DELIVER, "b", "c"))
    found = verdicts(story)
    texts = [violation.text for violation in found["U1"].violations]
    assert texts == [
        "c#1 delivers c:2, b only 0",
        "a#1 delivers c:2, b only 0",
    ]
    assert violated(story) == {"U1", "U6"}


def test_survivors_deliver_different_prefixes() -> None:
    story = clean()
    story.rows = [
        row._replace(seqno2=2) if row.event == DELIVER and row.pair == ("b", 1, "c", 1, 1) else row
        for row in story.rows
    ]
    (first, second) = verdicts(story)["U6"].violations
    assert second.text == "of c, who has departed, a has delivered 3 and b 2"
    assert first.text == "b#1 received c:3 when that departed, and has delivered 2"
    assert violated(story) == {"U1", "U6"}


def test_nobody_need_deliver_what_no_survivor_had() -> None:
    """The third is only at c: none is as right as all."""
    story = torn()
    story.rows = [
        row._replace(received=2) if row.node == "b" and row.event in (WIN, ESTATE) else row
        for row in story.rows
    ]
    story.at(1060).estate("a", "commit", 2, 2, seqno=2)
    story.at(1070).takes("b", "c", 1, 2)
    story.at(1080).estate("a", RESOLVED, 2, 2, seqno=2)
    story.at(1090).estate("b", RESOLVED, 2, 2, seqno=2)
    story.at(8000)(PHASE, "", 0, kind="end")
    assert violated(story) == set()


def test_who_parted_from_the_others_is_not_compared() -> None:
    story = torn()
    story.at(1020).installs("a", 3, "a")
    story.installs("b", 3, "b")
    story.takes("b", "c", 1, 3)
    story.at(8000)(PHASE, "", 0, kind="end")
    assert verdicts(story)["U6"].violations == []
    assert verdicts(story)["U6"].premises == 2  # what each received


def parted() -> Story:
    """a goes on alone, and b with c, which sends two that b holds."""
    story = together()
    story.at(10).installs("a", 2, "a")
    for node in "bc":
        story.installs(node, 3, "bc")
    story.at(20).sends("c", 1, 2)
    story.holds("b", "c", 2)
    return story


def taken_over(story: Story, view: int) -> Story:
    """c dies, b and a go on without it, and b alone delivers what it has left."""
    story(CRASH, "c")
    story.at(60).installs("b", view, "ba")
    story.installs("a", view, "ba")
    story.estate("b", "commit", 0, 2, seqno=2, view=view)
    story.takes("b", "c", 1, 2)
    story.estate("b", RESOLVED, 2, 2, seqno=2, view=view)
    story.at(8000)(PHASE, "", 0, kind="end")
    return story


@pytest.mark.parametrize("is_back", [True, False])
def test_who_was_parted_from_a_sender_is_owed_nothing_of_it(is_back: bool) -> None:
    """Whether a has seen it again, or hears of it only when it is gone."""
    story = parted()
    story.at(30).installs("b", 4, "bca")
    if is_back:
        story.installs("a", 4, "bca")
    assert violated(taken_over(story, 5)) == set()


def test_a_sender_that_is_back_and_has_begun_with_another_only() -> None:
    """c was away from both. It dies when b has a window again, and a has none yet."""
    story = together()
    for node in "ab":
        story.at(10).installs(node, 2, "ab")
    story.installs("c", 2, "c")
    for node in "abc":
        story.at(20).installs(node, 3, "abc")
    story.opens("b", "c", 0)
    story.at(30).sends("c", 1, 2)
    story.holds("b", "c", 2)
    assert violated(taken_over(story, 4)) == set()


def test_who_has_begun_with_a_sender_anew_is_owed_what_comes_then() -> None:
    story = parted()
    for node in "abc":
        story.at(30).installs(node, 4, "bca")
    story.opens("a", "c", 1)
    assert violated(taken_over(story, 5)) == {"U1", "U3"}


def test_what_was_committed_before_a_merge_is_not_owed_to_the_other_part() -> None:
    """c tells of it once more in the merged view, and takes it there."""
    story = parted()
    for node in "bc":
        story.at(30).installs(node, 4, "bca")
    story.commits("c", 2, view=4)
    story.takes("c", "c", 1, 2)
    story.takes("b", "c", 1, 2)
    story(CRASH, "c")
    story.at(8000)(PHASE, "", 0, kind="end")
    assert violated(story) == set()


def test_who_has_stayed_with_the_sender_is_owed_all_of_it() -> None:
    """b was away and is back; a and c have been together all the time."""
    story = together()
    story.at(10).installs("b", 2, "b")
    for node in "ac":
        story.installs(node, 2, "ac")
    for node in "abc":
        story.at(20).installs(node, 3, "bac")
    story.opens("b", "c", 0)
    story.at(30).sends("c", 1, 2)
    story.holds("b", "c", 2)
    assert violated(taken_over(story, 4)) == {"U1", "U3"}


def test_where_the_sender_was_before_the_window_opened_and_goes_later_ends_nothing() -> None:
    story = Story()
    story(PHASE, "", 0, kind="warm")
    story.installs("c", 1, "c")
    for node in "cb":
        story.installs(node, 2, "cb")
    story.opens("b", "c")
    story.sends("c", 1, 1)
    story.holds("b", "c", 1)
    story.commits("c", 1, view=2)
    story.takes("c", "c", 1, 1)
    story.installs("c", 3, "c")
    story.at(8000)(PHASE, "", 0, kind="end")
    (violation,) = verdicts(story)["U1"].violations
    assert violation.text == "c#1 delivers c:1, b only 0"


def test_a_sender_counts_on_whoever_is_in_its_view_also_if_that_one_has_gone() -> None:
    """a has made a view without c, which makes one with a: what it commits a must hold."""
    story = torn()
    story.at(1020).installs("c", 3, "ca")
    story.commits("c", 3, view=3)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.text == "c#1 commits c:3 in view 3, a holds 2"


def test_a_sender_that_is_back_is_another_matter() -> None:
    story = torn()
    story.at(1020).estate("a", BACK, 2, 2)
    story.estate("b", BACK, 0, 3)
    story.at(8000)(PHASE, "", 0, kind="end")
    assert verdicts(story)["U6"].premises == 0


def test_a_run_that_is_cut_short_decides_neither() -> None:
    found = verdicts(resolved())
    assert found["U1"].status == found["U6"].status == "undecidable"


def test_whoever_takes_nothing_owes_nothing() -> None:
    story = without(clean(), (DELIVER, "b", "c"))
    facts = replace(FACTS, stopped_members=frozenset({"b#1"}))
    assert violated(story, facts) == set()


# Once, in order, to those it was for


def test_a_joiner_delivers_what_was_before_it() -> None:
    story = clean()
    row = story.at(2001).takes("d", "a", 1, 1)
    (violation,) = verdicts(story)["U2"].violations
    assert violation.rows[-1] == row
    assert violated(story) == {"U2", "U4"}


def test_one_without_a_window_delivers() -> None:
    story = clean()
    story.at(2001).takes("d", "c", 1, 3)
    assert "its windows opened at no place" in verdicts(story)["U2"].violations[0].text


def test_a_take_over_delivers_again() -> None:
    story = clean()
    story.at(1075).takes("a", "c", 2, 3)
    assert violated(story) == {"U2"}


def test_a_take_over_leaves_a_gap() -> None:
    story = clean()
    story.at(1065).takes("b", "c", 5, 5)
    assert {"U2", "U4"} <= violated(story)


# Commits


def test_a_sender_commits_what_somebody_lacks() -> None:
    story = torn()
    row = story.commits("c", 3, view=1)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.rows[-1] == row
    assert violation.text == "c#1 commits c:3 in view 1, a holds 2"


def test_a_repeated_commit_is_judged_when_it_was_first_said() -> None:
    story = torn()
    premises = verdicts(story)["U3"].premises
    story.commits("c", 2, view=1)
    assert verdicts(story)["U3"].premises == premises


def test_a_taker_commits_too_early() -> None:
    story = torn()
    story.at(1030).estate("a", "commit", 2, 2, seqno=3)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.text == "a#1 commits c:3 in view 2, a holds 2"


def test_a_receiver_delivers_what_somebody_lacks() -> None:
    story = torn()
    row = story.at(1020).takes("b", "c", 1, 3)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.rows[-1] == row
    assert violation.text == "b#1 delivers c:3 in view 0, a holds 2"


def test_who_only_follows_a_taker_commits_nothing_itself() -> None:
    story = torn()
    story.at(1030).estate("b", "commit", 0, 3, seqno=3)
    assert verdicts(story)["U3"].violations == []


def test_a_joiner_opens_below_what_was_committed() -> None:
    story = clean()
    story.rows = [
        row._replace(seqno=0, received=0)
        if row.node == "d" and row.peer == "a" and row.event in (OPEN, WIN)
        else row
        for row in story.rows
    ]
    assert "d holds 0" in verdicts(story)["U3"].violations[0].text


def test_a_commit_in_a_view_that_its_sender_never_saw() -> None:
    story = torn()
    story.commits("a", 0, view=9)  # nothing
    assert verdicts(story)["U3"].violations == []
    story.commits("a", 1, view=9)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.text == "a#1 commits in view 9, where it never was"


def test_without_run_order_commits_are_not_decided() -> None:
    story = torn()
    story.commits("c", 3, view=1)
    story.rows = [row._replace(run_idx=-1) for row in story.rows]
    assert verdicts(story)["U3"].status == "undecidable"


# In time


def test_a_message_that_never_comes_to_a_live_member() -> None:
    story = without(clean(), (DELIVER, "b", "a"))
    assert violated(story) == {"U1", "U5"}  # and nothing is calm until it has come


def test_a_message_that_takes_more_than_three_delays() -> None:
    story = clean()
    story.rows = [
        row._replace(mono_ns=2131 * MS) if row.mono_ns == 2125 * MS else row for row in story.rows
    ]
    found = verdicts(story)["U-L1"]
    assert found.worst == pytest.approx(31 / 30)
    assert violated(story) == {"U-L1"}


def test_a_larger_window_than_the_receivers_excuses_delay() -> None:
    facts = replace(FACTS, capacity={**FACTS.capacity, "b#1": 7})
    assert verdicts(clean(), facts)["U-L1"].premises == 0


def test_what_the_departed_left_is_resolved_too_late() -> None:
    late = torn().at(1010 + resolve_bound_ns(FACTS) / MS + 1)
    late.estate("a", RESOLVED, 3, 3)
    late.estate("b", RESOLVED, 3, 3)
    assert violated(late) == {"U-L2"}
    assert verdicts(late)["U-L2"].violation_count == 2


def test_what_the_departed_left_is_never_resolved() -> None:
    story = torn()
    story.at(8000)(PHASE, "", 0, kind="end")
    assert {"U-L2", "U7"} <= violated(story)
    assert "still has an estate of c" in verdicts(story)["U7"].violations[0].text


def test_what_was_resolved_under_faults_is_not_timed() -> None:
    story = clean()
    story.rows = [
        row._replace(mono_ns=2090 * MS) if row.kind == "heal" else row for row in story.rows
    ]
    assert verdicts(story)["U-L2"].premises == 0


@pytest.mark.parametrize(("ms", "is_late"), [(519, False), (521, True)])
def test_whoever_leaves_is_out_in_time(ms: int, is_late: bool) -> None:
    """Half a second to leave, and twice ten milliseconds."""
    story = torn().at(2010)
    story(LEAVE, "b")
    story.at(2010 + ms)(STOP, "b", detail="left")
    assert ("U-L3" in violated(story)) is is_late


def test_whoever_leaves_need_not_take_all_its_time() -> None:
    facts = replace(FACTS, leave_ns=3600 * 1000 * MS)
    story = torn().at(2010)
    story(LEAVE, "b")
    story.at(2010 + facts.flush_bound_ns / MS + 21)(STOP, "b", detail="left")
    assert "U-L3" in violated(story, facts)


def test_a_window_that_does_not_drain() -> None:
    story = without(clean(), (PURGE, "a", ""))
    assert violated(story) == {"U7"}


def test_somebody_still_speaks_of_the_departed() -> None:
    story = clean()
    story.at(8500)(TX, "b", peer="a", stream=1, kind="standing", view=4)
    (violation,) = verdicts(story)["U7"].violations
    assert violation.text == "b#1 still sends standing"


# In pieces


@given(st.permutations("abcd-"), st.booleans())
def test_merging_members_equals_one_pass(order: list[str], is_broken: bool) -> None:
    story = clean()
    if is_broken:
        story = without(story, (DELIVER, "b", "c"))
        story.at(2001).takes("d", "a", 1, 1)
        story.commits("c", 3, view=1)
    for make in RULES:
        whole, pieces = make(), [make() for _ in order]
        feed_all([whole], story.rows)
        for node, piece in zip(order, pieces, strict=True):
            rows = [row for row in story.rows if row.node == node.replace("-", "")]
            feed_all([piece], rows)
        merged = pieces[0]
        for piece in pieces[1:]:
            merged.merge(piece)
        assert merged.finish(FACTS) == whole.finish(FACTS)
