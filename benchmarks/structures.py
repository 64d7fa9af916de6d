"""ringcast bench dict: how many writes and reads a replicated dict takes in a second.

A member is a process, `python -m benchmarks.structures`, which speaks JSON lines with its launcher.
Where `redis-server` is installed, as many clients of one do the same, in turn.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections import deque
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks.peers.compare import SERVERS
from benchmarks.workload import RUNS_MAX, Row, check, percentile, progress, versions
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.errors import RingcastError
from ringcast.replicated import BYTES, Dict, Space
from ringcast.sim.member_process import say, serve
from ringcast.sim.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ringcast.sim.member_process import Commands

DEADLINE_S = 60.0
KEYS = 1000
SIZE_MAX = 1 << 20
UNDER_WAY_MAX = 4096
LOCAL_READS = 1000
"""Reads of the own copy between two looks at the clock."""


def bench_dict(
    *, members: int, sizes: Sequence[int], under_way: int, seconds: float, runs: int
) -> Iterator[Row]:
    check("members", members, 1, 64)
    check("under-way", under_way, 1, UNDER_WAY_MAX)
    check("runs", runs, 1, RUNS_MAX)
    if shutil.which("redis-server") is None:
        progress("redis is left out: no redis-server; have it by: apt-get install redis-server")
    for size in sizes:
        check("size", size, 0, SIZE_MAX, " bytes")
        progress(f"measuring values of {size} bytes")
        yield _measure(members, size, under_way, seconds, runs)


def _measure(members: int, size: int, under_way: int, seconds: float, runs: int) -> Row:
    program = ("benchmarks.structures",)
    with ExitStack() as stack:
        ours = stack.enter_context(Cluster(members=members, program=program))
        theirs: Cluster | None = None
        if shutil.which("redis-server"):
            port = stack.enter_context(SERVERS["redis"](()))
            theirs = stack.enter_context(Cluster(members=members, program=program, redis=port))

        def each(cluster: Cluster, what: str, tasks: int) -> list[Row]:
            with cluster.within(DEADLINE_S + seconds):
                task = {"op": what, "tasks": tasks, "seconds": seconds, "size": size}
                cluster.tell_all(task)
                return cluster.hear_all()

        tasks = {"write": under_way, "alone": 1, "read": 1, "fresh": under_way}
        found: dict[str, list[list[Row]]] = {}
        for _ in range(runs):
            for op, count in tasks.items():
                found.setdefault(op, []).append(each(ours, op, count))
                if theirs is not None and op != "read":
                    found.setdefault(f"redis {op}", []).append(each(theirs, op, count))
    row: Row = {
        "members": members,
        "size": size,
        "writes_per_s": _rate(found["write"]),
        "p50_us": _percentile(found["alone"], 50),
        "p99_us": _percentile(found["alone"], 99),
        "reads_per_s": _rate(found["read"]),
        "fresh_reads_per_s": _rate(found["fresh"]),
    }
    if theirs is not None:
        row["redis_writes_per_s"] = _rate(found["redis write"])
        row["redis_p50_us"] = _percentile(found["redis alone"], 50)
        row["redis_reads_per_s"] = _rate(found["redis fresh"])
    return row | {"under_way": under_way, "runs": runs, "versions": versions()}


def _rate(rounds: list[list[Row]]) -> int:
    """Of all members together: the median of the runs."""
    rates: list[float] = [sum(row["per_s"] for row in rows) for rows in rounds]
    return round(statistics.median(rates))


def _percentile(rounds: list[list[Row]], share: int) -> int:
    times_us = [time for rows in rounds for row in rows for time in row["times_us"]]
    return round(percentile(times_us, share) or 0)


class Redis:
    """A client, which does what is asked of a Dict. What tasks ask at once goes along together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._reading = asyncio.create_task(self._read())

    async def set(self, key: str, value: bytes) -> None:
        await self._do(b"SET", key.encode(), value)

    async def get(self, key: str, *, fresh: bool) -> bytes:
        assert fresh, "there is no copy here"
        return await self._do(b"GET", key.encode())

    async def _do(self, *words: bytes) -> bytes:
        said = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._writer.write(b"*%d\r\n%b" % (len(words), b"".join(said)))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        return await answer

    async def _read(self) -> None:
        while line := await self._reader.readline():
            answer = self._waiting.popleft()
            if line.startswith(b"$") and line != b"$-1\r\n":
                line = await self._reader.readexactly(int(line[1:]) + 2)
            if line.startswith(b"-"):
                answer.set_exception(RingcastError(f"redis says {line!r}"))
            else:
                answer.set_result(line[:-2])


async def _member(place: dict[str, Any], commands: Commands) -> None:
    async with AsyncExitStack() as stack:
        items: Dict | Redis
        if place.get("redis"):
            items = Redis(*await asyncio.open_connection("127.0.0.1", place["redis"]))
        else:
            space = Space(timeout_s=DEADLINE_S)
            items = space.dict("items", BYTES)
            where = {"name": place["name"], "discovery": DirectorySource(place["meet"])}
            await stack.enter_async_context(space.join(place["group"], **where))
        say({})
        async for command in commands:
            say(await _work(items, **command))


async def _work(items: Dict | Redis, op: str, tasks: int, seconds: float, size: int) -> Row:
    """As often as it goes in so long: by so many tasks at once."""
    value = bytes(size)
    keys = [f"key{number}" for number in range(KEYS)]
    await items.set(keys[0], value)

    async def read_own(_: str) -> None:
        assert isinstance(items, Dict)
        for _number in range(LOCAL_READS):
            items[keys[0]]
        await asyncio.sleep(0)

    does: dict[str, Callable[[str], Awaitable[object]]] = {
        "write": lambda key: items.set(key, value),
        "alone": lambda key: items.set(key, value),
        "fresh": lambda key: items.get(key, fresh=True),
        "read": read_own,
    }
    started, do = time.perf_counter(), does[op]
    times_us: list[float] = []

    async def repeat(number: int) -> None:
        at = number  # so that tasks write different keys
        while (began := time.perf_counter()) < started + seconds:
            at = (at + tasks) % KEYS
            await do(keys[at])
            times_us.append((time.perf_counter() - began) * 1e6)

    await asyncio.gather(*map(repeat, range(tasks)))
    count = len(times_us) * (LOCAL_READS if op == "read" else 1)
    took_s = time.perf_counter() - started
    return {"per_s": count / took_s, "times_us": times_us if op == "alone" else []}


if __name__ == "__main__":
    run(serve(_member))
