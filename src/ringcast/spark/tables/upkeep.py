"""Upkeep of tables: few large files instead of many small ones, and no days that nobody needs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.spark.tables.layout import LAYERS
from ringcast.spark.tables.reading import read_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    from pyspark.sql import SparkSession

    from ringcast.spark.tables.warehouse import Part, Partition, Warehouse

FILE_BYTES = 128 << 20
"""Files become about so large; smaller ones of one partition become one."""


def compact(
    spark: SparkSession, warehouse: Warehouse, *, tell: Callable[[str], None] = lambda _: None
) -> int:
    """Rewrite partitions that have more files than they need; how many files are gone."""
    with warehouse.writing():
        due: defaultdict[str, list[Partition]] = defaultdict(list)
        partitions = warehouse.partitions()
        before = _count(partitions)
        for partition in partitions:
            for table, parts in partition.tables.items():
                if len(parts) > _files_needed(parts):
                    due[table].append(partition)
        number = warehouse.next_number()
        for table, found in due.items():
            tell(f"{table}: {len(found)} partitions …")
            for partition in found:
                parts = partition.tables[table]
                rows = read_parts(spark, warehouse, table, parts).coalesce(_files_needed(parts))
                staged = str(warehouse.staging / table)
                rows.write.mode("append").partitionBy("group", "date", "run").parquet(staged)
            for key, parts in warehouse.adopt(table, number).items():
                next(one for one in found if one.key == key).tables[table] = parts
        warehouse.commit({id(one): one for found in due.values() for one in found}.values())
        return before - _count(partitions)


def prune(warehouse: Warehouse, before: date, layers: Sequence[str] = LAYERS) -> list[date]:
    """Remove these layers of all days before this one; the days that had any."""
    with warehouse.writing():
        return warehouse.forget_before(before, layers)


def _files_needed(parts: Sequence[Part]) -> int:
    return 1 + sum(part.bytes for part in parts) // FILE_BYTES


def _count(partitions: Sequence[Partition]) -> int:
    return sum(len(parts) for partition in partitions for parts in partition.tables.values())
