"""What Spark does in `ringcast demo`: reads the archive as a stream, and adds orders up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ringcast.spark import register

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW_S = 2
TABLE = "revenue"
FIRST_ORDERS_S = 60.0
LOOK_S = 0.1

REVENUE = f"""
    SELECT window.start AS since, sender, stream, count(*) AS orders, sum(cents) AS cents
    FROM (SELECT sender, stream, delivered_at,
                 from_json(CAST(payload AS STRING), 'cents BIGINT').cents AS cents
          FROM messages)
    GROUP BY window(delivered_at, '{WINDOW_S} seconds'), sender, stream
"""


class Revenue:
    """A streaming query over an archive, and what has come out of it."""

    def __init__(self, spark: SparkSession, archive: Path, checkpoint: Path) -> None:
        register(spark)
        messages = spark.readStream.format("ringcast").option("query", "revenue").load(str(archive))
        messages.createOrReplaceTempView("messages")
        self._spark = spark
        self._query: StreamingQuery = (
            spark.sql(REVENUE)
            .writeStream.format("memory")
            .queryName(TABLE)
            .outputMode("complete")
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="1 second")
            .start()
        )

    def await_orders(self) -> int:
        """Return when it has read some: how many."""
        deadline = time.monotonic() + FIRST_ORDERS_S
        while not (read := sum(step.numInputRows for step in self._query.recentProgress)):
            failed = self._query.exception()
            if failed is not None:
                raise click.ClickException(f"the stream has failed: {failed}")
            if time.monotonic() > deadline:
                raise click.ClickException(f"Spark has read no order within {FIRST_ORDERS_S:g} s")
            time.sleep(LOOK_S)
        return read

    def finish(self) -> None:
        """Read all that is in the archive now, and end."""
        self._query.processAllAvailable()
        self._query.stop()

    def by_sender(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Orders and cents of each sender by each guarantee."""
        rows = self._sums("sender, stream")
        return {(sender, stream): (orders, cents) for sender, stream, orders, cents in rows}

    def by_time(self) -> list[tuple[datetime, int, int]]:
        """When each window began, its orders and cents."""
        return [(since, orders, cents) for since, orders, cents in self._sums("since")]

    def _sums(self, keys: str) -> list[Row]:
        found = self._spark.sql(
            f"SELECT {keys}, sum(orders), sum(cents) FROM {TABLE} GROUP BY {keys} ORDER BY {keys}"
        )
        return found.collect()
