"""Which tables there are, and what is in them.

Bronze has every row as it was recorded, and the file it came from. Silver has each row once, with
the columns that its events fill. Gold is what people ask for. Every table is partitioned by group,
date and run: the group's name, the day by UTC on the recording member's clock, and the run's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ringcast.spark.columns import ROWS, member_key, of_event, peer_key, schema, typed
from ringcast.spark.columns import messages as messages_of_run
from ringcast.trace import rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAY_NS = 86_400 * 10**9
VERSION = 1
"""Of all tables together. Columns may be added to a version."""

PARTITION = schema("text group", "date date", "text run")

_EVENTS = {
    "deliveries": (
        *(rows.SEND, rows.DELIVER, rows.HANDED, rows.BLOCK),
        *(rows.SEND_BLOCK, rows.SEND_UNBLOCK, rows.SEND_FAIL),
        *(rows.UNICAST_SEND, rows.UNICAST_DELIVER, rows.UNICAST_BLOCK, rows.UNICAST_UNBLOCK),
        *(rows.UNDELIVERABLE, rows.GAP),
    ),
    "order": (rows.ACCEPT, rows.ORDER),
    "wire": (
        *(rows.TX, rows.RX, rows.NET_DROP, rows.NET_DUP, rows.NET_CORRUPT, rows.XMIT_MISMATCH),
        *(rows.DROP_HIGH, rows.DROP_LOW, rows.REJECT),
    ),
    "windows": (
        *(rows.OPEN, rows.DROP_WINDOW, rows.WIN, rows.ACKMAP, rows.PURGE, rows.RELEASE),
        rows.STABILITY_REPORT,
        *(rows.UNICAST_WIN, rows.CONN, rows.TICK, rows.TAIL),
        *(rows.SYNC, rows.SYNC_CALL, rows.UNICAST_DROP),
    ),
}
"""Which events are in which table. All others are in `views`: the life of members and groups."""

ROW_TABLES = (*_EVENTS, "views")

_BRONZE = StructType([*schema("text file"), *(item for item in ROWS if item.name != "run_id")])
_EVERY_ROW = (
    *("text member", "long idx", "time at", "long wall_ns mono_ns", "text event kind peer"),
    *("long stream seqno seqno2 view", "text detail"),
)
_SILVER = {
    "deliveries": schema(*_EVERY_ROW, "long messages size block", "unsigned block_hash"),
    "order": schema(*_EVERY_ROW, "text creator", "long position messages"),
    "wire": schema(*_EVERY_ROW, "long hd received size again epoch conn"),
    "windows": schema(
        *(*_EVERY_ROW, "long low hd received hr cap size used limit", "long again epoch conn"),
        "texts members",
    ),
    "views": schema(
        *(*_EVERY_ROW, "long hd received position", "text creator"),
        f"texts {' '.join(rows.LISTS)}",
    ),
}
_PAIR = ("time at", "text sender receiver")
_GOLD = {
    "verdicts": schema(
        *("text guarantee title verdict", "long checks violations", "text detail witness"),
        "long members segments rows",
    ),
    "activity": schema("text member event", "long rows messages", "time first_at last_at"),
    "throughput": schema(*_PAIR, "long stream messages", "float messages_per_s"),
    "latency": schema(
        *(*_PAIR, "long stream samples", "float p50_ms p90_ms p99_ms max_ms", "text reason")
    ),
    "repairs": schema("text sender receiver", "long frames messages bytes requests"),
}
TABLES: dict[str, StructType] = {
    **{f"bronze.{name}": _BRONZE for name in ROW_TABLES},
    **{f"silver.{name}": schema for name, schema in _SILVER.items()},
    **{f"gold.{name}": schema for name, schema in _GOLD.items()},
}
"""The columns of each table, without the three that it is partitioned by."""
LAYERS = ("bronze", "silver", "gold")

QUARANTINE = schema("text file", "long size", "text reason")
"""Segments that are in no table but bronze, or in none."""


def whole_schema(table: str) -> StructType:
    """With the columns that the table is partitioned by."""
    return StructType([*TABLES[table], *PARTITION])


def row_table() -> Column:
    """In which table a row belongs."""
    found = F.lit("views")
    for name, events in _EVENTS.items():
        found = F.when(of_event(*events), name).otherwise(found)
    return found


def silver_rows(frame: DataFrame, name: str) -> DataFrame:
    """The rows of one table, with members by their keys and times that can be read."""
    columns = {
        "member": member_key(),
        "peer": peer_key(),
        "at": at("wall_ns"),
        "messages": messages(),
        "position": F.when(of_event(rows.ORDER, rows.SHOWN) & (F.col("low") >= 0), F.col("low")),
        "creator": F.col("view_creator"),
    }
    own = frame.where(row_table() == name).withColumns(columns)
    return typed(own, whole_schema(f"silver.{name}"))


def messages() -> Column:
    """How many whole messages a row tells of."""
    is_run = of_event(
        *(rows.SEND, rows.DELIVER, rows.HANDED, rows.UNICAST_SEND, rows.UNICAST_DELIVER),
        *(rows.ACCEPT, rows.ORDER),
    )
    return F.when(is_run, messages_of_run()).otherwise(0)


def at(nanoseconds: str) -> Column:
    """This column as a timestamp, which has microseconds."""
    return F.timestamp_micros(F.expr(f"{nanoseconds} div 1000"))


def day(nanoseconds: str) -> Column:
    """The date by UTC, whatever the session's time zone is."""
    return F.date_from_unix_date(F.expr(f"cast({nanoseconds} div {DAY_NS} as int)"))
