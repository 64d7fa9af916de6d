"""CatchUp: messages to the group that come to a member while its state is on its way.

They are kept in the order in which they came, so many bytes of them. All were sent behind the cut
of the state, so the application gets every one of them, after its state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.events import Delivered, FragmentsDelivered, ViewInstalled
from ringcast.model import Origin, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.events import Event

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
    run = event.run
    return replace(event, run=Run(run.stream, run.first + start, run.payloads[start:stop]))


def _cost(event: Event) -> int:
    if isinstance(event, Delivered):
        payloads = event.run.payloads
        return sum(map(len, payloads)) + MESSAGE_OVERHEAD * len(payloads)
    return MESSAGE_OVERHEAD
