"""ringcast bench source and fleet: what Spark gets out of an archive, and simulations on Spark.

Spark's own start is told apart from a fleet's time: it is paid once, for however many seeds. The
start of its Python workers is part of it, as that of the plain processes is part of theirs.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import GreaterThan, LessThanOrEqual
from pyspark.sql.types import StructType

from benchmarks.usage import in_turns
from benchmarks.workload import progress
from ringcast.errors import UsageError
from ringcast.sim.runner import run_seeds
from ringcast.spark.fleet import Fleet, fleet_rows, tasks_for
from ringcast.spark.messages import read_messages, tasks_of
from ringcast.spark.options import Options
from ringcast.spark.session import session
from ringcast.spark.source import ArchiveReader, MessagesPartition, RingcastSource, register
from ringcast.trace.archive import Index
from ringcast.trace.footer import Recording
from ringcast.trace.rows import DELIVER, Row
from ringcast.trace.segments import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.workload import Row as Report

SENDERS = 4
RUN = 500
"""Messages to a row, about as many as come within 10 ms."""
FILE_MESSAGES = 250_000
STEPS = 15
"""Micro-batches; the first ones, while everything is compiled, are left out of the median."""
WARM = 5
ROUNDS = 3
"""Of the reading without Spark; the best one counts."""
VARIED = 40_000
VARIED_SIZE = 1000
VARIED_FILES = 8
"""The archive of which queries read some: what is in its messages does not compress."""
SEGMENT_S = 0.2
SEGMENTS = 20


def bench_source(
    messages: int, size: int, step: int, master: str, conf: dict[str, str]
) -> list[Report]:
    """`messages` of `size` bytes, and micro-batches of `step`."""
    if min(messages, size, step) < 1:
        raise UsageError("--messages, --size and --step are at least 1")
    progress("writing an archive, starting Spark …")
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as scratch:
        archive = Path(scratch, "archive")
        archive.mkdir()
        messages = _write(archive, messages, size)
        plain_s = min(_read_plainly(archive) for _ in range(ROUNDS))
        with session("ringcast bench source", master, is_long=True, conf=conf) as spark:
            register(spark)
            spark.dataSource.register(ReadySource)
            read_mb = _read_bytes(Path(scratch, "varied"))
            formats = map(spark.read.format, ("ringcast", ReadySource.name()))
            tables = [reader.load(str(archive)) for reader in formats]
            whole, ready = in_turns([partial(_read_whole, table) for table in tables])
            steps_ms = _step_times(spark, Path(scratch), size, step)
            output_ms = sorted(_output_times(spark, Path(scratch), size)[WARM:])
    seconds, ready_s = (min(usage.seconds for usage in each) for each in (whole, ready))
    report = {
        "messages": messages,
        "size": size,
        "rows_per_s": round(messages / seconds),
        "mb_per_s": round(messages * size / seconds / 1e6, 1),
        "cpu_s": round(min(usage.cpu_s for usage in whole), 2),
        "cpu_us_per_row": round(min(usage.cpu_s for usage in whole) / messages * 1e6, 2),
        "ceiling_rows_per_s": round(messages / ready_s),
        "ceiling_ratio": round(ready_s / seconds, 2),
        "plain_rows_per_s": round(messages / plain_s),
        "step_messages": step,
        "steps": len(steps_ms),
        "step_median_ms": statistics.median(steps_ms),
        **{f"{name}_mb": round(size / 1e6, 2) for name, size in read_mb.items()},
        "output_median_ms": round(statistics.median(output_ms)),
        "output_max_ms": round(output_ms[-1]),
    }
    return [report]


class ReadySource(RingcastSource):
    """What Spark takes at most from any source in Python: the archive's, but for the reading.

    Each task hands over the first batch of its share, again and again, until there were as many
    rows as it should have read. All that remains is Spark's own: to start the task, to get the
    batches out of Python, to make rows of them.
    """

    @classmethod
    def name(cls) -> str:
        return "ringcast-ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(Options.parse(self.options, is_stream=False))


class ReadyReader(ArchiveReader):
    """The same tasks, and batches that are there already."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessagesPartition)
        left = sum(part.last - part.first + 1 for file in partition.files for part in file.wanted)
        batch = next(read_messages(self._options.path, partition.files))
        while left > 0:
            yield batch.slice(0, left)
            left -= len(batch)


def _read_whole(table: DataFrame, _: int) -> None:
    """Every column of every message: out of the archive, or of what is ready."""
    table.write.format("noop").mode("overwrite").save()


def _step_times(spark: SparkSession, scratch: Path, size: int, step: int) -> list[int]:
    """Milliseconds of each micro-batch over another archive, once all is compiled."""
    archive = scratch / "steps"
    archive.mkdir()
    _write(archive, STEPS * max(step, RUN), size)
    query = (
        spark.readStream.format("ringcast")
        .option("query", "bench")
        .option("maxMessagesPerTrigger", step)
        .load(str(archive))
        .writeStream.format("noop")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    steps = [step for step in query.recentProgress if step.numInputRows]
    return [step.durationMs["triggerExecution"] for step in steps[WARM:]]


def _read_bytes(archive: Path) -> dict[str, int]:
    """What queries read: all; the keys; the last tenth by number; a tenth of the time; its keys."""
    archive.mkdir()
    _write(archive, VARIED, VARIED_SIZE, VARIED // VARIED_FILES, is_varied=True)
    index = Index(archive)
    index.refresh()
    times = [file.times for file in index.files.values() if file.times is not None]
    begin, end = min(span.first for span in times), max(span.last for span in times)
    middle = (begin + end) // 2
    first, last = (
        datetime.fromtimestamp(at / 1e9, UTC) for at in (middle, middle + (end - begin) // 10)
    )
    greatest = max(map(index.last, index.origins))
    last_tenth: list[Filter] = [GreaterThan(("seqno",), greatest * 9 // 10)]
    tenth_of_time: list[Filter] = [
        GreaterThan(("delivered_at",), first),
        LessThanOrEqual(("delivered_at",), last),
    ]
    keys = StructType().add("sender", "string").add("seqno", "long")
    queries: dict[str, tuple[Any, list[Filter]]] = {
        "all": (None, []),
        "keys": (keys, []),
        "last_tenth": (None, last_tenth),
        "time_tenth": (None, tenth_of_time),
        "time_keys": (keys, tenth_of_time),
    }
    return {name: _read_by(archive, *query) for name, query in queries.items()}


def _read_by(archive: Path, columns: StructType | None, filters: list[Filter]) -> int:
    """The bytes that this process reads for a query, the listing and all footers among them."""
    before = _bytes_so_far()
    options = Options.parse({"path": str(archive)}, is_stream=False, columns=columns)
    reader = ArchiveReader(options)
    reader.pushFilters(filters)
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass
    return _bytes_so_far() - before


def _bytes_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def _output_times(spark: SparkSession, scratch: Path, size: int) -> list[float]:
    """Milliseconds from a message to a stream's output, of the first one in each segment."""
    archive = scratch / "coming"
    archive.mkdir()
    query = (
        spark.readStream.format("ringcast")
        .option("query", "coming")
        .load(str(archive))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(scratch / "coming-checkpoint"))
        .start(str(scratch / "table"))
    )
    recording = Recording(run_id="bench", node="archive", inc=1, payloads=True)
    found = []
    try:
        for seqno in range(1, SEGMENTS + 1):
            taken_at = time.time()
            time.sleep(SEGMENT_S)
            segment = SegmentWriter(archive, recording)
            row = Row(DELIVER, "archive", 1, seqno, -1, 0, "sender", 1, 0, seqno, seqno, 1)
            segment.add([row], int(taken_at * 1e9), [[bytes(size)]])
            segment.finish()
            while _last_in_output(query) < seqno:
                time.sleep(0.005)
            found.append((time.time() - taken_at) * 1e3)
    finally:
        query.stop()
    return found


def _last_in_output(query: StreamingQuery) -> int:
    """Spark tells of a step once its output is committed."""
    progress = query.lastProgress
    if not query.isActive:
        raise UsageError(f"the stream ended: {query.exception()}")
    end = json.loads(progress.sources[0].endOffset or "{}") if progress else {}
    return max(end.values(), default=0)


def _write(
    directory: Path,
    messages: int,
    size: int,
    per_file: int = FILE_MESSAGES,
    *,
    is_varied: bool = False,
) -> int:
    """An archive of some senders; how many messages it has."""
    noise = os.urandom(RUN * 8 + size)
    payloads = [noise[at * 8 : at * 8 + size] for at in range(RUN)]
    recording = Recording(run_id="bench", node="archive", inc=1, payloads=True)
    runs = max(1, messages // RUN)
    runs_per_file = per_file // RUN
    for start in range(0, runs, runs_per_file):
        segment = SegmentWriter(directory, recording)
        for idx in range(start, min(start + runs_per_file, runs)):
            turn, sender = divmod(idx, SENDERS)
            first = turn * RUN + 1
            who = f"sender-{sender}", sender + 1, 0
            row = Row(DELIVER, "archive", 1, idx, -1, idx, *who, first, first + RUN - 1, 1)
            if is_varied:
                payloads = [os.urandom(size) for _ in range(RUN)]
            segment.add([row], time.time_ns(), [payloads])
        segment.finish()
    return runs * RUN


def _read_plainly(archive: Path) -> float:
    index = Index(archive)
    index.refresh()
    plan = index.pieces({}, time.time())
    started = time.perf_counter()
    for task in tasks_of(plan.pieces):
        for _ in read_messages(str(archive), task):
            pass
    return time.perf_counter() - started


# Fleets

CORES = 2


def bench_fleet(seeds: int, protocol: str, conf: dict[str, str]) -> list[Report]:
    """Seeds 0 to `seeds` - 1. Both ways must give the same traces."""
    progress(f"{seeds} seeds in plain processes, then on Spark …")
    started = time.perf_counter()
    plain = {
        summary.seed: summary.hash
        for summary in run_seeds(range(seeds), protocol=protocol, jobs=CORES)
    }
    plain_s = time.perf_counter() - started
    started = time.perf_counter()
    with session("ringcast bench fleet", f"local[{CORES}]", conf=conf) as spark:
        start_s = time.perf_counter() - started
        started = time.perf_counter()
        fleet = Fleet(seeds=range(seeds), protocol=protocol)
        tasks = tasks_for(spark, fleet)
        rows = fleet_rows(spark, fleet, tasks).select("seed", "trace_hash").collect()
        spark_s = time.perf_counter() - started
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
