"""Unicast: connections on both sides, their windows, ticks and syncs.

In a simulated run what is delivered is compared with what was sent. A recorded member knows no more
than what its node shows: a tick is told from what was seen before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.events import Delivered, FragmentsDelivered, GapSkipped, Undeliverable
from ringcast.model import FIRST_CONN_ID, SYSTEM_EPOCH, Conn, Member
from ringcast.protocols.unicast_receiving import LOOPBACK_EPOCH
from ringcast.trace import rows as trace
from ringcast.trace.observe.messages import compare, range_of
from ringcast.trace.rows import about
from ringcast.window.send import DATAGRAM_OVERHEAD, SendWindow
from ringcast.wire.frames import SyncOk, UnicastData

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ringcast.node import Node
    from ringcast.protocols.unicast import ReliableUnicast
    from ringcast.protocols.unicast_receiver import UnicastReceiver
    from ringcast.protocols.unicast_sender import UnicastSender
    from ringcast.trace.observe.frames import Seen
    from ringcast.trace.observe.sink import Contents, Sink
    from ringcast.window.receive import ReceiveWindow

STREAMS_SPARE = 64
"""So many streams that have ended are known of a recorded member: frames may wait to leave."""
LOOPBACK = Conn(LOOPBACK_EPOCH, FIRST_CONN_ID)
NO_STATE = "NONE"


class _Side(NamedTuple):
    """One side of a connection as it was last seen: its state, and columns of rows."""

    state: str
    epoch: int
    conn: int
    low: int
    hd: int
    received: int
    hr: int
    cap: int
    size: int
    limit: int

    @classmethod
    def of(cls, conn: Conn, state: str, window: SendWindow | ReceiveWindow) -> _Side:
        if isinstance(window, SendWindow):
            received, size, limit = window.high, window.charged, -1
        else:
            received, size, limit = window.received, window.ahead_bytes, window.max_bytes
        marks = (window.low, window.delivered, received, window.high, window.capacity)
        return cls(state, *_key(conn), *marks, size, limit)

    @classmethod
    def of_entry(cls, entry: UnicastSender | UnicastReceiver) -> _Side:
        return cls.of(entry.conn, entry.state.name, entry.window)

    def columns(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("epoch", "conn", "low", "hr", *names)}


class _Table:
    """The entries of one kind, "S"enders or "R"eceivers, as they were last seen."""

    def __init__(self, kind: str, sink: Sink) -> None:
        self.sides: dict[Member, _Side] = {}
        self._kind = kind
        self._sink = sink
        self._size = 0

    def look_for_gone(self, entries: Mapping[Member, object], now: int) -> None:
        self._size = len(entries)
        for peer in [peer for peer in self.sides if peer not in entries]:
            self._write_end(peer, self.sides.pop(peer), now)

    def change(self, peer: Member, side: _Side, now: int) -> None:
        before, self.sides[peer] = self.sides.get(peer), side
        old = NO_STATE
        if before is not None and before.epoch == side.epoch:
            old = before.state
        elif before is not None:
            self._write_end(peer, before, now)
        if old != side.state or (before is not None and _key(before) != _key(side)):
            self._write_conn(peer, side, f"{old}>{side.state}", now)

    def write_window(self, peer: Member, side: _Side, now: int) -> None:
        columns = side.columns("hd", "received", "cap", "size", "limit")
        self._sink.write(trace.UNICAST_WIN, now, **about(peer), kind=self._kind, **columns)

    def _write_end(self, peer: Member, side: _Side, now: int) -> None:
        self._write_conn(peer, side, f"{side.state}>{NO_STATE}", now)

    def _write_conn(self, peer: Member, side: _Side, detail: str, now: int) -> None:
        columns = side.columns("hd", "received") | {"size": self._size, "detail": detail}
        self._sink.write(trace.CONN, now, **about(peer), kind=self._kind, **columns)


@dataclass(slots=True)
class _Stream:
    """What was sent to one peer in one epoch."""

    messages: dict[int, bytes] | None
    """In a simulated run, by the seqno of their last fragment."""
    assigned: int = 0
    """The seqno of the last fragment of the last accepted message."""
    highest: int = 0
    """On the wire."""
    first_bytes: dict[int, tuple[bytes, tuple[bool, bool]]] = field(default_factory=dict)
    """As they left for the first time."""


class Connections:
    """Turns what unicast does at one node into rows."""

    def __init__(
        self,
        node: Node,
        sink: Sink,
        contents: Contents | None,
        unicast: ReliableUnicast | None = None,
    ) -> None:
        """`contents`: of a simulated run. `unicast`: the system's own, if it is about that."""
        self._node = node
        self._unicast = unicast or node.unicast
        self._is_system = unicast is not None
        self._taken: dict[Member, tuple[int, int]] = {}
        """Of the system: an epoch, and up to where it was taken. Nobody is told of each message."""
        self._answer_lows: dict[Member, int] = {}
        self._sink = sink
        self._contents = contents
        self._streams: dict[tuple[Member, int], _Stream] = {}
        self._senders = _Table("S", sink)
        self._receivers = _Table("R", sink)
        self._entries: dict[Member, UnicastSender] = {}
        self._loopback = _Side.of(LOOPBACK, "OPEN", self._unicast.loopback)
        self._questions: dict[Member, tuple[int, int]] = {}  # nonce, epoch
        self._answers: list[tuple[str, int, int]] = []  # (sender, its incarnation, nonce)
        self._blocked: list[Member] = []
        self._ticks = 0
        self._before_tick: dict[Member, tuple[_Side, int]] = {}
        self._tails: dict[Member, tuple[UnicastSender, int]] = {}
        self._retransmitted: dict[Member, tuple[UnicastSender, int, int]] = {}
        """How many messages, and how many by the tail timer, when a recorded member was last looked
        at."""

    # The application's side

    def offered(self, to: Member, payloads: Sequence[bytes]) -> None:
        """The node has accepted these."""
        stream = self._stream_to(to)
        if stream is None or stream.messages is None:
            return
        # What one says to oneself needs no datagrams.
        largest = max(map(len, payloads), default=0) or 1
        size = largest if to == self._node.me else self._node.codec.payload_bytes_max
        for payload in payloads:
            stream.assigned += max(1, -(-len(payload) // size))
            stream.messages[stream.assigned] = payload

    def blocked(self, to: Member, payload: bytes, now: int) -> None:
        """A send was cut short before this one: why, in the window's own figures."""
        stream = self._stream_to(to)
        if stream is None:
            return
        conn, window = self._sending(to)
        largest = self._node.codec.payload_bytes_max
        size = len(payload) if to == self._node.me else min(len(payload), largest)
        rest = [] if to == self._node.me else self._unicast.senders[to].fragments.rest
        if rest:
            reason, size = "rest", len(rest[0])  # of a large message, which goes first
        else:
            is_full = window.high - window.low >= window.capacity
            reason = "messages" if is_full else "bytes"
        columns = _Side.of(conn, "", window).columns("cap")
        columns |= {"size": max(size, DATAGRAM_OVERHEAD), "detail": reason}
        columns |= {"used": window.charged, "limit": window.max_bytes}
        self._sink.write(trace.UNICAST_BLOCK, now, **about(to), **columns)
        if to not in self._blocked:
            self._blocked.append(to)

    def delivered(self, event: Delivered | FragmentsDelivered, now: int) -> None:
        side = self._receivers.sides.get(event.sender)
        conn = {"epoch": event.epoch, "conn": FIRST_CONN_ID if side is None else side.conn}
        self._sink.write(
            trace.UNICAST_DELIVER, now, **about(event.sender), **conn, **range_of(event)
        )
        if isinstance(event, Delivered) and self._contents is not None:
            sent = self._contents.sent_to.get((event.sender, self._node.me, event.epoch), {})
            compare(self._node.me, event, sent, self._contents)

    def lost(self, event: Undeliverable | GapSkipped, now: int) -> None:
        """The node reports messages that were not, or may not have been, delivered."""
        if isinstance(event, Undeliverable):
            kind, peer, reason = trace.UNDELIVERABLE, event.to, event.reason
        else:
            kind, peer, reason = trace.GAP, event.sender, ""
        place = {"epoch": event.epoch, "seqno": event.first, "seqno2": event.last}
        self._sink.write(kind, now, **about(peer), **place, detail=reason)

    # The network's side

    def answered(self, ok: SyncOk, source: Member) -> None:
        """A recorded member is about to take this."""
        self._answers.append((str(source), source.incarnation, ok.nonce))
        self._answer_lows[source] = ok.low

    def heard(self, name: str, incarnation: int, frames: Iterable[Seen]) -> None:
        """These are being handed over: which sync requests may they answer?"""
        oks = [frame.seqno for frame in frames if frame.kind == "sync_ok"]
        self._answers += [(name, incarnation, nonce) for nonce in oks]

    def is_again(self, data: UnicastData, peer: Member, now: int) -> bool:
        """Whether these have left for this peer before."""
        stream = self._stream(peer, data.conn.epoch)
        flags = data.more, data.headed
        for seqno, payload in enumerate(data.payloads, data.first):
            original = stream.first_bytes.setdefault(seqno, (payload, flags))
            if original == (payload, flags):
                continue
            if self._contents is not None:
                text = f"{self._node.me} sends {peer}:{seqno} again with other bytes"
                self._contents.find("S4", text)
                continue
            place = {"kind": "udata", "seqno": seqno, "seqno2": seqno, "epoch": data.conn.epoch}
            self._sink.write(trace.XMIT_MISMATCH, now, **about(peer), **place)
        is_again = data.first <= stream.highest
        stream.highest = max(stream.highest, data.last)
        return is_again

    # Ticks

    def before_timeout(self) -> None:
        """What a tick would find."""
        self._ticks = self._unicast.ticks
        again, senders = self._pending_messages(), self._unicast.senders
        self._before_tick = {
            peer: (_Side.of_entry(entry), again.get(peer, 0)) for peer, entry in senders.items()
        }
        self._tails = {peer: (entry, entry.tail_retransmitted) for peer, entry in senders.items()}

    def after_timeout(self, now: int) -> None:
        tails = {
            peer: entry.tail_retransmitted - before for peer, (entry, before) in self._tails.items()
        }
        self._tails = {}
        for peer, count in tails.items():
            if count:
                self._write_retransmitted(trace.TAIL, peer, count, now)
        if self._unicast.ticks == self._ticks:
            return
        self._ticks = self._unicast.ticks
        again = self._pending_messages()
        for peer, (_, pending) in self._before_tick.items():
            by_tick = again.get(peer, 0) - pending - tails.get(peer, 0)
            self._write_retransmitted(trace.TICK, peer, by_tick, now)

    def look_at_timers(self, now: int) -> None:
        """Of a recorded member: what its timers did, told by what they found."""
        ticked, self._ticks = self._unicast.ticks != self._ticks, self._unicast.ticks
        for peer, (entry, before, tails_before) in self._retransmitted.items():
            side = self._senders.sides.get(peer)
            tails = entry.tail_retransmitted - tails_before
            if side is None or not (ticked or tails):
                continue
            self._before_tick[peer] = side, 0
            if tails:
                self._write_retransmitted(trace.TAIL, peer, tails, now)
            if ticked:
                by_tick = entry.stream.retransmitted - before - tails
                self._write_retransmitted(trace.TICK, peer, by_tick, now)

    def note_timers(self) -> None:
        """What they begin with next time."""
        self._retransmitted = {
            peer: (entry, entry.stream.retransmitted, entry.tail_retransmitted)
            for peer, entry in self._unicast.senders.items()
        }

    def _write_retransmitted(self, event: str, peer: Member, again: int, now: int) -> None:
        side, _ = self._before_tick[peer]
        self._sink.write(event, now, **about(peer), **side.columns(), again=again)

    def _pending_messages(self) -> dict[object, int]:
        counts: dict[object, int] = {}
        for dest, frame in self._node.pending():
            if isinstance(frame, UnicastData) and frame.conn.epoch < SYSTEM_EPOCH:
                counts[dest] = counts.get(dest, 0) + frame.count
        return counts

    # Entries and windows

    def look(self, now: int) -> None:
        """Turn what changed in the node's entries into rows."""
        unicast = self._unicast
        self._look_at_questions(now)
        self._look_at_last_acks(now)
        self._senders.look_for_gone(unicast.senders, now)
        if self._contents is None and len(self._streams) > 2 * len(unicast.senders) + STREAMS_SPARE:
            self._forget_streams()
        self._entries = dict(unicast.senders)
        for peer, sender in unicast.senders.items():
            self._look_at_sender(peer, _Side.of_entry(sender), sender.window, now)
        self._receivers.look_for_gone(unicast.receivers, now)
        for peer, receiver in unicast.receivers.items():
            side = _Side.of_entry(receiver)
            if side != self._receivers.sides.get(peer):
                before = self._taken_before(peer, side) if self._is_system else side.hd
                self._receivers.change(peer, side._replace(hd=before), now)
                if before < side.hd:
                    self._write_taken(peer, side, before, now)
                self._receivers.write_window(peer, side, now)
                self._receivers.sides[peer] = side
        if not self._is_system:
            self._look_at_loopback(now)
        for peer in [peer for peer in self._blocked if not unicast.is_blocked(peer)]:
            self._blocked.remove(peer)
            if peer == self._node.me or peer in unicast.senders:
                epoch, conn = _key(self._sending(peer)[0])
                self._sink.write(trace.UNICAST_UNBLOCK, now, **about(peer), epoch=epoch, conn=conn)

    def _taken_before(self, peer: Member, side: _Side) -> int:
        """Up to where the system had taken this stream: it takes what comes at once."""
        epoch, taken = self._taken.get(peer, (0, 0))
        known = self._receivers.sides.get(peer)
        is_same = known is not None and (known.epoch, known.conn) == (side.epoch, side.conn)
        taken = taken if epoch == side.epoch else 0
        if not is_same and side.conn != FIRST_CONN_ID:
            taken = max(taken, self._answer_lows.pop(peer, 0))
        self._taken[peer] = side.epoch, side.hd
        return min(taken, side.hd)

    def _write_taken(self, peer: Member, side: _Side, before: int, now: int) -> None:
        place = {"epoch": side.epoch, "conn": side.conn, "seqno": before + 1, "seqno2": side.hd}
        self._sink.write(trace.UNICAST_DELIVER, now, **about(peer), **place)

    def input_ended(self) -> None:
        self._answers = []

    def _look_at_questions(self, now: int) -> None:
        sync_requests = {
            peer: (sync_request.nonce, sync_request.conn.epoch)
            for peer, sync_request in self._unicast.sync_requests.items()
        }
        if sync_requests == self._questions:
            return
        before, self._questions = self._questions, sync_requests
        for peer, (nonce, epoch) in before.items():
            if sync_requests.get(peer, (0, 0))[0] != nonce:
                is_answered = (str(peer), peer.incarnation, nonce) in self._answers
                self._write_sync(peer, nonce, epoch, "answered" if is_answered else "given up", now)
        for peer, (nonce, epoch) in sync_requests.items():
            if before.get(peer, (0, 0))[0] != nonce:
                self._write_sync(peer, nonce, epoch, "asked", now)

    def _write_sync(self, peer: Member, nonce: int, epoch: int, detail: str, now: int) -> None:
        self._sink.write(trace.SYNC, now, **about(peer), epoch=epoch, seqno=nonce, detail=detail)

    def _look_at_last_acks(self, now: int) -> None:
        """An entry may end with the very ack that it waited for."""
        sides = self._senders.sides
        for peer, entry in self._entries.items():
            side, last = sides.get(peer), _Side.of_entry(entry)
            is_gone = self._unicast.senders.get(peer) is not entry
            if side is not None and is_gone and last.low > side.low:
                sides[peer] = last._replace(state=side.state)
                self._senders.write_window(peer, last, now)

    def _look_at_sender(self, peer: Member, side: _Side, window: SendWindow, now: int) -> None:
        before = self._senders.sides.get(peer)
        if side == before:
            return
        is_same = before is not None and before.epoch == side.epoch
        low, sent = (before.low, before.hr) if before is not None and is_same else (0, 0)
        first_bytes = self._stream(peer, side.epoch).first_bytes
        for seqno in range(low + 1, side.low + 1):
            first_bytes.pop(seqno, None)
        self._senders.change(peer, side, now)
        if side.hr > sent:
            self._write_send(peer, side, sent, window, now)
        self._senders.write_window(peer, side, now)

    def _write_send(
        self, peer: Member, side: _Side, sent: int, window: SendWindow, now: int
    ) -> None:
        if self._contents is not None:
            self._contents.last_send = self._contents.now
        columns = side.columns("cap") | {"hr": sent, "seqno": sent + 1, "seqno2": window.high}
        size = sum(map(len, window.read_run(range(sent + 1, window.high + 1))))
        columns |= {"used": window.charged, "size": size}
        self._sink.write(trace.UNICAST_SEND, now, **about(peer), **columns)

    def _look_at_loopback(self, now: int) -> None:
        window, me = self._unicast.loopback, self._node.me
        side, before = _Side.of(LOOPBACK, "OPEN", window), self._loopback
        if side.hr == before.hr and side.low == before.low:
            return
        self._loopback = side
        if side.hr > before.hr:
            self._write_send(me, side, before.hr, window, now)
        self._senders.write_window(me, side, now)

    # Streams

    def _sending(self, to: Member) -> tuple[Conn, SendWindow]:
        if to == self._node.me:
            return LOOPBACK, self._unicast.loopback
        entry = self._unicast.senders[to]
        return entry.conn, entry.window

    def _stream_to(self, to: Member) -> _Stream | None:
        """The stream that is sent to this peer now; None if there is none."""
        if to != self._node.me and to not in self._unicast.senders:
            return None
        return self._stream(to, self._sending(to)[0].epoch)

    def _forget_streams(self) -> None:
        current = {(to, entry.conn.epoch) for to, entry in self._unicast.senders.items()}
        current.add((self._node.me, LOOPBACK_EPOCH))
        kept = {key: stream for key, stream in self._streams.items() if key in current}
        recent = list(self._streams)[-STREAMS_SPARE // 2 :]
        self._streams = {key: self._streams[key] for key in dict.fromkeys([*kept, *recent])}

    def _stream(self, to: Member, epoch: int) -> _Stream:
        stream = self._streams.get((to, epoch))
        if stream is None:
            messages = None
            if self._contents is not None:
                messages = self._contents.sent_to.setdefault((self._node.me, to, epoch), {})
            stream = self._streams[to, epoch] = _Stream(messages)
        return stream


def _key(of: Conn | _Side) -> tuple[int, int]:
    return (of.epoch, of.id) if isinstance(of, Conn) else (of.epoch, of.conn)
