"""One member's GroupViews: frames in, frames and signals out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.core.effects import Effects
from ringcast.core.view_change import CutReached, Flush, Freeze, Frozen, Snapshot
from ringcast.model import Address, Member, Purge, Stream, ViewId
from ringcast.protocols.views.cookies import permit
from ringcast.protocols.views.layer import GroupViews
from ringcast.settings import settings_of
from ringcast.wire import changes as wire
from support.settings import configured

if TYPE_CHECKING:
    from ringcast.core.effects import Signal
    from ringcast.model import View
    from ringcast.wire.frames import Frame

A, B, C, D = (Member(Address("h", n + 1), 1, name) for n, name in enumerate("ABCD"))
MS = 1_000_000


class Side:
    """One member's layer, with streams that hold everything at once."""

    def __init__(
        self,
        me: Member,
        purge: Purge = Purge.ACKS,
        *,
        must_exist: bool = False,
        **given: float,
    ) -> None:
        config = configured(purge, **given)
        self.settings = settings_of(config, (Stream.FIFO,))
        self.layer = GroupViews(
            me, config.membership, must_exist=must_exist, settings=self.settings
        )
        self.now = 1_000 * MS
        self.frames: list[tuple[object, Frame]] = []
        self.signals: list[Signal] = []
        self.out = Effects()
        self.layer.start(self.now, self.out)
        self._settle()

    def hear(self, source: Member, *frames: Frame) -> None:
        """With all that shows that its source keeps to the rules."""
        self.hear_stranger(source, *(self.prove(source, frame) for frame in frames))

    def prove(self, source: Member, frame: Frame) -> Frame:
        """As its source says it once it has heard this member, and may propose to its view."""
        match frame:
            case wire.Hello(echo=0):
                return replace(frame, echo=self.layer.cookies.make(source.address, self.now))
            case wire.Propose(permit=0):
                return replace(frame, permit=permit(self.layer.change.follower.secret, source))
        return frame

    def hear_stranger(self, source: Member, *frames: Frame) -> None:
        """As they are."""
        self.layer.receive(source, frames, self.now, self.out)
        self._settle()

    def signal(self, signal: Signal) -> None:
        self.layer.handle_signal(signal, self.now, self.out)
        self._settle()

    def pass_time(self, milliseconds: float) -> None:
        """Timers fire when they are due."""
        stop = self.now + round(milliseconds * MS)
        while (due := self.layer.deadlines.next()) is not None and due <= stop:
            self.now = max(self.now, due)
            self.layer.handle_timeout(self.now, self.out)
            self._settle()
        self.now = stop

    def said(self, kind: type[Frame]) -> list[tuple[object, Frame]]:
        """Frames of this kind since the last call; others are forgotten."""
        found = [(dest, frame) for dest, frame in self.frames if isinstance(frame, kind)]
        self.frames.clear()
        return found

    def asked(self) -> tuple[Member, ...]:
        """The members of this one's proposal."""
        proposal = self.layer.change.proposer.proposal
        return () if proposal is None else proposal.members

    def join(self, id: ViewId, *members: Member) -> View:
        """A view that another member makes, with all its frames."""
        self.flush(id, *members)
        self.hear(id.creator, wire.Install(id))
        view = self.layer.change.view
        assert view.id == id
        return view

    def answer(self, *others: Member) -> None:
        """Of these comes all that a proposal of this member asks for: they are in its view."""
        proposal = self.layer.change.proposer.proposal
        assert proposal is not None
        for who in others:
            self.hear(who, self.state(who))
        for who in others:
            self.hear(who, wire.Flushed(proposal.id))
        for who in others:
            self.hear(who, wire.Installed(proposal.id))

    def state(self, who: Member, view: View | None = None) -> wire.State:
        """What that one answers to the proposal of this member."""
        proposal, view = self.layer.change.proposer.proposal, view or self.layer.change.view
        assert proposal is not None
        return wire.State(proposal.id, view.id, view.members, ((Stream.FIFO, 0),))

    def flush(self, id: ViewId, *members: Member) -> None:
        self.hear(id.creator, wire.Propose(id, members, self.settings))
        before = self.layer.change.view
        places = tuple(n for n, who in enumerate(members) if who in before)
        others = tuple(n for n in range(len(members)) if n not in places)
        parts = [wire.PartMarks(before.id, places, ())]
        if others:
            parts.append(wire.PartMarks(ViewId(id.creator, 1), others, ()))
        self.hear(id.creator, wire.Cut(id, tuple(parts), ()))

    def _settle(self) -> None:
        while self.out.signals:
            signal = self.out.signals.popleft()
            self.signals.append(signal)
            if isinstance(signal, Freeze):
                snapshot = Snapshot({Stream.FIFO: 0}, {})
                self.layer.handle_signal(Frozen(signal.id, snapshot), self.now, self.out)
            elif isinstance(signal, Flush):
                self.layer.handle_signal(CutReached(signal.id), self.now, self.out)
        self.frames += self.out.frames
        self.out.frames.clear()
        self.layer.check_invariants()
