"""Taking: the state that comes to one member, from one provider, as it is at the cut of one view.

On StateBegin of that provider, for that view: forget what came before; the application is told to
do likewise. On StateData: for the application to take. What it has taken is told: the provider is
ahead by one window and no more. One that is missing: this provider has failed. On StateEnd: it is
complete. Silence for PATIENCE, while nothing waits for the application: it has failed, too.

Messages to the group that come meanwhile are kept (CatchUp), in the order in which they came, so
many bytes of them. All were sent behind the cut of the state, so the application gets every one of
them, after its state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from ringcast.core.shared import Named, Timers
from ringcast.events import (
    Delivered,
    FragmentsDelivered,
    StateBegun,
    StateChunk,
    StateLost,
    StateReceived,
    ViewInstalled,
)
from ringcast.model import Member, Origin, Run
from ringcast.protocols.views.providing import CHUNK_OVERHEAD, WINDOW
from ringcast.wire.frames import StateAck, StateBegin, StateCancel, StateData, StateEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.effects import Effects
    from ringcast.events import Event

PATIENCE_NS = 10_000_000_000
PATIENCE_MAX_NS = 160_000_000_000
"""How long the next sign of a provider is waited for: at first, and at most. It doubles each time,
so that a state which takes long to make gets through at last."""


RETRY_NS = 500_000_000
RETRY_MAX_NS = 8_000_000_000
"""When to ask again where others are still being given it: at first, and at the latest. Each time
takes a view change."""


class Timer(Named):
    PATIENCE = auto()
    """The provider gives no sign."""
    RETRY = auto()
    """Somebody else may have it by now."""


class Outcome(Enum):
    IGNORED = auto()
    GOES_ON = auto()
    FAILED = auto()
    COMPLETE = auto()


@dataclass(slots=True)
class Incoming:
    """As far as it has come."""

    transfer: int
    chunks: int = 0
    size: int = 0
    arrived: int = 0
    taken: int = 0
    told: int = 0
    """What the provider knows of `taken`."""


class Taking:
    """One state after the other."""

    def __init__(self) -> None:
        self.provider: Member | None = None
        """Who is to give it; None: nobody, or it is here."""
        self.view = 0
        """The counter of the view that it is cut at."""
        self.incoming: Incoming | None = None
        self.handover: deque[Event] = deque()
        """For the application."""
        self._patience = PATIENCE_NS
        self._retry = RETRY_NS

    def attach(self, timers: Timers[Timer]) -> None:
        self._timers = timers

    @property
    def is_here(self) -> bool:
        """All of it, or that there is none."""
        last = self.handover[-1] if self.handover else None
        return isinstance(last, StateReceived | StateLost)

    def expect(self, provider: Member | None, view: int, now: int) -> None:
        """It is to come from there."""
        self.stop()
        self.provider, self.view = provider, view
        self._wait_on(now)

    def stop(self) -> None:
        """Nothing is to come any more."""
        self.provider = self.incoming = None
        self.handover.clear()
        self._timers.disarm_all()

    def retry(self, now: int) -> None:
        """Others are being given it: ask again later."""
        self._timers.arm(Timer.RETRY, now + self._retry)
        self._retry = min(2 * self._retry, RETRY_MAX_NS)

    def is_to_retry(self, now: int) -> bool:
        return self._timers.take(Timer.RETRY, now)

    def lose(self, lost: StateLost) -> None:
        """There is none."""
        self.stop()
        self.handover.append(lost)

    def receive(
        self, source: Member, message: StateBegin | StateData | StateEnd, now: int, out: Effects
    ) -> Outcome:
        if isinstance(message, StateBegin):
            return self._on_begin(source, message, now, out)
        incoming = self.incoming
        if incoming is None or incoming.transfer != message.transfer or source != self.provider:
            return Outcome.IGNORED
        if isinstance(message, StateData):
            return self._on_part(incoming, message, now)
        if message.count != incoming.chunks:
            return Outcome.FAILED
        self.handover.append(StateReceived(source, incoming.chunks, incoming.size))
        self._timers.disarm(Timer.PATIENCE)
        self._patience, self._retry = PATIENCE_NS, RETRY_NS
        return Outcome.COMPLETE

    def _on_begin(self, source: Member, begin: StateBegin, now: int, out: Effects) -> Outcome:
        if source != self.provider or begin.attempt != self.view or self.is_here:
            out.message(source, StateCancel(begin.attempt))
            return Outcome.IGNORED
        self.incoming = Incoming(begin.transfer)
        self.handover.clear()
        self.handover.append(StateBegun(source, begin.cut))
        self._wait_on(now)
        return Outcome.GOES_ON

    def _on_part(self, incoming: Incoming, part: StateData, now: int) -> Outcome:
        if part.index != incoming.chunks or incoming.arrived - incoming.taken >= WINDOW:
            return Outcome.FAILED  # one is lost; or this one is no provider to rely on
        incoming.chunks += 1
        incoming.size += len(part.payload)
        incoming.arrived += len(part.payload) + CHUNK_OVERHEAD
        self.handover.append(StateChunk(part.payload))
        self._wait_on(now)
        return Outcome.GOES_ON

    def take(self, limit: int, out: Effects) -> list[Event]:
        """For the application: up to so many chunks, and what stands between them."""
        events: list[Event] = []
        while self.handover:
            event = self.handover[0]
            if isinstance(event, StateChunk):
                if limit <= 0:
                    break
                limit -= 1
                self._took(event, out)
            events.append(self.handover.popleft())
        return events

    def finish(self, out: Effects) -> None:
        """The application has all of it: the last word to the provider, if there is one."""
        if self.provider is not None and self.incoming is not None:
            self._ack(self.incoming, out)
        self.provider = None

    def is_given_up(self, now: int) -> bool:
        """Whether its provider has been silent for too long."""
        if not self._timers.take(Timer.PATIENCE, now):
            return False
        if self.handover:
            self._wait_on(now)  # it is our application that takes its time
            return False
        self._patience = min(2 * self._patience, PATIENCE_MAX_NS)
        return True

    def check_invariants(self) -> None:
        is_awaited = self.provider is not None and not self.is_here
        assert self._timers.is_armed(Timer.PATIENCE) <= is_awaited
        assert not (self._timers.is_armed(Timer.RETRY) and is_awaited)

    def _wait_on(self, now: int) -> None:
        self._timers.arm(Timer.PATIENCE, now + self._patience)

    def _took(self, chunk: StateChunk, out: Effects) -> None:
        assert self.incoming is not None
        self.incoming.taken += len(chunk.payload) + CHUNK_OVERHEAD
        if self.incoming.taken - self.incoming.told >= WINDOW // 4:
            self._ack(self.incoming, out)

    def _ack(self, incoming: Incoming, out: Effects) -> None:
        assert self.provider is not None
        incoming.told = incoming.taken
        out.message(self.provider, StateAck(incoming.transfer, incoming.taken))


MESSAGE_OVERHEAD = 64
"""What a message takes besides its bytes, about: empty ones are not for nothing."""


class CatchUp:
    """A bounded queue of deliveries."""

    __slots__ = ("_events", "_fragment_bytes", "_halves", "_room", "size")

    def __init__(self, max_bytes: int, fragment_bytes: int) -> None:
        self.size = 0
        """Bytes that are kept, with what each message takes besides."""
        self._room = max_bytes
        self._fragment_bytes = fragment_bytes
        self._halves: dict[Origin, int] = {}  # bytes of messages that are not whole yet
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def room(self) -> int:
        """How many more messages, or fragments of such, may be kept however large they are."""
        left = self._room - self.size - sum(self._halves.values())
        return max(0, left // (self._fragment_bytes + MESSAGE_OVERHEAD))

    def keep(self, events: Sequence[Event]) -> None:
        """What the application will get later."""
        for event in events:
            match event:
                case Delivered(sender, run):
                    self._halves.pop(Origin(sender, run.stream), None)
                case FragmentsDelivered(sender, stream, first, last):
                    size = (last - first + 1) * self._fragment_bytes
                    origin = Origin(sender, stream)
                    self._halves[origin] = self._halves.get(origin, 0) + size
                case ViewInstalled(view, parts):
                    for origin in list(self._halves):
                        if parts or origin.sender not in view:
                            del self._halves[origin]  # it starts over, or never becomes whole
            self._append(event)

    def drop_messages(self) -> None:
        """All messages that are kept are in a state that is to come."""
        events = [e for e in self._events if not isinstance(e, Delivered | FragmentsDelivered)]
        self._events.clear()
        self._halves.clear()
        self.size = 0
        for event in events:
            self._append(event)

    def take(self, limit: int) -> list[Event]:
        """What is kept, from the first on: up to `limit` messages."""
        taken: list[Event] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Delivered):
                if limit <= 0:
                    self._events.appendleft(event)
                    break
                count = len(event.run.payloads)
                if count > limit:
                    self._events.appendleft(_part(event, limit, count))
                    event = _part(event, 0, limit)
                limit -= count
            taken.append(event)
            self.size -= _cost(event)
        return taken

    def _append(self, event: Event) -> None:
        self.size += _cost(event)
        self._events.append(event)


def _part(event: Delivered, start: int, stop: int) -> Delivered:
    run, position = event.run, event.position and event.position + start
    part = Run(run.stream, run.first + start, run.payloads[start:stop])
    return replace(event, run=part, position=position)


def _cost(event: Event) -> int:
    if isinstance(event, Delivered):
        payloads = event.run.payloads
        return sum(map(len, payloads)) + MESSAGE_OVERHEAD * len(payloads)
    return MESSAGE_OVERHEAD
