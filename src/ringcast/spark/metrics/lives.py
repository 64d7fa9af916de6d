"""Members: their lives, their views, and what befell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from ringcast.spark.metrics.columns import (
    LONG,
    MEMBER_LIST,
    TEXT,
    clock,
    member_key,
    of_event,
    schema,
    typed,
)
from ringcast.trace.rows import ACKMAP, CRASH, PAUSE, RESUME, STOP, TX, VIEW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VIEWS = schema(
    run_id=TEXT,
    at_ns=LONG,
    settled_ns=LONG,
    view=LONG,
    creator=TEXT,
    members=MEMBER_LIST,
    joined=MEMBER_LIST,
    departed=MEMBER_LIST,
)
"""When the first and the last of its members installed a view, and what it changed for those who
had one before."""

SUSPICIONS = schema(run_id=TEXT, at_ns=LONG, by=TEXT, suspect=TEXT, why=TEXT)
"""Who told the coordinator that somebody is silent or slow. The coordinator's own suspicions show
as views only; who is suspected is null in traces that do not say."""

MEMBERS = schema(
    run_id=TEXT,
    member=TEXT,
    host=TEXT,
    clock=TEXT,
    started_ns=LONG,
    last_ns=LONG,
    end=TEXT,
    is_full=BooleanType(),
    rows=LONG,
)
"""Each member's recorded life. `end` is `stopped`, `crashed` (simulations), or null: its trace just
ends. Latency is measured between members of one `clock`."""

INCIDENTS = schema(run_id=TEXT, at_ns=LONG, member=TEXT, what=TEXT)
"""What befell a member, as simulations write it down: `crash`, `pause`, `resume`."""


def views(rows: DataFrame) -> DataFrame:
    """VIEWS: each view once, with what it changed."""
    own = Window.partitionBy("run_id", "node", "inc").orderBy("idx")
    installed = rows.where(of_event(VIEW)).withColumn("before", F.lag("members").over(own))
    found = installed.groupBy("run_id", F.col("view"), F.col("view_creator").alias("creator")).agg(
        F.min("wall_ns").alias("at_ns"),
        F.max("wall_ns").alias("settled_ns"),
        F.min("members").alias("members"),
        _all_of(F.array_except("members", "before")).alias("joined"),
        _all_of(F.array_except("before", "members")).alias("departed"),
    )
    return typed(found, VIEWS)


def _all_of(lists: Column) -> Column:
    return F.array_sort(F.array_distinct(F.flatten(F.collect_set(lists))))


def suspicions(rows: DataFrame) -> DataFrame:
    """SUSPICIONS: who told whom to go on without somebody."""
    told = rows.where(of_event(TX) & (F.col("kind") == "complain"))
    found = told.select(
        "run_id",
        F.col("wall_ns").alias("at_ns"),
        member_key().alias("by"),
        F.get("members", F.lit(0)).alias("suspect"),
        F.when(F.col("detail") != "", F.col("detail")).alias("why"),
    )
    return typed(found, SUSPICIONS)


def members(rows: DataFrame) -> DataFrame:
    """MEMBERS: each member's life, as far as it is recorded."""
    event = F.col("event")
    end = F.max(F.when(event == STOP, "stopped").when(event == CRASH, "crashed"))
    found = (
        rows.where(F.col("node") != "")
        .groupBy("run_id", member_key().alias("member"))
        .agg(
            F.max("host").alias("host"),
            F.max(clock()).alias("clock"),
            F.min("wall_ns").alias("started_ns"),
            F.max("wall_ns").alias("last_ns"),
            end.alias("end"),
            F.max(event.isin(ACKMAP, TX)).alias("is_full"),
            F.count("*").alias("rows"),
        )
    )
    return typed(found, MEMBERS)


def incidents(rows: DataFrame) -> DataFrame:
    """INCIDENTS: crashes and pauses that a simulation made."""
    found = rows.where(of_event(CRASH, PAUSE, RESUME)).select(
        "run_id",
        F.col("wall_ns").alias("at_ns"),
        member_key().alias("member"),
        F.col("event").alias("what"),
    )
    return typed(found, INCIDENTS)
