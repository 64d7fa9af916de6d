"""ringcast bench audit: the audit on Spark beside DuckDB, over the same files in one run.

Both must find what is planted in small copies, and in every run that is measured say the same. What
a first audit takes is measured apart (audit_cold.py).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from benchmarks.audit_cold import measure_cold
from benchmarks.audit_sql import ALL, CORE, Questions, duckdb
from benchmarks.audit_traces import EVEN, SKEWED, Written, write_members, write_traces
from benchmarks.usage import Usage, peak_mb, result_bytes, shuffled_bytes
from benchmarks.workload import Row, progress
from ringcast.errors import RingcastError
from ringcast.spark.audit import audit
from ringcast.spark.session import session, start_standalone
from ringcast.trace.rows import DELIVER
from ringcast.trace.segments import Segment, SegmentWriter, segment_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

APP = "ringcast bench audit"
CORES = 2
ASKED = ("core", "all", "sums")
PLANT_ROWS = 4000
WARM_UPS_MAX = 6
SENDERS = {"even": EVEN, "one sender": SKEWED}


class Disagreement(RingcastError):
    """Spark and DuckDB do not say the same of the same files."""


def bench_audit(
    *,
    sizes: Sequence[int],
    runs: int,
    executors: bool,
    members: int | None,
    segments: int,
    conf: dict[str, str],
) -> Iterator[Row]:
    """A line for each size, one more for the smallest with one sender that has 99 % of the rows,
    and two for the largest on one executor and on two. The best of so many runs counts. With
    `members`, one line of another kind."""
    if members is not None:
        yield _bench_members(members, segments, conf)
        return
    duckdb()
    ascending = sorted(set(sizes))
    cases = [("even", size) for size in ascending]
    cases.insert(1, ("one sender", ascending[0]))
    even: list[Written] = []
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as name:
        scratch = Path(name)
        with session(APP, f"local[{CORES}]", is_long=True, conf=conf) as spark:
            progress("planting violations in small traces …")
            check_plants(spark, scratch)
            for kind, size in cases:
                progress(f"{size} rows, {kind}: writing them …")
                written = write_traces(scratch / f"{kind} {size}", size, SENDERS[kind])
                progress(f"{size} rows, {kind}: judging them with Spark and DuckDB, {runs} times …")
                line = measure(spark, written, runs)
                progress(f"{size} rows, {kind}: judging them in a new process …")
                cold = measure_cold(written.directory, conf)
                line |= {"cold_cpu_s": cold["cold_cpu_s"], "cold": cold}
                yield {"senders": kind, "on": f"local[{CORES}]", **line}
                if kind == "even":
                    even.append(written)
        for count in (1, 2) if executors else ():
            progress(f"{even[-1].rows} rows on a cluster of processes, executors: {count} …")
            with (
                start_standalone(workers=count, cores=1) as cluster,  # each in its own process
                session(APP, cluster.url, is_long=True, conf=conf) as spark,
            ):
                line = measure(spark, even[-1], runs, beside=False)
            on = f"executors: {count}"
            yield {"senders": "even", "on": on, **line, "cold_cpu_s": None, "cold": None}


def _bench_members(members: int, segments: int, conf: dict[str, str]) -> Row:
    """One audit of many small segments in a new session, with Spark's own bound on what tasks may
    return: what the driver gets, and what it needs."""
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as name:
        directory = Path(name)
        progress(f"{members} members, {segments} segments each: writing them …")
        size = write_members(directory, members, segments)
        progress("judging them …")
        before = peak_mb()  # of the driver's Python half
        with session(APP, f"local[{CORES}]", conf=conf) as spark:
            with Usage() as usage:
                report = audit(spark, directory)
            returned = result_bytes(spark)
    if report.exit_status:
        raise RingcastError(f"clean traces are not found so: {report.summary}")
    return {
        "members": members,
        "segments": report.segments,
        "rows": report.rows,
        "mb": round(size / 1e6, 1),
        "seconds": round(usage.seconds, 1),
        "cpu_s": round(usage.cpu_s, 1),
        "returned_mb": round(returned / 1e6, 2),
        "driver_mb": round(peak_mb() - before),
        "peak_mb": round(usage.peak_mb),
    }


def measure(spark: SparkSession, written: Written, runs: int, *, beside: bool = True) -> Row:
    """Spark's figures, and DuckDB's beside them: by turns, so that both have the same machine."""
    directory = written.directory
    _warm_up(spark, directory)
    shuffled = -shuffled_bytes(spark)
    used: list[Usage] = []
    asked: list[list[float]] = []
    for _ in range(runs):
        with Usage() as usage:
            violated = violated_by_audit(spark, directory)
        used.append(usage)
        if beside:
            asked.append(ask(directory, violated))
    shuffled += shuffled_bytes(spark)
    seconds = min(usage.seconds for usage in used)
    line: Row = {
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
    for name, *times in zip(ASKED, *asked, strict=True):
        best = min(times, default=None)
        line[f"duckdb_{name}_s"] = best and round(best, 3)
        line[f"{name}_ratio"] = best and round(best / seconds, 3)
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


def ask(directory: Path, violated: set[str]) -> list[float]:
    """How long DuckDB takes over each of ASKED. It must say what Spark says."""
    answers: list[Any] = []
    times = []
    with Questions(directory) as questions:
        for question in (questions.core, questions.all, questions.sums):
            started = time.perf_counter()
            answers.append(question())
            times.append(time.perf_counter() - started)
    core, everything, _ = answers
    for found, audited in ((core, violated & set(CORE)), (everything, violated)):
        if found != audited:
            raise Disagreement(
                f"Spark finds {_listed(audited)} violated and DuckDB {_listed(found)} in the same "
                "files: please report it"
            )
    return times


# What both must find


class Plant(NamedTuple):
    """A change of what one member has delivered of another, and which rules it violates."""

    node: str
    origin: tuple[str, int]
    """Sender and stream."""
    change: Callable[[range, list[int]], list[int]]
    """From the places of all rows, and of these deliveries, to those of the rows that remain."""
    violated: set[str]


def _without(at: int) -> Callable[[range, list[int]], list[int]]:
    return lambda rows, found: [place for place in rows if place != found[at]]


def _swapped(rows: range, found: list[int]) -> list[int]:
    one, two = found[5:7]
    return [{one: two, two: one}.get(place, place) for place in rows]


PLANTS = {
    "a repeat": Plant(
        "m0", ("m1", 0), lambda rows, found: sorted([*rows, found[5]]), {"G2 N2", "VS3"}
    ),
    "a gap": Plant("m0", ("m1", 0), _without(5), {"N1", "VS3"}),
    "a swap": Plant("m0", ("m1", 0), _swapped, {"N1", "VS3"}),
    "a survivor that lacks the end": Plant("m2", ("m3", 1), _without(-1), {"VS5", "VS6"}),
}


def check_plants(spark: SparkSession, scratch: Path) -> None:
    """Both find each plant, and nothing where there is none."""
    clean, planted = scratch / "clean", scratch / "planted"
    write_traces(clean, PLANT_ROWS)
    _check(spark, clean, "nothing", set())
    for name, plant in PLANTS.items():
        shutil.copytree(clean, planted)
        for path in segment_paths(planted):
            with Segment(path) as segment:
                info, rows = segment.info, pa.Table.from_batches(list(segment.batches()))
            if info.node == plant.node:
                path.unlink()
                columns = (rows[column].to_pylist() for column in ("event", "peer", "stream"))
                wanted = (DELIVER, *plant.origin)
                found = [at for at, row in enumerate(zip(*columns, strict=True)) if row == wanted]
                changed = rows.take(plant.change(range(len(rows)), found))
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
    with Questions(directory) as questions:
        said = {"Spark": violated_by_audit(spark, directory), "DuckDB": questions.all()}
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
