"""ringcast bench memory: what a member takes when it is idle, and whether it grows under load.

Resident memory as the system counts it, of each process of a group on loopback. Under load all
members send all they can, round after round. What they grow by is the slope of a line through the
samples, by least squares; the first tenth of the time, a minute at the most, is left out.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.printing import tell
from benchmarks.rounds import Rounds
from benchmarks.usage import processes
from benchmarks.workload import Size, Workload, check_duration
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.printing import Row
    from ringcast.sim.processes import Cluster

    Sample = tuple[float, list[float]]

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
    *, transport: str, members: int, size: int, minutes: float, every: float
) -> list[Row]:
    """The member that has most, or grows most, counts. A sample every so many seconds."""
    check_duration("minutes", minutes, 1440)
    if not 0.05 <= every <= 60 * minutes / SAMPLES_MIN:
        raise UsageError(f"every = {every}: must be from 0.05 to a third of the time, in seconds")
    seconds = min(ROUND_S, every)
    workload = Workload(members=members, size=Size(size), transport=transport, seconds=seconds)
    with workload.cluster() as cluster:
        time.sleep(IDLE_S)
        idle = _resident_mb(cluster)
        rounds = Rounds(cluster, workload)
        started = time.monotonic()
        due = 0.0
        samples: list[Sample] = []
        while (elapsed := time.monotonic() - started) < 60 * minutes or len(samples) < SAMPLES_MIN:
            rounds.measure()
            if elapsed >= due:
                due = elapsed + every
                resident = _resident_mb(cluster)
                samples.append((elapsed / 60, resident))
                tell(f"minute {elapsed / 60:.1f} of {minutes:g}: {max(resident):.1f} MB")
    figures = rounds.figures()
    row = {
        "transport": transport,
        "members": members,
        "size": size,
        "idle_mb": round(max(idle), 1),
        **_drift(samples, minutes),
        "rate_per_member": figures["rate_per_member"],
        "lost": figures["lost"],
        "minutes": round(elapsed / 60, 2),
        "samples": [
            {"minute": round(minute, 3), "resident_mb": [round(value, 2) for value in resident]}
            for minute, resident in samples
        ],
    }
    return [row]


def _drift(samples: Sequence[Sample], minutes: float) -> Row:
    """Of the member that grows most, once all have settled."""
    settled_at = min(SETTLING_S / 60, SETTLING_SHARE * minutes)
    settled = [sample for sample in samples if sample[0] >= settled_at]
    if len(settled) < SAMPLES_MIN:  # of so short a time there is no telling
        settled = list(samples)
    at = [minute for minute, _ in settled]
    slope, first, last = max(
        (slope_of(at, resident), resident[0], resident[-1])
        for resident in zip(*(resident for _, resident in settled), strict=True)
    )
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
    return statistics.linear_regression(at, values).slope if len(set(at)) > 1 else 0.0


def _resident_mb(cluster: Cluster) -> list[float]:
    """Of each process."""
    running = processes()
    return [running[process.pid].resident_mb for process in cluster.processes]
