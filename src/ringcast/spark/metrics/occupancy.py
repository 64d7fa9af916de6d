"""Send windows: how full they were and who kept them so. Of members at level "full"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from ringcast.spark.metrics.columns import (
    FLOAT,
    LONG,
    TEXT,
    member_key,
    nanoseconds,
    of_event,
    peer_key,
    schema,
    typed,
    window_start,
)
from ringcast.trace.rows import ACKMAP, PURGE, RX, WIN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY = ("run_id", "sender", "stream")

OCCUPANCY = schema(
    run_id=TEXT,
    at_ns=LONG,
    sender=TEXT,
    stream=LONG,
    used=LONG,
    capacity=LONG,
    occupancy=FLOAT,
    behind=LONG,
    limited_by=TEXT,
)
"""The fullest that a send window was, in messages and as a share of what it may hold, of messages
or bytes, whichever is fuller; more than 1 where its bound in bytes was lowered meanwhile. Then, as
the time ends, how far the slowest member is behind and who that is. Null: nothing is outstanding,
or all are equally far."""


def window_occupancy(rows: DataFrame, window_s: float = 1.0) -> DataFrame:
    """OCCUPANCY: how full send windows were, and whose missing ack kept them so.

    A window that is stuck writes no rows, so what was known last holds until something new is.
    """
    at = window_start(window_s).alias("at_ns")
    is_own = (F.col("event") == WIN) & (F.col("kind") == "send")
    is_told = of_event(PURGE, ACKMAP)
    sides = (
        rows.where(is_own | is_told)
        .groupBy("run_id", member_key().alias("sender"), "stream", at)
        .agg(
            F.max(F.when(is_own, F.col("hr") - F.col("low"))).alias("used"),
            F.max(F.when(is_own, F.col("size"))).alias("charged"),
            F.max(F.when(is_own, F.col("cap"))).alias("capacity"),
            F.max(F.when(F.col("limit") > 0, F.col("limit"))).alias("limit"),
            F.max(F.when(is_own, F.col("hr"))).alias("high"),
            F.max(F.when(is_own, F.col("low"))).alias("low"),
            F.max(F.when(is_own, F.col("hd"))).alias("own"),
            # What is used as the time ends, for the times in which nothing changes.
            F.max_by(
                F.when(is_own, F.struct((F.col("hr") - F.col("low")).alias("used"), "size")),
                F.when(is_own, F.col("idx")),
            ).alias("left"),
            F.max_by("members", F.when(F.col("event") == ACKMAP, F.col("idx"))).alias("members"),
        )
    )
    # Those that never sent have nothing to show.
    bounds = (
        sides.groupBy(*_KEY)
        .agg(F.min("at_ns").alias("first"), F.max("at_ns").alias("last"), F.max("high").alias("n"))
        .where("n > 0")
    )
    times = F.explode(F.sequence("first", "last", F.lit(nanoseconds(window_s)).cast(LONG)))
    grid = bounds.select(*_KEY, times.alias("at_ns")).join(sides, [*_KEY, "at_ns"], "left")
    since = Window.partitionBy(*_KEY).orderBy("at_ns")
    before = since.rowsBetween(Window.unboundedPreceding, -1)
    lasting = ("capacity", "limit", "high", "low", "own", "members")
    grid = grid.withColumns(
        {name: F.last(name, ignorenulls=True).over(since) for name in lasting}
        | {"carried": F.last("left", ignorenulls=True).over(before)}
    )
    # A window is at least as full in this time as it was when the last one ended.
    grid = grid.withColumns(
        {
            "used": F.greatest("used", "carried.used"),
            "charged": F.greatest("charged", "carried.size"),
        }
    ).where(F.col("used").isNotNull())
    by_count = F.col("used") / F.col("capacity")
    by_bytes = F.try_divide(F.col("charged").cast(FLOAT), F.col("limit"))  # null: not bounded
    known = grid.withColumn("occupancy", F.greatest(by_count, by_bytes))
    slowest = _slowest(rows, known, at)
    return typed(known.join(slowest, [*_KEY, "at_ns"], "left"), OCCUPANCY)


def _slowest(rows: DataFrame, grid: DataFrame, at: Column) -> DataFrame:
    """Of each time in the grid: who of the members that count is furthest behind, and how far."""
    acks = (
        rows.where((F.col("event") == RX) & (F.col("kind") == "ack"))
        .groupBy("run_id", member_key().alias("sender"), "stream", peer_key().alias("receiver"), at)
        .agg(F.max("hd").alias("acked"))
    )
    waiting = grid.select(
        *(*_KEY, "at_ns", "high", "low", "own"), F.explode("members").alias("receiver")
    ).join(acks, [*_KEY, "at_ns", "receiver"], "left")
    since = Window.partitionBy(*_KEY, "receiver").orderBy("at_ns")
    is_other = F.col("receiver") != F.col("sender")
    told = F.when(is_other, F.last("acked", ignorenulls=True).over(since)).otherwise(F.col("own"))
    # Who has said nothing yet counts from where the window begins. Where members report instead,
    # nobody says anything to the sender, and nobody is named.
    waiting = waiting.withColumns(
        {"told": told, "acked": F.coalesce(told, F.col("low")), "is_other": is_other}
    )
    found = waiting.groupBy(*_KEY, "at_ns").agg(
        F.min(F.struct("acked", "receiver")).alias("least"),
        F.max("acked").alias("most"),
        F.max("high").alias("high"),
        F.count(F.when(F.col("is_other"), F.col("told"))).alias("acks"),
    )
    acked = F.least("least.acked", "high")
    is_limited = (acked < F.col("high")) & (acked < F.col("most")) & (F.col("acks") > 0)
    return found.select(
        *_KEY,
        "at_ns",
        (F.col("high") - acked).alias("behind"),
        F.when(is_limited, F.col("least.receiver")).alias("limited_by"),
    )
