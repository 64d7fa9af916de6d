"""What a harness sees of multicast: windows, sends, deliveries, acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.events import Delivered
from ringcast.model import Origin, Stream
from ringcast.sim.network import Seen
from ringcast.sim.recorder import BLOCK_MESSAGES
from ringcast.trace import rows as trace
from ringcast.trace.content import BlockHasher
from ringcast.trace.rows import member_key
from ringcast.window.windows import DATAGRAM_OVERHEAD, SendWindow
from ringcast.wire.frames import (
    Ack,
    Data,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    StabilityQuery,
    StabilityReport,
    Stable,
    Watermark,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.events import FragmentsDelivered
    from ringcast.model import Member, Run, View
    from ringcast.node import Node
    from ringcast.sim.recorder import Recorder, Scribe
    from ringcast.trace.content import Block
    from ringcast.window.windows import ReceiveWindow
    from ringcast.wire.frames import Frame

FIFO = int(Stream.FIFO)
GREW = "a window grows"
SHRANK = "a window shrinks"


class _Sending:
    """What a node sends on one stream."""

    __slots__ = (
        *("ackers", "assigned", "first_bytes", "hashes", "highest", "messages", "was_blocked"),
    )

    def __init__(
        self, messages: dict[int, bytes], first_bytes: dict[int, tuple[bytes, bool]]
    ) -> None:
        self.messages = messages
        self.assigned = 0  # the seqno of the last fragment of the last accepted message
        self.ackers = 0
        self.was_blocked = False
        self.hashes = BlockHasher(0, BLOCK_MESSAGES)
        self.highest = 0  # on the wire
        self.first_bytes = first_bytes  # as they left for the first time


class MulticastWatch:
    """Turns what multicast does at one node into rows."""

    def __init__(self, node: Node, scribe: Scribe, recorder: Recorder) -> None:
        self._node = node
        self._scribe = scribe
        self._recorder = recorder
        self._states: dict[Origin, tuple[int, ...]] = {}
        self._seen: dict[Origin, ReceiveWindow] = {}  # the window that each state is of
        self._hashes: dict[Origin, BlockHasher] = {}
        self._last: Mapping[Origin, SendWindow | ReceiveWindow] = {}
        """Windows that the node has dropped since it was last looked at."""
        self._slots: dict[Origin, int] = {}  # of windows that grow
        self._sending: dict[Stream, _Sending] = {}
        for stream in node.multicast.streams:
            mine = Origin(node.me, stream)
            self._sending[stream] = _Sending(
                recorder.sent.setdefault(mine, {}), recorder.pieces.setdefault(mine, {})
            )
        config = node.config.multicast
        self._has_stability = config.stability is not None
        self._is_retained = config.stability is not None and config.stability.retain_delivered

    # The application's side

    def sent(self, stream: Stream, payloads: Sequence[bytes]) -> None:
        """The node has accepted these."""
        size = self._node.codec.payload_bytes_max
        mine = self._sending[stream]
        for payload in payloads:
            mine.assigned += max(1, -(-len(payload) // size))
            mine.messages[mine.assigned] = payload

    def blocked(self, stream: Stream, payload: bytes) -> None:
        """A send was cut short before this one: why, in the window's own figures."""
        window = self._node.multicast.windows().get(Origin(self._node.me, stream))
        if not isinstance(window, SendWindow):
            return
        mine = self._sending[stream]
        size = min(len(payload), self._node.codec.payload_bytes_max)
        if mine.assigned > window.high:
            reason = "rest"  # of a large message, which goes first
            size = self._next_fragment_bytes(mine, window.high)
        elif window.room <= 0:
            reason = "messages"
        else:
            reason = "bytes"
        self._scribe.write(
            trace.SEND_BLOCK,
            stream=int(stream),
            low=window.low,
            hr=window.high,
            cap=_slots_of(window),
            size=max(size, DATAGRAM_OVERHEAD),
            used=window.charged,
            limit=window.max_bytes,
            detail=reason,
        )
        mine.was_blocked = True

    def _next_fragment_bytes(self, mine: _Sending, high: int) -> int:
        """Of the message that is only begun: the size of the fragment that waits for room."""
        largest = self._node.codec.payload_bytes_max
        left = mine.assigned - high  # fragments
        total = len(mine.messages[mine.assigned])
        return largest if left > 1 else total % largest or largest

    def delivered(self, event: Delivered | FragmentsDelivered, **columns: Any) -> None:
        self._show_sent_before(event)
        if isinstance(event, Delivered):
            self._write_delivery(event.sender, event.run, event.view_id.counter, columns)
        else:
            self._scribe.write_about(
                trace.DELIVER,
                event.sender,
                stream=int(event.stream),
                seqno=event.first,
                seqno2=event.last,
                view=event.view_id.counter,
                kind="fragment",
                **columns,
            )

    def _show_sent_before(self, event: Delivered | FragmentsDelivered) -> None:
        """Whoever leaves may have sent and taken its last messages in one step."""
        place = event.run if isinstance(event, Delivered) else event
        origin = Origin(event.sender, place.stream)
        window = self._last.get(origin)
        if isinstance(window, SendWindow) and place.last > self._states[origin][2]:
            self._observe_send(origin, window)

    def _write_delivery(
        self, sender: Member, run: Run, view: int, columns: Mapping[str, Any]
    ) -> None:
        first, payloads = run.first, run.payloads
        self._recorder.deliveries += len(payloads)
        self._scribe.write_about(
            trace.DELIVER,
            sender,
            stream=int(run.stream),
            seqno=first,
            seqno2=run.last,
            view=view,
            **columns,
        )
        origin = Origin(sender, run.stream)
        sent = self._recorder.sent.get(origin, {})
        for seqno, payload in enumerate(payloads, first):
            if sent.get(seqno) != payload:
                self._recorder.find(
                    "G1",
                    f"{self._node.me} delivers {sender}:{seqno} with other bytes than were sent "
                    f"under that seqno",
                )
        hashes = self._hashes.get(origin)
        if hashes is not None:
            blocks = [*hashes.skip_to(first), *hashes.add_run(first, payloads)]
            self._write_blocks(origin, "delivered", blocks)

    def _write_blocks(self, origin: Origin, kind: str, blocks: list[Block]) -> None:
        for block in blocks:
            self._write_origin(
                trace.BLOCK,
                origin,
                seqno=block.first,
                seqno2=block.last,
                kind=kind,
                block=block.number,
                block_hash=block.hash,
            )

    # The network's side

    def look_at(self, frame: Frame) -> Seen | None:
        """What leaves; None if it is no frame of multicast."""
        match frame:
            case Data():
                return self._look_at_data(frame)
            case Ack():
                return Seen(
                    "ack", int(frame.stream), received=frame.received, delivered=frame.delivered
                )
            case Nack():
                first, last = frame.missing[0].start, frame.missing[-1].stop - 1
                return Seen("nack", int(frame.stream), first, last)
            case Watermark():
                return Seen("watermark", int(frame.stream), frame.seqno, frame.seqno)
            case PeerRepairRequest(_, missing):
                return Seen("peer_repair_request", FIFO, missing[0].start, missing[-1].stop - 1)
            case PeerRepair():
                return self._look_at_peer_repair(frame)
        return self._look_at_reports(frame)

    def _look_at_reports(self, frame: Frame) -> Seen | None:
        match frame:
            case StabilityReport(view_id, number):
                return Seen("stability_report", FIFO, number, number, view=view_id.counter)
            case StabilityQuery(view_id):
                return Seen("stability_query", FIFO, view=view_id.counter)
            case Stable(view_id, number):
                return Seen("stable", FIFO, number, number, view=view_id.counter)
        return None

    def left(self, frame: Frame, view: View | None) -> None:
        """This is on its way: a report says something of each member."""
        if not isinstance(frame, StabilityReport) or view is None or view.id != frame.view_id:
            return  # or it was said in an earlier view, and counts for nothing
        for member, delivered in zip(view, frame.delivered, strict=True):
            self._scribe.write_about(
                trace.STABILITY_REPORT,
                member,
                stream=FIFO,
                view=view.counter,
                received=delivered,
                hd=delivered,
            )

    def _look_at_peer_repair(self, peer_repair: PeerRepair) -> Seen:
        data = peer_repair.data
        pieces = self._recorder.pieces.get(Origin(peer_repair.sender, data.stream), {})
        for seqno, payload in enumerate(data.payloads, data.first):
            if pieces.get(seqno) != (payload, data.more):
                self._write_origin(
                    trace.XMIT_MISMATCH,
                    Origin(peer_repair.sender, data.stream),
                    kind="peer_repair",
                    seqno=seqno,
                    seqno2=seqno,
                )
        size = sum(map(len, data.payloads))
        return Seen("peer_repair", int(data.stream), data.first, data.last, size=size, again=1)

    def _look_at_data(self, data: Data) -> Seen:
        mine, stream = self._sending[data.stream], int(data.stream)
        for seqno, payload in enumerate(data.payloads, data.first):
            original = mine.first_bytes.setdefault(seqno, (payload, data.more))
            if original != (payload, data.more):
                self._scribe.write(
                    trace.XMIT_MISMATCH, kind="data", stream=stream, seqno=seqno, seqno2=seqno
                )
        size = sum(map(len, data.payloads))
        again = int(data.first <= mine.highest)
        mine.highest = max(mine.highest, data.last)
        return Seen("data", stream, data.first, data.last, size=size, again=again)

    # The windows

    def before_close(self) -> None:
        """The node is about to drop its windows, in the middle of something: they are looked
        at when that is over, as they are now."""
        self._last = self._node.multicast.windows()

    def observe(self, *, is_new_view: bool) -> None:
        """Turn what changed in the node's windows into rows."""
        last, self._last = self._last, {}
        self._observe_windows(last)
        windows = self._node.multicast.windows()
        if is_new_view or len(windows) < len(self._states):
            self._observe_dropped(windows)
        self._observe_windows(windows)
        self._observe_acks(is_new_view=is_new_view)

    def _observe_windows(self, windows: Mapping[Origin, SendWindow | ReceiveWindow]) -> None:
        for origin, window in windows.items():
            if self._has_stability:
                self._observe_growth(origin, window)
            if isinstance(window, SendWindow):
                self._observe_send(origin, window)
            else:
                self._observe_receive(origin, window)

    def _observe_growth(self, origin: Origin, window: SendWindow | ReceiveWindow) -> None:
        before = self._slots.get(origin, window.capacity_min)
        self._slots[origin] = window.capacity
        self._recorder.happenings[GREW] += window.capacity > before
        self._recorder.happenings[SHRANK] += window.capacity < before

    def _observe_dropped(self, windows: Mapping[Origin, object]) -> None:
        for origin in [origin for origin in self._states if origin not in windows]:
            self._drop(origin)

    def _drop(self, origin: Origin) -> None:
        del self._states[origin]
        self._slots.pop(origin, None)
        self._hashes.pop(origin, None)
        if origin.sender != self._node.me:
            del self._seen[origin]
            self._write_origin(trace.DROP_WINDOW, origin)

    def _observe_send(self, origin: Origin, window: SendWindow) -> None:
        state = (window.low, window.delivered, window.high, window.charged, window.max_bytes)
        before = self._states.get(origin)
        if state == before:
            return
        if before is None:
            before = (0, 0, 0, 0, 0)
            self._hashes[origin] = BlockHasher(0, BLOCK_MESSAGES)
        self._states[origin] = state
        if window.low > before[0]:
            self._scribe.write(
                trace.PURGE,
                stream=int(origin.stream),
                seqno=window.low,
                hd=window.delivered,
                used=window.charged,
                limit=window.max_bytes,
                cap=_slots_of(window) if self._has_stability else -1,
            )
            # Where others can send them again they are needed for longer.
            gone = range(0) if self._is_retained else range(before[0] + 1, window.low + 1)
            for seqno in gone:
                self._sending[origin.stream].first_bytes.pop(seqno, None)
        if window.high > before[2]:
            self._write_send(origin, before, window)
        self._write_window(origin, window, "send", window.high, window.charged, -1)

    def _write_send(self, origin: Origin, before: tuple[int, ...], window: SendWindow) -> None:
        self._recorder.last_send = self._recorder.now
        self._scribe.write(
            trace.SEND,
            stream=int(origin.stream),
            seqno=before[2] + 1,
            seqno2=window.high,
            low=window.low,
            hr=before[2],
            cap=_slots_of(window),
        )
        mine = self._sending[origin.stream]
        blocks: list[Block] = []
        for seqno in range(before[2] + 1, window.high + 1):
            message = mine.messages.get(seqno)
            if message is not None:
                blocks += mine.hashes.skip_to(seqno)
                blocks += mine.hashes.add_run(seqno, [message])
        blocks += mine.hashes.skip_to(window.high + 1)
        self._write_blocks(origin, "sent", blocks)

    def _observe_receive(self, origin: Origin, window: ReceiveWindow) -> None:
        state = (
            window.low,
            window.delivered,
            window.received,
            window.high,
            window.ahead_bytes,
            window.dropped_high,
            window.dropped_low,
        )
        if self._seen.get(origin, window) is not window:
            self._drop(origin)  # another one has taken its place
        before = self._states.get(origin)
        if state == before:
            return
        if before is None:
            self._seen[origin] = window
            self._hashes[origin] = BlockHasher(window.delivered, BLOCK_MESSAGES)
            self._write_origin(trace.OPEN, origin, seqno=window.delivered)
            before = (window.low, 0, 0, 0, 0, 0, 0)
        self._states[origin] = state
        if window.retain and window.low > before[0]:
            self._write_origin(trace.RELEASE, origin, seqno=window.low, hd=window.delivered)
        if state[5] > before[5]:
            self._write_origin(trace.DROP_HIGH, origin, seqno=state[5] - before[5])
        if state[6] > before[6]:
            self._write_origin(trace.DROP_LOW, origin, seqno=state[6] - before[6])
        self._write_window(
            origin, window, "receive", window.received, window.ahead_bytes, window.max_bytes
        )

    def _write_origin(self, event: str, origin: Origin, **columns: Any) -> None:
        self._scribe.write_about(event, origin.sender, stream=int(origin.stream), **columns)

    def _write_window(
        self,
        origin: Origin,
        window: SendWindow | ReceiveWindow,
        kind: str,
        received: int,
        size: int,
        limit: int,
    ) -> None:
        self._write_origin(
            trace.WIN,
            origin,
            kind=kind,
            low=window.low,
            hd=window.delivered,
            received=received,
            hr=window.high,
            cap=_slots_of(window),
            size=size,
            limit=limit,
        )

    def _observe_acks(self, *, is_new_view: bool) -> None:
        multicast = self._node.multicast
        for stream, table in multicast.ack_tables().items():
            mine = self._sending[stream]
            if len(table) != mine.ackers or is_new_view:
                keys = tuple(map(member_key, table.members))
                mine.ackers = len(keys)
                self._scribe.write(trace.ACKMAP, stream=int(stream), members=keys)
        for stream, mine in self._sending.items():  # also of a node that has just gone
            if mine.was_blocked and not multicast.is_blocked(stream):
                mine.was_blocked = False
                self._scribe.write(trace.SEND_UNBLOCK, stream=int(stream))


def _slots_of(window: SendWindow | ReceiveWindow) -> int:
    """How many messages the window admits, as it is now."""
    if isinstance(window, SendWindow):
        return window.high - window.low + window.room
    return window.capacity_max
