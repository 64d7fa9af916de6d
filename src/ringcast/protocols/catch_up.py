"""CatchUp: messages to the group that come to a joiner while its state is on its way.

They are kept in the order in which they came, so many bytes of them. When the state is there, its
cut says how much of each sender is in it:

On cut: leave out what is in the state, now and of all that still comes.
    Of a sender that has departed the state may not reach the place where this member's window had
    opened: whoever provides it got less of that sender. What came here would not follow on it, and
    is left out as well: then both have the same messages of that sender, and no gap.
    (Of all others it does reach it: the provider sees to that before it makes the cut.)
    But if the sender came after this member and the state knows nothing of it, nothing precedes
    what came here: to both it began where its window opened.
    Of messages that are taken over (uniform.py) some may still come, to both: they too are in the
    state, or not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.events import Delivered, FragmentsDelivered
from ringcast.model import Origin, Run, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.events import Event
    from ringcast.model import View

MESSAGE_OVERHEAD = 64
"""What a message takes besides its bytes, about: empty ones are not for nothing."""


class CatchUp:
    """A bounded queue of deliveries, and what is to be left out of it."""

    __slots__ = (
        "_events",
        "_fragment_bytes",
        "_halves",
        "_inherited",
        "_room",
        "_welcomed",
        "accepted",
        "ends",
        "opened",
        "size",
        "skips",
    )

    def __init__(
        self,
        opened: Mapping[Origin, int],
        max_bytes: int,
        fragment_bytes: int,
        inherited: frozenset[Stream] = frozenset({Stream.UNIFORM}),
    ) -> None:
        """`inherited`: streams on which messages of a departed sender may still come."""
        self.opened: dict[Origin, int] = dict(opened)
        """Where this member's windows opened."""
        self.accepted: dict[Origin, int] = dict(opened)
        """How far each stream has been taken into this buffer."""
        self.ends: dict[Origin, int] = {}
        """How far those had come whose sender has departed since."""
        self.skips: dict[Origin, int] = {}
        """What is still to come and is in the state: up to here."""
        self.size = 0
        """Bytes that are kept, with what each message takes besides."""
        self._inherited = inherited
        self._welcomed = frozenset(opened)  # who was there before this member
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
        """Deliveries that the application will get later."""
        for event in events:
            found = span(event)
            if found is not None:
                origin, first, last = found
                self.opened.setdefault(origin, first - 1)
                self.accepted[origin] = last
                if origin in self.ends and origin.stream in self._inherited:
                    self.ends[origin] = last
                if isinstance(event, Delivered):
                    self._halves.pop(origin, None)
                else:
                    size = (last - first + 1) * self._fragment_bytes
                    self._halves[origin] = self._halves.get(origin, 0) + size
            self.append(event)

    def append(self, event: Event) -> None:
        """Something that comes after all that is kept."""
        self.size += _cost(event)
        self._events.append(event)

    def drop_messages(self) -> None:
        """All messages that are kept are in a state that is to come."""
        events = [e for e in self._events if not isinstance(e, Delivered | FragmentsDelivered)]
        self._events.clear()
        self._halves.clear()
        self.size = 0
        for event in events:
            self.append(event)

    def depart(self, view: View) -> None:
        """Whoever is not in this view has departed, for now at least."""
        for origin in self.accepted:
            if origin.sender not in view:
                self.ends.setdefault(origin, self.accepted[origin])
                if origin.stream not in self._inherited:
                    self.skips.pop(origin, None)
                    self._halves.pop(origin, None)

    def forget(self, origin: Origin) -> None:
        """Whoever makes a cut may know nothing any more of this one, which has departed."""
        if origin in self.ends:
            self._leave_out({origin: self.ends.pop(origin)})
            self.opened.pop(origin, None)
            self.accepted.pop(origin, None)

    def cut(self, cut: Mapping[Origin, int], view: View) -> list[Origin]:
        """The state reaches this far. Return whose messages do not follow on it."""
        orphans = [origin for origin in self.ends if not self._follows(origin, cut.get(origin))]
        self._leave_out({**cut, **{origin: self.ends[origin] for origin in orphans}})
        self.skips = {
            origin: last
            for origin, last in cut.items()
            if last > self.accepted.get(origin, 0)
            and (origin.sender in view or origin.stream in self._inherited)
        }
        return orphans

    def settle(self, view: View) -> None:
        """Nothing comes any more of those who are not in this view."""
        for origin in [origin for origin in self.skips if origin.sender not in view]:
            del self.skips[origin]

    def sift(self, events: Sequence[Event]) -> list[Event]:
        """Those of these deliveries that are not in the state. Called until `skips` is empty."""
        kept = []
        for event in events:
            found = span(event)
            through = 0 if found is None else self.skips.get(found[0], 0)
            if found is not None and found[2] >= through:
                self.skips.pop(found[0], None)
            after = _after(event, through)
            if after is not None:
                kept.append(after)
        return kept

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

    def _follows(self, origin: Origin, reached: int | None) -> bool:
        """Whether what a departed sender left here follows on a state that reaches so far; None:
        the state knows nothing of it."""
        if reached is None and origin not in self._welcomed:
            return True
        return (reached or 0) >= self.opened[origin]

    def _leave_out(self, through: Mapping[Origin, int]) -> None:
        events, self._events = self._events, deque()
        self.size = 0
        for event in events:
            found = span(event)
            after = event if found is None else _after(event, through.get(found[0], 0))
            if after is not None:
                self.append(after)


def span(event: Event) -> tuple[Origin, int, int] | None:
    """Whose messages these are and which; None if it is no delivery of messages to the group."""
    match event:
        case Delivered(sender, run) if not event.epoch:
            return Origin(sender, run.stream), run.first, run.last
        case FragmentsDelivered(sender, stream, first, last) if not event.epoch:
            return Origin(sender, stream), first, last
    return None


def _after(event: Event, through: int) -> Event | None:
    """What is left of it without seqnos up to `through`."""
    match event:
        case Delivered(_, run) if run.first <= through:
            is_any = run.last > through
            return _part(event, through + 1 - run.first, len(run.payloads)) if is_any else None
        case FragmentsDelivered(_, _, first, last) if first <= through:
            return replace(event, first=through + 1) if last > through else None
    return event


def _part(event: Delivered, start: int, stop: int) -> Delivered:
    run = event.run
    return replace(event, run=Run(run.stream, run.first + start, run.payloads[start:stop]))


def _cost(event: Event) -> int:
    if isinstance(event, Delivered):
        payloads = event.run.payloads
        return sum(map(len, payloads)) + MESSAGE_OVERHEAD * len(payloads)
    return MESSAGE_OVERHEAD
