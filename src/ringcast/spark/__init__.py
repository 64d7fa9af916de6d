"""The only code that imports pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.types import StructType

__all__ = ["decode", "lag", "register"]


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
    from ringcast.spark.decoding import decode as decode_payloads

    return decode_payloads(frame, schema, kind)


def lag(progress: StreamingQueryProgress) -> dict[str, int]:
    """How many numbers the archive has of each sender, incarnation and stream behind what a
    micro-batch ended with, where there are some. A large message takes several."""
    from ringcast.spark.decoding import lag as lag_of

    return lag_of(progress)
