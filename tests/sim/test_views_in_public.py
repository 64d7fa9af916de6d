"""What went wrong where members joined, merged, died and came back, as applications saw it.

Public API in virtual time, default settings; tests/scripts/views has these and others step by step.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from seeded import seeds

from ringcast import Delivered, MembershipConfig, TooFewMembers, ViewInstalled
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ringcast import Group
    from ringcast.aio.read_queue import Guarantee
    from ringcast.aio.state import TakeState
    from ringcast.testing import Cluster, Process

HEAL_S = 2.0
"""How long it takes at most until parts that hear each other are one view."""


def names(process: Process) -> str:
    return "".join(sorted(member.name for member in process.group.view))


async def read(group: Group) -> None:
    async for _ in group:
        pass


class Listener:
    """What each member has delivered."""

    def __init__(self) -> None:
        self.got: dict[str, list[bytes]] = {}

    async def __call__(self, group: Group) -> None:
        mine = self.got.setdefault(group.me.name, [])
        async for message in group:
            mine.append(message.payload)


def form(town: Cluster, members: str) -> list[Process]:
    """These, in one view, and each of them reads."""
    processes = [town.run(town.join(name)) for name in members]
    for process in processes:
        process.start(read)
        town.run(process.group.wait_for_view(lambda view: len(view) == len(members)))
    return processes


async def one_view(processes: Sequence[Process]) -> None:
    """They are in one view, and nobody else is."""
    members = {process.group.me for process in processes}
    for process in processes:
        await process.group.wait_for_view(lambda view: set(view) == members)


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_a_member_crashes_while_another_joins_that_is_not_reached_for_a_while(seed: int) -> None:
    """The group does not wait for it; it comes in when it is heard."""
    listener = Listener()
    with cluster(2, seed=seed) as town:
        first, second = town.members

        async def story() -> None:
            joining = asyncio.ensure_future(town.join("J", join_timeout_s=600))
            await first.group.wait_for_view(lambda view: len(view) == 3)
            second.crash()
            joiner = town.members[-1]
            town.partition([joiner])
            first.start(listener)
            await asyncio.sleep(1.0)
            await first.group.send(b"meanwhile", guarantee="uniform")
            await asyncio.sleep(1.45)
            assert listener.got == {"m0": [b"meanwhile"]}
            town.heal()
            await joining
            async with asyncio.timeout(HEAL_S):
                await one_view([first, joiner])
            late = await town.join("late")
            await one_view([first, joiner, late])

        town.run(story(), limit_s=60)


@pytest.mark.parametrize("guarantee", ["fifo", "uniform"])
@pytest.mark.parametrize("seed", seeds(2, 5))
def test_who_greets_a_newcomer_is_heard(guarantee: Guarantee, seed: int) -> None:
    """A message that is sent after its sender has seen a member in its view reaches that one."""
    listener = Listener()

    async def greet(group: Group) -> None:
        async for event in group.events():
            if isinstance(event, ViewInstalled) and "J" in {who.name for who in event.view}:
                await group.send(group.me.name.encode(), guarantee=guarantee)

    with cluster(3, seed=seed) as town:
        town.start(greet)
        town.run(asyncio.sleep(1))
        town.run(town.join("J")).start(listener)
        town.run(asyncio.sleep(1))
    assert sorted(listener.got["J"]) == [b"m0", b"m1", b"m2"]


@pytest.mark.parametrize("seed", seeds(2, 5))
def test_who_alone_went_on_with_a_coordinator_that_died_comes_back(seed: int) -> None:
    with cluster(0, seed=seed) as town:
        a, b, c, d, x = form(town, "ABCDX")

        async def story() -> None:
            await asyncio.sleep(1 + seed * 0.017)
            town.partition([a, d, x], [b, c])
            leaving = asyncio.ensure_future(x.leave())
            await d.group.wait_for_view(lambda view: x.group.me not in view)
            a.crash(silently=True)
            await one_view([b, c])
            town.heal()
            async with asyncio.timeout(20):  # a member was lost just now, which costs a pause
                await one_view([b, c, d])
            await leaving

        town.run(story(), limit_s=60)


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("parts", ["A B C", "AB CD E", "ABC DE F", "ABCD EFGH I J"])
def test_parts_that_hear_each_other_again_become_one_by_one_change(parts: str, seed: int) -> None:
    """Within two seconds, and everybody is who it was."""
    views: dict[str, list[int]] = {}

    async def watch(group: Group) -> None:
        seen = views.setdefault(group.me.name, [])
        async for event in group.events():
            if isinstance(event, ViewInstalled):
                seen.append(len(event.view))

    with cluster(0, seed=seed) as town:
        everybody = {name: town.run(town.join(name)) for name in parts.replace(" ", "")}
        town.run(asyncio.sleep(1))
        sides = [[everybody[name] for name in part] for part in parts.split()]

        async def story() -> None:
            town.start(watch)
            before = [process.group.me for process in everybody.values()]
            town.partition(*sides)
            for side in sides:
                await one_view(side)
            await asyncio.sleep(20 + seed * 0.3)
            for seen in views.values():
                seen.clear()
            town.heal()
            async with asyncio.timeout(HEAL_S):
                await one_view([*everybody.values()])
            await asyncio.sleep(1)
            assert [process.group.me for process in everybody.values()] == before

        town.run(story(), limit_s=120)
    assert views == {name: [len(everybody)] for name in everybody}


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_who_is_cut_off_with_a_uniform_message_delivers_it_alone_and_is_told(seed: int) -> None:
    """`min_members` stops what it sends next; what was under way is its part's."""
    told: dict[str, list[int]] = {}
    got: dict[str, list[bytes]] = {}

    async def watch(group: Group) -> None:
        async for event in group.events():
            if isinstance(event, ViewInstalled):
                told.setdefault(group.me.name, []).append(len(event.unconfirmed))
            elif isinstance(event, Delivered):
                got.setdefault(group.me.name, []).extend(event.run.payloads)

    with cluster(5, seed=seed, min_members=3) as town:
        town.start(watch)
        a, *others = town.members

        async def story() -> None:
            await asyncio.sleep(1)
            town.partition([a], others)
            await a.group.send(b"alone", guarantee="uniform")
            await one_view([a])
            with pytest.raises(TooFewMembers):
                async with asyncio.timeout(60):
                    await a.group.send(b"refused", guarantee="uniform")
            town.heal()
            await one_view(town.members)
            await a.group.send(b"together", guarantee="uniform")
            await asyncio.sleep(1)

        town.run(story(), limit_s=120)
    assert got.pop(a.name) == [b"alone", b"together"]
    assert [*got.values()] == [[b"together"]] * 4
    assert sum(told.pop(a.name)) == 1
    assert sum(sum(counts) for counts in told.values()) == 0


def test_who_is_slow_with_a_link_that_is_broken_is_left_out_once() -> None:
    """`slow_member_timeout_s` does not leave out one after the other of those who are well."""
    views: dict[str, int] = {}

    async def watch(group: Group) -> None:
        async for event in group.events():
            views[group.me.name] = views.get(group.me.name, 0) + isinstance(event, ViewInstalled)

    with cluster(4, seed=3, membership=MembershipConfig(slow_member_timeout_s=1.0)) as town:
        town.start(watch)
        x, y = town.members[1], town.members[3]

        async def story() -> None:
            await asyncio.sleep(1)
            views.clear()
            town.cut([x], [y])
            town.cut([y], [x])
            for _ in range(60):
                for process in town.members:
                    process.group.try_send(bytes(10_000))
                await asyncio.sleep(1)

        town.run(story(), limit_s=100)
    assert views == {process.name: 1 for process in town.members}


@pytest.mark.parametrize("size", [4, 9])
def test_one_broken_link_between_two_that_do_not_coordinate(size: int) -> None:
    """One of the two is left out, always the same; senders go on; it comes back with the link."""
    members = "ABCDEFGHI"[:size]
    with cluster(0, seed=size) as town:
        everybody = form(town, members)
        x, y = everybody[-3], everybody[-1]

        async def story() -> None:
            before = [process.group.me for process in everybody]
            town.cut([x], [y])
            town.cut([y], [x])
            for process in everybody:
                process.start(chatter)
            await asyncio.sleep(5)
            without = "".join(name for name in members if name != y.name)
            sent = {process.name: counts[process.group.me.name] for process in everybody}
            for _ in range(5):
                await asyncio.sleep(2)
                assert {names(process) for process in everybody} == {without, y.name}
            for name, count in sent.items():
                assert counts[name] > count + 10
            town.heal()
            async with asyncio.timeout(20):
                await one_view(everybody)
            assert [process.group.me for process in everybody] == before

        counts = dict.fromkeys(members, 0)

        async def chatter(group: Group) -> None:
            while True:
                await group.send(b"x")
                counts[group.me.name] += 1
                await asyncio.sleep(0.5)

        town.run(story(), limit_s=120)


def test_a_state_that_begins_before_its_reader_is_ready_is_taken() -> None:
    """The parts are one again. C still reads what came before, when it hears that a state is to
    come; who gives that takes longer than C to its end."""
    states: dict[str, list[bytes]] = {}

    async def give() -> AsyncIterator[bytes]:
        await asyncio.sleep(6.0)
        yield b"state"

    def take(name: str) -> TakeState:
        async def take_state(chunks: AsyncIterator[bytes]) -> None:
            states.setdefault(name, []).append(b"".join([chunk async for chunk in chunks]))

        return take_state

    async def read_slowly(group: Group) -> None:
        async for message in group:
            if message.payload == b"C0":
                await asyncio.sleep(3.0)

    with cluster(0, seed=1) as town:
        for name in "ABC":
            town.run(town.join(name, give_state=give, take_state=take(name))).start(read_slowly)
        *others, c = town.members
        town.partition(others, [c])
        town.run(asyncio.sleep(6.0))
        assert len(c.group.view) == 1
        town.run(c.group.send(b"C0"))
        town.run(asyncio.sleep(0.1))
        town.run(c.group.send(b"C1"))  # nobody has taken it when the parts are one
        town.heal()
        town.run(asyncio.sleep(20.0))
        assert {name: len(taken) for name, taken in states.items()} == {"B": 1, "C": 2}
        assert c.group.explain() == []
