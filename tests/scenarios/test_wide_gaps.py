"""How long it takes to repair much at once: members 0.5 ms apart, in virtual time."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from ringcast.wire.frames import Nack, UnicastNack
from support.cluster import Cluster
from support.delays import Delays
from support.pair import Pair

if TYPE_CHECKING:
    from ringcast.protocols.multicast_receiver import MulticastReceiver
    from ringcast.protocols.unicast_receiver import UnicastReceiver
    from support.cluster import Packet

ONE_WAY_S = 0.0005
KINDS = pytest.mark.parametrize("kind", ["multicast", "unicast"])
SEEDS = pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(2, 10))]
)


class Line:
    """A sends to B, to the group or to B alone; a first message has been delivered."""

    def __init__(self, kind: str, capacity: int, datagram_bytes: int = 1400) -> None:
        bounds = {"capacity": capacity, "window_bytes": 1 << 28, "datagram_bytes": datagram_bytes}
        self.is_unicast = kind == "unicast"
        # Invariants are looked at slot by slot: with so many slots that takes too long.
        self.members = Pair(checked=False, **bounds) if self.is_unicast else Cluster("AB", **bounds)
        self.members._checked = False
        self.net = Delays(self.members, ONE_WAY_S)
        self.send(b"first")
        self.sent = 1
        self.run(1.0)

    def send(self, payload: bytes) -> None:
        a, b = (self.members.nodes[name] for name in "AB")
        assert a.send([payload], self.members.now, to=b.me if self.is_unicast else None) == 1

    def datagrams(self, count: int, payload: bytes = b"x") -> list[Packet]:
        """So many messages, each in a datagram that is still to be carried."""
        packets = []
        for _ in range(count):
            self.send(payload)
            packets += [packet for packet in self.members.collect() if packet.dest == "B"]
        self.sent += count
        assert len(packets) == count
        return packets

    @property
    def receiver(self) -> MulticastReceiver | UnicastReceiver:
        if isinstance(self.members, Pair):
            return self.members.receiver("B", "A")
        return self.members.receiver("B", "A")

    def is_whole(self) -> bool:
        if isinstance(self.members, Pair) and not self.members.has_receiver("B", "A"):
            return False
        return self.receiver.window.delivered == self.sent

    def run(self, seconds: float) -> float:
        """Until B has delivered everything; how long that took."""
        return self.net.run_until(self.is_whole, seconds)

    @property
    def nacks(self) -> int:
        """Datagrams in which B has asked for something."""
        kinds = (Nack, UnicastNack)
        return sum(any(isinstance(f, kinds) for f in p.frames) for _, p in self.net.carried)


@KINDS
@pytest.mark.parametrize(("count", "seconds"), [(4096, 0.05), (16_000, 0.3)])
def test_every_second_is_lost_and_the_last_overtakes_all(
    kind: str, count: int, seconds: float
) -> None:
    """One wide gap with many holes."""
    line = Line(kind, capacity=count + 1)
    kept = line.datagrams(count)[1::2]
    line.net.carry(kept[-1:] + kept[:-1])
    line.run(seconds)
    assert line.receiver.stream.nack_sent == count // 2


@KINDS
def test_every_second_is_lost_in_order(kind: str) -> None:
    """Many gaps, each of which is proved: they share requests, of 128 ranges in a datagram."""
    line = Line(kind, capacity=4097, datagram_bytes=4000)
    line.net.carry(line.datagrams(4096)[1::2])
    line.run(0.005)
    assert line.receiver.stream.nack_sent == 2048
    assert line.nacks <= 2 * 2048 // 128


@KINDS
@SEEDS
def test_an_outage_and_then_heavy_loss(kind: str, seed: int) -> None:
    """All but the last is lost in an outage; from then on two of five, both ways, at random."""
    random = Random(seed)
    line = Line(kind, capacity=4096)
    line.net.carry(line.datagrams(1600, bytes(1200))[-1:])
    line.net.lose = lambda _: random.random() < 0.4
    line.run(0.6)


@KINDS
@SEEDS
def test_requests_are_lost_in_an_outage(kind: str, seed: int) -> None:
    """The gap is known and asked for in vain. Once the network works again, the round trip is what
    it was, however long the first request is ago: within τ contact, and then repair."""
    random = Random(seed)
    line = Line(kind, capacity=4096)
    line.net.carry(line.datagrams(1600, bytes(1200))[-1:])
    line.net.run_until(lambda: line.receiver.repair.has_gaps, 0.01)
    line.net.lose = lambda _: True
    stop = line.members.now + 300_000_000
    line.net.run_until(lambda: line.members.now >= stop, 1.0)
    line.net.lose = lambda packet: packet.dest == "B" and random.random() < 0.4
    line.run(0.6)
