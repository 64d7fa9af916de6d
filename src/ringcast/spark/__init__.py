"""The only code that imports pyspark, and none before it is called."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ringcast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.types import StructType

__all__ = ["decode", "lag", "register"]

_PAYLOAD = "payload"


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("ringcast")` and `readStream` known in this session."""
    from ringcast.spark.source import register as register_source

    register_source(spark)


def decode(frame: DataFrame, schema: StructType | str, kind: str = "json") -> DataFrame:
    """The frame, with the fields of its messages in the place of `payload`.

    A field that a message lacks is null, and all are where a message is not of that kind. Tables
    and streams are decoded alike. UsageError: there is no `payload`, a field is called as a column
    that is there, or the kind is not "json".
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if kind != "json":
        raise UsageError(f'messages are decoded as "json", not {kind!r}')
    if _PAYLOAD not in frame.columns:
        raise UsageError(f"no column {_PAYLOAD}: decode what the source gives, before you select")
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(fields, StructType):
        raise UsageError(f'name the fields and their types, as in "cents BIGINT": not {schema!r}')
    others = [name for name in frame.columns if name != _PAYLOAD]
    same = sorted(set(others) & set(fields.names))
    if same:
        raise UsageError(f"there is a column {same[0]} already: select others first, or rename it")
    # Two selects, because Spark takes a struct apart where it stands.
    parsed = F.from_json(F.col(_PAYLOAD).cast("string"), fields).alias(_PAYLOAD)
    return frame.select(*others, parsed).select(*others, f"{_PAYLOAD}.*")


def lag(progress: StreamingQueryProgress) -> dict[str, int]:
    """How many numbers the archive has of each sender, incarnation and stream behind what a
    micro-batch ended with, where there are some. A large message takes several."""
    from ringcast.trace.held import Position, origin_text

    behind: dict[str, int] = {}
    for source in progress.sources:
        try:
            read, there = (
                Position.from_dict(json.loads(text)).digest
                for text in (source.endOffset, source.latestOffset)
            )
        except (TypeError, ValueError, AttributeError, UsageError):
            continue  # another kind of source
        for origin, last in there.items():
            if last > read.get(origin, 0):
                behind[origin_text(origin)] = last - read.get(origin, 0)
    return behind
