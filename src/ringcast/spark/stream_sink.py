"""`writeStream` into a group, for which Spark has writers of Arrow since 4.1."""

from __future__ import annotations

from ringcast.spark.sink import Writer
from ringcast.spark.source import streams_are_missing

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError as error:
    raise streams_are_missing() from error


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """Batches have the numbers that Spark gives them."""

    kind = "a stream"
