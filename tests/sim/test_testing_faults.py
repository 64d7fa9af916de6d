"""What a cluster of `ringcast.testing` does to its processes and links."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MembershipConfig
from ringcast.errors import ConfigError, UsageError
from ringcast.testing import cluster

if TYPE_CHECKING:
    import ringcast
    from ringcast.testing import Cluster, Process

PATIENT = MembershipConfig(suspect_after_s=30.0)
"""Nobody is missed within the pauses of these tests."""


class Reader:
    """What each member has delivered, and when by its own clock."""

    def __init__(self) -> None:
        self.read: dict[str, list[bytes]] = {}

    async def __call__(self, group: ringcast.Group) -> None:
        mine = self.read.setdefault(group.me.name, [])
        async for message in group:
            mine.append(message.payload)


def say(c: Cluster, process: Process, *payloads: bytes) -> None:
    async def send_all() -> None:
        for payload in payloads:
            await process.group.send(payload)

    c.run(send_all())


def size(process: Process) -> int:
    return len(process.group.view)


def test_a_one_way_cut_loses_one_direction_alone() -> None:
    reader = Reader()
    with cluster(2, seed=1, membership=PATIENT) as c:
        a, b = c.members
        c.start(reader)
        c.cut([a], [b])
        say(c, a, b"lost")
        say(c, b, b"heard")
        c.run(asyncio.sleep(2))
        assert reader.read == {"m0": [b"lost", b"heard"], "m1": [b"heard"]}
        c.heal()
        c.run(asyncio.sleep(2))
        assert sorted(reader.read["m1"]) == [b"heard", b"lost"]


def test_whom_nobody_hears_is_excluded_though_it_hears_all() -> None:
    with cluster(3, seed=2) as c:
        *others, deaf = c.members
        c.cut([deaf], others)
        c.run(others[0].group.wait_for_view(lambda view: len(view) == 2))
        c.heal()
        c.run(others[0].group.wait_for_view(lambda view: len(view) == 3))


def test_a_paused_process_stands_still_and_then_catches_up() -> None:
    reader = Reader()
    with cluster(3, seed=3, membership=PATIENT) as c:
        c.start(reader)
        slept: list[float] = []

        async def sleeper(group: ringcast.Group) -> None:
            await asyncio.sleep(1)
            slept.append(c.now_s)

        sleeper_of = c.members[2]
        sleeper_of.start(sleeper)
        c.run(asyncio.sleep(0.1))
        began = c.now_s
        sleeper_of.pause()
        say(c, c.members[0], b"1", b"2", b"3")
        c.run(asyncio.sleep(10))
        assert reader.read["m1"] == [b"1", b"2", b"3"]
        assert reader.read["m2"] == []
        assert not slept
        sleeper_of.resume()
        c.run(asyncio.sleep(0.1))
        assert reader.read["m2"] == [b"1", b"2", b"3"]
        assert slept[0] == pytest.approx(began + 10, abs=0.2)


def test_what_is_called_on_a_paused_process_leaves_when_it_resumes() -> None:
    reader = Reader()
    with cluster(2, seed=4, membership=PATIENT) as c:
        c.start(reader)
        c.members[0].pause()
        say(c, c.members[0], b"late")
        c.run(asyncio.sleep(5))
        assert reader.read["m1"] == []
        c.members[0].resume()
        c.run(asyncio.sleep(1))
        assert reader.read["m1"] == [b"late"]


def test_a_timeout_that_came_too_late_in_a_pause_is_not_raised() -> None:
    """A timer that is cancelled by what the process does first when it resumes does not fire."""
    with cluster(1) as c:
        (process,) = c.members
        event = asyncio.Event()
        seen: list[str] = []

        async def waiter(group: ringcast.Group) -> None:
            async with asyncio.timeout(1):
                await event.wait()
            seen.append("in time")

        process.start(waiter)
        c.run(asyncio.sleep(0.5))
        process.pause()
        event.set()
        c.run(asyncio.sleep(5))
        process.resume()
        c.run(asyncio.sleep(0.1))
        assert seen == ["in time"]


def test_who_pauses_too_long_is_excluded_and_comes_back() -> None:
    with cluster(3, seed=5) as c:
        c.members[1].pause()
        c.run(c.members[0].group.wait_for_view(lambda view: len(view) == 2))
        c.members[1].resume()
        c.run(c.members[0].group.wait_for_view(lambda view: len(view) == 3))


def test_a_scenario_that_joins_members_belongs_to_none_of_them() -> None:
    """It goes on while one of them is paused, and after one of them was killed."""
    with cluster(0) as c:

        async def scenario() -> None:
            first, second = await c.join("first"), await c.join("second")
            first.pause()
            await asyncio.sleep(0.5)
            first.resume()
            leaving = asyncio.ensure_future(second.leave())
            first.crash()
            await leaving

        Context().run(c.run, scenario(), limit_s=60)  # as it is in a plain program: an empty one


def test_a_paused_process_can_be_killed() -> None:
    with cluster(2, seed=6) as c:
        c.members[1].pause()
        c.members[1].crash()
        c.run(c.members[0].group.wait_for_view(lambda view: len(view) == 1))
        with pytest.raises(UsageError, match="m1 is gone"):
            c.members[1].pause()


def elapsed(c: Cluster, process: Process, seconds: float) -> float:
    """How long a sleep of this process takes in true time."""

    async def app(group: ringcast.Group) -> float:
        began = c.now_s
        await asyncio.sleep(seconds)
        return c.now_s - began

    return c.run(process.start(app))


def test_timers_are_late_and_messages_arrive_all_the_same() -> None:
    reader = Reader()
    with cluster(2, seed=7, loss=0.3, membership=PATIENT) as c:
        c.start(reader)
        c.members[0].delay_timers(0.5)
        waits = [elapsed(c, c.members[0], 0.1) for _ in range(20)]
        assert all(0.09 < wait < 0.62 for wait in waits)
        assert max(waits) > 0.3
        payloads = [b"%d" % number for number in range(50)]
        say(c, c.members[0], *payloads)
        c.run(asyncio.sleep(20))
        assert reader.read["m1"] == payloads
        c.members[0].delay_timers(0)
        assert elapsed(c, c.members[0], 0.1) == pytest.approx(0.1, abs=0.001)


def test_a_clock_that_runs_twice_as_fast_halves_every_wait() -> None:
    with cluster(2, seed=8) as c:
        fast, true = c.members
        fast.skew_clock(2.0, jump_s=100.0)
        assert elapsed(c, fast, 10.0) == pytest.approx(5.0, abs=0.01)
        assert elapsed(c, true, 10.0) == pytest.approx(10.0, abs=0.01)

        async def clock(group: ringcast.Group) -> float:
            return asyncio.get_running_loop().time()

        assert c.run(fast.start(clock)) > c.now_s + 100
        assert c.run(true.start(clock)) == pytest.approx(c.now_s, abs=0.01)
        assert size(true) == 2


def test_a_restarted_process_has_its_name_and_address_and_another_incarnation() -> None:
    reader = Reader()
    with cluster(3, seed=9, loss=0.05) as c:
        before = c.members[1].group.me
        again = c.run(c.restart(c.members[1]))
        assert not c.members[1].is_running
        assert c.members[-1] is again
        assert (again.name, again.group.me.address) == ("m1", before.address)
        assert again.group.me.incarnation != before.incarnation
        c.run(c.members[0].group.wait_for_view(lambda view: set(view) >= {again.group.me}))
        again.start(reader)
        say(c, c.members[0], b"welcome")
        c.run(asyncio.sleep(2))
        assert reader.read["m1"] == [b"welcome"]


def test_a_launched_process_is_launched_again() -> None:
    async def main() -> None:
        await asyncio.sleep(1)

    with cluster(1) as c:
        launched = c.launch(main, "own")
        with pytest.raises(UsageError, match="launch it again"):
            c.run(c.restart(launched))


def test_requests_work_whoever_makes_them() -> None:
    """A member's callbacks are its own even when the test's task calls it."""
    with cluster(2, seed=10) as c:
        a, b = (process.group for process in c.members)

        async def answer(group: ringcast.Group) -> None:
            async for request in group.requests():
                request.reply(b"!")

        c.members[1].start(answer)
        assert c.run(a.request(b.me, b"?")) == b"!"
        c.members[0].skew_clock(jump_s=1000.0)
        assert c.run(a.request(b.me, b"?", timeout=1.0)) == b"!"


@pytest.mark.parametrize("rate", [0.0, -1.0, 1001.0])
def test_a_clock_neither_stands_nor_goes_back(rate: float) -> None:
    with cluster(1) as c, pytest.raises(ConfigError, match="rate"):
        c.members[0].skew_clock(rate)


def test_nothing_is_early() -> None:
    with cluster(1) as c:
        with pytest.raises(ConfigError, match="late_s"):
            c.members[0].delay_timers(-1)
        with pytest.raises(ConfigError, match="jump_s"):
            c.members[0].skew_clock(jump_s=-1)
