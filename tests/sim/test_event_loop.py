"""asyncio on the virtual clock."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.errors import UsageError
from ringcast.sim.clock import VirtualClock
from ringcast.sim.event_loop import NS_PER_S, TURN_NS, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(main: Coroutine[Any, Any, Any], clock: VirtualClock | None = None) -> Any:
    with closing(VirtualLoop(clock or VirtualClock())) as loop:
        return loop.run_until_complete(main)


def test_an_hour_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(main()) == pytest.approx(3600, abs=0.01)
    assert time.monotonic() - began < 60


def test_timers_fire_in_their_order() -> None:
    order: list[str] = []

    async def note(delay: float, name: str) -> None:
        await asyncio.sleep(delay)
        order.append(name)

    async def main() -> None:
        await asyncio.gather(note(2.0, "late"), note(0.5, "early"), note(1.0, "middle"))

    run(main())
    assert order == ["early", "middle", "late"]


def test_a_time_out_is_virtual() -> None:
    async def main() -> None:
        async with asyncio.timeout(1000):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        run(main())


def test_the_clock_goes_on_under_a_task_that_only_looks() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(1000 * TURN_NS / NS_PER_S, rel=0.1)


def test_the_clock_stops_at_what_is_on_the_clock() -> None:
    clock = VirtualClock()

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        fd, times = loop.new_descriptor(), []

        def read() -> None:
            times.append(loop.time())
            loop.set_readable(fd, False)

        loop.add_reader(fd, read)
        clock.after(250, loop.set_readable, fd, True)
        clock.after(750, loop.set_readable, fd, True)
        await asyncio.sleep(1)
        assert loop.remove_reader(fd)
        return times

    assert run(main(), clock) == pytest.approx([0.25, 0.75], abs=0.001)


def test_what_stays_readable_is_read_again() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        fd, reads = loop.new_descriptor(), 0
        enough = asyncio.Event()

        def read() -> None:
            nonlocal reads
            reads += 1
            if reads == 3:
                loop.set_readable(fd, False)
                enough.set()

        loop.add_reader(fd, read)
        loop.set_readable(fd, True)
        await enough.wait()
        await asyncio.sleep(1)
        return reads

    assert run(main()) == 3


def test_threads_are_none() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> int:
        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(fail)
        return await asyncio.to_thread(pow, 2, 5)

    assert run(main()) == 32


def test_real_sockets_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as real, pytest.raises(UsageError, match="virtual time"):
            loop.add_reader(real, lambda: None)

    run(main())


def test_a_program_in_which_nothing_can_happen_is_ended() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with closing(VirtualLoop(VirtualClock())) as loop:
        task = loop.create_task(main())
        with pytest.raises(RuntimeError, match="nothing left"):
            loop.run_until_complete(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
