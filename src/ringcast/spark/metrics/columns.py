"""Trace rows as a DataFrame, and the columns that all metrics are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ringcast.errors import UsageError
from ringcast.trace.rows import Row
from ringcast.trace.segments import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

TEXT, LONG, FLOAT = StringType(), LongType(), DoubleType()
MEMBER_LIST = ArrayType(StringType())


def schema(**columns: DataType) -> StructType:
    """These columns, in this order."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def read_rows(spark: SparkSession, *paths: Path | str) -> DataFrame:
    """The rows of these segments, or of all below these directories."""
    if not paths:
        raise UsageError("no segments: name files or directories")
    for path in map(Path, paths):
        if path.name.startswith(("_", ".")) and path.is_file():
            raise UsageError(
                f"{path.name}: Spark takes it for hidden; give it another first letter"
            )
    frame = (
        spark.read.schema(_row_schema())
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", f"*{SUFFIX}")
        .option("parquet.page.verify-checksum.enabled", "true")
        .parquet(*(_literally(str(path)) for path in paths))
    )
    defaults: dict[str, bool | float | int | str] = {
        name: value for name, value in Row._field_defaults.items() if isinstance(value, int | str)
    }
    return frame.fillna(defaults)  # for the columns that older segments lack


CLOCKS = schema(machine=TEXT, offset_ns=LONG)
"""How far the wall clock of each machine was ahead of its monotonic one, for most of the time."""


def clocks(rows: DataFrame) -> DataFrame:
    """CLOCKS: one row for each machine, or for each member where machines are not told apart."""
    ahead = F.col("wall_ns") - F.col("mono_ns")
    found = rows.groupBy(_machine().alias("machine")).agg(
        F.percentile_approx(ahead, 0.5, 1000).alias("offset_ns")
    )
    return typed(found, CLOCKS)


def steady(rows: DataFrame, offsets: Mapping[str, int]) -> DataFrame:
    """The same rows with `wall_ns` as it would be had nobody set a clock during the run.

    `offsets` are CLOCKS by machine. A clock that is set in the middle of a run would tear its time
    axis apart.
    """
    if not offsets:
        return rows
    known = F.create_map(*(F.lit(value) for item in offsets.items() for value in item))
    return rows.withColumn("wall_ns", F.col("mono_ns") + known[_machine()])


def _machine() -> Column:
    return F.when(F.col("boot_id") != "", F.col("boot_id")).otherwise(member_key())


def _row_schema() -> StructType:
    def kind(name: str) -> DataType:
        if name in ("inc", "peer_inc", "block_hash"):
            return DecimalType(20, 0)  # 64 bits without a sign
        default = Row._field_defaults.get(name, 0)
        if name in ("event", "node") or isinstance(default, str):
            return TEXT
        return MEMBER_LIST if isinstance(default, tuple) else LONG

    return schema(
        **dict.fromkeys(("run_id", "host", "boot_id"), TEXT),
        wall_ns=LONG,
        **{name: kind(name) for name in Row._fields},
    )


def _literally(path: str) -> str:
    """Spark reads paths as patterns; this one means itself."""
    return "".join(f"\\{mark}" if mark in "*?[]{}\\" else mark for mark in path)


def of_event(*events: str) -> Column:
    """Is the row of one of these?"""
    return F.col("event").isin(*events)


def member_key() -> Column:
    """The key of the row's own member."""
    return F.concat_ws("#", F.col("node"), F.col("inc").cast("string"))


def peer_key() -> Column:
    """The key of the row's other side; null where that is the whole group."""
    key = F.concat_ws("#", F.col("peer"), F.col("peer_inc").cast("string"))
    return F.when(F.col("peer") != "", key)


def of_pairs(delivered: DataFrame) -> DataFrame:
    """Deliveries, with who sent and who took them."""
    return delivered.withColumns({"sender": peer_key(), "receiver": member_key()})


def messages() -> Column:
    """How many whole messages a row has: one in fragments counts where the last of them stands."""
    count = F.col("seqno2") - F.col("seqno") + 1
    return F.when(F.col("kind") == "fragment", 0).otherwise(count)


def clock() -> Column:
    """What `mono_ns` counts from: the start of one machine, or a simulation. Null: nobody knows."""
    return F.when(F.col("run_idx") >= 0, "simulation").when(
        F.col("boot_id") != "", F.col("boot_id")
    )


def nanoseconds(window_s: float) -> int:
    """The length of a window of time; UsageError if it is none."""
    if not 1e-6 <= window_s < 1e9:
        raise UsageError(f"window_s={window_s!r}: write seconds, at least 0.000001, such as 1.0")
    return round(window_s * 1e9)


def window_start(window_s: float | None, at: str = "wall_ns") -> Column:
    """When the window begins that this time is in; null where the whole run is one."""
    if window_s is None:
        return F.lit(None).cast(LONG)
    # Whole numbers: a double cannot tell today's nanoseconds apart.
    return F.col(at) - F.pmod(F.col(at), F.lit(nanoseconds(window_s)).cast(LONG))


def keyed(by: Sequence[str], measures: StructType) -> StructType:
    """The run, the time and these keys, then what is measured."""
    keys = {name: LONG if name == "stream" else TEXT for name in by}
    named = schema(run_id=TEXT, at_ns=LONG, **keys)
    return StructType([*named.fields, *measures.fields])


def typed(frame: DataFrame, schema: StructType) -> DataFrame:
    """Just these columns, of just these types."""
    return frame.select(*(F.col(item.name).cast(item.dataType) for item in schema.fields))
