"""One order of total messages in groups that scripts are too small for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MulticastConfig
from ringcast.events import Delivered
from ringcast.model import Address, Member, Stream
from ringcast.node import build_node
from ringcast.protocols.total import history
from ringcast.rules import bounds
from ringcast.sim.plain import PlainMember, begin
from support.script import run_script
from support.total_defects import DEFECTS
from tools.view_changes import CONFIG, FORM_MS, Assembly

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.node import Node

LARGEST = 8000
WINDOW_OF_ONE = replace(
    CONFIG,
    multicast=MulticastConfig(
        capacity=1, datagram_bytes=1400, window_bytes=1 << 16, max_message_bytes=LARGEST
    ),
)
ROUNDS = 2


class Origins(Assembly):
    """Members that send total messages, each of which has room for one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.taken: dict[Member, list[tuple[str, int, int]]] = {}
        for _ in range(count):
            self.start()
            if len(self.nodes) in (1, count):
                assert self.world.run_until(self.is_one, FORM_MS)
        self.left = dict.fromkeys(self.nodes, ROUNDS)

    def start(self) -> Node:
        address = Address("10.0.0.1", 10_000 + len(self.world.processes))
        me = Member(address, 1, f"member-{address.port}")
        node = build_node(me, WINDOW_OF_ONE, streams=(Stream.FIFO, Stream.TOTAL))
        self.taken[me] = []
        first = next(iter(self.nodes), address)
        self.nodes[address] = node
        begin(self.world, PlainMember(node, self._see), [first])
        return node

    def _see(self, me: Member, event: Event) -> None:
        if isinstance(event, Delivered):
            for at, payload in enumerate(event.run.payloads):
                said = event.sender.name, event.run.first + at, len(payload)
                assert event.position + at == len(self.taken[me]) + 1
                self.taken[me].append(said)

    def send(self, address: Address, size: int) -> None:
        process, node = self.world.processes[address], self.nodes[address]
        self.left[address] -= node.send([bytes(size)], process.now, stream=Stream.TOTAL)
        process.turn()

    def go_on(self) -> bool:
        """Who has more to send does, as soon as there is room. Whether nobody has."""
        for address, left in self.left.items():
            if left and not self.nodes[address].multicast.is_blocked(Stream.TOTAL):
                self.send(address, 10)
        return not any(self.left.values())


def use(origins: Origins) -> list[tuple[str, int, int]]:
    """What all have taken, when one has begun with a message as large as may be."""
    _, large, *_ = origins.nodes
    origins.left[large] = 1
    origins.send(large, LARGEST)
    assert origins.world.run_until(origins.go_on, 60_000.0)
    count = ROUNDS * (len(origins.nodes) - 1) + 1
    assert origins.world.run_until(
        lambda: all(len(taken) == count for taken in origins.taken.values()), 60_000.0
    )
    taken, *others = origins.taken.values()
    assert all(each == taken for each in others)
    return taken


def check_turns(taken: list[tuple[str, int, int]], members: int) -> None:
    """Each has had its first message in the order before anybody has its second, though one with a
    large message had begun before."""
    small = [origin for origin, _, size in taken if size < LARGEST]
    assert len(set(small[: members - 1])) == members - 1
    assert [size for *_, size in taken[: members - 1]] == [10] * (members - 1)


@pytest.mark.parametrize("count", [24, pytest.param(128, marks=pytest.mark.proof)])
def test_many_origins_with_windows_of_one_take_turns(count: int) -> None:
    origins = Origins(count)
    check_turns(use(origins), count)
    origins.world.run_for(2000.0)
    for node in origins.nodes.values():
        node.check_invariants()
        assert node.explain(origins.world.clock.now) == []


def test_an_order_without_turns_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, attribute, defect in DEFECTS["22 serves one origin"]:
        monkeypatch.setattr(owner, attribute, defect)
    taken = use(Origins(8))
    with pytest.raises(AssertionError):
        check_turns(taken, 8)


FORGETS = """
group A B D C total
----

send C 1 total
run
cut ABEFGH|CD
drop C>D system count=999
send C 2 total
advance 8s
----

join E
advance 2s
send E 11 total
run
crash E
advance 4s
join F
advance 2s
send F 21 total
run
crash F
advance 4s
----

heal ABEFGH|CD
advance 20s
explain C
----

heal
send C 3 total
run
----
"""


@pytest.mark.parametrize("room", [4, 5])
def test_who_comes_back_behind_too_many_others_is_told_that_nobody_knows(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are kept of those that went last, as many as a view has room for beside its members.
    C went first. Where its mark is known, what it has pending goes on."""
    monkeypatch.setattr(history, "VIEW_MEMBERS_MAX", room)
    monkeypatch.setattr(bounds, "MARKS_MAX", room)
    answered, violations = run_script(FORGETS)
    assert violations == []
    assert "\nC: waits for nothing\n" in answered
    if room == 5:
        assert "\nA, B, C, D: deliver C 2 total carried at 4\n" in answered
        assert "\nA, B, C, D: deliver C 3 total at 5\n" in answered
        assert "unconfirmed" not in answered
    else:
        assert "came D C, unconfirmed 1..1, unconfirmed 2..2\n" in answered
        assert "\nA, B, C, D: deliver C 3 total at 4\n" in answered
        assert "deliver C 2" not in answered
