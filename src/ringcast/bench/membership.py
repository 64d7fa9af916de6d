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
from ringcast.bench.workload import check_members, check_runs, check_transport, group_name

if TYPE_CHECKING:
    from collections.abc import Sequence

CALM_S = (0.5, 1.0)
"""How long a group is left alone before a kill: what follows a join is over by then, and the kill
falls anywhere between two heartbeats."""


def bench_join(members: int, runs: int, transport: str = "udp") -> list[dict[str, Any]]:
    """From the start of a process until it is in the view of a running group."""
    _check(members, runs, transport, fewest=1)
    joined = []
    with _cluster(members, transport) as cluster:
        for _ in range(runs):
            started = time.monotonic_ns()
            answer = cluster.enter(cluster.start())
            joined.append(answer["at"] - started)
            cluster.leave(members)
            cluster.await_view()
    return [_row(transport, f"join {members} members", joined)]


def bench_python(runs: int) -> list[dict[str, Any]]:
    """What of a join the interpreter takes by itself, with asyncio, and with us."""
    check_runs(runs)
    codes = {
        "start of python": "pass",
        "import asyncio": "import asyncio",
        "import ringcast": "import ringcast",
    }
    return [_row(None, what, [_time_of(code) for _ in range(runs)]) for what, code in codes.items()]


def bench_crash(members: int, runs: int, transport: str = "udp") -> list[dict[str, Any]]:
    """From kill -9 until all survivors have the view without the victim."""
    _check(members, runs, transport, fewest=2)
    dice = random.Random(1)
    with _cluster(members, transport) as cluster:
        return [
            _row(transport, what, [_kill(cluster, at, dice) for _ in range(runs)])
            for what, at in (("kill a member", members - 1), ("kill the coordinator", 0))
        ]


def _cluster(members: int, transport: str) -> Cluster:
    return Cluster(members=members, group=group_name(transport), transport=transport)


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


def _row(transport: str | None, what: str, times_ns: Sequence[int]) -> dict[str, Any]:
    return {
        "transport": transport,
        "what": what,
        "median_s": round(statistics.median(times_ns) / 1e9, 3),
        "least_s": round(min(times_ns) / 1e9, 3),
        "most_s": round(max(times_ns) / 1e9, 3),
        "runs": len(times_ns),
    }


def _check(members: int, runs: int, transport: str, *, fewest: int) -> None:
    check_members(members, fewest=fewest)
    check_runs(runs)
    check_transport(transport)
