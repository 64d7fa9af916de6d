"""Messages: how many came through, and how long they took. Any level shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from ringcast.spark.metrics.columns import (
    FLOAT,
    LONG,
    TEXT,
    clock,
    keyed,
    member_key,
    messages,
    of_event,
    of_pairs,
    schema,
    typed,
    window_start,
)
from ringcast.trace.rows import ACKMAP, DELIVER, SEND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

PAIR = ("sender", "receiver", "stream")
NO_COMMON_CLOCK = "the sender and the receiver have different clocks"
PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}

_SAMPLE_SEQNOS = 1 << 16
"""Sends and deliveries of so many messages of one sender meet in one task: however much a single
sender sends, its messages are spread over all cores."""

_DELIVERY: tuple[tuple[str, DataType], ...] = (
    ("at_ns", LONG),
    ("taken_ns", LONG),
    ("clock", TEXT),
)

THROUGHPUT = schema(messages=LONG, messages_per_s=FLOAT)
"""What follows `run_id`, `at_ns` and the keys: messages delivered. Large ones count once."""

SAMPLES = schema(
    run_id=TEXT,
    at_ns=LONG,
    sender=TEXT,
    receiver=TEXT,
    stream=LONG,
    seqno=LONG,
    latency_ns=LONG,
    reason=TEXT,
)
"""One message's way from `send` to delivery; null, with the reason, where no clock can tell."""

LATENCY = schema(samples=LONG, p50_ms=FLOAT, p90_ms=FLOAT, p99_ms=FLOAT, max_ms=FLOAT, reason=TEXT)
"""What follows `run_id`, `at_ns` and the keys. Without samples there is a reason instead."""


def throughput(
    rows: DataFrame, window_s: float | None = 1.0, by: Sequence[str] = PAIR
) -> DataFrame:
    """Messages delivered per window and pair (or other keys); without a window, in the whole run.

    Columns: `run_id`, `at_ns`, the keys, then THROUGHPUT.
    """
    delivered = of_pairs(rows.where(of_event(DELIVER)))
    found = delivered.groupBy("run_id", window_start(window_s).alias("at_ns"), *by).agg(
        F.sum(messages()).alias("messages")
    )
    rate = F.lit(None) if window_s is None else F.col("messages") / F.lit(window_s)
    return typed(found.withColumn("messages_per_s", rate), keyed(by, THROUGHPUT))


def latency_samples(rows: DataFrame) -> DataFrame:
    """SAMPLES: how long messages took from their send to a delivery.

    A row has the time of its first message, and at level "deliveries" may gather later ones: so
    sampled are the messages that begin a delivery's row and, at that level, a send's row too.
    """
    # Sends and deliveries in the order of their seqnos: the send that a delivery belongs to is the
    # last one before it. That is one sort, where a join over ranges would try every pair.
    exact = rows.where(of_event(ACKMAP)).select(
        "run_id", member_key().alias("sender"), F.lit(True).alias("is_full")
    )
    sends = rows.where(of_event(SEND) & (F.col("seqno") <= F.col("seqno2"))).select(
        *("run_id", "stream", "seqno"),
        member_key().alias("sender"),
        F.lit(None).cast(TEXT).alias("receiver"),
        F.struct("seqno", "seqno2", "mono_ns", clock().alias("clock")).alias("send"),
        F.explode(F.sequence(_bucket("seqno"), _bucket("seqno2"))).alias("bucket"),
        *(F.lit(None).cast(kind).alias(name) for name, kind in _DELIVERY),
    )
    deliveries = of_pairs(rows.where(of_event(DELIVER))).select(
        *("run_id", "stream", "seqno", "sender", "receiver"),
        F.lit(None).cast(sends.schema["send"].dataType).alias("send"),
        _bucket("seqno").alias("bucket"),
        F.col("wall_ns").alias("at_ns"),
        F.col("mono_ns").alias("taken_ns"),
        clock().alias("clock"),
    )
    in_order = Window.partitionBy("run_id", "sender", "stream", "bucket").orderBy(
        "seqno", F.col("receiver").asc_nulls_first()
    )
    send = F.last("send", ignorenulls=True).over(in_order)
    matched = (
        sends.unionByName(deliveries)
        .withColumn("send", send)
        .where(F.col("receiver").isNotNull() & (F.col("send.seqno2") >= F.col("seqno")))
        .join(F.broadcast(exact.distinct()), ["run_id", "sender"], "left")
        .where((F.col("send.seqno") == F.col("seqno")) | F.col("is_full"))
    )
    is_same_clock = F.coalesce(F.col("clock") == F.col("send.clock"), F.lit(False))
    return typed(
        matched.withColumn(
            "latency_ns", F.when(is_same_clock, F.col("taken_ns") - F.col("send.mono_ns"))
        ).withColumn("reason", F.when(~is_same_clock, NO_COMMON_CLOCK)),
        SAMPLES,
    )


def latency(
    samples: DataFrame, window_s: float | None = 1.0, by: Sequence[str] = PAIR
) -> DataFrame:
    """Percentiles of what `latency_samples` gives, per window and pair (or other keys).

    Columns: `run_id`, `at_ns`, the keys, then LATENCY.
    """
    at = window_start(window_s, "at_ns")
    measured = F.col("latency_ns") / 1e6
    ranks = list(PERCENTILES.values())
    found = samples.groupBy("run_id", at.alias("at_ns"), *by).agg(
        F.count("latency_ns").alias("samples"),
        F.percentile_approx(measured, ranks, 10_000).alias("percentiles"),
        F.max(measured).alias("max_ms"),
        F.max("reason").alias("reason"),
    )
    for at_rank, name in enumerate(PERCENTILES):
        found = found.withColumn(name, F.col("percentiles")[at_rank])
    found = found.withColumn("reason", F.when(F.col("samples") == 0, F.col("reason")))
    return typed(found, keyed(by, LATENCY))


def _bucket(seqno: str) -> Column:
    return F.shiftright(seqno, _SAMPLE_SEQNOS.bit_length() - 1)
