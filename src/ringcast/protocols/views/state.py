"""StateTransfer: who has no state gets one, as it is at the cut of a view, and all that follows.

What holds: a taker's state and the messages that it is handed after it are together what its
provider had taken and takes: none is missing, none comes twice. That follows from where the state
is cut: behind a view, before any message that was sent in it. The cut of the view names provider
and takers (parts.py); the provider's application finds StateWanted right behind that view, a taker
reads nothing behind it before its state is complete.

    phase     what happens                                    then
    LIVE      a cut names this member as taker                EXPECTING
    EXPECTING all before the view is read                     WAITING
    WAITING   StateEnd, and all chunks are here               HANDING
              a cut names no provider                         HANDING, with StateLost
              a cut names another provider                    EXPECTING, what was kept is dropped
    HANDING   the application has taken all                   LIVE

While it waits, what members send in the view and in later ones is kept in order, up to so many
bytes, and counts as taken; then senders are blocked, and are told by whom.

A provider that refuses, or gives no sign for PATIENCE, is named to the coordinator: the next view
has another. One that departs is not in the next view anyway. Where nobody else is left, those that
were only silent, or of whom something was lost, are asked once more, more patiently.

All that is said here goes over the system's channel (channel.py), in order and once. A provider
may be in the view before its taker is: what it says then waits here.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

from ringcast.core.effects import Effects, Layer, Signal
from ringcast.core.shared import Deadlines, GroupState
from ringcast.core.view_change import Begin, StateChanged, StateStanding
from ringcast.events import Delivered, Event, FragmentsDelivered, StateChunk, StateLost
from ringcast.model import Digest, Member, Stream, View
from ringcast.protocols.stream import seconds
from ringcast.protocols.views.providing import Provider
from ringcast.protocols.views.taking import CatchUp, Outcome, Taking
from ringcast.wire.changes import Holding
from ringcast.wire.frames import (
    JoinerBlocked,
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.wire.frames import SystemMessage

HELD: Final = StateStanding(Holding.HOLDS)

EARLY_MAX = 4096
"""Messages of a provider that is in the view before this member is."""


class Phase(Enum):
    LIVE = "has its state"
    EXPECTING = "reads what comes before its state"
    WAITING = "waits for its state"
    HANDING = "hands on its state"


class StateTransfer(Layer):
    """The state machine of one member: both sides."""

    def __init__(
        self, me: Member, join_buffer_bytes: int, fragment_bytes: int, *, has_state: bool
    ) -> None:
        """`has_state`: the application gives its state, and wants one."""
        self.me = me
        self.has_state = has_state
        self.phase = Phase.LIVE
        self.is_catching_up = False
        """Messages to the group go into the buffer."""
        self.is_behind = False
        """The application does not get live messages yet."""
        self.giving = Provider()
        self.taking = Taking()
        self.catch_up: CatchUp | None = None
        """Messages that come before the application can have them; None: it is up to date."""
        self.blocked: dict[Member, int] = {}
        """Who blocks senders because its state is still on its way, and since when."""
        self.ignored = 0  # messages that came too late
        self.is_dropping = False
        """What was sent before the next cut is in the state that is taken there."""
        self._room = join_buffer_bytes
        self._fragment_bytes = fragment_bytes
        self._standing = StateStanding(Holding.LACKS if has_state else Holding.NONE)
        self._behind_view: list[Event] = []  # for the application, right behind the view
        self._early: deque[tuple[Member, SystemMessage]] = deque()
        self._silent: set[Member] = set()  # of those who could not give it
        self._is_full = False
        self._since = 0
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self.taking.attach(deadlines.owner("state"))

    # Inputs

    def start(self, now: int, out: Effects) -> None:
        out.signal(StateChanged(self._standing))

    def receive_message(
        self, source: Member, message: SystemMessage, now: int, out: Effects
    ) -> None:
        match message:
            case StateBegin() if message.attempt > self._counter and len(self._early) < EARLY_MAX:
                self._early.append((source, message))
            case StateData() | StateEnd() if self._early and len(self._early) < EARLY_MAX:
                self._early.append((source, message))
            case StateBegin() | StateData() | StateEnd():
                self._on_state(source, message, now, out)
            case StateRefused():
                if source == self.taking.provider and message.attempt == self.taking.view:
                    self._give_up_on(source, out)
            case StateAck():
                self.giving.on_state_ack(source, message, out)
            case StateCancel():
                self.giving.on_stop(source, message, out)
            case JoinerBlocked():
                self._on_joiner_blocked(source, message, now)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        if isinstance(signal, Begin) and self.has_state:
            self._begin(signal, now, out)

    def install_view(self, view: View, now: int, out: Effects) -> None:
        self.giving.set_members(view, out)
        self.blocked = {who: since for who, since in self.blocked.items() if who in view}
        if self._is_full:
            before = self.group.previous or ()
            self._tell([who for who in view if who not in before], out)

    def take_behind_view(self) -> tuple[list[Event], bool]:
        """What the application finds right behind the view that has begun; and whether its state
        has to come before it reads on."""
        events, self._behind_view = self._behind_view, []
        return events, self.phase is Phase.EXPECTING or self.is_dropping

    def come_to_cut(self, counter: int) -> None:
        """All that comes before the view with this counter has been read."""
        if self.phase is Phase.LIVE:
            return  # the state that was to follow is lost
        if self.catch_up is None:
            self.catch_up = CatchUp(self._room, self._fragment_bytes)
        else:
            self.catch_up.drop_messages()
        self.is_dropping = counter < self.taking.view
        is_here = self.taking.is_here and not self.is_dropping
        self._enter(Phase.HANDING if is_here else Phase.WAITING)

    @property
    def room(self) -> int:
        """How many messages to the group may be kept for later."""
        return self.catch_up.room if self.catch_up is not None and self.is_catching_up else 0

    def keep(self, events: Sequence[Event]) -> None:
        """What has been taken out of the windows for later; or is in the state that is to come."""
        assert self.catch_up is not None
        if self.is_dropping:
            events = [e for e in events if not isinstance(e, Delivered | FragmentsDelivered)]
        self.catch_up.keep(events)

    def note_full(self, is_full: bool, out: Effects) -> None:
        """Whether messages are left in their windows because the buffer is full."""
        if is_full != self._is_full:
            self._is_full = is_full
            self._tell(list(self.group.view or ()), out)

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        """The state, in chunks of which each counts as a message; then what came meanwhile."""
        events = self.taking.take(limit, out)
        limit -= sum(isinstance(event, StateChunk) for event in events)
        if self.phase is Phase.HANDING and not self.taking.handover:
            assert self.catch_up is not None
            self.taking.finish(out)
            events += self.catch_up.take(limit)
            if not self.catch_up:
                self.catch_up = None
                self._enter(Phase.LIVE)
        return events

    def handle_timeout(self, now: int, out: Effects) -> None:
        if self.taking.is_given_up(now):
            assert self.taking.provider is not None
            self._silent.add(self.taking.provider)
            self._give_up_on(self.taking.provider, out)
        if self.taking.is_to_retry(now):
            out.signal(StateChanged(self._standing))

    def close(self, reason: str, now: int, out: Effects) -> None:
        self._enter(Phase.LIVE)
        self.giving.close(reason, out)
        self.taking.stop()
        self.catch_up = None
        self._silent.clear()
        self._early.clear()
        self._behind_view.clear()
        self.blocked.clear()

    # Outputs

    @property
    def has_ready(self) -> bool:
        """There is something to take for an application that is behind."""
        return bool(self.taking.handover) or self.phase is Phase.HANDING

    def stats(self) -> dict[str, object]:
        incoming, catch_up = self.taking.incoming, self.catch_up
        return {
            "phase": self.phase.value,
            "holding": self._standing.holding.name.lower(),
            "provider": str(self.taking.provider),
            "chunks": 0 if incoming is None else incoming.chunks,
            "bytes": 0 if incoming is None else incoming.size,
            "untaken": len(self.taking.handover),
            "kept": 0 if catch_up is None else len(catch_up),
            "kept_bytes": 0 if catch_up is None else catch_up.size,
            "early": len(self._early),
            "ignored": self.ignored,
            "giving": self.giving.stats(),
        }

    def explain(self, now: int) -> list[str]:
        reasons = []
        if self.phase is Phase.EXPECTING:
            reasons.append("the state follows when this member's application has read what is here")
        elif self.phase is Phase.WAITING:
            incoming = self.taking.incoming
            so_far = 0 if incoming is None else incoming.size
            reasons.append(
                f"waits for the state for {seconds(now - self._since)}: {so_far} bytes so far from "
                f"{self.taking.provider or 'nobody'}; "
                + ("what comes meanwhile blocks senders" if self._is_full else "messages are kept")
            )
        elif self.phase is Phase.HANDING:
            reasons.append("the state is here and waits for this member's application")
        reasons += self.giving.explain(now)
        return reasons + [
            f"{member} blocks senders for {seconds(now - since)}: its state is still on its way, "
            f"and what it may keep meanwhile is full"
            for member, since in self.blocked.items()
        ]

    def check_invariants(self) -> None:
        assert self.has_state or self.phase is Phase.LIVE
        self.giving.check_invariants()
        self.taking.check_invariants()
        assert not self.is_behind or self.catch_up is not None

    # A cut

    @property
    def _counter(self) -> int:
        return 0 if self.group.view is None else self.group.view.counter

    def _begin(self, begin: Begin, now: int, out: Effects) -> None:
        cut, view = begin.cut, begin.view
        if self.me == cut.provider:
            is_waiting = self._standing.holding is Holding.LACKS and self.phase is not Phase.LIVE
            if is_waiting:  # and of those who have none, it is the one whose counts
                self._lose(out)
            self._stand(HELD, out)
            for taker in cut.takers:
                plain = (each for each in cut.starts.items() if each[0].stream != Stream.TOTAL)
                starts = Digest(dict(plain))
                self._behind_view += self.giving.cut_at(taker, starts, view.counter, now, out)
        if self.me in cut.takers:
            self._expect(cut.provider, view.counter, now, out)
        elif self._standing.holding is Holding.LACKS and self.taking.provider is None:
            if cut.provider is None and self._silent.isdisjoint(view):
                self._lose(out)
            elif cut.provider is None:
                refused = tuple(who for who in self._standing.refused if who not in self._silent)
                self._silent.clear()
                self._stand(StateStanding(Holding.LACKS, None, refused), out)
            elif cut.provider in self._standing.refused:
                self.taking.retry(now)  # somebody else is being given it
            else:  # whoever made the cut did not know yet that this member has nobody
                out.signal(StateChanged(self._standing))
        early, self._early = self._early, deque()
        for source, message in early:
            self.receive_message(source, message, now, out)

    def _expect(self, provider: Member | None, counter: int, now: int, out: Effects) -> None:
        self._cancel(out)
        self.taking.expect(provider, counter, now)
        self._since = now
        self.is_dropping = self.catch_up is not None
        self._enter(Phase.WAITING if self.is_dropping else Phase.EXPECTING)
        self._stand(StateStanding(Holding.LACKS, provider, self._standing.refused), out)

    def _lose(self, out: Effects) -> None:
        """Nobody can give it: what follows is all there is."""
        refused = ", ".join(map(str, self._standing.refused))
        lost = StateLost("nobody has the state" + f": {refused} could not give it" * bool(refused))
        if self.phase in (Phase.LIVE, Phase.EXPECTING):
            self.taking.stop()
            self._behind_view.append(lost)
            self._enter(Phase.LIVE)
        else:
            self.taking.lose(lost)
            self._enter(Phase.HANDING)
        self._stand(HELD, out)

    def _stand(self, standing: StateStanding, out: Effects) -> None:
        if standing != self._standing:
            self._standing = standing
            out.signal(StateChanged(standing))

    def _give_up_on(self, provider: Member, out: Effects) -> None:
        """Another is to do it, from the next cut on."""
        self._cancel(out)
        self.taking.stop()
        refused = tuple(dict.fromkeys((*self._standing.refused, provider)))
        self._stand(StateStanding(Holding.LACKS, None, refused), out)

    def _cancel(self, out: Effects) -> None:
        view, provider = self.group.view, self.taking.provider
        if provider is not None and view is not None and provider in view:
            out.message(provider, StateCancel(self.taking.view))

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.is_catching_up = phase is Phase.WAITING
        self.is_behind = phase in (Phase.WAITING, Phase.HANDING)

    # The state comes

    def _on_state(
        self, source: Member, message: StateBegin | StateData | StateEnd, now: int, out: Effects
    ) -> None:
        match self.taking.receive(source, message, now, out):
            case Outcome.IGNORED:
                self.ignored += 1
            case Outcome.FAILED:
                self._silent.add(source)  # it does not refuse
                self._give_up_on(source, out)
            case Outcome.COMPLETE:
                if self.phase is Phase.WAITING and not self.is_dropping:
                    self._enter(Phase.HANDING)
                self.note_full(False, out)
                self._silent.clear()
                self._stand(HELD, out)

    def _on_joiner_blocked(self, source: Member, message: JoinerBlocked, now: int) -> None:
        if message.is_full and self.group.view is not None and source in self.group.view:
            self.blocked.setdefault(source, now)
        else:
            self.blocked.pop(source, None)

    def _tell(self, members: Sequence[Member], out: Effects) -> None:
        for member in members:
            if member != self.me:
                out.message(member, JoinerBlocked(self._is_full))
