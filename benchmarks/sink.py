"""ringcast bench sink: rows that Spark stages for a group, and a publisher that sends them.

In turns, so that both meet the same machine, Spark writes the same rows to the sink and to Parquet.
Then `ringcast publish` sends what was staged to a group of one other member, which reads it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.usage import cpu_ns, in_turns
from benchmarks.workload import progress
from ringcast import blocking
from ringcast.errors import UsageError
from ringcast.spark.session import session
from ringcast.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.workload import Row as Report

PARTITIONS = 2


def bench_sink(messages: int, size: int, master: str, conf: dict[str, str]) -> list[Report]:
    """`messages` of `size` bytes."""
    if min(messages, size) < 1:
        raise UsageError("--messages and --size are at least 1")
    progress("starting Spark …")
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as scratch:
        with session("ringcast bench sink", master, is_long=True, conf=conf) as spark:
            register(spark)
            numbers = spark.range(0, messages, 1, PARTITIONS)
            text = f"lpad(CAST(id AS STRING), {size}, '0')"
            rows = numbers.selectExpr(f"CAST({text} AS BINARY) AS payload")
            kinds = (partial(_write, rows, kind, scratch) for kind in ("sink", "parquet"))
            sink, parquet = in_turns([*kinds])
        progress("publishing …")
        seconds, publisher_s = _publish(Path(scratch, "sink-0"), messages)
    sink_s, parquet_s = (min(usage.seconds for usage in each) for each in (sink, parquet))
    sink_cpu_s, parquet_cpu_s = (min(usage.cpu_s for usage in each) for each in (sink, parquet))
    report = {
        "messages": messages,
        "size": size,
        "rows_per_s": round(messages / sink_s),
        "cpu_us_per_row": round(sink_cpu_s / messages * 1e6, 2),
        "parquet_rows_per_s": round(messages / parquet_s),
        "parquet_cpu_us_per_row": round(parquet_cpu_s / messages * 1e6, 2),
        "ratio": round(parquet_s / sink_s, 2),
        "published_per_s": round(messages / seconds),
        "publisher_cpu_us_per_row": round(publisher_s / messages * 1e6, 2),
    }
    return [report]


def _write(rows: DataFrame, kind: str, scratch: str, turn: int) -> None:
    place = f"{scratch}/{kind}-{turn}"
    if kind == "sink":
        writer = rows.write.format("ringcast").option("publisherId", "bench").mode("append")
        writer.save(place)
    else:
        rows.write.parquet(place)


def _publish(staged: Path, messages: int) -> tuple[float, float]:
    """Seconds from the first message at a member to the last; and of the publisher's CPU since it
    began."""
    group = f"bench-sink-{os.getpid()}"
    command = (sys.executable, "-m", "ringcast", "publish", str(staged), group)
    with (
        blocking.join(group, name="reader") as reader,
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as publisher,
    ):
        try:
            batches, read = reader.batches(), 0
            started = 0.0
            while read < messages:
                read += len(next(batches).run.payloads)
                started = started or time.perf_counter()
            return time.perf_counter() - started, cpu_ns(publisher.pid) / 1e9
        finally:
            publisher.terminate()
