"""A Spark driver of its own: copies an archive into a table of Parquet, until it is killed.

Arguments: the archive's directory, the table's, the checkpoint's; where Spark runs; messages of a
step.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ringcast.spark import register
from ringcast.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STEP = 2000
PATIENCE_S = 3600
"""So long that no gap is ever passed over: what is missing is seen to be missing."""


def copy(
    spark: SparkSession,
    archive: str,
    table: str,
    checkpoint: str,
    *,
    step: int = STEP,
    is_last: bool = False,
) -> StreamingQuery:
    register(spark)
    messages = (
        spark.readStream.format("ringcast")
        .option("query", "copy")
        .option("gapWaitSeconds", PATIENCE_S)
        .option("maxMessagesPerTrigger", 1_000_000 if is_last else step)
        .load(archive)
    )
    columns = ("sender", "incarnation", "stream", "seqno", "sha2(payload, 256) AS content")
    writer = messages.selectExpr(*columns).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", checkpoint)
    if is_last:
        writer = writer.trigger(availableNow=True)
    return writer.start(table)


if __name__ == "__main__":
    *places, master, step = sys.argv[1:]
    copy(session("copy", master), *places, step=int(step)).awaitTermination()
