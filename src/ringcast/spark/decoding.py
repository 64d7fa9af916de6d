"""What is done with messages once Spark has them: their fields as columns; how far a query lags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ringcast.errors import UsageError
from ringcast.trace.held import Position, origin_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_PAYLOAD = "payload"


def decode(frame: DataFrame, schema: StructType | str, kind: str = "json") -> DataFrame:
    """What `ringcast.spark.decode` says."""
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
    """What `ringcast.spark.lag` says."""
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
