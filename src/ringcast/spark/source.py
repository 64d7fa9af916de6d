"""`spark.read` over an archive: a group's messages as a table, each once; as a stream: stream.py.

These classes only adapt: what is read follows from two positions alone (trace/archive.py), so that
a step which is tried again reads the same messages.

On a gap, or a file that cannot be read and that no other tells of: a stream waits, then fails; a
table fails at once. With failOnGap=false both go on without, and log it. An origin leaves a
stream's offset when `prune` has removed the last of it, not because its files are out of sight.
"""

from __future__ import annotations

import logging
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ringcast.errors import UsageError
from ringcast.spark.messages import DDL, SCHEMA, FileRead, read_messages, tasks_of
from ringcast.spark.options import Chosen, Options, nanoseconds
from ringcast.trace.archive import Index, Plan
from ringcast.trace.held import ALL, Position, Range, origin_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableMapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        Filter,
    )
    from pyspark.sql.types import StructType

    from ringcast.trace.rows import OriginKey

log = logging.getLogger("ringcast")

_MAKER = "provider"
_OF_TABLE = "option."
"""While Spark makes a table, it says of what source, and so begin the names of the options."""
_OPTIONS = "ringcast"
"""The options of a table, where its schema is kept."""


def register(spark: SparkSession) -> None:
    """Make `format("ringcast")` known in this session."""
    # Without it Spark refuses readers that can take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(RingcastSource)


class RingcastSource(DataSource):
    """What Spark asks for readers.

    When a table that was made in SQL is read, Spark tells a Python source of its schema, and of no
    option. While it is made Spark asks for the schema, and tells of the options. They go into it.
    """

    @classmethod
    def name(cls) -> str:
        return "ringcast"

    def schema(self) -> StructType | str:
        if _MAKER not in self.options:
            return DDL
        from pyspark.sql.pandas.types import from_arrow_schema

        names = [name for name in self.options if name.startswith(_OF_TABLE)]
        options = {name.removeprefix(_OF_TABLE): self.options[name] for name in names}
        if "path" in self.options:
            options["path"] = self.options["path"]  # as a URI, wherever the table was made
        schema = from_arrow_schema(SCHEMA)
        schema.fields[0].metadata = {_OPTIONS: options}
        return schema

    def _said(self, schema: StructType) -> MutableMapping[str, str]:
        """All options: what is said of the table, where nothing else is said now."""
        said = copy(self.options)
        for item in schema.fields:
            for name, value in item.metadata.get(_OPTIONS, {}).items():
                said.setdefault(name, value)
        return said

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self._said(schema), is_stream=False, columns=schema)
        return ArchiveReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from ringcast.spark.stream import ArchiveStreamReader  # since 4.2

        options = Options.parse(self._said(schema), is_stream=True, columns=schema)
        return ArchiveStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ringcast.spark.sink import SinkOptions, TableWriter  # a reader needs none of it

        if overwrite:
            raise UsageError("what a group was sent stays sent: write with mode('append')")
        return TableWriter(SinkOptions.parse(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ringcast.spark.sink import SinkOptions
        from ringcast.spark.stream_sink import StreamWriter  # since 4.1

        if overwrite:
            raise UsageError("what a group was sent stays sent: outputMode('append')")
        return StreamWriter(SinkOptions.parse(self.options, schema))


@dataclass
class MessagesPartition(InputPartition):
    """One task's share."""

    files: list[FileRead]


class ArchiveReader(DataSourceReader):
    """All messages that are there now, or some of them."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        left = []
        for wish in filters:
            chosen, is_done = _chosen_by(wish)
            self._options = self._options.only(chosen)
            if not is_done:
                left.append(wish)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        index = Index(options.path)
        index.refresh()
        plan = planned(index, Position(), float("inf"), options)
        tell_gaps(index, plan, Position())
        tasks = tasks_of(options.chosen.of(plan.pieces), options.columns)
        # Spark makes one of nothing out of an empty list.
        return [MessagesPartition(files) for files in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


def streams_are_missing() -> UsageError:
    """In an older PySpark than streams need: 4.2 for reading, where writing would do with 4.1."""
    return UsageError(f"a stream needs PySpark 4.2 or newer, and this is {pyspark.__version__}")


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """One task's messages."""
    assert isinstance(partition, MessagesPartition)
    return read_messages(
        options.path, partition.files, columns=options.columns, times=options.chosen.times
    )


def _chosen_by(wish: Filter) -> tuple[Chosen, bool]:
    """What a filter leaves, as far as files and their row groups are chosen by it; and whether
    nothing is left of it for Spark to do."""
    from pyspark.sql import datasource as spark  # these are there since 4.1

    match wish:
        case spark.EqualTo(("sender" | "stream" as column,), str(name)):
            return _chosen_by_names(column, {name}), True
        case spark.In(("sender" | "stream" as column,), some) if all(
            isinstance(name, str) for name in some
        ):
            return _chosen_by_names(column, some), True
        case spark.IsNotNull():
            return Chosen(), True  # no column has nulls
        case (
            spark.EqualTo((column,), value)
            | spark.GreaterThan((column,), value)
            | spark.GreaterThanOrEqual((column,), value)
            | spark.LessThan((column,), value)
            | spark.LessThanOrEqual((column,), value)
        ):
            return _chosen_by_number(type(wish), column, value), False
    return Chosen(), False


def _chosen_by_names(column: str, names: Iterable[str]) -> Chosen:
    some = frozenset(names)
    return Chosen(senders=some) if column == "sender" else Chosen(streams=some)


def _chosen_by_number(kind: type[Filter], column: str, value: object) -> Chosen:
    """Times have microseconds where Spark sees them, and nanoseconds in files."""
    from pyspark.sql import datasource as spark

    if column == "seqno" and isinstance(value, int):
        least, greatest = value, value
    elif column == "delivered_at" and isinstance(value, datetime) and value.tzinfo:
        least = nanoseconds(value)
        greatest = least + 999
    else:
        return Chosen()
    numbers = {
        spark.EqualTo: Range(least, greatest),
        spark.GreaterThan: Range(greatest + 1, ALL.last),
        spark.GreaterThanOrEqual: Range(least, ALL.last),
        spark.LessThan: Range(ALL.first, least - 1),
        spark.LessThanOrEqual: Range(ALL.first, greatest),
    }[kind]
    return Chosen(seqnos=numbers) if column == "seqno" else Chosen(times=numbers)


def planned(index: Index, position: Position, before: float, options: Options) -> Plan:
    """All that is behind the position. What is missing, and has been since before this time, is
    passed over if it may be; UsageError if not. Nothing is while files may turn out to have it."""
    if not options.fail_on_gap:
        return index.pieces(position.digest, before)
    untold = index.untold(before)
    if untold:
        raise UsageError(_refused(f"there are files that cannot be read: {'; '.join(untold)}"))
    is_all_told = not index.untold(float("inf"))
    plan = index.pieces(position.digest, before if is_all_told else float("-inf"))
    for origin, gaps in plan.gaps.items():
        for gap in gaps if options.chosen.wants(origin) else ():
            is_wanted = gap.within(options.chosen.seqnos).length > 0
            if is_wanted and not _is_before_all(index, gap, origin, position):
                where = "; ".join(index.lost_in(origin, gap)) or "no file has them"
                missing = f"messages {gap.first}..{gap.last} of {origin_text(origin)}"
                raise UsageError(_refused(f"{missing} cannot be read: {where}"))
    return plan


def _refused(what: str) -> str:
    return (
        f"{what}. Repair that, move away what is not the archive's, or go on without what is "
        'missing: .option("failOnGap", "false")'
    )


def _is_before_all(index: Index, gap: Range, origin: OriginKey, position: Position) -> bool:
    """What a sender sent before the first archive came is no loss, nor what was pruned since."""
    return origin not in position.digest and index.is_before_all(origin, gap)


def tell_gaps(index: Index, plan: Plan, position: Position) -> None:
    for origin, gaps in plan.gaps.items():
        for gap in gaps:
            named = gap.first, gap.last, origin_text(origin)
            if not _is_before_all(index, gap, origin, position):
                log.warning(
                    "messages %d..%d of %s cannot be read in the archive and were passed over",
                    *named,
                )
            elif origin not in index.pruned:
                log.info("messages %d..%d of %s are older than all that is in the archive", *named)
