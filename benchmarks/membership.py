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
from typing import TYPE_CHECKING

from benchmarks.printing import tell
from benchmarks.workload import MEMBERS_MAX, RUNS_MAX, check, group_name, percentile
from ringcast.sim.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.printing import Row

CALM_S = (0.5, 1.0)
"""How long a group is left alone before a kill: what follows a join is over by then, and the kill
falls anywhere between two heartbeats."""

PYTHON = {
    "start of python": "pass",
    "import asyncio": "import asyncio",
    "import ringcast": "import ringcast",
}
"""What of a join the interpreter takes by itself, with asyncio, and with us."""


def bench_join(*, members: int, runs: int, transports: Sequence[str]) -> Iterator[Row]:
    """From the start of a process until it is in the view of a running group."""
    for transport, cluster in _clusters(members, runs, transports, fewest=1):
        joined: list[int] = []
        held: list[float] = []
        for _ in range(runs):
            started = time.monotonic_ns()
            answer = cluster.enter(cluster.start())
            joined.append(answer["at"] - started)
            held += _held(cluster)
            cluster.leave(members)
            cluster.await_view()
        yield _row(transport, f"join {members} members", joined, held)
    for what, code in PYTHON.items():
        yield _row(None, what, [_time_of(code) for _ in range(runs)])


def bench_crash(*, members: int, runs: int, transports: Sequence[str]) -> Iterator[Row]:
    """From kill -9 until all survivors have the view without the victim."""
    dice = random.Random(1)
    for transport, cluster in _clusters(members, runs, transports, fewest=2):
        for what, at in (("kill a member", members - 1), ("kill the coordinator", 0)):
            held: list[float] = []
            times = [_kill(cluster, at, dice, held) for _ in range(runs)]
            yield _row(transport, what, times, held)


def _clusters(
    members: int, runs: int, transports: Sequence[str], *, fewest: int
) -> Iterator[tuple[str, Cluster]]:
    check("members", members, fewest, MEMBERS_MAX)
    check("runs", runs, 1, RUNS_MAX)
    for transport in transports:
        tell(f"measuring {transport}")
        with Cluster(members=members, group=group_name(transport), transport=transport) as cluster:
            yield transport, cluster


def _held(cluster: Cluster) -> list[float]:
    """For how many ms each who was there before was held up by the change to the view of all."""
    cluster.await_view()
    cluster.tell_all({"op": "stats"})
    last = [stats["GroupViews"]["held_ms"][-1:] for stats in cluster.hear_all()]
    return [held for each in last for held in each if len(last) > 1]  # who is alone waits for none


def _kill(cluster: Cluster, at: int, dice: random.Random, held: list[float]) -> int:
    """Kill one, see how long it takes to be missed by all, and have another in its place."""
    time.sleep(dice.uniform(*CALM_S))
    killed = time.monotonic_ns()
    cluster.kill(at)
    missed: int = max(answer["at"] for answer in cluster.await_view())
    held += _held(cluster)
    cluster.enter(cluster.start())
    return missed - killed


def _time_of(code: str) -> int:
    started = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.monotonic_ns() - started


def _row(
    transport: str | None, what: str, times_ns: Sequence[int], held_ms: Sequence[float] = ()
) -> Row:
    return {
        "transport": transport,
        "what": what,
        "median_s": round(statistics.median(times_ns) / 1e9, 3),
        "least_s": round(min(times_ns) / 1e9, 3),
        "most_s": round(max(times_ns) / 1e9, 3),
        "held_p50_ms": percentile(held_ms, 50),
        "held_p99_ms": percentile(held_ms, 99),
        "runs": len(times_ns),
    }
