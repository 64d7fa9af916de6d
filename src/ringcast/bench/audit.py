"""The audit on Spark beside DuckDB, over the same files in one run: how fast, with how much memory.

Before anything is measured both must find what is planted in small copies, and nothing in clean
ones; and in every run that is measured both must say the same. The start of Spark and first audits,
until they get no faster, are not counted. What is counted goes from the names of the files to the
verdicts, on two cores. What a first audit takes, with all that, is measured apart (audit_cold.py).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ringcast.bench.audit_cold import measure_cold
from ringcast.bench.audit_sql import ALL, CORE, Questions
from ringcast.bench.audit_traces import EVEN, SKEWED, write_traces
from ringcast.bench.spark_usage import Usage, shuffled_bytes
from ringcast.errors import RingcastError
from ringcast.spark.audit import audit
from ringcast.spark.session import session, start_standalone
from ringcast.trace.rows import DELIVER
from ringcast.trace.segments import Segment, SegmentWriter, segment_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from pyspark.sql import SparkSession

    from ringcast.bench.audit_traces import Written

CORES = 2
DUCKDB_MEMORY = "4GB"
"""Spark takes less."""
PLANT_ROWS = 4000
WARM_UPS_MAX = 6
SENDERS = {"even": EVEN, "one sender": SKEWED}

_APP = "ringcast bench audit"


class Disagreement(RingcastError):
    """Spark and DuckDB do not say the same of the same files."""


def bench_audit(
    sizes: Sequence[int],
    *,
    runs: int = 3,
    with_executors: bool = True,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A line for each size, one more for the smallest with one sender that has 99 % of the rows,
    and two for the largest on one executor and on two. The best of so many runs counts."""
    ascending = sorted(set(sizes))
    cases = [("even", size) for size in ascending]
    cases.insert(1, ("one sender", ascending[0]))
    made: dict[tuple[str, int], Traces] = {}
    lines = []
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as name:
        scratch = Path(name)
        spark = session(_APP, f"local[{CORES}]", is_long=True)
        try:
            tell("planting violations in small traces …")
            check_plants(spark, scratch)
            for kind, size in cases:
                tell(f"{size} rows, {kind}: writing them …")
                traces = make_traces(scratch / f"{kind} {size}", size, SENDERS[kind])
                tell(f"{size} rows, {kind}: judging them with Spark and DuckDB, {runs} times …")
                line = measure(spark, traces, runs)
                made[kind, size] = traces
                tell(f"{size} rows, {kind}: judging them in a new process …")
                cold = measure_cold(traces.directory)
                line |= {"cold_cpu_s": cold["cold_cpu_s"], "cold": cold}
                lines.append({"senders": kind, "on": f"local[{CORES}]", **line})
        finally:
            spark.stop()
        if with_executors:
            lines += _on_executors(made["even", ascending[-1]], runs, tell)
    return lines


class Traces(NamedTuple):
    directory: Path
    written: Written


def make_traces(directory: Path, rows: int, shares: Sequence[float] = EVEN) -> Traces:
    directory.mkdir()
    return Traces(directory, write_traces(directory, rows, shares))


def measure(
    spark: SparkSession, traces: Traces, runs: int, *, beside: bool = True
) -> dict[str, Any]:
    """Spark's figures, and DuckDB's beside them: by turns, so that both have the same machine."""
    directory, written = traces
    _warm_up(spark, directory)
    shuffled = -shuffled_bytes(spark)
    used: list[Usage] = []
    asked: list[Asked] = []
    for _ in range(runs):
        with Usage() as usage:
            violated = violated_by_audit(spark, directory)
        used.append(usage)
        if beside:
            asked.append(ask(directory, violated))
    shuffled += shuffled_bytes(spark)
    seconds = min(usage.seconds for usage in used)
    line: dict[str, Any] = {
        "rows": written.rows,
        "messages": written.messages,
        "mb": round(written.bytes / 1e6, 1),
        "segments": written.segments,
        "seconds": round(seconds, 3),
        "cpu_s": round(min(usage.cpu_s for usage in used), 2),
        "rows_per_s": round(written.rows / seconds),
        "messages_per_s": round(written.messages / seconds),
        "peak_mb": round(max(usage.peak_mb for usage in used)),
        "shuffled_bytes": shuffled // runs,
        "shuffled_share": shuffled / runs / written.bytes,
    }
    for name in Asked._fields:
        best = min((getattr(each, name) for each in asked), default=None)
        line[f"duckdb_{name}"] = None if best is None else round(best, 3)
        line[f"{name.removesuffix('_s')}_ratio"] = best and round(best / seconds, 3)
    return line


def _warm_up(spark: SparkSession, directory: Path) -> None:
    """Until it gets no faster: Java compiles what it has run often enough."""
    best = float("inf")
    for _ in range(WARM_UPS_MAX):
        with Usage() as usage:
            audit(spark, directory)
        if usage.cpu_s > 0.9 * best:
            return
        best = usage.cpu_s


class Asked(NamedTuple):
    """How long DuckDB took over each question."""

    core_s: float
    all_s: float
    sums_s: float


def ask(directory: Path, violated: set[str]) -> Asked:
    """It must say what Spark says."""
    with _questions(directory) as questions:
        marks = [time.perf_counter()]
        core = questions.core()
        marks.append(time.perf_counter())
        everything = questions.all()
        marks.append(time.perf_counter())
        questions.sums()
        marks.append(time.perf_counter())
    for found, audited in ((core, violated & set(CORE)), (everything, violated)):
        if found != audited:
            raise Disagreement(
                f"Spark finds {_listed(audited)} violated and DuckDB {_listed(found)} in the same "
                "files: please report it"
            )
    return Asked(*(end - start for start, end in pairwise(marks)))


def _on_executors(
    traces: Traces, runs: int, tell: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """One core each, in processes of their own: a standalone cluster."""
    for count in (1, 2):
        tell(f"{traces.written.rows} rows on a cluster of processes, executors: {count} …")
        with start_standalone(workers=count, cores=1) as cluster:
            spark = session(_APP, cluster.url, is_long=True)
            try:
                line = measure(spark, traces, runs, beside=False)
            finally:
                spark.stop()
        yield {
            "senders": "even",
            "on": f"executors: {count}",
            **line,
            "cold_cpu_s": None,
            "cold": None,
        }


# What both must find


class Plant(NamedTuple):
    """A change of one member's rows, and which rules it violates."""

    node: str
    change: Callable[[pa.Table], pa.Table]
    violated: set[str]


def _places(rows: pa.Table, peer: str, stream: int) -> list[int]:
    wanted = (DELIVER, peer, stream)
    columns = (rows[name].to_pylist() for name in ("event", "peer", "stream"))
    return [at for at, found in enumerate(zip(*columns, strict=True)) if found == wanted]


def _again(rows: pa.Table) -> pa.Table:
    at = _places(rows, "m1", 0)[5]
    return pa.concat_tables([rows[: at + 1], rows[at : at + 1], rows[at + 1 :]])


def _left_out(rows: pa.Table) -> pa.Table:
    at = _places(rows, "m1", 0)[5]
    return pa.concat_tables([rows[:at], rows[at + 1 :]])


def _swapped(rows: pa.Table) -> pa.Table:
    order = list(range(len(rows)))
    one, two = _places(rows, "m1", 0)[5:7]
    order[one], order[two] = two, one
    return rows.take(order)


def _without_the_last(rows: pa.Table) -> pa.Table:
    """Of the uniform messages that the killed member left."""
    at = _places(rows, "m3", 1)[-1]
    return pa.concat_tables([rows[:at], rows[at + 1 :]])


PLANTS = {
    "a repeat": Plant("m0", _again, {"G2 N2"}),
    "a gap": Plant("m0", _left_out, {"N1", "N9"}),
    "a swap": Plant("m0", _swapped, {"N1"}),
    "a survivor that lacks the end": Plant("m2", _without_the_last, {"U1", "U6"}),
}


def check_plants(spark: SparkSession, scratch: Path) -> None:
    """Both find each plant, and nothing where there is none."""
    clean = scratch / "clean"
    clean.mkdir()
    write_traces(clean, PLANT_ROWS)
    _check(spark, clean, "nothing", set())
    for name, plant in PLANTS.items():
        planted = scratch / "planted"
        shutil.copytree(clean, planted)
        for path in segment_paths(planted):
            with Segment(path) as segment:
                info, rows = segment.info, pa.Table.from_batches(list(segment.batches()))
            if info.node == plant.node:
                path.unlink()
                changed = plant.change(rows)
                at = changed.schema.get_field_index("idx")
                changed = changed.set_column(at, "idx", pa.array(range(len(changed)), pa.int64()))
                writer = SegmentWriter(planted, info.recording)
                for batch in changed.combine_chunks().to_batches():
                    writer.add_batch(batch)
                writer.finish(is_last=info.is_last)
        _check(spark, planted, name, plant.violated)
        shutil.rmtree(planted)
    shutil.rmtree(clean)


def _check(spark: SparkSession, directory: Path, planted: str, violated: set[str]) -> None:
    with _questions(directory) as questions:
        said = {
            "Spark": violated_by_audit(spark, directory),
            "DuckDB": questions.all(),
        }
    for who, found in said.items():
        if found != violated:
            raise Disagreement(
                f"{who} finds {_listed(found)} violated where {planted} was planted, which "
                f"violates {_listed(violated)}: please report it"
            )


def violated_by_audit(spark: SparkSession, directory: Path) -> set[str]:
    """Of what DuckDB is asked too."""
    verdicts = {verdict.id: verdict for verdict in audit(spark, directory).verdicts}
    for name in ALL:
        if not verdicts[name].premises or verdicts[name].incomplete:
            raise Disagreement(f"Spark does not judge {name} of whole traces: please report it")
    return {name for name in ALL if verdicts[name].violation_count}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


# Around the measurements


@contextmanager
def _questions(directory: Path) -> Iterator[Questions]:
    spill = directory.with_name("spill")
    questions = Questions(directory, threads=CORES, memory=DUCKDB_MEMORY, scratch=spill)
    try:
        yield questions
    finally:
        questions.close()
        shutil.rmtree(spill, ignore_errors=True)
