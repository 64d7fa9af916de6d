"""One member process of a cluster on loopback. Speaks JSON lines with its launcher.

The first line on standard input is its place in the group, the second lets it join; it answers
once it is in. Then:

    {"op": "round", …}    send so many messages, read until everybody's have arrived; what it took
    {"op": "trade", …}    send orders at a pace for some seconds, reading everybody's; how many.
                          The guarantees that are named are given to batches in turn
    {"op": "finish", …}   read on until so many of each sender's have arrived; how many that are
    {"op": "view", …}     wait for a view of just these names; when that was
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
import zlib
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig, StabilityConfig
from ringcast.model import Stream

if TYPE_CHECKING:
    from ringcast.aio.group import Group

SEND_BATCH = 512

STRIDE = 197
"""Odd, so that so many steps through a batch meet every size once."""


async def input_lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def _member(place: dict[str, Any], lines: asyncio.StreamReader) -> None:
    generator = random.Random(place["seed"])
    loss = place["loss"]
    record = place["record"]
    buffer = {key: place[key] for key in ("receive_buffer_bytes",) if place.get(key)}
    async with join(
        GroupConfig(group=place["group"], **buffer),
        name=place["name"],
        listen=place.get("listen", "127.0.0.1:0"),
        discovery=DirectorySource(place["meet"]),
        transport=place.get("transport", "udp"),
        config=_multicast_config(**place["config"]),
        membership=MembershipConfig(**place["membership"]),
        record=Path(record) if record else None,
        record_level=place["record_level"],
        run_id=place.get("run_id", ""),
        lose=(lambda: generator.random() < loss) if loss else None,
    ) as group:
        say(_here(group))
        batches = group.batches()
        trade = Trade(group)
        while line := await lines.readline():
            task = json.loads(line)
            match task["op"]:
                case "round":
                    say(await _round(group, batches, task))
                case "trade":
                    trade.start(task)
                case "finish":
                    trade.finish(task)
                case "view":
                    say(await view_of(group, task["names"]))
                case "stats":
                    say(group.stats())


def _multicast_config(stability: dict[str, Any] | None = None, **options: Any) -> MulticastConfig:
    reports = None if stability is None else StabilityConfig(**stability)
    return MulticastConfig(stability=reports, **options)


class Trade:
    """Orders out at a pace, everybody's orders in. Runs beside the launcher's other wishes."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._read: dict[str, int] = {}
        self._uniform: dict[str, tuple[int, int]] = {}
        """Of each sender: how many uniform messages were read, and a checksum of them all."""
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
            payloads = batch.run.payloads
            self._read[name] = self._read.get(name, 0) + len(payloads)
            if batch.run.stream is Stream.UNIFORM:
                count, checksum = self._uniform.get(name, (0, 0))
                checksum = zlib.crc32(b"".join(payloads), checksum)
                self._uniform[name] = count + len(payloads), checksum
            self._progress.set()

    async def _sending(self, task: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        stop = loop.time() + task["seconds"]
        sent = 0
        guarantees = cycle(task.get("guarantees", ["fifo"]))
        while loop.time() < stop:
            orders = [
                f"order {self._group.me}-{number}: {number % 90 + 1} × SKU-{number * 131 % 9973:05}"
                for number in range(sent + 1, sent + 1 + task["batch"])
            ]
            payloads = [order.encode() for order in orders]
            await self._group.send_many(payloads, guarantee=next(guarantees))
            sent += len(orders)
            await asyncio.sleep(task["batch"] / task["rate"])
        say({"sent": sent})

    async def _finishing(self, expect: dict[str, int]) -> None:
        while any(self._read.get(name, 0) < count for name, count in expect.items()):
            self._progress.clear()
            await self._progress.wait()
        await self._group.flush()
        say({**_here(self._group), "read": self._read, "uniform": self._uniform})


async def view_of(group: Group, names: list[str]) -> dict[str, Any]:
    await group.wait_for_view(lambda view: {member.name for member in view} == set(names))
    return _here(group)


def _here(group: Group) -> dict[str, Any]:
    """Who this member is, and with whom, at this moment."""
    return {
        "at": time.monotonic_ns(),
        "listen": str(group.me.address),
        "incarnation": group.me.incarnation,
        "view": [member.name for member in group.view],
    }


async def _round(group: Group, batches: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Send and read one round's messages; how long that took and at what cost, or why it is
    stuck."""
    came: dict[str, int] = {}
    started, cpu = time.perf_counter(), time.process_time()
    try:
        async with asyncio.timeout(task.get("deadline_s")):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_send(group, task))
                await _read(batches, task["expect"], came)
                seconds = time.perf_counter() - started
            await group.flush()
    except TimeoutError:
        reasons = "; ".join(group.explain()) or "nothing is known to be in the way"
        return {
            "stuck": f"has {sum(came.values())} of {task['expect']} messages after "
            f"{task['deadline_s']:g} s: {reasons}"
        }
    return {
        "seconds": seconds,
        "delivered": sum(came.values()),
        "lost": lost(came, task["expect"], task.get("senders", len(group.view))),
        "cpu_s": time.process_time() - cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **_counters(group, task),
    }


async def _read(batches: Any, expected: int, came: dict[str, int]) -> None:
    """Until so many have come; how many of each sender."""
    if not expected:
        return
    total = 0
    async for batch in batches:
        name, count = batch.sender.name, len(batch.run.payloads)
        came[name] = came.get(name, 0) + count
        total += count
        if total >= expected:
            return


def lost(came: dict[str, int], expected: int, senders: int) -> int:
    """How many did not come, if each sender has sent its share: copies of others replace none."""
    share = expected // senders
    return expected - sum(min(share, count) for count in came.values())


def _counters(group: Group, task: dict[str, Any]) -> dict[str, int]:
    """What was retransmitted, and how often this member has told what it has."""
    stats: Any = group.stats()
    if "to" in task:
        sent = stats["ReliableUnicast"]["to"].values()
        return {"retransmitted": sum(int(entry["retransmitted"]) for entry in sent), "reports": 0}
    guarantee = task.get("guarantee", "fifo")
    multicast = stats["ReliableMulticast"]
    return {
        "retransmitted": multicast["sent"][guarantee]["retransmitted"],
        "reports": _reports(multicast, group, guarantee),
    }


def _reports(multicast: dict[str, Any], group: Group, guarantee: str) -> int:
    """How often this member has told another what it, or everybody, has of such messages."""
    windows = multicast["received"].items()
    told = sum(int(box["acks_sent"]) for name, box in windows if name.endswith(f"/{guarantee}"))
    rounds = multicast["rounds"]
    if rounds and guarantee == "fifo":
        told += rounds["reports_sent"]
        if group.view.coordinator == group.me:
            told += rounds["round"] * (len(group.view) - 1)
    return told


async def _send(group: Group, task: dict[str, Any]) -> None:
    count, guarantee = task["send"], task.get("guarantee", "fifo")
    to = group.view[task["to"]] if "to" in task else None
    payloads = payloads_of(task["size"], is_mixed=task.get("mixed", False))
    while count > 0:
        await group.send_many(payloads[: min(count, SEND_BATCH)], to=to, guarantee=guarantee)
        count -= SEND_BATCH


def payloads_of(size: int, *, is_mixed: bool) -> list[bytes]:
    """A batch of them. Mixed sizes are spread from 0 to twice `size`, neighbours far apart."""
    if not is_mixed:
        return [bytes(size)] * SEND_BATCH
    return [bytes(2 * size * (at * STRIDE % SEND_BATCH) // SEND_BATCH) for at in range(SEND_BATCH)]


async def _main() -> None:
    lines = await input_lines()
    place = json.loads(await lines.readline())
    if await lines.readline():
        await _member(place, lines)


if __name__ == "__main__":
    run(_main())
