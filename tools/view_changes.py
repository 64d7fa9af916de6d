"""What a view change costs in groups of many members: datagrams and bytes, counted, not timed.

.venv/bin/python tools/view_changes.py 10 100 500

Whole nodes on a virtual clock, 1 ms one way. Nobody sends messages, heartbeats are rare: what is
counted is the change alone, with the greetings of who joins and all that follows at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig
from ringcast.core.effects import Suspected
from ringcast.model import Address, Member
from ringcast.node import build_node
from ringcast.sim.clock import ns
from ringcast.sim.crowd import Meter
from ringcast.sim.plain import FixedDelay, PlainMember, begin, plain_world

if TYPE_CHECKING:
    from ringcast.node import Node

COUNTS = (10, 100)
DELAY_MS = 1.0
FORM_MS = 60_000.0
CHANGE_MS = 2_000.0
QUIET_MS = 1_100.0
"""Between two changes."""
FOLLOWS_MS = 100.0
"""After a change: acks, and whatever else it brings about."""

CONFIG = GroupConfig(
    group="assembly",
    multicast=MulticastConfig(capacity=16, datagram_bytes=1400, window_bytes=1 << 16),
    membership=MembershipConfig(heartbeat_s=60.0, suspect_after_s=600.0),
)
"""Windows that many members have room for in one process; heartbeats that fall into no change."""


class Cost(NamedTuple):
    """Of one change."""

    members: int
    what: str
    ms: float
    datagrams: int
    bytes: int
    largest: int

    def __str__(self) -> str:
        each = (
            f"{self.datagrams / self.members:.1f} datagrams and {self.bytes / self.members:.0f} B"
        )
        return (
            f"{self.members:4} members, {self.what:5}: {self.ms:5.1f} ms, {self.datagrams:5} "
            f"datagrams, {self.bytes:8} B, the largest {self.largest} B; {each} per member"
        )


class Assembly(Meter):
    """Members that each know where the first may be found."""

    def __init__(self) -> None:
        super().__init__()
        self.world = plain_world(start=1_000_000_000)
        self.world.network.faults = [self, FixedDelay(ns(DELAY_MS))]
        self.nodes: dict[Address, Node] = {}

    def start(self) -> Node:
        address = Address("10.0.0.1", 10_000 + len(self.world.processes))
        me = Member(address, 1, f"member-{address.port}")
        node = build_node(me, CONFIG)
        first = next(iter(self.nodes), address)
        self.nodes[address] = node
        begin(self.world, PlainMember(node), [first])
        return node

    def crash(self) -> None:
        """One in the middle; the first, which coordinates, is the one that misses it."""
        first, *others = self.nodes
        gone = others[len(others) // 2]
        self.world.processes[gone].crash()
        process, member = self.world.processes[first], self.nodes.pop(gone).me
        process.node.effects.signal(Suspected(member, "it has crashed"))
        process.node.handle_timeout(process.now)
        process.turn()

    def leave(self) -> None:
        """The last one."""
        address, node = self.nodes.popitem()
        process = self.world.processes[address]
        node.leave(process.now)
        process.turn()

    def change(self, what: str) -> Cost:
        """Let it happen."""
        self.world.run_for(QUIET_MS)
        members, start = len(self.nodes), self.world.clock.now
        self.reset_counters()
        {"join": self.start, "crash": self.crash, "leave": self.leave}[what]()
        assert self.world.run_until(self.is_one, CHANGE_MS), what
        ms = (self.world.clock.now - start) / 1e6
        self.world.run_for(FOLLOWS_MS)
        return Cost(members, what, ms, self.datagrams, self.bytes, self.largest)

    def is_one(self) -> bool:
        """All are in one view of exactly them."""
        views = [node.view for node in self.nodes.values()]
        first = views[0]
        return (
            first is not None
            and len(first) == len(self.nodes)
            and all(view is not None and view.id == first.id for view in views)
        )


def assemble(count: int) -> Assembly:
    """So many members in one view."""
    assembly = Assembly()
    assembly.start()
    assert assembly.world.run_until(assembly.is_one, FORM_MS)
    for _ in range(1, count):
        assembly.start()
    assert assembly.world.run_until(assembly.is_one, FORM_MS)
    return assembly


def measure(count: int) -> list[Cost]:
    """Of the changes of a group of so many. The same figures every time."""
    assembly = assemble(count)
    return [assembly.change(what) for what in ("join", "crash", "leave")]


def main() -> None:
    for count in map(int, sys.argv[1:] or COUNTS):
        for cost in measure(count):
            print(cost, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
