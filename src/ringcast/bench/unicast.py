"""ringcast bench unicast: messages of one process to another, beside raw sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.bench.rounds import Rounds, ceiling_ratio, raw_ceiling
from ringcast.bench.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZES = (100, 1000, 10_000)


def bench_unicast(
    transport: str, sizes: Sequence[int], *, seconds: float = 1.0, runs: int = 3
) -> Iterator[dict[str, Any]]:
    """A report for each size, all through one group of two."""
    workloads = [
        Workload(
            members=2,
            senders="1",
            is_unicast=True,
            size=size,
            transport=transport,
            seconds=seconds,
            runs=runs,
        )
        for size in sizes
    ]
    with workloads[0].cluster() as cluster:
        for workload in workloads:
            ceiling = raw_ceiling(workload)
            measured = Rounds(cluster, workload)
            for _ in range(runs):
                measured.measure()
            rate = measured.rate
            yield {
                "transport": transport,
                "workload": workload.shape,
                "size": workload.size,
                "mixed": False,
                "loss": 0.0,
                "rate_per_member": round(rate),
                "mb_per_s": round(rate * workload.size / 1e6, 1),
                "cpu_us_per_delivery": round(measured.cpu_us_per_delivery, 3),
                "retransmitted": measured.retransmitted,
                "lost": measured.lost,
                "ceiling_mb_per_s": round(ceiling / 1e6, 1),
                "ceiling_ratio": ceiling_ratio(workload, rate, ceiling),
                "rates": [round(value) for value in measured.rates],
            }
