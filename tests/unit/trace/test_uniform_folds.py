"""When uniform messages are committed and come: a clean run holds, and what is planted is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from trace_builder import Script

from ringcast.rules.table import UNIFORM
from ringcast.rules.table import verdicts as judge_all
from ringcast.trace.rows import CRASH, DELIVER, PHASE, PURGE, SEND, TX, VIEW, WIN, Facts

if TYPE_CHECKING:
    from ringcast.rules.findings import Rule, Verdict
    from ringcast.trace.rows import Row

RULES: list[Rule] = [rule for rule in UNIFORM if rule.id.startswith("U")]
IDS = ["U3", "U5", "U7", "U-L1"]
MS = 1_000_000
FACTS = Facts(
    tau_ns=100 * MS,
    delta_ns=10 * MS,
    ack_delay_ns=5 * MS,
    nack_messages_max=8,
    capacity={f"{name}#1": 8 for name in "abcd"},
    gst_ns=2000 * MS,
    end_ns=9000 * MS,
)


class Story(Script):
    """Rows of the uniform stream; times in milliseconds."""

    def at(self, ms: float) -> Story:
        self.now = round(ms * MS)
        return self

    def holds(self, node: str, peer: str, received: int) -> Row:
        return self(WIN, node, peer=peer, stream=1, kind="receive", received=received)

    def sends(self, node: str, first: int, last: int) -> Row:
        return self.send(node, first, last, stream=1)

    def commits(self, node: str, through: int, view: int | None = None) -> Row:
        counter = self.installed[node].view if view is None else view
        return self(TX, node, stream=1, kind="commit", seqno=through, view=counter)

    def takes(self, node: str, peer: str, first: int, last: int) -> Row:
        return self.deliver(node, peer, first, last, stream=1)

    def purges(self, node: str, through: int) -> Row:
        return self(PURGE, node, stream=1, seqno=through, hd=through)


def together() -> Story:
    """a, b and c are in one view, with windows for each other."""
    story = Story()
    for node in "abc":
        story.view(node, 1, "abc")
        for peer in "abc".replace(node, ""):
            story.open(node, peer, 0, stream=1)
    return story


def torn() -> Story:
    """c has sent three and committed two, and dies; the third comes with the next view."""
    story = together()
    story.at(10).sends("c", 1, 3)
    for node, received in (("a", 2), ("b", 3)):
        story.at(20).holds(node, "c", received)
    story.at(30).commits("c", 2)
    story.takes("c", "c", 1, 2)
    story.at(40).takes("a", "c", 1, 2)
    story(CRASH, "c")
    for node, first in (("a", 3), ("b", 1)):
        story.at(1000).install(node, 2, "ab")
        story.takes(node, "c", first, 3)
        story.show(node)
    return story


def clean() -> Story:
    """Then a sends while all is well."""
    story = torn()
    story.at(2000)(PHASE, "", 0, kind="liveness")
    story.at(2100).sends("a", 1, 2)
    story.at(2105).holds("b", "a", 2)
    story.at(2115).commits("a", 2)
    story.commits("a", 0)  # says nothing
    story.takes("a", "a", 1, 2)
    story.at(2125).takes("b", "a", 1, 2)
    story.at(2140).purges("a", 2)
    return story


def verdicts(story: Story, facts: Facts = FACTS) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in judge_all(RULES, story.rows, facts)}


def violated(story: Story, facts: Facts = FACTS) -> set[str]:
    return {id for id, verdict in verdicts(story, facts).items() if verdict.violations}


def without(story: Story, event: str, node: str, peer: str = "") -> Story:
    story.rows = [
        row for row in story.rows if (row.event, row.node, row.peer) != (event, node, peer)
    ]
    return story


def test_a_clean_run_holds_and_every_rule_judges() -> None:
    found = verdicts(clean())
    assert list(found) == IDS
    assert {id: verdict.status for id, verdict in found.items()} == dict.fromkeys(IDS, "held")


def test_a_commit_of_what_somebody_lacks() -> None:
    story = together()
    story.sends("a", 1, 1)
    story.holds("b", "a", 1)
    story.commits("a", 1)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.text == "a#1 commits a:1 in view 1, c holds 0"


def test_a_delivery_of_what_somebody_lacks() -> None:
    story = together()
    story.sends("a", 1, 1)
    story.holds("b", "a", 1)
    story.takes("b", "a", 1, 1)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.text == "b#1 delivers a:1 in view 1, c holds 0"


def test_a_commit_of_one_view_counted_over_the_next() -> None:
    """d has come in, and has not got it. What was sent before is none of its business."""
    story = together()
    story.sends("a", 1, 1)
    for node in "bc":
        story.holds(node, "a", 1)
    story.view("a", 2, "abcd")
    story.commits("a", 1)
    assert "U3" not in violated(story)
    story.sends("a", 2, 2)
    for node in "bc":
        story.holds(node, "a", 2)
    story.commits("a", 2)
    assert "U3" in violated(story)
    story.rows.pop()
    story.commits("a", 2, view=1)
    (violation,) = verdicts(story)["U3"].violations
    assert violation.text == "a#1 commits in view 1, where it is not"


def test_what_comes_by_the_cut_need_not_be_at_all() -> None:
    story = torn()
    assert violated(story) == set()
    swapped = [row for row in story.rows if row.event != VIEW or row.view == 1]
    story.rows = swapped
    assert violated(story) == {"U3"}


def test_without_run_order_commits_are_not_judged() -> None:
    story = clean()
    story.rows = [row._replace(run_idx=-1) for row in story.rows]
    assert verdicts(story)["U3"].status == "undecidable"


def test_a_message_that_does_not_come() -> None:
    assert violated(without(clean(), DELIVER, "b", "a")) == {"U5", "U-L1"}


def test_a_message_that_comes_late() -> None:
    story = without(clean(), DELIVER, "b", "a")
    late = FACTS.delivery_bound_ns(1, is_gated=True) / MS
    story.at(2100 + late).takes("b", "a", 1, 2)
    assert violated(story) == {"U-L1"}
    story.rows.pop()
    story.at(2101 + late).takes("b", "a", 1, 2)
    assert violated(story) == {"U5", "U-L1"}


@pytest.mark.parametrize("frozen", ["", "a", "b", "c"])
def test_while_members_are_frozen_the_time_does_not_run(frozen: str) -> None:
    """The sender, the receiver, or another that has to hold it."""
    story = together()
    late = FACTS.delivery_bound_ns(1, is_gated=True) / MS
    story.at(2100).sends("a", 1, 1)
    for node in "bc":
        story.holds(node, "a", 1)
    story.takes("a", "a", 1, 1)
    story.takes("c", "a", 1, 1)
    for node in frozen:
        story.at(2200).freeze(node, 2, "abc")
        story.at(2300).install(node, 2, "abc")
    story.at(2200 + late).takes("b", "a", 1, 1)
    assert ("U5" in violated(story)) is not bool(frozen)


def test_a_window_that_never_empties() -> None:
    assert violated(without(clean(), PURGE, "a")) == {"U7"}


def test_three_delays_are_enough_where_nothing_is_amiss() -> None:
    found = verdicts(clean())["U-L1"]
    assert found.worst == 25 / 30
    story = clean()
    story.rows = [
        row._replace(mono_ns=2131 * MS) if (row.event, row.mono_ns) == (DELIVER, 2125 * MS) else row
        for row in story.rows
    ]
    assert violated(story) == {"U-L1"}
    capacity = {**FACTS.capacity, "b#1": 4}
    assert violated(story, replace(FACTS, capacity=capacity)) == set()


def test_nothing_is_owed_before_the_healing() -> None:
    assert {each.premises for each in verdicts(torn(), replace(FACTS, gst_ns=None)).values()} == {
        0,
        verdicts(torn())["U3"].premises,
    }


def test_the_rows_of_a_send_name_its_view() -> None:
    sent = [row for row in clean().rows if row.event == SEND]
    assert [row.view for row in sent] == [1, 2]
