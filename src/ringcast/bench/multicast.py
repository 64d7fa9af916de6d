"""ringcast bench multicast: real processes on loopback, and the raw ceiling of the same run.

What recording costs is measured by a second group that does not record and takes turns with the
first, and so is what reports cost, by one that acknowledges, and what a small receive buffer costs,
by one with that of everybody; what uniform delivery costs, by plain rounds of the same group in
turn with uniform ones.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ringcast.bench.rounds import Rounds, ceiling_ratio, raw_ceiling
from ringcast.bench.workload import versions

if TYPE_CHECKING:
    from ringcast.bench.cluster import Cluster
    from ringcast.bench.workload import Workload


def bench_multicast(workload: Workload, cluster: Cluster | None = None) -> dict[str, Any]:
    """Measure one workload, in this group if there is one for it already; a flat report."""
    ceiling = raw_ceiling(workload)
    with ExitStack() as stack:
        if cluster is None:
            cluster = stack.enter_context(workload.cluster())
        measured, plain = Rounds(cluster, workload, workload.guarantee), None
        match workload.beside:
            case "uniform":
                plain = Rounds(cluster, workload, "fifo")
            case "buffer":
                simple = replace(workload, receive_buffer=None)
                plain = Rounds(stack.enter_context(simple.cluster()), simple, simple.guarantee)
            case "record" | "stability":
                simple = replace(workload, record=None, purge="acks", retain=None)
                plain = Rounds(stack.enter_context(simple.cluster()), simple, "fifo")
        for turn in range(workload.runs):
            groups = [group for group in (measured, plain) if group is not None]
            for group in groups if turn % 2 == 0 else reversed(groups):
                group.measure()
    rate = measured.rate
    ratios = {f"{name}_ratio": None for name in ("record", "uniform", "stability", "buffer")}
    compared: dict[str, Any] = {
        "plain_rates": None,
        "plain_rate_per_member": None,
        "plain_cpu_us_per_delivery": None,
        "plain_reports_per_1000": None,
    }
    if plain is not None:
        compared = {
            f"{workload.beside}_ratio": round(rate / plain.rate, 3),
            "plain_rates": [round(value) for value in plain.rates],
            "plain_rate_per_member": round(plain.rate),
            "plain_cpu_us_per_delivery": round(plain.cpu_us_per_delivery, 3),
            "plain_reports_per_1000": round(plain.reports_per_1000, 2),
        }
    return {
        "transport": workload.transport,
        "workload": workload.shape,
        "size": workload.size,
        "mixed": workload.mixed,
        "guarantee": workload.guarantee,
        "purge": workload.purge,
        "loss": workload.loss,
        "receive_buffer": workload.receive_buffer,
        "rate_per_member": round(rate),
        "deliveries_per_s": round(rate * workload.members),
        "mb_per_s": round(rate * workload.size / 1e6, 1),
        "cpu_us_per_delivery": round(measured.cpu_us_per_delivery, 3),
        "retransmitted": measured.retransmitted,
        "reports_per_1000": round(measured.reports_per_1000, 2),
        "lost": measured.lost + (plain.lost if plain is not None else 0),
        "rss_mb": round(measured.rss_mb, 1),
        "ceiling_mb_per_s": round(ceiling / 1e6, 1),
        "ceiling_ratio": ceiling_ratio(workload, rate, ceiling),
        "rates": [round(value) for value in measured.rates],
        "messages": measured.messages,
        "recorded": workload.record_level if workload.record is not None else None,
        **ratios,
        **compared,
        "versions": versions(),
    }
