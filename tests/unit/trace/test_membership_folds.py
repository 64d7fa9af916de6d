"""What is judged of views and merges: a clean merge holds, and whatever is planted is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast.rules.merging import BeginsWhereNamed, Restful, WindowsStay
from trace_builder import Script

from ringcast.rules.membership import Agreement, GroupFacts, OneView, ServedByItsView
from ringcast.rules.table import feed_all
from ringcast.trace.rows import PART, PHASE, START, VIEW, Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.rules.table import Rule, Verdict
    from ringcast.trace.rows import Row

SECOND = 1_000_000_000
FACTS = GroupFacts(
    nodes=3, suspect_ns=SECOND, verify_ns=SECOND // 10, gst_ns=90 * SECOND, end_ns=200 * SECOND
)
RULES: list[Callable[[], Rule]] = [Agreement, BeginsWhereNamed, WindowsStay, OneView, Restful]


class Story(Script):
    def installs(self, node: str, counter: int, maker: str, members: str) -> Row:
        keys = tuple(f"{member}#1" for member in members)
        return self(VIEW, node, view=counter, view_creator=f"{maker}#1", members=keys)

    def merges(self, node: str, counter: int, maker: str, *parts: str) -> Row:
        """Each part as its maker, the counter of its view, and its members: "a1ac"."""
        members = "".join(part[2:] for part in parts)
        view = self.installs(node, counter, maker, members)
        for part in parts:
            keys = tuple(f"{member}#1" for member in part[2:])
            self(
                PART,
                node,
                peer=part[0],
                seqno=int(part[1]),
                view=counter,
                view_creator=f"{maker}#1",
                members=keys,
            )
        return view


def apart() -> Story:
    """a and c are in one view, b in another; all send."""
    story = Story()
    for node in "abc":
        story(START, node)
    story.installs("a", 1, "a", "a")
    story.installs("b", 1, "b", "b")
    for node in "ac":
        story.installs(node, 2, "a", "ac")
    story.open("a", "c", 0)
    story.open("c", "a", 0)
    story.send("a", 1, 3, low=0)
    story.send("b", 1, 2, low=0)
    return story


def merged(parts: tuple[str, ...] = ("a2ac", "b1b")) -> Story:
    story = apart()
    story.now = 80 * SECOND
    story(PHASE, "", 0, kind="heal")
    for node in "abc":
        story.merges(node, 3, "a", *parts)
    story.send("a", 4, 5, low=3)
    for node in "ac":
        story.open(node, "b", 2)
    story.open("b", "a", 3)
    story.open("b", "c", 0)
    return story


def verdicts(story: Story, facts: Facts = FACTS) -> dict[str, Verdict]:
    rules = [make() for make in RULES]
    feed_all(rules, story.rows)
    return {rule.id: rule.finish(facts) for rule in rules}


def violated(story: Story, facts: Facts = FACTS) -> set[str]:
    return {id for id, verdict in verdicts(story, facts).items() if verdict.violations}


def test_a_clean_merge_holds_and_is_judged() -> None:
    found = verdicts(merged())
    assert [verdict.status for verdict in found.values()] == ["held"] * 5
    assert found["V2"].premises == 4  # each with each of the other part
    assert found["N18"].premises == 2  # a and c have had windows for each other
    assert found["V-L1"].premises == 1
    assert found["V-L4"].premises == 7 + 3  # views, and merges


def test_what_was_sent_before_the_merge_is_not_for_the_other_part() -> None:
    story = merged()
    row = story.open("b", "a", 1)
    (violation,) = verdicts(story)["V2"].violations
    assert violation.rows[-1] == row
    assert violation.text.endswith("when it had sent 3")


def test_nor_may_anything_after_it_be_left_out() -> None:
    story = apart()
    for node in "abc":
        story.merges(node, 3, "a", "a2ac", "b1b")
    story.send("a", 4, 5, low=3)
    story.open("b", "a", 5)
    assert violated(story) == {"V2"}


def test_an_earlier_time_together_does_not_count() -> None:
    story = merged()
    for node, others in (("a", "ac"), ("c", "ac"), ("b", "b")):
        story.installs(node, 4, others[0], others)
    story.send("a", 6, 9, low=3)
    for node in "abc":
        story.merges(node, 5, "a", "a4ac", "b4b")
    story.open("b", "a", 3)
    assert violated(story) == {"V2"}
    story.rows.pop()
    story.open("b", "a", 9)
    assert violated(story) == set()


def test_a_sender_that_lost_sight_of_a_receiver_begins_anew() -> None:
    """b has not noticed: to it they were together all the time."""
    story = merged()
    for node in "ac":
        story.installs(node, 4, "a", "ac")
    story.send("a", 6, 9, low=3)
    for node in "abc":
        story.merges(node, 5, "a", "a4ac", "b3b")
    story.open("b", "a", 9)
    assert violated(story) == set()


def test_a_merge_moves_no_window() -> None:
    story = merged()
    row = story.open("c", "a", 3)
    (violation,) = verdicts(story)["N18"].violations
    assert violation.rows[-1] == row


def test_a_later_view_that_tells_of_the_same_parts_brings_nothing_new() -> None:
    story = merged()
    for node in "abc":
        story.merges(node, 4, "a", "a2ac", "b1b")
    story.open("b", "a", 5)
    assert violated(story) == {"N18", "V2"}


def test_a_view_of_a_stranger_that_is_no_merge_of_mine() -> None:
    assert violated(merged(("a2ac", "b7b"))) == {"V1"}


def test_whoever_has_departed_comes_back_with_another_part_or_not_at_all() -> None:
    story = merged()
    story.installs("a", 4, "a", "ac")
    story.installs("a", 5, "a", "acb")
    (violation,) = verdicts(story)["V1"].violations
    assert violation.text == (
        "a#1 installs view 5 with b#1 in it, who had departed, and no merge brings it back"
    )
    story.rows.pop()
    story.merges("a", 5, "a", "a4ac", "b4b")
    assert "V1" not in violated(story)


def test_somebody_in_two_parts() -> None:
    story = apart()
    story.merges("a", 3, "a", "a2ac", "b1cb")
    assert "V1" in violated(story)


def test_members_are_told_of_different_parts() -> None:
    story = apart()
    story.merges("a", 3, "a", "a2ac", "b1b")
    story.merges("c", 3, "a", "a2a", "c2c", "b1b")
    found = verdicts(story)["V1"].violations
    assert any("different parts" in violation.text for violation in found)


def test_who_cannot_hear_each_other_need_not_be_in_one_view() -> None:
    story = apart()
    story.now = 80 * SECOND
    story(PHASE, "", 0, kind="heal")
    assert violated(story) == {"V-L1"}
    facts = replace(FACTS, component={"a#1": 0, "b#1": 1, "c#1": 0})
    assert violated(story, facts) == set()
    assert verdicts(story, facts)["V-L1"].premises == 2


@pytest.mark.parametrize(("gap_s", "is_too_often"), [(4, True), (6, False)])
def test_merges_without_end(gap_s: int, is_too_often: bool) -> None:
    """Fourteen a minute are the bound for three."""
    story = apart()
    for counter in range(3, 33):
        story.now += gap_s * SECOND
        story.merges("a", counter, "a", f"a{counter % 10}ac", "b1b")
    assert ("V-L4" in violated(story)) is is_too_often


def test_views_without_end() -> None:
    story = Story()
    for counter in range(1, 200):
        story.now += SECOND // 4
        story.installs("a", counter, "a", "a")
    assert violated(story) == {"V-L4"}
    assert verdicts(story, Facts())["V-L4"].status == "vacuous"


@pytest.mark.parametrize(("starts", "violations"), [(0, 0), (1, 1)])
def test_a_window_of_a_member_that_was_left_out_is_where_its_delivery_starts(
    starts: int, violations: int
) -> None:
    """b joins a's view late, when a has gone on without it: a has purged what b would need."""
    story = Story()
    story.installs("a", 1, "a", "ab")
    story.send("a", 1, 3, low=0)
    story.installs("a", 2, "a", "a")
    story("purge", "a", stream=0, seqno=3)
    story.installs("b", 1, "a", "ab")
    story.open("b", "a", 0)
    story.deliver("b", "a", starts + 1, 3)  # recovered from a third member
    story.send("a", 4, 7, low=3)
    story.merges("b", 3, "a", "a2a", "b2b")
    story.open("b", "a", 7)
    rule = ServedByItsView()
    feed_all([rule], story.rows)
    verdict = rule.finish(FACTS)
    assert (verdict.premises, verdict.violation_count) == (1, violations)


def test_without_run_order_nothing_of_merges_is_decided() -> None:
    story = merged()
    story.open("b", "a", 1)
    story.rows = [row._replace(run_idx=-1) for row in story.rows]
    found = verdicts(story)
    assert found["V2"].status == found["N18"].status == "undecidable"


@given(st.permutations("abc-"), st.booleans())
def test_merging_members_equals_one_pass(order: list[str], is_broken: bool) -> None:
    story = merged()
    if is_broken:
        story.open("b", "a", 1)
        story.open("c", "a", 3)
    for make in RULES:
        whole, pieces = make(), [make() for _ in order]
        feed_all([whole], story.rows)
        for node, piece in zip(order, pieces, strict=True):
            feed_all([piece], [row for row in story.rows if (row.node or "-") == node])
        first, *others = pieces
        for other in others:
            first.merge(other)
        assert first.finish(FACTS) == whole.finish(FACTS)
