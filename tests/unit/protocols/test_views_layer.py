"""GroupViews and ViewChange at one member: frames in, frames and signals out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringcast.core.effects import (
    Effects,
    Flushed,
    Left,
    NonMember,
    Suspected,
    TooSlow,
    Trusted,
    Unreachable,
    VerifyWanted,
)
from ringcast.core.shared import Phase
from ringcast.core.view_change import Begin, CutReached, Freeze
from ringcast.model import Address, Member, ViewId
from ringcast.protocols.views.change import COUNTER_LEAP_MAX
from ringcast.protocols.views.requests import PROBE_NS
from ringcast.protocols.views.timing import PATIENCE_NS, REPEAT_START_NS
from ringcast.wire import changes as wire
from ringcast.wire.frames import Leave
from support.settings import PLAIN
from support.view_group import ViewGroup
from support.view_side import MS, A, B, C, D, Side


def test_a_view_to_be_finished_begins_before_the_streams_freeze_again() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    first, second = ViewId(A, 3), ViewId(A, 4)
    side.flush(first, A, B)
    side.hear(A, wire.Propose(second, (A, B), PLAIN))
    side.signals.clear()
    side.hear(A, wire.Finish(second, first))
    assert [type(signal) for signal in side.signals] == [Begin, Freeze]
    assert side.layer.phase is Phase.MEMBER


# Hello


def test_two_coordinators_do_not_greet_each_other_for_ever_while_one_leaves() -> None:
    """Who leaves does not say who is in its view: asking again at once would not help."""
    sides = {A: Side(A), C: Side(C)}
    sides[A].join(ViewId(B, 2), A, B)
    sides[C].join(ViewId(D, 2), C, D)
    sides[C].layer.leave(sides[C].now, Effects())
    sides[C].hear(A, sides[A].layer.greetings.hello(C.address, sides[A].now, is_asking=True))
    for _ in range(5):
        for who, side in sides.items():
            other = C if who == A else A
            for _, frame in side.said(wire.Hello):
                sides[other].hear(who, frame)
    assert [side.said(wire.Hello) for side in sides.values()] == [[], []]


def test_who_is_asked_answers_also_where_another_coordinates() -> None:
    """It may have been missed there: else it would be complained of on and on."""
    side = Side(A)
    side.pass_time(1000)
    side.said(wire.Hello)
    asking = wire.Hello(PLAIN, True, False, 3, B, ViewId(B, 3), 2)
    side.hear(C, asking)
    assert {dest for dest, _ in side.said(wire.Hello)} >= {B, C}


# Suspicion


def test_who_misses_others_asks_whether_the_coordinator_lives_that_it_complains_to() -> None:
    side = Side(D)
    side.join(ViewId(A, 2), A, B, C, D)
    side.signals.clear()
    side.signal(Suspected(C, "silent"))
    assert side.said(wire.Complain) == [(C, wire.Complain(C)), (A, wire.Complain(C))]
    assert VerifyWanted(A) in side.signals


def test_who_is_elsewhere_is_complained_of_once_in_the_order_of_the_view() -> None:
    """A seed gives the same run whatever the hashes of members are."""
    members = [Member(Address("h", port), 1, str(port)) for port in range(1, 13)]
    side = Side(members[-1])
    side.join(ViewId(members[0], 2), *members)
    side.said(wire.Complain)
    gone = tuple(members[5:11])
    later = ViewId(gone[0], 3)
    side.hear(gone[0], wire.Hello(PLAIN, False, False, 3, gone[0], later, 6, gone))
    assert [frame.member for _, frame in side.said(wire.Complain)] == list(gone)


def test_the_coordinator_leaves_out_whom_its_messages_do_not_reach() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.said(wire.Propose)
    side.signal(Unreachable(C, 1_999 * MS))
    assert side.said(wire.Propose) == []  # it would not be suspected for such a silence
    side.signal(Unreachable(C, 2_000 * MS))
    assert [dest for dest, _ in side.said(wire.Propose)] == [B]
    assert side.asked() == (A, B)
    other = Side(B)
    other.join(ViewId(A, 2), A, B, C)
    other.signal(Unreachable(C, 2_000 * MS))
    assert other.said(wire.Complain) == [(C, wire.Complain(C)), (A, wire.Complain(C))]


def test_who_refused_is_asked_again_at_once_when_it_misses_the_same_one() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.signal(Suspected(A, "nobody listens"))
    ((_, proposal),) = side.said(wire.Propose)
    side.hear(C, wire.Refuse(proposal.id, None, A))
    side.pass_time(10)
    assert side.said(wire.Propose) == []
    side.hear(C, wire.Complain(A))
    assert side.said(wire.Propose) == [(C, proposal)]


def test_who_refused_and_misses_the_same_one_at_last_has_its_time_to_answer() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.signal(Suspected(A, "nobody listens"))
    ((_, proposal),) = side.said(wire.Propose)
    side.hear(C, wire.Refuse(proposal.id, None, A))
    side.pass_time(PATIENCE_NS / MS - 1)
    side.said(wire.Propose)
    side.hear(C, wire.Complain(A))
    side.pass_time(10)
    assert {frame for _, frame in side.said(wire.Propose)} == {proposal}


def test_members_that_are_in_a_later_view_by_now_are_left_out_together_in_a_moment() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C, D)
    side.signal(Suspected(A, "nobody listens"))
    (_, proposal), _ = side.said(wire.Propose)
    for member in (C, D):
        side.hear(member, wire.Refuse(proposal.id, ViewId(A, 3), A))
    assert side.said(wire.Propose) == []
    side.pass_time(REPEAT_START_NS / MS + 1)
    assert side.layer.change.view.members == (B,)


def test_who_has_yet_to_come_to_my_view_is_not_taken_to_have_left() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.signal(Suspected(A, "nobody listens"))
    ((_, proposal),) = side.said(wire.Propose)
    side.hear(C, wire.Refuse(proposal.id, ViewId(C, 1), A))
    side.pass_time(PATIENCE_NS / MS - 1)
    assert {frame for _, frame in side.said(wire.Propose)} == {proposal}


def test_who_is_asked_from_outside_says_that_it_is_in_another_view() -> None:
    side = Side(B)
    side.join(ViewId(A, 3), A, B)
    propose = wire.Propose(ViewId(C, 9), (C, B), PLAIN)
    side.hear(C, propose)
    assert side.said(wire.Refuse) == [(C, wire.Refuse(propose.id, ViewId(A, 3), A))]


def test_who_complains_in_vain_asks_whether_its_coordinator_is_in_its_view() -> None:
    """It is not, lives, and takes no complaint from who is not in its own."""
    side = Side(C)
    side.join(ViewId(A, 2), A, B, C, D)
    side.signal(Suspected(A, "nobody listens"))
    side.said(wire.Hello)
    side.pass_time(PROBE_NS / MS)
    assert (B, True) in [(dest, frame.is_asking) for dest, frame in side.said(wire.Hello)]
    side.hear(B, wire.Hello(PLAIN, False, False, 5, B, ViewId(B, 5), 1, (B,)))
    assert side.asked() == (C, D)


@pytest.mark.parametrize("base", [None, ViewId(B, 2)])
def test_who_slept_while_others_went_on_does_not_tear_them_apart(base: ViewId | None) -> None:
    """It takes the others to be in its view: they count as its part, which seems the larger."""
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C, D)
    for member in (B, C):
        side.signal(Suspected(member, "nobody listens"))
    side.answer(D)
    view = side.layer.change.view
    assert view.members == (A, D)
    side.said(wire.Refuse)
    propose = wire.Propose(ViewId(B, 9), (A, B, C), PLAIN, base=base, size=4)
    side.hear(B, propose)
    refused = [(B, wire.Refuse(propose.id, view.id, A))]
    assert side.said(wire.Refuse) == (refused if base else [])  # from elsewhere it may be better


def test_who_was_not_told_of_a_view_goes_on_with_those_who_were() -> None:
    """A proposed it, told B and D, and died; C has promised it and does not know that it began."""
    side = Side(C)
    side.join(ViewId(B, 2), A, B, C, D)
    for member in (A, B):
        side.signal(Suspected(member, "nobody listens"))
    side.answer(D)
    assert side.layer.change.view.members == (C, D)
    side.hear(A, wire.Propose(ViewId(A, 9), (A, B, C, D), PLAIN, size=3))
    side.said(wire.Refuse)
    propose = wire.Propose(ViewId(B, 10), (B, C, D), PLAIN, base=ViewId(A, 9), size=4)
    side.hear(B, propose)
    assert side.said(wire.Refuse) == []
    assert side.layer.change.follower.promised == propose.id


@pytest.mark.parametrize("counter", [3, 4, 5])
def test_nobody_waits_for_a_proposer_that_is_in_a_later_view(counter: int) -> None:
    """It has proposed another one since: of the first nothing comes."""
    side = Side(B)
    side.join(ViewId(B, 2), B, C)
    side.hear(A, wire.Propose(ViewId(A, 4), (A, B, C), PLAIN, size=3))
    assert side.layer.change.follower.promised == ViewId(A, 4)
    side.said(wire.Propose)
    side.hear(A, wire.Hello(PLAIN, False, False, counter, A, ViewId(A, counter), 1))
    assert (side.asked() == (B, C)) == (counter == 5)


@pytest.mark.parametrize("victim", "ABCD")
@pytest.mark.parametrize("phase_ms", [0, 37, 113, 171])
def test_a_crash_holds_senders_for_ten_ms_beyond_its_detection(victim: str, phase_ms: int) -> None:
    """At 1 ms one way, where the ports of the dead refuse."""
    group = ViewGroup("ABCD", seed=phase_ms, hint_ms=1.0).form()
    group.run(phase_ms)
    group.crash(victim)
    assert group.run_until(group.is_one, 1000)
    rest = [name for name in "ABCD" if name != victim]
    assert max(group.layer(name).meeting.held[-1] for name in rest) <= 10 * MS


def test_a_part_is_met_when_it_answers_for_then_it_hears_this_one() -> None:
    side = Side(A)
    side.pass_time(1000)
    alone = wire.Hello(PLAIN, True, False, 3, C, ViewId(C, 3), 1, (C,))
    side.said(wire.Hello)
    side.hear(C, alone)
    assert (C, True) in [(dest, frame.is_asking) for dest, frame in side.said(wire.Hello)]
    side.pass_time(100)
    assert side.said(wire.Propose) == []
    side.hear(C, replace(alone, is_asking=False))
    side.pass_time(100)
    assert [dest for dest, _ in side.said(wire.Propose)][:1] == [C]


# Finding the group


def reasons(side: Side) -> list[str]:
    """Why this member is out."""
    return [signal.reason for signal in side.signals if isinstance(signal, Left)]


def test_who_finds_nobody_begins_alone() -> None:
    side = Side(A)
    side.layer.add_candidates([B.address], side.now, side.out)
    side.pass_time(0)
    assert side.layer.view is None
    assert side.layer.explain(side.now) == [
        "looking for the group for 0.0 s: 1 address asked; decided in 0.3 s"
    ]
    side.pass_time(300)
    assert side.layer.started_alone
    assert side.layer.view is not None
    assert side.layer.view.members == (A,)
    side.said(wire.Hello)
    side.layer.add_candidates([C.address], side.now, side.out)
    side.pass_time(0)
    assert side.said(wire.Hello) == []  # it is asked in its turn


def test_who_must_find_a_group_founds_none() -> None:
    side = Side(C, must_exist=True)
    side.layer.add_candidates([A.address, B.address], side.now, side.out)
    side.hear(D, wire.Hello(PLAIN, True, False, 1, None, ViewId(D, 1), 1, (D,)))
    side.pass_time(1000)
    assert reasons(side) == ["nobody answered at 3 addresses"]
    assert side.layer.ignored == 1
    side.hear(A, wire.Propose(ViewId(A, 5), (A, C), PLAIN))
    side.signal(Suspected(A, "silent"))
    assert side.layer.ignored == 2
    assert side.layer.stats()["phase"] == "out of the group"


def test_counters_that_leap_are_refused() -> None:
    side = Side(B)
    far = side.layer.change.highest + COUNTER_LEAP_MAX + 1
    side.hear(A, wire.Hello(PLAIN, True, False, far, A, ViewId(A, far), 1, (A,)))
    side.hear(A, wire.Propose(ViewId(A, far), (A, B), PLAIN))
    assert side.layer.stats()["refused"] == {"counter leaps": 2}
    assert side.said(wire.State) == []
    assert side.layer.change.highest < far


def test_one_leap_of_a_counter_a_second_is_all_that_there_is() -> None:
    """Else who leaps again and again would bring it to its end."""
    side = Side(B)
    leap = COUNTER_LEAP_MAX
    for each in (leap, leap + 1, 2 * leap):
        side.hear(A, wire.Hello(PLAIN, True, False, each, A, ViewId(A, each), 1, (A,)))
    assert side.layer.change.highest == leap + 1  # from one to the next is a step
    side.pass_time(1000)
    side.hear(A, wire.Hello(PLAIN, True, False, 2 * leap, A, ViewId(A, 2 * leap), 1, (A,)))
    assert side.layer.change.highest == 2 * leap


def test_who_has_restarted_makes_its_old_self_be_verified() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    again = C._replace(incarnation=2)
    side.hear(again, wire.Hello(PLAIN, True, False, 1, None, ViewId(again, 1), 1, (again,)))
    assert VerifyWanted(C) in side.signals


def test_who_is_next_if_a_proposer_stalls_verifies_all_that_it_would_propose() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.hear(D, wire.Propose(ViewId(D, 9), (D, A, B, C), PLAIN, size=9))
    side.pass_time(501)
    assert all(VerifyWanted(member) in side.signals for member in (B, C, D))


def test_who_is_not_in_the_view_and_thinks_so_is_told() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.join(ViewId(A, 3), A, B)
    side.said(wire.Hello)
    side.signal(NonMember(D))  # it was never with this one: nothing is said to it
    assert side.said(wire.Hello) == []
    side.signal(NonMember(C))
    assert side.said(wire.Hello) == [(C, side.layer.greetings.hello(C.address, side.now))]


# Leaving


def test_who_leaves_before_it_is_in_is_out_at_once() -> None:
    side = Side(A)
    side.layer.leave(side.now, side.out)
    side.hear(B)
    assert reasons(side) == ["left before it was in"]


def test_who_leaves_asks_again_and_goes_without_an_answer_in_the_end() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B)
    side.layer.leave(side.now, side.out)
    side.layer.leave(side.now, side.out)  # as often as one likes
    assert side.layer.explain(side.now) == ["leaving for 0.0 s: gone in 5.0 s"]
    side.signal(Flushed())
    side.signal(Flushed())
    side.pass_time(1000)
    assert [dest for dest, _ in side.said(Leave)] == [A] * 5  # after 40, 80, 160, 320 ms
    assert VerifyWanted(A) in side.signals
    side.pass_time(4000)
    assert reasons(side) == ["left without an answer"]


def test_who_leaves_alone_is_gone_at_once() -> None:
    side = Side(A)
    side.pass_time(1000)
    side.layer.leave(side.now, side.out)
    side.signal(Flushed())
    assert reasons(side) == ["left"]


def test_who_asks_to_leave_and_is_out_already_is_told_again() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B)
    side.signal(Suspected(B, "a test"))
    view = side.layer.view
    assert view is not None
    assert view.members == (A,)
    side.said(wire.Install)
    side.hear(C, Leave())  # it was never with this one
    assert side.said(wire.Install) == []
    side.hear(B, Leave())
    assert side.said(wire.Install) == [(B, wire.Install(view.id))]
    other = Side(C)
    other.join(ViewId(A, 2), A, C)
    other.hear(B, Leave())
    assert other.said(wire.Install) == []  # it is for who made that view


# Slow members


def test_the_coordinator_leaves_out_who_holds_it_up_and_lets_it_take_part() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.said(wire.Propose)
    side.signal(TooSlow(D))
    side.signal(TooSlow(A))
    assert side.said(wire.Propose) == []
    side.signal(TooSlow(C))
    ((_, frame), _) = side.said(wire.Propose)
    assert isinstance(frame, wire.Propose)
    assert (side.asked(), frame.leaving) == ((A, B, C), (2,))


def test_others_complain_to_it() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.signal(TooSlow(C))
    assert side.said(wire.Complain) == [(A, wire.Complain(C, is_slow=True))]


@pytest.mark.parametrize(("timeout_s", "count"), [(0.0, 0), (5.0, 2)])
def test_a_complaint_of_a_slow_member_counts_where_that_is_agreed(
    timeout_s: float, count: int
) -> None:
    side = Side(A, slow_member_timeout_s=timeout_s)
    side.join(ViewId(B, 2), A, B, C)
    side.said(wire.Propose)
    side.hear(B, wire.Complain(D, is_slow=True))
    side.hear(D, wire.Complain(C, is_slow=True))
    assert side.layer.stats()["ignored"] == 2
    side.hear(B, wire.Complain(C, is_slow=True))
    assert len(side.said(wire.Propose)) == count


# What it says of itself


def test_what_waits_is_explained() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    assert side.layer.explain(side.now) == []
    assert side.layer.is_idle
    side.signal(Suspected(C, "silent"))
    assert side.layer.explain(side.now) == [
        "C is suspected: silent; A is to see to it",
        "view 3@A (collect) waits for B",
    ]
    assert not side.layer.is_idle
    assert side.layer.stats()["unanswered_by"] == ["B"]
    side.signal(Trusted(C))
    assert len(side.layer.explain(side.now)) == 1
    other = Side(B)
    other.flush(ViewId(A, 2), A, B)
    other.pass_time(100)
    assert "view 2@A was promised 0.1 s ago; A makes it" in other.layer.explain(other.now)


def test_parts_that_have_to_wait_are_explained() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.layer.meeting.losses.lose(side.now)
    side.hear(D, wire.Hello(PLAIN, False, False, 1, D, ViewId(D, 1), 1, (D,)))
    assert side.layer.explain(side.now) == ["D would come in; not for 1.0 s, to give senders time"]


def test_who_is_closed_waits_for_nothing() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B)
    side.layer.close("closed", side.now, side.out)
    assert side.layer.deadlines.next() is None
    assert side.layer.view is None


# A change that does not go as it should


def my_proposal(side: Side) -> wire.Propose:
    """The last that this member has made."""
    frames = [frame for _, frame in side.said(wire.Propose)]
    assert isinstance(frames[-1], wire.Propose)
    return frames[-1]


def test_a_proposer_gives_way_to_the_coordinator_that_is_there_after_all() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.flush(ViewId(A, 3), A, B, C)
    side.said(wire.Propose)
    side.pass_time(1100)  # nothing comes of it
    mine = my_proposal(side)
    assert mine.id == ViewId(B, 4)
    side.hear(A, wire.Refuse(mine.id, None, A))
    assert side.layer.change.proposer.proposal is None
    assert side.layer.coordinator == A
    side.hear(A, wire.Propose(ViewId(A, 5), (A, B, C), PLAIN))
    assert side.layer.change.follower.promised == ViewId(A, 5)


def test_of_all_that_leave_the_one_that_proposes_goes_last() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B)
    side.layer.leave(side.now, side.out)
    side.layer.requests.leavers.add(B)
    side.said(wire.Propose)
    side.signal(Flushed())
    assert my_proposal(side).leaving == (1,)


def test_who_leaves_and_proposes_goes_though_somebody_does_not_say_that_it_has_installed() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B)
    side.layer.leave(side.now, side.out)
    side.signal(Flushed())
    mine = my_proposal(side)
    assert mine.leaving == (0,)
    side.hear(B, side.state(B))
    side.hear(B, wire.Flushed(mine.id))
    assert reasons(side) == []
    side.pass_time(500)
    assert reasons(side) == ["left"]


def test_one_view_id_has_one_list_of_members() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.said(wire.Propose)
    side.signal(Suspected(C, "silent"))
    view = side.layer.change.view
    side.hear(B, side.state(B, replace(view, members=(B, A, C))))
    assert side.layer.stats()["proposing"] == "collect"
    side.hear(B, side.state(B))
    assert side.layer.stats()["proposing"] == "cut"


def test_frames_that_do_not_fit_the_phase_change_nothing() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    first, second = ViewId(A, 3), ViewId(A, 4)
    side.hear(A, wire.Propose(first, (A, B), PLAIN))
    side.said(wire.State)
    side.hear(A, wire.Finish(first, ViewId(A, 99)))  # it was never flushed here
    side.signal(CutReached(second))
    side.hear(A, wire.Cut(second, (), ()))
    side.hear(A, wire.Propose(second, (A, B), PLAIN, (0, 1)))  # a view of nobody
    assert side.frames == []
    side.flush(first, A, B)
    side.said(wire.Flushed)
    side.hear(A, wire.Propose(first, (A, B), PLAIN))
    assert side.frames == []
    assert side.layer.change.follower.promised == first
