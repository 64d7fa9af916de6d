"""GroupViews and ViewChange at one member: frames in, frames and signals out."""

from __future__ import annotations

from dataclasses import replace

from ringcast.core.effects import Effects, Suspected, Unreachable, VerifyWanted
from ringcast.core.shared import Phase
from ringcast.core.view_change import Begin, Freeze
from ringcast.model import Purge, ViewId
from ringcast.wire import changes as wire
from support.view_side import A, B, C, D, Side


def test_a_view_to_be_finished_begins_before_the_streams_freeze_again() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    first, second = ViewId(A, 3), ViewId(A, 4)
    side.flush(first, A, B)
    side.hear(A, wire.Propose(second, (A, B)))
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
    sides[C].hear(A, sides[A].layer.hello(is_asking=True))
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
    asking = wire.Hello(Purge.ACKS, True, False, 3, B, ViewId(B, 3), 2)
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


def test_the_coordinator_leaves_out_whom_its_messages_do_not_reach() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.said(wire.Propose)
    side.signal(Unreachable(C))
    assert [frame.members for _, frame in side.said(wire.Propose)] == [(A, B)]
    other = Side(B)
    other.join(ViewId(A, 2), A, B, C)
    other.signal(Unreachable(C))
    assert other.said(wire.Complain) == [(C, wire.Complain(C)), (A, wire.Complain(C))]


def test_a_part_is_met_when_it_answers_for_then_it_hears_this_one() -> None:
    side = Side(A)
    side.pass_time(1000)
    alone = wire.Hello(Purge.ACKS, True, False, 3, C, ViewId(C, 3), 1, (C,))
    side.said(wire.Hello)
    side.hear(C, alone)
    assert (C, side.layer.hello(is_asking=True)) in side.said(wire.Hello)
    side.pass_time(100)
    assert side.said(wire.Propose) == []
    side.hear(C, replace(alone, is_asking=False))
    side.pass_time(100)
    assert [dest for dest, _ in side.said(wire.Propose)][:1] == [C]
