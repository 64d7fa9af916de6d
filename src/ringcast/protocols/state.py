"""StateTransfer: a joiner gets the application's state, and then all that is not in it, once.

What holds: a joiner's state and the messages that it is handed after it are together what its
provider had taken and takes: none is missing, none comes twice (N1, N2, N9). That needs the state
to be cut at a known place in every stream. The cut is made where an event stands among the
messages: what the application was handed before StateWanted is in the state, what it takes after it
is not; and the digest of what was taken is read in the very step in which that event is made.

All that is said here goes over the system's channel (channel.py), in order and once.

On Admitted, StateRequest, StateAck, StateCancel: see state_provider.py.
On LetIn (this member has joined): ask whoever let us in. Until the state is complete, the
    application gets views alone: messages to the group go into a bounded buffer and count as
    taken (N6, catch_up.py), messages to this member stay in their windows. A buffer that is full
    takes no more, so senders are held up; everybody is told why.
On StateBegin of our attempt: forget what came before; the application is told to do likewise.
    Of another attempt: StateCancel.
On StateData: for the application to take. What it has taken is told: the provider is ahead by one
    window and no more. One that is missing (the channel broke): ask the next.
On StateEnd: the state is complete. Leave out of the buffer what is in it, hand on the rest, then
    go on live.
On StateRefused, or silence for too long: ask the next member of the view, from the start. If all
    have refused, the state is lost; the application is told, and goes on with what came meanwhile.
    Whom this member has yet to let in has none: that may wait for what waits for this state.
On view: of those who departed, note how far they were taken: a cut needs that too. A joiner whose
    provider is gone asks the next; one that has no answer yet repeats its question, for this view.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import Admitted, DigestWanted, Layer, LetIn, Settled
from ringcast.core.shared import DEPARTED_MAX, Deadlines, GroupState, Named
from ringcast.events import (
    StateBegun,
    StateChunk,
    StateLost,
    StateReceived,
)
from ringcast.model import Digest, Stream
from ringcast.protocols.catch_up import CatchUp, span
from ringcast.protocols.intake import seconds
from ringcast.protocols.state_provider import CHUNK_OVERHEAD, WINDOW, Provider
from ringcast.wire.frames import (
    JoinerBlocked,
    Refusal,
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
    StateRequest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.effects import Effects, Signal
    from ringcast.core.shared import Timers
    from ringcast.events import Event
    from ringcast.model import Member, Origin, View
    from ringcast.wire.frames import SystemMessage

PATIENCE_NS = 10_000_000_000
PATIENCE_MAX_NS = 160_000_000_000
"""How long a joiner waits for the next sign of its provider before it asks another: at first, and
at most. It doubles each time, so that a state which takes long to make gets through at last."""


class Phase(Enum):
    LIVE = "has its state"
    WAITING = "waits for its state"
    HANDING = "hands on its state"
    """All of it is here; the application has not delivered everything up to now."""


class Timer(Named):
    PATIENCE = auto()
    """The provider gives no sign."""


@dataclass(slots=True)
class Incoming:
    """A state that comes to this member."""

    transfer: int
    cut: Digest
    chunks: int = 0
    size: int = 0
    arrived: int = 0
    taken: int = 0
    told: int = 0
    """What the provider knows of `taken`."""


class StateTransfer(Layer):
    """The state machine of one member: both sides."""

    def __init__(
        self,
        me: Member,
        join_buffer_bytes: int,
        fragment_bytes: int,
        *,
        has_state: bool,
        inherited: frozenset[Stream] = frozenset({Stream.UNIFORM}),
    ) -> None:
        """`has_state`: the application gives its state to joiners, and wants it when it joins.
        `inherited`: streams on which messages of a departed sender may still come."""
        self.me = me
        self.has_state = has_state
        self.phase = Phase.LIVE
        self.is_catching_up = False
        """Messages to the group go into the buffer."""
        self.is_behind = False
        """The application does not get live messages yet."""
        self.giving = Provider()
        self.provider: Member | None = None
        """Who is to give us ours, while we wait for it."""
        self.incoming: Incoming | None = None
        """Ours, as far as it has come; None: it has not begun."""
        self.catch_up: CatchUp | None = None
        """Messages that come before the application can have them; None: it is up to date."""
        self.blocked: dict[Member, int] = {}
        """Who holds senders up because its state is still on its way, and since when."""
        self.ignored = 0  # messages that came too late
        self._room = join_buffer_bytes
        self._fragment_bytes = fragment_bytes
        self._inherited = inherited
        self._attempt = 0
        self._is_repeated = False  # a refusal may be of the view before
        self._refusals: dict[Member, Refusal] = {}
        self._outside: frozenset[Member] = frozenset()  # whom this member has yet to let in
        # Where streams of departed members ended, at most DEPARTED_MAX of them. Only joiners that
        # have waited for their state since before need to know; of older ones these keep nothing.
        self._departed: dict[Origin, int] = {}
        self._is_settled = True  # no messages of who departed are still to come
        self._handover: deque[Event] = deque()  # of our own state, for the application
        self._is_full = False
        self._since = 0
        self._patience = PATIENCE_NS
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner("state")
        self.giving.attach(deadlines)

    # Inputs

    def receive_message(
        self, source: Member, message: SystemMessage, now: int, out: Effects
    ) -> None:
        match message:
            case StateRequest():
                self._on_ask(source, message, out)
            case StateRefused():
                self._on_refused(source, message, now, out)
            case StateBegin():
                self._on_begin(source, message, now, out)
            case StateData():
                self._on_part(source, message, now, out)
            case StateEnd():
                self._on_end(source, message, now, out)
            case StateAck():
                self.giving.on_state_ack(source, message, out)
            case StateCancel():
                self.giving.on_stop(source, message)
            case JoinerBlocked():
                self._on_joiner_blocked(source, message, now)
        self._announce(out)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        if not self.has_state:
            return
        match signal:
            case DigestWanted(joiners):
                self._outside = frozenset(joiners)
                if self.phase is Phase.WAITING and self.provider in joiners:
                    self._ask_next(now, out)
            case Admitted(joiners, digest):
                self._outside = frozenset()
                if self.phase is not Phase.WAITING:
                    for joiner in joiners:
                        self.giving.cut(joiner, self._cut_at(digest), now)
                    self._announce(out)
            case Settled(is_settled):
                self._is_settled = is_settled
                self._settle()
            case LetIn(by, digest):
                self._enter(Phase.WAITING)
                self.catch_up = CatchUp(
                    digest.entries, self._room, self._fragment_bytes, self._inherited
                )
                self._since = now
                self._ask(by, now, out)

    def before_view(self, view: View, taken: Digest) -> None:
        """This view is about to be installed: how far has everybody been taken?"""
        if not self.has_state or self.me not in view:
            return
        for origin, seqno in self._reach(taken).items():
            if origin.sender not in view:
                self._departed.pop(origin, None)
                self._departed[origin] = seqno
        if self.catch_up is not None:
            self.catch_up.depart(view)
        while len(self._departed) > DEPARTED_MAX:
            oldest = next(iter(self._departed))
            del self._departed[oldest]
            if self.catch_up is not None:
                self.catch_up.forget(oldest)  # as whoever is to provide the state does

    def install_view(self, view: View, now: int, out: Effects) -> None:
        if self.me not in view:
            self.close(f"{view} goes on without this member", now, out)
            return
        before = self.group.previous
        self._outside = frozenset()
        self.giving.set_members(view)
        self._announce(out)
        self.blocked = {who: since for who, since in self.blocked.items() if who in view}
        if self._is_full:
            self._tell([who for who in view if before is None or who not in before], out)
        self._refusals.clear()
        if self.phase is Phase.WAITING:
            if self.provider not in view:
                self._ask_next(now, out)
            elif self.incoming is None:
                self._is_repeated = True
                self._ask_again(out)

    def answer_asks(self, taken: Digest, now: int, out: Effects) -> None:
        """Cut for those who have asked, if this is far enough."""
        if self.group.view is not None:
            is_waiting = self.phase is Phase.WAITING
            cut = self._cut_at(taken)
            self.giving.answer(self.group.view, cut, taken, now, out, is_waiting=is_waiting)
            self._announce(out)

    def provide(self, number: int, chunks: Sequence[bytes], out: Effects, *, is_last: bool) -> int:
        """How many chunks of a state were accepted, from the first on."""
        return self.giving.provide(number, chunks, out, is_last=is_last)

    def give_up(self, number: int, out: Effects) -> None:
        """The application cannot provide this state, or not the rest of it."""
        self.giving.give_up(number, out)

    @property
    def room(self) -> int:
        """How many messages to the group may be kept for later."""
        return self.catch_up.room if self.catch_up is not None and self.is_catching_up else 0

    def keep(self, events: Sequence[Event]) -> None:
        """Messages to the group that have been taken out of their windows for later."""
        assert self.catch_up is not None
        self.catch_up.keep(events)
        self._note_late(events)

    def note_full(self, is_full: bool, out: Effects) -> None:
        """Whether messages are left in their windows because the buffer is full."""
        if is_full != self._is_full:
            self._is_full = is_full
            self._tell(list(self.group.view or ()), out)

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        """The state, in chunks of which each counts as a message; then what came meanwhile."""
        events: list[Event] = []
        while self._handover:
            event = self._handover[0]
            if isinstance(event, StateChunk):
                if limit <= 0:
                    break
                limit -= 1
                self._took(event, out)
            events.append(self._handover.popleft())
        if self.phase is Phase.HANDING and not self._handover:
            assert self.catch_up is not None
            self._took_all(out)
            events += self.catch_up.take(limit)
            if not self.catch_up:
                self._enter(Phase.LIVE)
                self._end_catch_up()
        return events

    def sift(self, events: list[Event]) -> list[Event]:
        """Live messages without those that are in the state."""
        self._note_late(events)
        if self.catch_up is None:
            return events
        kept = self.catch_up.sift(events)
        self._end_catch_up()
        return kept

    def handle_timeout(self, now: int, out: Effects) -> None:
        self.giving.handle_timeout(now)
        self._announce(out)
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.PATIENCE if self._handover:
                    self._wait_on(now)  # it is our application that takes its time
                case Timer.PATIENCE:
                    self._patience = min(2 * self._patience, PATIENCE_MAX_NS)
                    self._ask_next(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        self._enter(Phase.LIVE)
        self.giving.close(reason)
        self._announce(out)
        self.provider = self.incoming = self.catch_up = None
        self._handover.clear()
        self.blocked.clear()
        self._timers.disarm(Timer.PATIENCE)

    # Outputs

    @property
    def has_ready(self) -> bool:
        """There is something to take for an application that is behind."""
        return bool(self._handover) or self.phase is Phase.HANDING

    is_dropping: ClassVar = False
    """Nothing that was kept is in another state, too."""

    @property
    def cut(self) -> Digest | None:
        """How far the state reaches that is being, or was last, handed on; None: not known."""
        return None if self.incoming is None else self.incoming.cut

    def stats(self) -> dict[str, object]:
        incoming, catch_up = self.incoming, self.catch_up
        return {
            "phase": self.phase.value,
            "provider": str(self.provider),
            "attempt": self._attempt,
            "chunks": 0 if incoming is None else incoming.chunks,
            "bytes": 0 if incoming is None else incoming.size,
            "untaken": len(self._handover),
            "kept": 0 if catch_up is None else len(catch_up),
            "kept_bytes": 0 if catch_up is None else catch_up.size,
            "skips": 0 if catch_up is None else len(catch_up.skips),
            "departed": len(self._departed),
            "ignored": self.ignored,
            "giving": self.giving.stats(),
        }

    def explain(self, now: int) -> list[str]:
        reasons = []
        if self.phase is Phase.WAITING:
            reasons.append(self._explain_waiting(now))
        elif self.phase is Phase.HANDING:
            reasons.append("the state is here and waits for this member's application")
        reasons += self.giving.explain(now)
        reasons += [
            f"{member} holds senders up for {seconds(now - since)}: its state is still on its way, "
            f"and what it may keep meanwhile is full"
            for member, since in self.blocked.items()
        ]
        return reasons

    def check_invariants(self) -> None:
        assert self.has_state or self.phase is Phase.LIVE
        assert len(self._departed) <= DEPARTED_MAX
        self.giving.check_invariants()
        assert not self.giving.events
        is_waiting = self.phase is Phase.WAITING
        assert self._timers.is_armed(Timer.PATIENCE) == is_waiting
        assert not is_waiting or self.provider is not None
        assert not self.is_behind or self.catch_up is not None
        assert not self._handover or self.is_behind

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.is_catching_up = phase is Phase.WAITING
        self.is_behind = phase is not Phase.LIVE

    # What a provider does

    def _on_ask(self, source: Member, ask: StateRequest, out: Effects) -> None:
        if self.has_state:
            self.giving.on_ask(source, ask, self.group.view, out)
        else:
            out.message(source, StateRefused(ask.attempt, Refusal.STATELESS))

    def _reach(self, taken: Digest) -> dict[Origin, int]:
        """How far the application has come, or will have when it has taken all up to now: at least
        as far as its own state reached."""
        skips = {} if self.catch_up is None else self.catch_up.skips
        return {origin: max(seqno, skips.get(origin, 0)) for origin, seqno in taken.entries.items()}

    def _cut_at(self, taken: Digest) -> Digest:
        """All that is in the state of this moment."""
        return Digest({**self._departed, **self._reach(taken)})

    def _announce(self, out: Effects) -> None:
        """Into the order of what the application gets: behind what it has yet to catch up with."""
        for event in self.giving.take_events():
            if self.phase is Phase.HANDING and self.catch_up is not None:
                self.catch_up.append(event)
            else:
                out.event(event)

    def _on_joiner_blocked(self, source: Member, message: JoinerBlocked, now: int) -> None:
        if message.is_full and self.group.view is not None and source in self.group.view:
            self.blocked.setdefault(source, now)
        else:
            self.blocked.pop(source, None)

    # What a joiner does

    def _ask(self, provider: Member, now: int, out: Effects) -> None:
        self.provider = provider
        self.incoming = None
        self._handover.clear()
        self._attempt += 1
        self._is_repeated = False
        self._wait_on(now)
        self._ask_again(out)

    def _ask_again(self, out: Effects) -> None:
        assert self.group.view is not None
        assert self.provider is not None
        assert self.catch_up is not None
        ask = StateRequest(self._attempt, self.group.view.id, Digest(self.catch_up.opened))
        out.message(self.provider, ask)

    def _ask_next(self, now: int, out: Effects) -> None:
        """Of the members that have not refused, the one after the last that was asked."""
        view, last = self.group.view, self.provider
        assert view is not None
        if last is not None and last in view and last not in self._refusals:
            out.message(last, StateCancel(self._attempt))
        members = list(view)
        start = members.index(last) + 1 if last in members else 0
        others = (who for who in members[start:] + members[:start] if who != self.me)
        unable = self._refusals.keys() | self._outside
        provider = next((who for who in others if who not in unable), None)
        if provider is None:
            self._lose(out)
        else:
            self._ask(provider, now, out)

    def _lose(self, out: Effects) -> None:
        refusals = [f"{who} {reason}" for who, reason in self._refusals.items()]
        who = ", ".join(refusals) if refusals else "there is nobody else"
        self.incoming = None
        self._handover.clear()
        self._stop_waiting(StateLost(f"nobody has the state: {who}"), out)

    def _stop_waiting(self, event: StateReceived | StateLost, out: Effects) -> None:
        self._enter(Phase.HANDING)
        self._handover.append(event)
        self._timers.disarm(Timer.PATIENCE)
        self._patience = PATIENCE_NS
        self._refusals.clear()
        self.note_full(False, out)

    def _on_refused(self, source: Member, refused: StateRefused, now: int, out: Effects) -> None:
        if not self._is_awaited(source) or refused.attempt != self._attempt:
            self.ignored += 1
            return
        if self._is_repeated:
            self._ask(source, now, out)  # it may have its state by now
            return
        self._refusals[source] = refused.reason
        self._ask_next(now, out)

    def _on_begin(self, source: Member, begin: StateBegin, now: int, out: Effects) -> None:
        if not self._is_awaited(source) or begin.attempt != self._attempt:
            self.ignored += 1
            out.message(source, StateCancel(begin.attempt))
            return
        self.incoming = Incoming(begin.transfer, begin.cut)
        self._handover.clear()
        self._handover.append(StateBegun(source, begin.cut))
        self._wait_on(now)

    def _on_part(self, source: Member, part: StateData, now: int, out: Effects) -> None:
        incoming = self._current(source, part.transfer)
        if incoming is None:
            self.ignored += 1
        elif part.index != incoming.chunks or incoming.arrived - incoming.taken >= WINDOW:
            self._ask_next(now, out)  # one is lost; or this one is no provider to rely on
        else:
            incoming.chunks += 1
            incoming.size += len(part.payload)
            incoming.arrived += len(part.payload) + CHUNK_OVERHEAD
            self._handover.append(StateChunk(part.payload))
            self._wait_on(now)

    def _on_end(self, source: Member, end: StateEnd, now: int, out: Effects) -> None:
        incoming = self._current(source, end.transfer)
        if incoming is None:
            self.ignored += 1
        elif end.count != incoming.chunks:
            self._ask_next(now, out)
        else:
            self._complete(source, incoming, out)

    def _complete(self, provider: Member, incoming: Incoming, out: Effects) -> None:
        assert self.catch_up is not None
        assert self.group.view is not None
        cut = incoming.cut.entries
        orphans = self.catch_up.cut(cut, self.group.view)
        self._settle()
        # Of those who departed, this member now has what its provider had, and what it kept of it.
        for origin, seqno in cut.items():
            if origin.sender not in self.group.view:
                is_further = origin not in orphans and self._departed.get(origin, 0) > seqno
                self._departed[origin] = self._departed[origin] if is_further else seqno
        for origin in orphans:
            if origin not in cut:
                self._departed.pop(origin, None)
        while len(self._departed) > DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]
        self._stop_waiting(StateReceived(provider, incoming.chunks, incoming.size), out)

    def _settle(self) -> None:
        if self._is_settled and self.catch_up is not None and self.group.view is not None:
            self.catch_up.settle(self.group.view)
            self._end_catch_up()

    def _note_late(self, events: Sequence[Event]) -> None:
        """Uniform messages come of those, too, who have departed: then they are in the state."""
        if not self._is_settled:
            for event in events:
                found = span(event)
                if found is not None and found[0] in self._departed:
                    origin, _, last = found
                    self._departed[origin] = max(last, self._departed[origin])

    def _is_awaited(self, source: Member) -> bool:
        return self.phase is Phase.WAITING and source == self.provider

    def _current(self, source: Member, number: int) -> Incoming | None:
        incoming = self.incoming
        is_current = incoming is not None and incoming.transfer == number
        return incoming if is_current and self._is_awaited(source) else None

    def _wait_on(self, now: int) -> None:
        self._timers.arm(Timer.PATIENCE, now + self._patience)

    def _took(self, chunk: StateChunk, out: Effects) -> None:
        incoming = self.incoming
        assert incoming is not None
        incoming.taken += len(chunk.payload) + CHUNK_OVERHEAD
        if incoming.taken - incoming.told >= WINDOW // 4:
            self._ack_state(incoming, out)

    def _took_all(self, out: Effects) -> None:
        """The last word to the provider, if it is still there."""
        if self.provider is not None and self.incoming is not None:
            self._ack_state(self.incoming, out)
        self.provider = None

    def _ack_state(self, incoming: Incoming, out: Effects) -> None:
        assert self.provider is not None
        incoming.told = incoming.taken
        out.message(self.provider, StateAck(incoming.transfer, incoming.taken))

    def _end_catch_up(self) -> None:
        """Once the application is live and nothing is to be left out any more."""
        if self.phase is Phase.LIVE and self.catch_up is not None and not self.catch_up.skips:
            self.catch_up = None

    def _tell(self, members: Sequence[Member], out: Effects) -> None:
        for member in members:
            if member != self.me:
                out.message(member, JoinerBlocked(self._is_full))

    def _explain_waiting(self, now: int) -> str:
        assert self.catch_up is not None
        left = seconds(self._timers.until(Timer.PATIENCE, now))
        so_far = f"waits for the state for {seconds(now - self._since)}"
        if self.incoming is None:
            what = f"{self.provider} has been asked, {self._attempt} requests in all"
        else:
            what = f"{self.incoming.size} bytes so far from {self.provider}"
        kept = f"{self.catch_up.size} of {self._room} bytes of what comes meanwhile are kept"
        blocked = ", which holds senders up" if self._is_full else ""
        return f"{so_far}: {what}; another is asked after {left} of silence; {kept}{blocked}"
