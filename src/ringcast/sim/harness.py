"""Harness: drives one Node and writes down what it does. The node does not know.

Every input goes through here, every output comes out here. After each of them the node's windows
are read and their changes become rows, and the node's own invariants are checked. What a node
delivers is compared byte for byte with what was sent under that seqno (G1), what it sends again
with what it sent before (N10). Whatever it raises, beyond the errors of its API, ends the run (G7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ringcast.errors import DecodeError, GroupClosed, Reject, RingcastError
from ringcast.events import Closed, Delivered, FragmentsTaken
from ringcast.model import Origin, Stream
from ringcast.sim.network import Packet, Seen
from ringcast.sim.recorder import BLOCK_MESSAGES
from ringcast.trace import rows as trace
from ringcast.trace.content import BlockHasher
from ringcast.trace.rows import Row, member_key
from ringcast.window.windows import DATAGRAM_OVERHEAD, SendWindow
from ringcast.wire.frames import Ack, Data, Highest, Nack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ringcast.events import Event
    from ringcast.model import Address, Digest, Member, View
    from ringcast.node import Node
    from ringcast.sim.recorder import Recorder
    from ringcast.trace.content import Block
    from ringcast.window.windows import ReceiveWindow
    from ringcast.wire.codec import Codec
    from ringcast.wire.frames import Frame

P = ParamSpec("P")
T = TypeVar("T")


class NodeFailure(Exception):
    """A node raised what it must not, or broke an invariant (G7). The run ends here."""


class Harness:
    """One member, watched."""

    def __init__(self, node: Node, slot: int, recorder: Recorder, wiretap: Codec) -> None:
        self.node = node
        self.me = node.me
        self.slot = slot
        self.is_closed = False
        self._recorder = recorder
        self._wiretap = wiretap
        self._name = str(node.me)
        self._inc = node.me.incarnation
        self._idx = 0
        self._view: View | None = None
        self._states: dict[Origin, tuple[int, ...]] = {}
        self._hashes: dict[Origin, BlockHasher] = {}
        self._ackers = 0
        self._was_blocked = False
        self._peers: dict[Address, Member] = {}
        self._mine = Origin(node.me, Stream.FIFO)
        self._sent = recorder.sent.setdefault(self._mine, {})
        self._assigned = 0  # the seqno of the last fragment of the last accepted message
        self._hash_sent = BlockHasher(0, BLOCK_MESSAGES)
        self._highest_sent = 0  # on the wire
        self._first_bytes: dict[int, tuple[bytes, bool]] = {}  # as they left for the first time
        self._has_last_word = False
        self._write(trace.START)

    # Inputs

    def receive(self, packets: Sequence[Packet], now: int) -> None:
        for packet in packets:
            if not packet.is_corrupted:
                self._write_frames(trace.RX, packet.sender, packet.incarnation, packet.frames)
        rejected = dict(self.node.rejected)
        self._call(self.node.receive_datagrams, [packet.data for packet in packets], now)
        spoiled = sum(packet.is_corrupted for packet in packets)
        refused = 0
        for reason, count in self.node.rejected.items():
            for _ in range(count - rejected.get(reason, 0)):
                # Late packets for a predecessor at this address are refused too, and rightly.
                refused += reason != Reject.ADDRESSEE.value
                self._write(trace.REJECT, detail=reason)
        if refused != spoiled:
            self._recorder.find(
                "G1", f"{self._name} got {spoiled} corrupted datagrams and refused {refused}"
            )
        self._observe()

    def send(self, payloads: Sequence[bytes], now: int) -> int:
        """How many were accepted; 0 also where the node is closed or not in a view yet."""
        try:
            accepted = self._call(self.node.send, payloads, now)
        except GroupClosed:
            self._write(trace.SEND_FAIL, stream=0, detail="closed")
            return 0
        size = self.node.codec.payload_bytes_max
        for payload in payloads[:accepted]:
            self._assigned += max(1, -(-len(payload) // size))
            self._sent[self._assigned] = payload
        self._observe()
        if accepted < len(payloads):
            self._write_block(payloads[accepted])
        return accepted

    def install_view(self, view: View, now: int) -> None:
        self._write(
            trace.VIEW_INPUT,
            view=view.counter,
            view_creator=member_key(view.id.creator),
            members=tuple(map(member_key, view.members)),
        )
        self._call(self.node.install_view, view, now)
        self._observe()

    def install_digest(self, digest: Digest, now: int) -> None:
        self._call(self.node.install_digest, digest, now)
        self._observe()

    def handle_timeout(self, now: int) -> None:
        self._call(self.node.handle_timeout, now)
        self._observe()

    def close(self, now: int) -> None:
        self._call(self.node.close, now)
        self._observe()

    def check_invariants(self) -> None:
        """To be called after every input."""
        try:
            self.node.check_invariants()
        except AssertionError as error:
            raise NodeFailure(
                f"{self._name}: an invariant is broken: {_place_of(error)}"
            ) from error

    def note(self, event: str) -> None:
        """The member crashes, pauses or resumes."""
        self._write(event)

    # Outputs

    def take(self, limit: int, now: int) -> list[Event]:
        """What happened, and up to `limit` messages."""
        events = self._call(self.node.take_events, limit, now)
        has_messages = False
        for event in events:
            match event:
                case Delivered(sender, run, view_id):
                    has_messages = True
                    self._write_delivery(sender, run.first, run.payloads, view_id.counter)
                case FragmentsTaken(sender, stream, first, last, view_id):
                    has_messages = True
                    self._write(
                        trace.DELIVER,
                        peer=str(sender),
                        peer_inc=sender.incarnation,
                        stream=int(stream),
                        seqno=first,
                        seqno2=last,
                        view=view_id.counter,
                        kind="fragment",
                    )
                case Closed():
                    self.is_closed = True
                    self._has_last_word = True
        if has_messages:
            self._observe()
        return events

    def take_packets(self) -> list[tuple[Address | None, Packet]]:
        """What the node sends, as packets that tell what is in them."""
        found: list[tuple[Address | None, Packet]] = []
        last_new: Packet | None = None
        for dest, datagram in self._call(self.node.take_datagrams):
            try:
                _, frames = self._wiretap.unpack(datagram, overhear=True)
            except DecodeError as error:
                raise NodeFailure(f"{self._name} sends what cannot be decoded: {error}") from error
            seen = [self._look_at(frame) for frame in frames]
            kinds = tuple(dict.fromkeys(frame.kind for frame in seen))
            packet = Packet(self.slot, self._name, self._inc, datagram, seen, kinds)
            if any(frame.kind == "data" and not frame.again for frame in seen):
                last_new = packet
            peer = None if dest is None else self._peers.get(dest)
            if peer is None:
                self._write_frames(trace.TX, "", 0, seen)
            else:
                self._write_frames(trace.TX, str(peer), peer.incarnation, seen)
            found.append((dest, packet))
        if last_new is not None:
            last_new.is_last_data = True
        if self._has_last_word:  # acks of what was taken may go with it
            self._has_last_word = False
            self._write(trace.STOP)
        return found

    def packet_fault(self, event: str, fault: str, packet: Packet, peer: str) -> None:
        """The network lost, copied or spoiled a packet of this member."""
        for frame in packet.frames:
            self._write(
                event,
                peer=peer,
                kind=frame.kind,
                stream=frame.stream,
                seqno=frame.first,
                seqno2=frame.last,
                hd=frame.delivered,
                held=frame.held,
                size=frame.size,
                detail=fault,
            )

    # Watching

    def _call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except RingcastError:
            raise
        except Exception as error:
            raise NodeFailure(f"{self._name}: {method.__name__} raised {error!r}") from error

    def _write(self, event: str, **columns: Any) -> None:
        rows = self._recorder.rows
        now = self._recorder.now
        rows.append(Row(event, self._name, self._inc, self._idx, len(rows), now, **columns))
        self._idx += 1

    def _write_frames(self, event: str, peer: str, peer_inc: int, frames: list[Seen]) -> None:
        for kind, stream, first, last, held, delivered, size, again in frames:
            self._write(
                event,
                peer=peer,
                peer_inc=peer_inc,
                stream=stream,
                seqno=first,
                seqno2=last,
                hd=delivered,
                held=held,
                size=size,
                kind=kind,
                again=again,
            )

    def _write_delivery(self, sender: Member, first: int, payloads: list[bytes], view: int) -> None:
        last = first + len(payloads) - 1
        self._recorder.deliveries += len(payloads)
        self._write(
            trace.DELIVER,
            peer=str(sender),
            peer_inc=sender.incarnation,
            stream=0,
            seqno=first,
            seqno2=last,
            view=view,
        )
        origin = Origin(sender, Stream.FIFO)
        sent = self._recorder.sent.get(origin, {})
        for seqno, payload in enumerate(payloads, first):
            if sent.get(seqno) != payload:
                self._recorder.find(
                    "G1",
                    f"{self._name} delivers {sender}:{seqno} with other bytes than were sent "
                    f"under that seqno",
                )
        hashes = self._hashes.get(origin)
        if hashes is not None:
            blocks = [*hashes.skip_to(first), *hashes.add_run(first, payloads)]
            self._write_blocks(sender, "delivered", blocks)

    def _write_blocks(self, sender: Member, kind: str, blocks: list[Block]) -> None:
        for block in blocks:
            self._write(
                trace.BLOCK,
                peer=str(sender),
                peer_inc=sender.incarnation,
                stream=0,
                seqno=block.first,
                seqno2=block.last,
                kind=kind,
                block=block.number,
                block_hash=block.hash,
            )

    def _write_block(self, payload: bytes) -> None:
        """A send was cut short: why, in the window's own figures."""
        window = self.node.multicast.windows().get(self._mine)
        if not isinstance(window, SendWindow):
            return
        size = min(len(payload), self.node.codec.payload_bytes_max)
        if self._assigned > window.high:
            reason = "rest"  # of a large message, which goes first
            size = self._next_fragment_bytes(window.high)
        elif window.high - window.low >= window.capacity:
            reason = "messages"
        else:
            reason = "bytes"
        self._write(
            trace.SEND_BLOCK,
            stream=0,
            low=window.low,
            hr=window.high,
            cap=window.capacity,
            size=max(size, DATAGRAM_OVERHEAD),
            used=window.charged,
            limit=window.max_bytes,
            detail=reason,
        )
        self._was_blocked = True

    def _next_fragment_bytes(self, high: int) -> int:
        """Of the message that is only begun: the size of the fragment that waits for room."""
        largest = self.node.codec.payload_bytes_max
        left = self._assigned - high  # fragments
        total = len(self._sent[self._assigned])
        return largest if left > 1 else total % largest or largest

    def _look_at(self, frame: Frame) -> Seen:
        match frame:
            case Data():
                return self._look_at_data(frame)
            case Ack():
                return Seen("ack", int(frame.stream), held=frame.held, delivered=frame.delivered)
            case Nack():
                first, last = frame.missing[0].start, frame.missing[-1].stop - 1
                return Seen("nack", int(frame.stream), first, last)
            case Highest():
                return Seen("highest", int(frame.stream), frame.seqno, frame.seqno)
            case _:
                return Seen(type(frame).__name__.lower(), -1)

    def _look_at_data(self, data: Data) -> Seen:
        for seqno, payload in enumerate(data.payloads, data.first):
            original = self._first_bytes.setdefault(seqno, (payload, data.more))
            if original != (payload, data.more):
                self._write(trace.XMIT_MISMATCH, kind="data", stream=0, seqno=seqno, seqno2=seqno)
        size = sum(map(len, data.payloads))
        again = int(data.first <= self._highest_sent)
        self._highest_sent = max(self._highest_sent, data.last)
        return Seen("data", int(data.stream), data.first, data.last, size=size, again=again)

    def _observe(self) -> None:
        """Turn what changed in the node's windows into rows."""
        node = self.node
        view = node.view
        is_new_view = view is not self._view
        if is_new_view and view is not None:
            self._view = view
            if self.me in view:
                self._write_view(view)
        windows = node.multicast.windows()
        if is_new_view or len(windows) < len(self._states):
            self._observe_dropped(windows)
        for origin, window in windows.items():
            if isinstance(window, SendWindow):
                self._observe_send(origin, window)
            else:
                self._observe_receive(origin, window)
        self._observe_acks(is_new_view=is_new_view)

    def _write_view(self, view: View) -> None:
        for member in view:
            self._peers[member.address] = member
        self._write(
            trace.VIEW,
            view=view.counter,
            view_creator=member_key(view.id.creator),
            members=tuple(map(member_key, view.members)),
        )

    def _observe_dropped(self, windows: Mapping[Origin, object]) -> None:
        for origin in [origin for origin in self._states if origin not in windows]:
            del self._states[origin]
            self._hashes.pop(origin, None)
            if origin != self._mine:
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
            self._write(
                trace.PURGE,
                stream=0,
                seqno=window.low,
                hd=window.delivered,
                used=window.charged,
                limit=window.max_bytes,
            )
            for seqno in range(before[0] + 1, window.low + 1):
                self._first_bytes.pop(seqno, None)
        if window.high > before[2]:
            self._write_send(before, window)
        self._write_window(origin, window, "send", window.high, window.charged, -1)

    def _write_send(self, before: tuple[int, ...], window: SendWindow) -> None:
        self._recorder.last_send = self._recorder.now
        self._write(
            trace.SEND,
            stream=0,
            seqno=before[2] + 1,
            seqno2=window.high,
            low=window.low,
            hr=before[2],
            cap=window.capacity,
        )
        blocks: list[Block] = []
        for seqno in range(before[2] + 1, window.high + 1):
            message = self._sent.get(seqno)
            if message is not None:
                blocks += self._hash_sent.skip_to(seqno)
                blocks += self._hash_sent.add_run(seqno, [message])
        blocks += self._hash_sent.skip_to(window.high + 1)
        self._write_blocks(self.me, "sent", blocks)

    def _observe_receive(self, origin: Origin, window: ReceiveWindow) -> None:
        state = (
            window.low,
            window.delivered,
            window.held,
            window.high,
            window.ahead_bytes,
            window.dropped_high,
            window.dropped_low,
        )
        before = self._states.get(origin)
        if state == before:
            return
        if before is None:
            self._hashes[origin] = BlockHasher(window.delivered, BLOCK_MESSAGES)
            self._write_origin(trace.OPEN, origin, seqno=window.delivered)
            before = (0, 0, 0, 0, 0, 0, 0)
        self._states[origin] = state
        if state[5] > before[5]:
            self._write_origin(trace.DROP_HIGH, origin, seqno=state[5] - before[5])
        if state[6] > before[6]:
            self._write_origin(trace.DROP_LOW, origin, seqno=state[6] - before[6])
        self._write_window(
            origin, window, "receive", window.held, window.ahead_bytes, window.max_bytes
        )

    def _write_origin(self, event: str, origin: Origin, **columns: Any) -> None:
        self._write(
            event,
            peer=str(origin.sender),
            peer_inc=origin.sender.incarnation,
            stream=int(origin.stream),
            **columns,
        )

    def _write_window(
        self,
        origin: Origin,
        window: SendWindow | ReceiveWindow,
        kind: str,
        held: int,
        size: int,
        limit: int,
    ) -> None:
        self._write_origin(
            trace.WIN,
            origin,
            kind=kind,
            low=window.low,
            hd=window.delivered,
            held=held,
            hr=window.high,
            cap=window.capacity,
            size=size,
            limit=limit,
        )

    def _observe_acks(self, *, is_new_view: bool) -> None:
        table = self.node.multicast.ack_tables().get(Stream.FIFO)
        if table is None:
            return
        if len(table) != self._ackers or is_new_view:
            keys = tuple(member_key(member) for member, _, _ in table.entries())
            self._ackers = len(keys)
            self._write(trace.ACKMAP, stream=0, members=keys)
        if self._was_blocked and not self.node.multicast.is_blocked(Stream.FIFO):
            self._was_blocked = False
            self._write(trace.SEND_UNBLOCK, stream=0)


def _place_of(error: AssertionError) -> str:
    """Where an assertion stands, and its text if it has one."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return str(error)
    code = last.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{last.tb_lineno} {error}".rstrip()
