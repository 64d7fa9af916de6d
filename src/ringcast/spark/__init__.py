"""The only code that imports pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("ringcast")` and `readStream` known in this session."""
    from ringcast.spark.source import register as register_source

    register_source(spark)
