"""Columns: schemas in short, trace rows as Spark has them, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ringcast.errors import UsageError
from ringcast.trace.columns import SCHEMA, TEXT
from ringcast.trace.disks import SUFFIX
from ringcast.trace.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KINDS: dict[str, T.DataType] = {
    "text": T.StringType(),
    "texts": T.ArrayType(T.StringType()),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "counts": T.MapType(T.StringType(), T.LongType()),  # by name
    "floats": T.MapType(T.StringType(), T.DoubleType()),
    "unsigned": T.DecimalType(20, 0),  # 64 bits without a sign: incarnations and hashes
    "float": T.DoubleType(),
    "flag": T.BooleanType(),
    "time": T.TimestampType(),
    "date": T.DateType(),
}
LONG = KINDS["long"]
_OF_ARROW = {
    TEXT: "text",
    pa.list_(pa.string()): "texts",
    pa.int64(): "long",
    pa.uint64(): "unsigned",
}


def schema(*columns: str) -> T.StructType:
    """Columns in order: of each text the first word is their kind, the others are their names."""
    return T.StructType(
        [
            T.StructField(name, KINDS[kind])
            for kind, *names in map(str.split, columns)
            for name in names
        ]
    )


ROWS = schema(*(f"{_OF_ARROW[item.type]} {item.name}" for item in SCHEMA))
"""Trace rows, as segments have them."""


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
        spark.read.schema(ROWS)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", f"*{SUFFIX}")
        .option("parquet.page.verify-checksum.enabled", "true")
        .parquet(*(literally(str(path)) for path in paths))
    )
    defaults: dict[str, bool | float | int | str] = {
        name: value for name, value in Row._field_defaults.items() if isinstance(value, int | str)
    }
    return frame.fillna(defaults)  # for the columns that older segments lack


def typed(frame: DataFrame, schema: T.StructType) -> DataFrame:
    """Just these columns, of just these types."""
    return frame.select(*(F.col(item.name).cast(item.dataType) for item in schema.fields))


def literally(path: str) -> str:
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


def messages() -> Column:
    """How many whole messages a run has: one in fragments counts where the last of them stands."""
    count = F.col("seqno2") - F.col("seqno") + 1
    return F.when(F.col("kind") == "fragment", 0).otherwise(count)
