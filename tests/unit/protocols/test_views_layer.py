"""GroupViews and ViewChange at one member: frames in, frames and signals out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.config import MembershipConfig
from ringcast.core.effects import Effects, Suspected, Unreachable, VerifyWanted
from ringcast.core.shared import Phase
from ringcast.core.view_change import Begin, CutReached, Flush, Freeze, Frozen, Snapshot
from ringcast.model import Address, Member, Purge, Stream, ViewId
from ringcast.protocols.views.layer import GroupViews
from ringcast.wire import changes as wire

if TYPE_CHECKING:
    from ringcast.core.effects import Signal
    from ringcast.model import View
    from ringcast.wire.frames import Frame

A, B, C, D = (Member(Address("h", n + 1), 1, name) for n, name in enumerate("ABCD"))
MS = 1_000_000


class Side:
    """One member's layer, with streams that hold everything at once."""

    def __init__(self, me: Member, config: MembershipConfig | None = None) -> None:
        self.layer = GroupViews(me, config or MembershipConfig())
        self.now = 1_000 * MS
        self.frames: list[tuple[object, Frame]] = []
        self.signals: list[Signal] = []
        self._out = Effects()
        self.layer.start(self.now, self._out)
        self._settle()

    def hear(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, self.now, self._out)
        self._settle()

    def signal(self, signal: Signal) -> None:
        self.layer.handle_signal(signal, self.now, self._out)
        self._settle()

    def pass_time(self, milliseconds: float) -> None:
        """Timers fire when they are due."""
        stop = self.now + round(milliseconds * MS)
        while (due := self.layer.deadlines.next()) is not None and due <= stop:
            self.now = max(self.now, due)
            self.layer.handle_timeout(self.now, self._out)
            self._settle()
        self.now = stop

    def said(self, kind: type[Frame]) -> list[tuple[object, Frame]]:
        """Frames of this kind since the last call; others are forgotten."""
        found = [(dest, frame) for dest, frame in self.frames if isinstance(frame, kind)]
        self.frames.clear()
        return found

    def join(self, id: ViewId, *members: Member) -> View:
        """A view that another member makes, with all its frames."""
        self.flush(id, *members)
        self.hear(id.creator, wire.Install(id))
        view = self.layer.change.view
        assert view.id == id
        return view

    def flush(self, id: ViewId, *members: Member) -> None:
        self.hear(id.creator, wire.Propose(id, members))
        before = self.layer.change.view
        places = tuple(n for n, who in enumerate(members) if who in before)
        others = tuple(n for n in range(len(members)) if n not in places)
        parts = [wire.PartMarks(before.id, places, ())]
        if others:
            parts.append(wire.PartMarks(ViewId(id.creator, 1), others, ()))
        self.hear(id.creator, wire.Cut(id, tuple(parts), ()))

    def _settle(self) -> None:
        while self._out.signals:
            signal = self._out.signals.popleft()
            self.signals.append(signal)
            if isinstance(signal, Freeze):
                snapshot = Snapshot({Stream.FIFO: 0}, {})
                self.layer.handle_signal(Frozen(signal.id, snapshot), self.now, self._out)
            elif isinstance(signal, Flush):
                self.layer.handle_signal(CutReached(signal.id), self.now, self._out)
        self.frames += self._out.frames
        self._out.frames.clear()
        self.layer.check_invariants()


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
