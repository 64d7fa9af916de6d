"""How long senders are held up by changes, in virtual time at 1 ms one way; and what three steady
senders deliver while members come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.core.effects import Suspected
from ringcast.model import Address, Member
from ringcast.node import build_node
from ringcast.protocols.views.streams import Standing
from ringcast.sim.clock import ns
from ringcast.sim.crowd import Crowd
from ringcast.sim.plain import FixedDelay, LoseWhere, PlainMember, begin, plain_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.events import Event
    from ringcast.node import Node
    from ringcast.sim.world import Flight, Process

DELAY_MS = 1.0
CONFIG = GroupConfig(group="times", multicast=MulticastConfig(datagram_bytes=1400))


class Group:
    """Members that know where each other may be found, and for how long each was frozen."""

    def __init__(self, *, refuses: bool = False) -> None:
        """`refuses`: whoever sends to nobody learns that at once, as on one machine."""
        self.world = plain_world(hint_ms=0.0 if refuses else None, start=1_000_000_000)
        self.is_cut: Callable[[Flight], bool] = lambda flight: False
        self.world.network.faults = [
            LoseWhere(lambda flight: self.is_cut(flight)),
            FixedDelay(ns(DELAY_MS)),
        ]
        self.addresses: list[Address] = []
        self.views: dict[Address, int] = {}
        self.delivered: dict[Address, int] = {}
        self.held_ms: dict[Address, list[float]] = {}
        self._frozen: dict[Address, int] = {}
        self._started = 0

    def start(self) -> Address:
        self._started += 1
        address = Address("10.0.0.1", 10_000 + self._started)
        self.addresses.append(address)
        me = Member(address, 1, f"m{self._started}")
        self.views[address] = self.delivered[address] = 0
        self.held_ms[address] = []
        resident = PlainMember(build_node(me, replace(CONFIG, name=me.name)), self._see)
        resident.before_sending = self._watch
        begin(self.world, resident, self.addresses)
        return address

    def form(self, count: int) -> list[Address]:
        made = [self.start() for _ in range(count)]
        assert self.world.run_until(lambda: self.is_one(made), 10_000.0)
        self.world.run_for(1_000.0)
        return made

    def process(self, address: Address) -> Process[PlainMember]:
        return self.world.processes[address]

    def crash(self, address: Address) -> None:
        self.process(address).crash()
        self.addresses.remove(address)

    def is_one(self, addresses: list[Address] | None = None) -> bool:
        views = [self.process(address).node.view for address in addresses or self.addresses]
        first = views[0]
        is_same = all(
            view is not None and first is not None and view.id == first.id for view in views
        )
        return is_same and first is not None and len(first) == len(views)

    def forget(self) -> None:
        """What was counted so far."""
        for address in self.views:
            self.views[address] = self.delivered[address] = 0
            self.held_ms[address] = []

    def longest(self, addresses: list[Address]) -> float:
        return max(held for address in addresses for held in self.held_ms[address])

    def _see(self, me: Member, event: Event) -> None:
        kind = type(event).__name__
        if kind == "ViewInstalled":
            self.views[me.address] += 1
        elif kind == "Delivered":
            self.delivered[me.address] += len(event.run.payloads)  # type: ignore[union-attr]

    def _watch(self, node: Node) -> None:
        """Senders are held up from the freeze to the view."""
        address, now = node.me.address, self.world.clock.now
        if node.multicast.standing is not Standing.OPEN:
            self._frozen.setdefault(address, now)
        elif address in self._frozen:
            self.held_ms[address].append((now - self._frozen.pop(address)) / 1e6)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_join_and_a_leave_hold_senders_up_for_ten_milliseconds_at_most(count: int) -> None:
    group = Group()
    members = group.form(count)
    group.forget()
    joiner = group.start()
    assert group.world.run_until(group.is_one, 2_000.0)
    print(f"{count} members, join: {group.longest(members):.1f} ms")  # noqa: T201
    assert group.longest(members) <= 10.0
    assert {group.views[address] for address in members} == {1}
    group.world.run_for(1_000.0)
    for leaver in (joiner, members[0]):
        group.forget()
        process = group.process(leaver)
        process.node.leave(process.now)
        process.turn()
        group.addresses.remove(leaver)
        staying = list(group.addresses)
        assert group.world.run_until(group.is_one, 2_000.0)
        print(f"{count} members, leave: {group.longest(staying):.1f} ms")  # noqa: T201
        assert group.longest(staying) <= 10.0
        group.world.run_for(1_000.0)


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("place", [0, 1])
def test_a_crash_holds_senders_up_for_ten_milliseconds_beyond_detection(
    count: int, place: int
) -> None:
    """Detection is when somebody suspects it; the coordinator is told by who does."""
    group = Group()
    members = group.form(count)
    group.forget()
    gone = members.pop(place)
    member = group.process(gone).node.me
    group.crash(gone)
    group.world.run_for(1.0)
    start = group.world.clock.now
    for address in members:
        process = group.process(address)
        process.node.effects.signal(Suspected(member, "it has crashed"))
        process.node.handle_timeout(process.now)
        process.turn()
    assert group.world.run_until(group.is_one, 2_000.0)
    took = (group.world.clock.now - start) / 1e6
    print(f"{count} members, crash: {took:.1f} ms")  # noqa: T201
    assert took <= 10.0
    assert group.longest(members) <= 10.0


def test_four_parts_of_ten_come_together_by_one_change_in_twenty_milliseconds() -> None:
    group = Group()
    part = {Address("10.0.0.1", 10_001 + n): n % 4 for n in range(40)}
    group.is_cut = lambda flight: part[flight.link.source] != part[flight.link.dest]
    members = [group.start() for _ in range(40)]
    sides = [[a for a in members if part[a] == side] for side in range(4)]
    assert group.world.run_until(lambda: all(map(group.is_one, sides)), 10_000.0)
    group.world.run_for(3_000.0)
    group.forget()
    group.is_cut = lambda flight: False
    assert group.world.run_until(group.is_one, 10_000.0)
    group.world.run_for(1_000.0)
    print(f"merge of 4 × 10: {group.longest(members):.1f} ms")  # noqa: T201
    assert group.longest(members) <= 20.0
    assert set(group.views.values()) == {1}


SENDERS = 3
CHURN_S = 30


def steady(*, churns: bool) -> int:
    """Messages that three senders deliver in so many seconds. Each sends as fast as its window lets
    it, in small runs; with `churns` somebody joins each second, and somebody crashes."""
    group = Group(refuses=True)
    senders = group.form(SENDERS)
    others: list[Address] = []
    group.forget()

    def offer() -> None:
        for address in senders:
            process = group.process(address)
            process.node.send([b"x" * 100] * 20, process.now)
            process.turn()

    for tick in range(CHURN_S * 1000 // 10):
        second, part = divmod(tick, 100)
        if churns and part == 0:
            others.append(group.start())
        if churns and part == 50 and second:
            group.crash(others.pop(0))
        offer()
        group.world.run_for(10.0)
    return min(group.delivered[address] for address in senders)


@pytest.mark.proof
def test_three_steady_senders_deliver_seven_tenths_while_members_come_and_go() -> None:
    still, churned = steady(churns=False), steady(churns=True)
    print(f"{churned} of {still} messages: {churned / still:.2f}")  # noqa: T201
    assert churned >= 0.7 * still


# A cold start


class Late:
    """Each link has a delay of its own."""

    def __init__(self, most_ms: float) -> None:
        self._most = most_ms

    def __call__(self, flight: Flight, dice: object) -> list[Flight]:
        link = flight.link
        share = (link.source.port * 31 + link.dest.port * 17) % 97 / 97
        flight.due += ns(1.0 + self._most * share)
        return [flight]


@pytest.mark.parametrize(
    ("count", "most_ms"),
    [(40, 0.0), *(pytest.param(100, most_ms, marks=pytest.mark.proof) for most_ms in (0.0, 30.0))],
)
def test_a_cold_start_takes_four_changes_at_most(count: int, most_ms: float) -> None:
    multicast = MulticastConfig(capacity=16, datagram_bytes=1400, window_bytes=65_536)
    crowd = Crowd(count, multicast=multicast)
    crowd.world.network.faults = [crowd, Late(most_ms)]
    seen: dict[Address, int] = {}
    for place in range(count):
        node = crowd.start(place)
        resident = crowd.world.processes[node.me.address].resident
        seen[node.me.address] = 0

        def see(me: Member, event: Event) -> None:
            seen[me.address] += type(event).__name__ == "ViewInstalled"

        resident._see = see
    took = crowd.run_until_one_view(5_000.0, 10.0)
    assert crowd.is_one
    most = max(seen.values())
    print(f"cold start of {count}, links of 1 to {1 + most_ms:g} ms: {took:.0f} ms, {most} views")  # noqa: T201
    assert most <= 4
