"""What a member keeps stays below its limit, whoever sends and however slowly it reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.errors import ConfigError
from ringcast.model import Address, Member, Stream
from ringcast.node import build_node
from ringcast.protocols.memory import Memory
from support.view_group import BOTH, ViewGroup

if TYPE_CHECKING:
    from ringcast.node import Node

WIDE = GroupConfig(
    group="memory",
    multicast=MulticastConfig(
        capacity=256, datagram_bytes=1000, window_bytes=1 << 17, max_message_bytes=20_000
    ),
)
FOUR = Memory(WIDE, len(BOTH), has_state=False).least(4)
SLOW = replace(WIDE, memory_limit=FOUR + 200_000)
NAMES = "ABCD"


def build(limit: int | None) -> Node:
    me = Member(Address("10.0.0.1", 1), 1, "A")
    return build_node(me, replace(WIDE, memory_limit=limit), streams=BOTH)


def taken(node: Node) -> int:
    found = node.memory.stats(node._stack.layers)
    assert found["taken"] == sum(found.values()) - found["limit"] - found["taken"]
    return found["taken"]


class Limited(ViewGroup):
    """The first member has a limit, and what it keeps is measured all the time."""

    def __init__(self) -> None:
        super().__init__(NAMES, config=WIDE)
        self.most: Counter[str] = Counter()
        self._turn = 0
        self.before_sending = self.measure
        self.start("A", SLOW)
        for name in NAMES[1:]:
            self.start(name)
        assert self.run_until(lambda: self.is_one() and len(self.node("A").view or ()) == 4, 5_000)

    def measure(self, node: Node) -> None:
        if node.me.name == "A":
            self._turn += 1
            if self._turn % 5 == 0:  # it takes long
                self.most |= Counter(node.memory.stats(node._stack.layers))

    def flood(self, size: int) -> None:
        """All send as much as they may, to all and to the first."""
        to, count = self.node("A").me, min(300, 200_000 // size)
        for name in NAMES:
            for stream in BOTH:
                self.send(name, count, stream, size)
            process = self.process(name)
            process.node.send([b"." * size] * count, process.now, to=to)
            process.turn()


@pytest.mark.parametrize("size", [50, 900, 15_000])
def test_several_senders_and_a_slow_reader_stay_below_the_limit(size: int) -> None:
    group = Limited()
    group.read("A", 0)
    for _ in range(2):
        group.flood(size)
        group.run(200)
    a = group.node("A")
    stalled = taken(a)
    assert stalled > 50_000  # so it is the limit that holds them up
    assert any(
        why.startswith(f"{stalled / (1 << 20):.1f} of {FOUR / (1 << 20) + 0.19:.1f} MB are taken")
        for why in a.explain(group.process("A").now)
    ), a.explain(0)
    assert any(group.node(name).multicast.is_blocked(Stream.FIFO) for name in NAMES)
    group.read("A", 20)
    group.flood(size)
    group.run(500)
    group.read("A")
    assert group.run_until(group.is_quiet, 60_000), group.waits()
    assert group.undelivered() == []
    assert group.observed.violations() == []
    assert taken(a) == 0
    memory, most = a.memory, group.most
    assert most["taken"] <= memory.limit == SLOW.memory_limit
    windows = memory.config.multicast.window_bytes * memory._count_windows(4)
    assert most["sent"] + most["received"] + most["unicast"] <= windows < 350_000
    assert all(most[what] <= size for what, size in memory._apart(4).items())


def test_who_sends_more_than_it_may_is_not_heard_until_there_is_room() -> None:
    """Senders do not know of the limit before the first ack."""
    group = Limited()
    group.read("A", 0)
    for name in NAMES[1:]:
        group.send(name, 250, size=900)
    group.run(100)
    receivers = group.node("A").multicast.receivers.values()
    assert any(receiver.window.dropped_bytes for receiver in receivers)
    part = group.node("A").multicast.config.held_bytes
    assert part is not None
    assert all(receiver.window.held <= part for receiver in receivers)  # type: ignore[attr-defined]
    group.read("A")
    assert group.run_until(group.is_quiet, 10_000), group.waits()
    assert group.undelivered() == []


def test_a_view_change_waits_for_no_reader() -> None:
    group = Limited()
    group.read("A", 0)
    for name in NAMES[1:]:
        group.send(name, 250, size=900)
    group.run(100)
    group.crash("D")
    assert group.run_until(lambda: group.view("A") == group.view("B") == "ABC", 5_000)
    group.read("A")
    assert group.run_until(group.is_quiet, 10_000), group.waits()
    assert group.observed.violations() == []


def test_a_limit_that_is_too_small_is_told_with_the_smallest_that_works() -> None:
    least = Memory(WIDE, len(BOTH), has_state=False).least(2)
    with pytest.raises(ConfigError) as caught:
        build(least - 1)
    assert str(caught.value) == (
        f"memory_limit = {least - 1}: must be at least {least} for 2 members: 160000 of it is for "
        "large messages, less with a smaller max_message_bytes"
    )
    assert build(least).memory.limit == least


def test_a_view_that_is_too_large_for_the_limit_is_told() -> None:
    least = Memory(WIDE, len(BOTH), has_state=False).least(2)
    group = ViewGroup("ABC", config=replace(WIDE, memory_limit=least)).form()
    need = Memory(WIDE, len(BOTH), has_state=False).least(3)
    (why,) = group.node("A").explain(0)
    assert why.startswith(f"memory_limit is {least}, and cannot be kept: give at least {need} for")


def test_without_a_limit_windows_are_as_they_are_configured() -> None:
    node = build(None)
    found = node.memory.stats(node._stack.layers)
    assert found["taken"] == 0
    assert found["limit"] > FOUR
    assert node.multicast.config == WIDE.multicast
    assert node.memory.explain(node._stack.layers) == []
