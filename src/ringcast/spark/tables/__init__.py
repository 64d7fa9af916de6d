"""Traces as tables for people who ask questions: bronze, silver, gold, in Parquet.

`register_tables(spark, warehouse)` makes a temporary view of each, for SQL; `read_table` gives one
as a DataFrame. `build` makes and renews them, `compact` and `prune` keep them small.
"""

from ringcast.spark.tables.building import Built, build, compact, prune
from ringcast.spark.tables.layout import LAYERS, QUARANTINE, TABLES
from ringcast.spark.tables.warehouse import Warehouse, read_table, register_tables

__all__ = [
    "LAYERS",
    "QUARANTINE",
    "TABLES",
    "Built",
    "Warehouse",
    "build",
    "compact",
    "prune",
    "read_table",
    "register_tables",
]
