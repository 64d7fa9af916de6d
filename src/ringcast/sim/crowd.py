"""Crowd: many whole nodes on a virtual clock, without harness or trace. For what needs numbers.

Every datagram arrives after the same short delay, or is lost, each independently of the others.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.model import Address, Member
from ringcast.node import build_node
from ringcast.sim.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.node import Node
    from ringcast.protocols.failure import FailureDetector

HOST = "10.0.0.1"
FIRST_PORT = 10_000
TAKE_LIMIT = 1000
DELAY_MS = 1.0
DATAGRAM_BYTES = 1400
"""Views of many members are larger."""


class Crowd:
    """So many processes, each of which knows where all the others may be."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 1,
        loss: float = 0.0,
        multicast: MulticastConfig | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.nodes: dict[Address, Node] = {}
        self.addresses = [Address(HOST, FIRST_PORT + place) for place in range(count)]
        self.datagrams = 0
        self.bytes = 0
        self.frames: Counter[str] = Counter()
        """Frames sent, by their class; one to the group counts once,"""
        self.copies: Counter[str] = Counter()
        """or once for each receiver."""
        self.largest = 0
        """The largest datagram, in bytes."""
        self._multicast = multicast or MulticastConfig(datagram_bytes=DATAGRAM_BYTES)
        self._random = Random(seed)
        self._loss = loss
        self._wake_at: dict[Address, int] = {}

    def start(self, place: int) -> Node:
        address = self.addresses[place]
        config = GroupConfig(group="crowd", multicast=self._multicast)
        me = Member(address, 1, f"member-{place}")
        node = self.nodes[address] = build_node(me, config)
        node.start(self.clock.now)
        node.add_candidates(self.addresses, self.clock.now)
        self._turn(address)
        return node

    def run_for(self, milliseconds: float) -> None:
        self.clock.run_until(self.clock.now + round(milliseconds * 1e6))

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
        self._turn(address)

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
        self.datagrams = self.bytes = self.largest = 0
        self.frames.clear()
        self.copies.clear()

    def _arrive(self, address: Address, datagram: bytes) -> None:
        node = self.nodes.get(address)
        if node is not None:
            node.receive_datagrams([datagram], self.clock.now)
            self._turn(address)

    def _turn(self, address: Address) -> None:
        node, now = self.nodes[address], self.clock.now
        node.take_events(TAKE_LIMIT, now)
        others_count = len(node.view or ()) - 1
        for dest, frame in node.pending():
            kind = type(frame).__name__
            self.frames[kind] += 1
            self.copies[kind] += others_count if dest is None else 1
        for dest, datagram in node.take_datagrams():
            if dest is None:
                others = [member.address for member in node.view or () if member != node.me]
            else:
                others = [dest]
            for other in others:
                self._carry(other, datagram)
        deadline = node.next_timeout()
        if deadline is not None and deadline < self._wake_at.get(address, deadline + 1):
            self._wake_at[address] = deadline
            self.clock.at(deadline, self._wake, address, deadline)

    def _carry(self, address: Address, datagram: bytes) -> None:
        self.datagrams += 1
        self.bytes += len(datagram)
        self.largest = max(self.largest, len(datagram))
        if not self._loss or self._random.random() >= self._loss:
            self.clock.after(DELAY_MS, self._arrive, address, datagram)

    def _wake(self, address: Address, planned: int) -> None:
        if self._wake_at.get(address) != planned:
            return  # an earlier one was set meanwhile
        del self._wake_at[address]
        self.nodes[address].handle_timeout(self.clock.now)
        self._turn(address)
