"""Harness: drives one Node of a simulated run under the eyes of an observer. Recorder: the trace of
the run while it grows, and what was really sent, shared by all its observers.

Every input goes through here, every output comes out here. The node's own invariants are checked;
whatever it raises, beyond the errors of its API, ends the run (G7).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from ringcast.config import DATAGRAM_BYTES_MAX
from ringcast.core.effects import Signal
from ringcast.errors import DecodeError, GroupClosed, Reject, RingcastError, UsageError
from ringcast.events import Closed, Event
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.node import Node
from ringcast.protocols.views.layer import GroupViews
from ringcast.rules.membership import LEAVE
from ringcast.sim.clock import VirtualClock
from ringcast.sim.network import Packet
from ringcast.sim.workload import Keeper
from ringcast.sim.world import Flight
from ringcast.trace import rows as trace
from ringcast.trace.observe.run import RunObserver
from ringcast.trace.observe.sink import Contents
from ringcast.trace.rows import Row, about
from ringcast.wire.codec import Codec

if TYPE_CHECKING:
    from ringcast.wire.codec import Buffer

P = ParamSpec("P")
T = TypeVar("T")


class Failure(NamedTuple):
    """One violated rule, and the rows that show it."""

    rule: str
    text: str
    rows: tuple[Row, ...] = ()


class Recorder(Contents):
    """Numbers the rows, remembers every message by its seqno, and collects findings."""

    def __init__(self, clock: VirtualClock) -> None:
        self.rows: list[Row] = []
        self.findings: list[Failure] = []
        """What observers saw with their own eyes, beyond what rows can tell."""
        self.deliveries = 0
        self.last_send = 0
        """When a message, or a part of one, was last sent for the first time."""
        self.sent = {}
        self.sent_to = {}
        self.pieces = {}
        self.happenings = Counter()
        """What rows do not tell, counted."""
        self._clock = clock
        self.write = RunSink(self).write
        """A row of the run itself: a phase, or a fault that begins or ends."""

    @property
    def now(self) -> int:
        return self._clock.now

    def find(self, rule: str, text: str) -> None:
        self.findings.append(Failure(rule, text, tuple(self.rows[-1:])))


class RunSink:
    """Takes the rows of one member, or of the run itself: in its one order, by its one clock."""

    __slots__ = ("_inc", "_name", "_recorder", "_written")

    def __init__(self, recorder: Recorder, me: Member | None = None) -> None:
        self._recorder = recorder
        self._name = "" if me is None else str(me)
        self._inc = 0 if me is None else me.incarnation
        self._written = 0

    def write(self, event: str, now: int = 0, /, **columns: Any) -> None:
        """`now`, by the member's own clock, is not told."""
        rows, now = self._recorder.rows, self._recorder.now
        rows.append(Row(event, self._name, self._inc, self._written, len(rows), now, **columns))
        self._written += 1


TIMEOUTS_MAX = 1000
"""How often timers may be due at one instant: a node that has more to do would spin."""


class NodeFailure(Exception):
    """A node raised what it must not, or broke an invariant (G7). The run ends here."""


class _Observer(RunObserver):
    """Several datagrams may come in one input: each is told when it is its turn."""

    arrive: Callable[[int], None]

    def received(self, datagram: Buffer, now: int) -> None:
        self.arrive(now)


class Harness:
    """One member, driven and observed."""

    keeper: Keeper | None
    """The application, if it has a state."""

    def __init__(self, node: Node, slot: int, recorder: Recorder, wiretap: Codec) -> None:
        self.node = node
        self.me = node.me
        self.slot = slot
        self.is_closed = False
        self._served = self._timeouts = 0  # when timers were last served; how often at that instant
        self._recorder = recorder
        self._name = str(node.me)
        self.sink = RunSink(recorder, node.me)
        self._buffer = bytearray(DATAGRAM_BYTES_MAX)
        self._last_word = ""
        self._outgoing: list[tuple[Address | None, bytes, Packet]] = []  # from before the last view
        self._arriving: deque[Packet] = deque()
        self._observer = node.observer = _Observer(
            node, self.sink, codec=wiretap, contents=recorder, keeper=self.keeper, flush=self._flush
        )
        self._observer.arrive = self._arrive
        self.sink.write(trace.START)

    def member_at(self, port: int) -> Member | None:
        """Whom this member has last seen there in a view."""
        peers = self._observer.wire.peers.items()
        return next((peer for at, peer in peers if at.port == port), None)

    # Inputs

    def receive(self, flights: Sequence[Flight], now: int) -> None:
        packets = [flight.packet for flight in flights if flight.packet]
        self._arriving.extend(packets)
        before = self._refused
        datagrams = self.node.datagrams
        opened = datagrams.passage.open_bursts(zip(self._read(flights)), now)
        self.call(datagrams.receive, opened, now)
        self._arriving.clear()  # what is left of it did not open
        spoiled, refused = sum(packet.is_corrupted for packet in packets), self._refused - before
        if refused != spoiled:
            self._recorder.find(
                "G1", f"{self._name} got {spoiled} corrupted datagrams and refused {refused}"
            )

    def _read(self, flights: Sequence[Flight]) -> Iterator[memoryview]:
        """As a socket reads: into one buffer, one after the other. Nothing of it lasts."""
        for flight in flights:
            size = len(flight.datagram)
            self._buffer[:size] = flight.datagram
            yield memoryview(self._buffer)[:size]
            self._buffer[:size] = b"\xff" * size

    def _arrive(self, now: int) -> None:
        """The node looks at the next one. A view may have begun with the one before."""
        packet = self._arriving.popleft()
        while packet.is_corrupted:  # it did not open
            packet = self._arriving.popleft()
        # What speaks of a connection with a predecessor at this address is for nobody here.
        is_for_me = packet.addressee in (None, self.me)
        frames = [frame for frame in packet.frames if is_for_me or not frame.epoch]
        self._observer.wire.arrived(packet.sender, packet.incarnation, frames, now)
        self._observer.connections.heard(packet.sender, packet.incarnation, packet.frames)

    @property
    def _refused(self) -> int:
        """Late packets for a predecessor at this address are refused too, and rightly."""
        rejected = self.node.rejected
        return sum(rejected.values()) - rejected.get(Reject.ADDRESSEE.value, 0)

    def send(
        self,
        payloads: Sequence[bytes],
        now: int,
        to: Member | None = None,
        stream: Stream = Stream.FIFO,
    ) -> int:
        """How many were accepted; 0 also where the node is closed."""
        try:
            return self.call(self.node.send, payloads, now, to=to, stream=stream)
        except GroupClosed:
            whom = {"stream": int(stream)} if to is None else about(to)
            self.sink.write(trace.SEND_FAIL, detail="closed", **whom)
            return 0

    def drop_from(self, peer: Member, now: int) -> None:
        self._observer.asked(trace.UNICAST_DROP, peer)
        self.call(self.node.drop_from, peer, now)

    def sync(self, peer: Member, now: int) -> None:
        self._observer.asked(trace.SYNC_CALL, peer)
        try:
            self.call(self.node.sync, peer, now)
        except UsageError:
            self._observer.asked(trace.SYNC_CALL, None)  # nothing has come from there yet

    def signal(self, signal: Signal, now: int) -> None:
        """As its failure detector would."""
        self.node.effects.signal(signal)
        self.call(self.node.receive_datagrams, (), now)

    def propose(
        self,
        members: Sequence[Member],
        parts: Iterable[View],
        permits: Mapping[ViewId, int],
        now: int,
    ) -> None:
        """Propose a view of these, whatever reason there is; `parts` are the views of others."""
        membership = self.node.membership
        assert isinstance(membership, GroupViews)
        out = self.node.effects
        self.call(membership.change.propose, members, set(), parts, now, out, permits)
        self.call(self.node.receive_datagrams, (), now)

    def transport_hint(self, address: Address, now: int) -> None:
        self.call(self.node.transport_hint, address, now)

    def leave(self, now: int) -> None:
        self.sink.write(LEAVE)
        self.call(self.node.leave, now)

    def provide_state(self, transfer: int, limit: int, now: int) -> bool:
        """Give up to `limit` chunks of this state. Whether it may go on at once."""
        assert self.keeper is not None
        left = self.keeper.giving.get(transfer, [])
        chunks, is_last = left[:limit], len(left) <= limit
        accepted = self.call(self.node.provide_state, transfer, chunks, now, is_last=is_last)
        del left[:accepted]
        return accepted == len(chunks) and not is_last

    def refuse_state(self, transfer: int, now: int) -> None:
        assert self.keeper is not None
        assert self._observer.transfers is not None
        self.keeper.giving.pop(transfer, None)
        self._observer.transfers.refuse(transfer, now)
        self.call(self.node.refuse_state, transfer, now)

    def handle_timeout(self, now: int) -> None:
        self._observer.connections.before_timeout()
        self.call(self.node.handle_timeout, now)
        self._timeouts = self._timeouts + 1 if now == self._served else 1
        self._served = now
        if self._timeouts > TIMEOUTS_MAX:
            raise NodeFailure(f"{self._name}: a timer is due at once, again and again")

    def check_invariants(self) -> None:
        """To be called after every input."""
        try:
            self.node.check_invariants()
        except AssertionError as error:
            place = _place_of(error)
            raise NodeFailure(f"{self._name}: an invariant is broken: {place}") from error

    def end(self) -> None:
        """The run is over, and the member lives."""
        if self._observer.transfers is not None:
            self._observer.transfers.end(self._recorder.now)

    # Outputs

    def take(self, limit: int, now: int) -> list[Event]:
        """What happened, and up to `limit` messages."""
        events = self.call(self.node.take_events, limit, now)
        for event in events:
            if isinstance(event, Closed):
                self.is_closed = True
                self._last_word = event.reason
        return events

    def take_datagrams(self) -> list[tuple[Address | None, bytes, Packet]]:
        """What the node sends, with packets that tell what is in it."""
        self._flush()
        found, self._outgoing = self._outgoing, []
        if self._last_word:  # acks of what was taken may go with it
            self.sink.write(trace.STOP, detail=self._last_word)
            self._last_word = ""
        return found

    def _flush(self) -> None:
        """Take what waits to be sent; the observer says what is in it."""
        self._observer.wire.before_flush()
        try:
            datagrams = self.call(self.node.take_datagrams)
        except DecodeError as error:
            raise NodeFailure(f"{self._name} sends what cannot be decoded: {error}") from error
        left, self._observer.wire.left = self._observer.wire.left, []
        last_new: dict[Member | None, Packet] = {}
        for (dest, _), (peer, datagram, frames) in zip(datagrams, left, strict=True):
            kinds = tuple(dict.fromkeys(frame.kind for frame in frames))
            packet = Packet(self._name, self.me.incarnation, frames, kinds, peer)
            if any(frame.is_new_data for frame in frames):
                last_new[peer] = packet
            self._outgoing.append((dest, self.node.datagrams.passage.seal(datagram), packet))
        for packet in last_new.values():
            packet.is_last_data = True

    def packet_fault(self, event: str, fault: str, packet: Packet, peer: str) -> None:
        """The network lost, copied or spoiled a packet of this member."""
        for frame in packet.frames:
            self.sink.write(event, peer=peer, detail=fault, **frame.columns)

    def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """An input that needs no more than to be watched: one of the node's own."""
        try:
            return method(*args, **kwargs)
        except (RingcastError, NodeFailure):
            raise
        except Exception as error:
            raise NodeFailure(f"{self._name}: {method.__name__} raised {error!r}") from error


def _place_of(error: AssertionError) -> str:
    """Where an assertion stands, and its text if it has one."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rpartition('/')[2]}:{last.lineno} {error}".rstrip()
