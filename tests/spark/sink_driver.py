"""A Spark driver of its own: publishes a directory of Parquet files, one in each batch, until it
is done or killed.

Arguments: the directory of files, the staging directory, the checkpoint's; where Spark runs; how
many bytes may be staged; how many seconds a task works before it stages anything.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from ringcast.spark import register
from ringcast.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = "payload BINARY, headers MAP<STRING, STRING>"


def work(seconds: float, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    done = time.process_time() + seconds
    while time.process_time() < done:
        pass
    yield from batches


def publish(
    spark: SparkSession,
    files: str,
    staging: str,
    checkpoint: str,
    work_s: float = 0.0,
    **options: object,
) -> StreamingQuery:
    register(spark)
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(files)
    rows = rows.repartition(2)
    if work_s:
        rows = rows.mapInArrow(partial(work, work_s), COLUMNS)
    writer = rows.writeStream.format("ringcast").option("publisherId", "rows")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    return writer.start(staging)


if __name__ == "__main__":
    *places, master, ahead, work_s = sys.argv[1:]
    spark = session("publish", master)
    publish(spark, *places, work_s=float(work_s), stagedBytes=ahead).awaitTermination()
