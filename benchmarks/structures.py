"""ringcast bench dict: how many writes and reads a replicated dict takes in a second.

All members write at once, each with so many writes under way; then one at a time, which is how long
a write takes; then they read their own copy, and through the order. A member is a process,
`python -m benchmarks.structures`, which speaks JSON lines with its launcher.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks.workload import RUNS_MAX, check, percentile, progress, versions
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.replicated import BYTES, Space
from ringcast.sim.member_process import say, serve
from ringcast.sim.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from benchmarks.workload import Row
    from ringcast.replicated import Dict
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
    for size in sizes:
        check("size", size, 0, SIZE_MAX, " bytes")
        progress(f"measuring values of {size} bytes")
        yield _measure(members, size, under_way, seconds, runs)


def _measure(members: int, size: int, under_way: int, seconds: float, runs: int) -> Row:
    with Cluster(members=members, program=("benchmarks.structures",)) as cluster:

        def each(what: str, tasks: int) -> list[Row]:
            with cluster.within(DEADLINE_S + seconds):
                task = {"op": what, "tasks": tasks, "seconds": seconds, "size": size}
                cluster.tell_all(task)
                return cluster.hear_all()

        rounds = [
            (each("write", under_way), each("write", 1), each("read", 1), each("fresh", under_way))
            for _ in range(runs)
        ]
    alone_us = [time for _, alone, _, _ in rounds for row in alone for time in row["times_us"]]
    return {
        "members": members,
        "size": size,
        "writes_per_s": _rate(many for many, _, _, _ in rounds),
        "p50_us": round(percentile(alone_us, 50) or 0),
        "p99_us": round(percentile(alone_us, 99) or 0),
        "reads_per_s": _rate(reads for _, _, reads, _ in rounds),
        "fresh_reads_per_s": _rate(fresh for _, _, _, fresh in rounds),
        "under_way": under_way,
        "runs": runs,
        "versions": versions(),
    }


def _rate(rounds: Iterator[list[Row]]) -> int:
    """Of all members together: the median of the runs."""
    rates: list[float] = [sum(row["per_s"] for row in rows) for rows in rounds]
    return round(statistics.median(rates))


async def _member(place: dict[str, Any], commands: Commands) -> None:
    space = Space(timeout_s=DEADLINE_S)
    items = space.dict("items", BYTES)
    source = DirectorySource(place["meet"])
    async with space.join(place["group"], name=place["name"], discovery=source):
        say({})
        async for command in commands:
            say(await _work(items, **command))


async def _work(items: Dict, op: str, tasks: int, seconds: float, size: int) -> Row:
    """As often as it goes in so long: by so many tasks at once."""
    value = bytes(size)
    keys = [f"key{number}" for number in range(KEYS)]
    await items.set(keys[0], value)

    async def read_own(_: str) -> None:
        for _number in range(LOCAL_READS):
            items[keys[0]]
        await asyncio.sleep(0)

    does: dict[str, Callable[[str], Awaitable[object]]] = {
        "write": lambda key: items.set(key, value),
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
    return {"per_s": count / took_s, "times_us": times_us if tasks == 1 and op == "write" else []}


if __name__ == "__main__":
    run(serve(_member))
