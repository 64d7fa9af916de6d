"""What the application reads of the one order: batches become messages of their origins.

On read: the next messages of a log, with their positions. Parts of a large message are put together
    for each origin.
On a view that is read: positions go on from where it stands. Parts that are not whole are dropped:
    their origin submits that message anew, from its beginning.
Who comes from elsewhere has `seen` what it took before: messages that the members with which it
    goes on put into their history again, or had there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.events import Delivered, Event
from ringcast.model import Member, Run, Stream, View
from ringcast.wire.batches import CARRIED, MORE, PART, as_sent, count_in, payloads_of, read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.protocols.total.history import Log
    from ringcast.window.assembler import Assembler
    from ringcast.wire.batches import Head


class Start(NamedTuple):
    """Where a view stands in the order."""

    position: int
    seen: Mapping[Member, int]
    """What this member took before, of each origin, if it comes from elsewhere."""


class OrderReader:
    def __init__(self) -> None:
        self.position = 0
        """Of the last message that was read."""
        self._seen: Mapping[Member, int] = {}
        self._parts: dict[Member, list[bytes]] = {}

    @property
    def size(self) -> int:
        """Bytes of messages that are not whole."""
        return sum(len(part) for parts in self._parts.values() for part in parts)

    def begin(self, start: Start) -> None:
        """The application reads of a view."""
        self.position, self._seen = start
        self._parts.clear()

    def read(
        self,
        first: int,
        pieces: list[bytes],
        assembler: Assembler,
        view: View,
        events: list[Event],
    ) -> None:
        """These were taken from the log, from this seqno on."""
        batches = pieces
        if not assembler.is_idle:
            whole = assembler.assemble(first, pieces)
            batches = [batch for _, several in whole for batch in several]
        for batch in batches:
            head = read_head(batch)
            if head is not None and head.place < len(view):
                self._read(head, batch, view, events)

    def _read(self, head: Head, batch: bytes, view: View, events: list[Event]) -> None:
        origin, payloads = view.members[head.place], payloads_of(batch, head)
        if head.flags & PART:
            parts = self._parts.setdefault(origin, [])
            parts += payloads
            if head.flags & MORE:
                return
            payloads = [b"".join(self._parts.pop(origin))]
        payloads = as_sent(payloads, head)
        first, position = head.first, self.position + 1
        self.position += len(payloads)
        is_carried = bool(head.flags & CARRIED)
        seen = min(len(payloads), max(0, self._seen.get(origin, 0) - first + 1))
        for start, stop, is_seen in ((0, seen, True), (seen, len(payloads), False)):
            if start < stop:
                run = Run(Stream.TOTAL, first + start, payloads[start:stop])
                said = Delivered(origin, run, view.id, 0, position + start, is_carried, is_seen)
                _append(events, said)


def count_messages(log: Log, limit: int) -> tuple[int, int]:
    """How many seqnos to take for about so many messages, at least one; and how many these are."""
    window = log.window
    first = window.delivered + 1
    seqnos = messages = 0
    for batch in window.read_run(range(first, first + min(limit, window.ready))):
        seqnos += 1
        messages += count_in(batch)
        if messages >= limit:
            break
    return seqnos, messages


def _append(events: list[Event], said: Delivered) -> None:
    """To what was read before, if that is continued."""
    last = events[-1] if events else None
    if (
        isinstance(last, Delivered)
        and last.sender == said.sender
        and last.run.stream is Stream.TOTAL
        and last.run.last + 1 == said.run.first
        and last.position + len(last.run.payloads) == said.position
        and (last.carried, last.seen) == (said.carried, said.seen)
        and type(last.run.payloads[0]) is type(said.run.payloads[0])
    ):
        last.run.payloads += said.run.payloads
    else:
        events.append(said)
