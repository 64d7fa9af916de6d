"""Which tables there are, and what is in them.

Bronze has every row as it was recorded, and the file it came from. Silver has each row once, with
the columns that its events fill. Gold is what people ask for. Every table is partitioned by group,
date and run: the group's name, the day by UTC on the recording member's clock, and the run's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ringcast.trace import rows
from ringcast.trace.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

DAY_NS = 86_400 * 10**9
VERSION = 1
"""Of all tables together. Columns may be added to a version."""

_TEXT, _LONG, _FLOAT, _TIME = StringType(), LongType(), DoubleType(), TimestampType()
_UNSIGNED = DecimalType(20, 0)
"""64 bits without a sign: incarnations and hashes."""
_TEXTS = ArrayType(StringType())


def _schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


PARTITION = _schema(group=_TEXT, date=DateType(), run=_TEXT)

_EVENTS = {
    "deliveries": (
        *(rows.SEND, rows.DELIVER, rows.HANDED, rows.BLOCK),
        *(rows.SEND_BLOCK, rows.SEND_UNBLOCK, rows.SEND_FAIL),
        *(rows.UNICAST_SEND, rows.UNICAST_DELIVER, rows.UNICAST_BLOCK, rows.UNICAST_UNBLOCK),
        *(rows.UNDELIVERABLE, rows.GAP),
    ),
    "wire": (
        *(rows.TX, rows.RX, rows.NET_DROP, rows.NET_DUP, rows.NET_CORRUPT, rows.XMIT_MISMATCH),
        *(rows.DROP_HIGH, rows.DROP_LOW, rows.REJECT),
    ),
    "windows": (
        *(
            rows.OPEN,
            rows.DROP_WINDOW,
            rows.WIN,
            rows.ACKMAP,
            rows.PURGE,
            rows.RELEASE,
            rows.STABILITY_REPORT,
        ),
        *(rows.UNICAST_WIN, rows.CONN, rows.TICK, rows.TAIL),
        *(rows.SYNC, rows.SYNC_CALL, rows.UNICAST_DROP),
    ),
}
"""Which events are in which table. All others are in `views`: the life of members and groups."""

ROW_TABLES = (*_EVENTS, "views")

_KEPT_AS_THEY_ARE = {
    "host": _TEXT,
    "boot_id": _TEXT,
    "wall_ns": _LONG,
    **dict.fromkeys(Row._fields, _LONG),
    **dict.fromkeys(("event", "node", "peer", "view_creator", "kind", "detail"), _TEXT),
    **dict.fromkeys(("inc", "peer_inc", "block_hash"), _UNSIGNED),
    **dict.fromkeys(rows.LISTS, _TEXTS),
}
_BRONZE = _schema(file=_TEXT, **_KEPT_AS_THEY_ARE)
_EVERY_ROW: dict[str, DataType] = {
    "member": _TEXT,
    "idx": _LONG,
    "at": _TIME,
    "wall_ns": _LONG,
    "mono_ns": _LONG,
    "event": _TEXT,
    "kind": _TEXT,
    "peer": _TEXT,
    "stream": _LONG,
    "seqno": _LONG,
    "seqno2": _LONG,
    "view": _LONG,
    "detail": _TEXT,
}
_SILVER = {
    "deliveries": _schema(
        **_EVERY_ROW, messages=_LONG, size=_LONG, block=_LONG, block_hash=_UNSIGNED
    ),
    "wire": _schema(
        **_EVERY_ROW, hd=_LONG, received=_LONG, size=_LONG, again=_LONG, epoch=_LONG, conn=_LONG
    ),
    "windows": _schema(
        **_EVERY_ROW,
        **dict.fromkeys(("low", "hd", "received", "hr", "cap", "size", "used", "limit"), _LONG),
        **dict.fromkeys(("again", "epoch", "conn"), _LONG),
        members=_TEXTS,
    ),
    "views": _schema(
        **_EVERY_ROW,
        **dict.fromkeys(("hd", "received"), _LONG),
        creator=_TEXT,
        **dict.fromkeys(rows.LISTS, _TEXTS),
    ),
}
_GOLD = {
    "verdicts": _schema(
        **dict.fromkeys(("guarantee", "title", "verdict"), _TEXT),
        **dict.fromkeys(("checks", "violations"), _LONG),
        **dict.fromkeys(("detail", "witness"), _TEXT),
        **dict.fromkeys(("members", "segments", "rows"), _LONG),
    ),
    "activity": _schema(
        member=_TEXT, event=_TEXT, rows=_LONG, messages=_LONG, first_at=_TIME, last_at=_TIME
    ),
    "throughput": _schema(
        at=_TIME,
        **dict.fromkeys(("sender", "receiver"), _TEXT),
        **dict.fromkeys(("stream", "messages"), _LONG),
        messages_per_s=_FLOAT,
    ),
    "latency": _schema(
        at=_TIME,
        **dict.fromkeys(("sender", "receiver"), _TEXT),
        **dict.fromkeys(("stream", "samples"), _LONG),
        **dict.fromkeys(("p50_ms", "p90_ms", "p99_ms", "max_ms"), _FLOAT),
        reason=_TEXT,
    ),
    "repairs": _schema(
        sender=_TEXT,
        receiver=_TEXT,
        **dict.fromkeys(("frames", "messages", "bytes", "requests"), _LONG),
    ),
}
TABLES: dict[str, StructType] = {
    **{f"bronze.{name}": _BRONZE for name in ROW_TABLES},
    **{f"silver.{name}": schema for name, schema in _SILVER.items()},
    **{f"gold.{name}": schema for name, schema in _GOLD.items()},
}
"""The columns of each table, without the three that it is partitioned by."""
LAYERS = ("bronze", "silver", "gold")

QUARANTINE = _schema(file=_TEXT, size=_LONG, reason=_TEXT)
"""Segments that are in no table but bronze, or in none."""


def whole_schema(table: str) -> StructType:
    """With the columns that the table is partitioned by."""
    return StructType([*TABLES[table].fields, *PARTITION.fields])


def typed(frame: DataFrame, table: str) -> DataFrame:
    """Just the columns of this table, of its types, and the partition's."""
    columns = whole_schema(table).fields
    return frame.select(*(F.col(item.name).cast(item.dataType) for item in columns))


def row_table() -> Column:
    """In which table a row belongs."""
    found = F.lit("views")
    for name, events in _EVENTS.items():
        found = F.when(F.col("event").isin(*events), name).otherwise(found)
    return found


def silver_rows(frame: DataFrame, name: str) -> DataFrame:
    """The rows of one table, with members by their keys and times that can be read."""
    own = frame.where(row_table() == name)
    return typed(
        own.withColumns(
            {
                "member": member_key("node", "inc"),
                "peer": F.when(F.col("peer") != "", member_key("peer", "peer_inc")),
                "at": at("wall_ns"),
                "messages": messages(),
                "creator": F.col("view_creator"),
            }
        ),
        f"silver.{name}",
    )


def member_key(name: str, incarnation: str) -> Column:
    return F.concat_ws("#", F.col(name), F.col(incarnation).cast("string"))


def messages() -> Column:
    """How many whole messages: one in fragments counts where the last of them stands."""
    is_run = F.col("event").isin(
        *(rows.SEND, rows.DELIVER, rows.HANDED, rows.UNICAST_SEND, rows.UNICAST_DELIVER)
    )
    count = F.col("seqno2") - F.col("seqno") + 1
    return F.when(is_run & (F.col("kind") != "fragment"), count).otherwise(0)


def at(nanoseconds: str) -> Column:
    """This column as a timestamp, which has microseconds."""
    return F.timestamp_micros(F.expr(f"{nanoseconds} div 1000"))


def day(nanoseconds: str) -> Column:
    """The date by UTC, whatever the session's time zone is."""
    return F.date_from_unix_date(F.expr(f"cast({nanoseconds} div {DAY_NS} as int)"))
