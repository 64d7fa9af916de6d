"""Crowd: many whole nodes on a virtual clock, without observer or trace. For what needs numbers.

Every datagram arrives after the same short delay, or is lost, each independently of the others.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.model import Address, Member
from ringcast.node import build_node
from ringcast.sim.clock import ns
from ringcast.sim.plain import FixedDelay, LoseWhere, PlainMember, begin, plain_world

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
