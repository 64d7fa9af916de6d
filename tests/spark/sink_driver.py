"""A Spark driver of its own: publishes a directory of Parquet files, one in each batch, until it
is done or killed.

Arguments: the directory of files, the staging directory, the checkpoint's; where Spark runs; how
many bytes may be staged.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ringcast.spark import register
from ringcast.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = "payload BINARY, headers MAP<STRING, STRING>"


def publish(
    spark: SparkSession, files: str, staging: str, checkpoint: str, **options: object
) -> StreamingQuery:
    register(spark)
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(files)
    writer = rows.repartition(2).writeStream.format("ringcast").option("publisherId", "rows")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    return writer.start(staging)


if __name__ == "__main__":
    *places, master, ahead = sys.argv[1:]
    publish(session("publish", master), *places, stagedBytes=ahead).awaitTermination()
