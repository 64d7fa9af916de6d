"""What may befall structures in a group, case by case."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import ringcast
from ringcast.testing import cluster
from support.histories import Store, Worker
from support.towns import a_town, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ringcast.replicated import Token
    from ringcast.testing import Process


def test_a_joiner_goes_first_and_orders_before_its_state_is_here() -> None:
    """Who has the state by then gives it, with what was ordered meanwhile behind it."""
    with cluster(0, seed=23) as c:
        town = a_town(c, 1)
        (oldest,) = c.members
        worker = Worker("slow", town.history)
        may_take, is_asked = asyncio.Event(), asyncio.Event()

        async def take(chunks: AsyncIterator[bytes]) -> None:
            is_asked.set()
            await may_take.wait()
            await worker.space.take_state(chunks)

        async def main() -> None:
            hooks: Any = {"give_state": worker.space.give_state, "take_state": take}
            joining = ringcast.join("test", name="slow", **hooks)
            async with joining as group, worker.space.serve(group):
                await worker.items.set("after", "after")
                await asyncio.Event().wait()

        async def write(key: str, process: Process) -> None:
            items = town.workers[process].items
            await asyncio.wait([process.start(lambda _: items.set(key, key))])

        c.run(write("early", oldest))
        slow = c.launch(main, "slow")
        c.run(is_asked.wait())
        other = town.add()
        assert other.group.view.members[1].name == "slow"
        oldest.crash()
        c.run(town.until_views_of(2))
        first, _ = other.group.view
        assert first.name == "slow"
        c.run(write("late", other))
        assert worker.space._closed  # its state is not here
        may_take.set()
        town.workers[slow] = worker
        c.run(until(lambda: "after" in town.workers[other].items))
        c.run(town.until_same())
        assert dict(worker.items.items()) == {"early": "early", "late": "late", "after": "after"}


@pytest.mark.parametrize("at", [0, 1], ids=["sequencer", "another"])
@pytest.mark.parametrize("how", ["killed", "stopped", "cut off"])
def test_what_a_lock_protects_sees_no_token_that_falls(how: str, at: int) -> None:
    """Who holds it writes on as long as it believes that it does."""
    with cluster(0, seed=25) as c:
        town, store = a_town(c), Store()
        holder, *others = [
            c.members[at],
            *(each for each in c.members if each is not c.members[at]),
        ]
        own, next_one = town.workers[holder], town.workers[others[0]]
        tokens: list[Token] = []

        async def hold(_: object) -> None:
            tokens.append(await own.lock.acquire())
            while not own.lock.lost.is_set():
                store.write("holder", tokens[0])
                await asyncio.sleep(0.05)
            store.write("holder", tokens[0])  # what was on its way

        async def follow(_: object) -> None:
            async with next_one.lock as token:
                tokens.append(token)
                assert store.write("next", token)
                await asyncio.sleep(30.0)
                assert store.write("next", token)

        holder.start(hold)
        c.run(until(lambda: store.accepted))
        following = others[0].start(follow)
        c.run(asyncio.sleep(1.0))
        assert len(tokens) == 1
        match how:
            case "killed":
                holder.crash(silently=True)
            case "stopped":
                holder.pause()
            case _:
                c.partition([holder], others)
        c.run(asyncio.sleep(10.0))
        assert store.accepted[-1] == "next"
        holder.resume()
        c.heal()
        c.run(asyncio.wait([following]))
        following.result()
        assert store.accepted[-1] == "next"
        assert (store.refused > 0) is (how != "killed")
        assert own.lock.lost.is_set()
        assert bytes(tokens[0]) < bytes(tokens[1])


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.proof) for n in (2, 3))])
def test_each_part_is_linearizable_by_itself_and_all_end_with_the_same(seed: int) -> None:
    with cluster(0, seed=seed) as c:
        town = a_town(c, 5)
        town.work(seed, 3)
        c.run(asyncio.sleep(0.3))
        parts = c.members[:3], c.members[3:]
        c.partition(*parts)
        c.run(asyncio.sleep(6.0))
        for number, part in enumerate(parts):
            town.work(100 * seed + number, 3, of=list(part))
        c.run(asyncio.sleep(0.3))
        c.members[1].crash()
        c.run(asyncio.sleep(6.0))
        for number, part in enumerate(parts):
            worker, other = town.workers[part[0]], town.workers[part[-1]]
            assert len(worker.space.view) == 2
            writing = worker.items.set("fresh", number)
            c.run(asyncio.wait([part[0].start(lambda _, writing=writing: writing)]))
            reading = other.items.get("fresh", fresh=True)
            task = part[-1].start(lambda _, reading=reading: reading)
            c.run(asyncio.wait([task]))  # it begins when the other one has its answer
            assert task.result() == number
            town.history.check(worker)
            assert town.history.answered - town.history.lost > 10
            assert town.history.lost > 0  # what the other part was answered
        c.heal()
        c.run(town.until_views_of(4))
        c.run(town.until_same())
        town.work(1000 * seed, 3)
        c.run(asyncio.sleep(3.0))
        c.run(town.until_same())
        town.history.check(town.alive[0])


@pytest.mark.parametrize("megabytes", [3, pytest.param(100, marks=pytest.mark.proof)])
def test_a_large_state_comes_while_structures_and_messages_are_used(megabytes: int) -> None:
    with cluster(0, seed=27) as c:
        town = a_town(c, 2)
        first, second = c.members
        found: dict[Process, dict[int, bytes]] = {}

        async def fill(_: object) -> None:
            for number in range(megabytes):
                await town.workers[first].items.set(f"large{number}", "x" * 1_000_000)

        async def read(process: Process) -> None:
            own = found[process] = {}
            async for message in town.workers[process].space.messages():
                own[message.position] = message.payload

        async def send(group: ringcast.Group) -> None:
            for number in range(200):
                await group.send(b"%d" % number, guarantee="total")
                await asyncio.sleep(0.005)

        c.run(asyncio.wait([first.start(fill)]))
        for process in (first, second):
            process.start(lambda _, process=process: read(process))  # type: ignore[misc]
        sending = second.start(send)
        town.work(27)
        joiner = town.add()
        joined_at = town.workers[joiner].space._machine.position
        joiner.start(lambda _: read(joiner))
        town.work(28, of=[joiner])
        c.run(asyncio.wait([sending]))
        c.run(town.until_same())
        assert len(town.workers[joiner].items) >= megabytes
        assert found[first] == found[second]
        late = {at: said for at, said in found[first].items() if at > joined_at}
        assert found[joiner] == late
        assert len(late) > 10
        town.history.check(town.alive[0])
