"""ringcast bench fleet: a fleet on Spark, beside the same seeds in as many plain processes.

Spark's own start is told apart: it is paid once, for however many seeds. The start of its Python
workers is part of its time, as the start of the plain processes is part of theirs.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.printing import tell
from ringcast.sim.fleet import run_seeds
from ringcast.spark.fleet import Fleet, fleet_rows, tasks_for
from ringcast.spark.session import session

if TYPE_CHECKING:
    from benchmarks.printing import Row

CORES = 2


def bench_fleet(seeds: int, protocol: str) -> list[Row]:
    """Seeds 0 to `seeds` - 1. Both ways must give the same traces."""
    tell(f"{seeds} seeds in plain processes, then on Spark …")
    started = perf_counter()
    plain = {
        summary.seed: summary.hash
        for summary in run_seeds(range(seeds), protocol=protocol, jobs=CORES)
    }
    plain_s = perf_counter() - started
    started = perf_counter()
    with session("ringcast bench fleet", f"local[{CORES}]") as spark:
        start_s = perf_counter() - started
        started = perf_counter()
        fleet = Fleet(seeds=range(seeds), protocol=protocol)
        tasks = tasks_for(spark, fleet)
        rows = fleet_rows(spark, fleet, tasks).select("seed", "trace_hash").collect()
        spark_s = perf_counter() - started
    assert {row.seed: row.trace_hash for row in rows} == plain
    row = {
        "protocol": protocol,
        "seeds": seeds,
        "tasks": tasks,
        "plain_seeds_per_s": seeds / plain_s,
        "spark_seeds_per_s": seeds / spark_s,
        "ratio": plain_s / spark_s,
        "aim": 0.75,
        "spark_start_s": start_s,
    }
    return [row]
