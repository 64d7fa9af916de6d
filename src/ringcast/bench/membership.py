"""ringcast bench join and crash: how soon a process is in its group, and how soon it is missed.

Real processes on loopback with the default configuration, idle but for their heartbeats. Times are
of the clock that all processes of a machine share.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from ringcast.bench.cluster import Cluster
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

CALM_S = (0.5, 1.0)
"""How long a group is left alone before a kill: what follows a join is over by then, and the kill
falls anywhere between two heartbeats."""


def bench_join(members: int, repeat: int) -> list[dict[str, Any]]:
    """From the start of a process until it is in the view of a running group; beside that, what
    the interpreter takes by itself and with asyncio."""
    _check(members, repeat, fewest=1)
    joined = []
    with Cluster(members=members) as cluster:
        for _ in range(repeat):
            started = time.monotonic_ns()
            answer = cluster.enter(cluster.start())
            joined.append(answer["at"] - started)
            cluster.leave(members)
            cluster.await_view()
    return [
        _row(f"join {members} members", joined),
        _row("start of python", [_time_of("pass") for _ in range(repeat)]),
        _row("import asyncio", [_time_of("import asyncio") for _ in range(repeat)]),
        _row("import ringcast", [_time_of("import ringcast") for _ in range(repeat)]),
    ]


def bench_crash(members: int, repeat: int) -> list[dict[str, Any]]:
    """From kill -9 until all survivors have the view without the victim."""
    _check(members, repeat, fewest=2)
    dice = random.Random(1)
    with Cluster(members=members) as cluster:
        return [
            _row("kill a member", [_kill(cluster, members - 1, dice) for _ in range(repeat)]),
            _row("kill the coordinator", [_kill(cluster, 0, dice) for _ in range(repeat)]),
        ]


def _kill(cluster: Cluster, at: int, dice: random.Random) -> int:
    """Kill one, see how long it takes to be missed by all, and have another in its place."""
    time.sleep(dice.uniform(*CALM_S))
    killed = time.monotonic_ns()
    cluster.kill(at)
    missed: int = max(answer["at"] for answer in cluster.await_view())
    cluster.enter(cluster.start())
    return missed - killed


def _time_of(code: str) -> int:
    started = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.monotonic_ns() - started


def _row(what: str, times_ns: Sequence[int]) -> dict[str, Any]:
    return {
        "what": what,
        "median_s": round(statistics.median(times_ns) / 1e9, 3),
        "least_s": round(min(times_ns) / 1e9, 3),
        "most_s": round(max(times_ns) / 1e9, 3),
        "repeat": len(times_ns),
    }


def _check(members: int, repeat: int, *, fewest: int) -> None:
    if not fewest <= members <= 16:
        raise UsageError(f"members = {members}: must be from {fewest} to 16")
    if not 1 <= repeat <= 1000:
        raise UsageError(f"repeat = {repeat}: must be from 1 to 1000")
