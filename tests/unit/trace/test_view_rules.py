"""What is judged of views: a clean run holds, and whatever is planted is found, by its own rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import Script, keys

from ringcast.protocols.early import STRANGER_NS
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX
from ringcast.protocols.views import change, discovery, taking, timing
from ringcast.rules import bounds
from ringcast.rules.evidence import Frozen
from ringcast.rules.membership import LEAVE
from ringcast.rules.table import MEMBERSHIP, VIEWS
from ringcast.rules.table import verdicts as judge_all
from ringcast.rules.views import uniform_in_all
from ringcast.trace.rows import (
    CRASH,
    DELIVER,
    FREEZE,
    PHASE,
    SHOWN,
    START,
    STOP,
    TX,
    VIEW,
    Facts,
    Row,
)
from ringcast.wire.limits import VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.rules.findings import Rule, Verdict

MS = 1_000_000
SECOND = 1_000 * MS
FACTS = Facts(
    delta_ns=MS,
    tau_ns=10 * MS,
    capacity={"a#1": 2},
    nodes=4,
    suspect_ns=SECOND,
    verify_ns=SECOND // 10,
    leave_ns=5 * SECOND,
    gst_ns=90 * SECOND,
    end_ns=200 * SECOND,
)
RULES: list[Rule] = [*VIEWS, uniform_in_all, *MEMBERSHIP]
UNIFORM = 1


class Story(Script):
    def to_all(self, node: str, first: int, last: int, receivers: str, stream: int = 0) -> None:
        """It sends, and they deliver."""
        self.send(node, first, last, stream=stream)
        for receiver in receivers:
            self.deliver(receiver, node, first, last, stream)

    def change(self, members: str, counter: int, part: str = "", creator: str = "a") -> None:
        """All of them freeze, then install it."""
        for node in members:
            self.freeze(node, counter, members, creator)
        self.now += MS
        for node in members:
            self.install(node, counter, members, part, creator)
            self.show(node)

    def meet(self, old: str, new: str, **sent: int) -> None:
        """Windows open between these, at what was sent."""
        for one, other in ((one, other) for one in old for other in new):
            for stream in (0, UNIFORM):
                self.open(one, other, sent.get(other, 0) * (stream == 0), stream)
                self.open(other, one, sent.get(one, 0) * (stream == 0), stream)


def formed() -> Story:
    """a founds the group; b and c come in."""
    story = Story()
    for node in "abc":
        story(START, node)
    story.view("a", 1, "a")
    story.to_all("a", 1, 1, "a")
    for node in "abc":
        story.freeze(node, 2, "abc")
    story.now += MS
    for node in "abc":
        story.install(node, 2, "abc", part=node, **({"a": 1} if node == "a" else {}))
        story.show(node)
    story.meet("a", "bc", a=1)
    story.meet("b", "c")
    story.to_all("a", 2, 3, "abc")
    story.to_all("c", 1, 1, "abc", UNIFORM)
    return story


def clean() -> Story:
    """c dies, and what it sent comes by the cut; d joins; b leaves."""
    story = formed()
    story.send("c", 2, 2, stream=UNIFORM)
    story.send("c", 1, 2)
    story.deliver("a", "c", 1, 1)
    story(CRASH, "c")
    for node in "ab":
        story.freeze(node, 3, "abc")  # nothing comes of it
        story.freeze(node, 4, "ab")
    story.now += MS
    for node in "ab":
        story.install(node, 4, "ab")
        story.deliver(node, "c", 2, 2, UNIFORM)
        story.show(node)
    story(START, "d")
    for node in "abd":
        story.freeze(node, 5, "abd")
    story.now += MS
    for node in "abd":
        story.install(node, 5, "abd", part="d" if node == "d" else "ab")
        story.show(node)
    story.meet("ab", "d", a=3)
    story.to_all("b", 1, 2, "bad")
    story.now = 91 * SECOND
    story(PHASE, "", 0, kind="heal")
    story(LEAVE, "b")
    for node in "abd":
        story.freeze(node, 6, "abd")
    story.now += MS
    for node in "ad":
        story.freeze(node, 7, "ad", "d")
        story.install(node, 6, "ad", part="abd")  # first, though a later one was promised
        story.show(node)
        story.install(node, 7, "ad", creator="d")
        story.show(node)
    story(STOP, "b")
    return story


def verdicts(story: Story, facts: Facts = FACTS) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in judge_all(RULES, story.rows, facts)}


def violated(story: Story, facts: Facts = FACTS) -> set[str]:
    return {id for id, verdict in verdicts(story, facts).items() if verdict.violations}


def without_order(story: Story) -> Story:
    """As members record for themselves."""
    story.rows = [row._replace(run_idx=-1) for row in story.rows]
    return story


def find(story: Story, event: str, node: str, at: int = 0, **columns: object) -> Row:
    found = [
        row
        for row in story.rows
        if row.event == event
        and row.node == node
        and all(getattr(row, name) == value for name, value in columns.items())
    ]
    return found[at]


def swap(story: Story, row: Row, **columns: object) -> Row:
    other = row._replace(**columns)  # type: ignore[arg-type]
    story.rows[story.rows.index(row)] = other
    return other


def test_a_clean_run_holds_and_gives_each_rule_something_to_judge() -> None:
    found = verdicts(clean())
    assert {id: verdict.status for id, verdict in found.items()} == dict.fromkeys(found, "held")
    ids = "VS1 VS2 VS3 VS4 VS5 VS7 VS9 VS6 V-L1 V-L2 V-L3 V-L4 V-L5 V-L6"
    assert " ".join(found) == ids


# Planted: each function returns the run, and the ids that break


Plant = tuple[Story, set[str]]


def view_goes_back() -> Plant:
    story = clean()
    story.install("a", 4, "ad", creator="d")
    return story, {"VS1", "V-L1"}


def promise_goes_back() -> Plant:
    story = clean()
    swap(story, find(story, FREEZE, "a", view=3), view=5)
    return story, {"VS1"}


def view_without_oneself() -> Plant:
    story = formed()
    story.install("b", 3, "a")
    return story, {"VS1"}


def one_view_two_lists() -> Plant:
    story = formed()
    story.install("a", 3, "abc")
    story.install("b", 3, "acb")
    return story, {"VS1"}


def one_view_two_cuts() -> Plant:
    story = formed()
    story.install("a", 3, "abc", part="abc", a=3)
    story.install("b", 3, "abc", part="abc", a=2)
    return story, {"VS1"}


def parts_that_overlap() -> Plant:
    story = formed()
    story.install("a", 3, "abc", part="ab")
    story.install("b", 3, "abc", part="abc")
    return story, {"VS1"}


def delivered_in_the_view_after() -> Plant:
    """a's last message is read behind the view with which it should have come."""
    story = formed()
    story.send("a", 4, 4)
    story.deliver("a", "a", 4, 4)
    story.change("abc", 3)
    for node in "bc":
        story.deliver(node, "a", 4, 4)
    return story, {"VS2", "VS4", "VS5"}


def delivered_where_it_never_was() -> Plant:
    story = formed()
    story(DELIVER, "b", peer="a", stream=0, seqno=4, view=9, view_creator="c#1")
    return story, {"VS2"}


def one_is_left_out() -> Plant:
    story = formed()
    story.send("a", 4, 5)
    story.deliver("b", "a", 5, 5)
    return story, {"VS3"}


def two_change_places() -> Plant:
    story = formed()
    story.send("a", 4, 5)
    story.deliver("b", "a", 5, 5)
    story.deliver("b", "a", 4, 4)
    return story, {"VS3"}


def window_of_a_new_peer_at_zero() -> Plant:
    story = clean()
    swap(story, find(story, "open", "d", peer="a", stream=0), seqno=0)
    return story, {"VS3"}


def window_of_a_new_peer_too_high() -> Plant:
    """What was sent since it came in does not reach it."""
    story = clean()
    swap(story, find(story, "open", "a", peer="d", stream=0), seqno=2)
    return story, {"VS3"}


def lost_on_the_way_to_the_next_view() -> Plant:
    story = formed()
    story.send("a", 4, 4)
    story.deliver("a", "a", 4, 4)
    story.change("abc", 3)
    return story, {"VS4", "VS5"}


def lost_of_who_leaves() -> Plant:
    story = clean()
    story.rows.remove(find(story, DELIVER, "d", peer="b"))
    return story, {"VS4", "VS5"}


def not_the_same_of_the_dead() -> Plant:
    """By the cut, of a uniform stream."""
    story = clean()
    story.rows.remove(find(story, DELIVER, "b", peer="c", seqno=2, stream=UNIFORM))
    return story, {"VS5", "VS6"}


def delivered_by_commit_and_by_nobody_else() -> Plant:
    """Its deliverer dies at once."""
    story = formed()
    story.to_all("c", 2, 2, "c", UNIFORM)
    story(CRASH, "c")
    for node in "ab":
        story.install(node, 3, "ab")
        story.show(node)
    return story, {"VS6"}


def delivered_by_a_cut_and_not_by_who_went_another_way() -> Plant:
    story = formed()
    story.send("c", 2, 2, stream=UNIFORM)
    story(CRASH, "c")
    story.install("a", 3, "ab")
    story.deliver("a", "c", 2, 2, UNIFORM)
    story.show("a")
    story.freeze("b", 4, "b", "b")
    story.install("b", 4, "b", creator="b")
    story.show("b")
    return story, {"VS6"}


def needless_loss() -> Plant:
    """b has flushed view 3 and is asked for another; nobody lets it install that first."""
    story = formed()
    for node in "abc":
        story.freeze(node, 3, "abc")
    story.install("a", 3, "abc")
    story.show("a")
    for node in "abc":
        story.freeze(node, 4, "abc", "b")
        story.install(node, 4, "abc", part="a" if node == "a" else "bc", creator="b")
        story.show(node)
    return story, {"VS7"}


def sends_while_frozen() -> Plant:
    story = formed()
    story.freeze("a", 3, "abc")
    story.to_all("a", 4, 4, "abc")
    return story, {"VS9", "V-L5"}


def sends_in_the_view_before() -> Plant:
    story = formed()
    before = story.installed["a"]
    story.change("abc", 3)
    story.installed["a"] = before
    story.to_all("a", 4, 4, "abc")
    return story, {"VS9", "VS2", "VS4"}


def two_views_in_the_end() -> Plant:
    story = clean()
    story.install("d", 8, "d", creator="d")
    return story, {"V-L1"}


def never_in_a_view() -> Plant:
    story = clean()
    story(START, "e")
    return story, {"V-L1", "V-L2"}


def never_out() -> Plant:
    story = clean()
    story.rows.remove(find(story, STOP, "b"))
    return story, {"V-L1", "V-L3", "V-L5"}


def leaves_too_slowly() -> Plant:
    story = clean()
    stop = find(story, STOP, "b")
    late = bounds.leave_soon_ns(FACTS) + MS
    swap(story, stop, mono_ns=find(story, LEAVE, "b").mono_ns + late)
    return story, {"V-L3"}


def leaves_unasked() -> Plant:
    """The others go on as if it had died."""
    story = clean()
    for node in "ad":
        swap(story, find(story, VIEW, node, view=6), part=keys("ad"))
    return story, {"V-L3"}


def views_without_end() -> Plant:
    story = Story()
    for counter in range(1, 400):
        story.now += SECOND // 8
        story.install("a", counter, "a")
    return story, {"V-L4"}


def returns_without_end() -> Plant:
    """More than 7 (n - 1) a minute."""
    story = Story()
    for counter in range(1, 100, 2):
        story.now += SECOND
        story.install("a", counter, "ab", part="a")
        story.install("a", counter + 1, "a")
    return story, {"V-L4"}


def frozen_for_ever() -> Plant:
    story = clean()
    story.freeze("a", 8, "ad")
    return story, {"V-L5"}


def one_change_takes_too_long() -> Plant:
    story = clean()
    for node in "ad":
        story.freeze(node, 8, "ad")
    story.now += 8 * MS
    for node in "ad":
        story.install(node, 8, "ad")
        story.show(node)
    return story, {"V-L5"}


def joins_too_often() -> Plant:
    story = clean()
    members = "ad"
    for counter, joiner in enumerate("efghijkl", 8):
        members += joiner
        story.freeze("a", counter, members)
        story.now += 150 * MS
        story.install("a", counter, members)
    return story, {"V-L6", "V-L5", "V-L1"}


PLANTS: list[tuple[str, Callable[[], Plant]]] = [
    ("VS1", view_goes_back),
    ("VS1", promise_goes_back),
    ("VS1", view_without_oneself),
    ("VS1", one_view_two_lists),
    ("VS1", one_view_two_cuts),
    ("VS1", parts_that_overlap),
    ("VS2", delivered_in_the_view_after),
    ("VS2", delivered_where_it_never_was),
    ("VS3", one_is_left_out),
    ("VS3", two_change_places),
    ("VS3", window_of_a_new_peer_at_zero),
    ("VS3", window_of_a_new_peer_too_high),
    ("VS4", lost_on_the_way_to_the_next_view),
    ("VS4", lost_of_who_leaves),
    ("VS5", not_the_same_of_the_dead),
    ("VS6", delivered_by_commit_and_by_nobody_else),
    ("VS6", delivered_by_a_cut_and_not_by_who_went_another_way),
    ("VS7", needless_loss),
    ("VS9", sends_while_frozen),
    ("VS9", sends_in_the_view_before),
    ("V-L1", two_views_in_the_end),
    ("V-L2", never_in_a_view),
    ("V-L3", never_out),
    ("V-L3", leaves_too_slowly),
    ("V-L3", leaves_unasked),
    ("V-L4", views_without_end),
    ("V-L4", returns_without_end),
    ("V-L5", frozen_for_ever),
    ("V-L5", one_change_takes_too_long),
    ("V-L6", joins_too_often),
]
NAMES = [plant.__name__ for _, plant in PLANTS]


def test_every_rule_has_a_plant() -> None:
    assert {id for id, _ in PLANTS} == {rule.id for rule in RULES}


@pytest.mark.parametrize(("id", "plant"), PLANTS, ids=NAMES)
def test_what_is_planted_is_found_and_nothing_else(id: str, plant: Callable[[], Plant]) -> None:
    story, broken = plant()
    assert id in broken
    assert violated(story) == broken


@pytest.mark.parametrize(("id", "plant"), PLANTS, ids=NAMES)
def test_members_that_record_for_themselves_show_what_breaks_views(
    id: str, plant: Callable[[], Plant]
) -> None:
    """All but what hangs on the end of one that crashed."""
    story, broken = plant()
    for node in {row.node for row in story.rows if row.event == START} - {"c"}:
        story(STOP, node)
    found = verdicts(without_order(story))
    if id.startswith("VS") and id != "VS7":
        assert found[id].status == "violated"
    assert {name for name in broken if found[name].violations} <= broken


# What is not owed, and what cannot be known


def test_where_nothing_is_retained_survivors_may_have_different_prefixes_of_the_dead() -> None:
    story = formed()
    story.send("c", 1, 2)
    story.deliver("a", "c", 1, 2)
    story.deliver("b", "c", 1, 1)
    story(CRASH, "c")
    for node in "ab":
        story.install(node, 3, "ab")
        story.show(node)
    assert violated(story) == set()
    assert violated(story, replace(FACTS, purge="retained")) == {"VS5"}


def test_nothing_is_owed_by_who_has_not_been_told_of_the_next_view() -> None:
    story, _ = lost_on_the_way_to_the_next_view()
    story.rows = [row for row in story.rows if row.event != SHOWN or row.node == "a"]
    assert violated(story) == set()


def test_who_was_parted_may_miss_a_view() -> None:
    story, _ = needless_loss()
    freeze = find(story, "view_freeze", "a", view=3)
    story.rows.insert(
        story.rows.index(freeze), freeze._replace(view=2, view_creator="c#1", members=keys("bc"))
    )
    verdict = verdicts(story)["VS7"]
    assert (verdict.status, verdict.premises) == ("held", 2)


def test_what_a_killed_member_sent_last_is_unknown() -> None:
    story = formed()
    story.to_all("c", 1, 1, "ab")
    story.rows.remove(find(story, "send", "c", stream=0))
    assert violated(story) == {"VS2"}
    found = verdicts(without_order(story))
    assert found["VS2"].undecidable == "what c#1 sent: its tail is lost"


def test_who_leaves_gets_its_own_by_the_cut_and_so_do_those_who_are_together_with_it() -> None:
    """c leaves with a view of a; b has gone another way."""
    story = formed()
    story.send("c", 2, 2, stream=UNIFORM)
    story.freeze("b", 3, "b", "b")
    story.install("b", 3, "b", creator="b")
    story.show("b")
    for node in "ac":
        story.freeze(node, 4, "ac")
    story.now += MS
    story.install("a", 4, "a", part="ac")
    got = story.deliver("a", "c", 2, 2, UNIFORM)
    story.show("a")
    story.deliver("c", "c", 2, 2, UNIFORM)
    story(STOP, "c")
    assert violated(story) == set()
    story.rows.remove(got)
    assert violated(story) == {"VS4"}


def test_a_change_asks_nothing_of_who_says_later_that_it_leaves() -> None:
    """Whoever proposes it had begun; the others hear of it when the leaver has asked."""
    story, _ = leaves_unasked()
    assert verdicts(story)["V-L3"].violation_count
    before_ns = find(story, LEAVE, "b").mono_ns - 1
    swap(story, find(story, FREEZE, "a", view=6), mono_ns=before_ns)
    assert not verdicts(story)["V-L3"].violation_count


def test_who_cannot_hear_each_other_need_not_be_in_one_view() -> None:
    story, _ = two_views_in_the_end()
    story.install("a", 9, "a")
    facts = replace(FACTS, component={"a#1": 0, "d#1": 1})
    assert violated(story) == {"V-L1"}
    assert violated(story, facts) == set()
    assert verdicts(story, facts)["V-L1"].premises == 2


def test_a_change_may_take_longer_if_somebody_dies_or_refuses() -> None:
    story, _ = one_change_takes_too_long()
    assert verdicts(story)["V-L5"].worst == 8 / 7
    story(TX, "d", peer="a", kind="refuse", view=8)
    assert violated(story) == set()
    slow = clean()
    slow.now += 10 * MS
    for node in "ad":
        slow.freeze(node, 8, "ade")
        slow.freeze(node, 9, "ad")
    slow.now += bounds.frozen_ns(FACTS) + MS
    for node in "ad":
        slow.install(node, 9, "ad")
        slow.show(node)
    assert violated(slow) == {"V-L5"}
    slow(START, "e")
    slow(CRASH, "e")  # when they had all but ended
    assert violated(slow) == set()


def test_nothing_is_judged_of_freezes_under_faults() -> None:
    story, _ = one_change_takes_too_long()
    heal = find(story, PHASE, "")
    swap(story, heal, mono_ns=story.now + MS)
    story.rows.insert(0, heal._replace(kind="safety", mono_ns=0))
    assert "V-L5" not in violated(story)


def test_a_change_may_take_longer_if_it_was_proposed_under_faults() -> None:
    """Others may have missed the proposal, and are asked again."""
    story, _ = one_change_takes_too_long()
    heal = find(story, PHASE, "")
    first = find(story, FREEZE, "a", view=8)
    story.rows.insert(0, heal._replace(kind="safety", mono_ns=0))
    swap(story, heal, mono_ns=first.mono_ns)
    assert "V-L5" in violated(story)
    swap(story, first, mono_ns=first.mono_ns - 1)
    assert "V-L5" not in violated(story)


def test_a_member_waits_for_its_proposer_and_for_who_is_asked_since() -> None:
    """The proposer may have died before the faults ended: the member still waits for it then."""
    promised = [
        Row(FREEZE, "a", 1, at, mono_ns=at, view_creator=f"{who}#1", members=(f"{who}#1", "x#1"))
        for at, who in enumerate("bcde")
    ]
    frozen = Frozen(tuple(promised), None, None)
    assert frozen.asked(2) == {"c#1", "d#1", "e#1", "x#1"}
    assert frozen.asked(9) == {"e#1"}
    assert frozen.asked(0) == {"b#1", "c#1", "d#1", "e#1", "x#1"}


def test_bounds_cover_the_constants_of_the_change() -> None:
    assert change.PATIENCE_NS == bounds.PATIENCE_NS
    assert discovery.GATHER_NS <= bounds.GATHER_NS
    assert timing.WAIT_MAX_NS == bounds.BACK_OFF_NS
    assert taking.PATIENCE_NS == bounds.STATE_PATIENCE_NS
    assert VIEW_MEMBERS_MAX == bounds.MARKS_MAX


def test_bounds_cover_how_long_a_receiver_asks() -> None:
    assert SYNC_TICKS_MAX == bounds.SYNC_TICKS_MAX
    assert STRANGER_NS == bounds.STRANGER_NS


# Rows of members that record for themselves

STORIES = {"clean": clean(), **{plant.__name__: plant()[0] for _, plant in PLANTS}}


@given(st.sampled_from(sorted(STORIES)), st.permutations("abcde-"))
def test_members_may_be_judged_in_any_order(name: str, order: list[str]) -> None:
    rows = STORIES[name].rows
    apart = [row for node in order for row in rows if (row.node or "-") == node]
    assert judge_all(RULES, apart, FACTS) == list(verdicts(STORIES[name]).values())
