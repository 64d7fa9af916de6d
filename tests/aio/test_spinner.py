"""Staying awake after a datagram: for so long, before nobody else, and only where one can come."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from loopback_groups import numbered, read, with_members

from ringcast.aio import spinner
from ringcast.aio.spinner import Spinner
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ringcast import Group

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(spinner, "monotonic_ns", made)
    return made


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        yield one, other


def counted(inputs: Collection[int]) -> tuple[list[int], Callable[[], Collection[int]]]:
    """A list that grows by one with every look for what there is to look at."""
    looks: list[int] = []

    def look() -> Collection[int]:
        looks.append(len(looks))
        return inputs

    return looks, look


async def turn(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_it_turns_until_its_time_is_up(
    clock: Clock, ends: tuple[socket.socket, socket.socket]
) -> None:
    async def main() -> None:
        looks, inputs = counted([ends[0].fileno()])
        spinning = Spinner(asyncio.get_running_loop(), inputs, 0.002)
        await turn(5)
        assert looks == []  # nothing has come yet
        spinning.stay_awake()
        await turn(5)
        assert len(looks) == 5
        clock.now = 1 * MS
        spinning.stay_awake()  # as long again, and not twice as often
        clock.now = 2 * MS
        await turn(5)
        assert len(looks) == 10
        clock.now = 3 * MS
        await turn(5)
        assert len(looks) == 10
        spinning.stay_awake()
        await turn(1)
        assert len(looks) == 11
        spinning.close()
        await turn(5)
        assert len(looks) == 11

    asyncio.run(main())


@pytest.mark.usefixtures("clock")
def test_whoever_waited_for_a_datagram_goes_first(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[socket.socket, socket.socket]
) -> None:
    """The first turn after a datagram does not look; those that follow do, until one comes."""
    polls = 0

    class Poll:
        def register(self, descriptor: int, events: int) -> None:
            assert (descriptor, events) == (ends[0].fileno(), spinner.select.POLLIN)

        def poll(self, timeout: int) -> list[tuple[int, int]]:
            nonlocal polls
            polls += 1
            return [(0, 1)] if polls == spinner.LOOKS + 3 else []

    monkeypatch.setattr(spinner.select, "poll", Poll)

    async def main() -> None:
        spinning = Spinner(asyncio.get_running_loop(), lambda: [ends[0].fileno()], 0.001)
        spinning.stay_awake()
        await turn(1)
        assert polls == 0
        await turn(1)
        assert polls == spinner.LOOKS
        await turn(1)
        assert polls == spinner.LOOKS + 3  # it is there: the loop is to read it
        spinning.stay_awake()
        await turn(1)
        assert polls == spinner.LOOKS + 3
        spinning.close()

    asyncio.run(main())


@pytest.mark.parametrize(("spin_s", "inputs"), [(0.0, [0]), (0.001, [])])
def test_it_sleeps_where_nobody_wants_it_awake(spin_s: float, inputs: list[int]) -> None:
    async def main() -> None:
        looks, look = counted(inputs)
        Spinner(asyncio.get_running_loop(), look, spin_s).stay_awake()
        await turn(5)
        assert len(looks) == (spin_s > 0)

    asyncio.run(main())


@pytest.mark.parametrize("transport", ["udp", "multicast", "tcp"])
def test_members_that_stay_awake_ask_and_answer(transport: str) -> None:
    async def exchange(a: Group, b: Group) -> None:
        async def reply() -> None:
            async for request in b.requests():
                request.reply(request.payload[::-1])

        replying = asyncio.create_task(reply())
        for number in range(20):
            asked = b"%d!" % number
            assert await a.request(b.me, asked) == asked[::-1]
        replying.cancel()
        await a.send_many(numbered("A", 3))
        assert await read(b, 3) == [("A", payload) for payload in numbered("A", 3)]

    with_members(2, transport=transport, spin_s=0.01)(exchange)


def test_virtual_time_goes_on() -> None:
    with cluster(2, spin_s=1.0) as town:
        town.run(asyncio.sleep(5.0))
        assert len(town.members[1].group.view) == 2
