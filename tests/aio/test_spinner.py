"""Staying awake after a datagram: for so long, before nobody else, and only where one can come."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING

import pytest
from loopback_groups import numbered, read, with_members

from ringcast.aio import spinner
from ringcast.aio.spinner import LOOKS, Spinner
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast import Group
    from ringcast.aio.transport import Inputs

MS = 1_000_000


class Clock:
    """A time that only looks at sockets take: there is time for three bursts of them in a turn."""

    def __init__(self) -> None:
        self.now = 0
        self.looks = 0
        self.arrives_at = 0  # which look finds something

    def __call__(self) -> int:
        return self.now

    def look(self, timeout: int) -> list[tuple[int, int]]:
        assert timeout == 0
        self.looks += 1
        self.now += spinner.TURN_NS // (3 * spinner.LOOKS) + 1
        return [(7, select.POLLIN)] if self.looks == self.arrives_at else []


class Poll:
    """Looks at nothing, for as long as it takes."""

    def __init__(self, clock: Clock) -> None:
        self.poll = clock.look

    def register(self, descriptor: int, events: int) -> None:
        assert descriptor in (7, 8)
        assert events == select.POLLIN


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(spinner, "monotonic_ns", made)
    monkeypatch.setattr(select, "poll", lambda: Poll(made))
    return made


def counted(inputs: Inputs) -> tuple[list[int], Callable[[], Inputs]]:
    """A list that grows by one with every look for what there is to look at."""
    looks: list[int] = []

    def look() -> Inputs:
        looks.append(len(looks))
        return inputs

    return looks, look


def unread() -> None:
    raise AssertionError("nothing is there")


async def turn(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_it_turns_until_its_time_is_up(clock: Clock) -> None:
    async def main() -> None:
        looks, inputs = counted({7: unread})
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


def test_whoever_waited_for_a_datagram_goes_first(clock: Clock) -> None:
    """The first turn after a datagram does not look. Those that follow do, until their time is up
    or one comes."""

    async def main() -> None:
        read: list[int] = []
        inputs = {7: lambda: read.append(clock.looks), 8: unread}
        spinning = Spinner(asyncio.get_running_loop(), lambda: inputs, 0.001)
        spinning.stay_awake()
        await turn(1)
        assert clock.looks == 0
        await turn(1)
        assert clock.looks == 3 * LOOKS
        clock.arrives_at = 3 * LOOKS + 2
        await turn(1)
        assert read == [clock.looks] == [clock.arrives_at]
        spinning.stay_awake()
        await turn(1)
        assert clock.looks == clock.arrives_at
        spinning.close()

    asyncio.run(main())


@pytest.mark.parametrize(("spin_s", "inputs"), [(0.0, {7: unread}), (0.001, {})])
def test_it_sleeps_where_nobody_wants_it_awake(spin_s: float, inputs: Inputs) -> None:
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


def test_a_request_that_is_not_answered_keeps_a_member_awake() -> None:
    async def exchange(a: Group, b: Group) -> None:
        spinner = b._driver._spinner
        assert spinner is not None
        awake: list[int] = []

        async def read_all() -> None:
            async for request in b.requests():
                if request.payload == b"warm":
                    request.reply(b"")
                else:
                    awake.append(0)

        task = asyncio.create_task(read_all())
        await a.request(b.me, b"warm")
        stay_awake = spinner.stay_awake

        def counted() -> None:
            awake.append(1)
            stay_awake()

        spinner.stay_awake = counted  # type: ignore[method-assign]
        asking = asyncio.create_task(a.request(b.me, b"?"))
        while 0 not in awake:
            await asyncio.sleep(0)
        assert awake[awake.index(0) + 1] == 1
        for each in (asking, task):
            each.cancel()

    with_members(2, spin_s=0.001)(exchange)
