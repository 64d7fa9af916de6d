"""ringcast bench memory: what a member takes when it is idle, and whether it grows under load.

Resident memory as the system counts it, of each process of a group on loopback. Under load all
members send all they can, round after round. What they grow by is the slope of a line through the
samples, by least squares; the first tenth of the time, a minute at the most, is left out.
"""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.bench.rounds import Rounds
from ringcast.bench.workload import Workload, check_transport
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.bench.cluster import Cluster

IDLE_S = 2.0
"""How long a group is left alone before it counts as idle: heartbeats have been sent, and all that
follows a join is over."""

SETTLING_S = 60.0
SETTLING_SHARE = 0.1

SAMPLES_MIN = 3
"""Fewer tell nothing of growth."""

FLAT_SHARE = 0.02
"""Who grows by no more than this share of what it had, over the whole time, is flat."""

ROUND_S = 1.0


def bench_memory(
    transport: str,
    *,
    members: int = 3,
    size: int = 1000,
    minutes: float = 10.0,
    every_s: float = 5.0,
    tell: Callable[[float, float], None],
) -> dict[str, Any]:
    """The member that has most, or grows most, counts. `tell` gets the minutes as they
    pass, and what a member has."""
    check_transport(transport)
    if not 0 < minutes <= 1440:
        raise UsageError(f"minutes = {minutes}: must be more than 0, at most 1440")
    if not 0.05 <= every_s <= 60 * minutes / SAMPLES_MIN:
        raise UsageError(f"every = {every_s}: must be from 0.05 to a third of the time, in seconds")
    round_s = min(ROUND_S, every_s)
    workload = Workload(members=members, size=size, transport=transport, seconds=round_s)
    with workload.cluster() as cluster:
        time.sleep(IDLE_S)
        idle = _resident_mb(cluster)
        rounds = Rounds(cluster, workload)
        started = time.monotonic()
        due = 0.0
        samples: list[tuple[float, list[float]]] = []
        while (elapsed := time.monotonic() - started) < 60 * minutes or len(samples) < SAMPLES_MIN:
            rounds.measure()
            if elapsed >= due:
                due = elapsed + every_s
                resident = _resident_mb(cluster)
                samples.append((elapsed / 60, resident))
                tell(elapsed / 60, max(resident))
    return {
        "transport": transport,
        "members": members,
        "size": size,
        "idle_mb": round(max(idle), 1),
        **_drift(samples, minutes),
        "rate_per_member": round(rounds.rate),
        "lost": rounds.lost,
        "minutes": round(elapsed / 60, 2),
        "samples": [
            {"minute": round(minute, 3), "resident_mb": [round(value, 2) for value in resident]}
            for minute, resident in samples
        ],
    }


def _drift(samples: Sequence[tuple[float, Sequence[float]]], minutes: float) -> dict[str, Any]:
    """Of the member that grows most, once all have settled."""
    settled_at = min(SETTLING_S / 60, SETTLING_SHARE * minutes)
    settled = [sample for sample in samples if sample[0] >= settled_at]
    if len(settled) < SAMPLES_MIN:  # of so short a time there is no telling
        settled = list(samples)
    at = [minute for minute, _ in settled]
    lines = [
        (slope_of(at, resident), resident[0], resident[-1])
        for resident in zip(*(resident for _, resident in settled), strict=True)
    ]
    slope, first, last = max(lines)
    flat = FLAT_SHARE * first / (at[-1] - at[0])
    return {
        "first_mb": round(first, 1),
        "last_mb": round(last, 1),
        "most_mb": round(max(max(resident) for _, resident in samples), 1),
        "mb_per_minute": round(slope, 3),
        "flat_mb_per_minute": round(flat, 3),
        "is_flat": slope <= flat,
    }


def slope_of(at: Sequence[float], values: Sequence[float]) -> float:
    """Of the line through these points that fits best; 0 if all are at one place."""
    if len(set(at)) < 2:
        return 0.0
    return statistics.linear_regression(at, values).slope


def _resident_mb(cluster: Cluster) -> list[float]:
    """Of each process; only Linux tells it of others."""
    page = resource.getpagesize()
    try:
        pages = [
            int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            for process in cluster.processes
        ]
    except OSError:
        raise UsageError(
            "resident memory of other processes is read from /proc: use Linux"
        ) from None
    return [count * page / 2**20 for count in pages]
