"""Frames: what was retransmitted, and what acknowledging costs. Of members at level "full"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ringcast.spark.metrics.columns import (
    FLOAT,
    LONG,
    TEXT,
    member_key,
    messages,
    of_event,
    peer_key,
    schema,
    typed,
)
from ringcast.trace.rows import DELIVER, TX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAYLOAD_KINDS = ("data", "peer_repair", "udata", "unicastdata", "statedata", "forwarded")

RETRANSMISSIONS = schema(
    run_id=TEXT,
    sender=TEXT,
    receiver=TEXT,
    frames=LONG,
    messages=LONG,
    bytes=LONG,
    requests=LONG,
)
"""What was retransmitted to whom, and how often it was asked for. No receiver: to the whole
group."""

CONTROL_COST = schema(
    run_id=TEXT,
    member=TEXT,
    kind=TEXT,
    frames=LONG,
    delivered=LONG,
    frames_per_message=FLOAT,
)
"""Frames without payload that a member sent, against the messages it delivered meanwhile."""


def retransmissions(rows: DataFrame) -> DataFrame:
    """RETRANSMISSIONS: the hot spots, sender by receiver."""
    is_data = F.col("kind").isin("data", "peer_repair", "forwarded")
    is_again = is_data & (F.col("again") > 0)
    is_request = F.col("kind").isin("nack", "want", "peerrepairrequest", "peer_repair_request")
    sent = rows.where(of_event(TX) & (is_again | is_request))
    count = F.when(is_again, F.col("seqno2") - F.col("seqno") + 1)
    found = sent.groupBy(
        "run_id",
        F.when(is_again, member_key()).otherwise(peer_key()).alias("sender"),
        F.when(is_again, peer_key()).otherwise(member_key()).alias("receiver"),
    ).agg(
        F.count(count).alias("frames"),
        F.coalesce(F.sum(count), F.lit(0)).alias("messages"),
        F.coalesce(F.sum(F.when(is_again, F.col("size"))), F.lit(0)).alias("bytes"),
        F.count(F.when(is_request, 1)).alias("requests"),
    )
    return typed(found, RETRANSMISSIONS)


def control_cost(rows: DataFrame) -> DataFrame:
    """CONTROL_COST: what a delivered message costs in frames that carry none."""
    control = (
        rows.where(of_event(TX) & ~F.col("kind").isin(*_PAYLOAD_KINDS))
        .groupBy("run_id", member_key().alias("member"), "kind")
        .agg(F.count("*").alias("frames"))
    )
    delivered = (
        rows.where(of_event(DELIVER))
        .groupBy("run_id", member_key().alias("member"))
        .agg(F.sum(messages()).alias("delivered"))
    )
    found = control.join(delivered, ["run_id", "member"], "left").fillna(0, ["delivered"])
    per_message = F.try_divide(F.col("frames").cast("double"), F.col("delivered"))
    return typed(found.withColumn("frames_per_message", per_message), CONTROL_COST)
