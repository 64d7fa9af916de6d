"""A member process that sends and reads for as long as it lives, in a cluster of `sim.processes`.

    {"op": "view", "names": […]}     wait for a view of just these; who is in it
    {"op": "exchange", "mark": …}    send this to all with each guarantee from now on, and wait
                                     until that of everybody in the view has come
    {"op": "arm", "delay_s": …,      so long after it has promised a view the next time, say when
     "signal": …}                    that is, and send this signal to itself, if it is one

The end of the input lets it leave.
"""

from __future__ import annotations

import asyncio
import os
import time
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast import Delivered, MembershipConfig, join
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.core.view_change import Freeze
from ringcast.model import Stream
from ringcast.sim.member_process import say, serve, view_of

if TYPE_CHECKING:
    from ringcast import Group
    from ringcast.aio.read_queue import Guarantee
    from ringcast.core.effects import Left
    from ringcast.core.view_change import Begin
    from ringcast.sim.member_process import Commands

PAUSE_S = 0.01
GUARANTEES: tuple[Guarantee, ...] = ("fifo", "uniform", "total")


class Steady:
    """Its application."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._mark = b""
        self._came: set[tuple[str, Stream, bytes]] = set()
        self._progress = asyncio.Event()

    async def send(self) -> None:
        for number, guarantee in enumerate(cycle(GUARANTEES)):
            await self._group.send(self._mark or b"%d" % number, guarantee=guarantee)
            await asyncio.sleep(PAUSE_S)

    async def read(self) -> None:
        async for event in self._group.events():
            if isinstance(event, Delivered):
                marks = (payload for payload in event.run.payloads if payload.startswith(b"mark"))
                self._came.update((event.sender.name, event.run.stream, mark) for mark in marks)
                self._progress.set()

    async def exchange(self, mark: str) -> None:
        """Whoever was out of reach may yet be left out, and misses what is sent meanwhile: the mark
        is sent on and on, so that it passes in whatever view follows."""
        self._mark = f"mark {mark}".encode()
        names = [member.name for member in self._group.view]
        expected = {(name, stream, self._mark) for name in names for stream in Stream}
        while not expected <= self._came:
            self._progress.clear()
            await self._progress.wait()


def arm(group: Group, delay_s: float, number: int) -> None:
    node, loop = group._driver.node, asyncio.get_running_loop()
    observer = node.observer
    assert observer is not None
    see = observer.before_change

    def strike() -> None:
        say({"struck": time.monotonic_ns()})
        if number:
            os.kill(os.getpid(), number)

    def before_change(change: Freeze | Begin | Left, now: int) -> None:
        see(change, now)
        if isinstance(change, Freeze):
            observer.before_change = see  # type: ignore[method-assign]
            loop.call_later(delay_s, strike)

    observer.before_change = before_change  # type: ignore[method-assign]


async def _member(place: dict[str, Any], commands: Commands) -> None:
    async with join(
        place["group"],
        name=place["name"],
        listen=place["listen"],
        key=bytes(range(32)),
        discovery=DirectorySource(place["meet"]),
        transport=place["transport"],
        membership=MembershipConfig(**place["membership"]),
        record=Path(place["record"]),
        record_level=place["record_level"],
        record_interval_s=0.2,
        run_id="faults",
        join_timeout_s=60.0,
    ) as group:
        steady = Steady(group)
        tasks = [asyncio.create_task(work) for work in (steady.read(), steady.send())]
        say({"listen": str(group.me.address)})
        async for command in commands:
            match command["op"]:
                case "view":
                    say(await view_of(group, command["names"]))
                case "exchange":
                    await steady.exchange(command["mark"])
                    say({})
                case "arm":
                    arm(group, command["delay_s"], command["signal"])
                    say({})
        tasks[1].cancel()


if __name__ == "__main__":
    run(serve(_member))
