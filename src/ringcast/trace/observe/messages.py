"""Messages to the group in a simulated run: sends, blocked sends, deliveries and their content.

What a node delivers is compared byte for byte with what was sent under that seqno (G1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringcast.events import Delivered, Event, FragmentsDelivered
from ringcast.model import Member, Origin, Run, Stream, ViewId
from ringcast.protocols.views.streams import Standing, ViewStreams
from ringcast.trace import rows as trace
from ringcast.trace.content import Block, BlockHasher
from ringcast.trace.observe.order import is_total
from ringcast.trace.observe.windows import slots_of
from ringcast.trace.rows import naming, naming_id
from ringcast.window.send import DATAGRAM_OVERHEAD, SendWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ringcast.node import Node
    from ringcast.trace.observe.sink import Contents, Sink

BLOCK_MESSAGES = 16
"""Messages per content hash: small, so that short runs have whole blocks too."""


@dataclass(slots=True)
class _Sending:
    """What a node sends on one stream."""

    messages: dict[int, bytes]
    assigned: int = 0
    """The seqno of the last fragment of the last accepted message."""
    was_blocked: bool = False
    hashes: BlockHasher = field(default_factory=lambda: BlockHasher(0, BLOCK_MESSAGES))


class Messages:
    """Turns what the application sends to the group and delivers of it into rows."""

    def __init__(self, node: Node, sink: Sink, contents: Contents) -> None:
        self.contents = contents
        self.view_id: ViewId | None = None
        """Of the view in which messages get their seqnos."""
        self._node = node
        self._sink = sink
        self._hashes: dict[Origin, BlockHasher] = {}
        self._sending = {
            stream: _Sending(contents.sent.setdefault(Origin(node.me, stream), {}))
            for stream in node.multicast.streams
        }

    def naming_view(self) -> dict[str, Any]:
        return {} if self.view_id is None else naming_id(self.view_id)

    def opened(self, origin: Origin, offset: int) -> None:
        self._hashes[origin] = BlockHasher(offset, BLOCK_MESSAGES)

    def dropped(self, origin: Origin) -> None:
        self._hashes.pop(origin, None)

    def offered(self, stream: Stream, payloads: Sequence[bytes], now: int) -> None:
        """The node has accepted these."""
        mine, first = self._sending[stream], self._sending[stream].assigned + 1
        for payload in payloads:
            mine.assigned += self._pieces(payload) if stream is not Stream.TOTAL else 1
            mine.messages[mine.assigned] = payload
        if stream is Stream.TOTAL and payloads:
            numbers = {"seqno": first, "seqno2": mine.assigned, "stream": int(stream)}
            self._sink.write(trace.ACCEPT, now, **numbers, **self.naming_view())
            self.contents.last_send = self.contents.now

    def start_over(self, stream: Stream, sent: int) -> None:
        """A large message that is under way is sent once more, behind what was sent so far."""
        mine = self._sending[stream]
        if mine.assigned > sent:
            message = mine.messages.pop(mine.assigned)
            mine.assigned = sent + self._pieces(message)
            mine.messages[mine.assigned] = message

    def _pieces(self, payload: bytes) -> int:
        return max(1, -(-len(payload) // self._node.codec.payload_bytes_max))

    def sent(self, origin: Origin, before: int, window: SendWindow, now: int) -> None:
        """What is in the send window beyond `before` counts as sent."""
        self.contents.last_send = self.contents.now
        place = {"seqno": before + 1, "seqno2": window.high, "stream": int(origin.stream)}
        bounds = {"low": window.low, "hr": before, "cap": slots_of(window)}
        self._sink.write(trace.SEND, now, **place, **bounds, **self.naming_view())
        mine = self._sending[origin.stream]
        blocks: list[Block] = []
        for seqno in range(before + 1, window.high + 1):
            message = mine.messages.get(seqno)
            if message is not None:
                blocks += mine.hashes.skip_to(seqno)
                blocks += mine.hashes.add_run(seqno, [message])
        blocks += mine.hashes.skip_to(window.high + 1)
        self._write_blocks(origin, "sent", blocks, now)

    def blocked(self, stream: Stream, payload: bytes, now: int) -> None:
        """A send was cut short before this one: why, in the window's own figures."""
        columns = block_columns(self._node, stream, payload)
        if columns is not None:
            self._sink.write(trace.SEND_BLOCK, now, **columns)
            self._sending[stream].was_blocked = True

    def look_for_room(self, now: int) -> None:
        for stream, mine in self._sending.items():  # also of a node that has just gone
            if mine.was_blocked and not self._node.multicast.is_blocked(stream):
                mine.was_blocked = False
                self._sink.write(trace.SEND_UNBLOCK, now, stream=int(stream))

    def delivered(self, event: Delivered | FragmentsDelivered, now: int, **columns: Any) -> None:
        origin = naming(origin_of(event))
        self._sink.write(trace.DELIVER, now, **origin, **range_of(event), **columns)
        if isinstance(event, Delivered):
            self._note_content(event, now)

    def compare(self, event: Delivered) -> None:
        compare(self._node.me, event, self.contents.sent.get(origin_of(event), {}), self.contents)

    def _note_content(self, event: Delivered, now: int) -> None:
        run, origin = event.run, origin_of(event)
        self.compare(event)
        hashes = self._hashes.get(origin)
        if hashes is not None:
            blocks = [*hashes.skip_to(run.first), *hashes.add_run(run.first, run.payloads)]
            self._write_blocks(origin, "delivered", blocks, now)

    def _write_blocks(self, origin: Origin, kind: str, blocks: list[Block], now: int) -> None:
        for block in blocks:
            self._sink.write(trace.BLOCK, now, **naming(origin), **block.columns, kind=kind)


def block_columns(node: Node, stream: Stream, payload: bytes) -> dict[str, Any] | None:
    """Why this one is blocked, in its window's own figures; None: it has none."""
    window = node.multicast.windows().get(Origin(node.me, stream))
    if not isinstance(window, SendWindow):
        return None
    size = min(len(payload), node.codec.payload_bytes_max)
    rest = node.multicast.senders[stream].fragments.rest
    if is_frozen(node):
        reason = "change"  # of the view
    elif rest:
        reason, size = "rest", len(rest[0])  # of a large message, which goes first
    else:
        reason = "messages" if window.room <= 0 else "bytes"
    bounds = {"low": window.low, "hr": window.high, "cap": slots_of(window)}
    sizes = {"size": max(size, DATAGRAM_OVERHEAD), "used": window.charged}
    sizes |= {"limit": window.max_bytes, "stream": int(stream)}
    return {**bounds, **sizes, "detail": reason}


def is_frozen(node: Node) -> bool:
    """Whether it gives no seqnos because its view is about to change."""
    return isinstance(node.multicast, ViewStreams) and node.multicast.standing is not Standing.OPEN


def deliveries_to_group(events: Iterable[Event]) -> Iterator[Delivered | FragmentsDelivered]:
    for event in events:
        if is_total(event):
            continue  # it has rows of its own
        if isinstance(event, Delivered | FragmentsDelivered) and not event.epoch:
            yield event


def place_of(event: Delivered | FragmentsDelivered) -> Run | FragmentsDelivered:
    """What tells the stream and the seqnos of a delivery."""
    return event.run if isinstance(event, Delivered) else event


def origin_of(event: Delivered | FragmentsDelivered) -> Origin:
    return Origin(event.sender, place_of(event).stream)


def range_of(event: Delivered | FragmentsDelivered) -> dict[str, Any]:
    """The columns that tell which messages were delivered, in which view."""
    place, kind = place_of(event), "" if isinstance(event, Delivered) else "fragment"
    return {"seqno": place.first, "seqno2": place.last, "kind": kind, **naming_id(event.view_id)}


def compare(me: Member, event: Delivered, sent: Mapping[int, bytes], contents: Contents) -> None:
    """What is delivered with what was sent: its bytes, and whether it begins with headers."""
    sender, run = event.sender, event.run
    contents.deliveries += len(run.payloads)
    which = f" of epoch {event.epoch}" if event.epoch else ""
    if len({*map(type, run.payloads)}) > 1:
        contents.find("G1", f"{me} delivers {sender}:{run.first}{which} and others, some headed")
    for seqno, payload in enumerate(run.payloads, run.first):
        original = sent.get(seqno)
        if original != payload or type(original) is not type(payload):  # headed, or not
            contents.find(
                "G1",
                f"{me} delivers {sender}:{seqno}{which} with other bytes than were sent under that "
                "seqno",
            )
