"""What a harness sees of unicast: connections on both sides, their windows, ticks and syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.events import Delivered, Undeliverable
from ringcast.model import FIRST_CONN_ID, SYSTEM_EPOCH, Conn
from ringcast.node import UNICAST_FRAMES
from ringcast.protocols.unicast import LOOPBACK_EPOCH
from ringcast.sim.network import Seen
from ringcast.trace import rows as trace
from ringcast.window.windows import DATAGRAM_OVERHEAD
from ringcast.wire.frames import (
    Close,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.events import FragmentsDelivered, GapSkipped
    from ringcast.model import Member
    from ringcast.node import Node
    from ringcast.protocols.unicast_receiver import UnicastReceiver
    from ringcast.protocols.unicast_sender import UnicastSender
    from ringcast.sim.network import Packet
    from ringcast.sim.recorder import Recorder, Scribe
    from ringcast.window.windows import SendWindow
    from ringcast.wire.frames import Frame

LOOPBACK = Conn(LOOPBACK_EPOCH, FIRST_CONN_ID)
NO_STATE = "NONE"


class _Side(NamedTuple):
    """One side of a connection as it was last seen."""

    conn: Conn
    state: str
    low: int
    delivered: int
    received: int
    high: int
    capacity: int
    size: int
    limit: int


class _Stream:
    """What was sent to one peer in one epoch."""

    __slots__ = ("assigned", "first_bytes", "highest", "messages")

    def __init__(self, messages: dict[int, bytes]) -> None:
        self.messages = messages
        self.assigned = 0  # the seqno of the last fragment of the last accepted message
        self.highest = 0  # on the wire
        self.first_bytes: dict[int, tuple[bytes, bool]] = {}  # as they left for the first time


class UnicastWatch:
    """Turns what unicast does at one node into rows."""

    def __init__(self, node: Node, scribe: Scribe, recorder: Recorder) -> None:
        self._node = node
        self._scribe = scribe
        self._recorder = recorder
        self._streams: dict[tuple[Member, int], _Stream] = {}
        self._senders: dict[Member, _Side] = {}
        self._entries: dict[Member, UnicastSender] = {}
        self._receivers: dict[Member, _Side] = {}
        self._loopback = _Side(LOOPBACK, "OPEN", 0, 0, 0, 0, 0, 0, -1)
        self._questions: dict[Member, tuple[int, int]] = {}  # nonce, epoch
        self._answers: list[
            tuple[str, int, int]
        ] = []  # (sender, its incarnation, nonce) of SyncOks
        self._blocked: list[Member] = []
        self._ticks = 0
        self._before_tick: dict[Member, tuple[_Side, int]] = {}
        self._tails: dict[Member, tuple[UnicastSender, int]] = {}

    # The application's side

    def sent(self, to: Member, payloads: Sequence[bytes]) -> None:
        """The node has accepted these."""
        stream = self._stream_to(to)
        if stream is None:
            return
        # What one says to oneself needs no datagrams.
        largest = max(map(len, payloads), default=0) or 1
        size = largest if to == self._node.me else self._node.codec.payload_bytes_max
        for payload in payloads:
            stream.assigned += max(1, -(-len(payload) // size))
            stream.messages[stream.assigned] = payload

    def blocked(self, to: Member, payload: bytes) -> None:
        """A send was cut short before this one: why, in the window's own figures."""
        stream = self._stream_to(to)
        if stream is None:
            return
        conn, window = self._sending(to)
        largest = self._node.codec.payload_bytes_max
        size = len(payload) if to == self._node.me else min(len(payload), largest)
        if stream.assigned > window.high:
            reason = "rest"  # of a large message, which goes first
            total = len(stream.messages[stream.assigned])
            is_last = stream.assigned - window.high == 1
            size = total % largest or largest if is_last else largest
        elif window.high - window.low >= window.capacity:
            reason = "messages"
        else:
            reason = "bytes"
        self._scribe.write_about(
            trace.UNICAST_BLOCK,
            to,
            epoch=conn.epoch,
            conn=conn.id,
            low=window.low,
            hr=window.high,
            cap=window.capacity,
            size=max(size, DATAGRAM_OVERHEAD),
            used=window.charged,
            limit=window.max_bytes,
            detail=reason,
        )
        if to not in self._blocked:
            self._blocked.append(to)

    def delivered(self, event: Delivered | FragmentsDelivered) -> None:
        if not isinstance(event, Delivered):
            self._write_delivery(event, event.first, event.last, "fragment")
            return
        run, sender, epoch = event.run, event.sender, event.epoch
        self._write_delivery(event, run.first, run.last, "")
        self._recorder.deliveries += len(run.payloads)
        sent = self._recorder.sent_to.get((sender, self._node.me, epoch), {})
        for seqno, payload in enumerate(run.payloads, run.first):
            if sent.get(seqno) != payload:
                self._recorder.find(
                    "G1",
                    f"{self._node.me} delivers {sender}:{seqno} of epoch {epoch} with other bytes "
                    f"than were sent under that seqno",
                )

    def _write_delivery(
        self, event: Delivered | FragmentsDelivered, first: int, last: int, kind: str
    ) -> None:
        side = self._receivers.get(event.sender)
        self._scribe.write_about(
            trace.UNICAST_DELIVER,
            event.sender,
            epoch=event.epoch,
            conn=FIRST_CONN_ID if side is None else side.conn.id,
            seqno=first,
            seqno2=last,
            view=event.view_id.counter,
            kind=kind,
        )

    def lost(self, event: Undeliverable | GapSkipped) -> None:
        """The node reports messages that were not, or may not have been, delivered."""
        if isinstance(event, Undeliverable):
            kind, peer, reason = trace.UNDELIVERABLE, event.to, event.reason
        else:
            kind, peer, reason = trace.GAP, event.sender, ""
        self._scribe.write_about(
            kind, peer, epoch=event.epoch, seqno=event.first, seqno2=event.last, detail=reason
        )

    # The network's side

    def heard(self, packets: Sequence[Packet]) -> None:
        """These are being handed over: which sync requests may they answer?"""
        self._answers = [
            (packet.sender, packet.incarnation, frame.first)
            for packet in packets
            if not packet.is_corrupted
            for frame in packet.frames
            if frame.kind == "sync_ok"
        ]

    def look_at(self, frame: Frame, peer: Member | None) -> Seen:
        """What leaves for this peer."""
        if isinstance(frame, UNICAST_FRAMES) and frame.conn.epoch >= SYSTEM_EPOCH:
            return Seen("system", -1)  # between layers; no application knows of it
        match frame:
            case UnicastData():
                assert peer is not None
                return self._look_at_data(frame, peer)
            case UnicastAck(conn, delivered):
                return _seen("uack", conn, delivered=delivered)
            case UnicastNack(conn, missing):
                return _seen("unack", conn, missing[0].start, missing[-1].stop - 1)
            case Close(conn):
                return _seen("close", conn)
            case Sync(conn, nonce):
                return _seen("sync", conn, nonce, nonce)
            case SyncOk(conn, nonce, low, high):
                return _seen("sync_ok", conn, nonce, nonce, low=low, high=high)
            case SyncAck(conn, nonce):
                return _seen("sync_ack", conn, nonce, nonce)
        return Seen(type(frame).__name__.lower(), -1)

    def _look_at_data(self, data: UnicastData, peer: Member) -> Seen:
        stream = self._stream(peer, data.conn.epoch)
        for seqno, payload in enumerate(data.payloads, data.first):
            original = stream.first_bytes.setdefault(seqno, (payload, data.more))
            if original != (payload, data.more):
                self._recorder.find(
                    "S4", f"{self._node.me} sends {peer}:{seqno} again with other bytes"
                )
        size = sum(map(len, data.payloads))
        again = int(data.first <= stream.highest)
        stream.highest = max(stream.highest, data.last)
        return _seen("udata", data.conn, data.first, data.last, size=size, again=again)

    # Ticks

    def before_timeout(self) -> None:
        """What a tick would find."""
        self._ticks = self._node.unicast.ticks
        again = self._pending_messages()
        self._before_tick = {
            peer: (_sender_side(entry), again.get(peer, 0))
            for peer, entry in self._node.unicast.senders.items()
        }
        self._tails = {
            peer: (entry, entry.tail_retransmitted)
            for peer, entry in self._node.unicast.senders.items()
        }

    def after_timeout(self) -> None:
        tails = {
            peer: entry.tail_retransmitted - before for peer, (entry, before) in self._tails.items()
        }
        self._tails = {}
        for peer, count in tails.items():
            if count:
                self._write_retransmitted(trace.TAIL, peer, self._before_tick[peer][0], count)
        if self._node.unicast.ticks == self._ticks:
            return
        self._ticks = self._node.unicast.ticks
        again = self._pending_messages()
        for peer, (side, pending) in self._before_tick.items():
            by_tick = again.get(peer, 0) - pending - tails.get(peer, 0)
            self._write_retransmitted(trace.TICK, peer, side, by_tick)

    def _write_retransmitted(self, event: str, peer: Member, side: _Side, again: int) -> None:
        self._scribe.write_about(
            event,
            peer,
            epoch=side.conn.epoch,
            conn=side.conn.id,
            low=side.low,
            hr=side.high,
            again=again,
        )

    def _pending_messages(self) -> dict[object, int]:
        counts: dict[object, int] = {}
        for dest, frame in self._node.pending():
            if isinstance(frame, UnicastData) and frame.conn.epoch < SYSTEM_EPOCH:
                counts[dest] = counts.get(dest, 0) + frame.count
        return counts

    # Entries and windows

    def observe(self) -> None:
        """Turn what changed in the node's entries into rows."""
        unicast = self._node.unicast
        self._observe_sync_requests()
        self._observe_last_acks(unicast.senders)
        self._observe_gone("S", self._senders, unicast.senders)
        self._entries = dict(unicast.senders)
        for peer, sender in unicast.senders.items():
            self._observe_sender(peer, _sender_side(sender), sender.window)
        self._observe_gone("R", self._receivers, unicast.receivers)
        for peer, receiver in unicast.receivers.items():
            self._observe_side("R", peer, self._receivers, _receiver_side(receiver))
        self._observe_loopback(unicast.loopback)
        for peer in [peer for peer in self._blocked if not unicast.is_blocked(peer)]:
            self._blocked.remove(peer)
            if peer == self._node.me or peer in unicast.senders:
                conn, _ = self._sending(peer)
                self._scribe.write_about(
                    trace.UNICAST_UNBLOCK, peer, epoch=conn.epoch, conn=conn.id
                )

    def _observe_sync_requests(self) -> None:
        sync_requests = {
            peer: (sync_request.nonce, sync_request.conn.epoch)
            for peer, sync_request in self._node.unicast.sync_requests.items()
        }
        if sync_requests == self._questions:
            return
        before, self._questions = self._questions, sync_requests
        for peer, (nonce, epoch) in before.items():
            if sync_requests.get(peer, (0, 0))[0] != nonce:
                is_answered = (str(peer), peer.incarnation, nonce) in self._answers
                self._write_sync(peer, nonce, epoch, "answered" if is_answered else "given up")
        for peer, (nonce, epoch) in sync_requests.items():
            if before.get(peer, (0, 0))[0] != nonce:
                self._write_sync(peer, nonce, epoch, "asked")

    def _write_sync(self, peer: Member, nonce: int, epoch: int, detail: str) -> None:
        self._scribe.write_about(trace.SYNC, peer, epoch=epoch, seqno=nonce, detail=detail)

    def _observe_last_acks(self, entries: Mapping[Member, UnicastSender]) -> None:
        """An entry may end with the very ack that it waited for."""
        for peer, entry in self._entries.items():
            side, last = self._senders.get(peer), _sender_side(entry)
            if side is not None and entries.get(peer) is not entry and last.low > side.low:
                self._senders[peer] = last._replace(state=side.state)
                self._write_window("S", peer, last)

    def _observe_gone(
        self, kind: str, sides: dict[Member, _Side], entries: Mapping[Member, object]
    ) -> None:
        if len(sides) == len(entries) and sides.keys() == entries.keys():
            return
        for peer in [peer for peer in sides if peer not in entries]:
            side = sides.pop(peer)
            self._write_conn(kind, peer, side, f"{side.state}>{NO_STATE}", len(entries))

    def _observe_sender(self, peer: Member, side: _Side, window: SendWindow) -> None:
        before = self._senders.get(peer)
        if side == before:
            return
        is_same = before is not None and before.conn.epoch == side.conn.epoch
        sent = before.high if before is not None and is_same else 0
        low = before.low if before is not None and is_same else 0
        first_bytes = self._stream(peer, side.conn.epoch).first_bytes
        for seqno in range(low + 1, side.low + 1):
            first_bytes.pop(seqno, None)
        self._observe_side("S", peer, self._senders, side, sent, window)

    def _observe_side(
        self,
        kind: str,
        peer: Member,
        sides: dict[Member, _Side],
        side: _Side,
        sent: int = 0,
        window: SendWindow | None = None,
    ) -> None:
        before = sides.get(peer)
        if side == before:
            return
        size = len(self._node.unicast.senders if kind == "S" else self._node.unicast.receivers)
        old = NO_STATE
        if before is not None and before.conn.epoch == side.conn.epoch:
            old = before.state
        elif before is not None:
            self._write_conn(kind, peer, before, f"{before.state}>{NO_STATE}", size)
        sides[peer] = side
        if old != side.state or (before is not None and before.conn != side.conn):
            self._write_conn(kind, peer, side, f"{old}>{side.state}", size)
        if window is not None and side.high > sent:
            self._write_send(peer, side.conn, sent, window)
        self._write_window(kind, peer, side)

    def _write_conn(self, kind: str, peer: Member, side: _Side, detail: str, size: int) -> None:
        self._scribe.write_about(
            trace.CONN,
            peer,
            kind=kind,
            epoch=side.conn.epoch,
            conn=side.conn.id,
            low=side.low,
            hd=side.delivered,
            received=side.received,
            hr=side.high,
            size=size,
            detail=detail,
        )

    def _write_window(self, kind: str, peer: Member, side: _Side) -> None:
        self._scribe.write_about(
            trace.UNICAST_WIN,
            peer,
            kind=kind,
            epoch=side.conn.epoch,
            conn=side.conn.id,
            low=side.low,
            hd=side.delivered,
            received=side.received,
            hr=side.high,
            cap=side.capacity,
            size=side.size,
            limit=side.limit,
        )

    def _write_send(self, peer: Member, conn: Conn, sent: int, window: SendWindow) -> None:
        self._recorder.last_send = self._recorder.now
        self._scribe.write_about(
            trace.UNICAST_SEND,
            peer,
            epoch=conn.epoch,
            conn=conn.id,
            seqno=sent + 1,
            seqno2=window.high,
            low=window.low,
            hr=sent,
            cap=window.capacity,
            used=window.charged,
            size=sum(map(len, window.read_run(range(sent + 1, window.high + 1)))),
        )

    def _observe_loopback(self, window: SendWindow) -> None:
        side = _send_side(LOOPBACK, "OPEN", window)
        before = self._loopback
        if side.high == before.high and side.low == before.low:
            return
        self._loopback = side
        if side.high > before.high:
            self._write_send(self._node.me, LOOPBACK, before.high, window)
        self._write_window("S", self._node.me, side)

    # Streams

    def _sending(self, to: Member) -> tuple[Conn, SendWindow]:
        unicast = self._node.unicast
        if to == self._node.me:
            return LOOPBACK, unicast.loopback
        return unicast.senders[to].conn, unicast.senders[to].window

    def _stream_to(self, to: Member) -> _Stream | None:
        """The stream that is sent to this peer now; None if there is none."""
        if to != self._node.me and to not in self._node.unicast.senders:
            return None
        return self._stream(to, self._sending(to)[0].epoch)

    def _stream(self, to: Member, epoch: int) -> _Stream:
        stream = self._streams.get((to, epoch))
        if stream is None:
            messages = self._recorder.sent_to.setdefault((self._node.me, to, epoch), {})
            stream = self._streams[to, epoch] = _Stream(messages)
        return stream


def _sender_side(entry: UnicastSender) -> _Side:
    return _send_side(entry.conn, entry.state.name, entry.window)


def _send_side(conn: Conn, state: str, window: SendWindow) -> _Side:
    return _Side(
        conn,
        state,
        window.low,
        window.delivered,
        window.high,
        window.high,
        window.capacity,
        window.charged,
        -1,
    )


def _receiver_side(entry: UnicastReceiver) -> _Side:
    window = entry.window
    return _Side(
        entry.conn,
        entry.state.name,
        window.low,
        window.delivered,
        window.received,
        window.high,
        window.capacity,
        window.ahead_bytes,
        window.max_bytes,
    )


def _seen(
    kind: str,
    conn: Conn,
    first: int = 0,
    last: int = 0,
    *,
    delivered: int = -1,
    low: int = -1,
    high: int = -1,
    size: int = 0,
    again: int = 0,
) -> Seen:
    """A frame about one connection."""
    return Seen(
        kind,
        -1,
        first,
        last,
        delivered=delivered,
        size=size,
        again=again,
        epoch=conn.epoch,
        conn=conn.id,
        low=low,
        high=high,
    )
