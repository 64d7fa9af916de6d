"""Crowd: many whole nodes on a virtual clock, without observer or trace. For what needs numbers.

Every datagram arrives after the same short delay, or is lost, each independently of the others.

What guarantees cost where nothing goes wrong: control frames, counted, not timed. Of acks, of
reports and of uniform delivery, in a crowd of any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from ringcast.config import GroupConfig, MulticastConfig, StabilityConfig
from ringcast.model import Address, Member, Stream
from ringcast.node import Node, build_node
from ringcast.sim.clock import ns
from ringcast.sim.plain import FixedDelay, LoseWhere, PlainMember, begin, plain_world
from ringcast.sim.world import Fault, Flight

HOST = "10.0.0.1"
FIRST_PORT = 10_000
DELAY_MS = 1.0
DATAGRAM_BYTES = 1400
"""Views of many members are larger."""


class Meter:
    """How many datagrams leave, and how large they are."""

    def __init__(self) -> None:
        self.datagrams = self.bytes = 0
        self.largest = 0
        """Bytes of the largest."""

    def reset_counters(self) -> None:
        self.datagrams = self.bytes = self.largest = 0

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        size = len(flight.datagram)
        self.datagrams += 1
        self.bytes += size
        self.largest = max(self.largest, size)
        return [flight]


class Crowd(Meter):
    """So many processes, each of which knows where all the others may be."""

    def __init__(
        self, count: int, *, loss: float = 0.0, multicast: MulticastConfig | None = None
    ) -> None:
        super().__init__()
        self.world = plain_world()
        faults: list[Fault] = [self, FixedDelay(ns(DELAY_MS))]
        if loss:
            random = Random(1)  # one for all links
            faults.append(LoseWhere(lambda flight: random.random() < loss))
        self.world.network.faults = faults
        self.clock = self.world.clock
        self.nodes: dict[Address, Node] = {}
        self.addresses = [Address(HOST, FIRST_PORT + place) for place in range(count)]
        self.frames: Counter[str] = Counter()
        """Frames sent, by their class; one to the group counts once,"""
        self.copies: Counter[str] = Counter()
        """or once for each receiver."""
        self._multicast = multicast or MulticastConfig(datagram_bytes=DATAGRAM_BYTES)

    def start(self, place: int) -> Node:
        address = self.addresses[place]
        config = GroupConfig(group="crowd", multicast=self._multicast)
        me = Member(address, 1, f"member-{place}")
        node = self.nodes[address] = build_node(me, config, streams=(Stream.FIFO, Stream.UNIFORM))
        resident = PlainMember(node)
        resident.before_sending = self._count_frames
        begin(self.world, resident, self.addresses)
        return node

    def run_for(self, milliseconds: float) -> None:
        self.world.run_for(milliseconds)

    def run_until_one_view(self, limit_ms: float, step_ms: float = 1.0) -> float:
        """Milliseconds until all that were started are in one view of exactly them; at most
        `limit_ms`."""
        start = self.clock.now
        while not self.is_one and self.clock.now - start < limit_ms * 1e6:
            self.run_for(step_ms)
        return (self.clock.now - start) / 1e6

    def send(self, place: int, *payloads: bytes, stream: Stream = Stream.FIFO) -> None:
        address = self.addresses[place]
        accepted = self.nodes[address].send(payloads, self.clock.now, stream=stream)
        assert accepted == len(payloads)
        self.world.processes[address].turn()

    @property
    def is_one(self) -> bool:
        everybody = {node.me for node in self.nodes.values()}
        views = [node.view for node in self.nodes.values()]
        is_same = all(view is not None and view == views[0] for view in views)
        return is_same and views[0] is not None and set(views[0]) == everybody

    def reset_counters(self) -> None:
        super().reset_counters()
        self.frames.clear()
        self.copies.clear()

    def _count_frames(self, node: Node) -> None:
        others_count = len(node.view or ()) - 1
        for dest, frame in node.pending():
            kind = type(frame).__name__
            self.frames[kind] += 1
            self.copies[kind] += others_count if dest is None else 1


# What guarantees cost

PAYLOAD_BYTES = 100
DRAIN_MS = 1000.0
CONTROL = (
    *("Ack", "Nack", "Watermark", "Commit", "StabilityReport", "StabilityQuery", "Stable"),
    *("PeerRepairRequest", "PeerRepair"),
)


class Sending(NamedTuple):
    """What each member sends: a run of messages in each period."""

    runs: int = 20
    messages: int = 10
    period_ms: float = 20.0
    stream: Stream = Stream.FIFO


LOAD = Sending()
WAYS = {
    "acks": MulticastConfig(datagram_bytes=DATAGRAM_BYTES),
    "reports": MulticastConfig(
        datagram_bytes=DATAGRAM_BYTES, stability=StabilityConfig(retain_delivered=False)
    ),
    "reports, retained": MulticastConfig(
        datagram_bytes=DATAGRAM_BYTES, stability=StabilityConfig()
    ),
}
UNIFORM = Sending(40, 50, 25.0, Stream.UNIFORM)
UNIFORM_MEMBERS = 4


class Load(NamedTuple):
    """What it took, in one way, that every member sent runs of messages to all."""

    way: str
    members: int
    messages: int
    frames: int  # control frames; one to the group counts once,
    datagrams: int  # or as a datagram for each receiver
    all_datagrams: int  # with those that carry messages and beats
    retained: int  # the most bytes of messages that one member had in its windows at a time

    def per_message(self, count: int) -> float:
        """For each message at each member."""
        return count / (self.messages * self.members)


def loads(members: int) -> Iterator[Load]:
    """The same load in each way, with the default configuration. The same figures every time."""
    return (_load(Crowd(members, multicast=config), way, LOAD) for way, config in WAYS.items())


def uniform_cost() -> tuple[float, Counter[str]]:
    """Control frames for each uniform message at each member, and all of them by their class."""
    config = MulticastConfig(capacity=1024, window_bytes=4 << 20, datagram_bytes=60_000)
    crowd = Crowd(UNIFORM_MEMBERS, multicast=config)
    load = _load(crowd, "uniform", UNIFORM)
    found = Counter({kind: crowd.copies[kind] for kind in CONTROL if crowd.copies[kind]})
    return load.per_message(load.datagrams), found


def _load(crowd: Crowd, way: str, sending: Sending) -> Load:
    places = range(len(crowd.addresses))
    for place in places:
        crowd.start(place)
    crowd.run_until_one_view(60_000.0)
    assert crowd.is_one
    crowd.run_for(DRAIN_MS)  # until nobody speaks of the view any more
    crowd.reset_counters()
    retained = 0
    for _ in range(sending.runs):
        for place in places:
            crowd.send(place, *[bytes(PAYLOAD_BYTES)] * sending.messages, stream=sending.stream)
        for _ in range(round(sending.period_ms)):
            crowd.run_for(1.0)
            retained = max(retained, *map(_kept, crowd.nodes.values()))
    crowd.run_for(DRAIN_MS)
    assert not any(map(_kept, crowd.nodes.values()))
    return Load(
        way,
        len(places),
        len(places) * sending.runs * sending.messages,
        sum(crowd.frames[kind] for kind in CONTROL),
        sum(crowd.copies[kind] for kind in CONTROL),
        crowd.datagrams,
        retained * PAYLOAD_BYTES,
    )


def _kept(node: Node) -> int:
    """How many messages are in its windows."""
    return sum(window.high - window.low for window in node.multicast.windows().values())
