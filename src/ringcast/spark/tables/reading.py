"""Tables as DataFrames: just the files that the manifests name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.errors import UsageError
from ringcast.spark.columns import literally
from ringcast.spark.tables.layout import QUARANTINE, TABLES, whole_schema
from ringcast.spark.tables.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ringcast.spark.tables.warehouse import Part


def read_table(spark: SparkSession, warehouse: Path, table: str) -> DataFrame:
    """One table, such as "silver.deliveries"; or "quarantine"."""
    found = Warehouse.existing(warehouse)
    if table == "quarantine":
        return _read(spark, QUARANTINE, found.root, ["quarantine/quarantine.parquet"])
    if table not in TABLES:
        raise UsageError(f"no table {table!r}; there are {', '.join([*TABLES, 'quarantine'])}")
    return read_parts(spark, found, table, found.parts(table))


def read_parts(
    spark: SparkSession, warehouse: Warehouse, table: str, parts: Sequence[Part]
) -> DataFrame:
    """These files of a table."""
    base = warehouse.root / table.replace(".", "/")
    paths = [str(warehouse.root / part.path) for part in parts]
    return _read(spark, whole_schema(table), base, paths)


def register_tables(spark: SparkSession, warehouse: Path) -> list[str]:
    """A temporary view for each table, called silver_deliveries and so on; their names."""
    names = []
    for table in (*TABLES, "quarantine"):
        names.append(table.replace(".", "_"))
        read_table(spark, warehouse, table).createOrReplaceTempView(names[-1])
    return names


def _read(spark: SparkSession, schema: StructType, base: Path, paths: Sequence[str]) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(base))
    return reader.parquet(*(literally(str(base / path)) for path in paths))
