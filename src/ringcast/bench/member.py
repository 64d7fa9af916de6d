"""One member process of a cluster on loopback. Speaks JSON lines with its launcher.

The first line on standard input is its place in the group; it answers {"ready": true} once it is
in. Then:

    {"op": "round", …}    send so many messages, read until everybody's have arrived; what it took
    {"op": "trade", …}    send orders at a pace for some seconds, reading everybody's; how many
    {"op": "finish", …}   read on until so many of each sender's have arrived; how many that are
    {"op": "exclude", …}  go on without that member: the launcher knows whom it killed
    {"op": "stats"}       every table and counter

The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.aio.group import join
from ringcast.aio.loop import run
from ringcast.config import MulticastConfig
from ringcast.model import View, ViewId

if TYPE_CHECKING:
    from ringcast.aio.group import Group

SEND_BATCH = 512


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def _member(place: dict[str, Any], lines: asyncio.StreamReader) -> None:
    generator = random.Random(place["seed"])
    loss = place["loss"]
    record = place["record"]
    async with join(
        place["group"],
        listen=place["listen"],
        members=place["members"],
        name=place["name"],
        config=MulticastConfig(**place["config"]),
        record=Path(record) if record else None,
        lose=(lambda: generator.random() < loss) if loss else None,
    ) as group:
        _say({"ready": True})
        batches = group.batches()
        trade = Trade(group)
        while line := await lines.readline():
            task = json.loads(line)
            match task["op"]:
                case "round":
                    _say(await _round(group, batches, task))
                case "trade":
                    trade.start(task)
                case "finish":
                    trade.finish(task)
                case "exclude":
                    _exclude(group, task["name"])
                case "stats":
                    _say(group.stats())


class Trade:
    """Orders out at a pace, everybody's orders in. Runs beside the launcher's other wishes."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._read: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = asyncio.Event()

    def start(self, task: dict[str, Any]) -> None:
        self._tasks.append(asyncio.create_task(self._reading()))
        self._tasks.append(asyncio.create_task(self._sending(task)))

    def finish(self, task: dict[str, Any]) -> None:
        self._tasks.append(asyncio.create_task(self._finishing(task["expect"])))

    async def _reading(self) -> None:
        async for batch in self._group.batches():
            name = batch.sender.name
            self._read[name] = self._read.get(name, 0) + len(batch.run.payloads)
            self._progress.set()

    async def _sending(self, task: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        stop = loop.time() + task["seconds"]
        sent = 0
        while loop.time() < stop:
            orders = [
                f"order {self._group.me}-{number}: {number % 90 + 1} × SKU-{number * 131 % 9973:05}"
                for number in range(sent + 1, sent + 1 + task["batch"])
            ]
            await self._group.send_many([order.encode() for order in orders])
            sent += len(orders)
            await asyncio.sleep(task["batch"] / task["rate"])
        _say({"sent": sent})

    async def _finishing(self, expect: dict[str, int]) -> None:
        while any(self._read.get(name, 0) < count for name, count in expect.items()):
            self._progress.clear()
            await self._progress.wait()
        await self._group.flush()
        _say({"read": self._read})


def _exclude(group: Group, name: str) -> None:
    view = group.view
    members = tuple(member for member in view if member.name != name)
    group.install_view(View(ViewId(members[0], view.counter + 1), members))


async def _round(group: Group, batches: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Send and read one round's messages; how long that took, and at what cost."""
    started = time.perf_counter()
    cpu = time.process_time()
    sending = asyncio.create_task(_send(group, task["send"], task["size"]))
    delivered = 0
    expected = task["expect"]
    async for batch in batches:
        delivered += len(batch.run.payloads)
        if delivered >= expected:
            break
    seconds = time.perf_counter() - started
    await sending
    await group.flush()
    sent = group.stats()["ReliableMulticast"]["sent"]["fifo"]  # type: ignore[index]
    return {
        "seconds": seconds,
        "delivered": delivered,
        "lost": expected - delivered,
        "cpu_s": time.process_time() - cpu,
        "resent": sent["resent"],
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def _send(group: Group, count: int, size: int) -> None:
    payloads = [bytes(size)] * SEND_BATCH
    while count > 0:
        await group.send_many(payloads[: min(count, SEND_BATCH)])
        count -= SEND_BATCH


async def _main() -> None:
    lines = await _lines()
    await _member(json.loads(await lines.readline()), lines)


if __name__ == "__main__":
    run(_main())
