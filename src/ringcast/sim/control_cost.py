"""What guarantees cost where nothing goes wrong: control frames, counted, not timed. Of uniform
delivery in a small group; and of acks and of reports, in one of any size."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ringcast.config import MulticastConfig, StabilityConfig
from ringcast.model import Stream
from ringcast.sim.cluster import Cluster
from ringcast.sim.crowd import DATAGRAM_BYTES, Crowd
from ringcast.sim.options import Options
from ringcast.trace.rows import DELIVER, SEND, TX

if TYPE_CHECKING:
    from ringcast.node import Node

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
    "Ack",
    "Nack",
    "Watermark",
    "StabilityReport",
    "StabilityQuery",
    "Stable",
    "PeerRepairRequest",
    "PeerRepair",
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
