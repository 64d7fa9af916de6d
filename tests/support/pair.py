"""Members that write to each other alone: what the unicast scenarios stand on.

A `Pair` is a Cluster with reliable unicast that writes its wire down: every frame that ever left a
member stands in `sent`, whatever became of it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ringcast.config import GroupConfig, UnicastConfig
from ringcast.events import Delivered
from ringcast.model import Address, Conn, Member
from ringcast.node import Node
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiving import LOOPBACK_EPOCH
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.wire.frames import UnicastAck, UnicastData
from support.cluster import Cluster, Packet, kept, read

if TYPE_CHECKING:
    from ringcast.protocols.unicast_receiver import UnicastReceiver
    from ringcast.wire.frames import Frame
    from support.cluster import Drop

F = TypeVar("F")

TAU = 0.5
"""The retransmission tick of a Pair, in seconds, unless a test says otherwise."""


def conn(id: int, stream: int = 1) -> Conn:
    """Connection number `id` of the first (second, …) stream that a member begins."""
    return Conn(LOOPBACK_EPOCH + stream, id)


class TicksAlone(UnicastSender):
    """Without the tail timer: the tick alone resends, as in the UNICAST3 note."""

    def _arm_tail(self, now: int) -> None:
        pass


class WithoutTail(ReliableUnicast):
    sender = TicksAlone


class Sent(NamedTuple):
    """One frame as it left a member, whatever became of it."""

    at: int
    source: str
    dest: str
    frame: Frame


class Pair(Cluster):
    """Members by name, in one view, that have not written to each other yet."""

    def __init__(
        self,
        names: str = "AB",
        *,
        machine: type[ReliableUnicast] = ReliableUnicast,
        checked: bool | None = None,
        configs: dict[str, dict[str, Any]] | None = None,
        datagram_bytes: int = 1000,
        max_message_bytes: int = 1 << 20,
        **config: Any,
    ) -> None:
        self.sent: list[Sent] = []
        self._flight: list[tuple[int, int, Packet]] = []  # when it arrives; in order
        self._count = count()
        self._machine = machine
        self._options = {"window_bytes": 1 << 20} | config
        self._options_of = configs or {}
        is_sound = machine is ReliableUnicast
        super().__init__(
            names,
            checked=is_sound if checked is None else checked,
            datagram_bytes=datagram_bytes,
            max_message_bytes=max_message_bytes,
        )
        self.run(0.1)  # members tell each other where their multicast windows stand
        self.sent.clear()

    def start(self, name: str) -> Node:
        self._incarnations += 1
        me = Member(Address("127.0.0.1", 7000 + ord(name)), self._incarnations, name)
        config = GroupConfig(
            group="test",
            name=name,
            multicast=self._config,
            unicast=UnicastConfig(**(self._options | self._options_of.get(name, {}))),
        )
        node = self.nodes[name] = Node(me, config, unicast=self._machine)
        self.events[name] = []
        self._codecs[me] = node.codec
        return node

    def collect(self) -> list[Packet]:
        packets = []
        for node in self.nodes.values():
            # What was packed before a view began is not pending any more.
            waiting = [dest for dest, _ in node.pending() if isinstance(dest, Member)]
            dests = {member.address: member for member in (*self._codecs, *waiting)}
            for address, datagram in node.take_datagrams():
                assert address is not None, "nobody here writes to the group"
                tag, frames = read(node.codec, datagram)
                to = dests[address]
                self.sent += [Sent(self.now, node.me.name, to.name, frame) for frame in frames]
                packets.append(Packet(node.me, to.name, frames, to, tag))
        return packets

    def travel(
        self,
        seconds: float,
        drop: Drop | None = None,
        *,
        delay_s: float = 0.001,
        late_s: float = 0.0,
    ) -> None:
        """Let so much time pass on a network where each datagram takes `delay_s`, and so much
        longer."""
        stop = self.now + round(seconds * 1e9)
        while True:
            for name, node in self.nodes.items():
                if name not in self.stopped:
                    self.take(name)
                if self._checked:
                    node.check_invariants()
            for packet in self.collect():
                arrival = self.now + round((delay_s + late_s) * 1e9)
                heappush(self._flight, (arrival, next(self._count), packet))
            timeout = self.next_timeout()
            at = min(
                self._flight[0][0] if self._flight else stop + 1,
                stop + 1 if timeout is None else timeout,
            )
            if at > stop:
                self.now = stop
                return
            self.now = max(self.now, at)
            if self._flight and self._flight[0][0] <= self.now:
                self.hand_over(kept(heappop(self._flight)[2], drop))
            else:
                for node in self.nodes.values():
                    node.handle_timeout(self.now)

    # In the tests' words

    def send(self, name: str, to: str, payloads: list[bytes]) -> int:
        return self.nodes[name].send(payloads, self.now, to=self.nodes[to].me)

    def post(self, name: str, to: str, payloads: list[bytes]) -> list[Packet]:
        """Send one by one; what left for `to`, a packet per message, still to be handed over."""
        packets = []
        for payload in payloads:
            assert self.send(name, to, [payload]) == 1
            packets += [packet for packet in self.collect() if packet.dest == to]
        return packets

    def receives(self, name: str, source: str, *frames: Frame) -> None:
        """Frames arrive at `name`, as if `source` had sent them."""
        me = self.nodes[name].me
        self.hand_over([Packet(self.nodes[source].me, name, list(frames), me)])

    def sender(self, name: str, peer: str) -> UnicastSender:
        return self.nodes[name].unicast.senders[self.nodes[peer].me]

    def receiver(self, name: str, peer: str) -> UnicastReceiver:
        return self.nodes[name].unicast.receivers[self.nodes[peer].me]

    def has_sender(self, name: str, peer: str) -> bool:
        return self.nodes[peer].me in self.nodes[name].unicast.senders

    def has_receiver(self, name: str, peer: str) -> bool:
        return self.nodes[peer].me in self.nodes[name].unicast.receivers

    def frames(self, kind: type[F], source: str | None = None) -> list[F]:
        """Every frame of this kind that has left `source`, or anybody."""
        return [
            sent.frame
            for sent in self.sent
            if isinstance(sent.frame, kind) and source in (None, sent.source)
        ]

    def seqnos(self, source: str) -> list[int]:
        """The seqnos of the messages that have left `source`, in order, repeats included."""
        return [
            seqno
            for data in self.frames(UnicastData, source)
            for seqno in range(data.first, data.last + 1)
        ]

    def acks(self, source: str) -> list[int]:
        return [ack.delivered for ack in self.frames(UnicastAck, source)]

    def streams(self, name: str, sender: str) -> list[int]:
        """Of which stream of `sender`, the first or a later one, each delivered message was."""
        return [
            event.epoch - LOOPBACK_EPOCH
            for event in self.events[name]
            if isinstance(event, Delivered) and event.sender.name == sender
            for _ in event.run.payloads
        ]

    def is_acked(self, name: str, peer: str) -> bool:
        """`peer` has taken everything `name` has sent to it, and `name` knows."""
        window = self.sender(name, peer).window
        return window.low == window.high

    def is_quiet(self) -> bool:
        """From now on nobody sends anything, however long it takes (G8)."""
        before = len(self.sent)
        self.run(20 * TAU)
        return len(self.sent) == before


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def expected(count: int, first: int = 1) -> list[tuple[int, bytes]]:
    """What delivered() tells when the seqnos are the numbers in the payloads."""
    return list(enumerate(numbered(count, first), first))


def losing(*kinds: type[Frame]) -> Drop:
    """A network that loses these frames, and only these."""
    return lambda _source, _dest, frame: isinstance(frame, kinds)


def losing_from(source: str, *kinds: type[Frame]) -> Drop:
    return lambda name, _dest, frame: name == source and isinstance(frame, kinds)


def losing_first(count: int, kind: type[Frame]) -> Drop:
    """A network that loses the first so many frames of this kind."""
    left = count

    def drop(_source: str, _dest: str, frame: Frame) -> bool:
        nonlocal left
        is_lost = isinstance(frame, kind) and left > 0
        left -= is_lost
        return is_lost

    return drop


def losing_seqnos(*seqnos: int) -> Drop:
    """A network that loses each of these messages once."""
    left = set(seqnos)

    def drop(_source: str, _dest: str, frame: Frame) -> bool:
        if not isinstance(frame, UnicastData):
            return False
        lost = left & set(range(frame.first, frame.last + 1))
        left.difference_update(lost)
        return bool(lost)

    return drop
