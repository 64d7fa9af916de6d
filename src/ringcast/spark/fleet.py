"""A fleet: many seeds at every point of a grid, simulated wherever Spark has a core.

Runs are numbered: run r is seed r // points at point r % points. A task gets a stretch of numbers
and yields a row for each. What it yields depends on nothing but the numbers, so a task whose worker
died is simply run again. Traces are kept of failures only, and not of endlessly many.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from ringcast.errors import UsageError
from ringcast.sim.grid import Point, place, point_words
from ringcast.sim.plan import expand
from ringcast.sim.runner import Judged, Result, run, state_of
from ringcast.spark.columns import KINDS, schema
from ringcast.spark.fleet_audit import audit_as_recorded
from ringcast.spark.reading import context_of
from ringcast.trace.segments import write_trace_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from ringcast.sim.cluster import NodeFactory

VERSION = 1
"""Of the rows. Columns may be added to a version."""
SEEDS_STOP = 2**63
RUNS_PER_BATCH = 32
FAILURES_PER_ROW = 20
"""Failures of one run that are kept in its row, the earliest first, one of each state."""
KEPT_PER_TASK = 5
"""Failing runs of one task whose traces are kept."""
TASK_S = 10.0
"""How long a task should take: long against its own cost, short against the whole."""
TASKS_PER_CORE = 4
"""At least: so that no core is idle while another has much left."""
PILOT_RUNS = 4
_POLL_S = 3.0
AUDIT = "audit"
"""Under this name stands what the audit says, among the rules."""

_JUDGED = MapType(KINDS["text"], schema("long premises violations", "float worst"))
_FAILURES = ArrayType(schema("text rule state text"))
SCHEMA = StructType(
    [
        *schema("int version", "text protocol", "flag partitions", "text purge", "long seed"),
        *schema("text point", "floats parameters", "texts fault_classes", "text trace_hash"),
        StructField("judged", _JUDGED),
        *schema("long violations"),
        StructField("failures", _FAILURES),
        *schema("counts happenings matrix", "long deliveries faults rows virtual_ns"),
        *schema("float wall_s", "text kept"),
    ]
)
"""One row for each run. `point` names the values in `parameters`; `matrix` counts faults by class
and kind of frame, "F1 data"; `kept` is the trace's folder below `Fleet.out`, empty if not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Which runs. It travels with every task."""

    seeds: range
    points: tuple[Point, ...] = ((),)
    protocol: str = "multicast"
    partitions: bool = False
    purge: str = "acks"
    out: str = ""
    """Where failures are kept, in a directory that all workers share; empty: nowhere."""
    audit: bool = False
    """Judge each run once more, as if its members had recorded it."""
    node_factory: NodeFactory | None = None

    def __post_init__(self) -> None:
        if self.seeds.step != 1 or not 0 <= self.seeds.start < self.seeds.stop <= SEEDS_STOP:
            raise UsageError(f"seeds of a fleet are from 0 to {SEEDS_STOP - 1}")

    @property
    def runs(self) -> int:
        # len(range) has a limit, and so would the number of rows.
        return (self.seeds.stop - self.seeds.start) * len(self.points)

    def locate(self, number: int) -> tuple[int, Point]:
        """The seed and the point of this run."""
        seed, point = divmod(number, len(self.points))
        return self.seeds.start + seed, self.points[point]

    def simulate(self, number: int) -> Result:
        seed, point = self.locate(number)
        options = expand(seed, self.protocol, partitions=self.partitions, purge=self.purge)
        return run(place(options, point), self.node_factory)


def fleet_rows(spark: SparkSession, fleet: Fleet, tasks: int) -> DataFrame:
    """A row for each run; nothing is simulated before they are asked for."""
    numbers = spark.range(0, fleet.runs, 1, tasks)
    return numbers.mapInArrow(partial(_simulate_batches, fleet), SCHEMA)


def tasks_for(spark: SparkSession, fleet: Fleet) -> int:
    """How many tasks are best, by how long a few of the runs take here."""
    started = perf_counter()
    sample = range(0, fleet.runs, max(1, fleet.runs // PILOT_RUNS))[:PILOT_RUNS]
    for number in sample:
        fleet.simulate(number)
    run_s = (perf_counter() - started) / len(sample)
    fewest = TASKS_PER_CORE * context_of(spark).defaultParallelism
    return min(fleet.runs, max(fewest, round(fleet.runs * run_s / TASK_S)))


@contextmanager
def watched(spark: SparkSession, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Call `tell` with the tasks done and all tasks of what runs, when that has changed."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, tell, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, tell: Callable[[int, int], None], over: threading.Event) -> None:
    tracker = context_of(spark).statusTracker()
    told = (0, 0)
    while not over.wait(_POLL_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        now = sum(s.numCompletedTasks for s in running), sum(s.numTasks for s in running)
        if now[0] and now != told:
            tell(*now)
            told = now


def _simulate_batches(fleet: Fleet, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    kept = 0
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        for start in range(0, len(numbers), RUNS_PER_BATCH):
            rows = []
            for number in numbers[start : start + RUNS_PER_BATCH]:
                row = _simulate_row(fleet, number, is_kept=kept < KEPT_PER_TASK)
                kept += bool(row["kept"])
                rows.append(row)
            yield pa.RecordBatch.from_pylist(rows, _ARROW)


def _simulate_row(fleet: Fleet, number: int, *, is_kept: bool) -> dict[str, Any]:
    started = perf_counter()
    result = fleet.simulate(number)
    judged, failures = dict(result.summary.judged), _failures(result)
    if fleet.audit:
        alarms = audit_as_recorded(result)
        judged[AUDIT] = Judged(alarms.premises, len(alarms.found))
        failures += [
            {"rule": AUDIT, "state": f"{name} as its members recorded it", "text": text}
            for name, text in alarms.found
        ]
    seconds = perf_counter() - started
    seed, point = fleet.locate(number)
    summary = result.summary
    return {
        "version": VERSION,
        "protocol": fleet.protocol,
        "partitions": fleet.partitions,
        "purge": fleet.purge,
        "seed": seed,
        "point": " ".join(point_words(point)),
        "parameters": list(point),
        "fault_classes": list(result.options.faults),
        "trace_hash": summary.hash,
        "judged": [
            (rule, {"premises": j.premises, "violations": j.violations, "worst": j.worst})
            for rule, j in judged.items()
        ],
        "violations": sum(j.violations for j in judged.values()),
        "failures": failures[:FAILURES_PER_ROW],
        "happenings": list(summary.happenings.items()),
        "matrix": [(" ".join(pair), count) for pair, count in summary.matrix.items()],
        "deliveries": summary.deliveries,
        "faults": summary.faults,
        "rows": summary.rows,
        "virtual_ns": result.trace.rows[-1].mono_ns if result.trace.rows else 0,
        "wall_s": seconds,
        "kept": _keep(fleet, result, point) if is_kept and fleet.out and failures else "",
    }


def _failures(result: Result) -> list[dict[str, str]]:
    """The first of each state."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for failure in result.failures:
        if len(found) == FAILURES_PER_ROW:
            break
        key = failure.rule, state_of(failure, result.trace)
        words = {"rule": key[0], "state": key[1], "text": failure.text}
        found.setdefault(key, words)
    return list(found.values())


def _keep(fleet: Fleet, result: Result, point: Point) -> str:
    """Write the trace; a task that is run again writes the same files over those of the first."""
    words = [f"seed-{result.options.seed}", *point_words(point)]
    name = "-".join(words).replace("=", "-")  # Spark would take a=b for a column
    folder = Path(fleet.out, "failures", name)
    write_trace_segments(folder, name, result.trace.rows, result.trace.facts)
    return f"failures/{name}"


_ARROW = to_arrow_schema(SCHEMA)
