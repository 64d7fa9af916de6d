"""Crowd: many whole nodes on a virtual clock, without observer or trace. For what needs numbers.

Every datagram arrives after the same short delay, or is lost, each independently of the others.

What guarantees cost where nothing goes wrong: control frames, counted, not timed. Of uniform
delivery in a small group; and of acks and of reports, in a crowd of any size.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from ringcast.config import GroupConfig, MulticastConfig, StabilityConfig
from ringcast.model import Address, Member, Stream
from ringcast.node import build_node
from ringcast.sim.clock import ns
from ringcast.sim.cluster import Cluster
from ringcast.sim.options import Options
from ringcast.sim.plain import FixedDelay, LoseWhere, PlainMember, begin, plain_world
from ringcast.trace.rows import DELIVER, SEND, TX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.node import Node
    from ringcast.protocols.failure import FailureDetector
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

    def apply(self, flight: Flight, dice: Random) -> list[Flight]:
        size = len(flight.datagram)
        self.datagrams += 1
        self.bytes += size
        self.largest = max(self.largest, size)
        return [flight]


class Crowd(Meter):
    """So many processes, each of which knows where all the others may be."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 1,
        loss: float = 0.0,
        multicast: MulticastConfig | None = None,
    ) -> None:
        super().__init__()
        self.world = plain_world()
        faults: list[Fault] = [self, FixedDelay(ns(DELAY_MS))]
        if loss:
            random = Random(seed)  # one for all links
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
        node = self.nodes[address] = build_node(me, config)
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

    def send(self, place: int, *payloads: bytes) -> None:
        address = self.addresses[place]
        self.nodes[address].send(payloads, self.clock.now)
        self.world.processes[address].turn()

    @property
    def is_one(self) -> bool:
        everybody = {node.me for node in self.nodes.values()}
        views = [node.view for node in self.nodes.values()]
        is_same = all(view is not None and view == views[0] for view in views)
        return is_same and views[0] is not None and set(views[0]) == everybody

    @property
    def detectors(self) -> Iterator[FailureDetector]:
        for node in self.nodes.values():
            assert node.detector is not None
            yield node.detector

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


# Uniform delivery

NODES = 4
RUN_MESSAGES = 50
RUNS = 40


class ControlCost(NamedTuple):
    """One run without faults, in which all members send runs of uniform messages."""

    messages: int
    deliveries: int
    frames: Counter[str]
    """Control frames of the uniform stream by kind; one to the group counts once per receiver."""

    @property
    def per_message(self) -> float:
        """Control frames for each message at each member."""
        return sum(self.frames.values()) / (self.messages * NODES)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.frames.items()))
        return (
            f"{self.per_message:.3f} control frames per uniform message and member without faults, "
            f"in runs of {RUN_MESSAGES}: {kinds} for {self.messages} messages"
        )


def measure() -> ControlCost:
    """Run it. The same figures every time."""
    options = Options(
        seed=0,
        protocol="uniform",
        nodes=NODES,
        initial=NODES,
        capacities=(1024,) * NODES,
        tau_ms=(100.0,) * NODES,
        window_bytes=4 << 20,
        datagram_bytes=60_000,
        senders=tuple(range(NODES)),
        uniform=1.0,
        # Each spell is one run.
        messages=RUN_MESSAGES * RUNS - 1,
        spells=RUNS,
        burst=RUN_MESSAGES,
        late_messages=0,
        delay_ms=0.2,
        delta_ms=0.2,
        warm_ms=1000.0,
        safety_ms=1000.0,
    )
    cluster = Cluster(options)
    cluster.run()
    messages = deliveries = 0
    frames: Counter[str] = Counter()
    for row in cluster.recorder.rows:
        if row.stream != Stream.UNIFORM:
            continue
        if row.event == SEND:
            messages += row.seqno2 - row.seqno + 1
        elif row.event == DELIVER:
            deliveries += row.seqno2 - row.seqno + 1
        elif row.event == TX and row.kind != "data":
            frames[row.kind] += 1 if row.peer else NODES - 1
    return ControlCost(messages, deliveries, frames)


# Acks and reports, in a group of any size

LOAD_RUNS = 20
LOAD_RUN_MESSAGES = 10
LOAD_PERIOD_MS = 20.0
LOAD_PAYLOAD_BYTES = 100
DRAIN_MS = 1000.0
CONTROL = (
    *("Ack", "Nack", "Watermark", "StabilityReport", "StabilityQuery", "Stable"),
    *("PeerRepairRequest", "PeerRepair"),
)
WAYS: dict[str, StabilityConfig | None] = {
    "acks": None,
    "reports": StabilityConfig(retain_delivered=False),
    "reports, retained": StabilityConfig(),
}


class Load(NamedTuple):
    """What it took, in one way, that every member sent runs of messages to all."""

    way: str
    members: int
    messages: int
    frames: int
    """Control frames; one to the group counts once,"""
    datagrams: int
    """or as a datagram for each receiver."""
    all_datagrams: int
    """With those that carry messages and beats."""
    retained: int
    """The most bytes of messages that one member had in its windows at a time."""

    def per_message(self, count: int) -> float:
        """For each message at each member."""
        return count / (self.messages * self.members)

    def __str__(self) -> str:
        return (
            f"{self.way:16} {self.frames:9} {self.per_message(self.frames):10.4f} "
            f"{self.datagrams:9} {self.per_message(self.datagrams):10.4f} "
            f"{self.all_datagrams:14} {self.retained:12}"
        )


def loads(members: int) -> list[Load]:
    """The same load in each way, with the default configuration. The same figures every time."""
    return [_load(members, way, stability) for way, stability in WAYS.items()]


def load_table(found: list[Load]) -> str:
    """For people."""
    first = found[0]
    return "\n".join(
        [
            f"{first.members} members; each sends {LOAD_RUNS} runs of {LOAD_RUN_MESSAGES} messages "
            f"of {LOAD_PAYLOAD_BYTES} bytes, one every {LOAD_PERIOD_MS:.0f} ms; no faults",
            f"{'':16} {'control':>9} {'per msg':>10} {'their':>9} {'per msg':>10} "
            f"{'all':>14} {'bytes kept':>12}",
            f"{'':16} {'frames':>9} {'and member':>10} {'datagrams':>9} {'and member':>10} "
            f"{'datagrams':>14} {'per member':>12}",
            *map(str, found),
        ]
    )


def _load(members: int, way: str, stability: StabilityConfig | None) -> Load:
    config = MulticastConfig(datagram_bytes=DATAGRAM_BYTES, stability=stability)
    crowd = Crowd(members, multicast=config)
    for place in range(members):
        crowd.start(place)
    crowd.run_until_one_view(60_000.0)
    assert crowd.is_one
    crowd.run_for(DRAIN_MS)  # until nobody speaks of the view any more
    crowd.reset_counters()
    payloads = [bytes(LOAD_PAYLOAD_BYTES)] * LOAD_RUN_MESSAGES
    retained = 0
    for _ in range(LOAD_RUNS):
        for place in range(members):
            crowd.send(place, *payloads)
        for _ in range(round(LOAD_PERIOD_MS)):
            crowd.run_for(1.0)
            retained = max(retained, *map(_kept, crowd.nodes.values()))
    crowd.run_for(DRAIN_MS)
    assert not any(map(_kept, crowd.nodes.values()))
    return Load(
        way,
        members,
        members * LOAD_RUNS * LOAD_RUN_MESSAGES,
        sum(crowd.frames[kind] for kind in CONTROL),
        sum(crowd.copies[kind] for kind in CONTROL),
        crowd.datagrams,
        retained * LOAD_PAYLOAD_BYTES,
    )


def _kept(node: Node) -> int:
    """How many messages are in its windows."""
    return sum(window.high - window.low for window in node.multicast.windows().values())
