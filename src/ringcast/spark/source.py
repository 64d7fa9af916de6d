"""`spark.read` over an archive: a group's messages as a table, each once; as a stream: stream.py.

These classes only adapt: what is read follows from two positions alone (trace/archive.py), so that
a step which is tried again reads the same messages.

On a gap, or a file that cannot be read and that no other tells of: a stream waits, then fails; a
table fails at once. With failOnGap=false both go on without, and log it. An origin leaves a
stream's offset when `prune` has removed the last of it, not because its files are out of sight.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ringcast.errors import UsageError
from ringcast.spark.messages import DDL, read_messages, tasks_of
from ringcast.trace.archive import Index
from ringcast.trace.held import STREAMS, Position, origin_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        Filter,
    )
    from pyspark.sql.types import StructType

    from ringcast.spark.messages import FileRead
    from ringcast.trace.archive import Plan
    from ringcast.trace.held import Range
    from ringcast.trace.rows import OriginKey

GAP_WAIT_S = 30.0
"""By default; archives that run make their files visible every two seconds."""

log = logging.getLogger("ringcast")


def register(spark: SparkSession) -> None:
    """Make `format("ringcast")` known in this session."""
    # Without it Spark refuses readers that can take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(RingcastSource)


class RingcastSource(DataSource):
    """What Spark asks for readers."""

    @classmethod
    def name(cls) -> str:
        return "ringcast"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return ArchiveReader(Options.parse(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from ringcast.spark.stream import ArchiveStreamReader  # since 4.2

        return ArchiveStreamReader(Options.parse(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ringcast.spark.sink import SinkOptions, TableWriter  # a reader needs none of it

        if overwrite:
            raise UsageError("what a group was sent stays sent: write with mode('append')")
        return TableWriter(SinkOptions.parse(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ringcast.spark.sink import SinkOptions, StreamWriter

        if overwrite:
            raise UsageError("what a group was sent stays sent: outputMode('append')")
        return StreamWriter(SinkOptions.parse(self.options, schema))


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said with `.option(…)`, checked."""

    path: str
    senders: frozenset[str] | None = None
    streams: frozenset[str] | None = None
    """Whose messages, and which; None: all."""
    query: str = ""
    max_messages: int | None = None
    max_files: int | None = None
    gap_wait_s: float = GAP_WAIT_S
    fail_on_gap: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Options:
        names = ["path", "sender", "stream", "failOnGap"]
        if is_stream:
            names += ["query", "maxMessagesPerTrigger", "maxFilesPerTrigger", "gapWaitSeconds"]
        unknown = {name.lower() for name in options} - {name.lower() for name in names}
        if unknown:
            raise UsageError(f"no option {', '.join(sorted(unknown))}; there are {names}")
        if "path" not in options:
            raise UsageError("where is the archive? .load(its directory)")
        if is_stream and "query" not in options:
            raise UsageError(
                "a stream needs a name that stays the same when it is started again, so that what "
                'it has not read is not removed: .option("query", "revenue")'
            )
        messages = _positive(options, "maxMessagesPerTrigger")
        files = _positive(options, "maxFilesPerTrigger")
        if messages and files:
            raise UsageError("maxMessagesPerTrigger or maxFilesPerTrigger, not both")
        streams = _names(options, "stream")
        if streams is not None and not streams <= set(STREAMS.values()):
            raise _wrong("stream", " or ".join(STREAMS.values()), options["stream"])
        return cls(
            path=options["path"],
            senders=_names(options, "sender"),
            streams=streams,
            query=options.get("query", ""),
            max_messages=messages,
            max_files=files,
            gap_wait_s=_seconds(options.get("gapWaitSeconds", str(GAP_WAIT_S))),
            fail_on_gap=_flag(options.get("failOnGap", "true")),
        )

    def wants(self, origin: OriginKey) -> bool:
        sender, _, stream = origin
        return (self.senders is None or sender in self.senders) and (
            self.streams is None or STREAMS[stream] in self.streams
        )


@dataclass
class MessagesPartition(InputPartition):
    """One task's share."""

    files: list[FileRead]


class ArchiveReader(DataSourceReader):
    """All messages that are there now, or those of some senders or streams."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return [left for left in filters if not self._takes(left)]

    def partitions(self) -> Sequence[InputPartition]:
        index = Index(self._options.path)
        index.refresh()
        plan = planned(index, Position(), float("inf"), self._options)
        tell_gaps(index, plan, Position())
        pieces = [piece for piece in plan.pieces if self._options.wants(piece.origin)]
        # Spark makes one of nothing out of an empty list.
        return [MessagesPartition(files) for files in tasks_of(pieces) or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessagesPartition)
        return read_messages(self._options.path, partition.files)

    def _takes(self, wish: Filter) -> bool:
        """Whether nothing is left of this filter for Spark to do."""
        from pyspark.sql.datasource import EqualTo, In, IsNotNull  # since 4.1

        match wish:
            case EqualTo(("sender" | "stream" as column,), str(name)):
                names = frozenset({name})
            case In(("sender" | "stream" as column,), some) if all(
                isinstance(name, str) for name in some
            ):
                names = frozenset(some)
            case IsNotNull():
                return True  # no column has nulls
            case _:
                return False
        known = getattr(self._options, f"{column}s")
        chosen: dict[str, Any] = {f"{column}s": names if known is None else known & names}
        self._options = replace(self._options, **chosen)
        return True


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
        for gap in gaps if options.wants(origin) else ():
            if not _is_before_all(index, gap, origin, position):
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


def _wrong(name: str, right: str, text: str) -> UsageError:
    return UsageError(f"{name} is {right}, not {text!r}")


def _names(options: Mapping[str, str], what: str) -> frozenset[str] | None:
    if what not in options:
        return None
    names = frozenset(name.strip() for name in options[what].split(","))
    if "" in names:
        raise _wrong(what, "a name, or several with commas between", options[what])
    return names


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise _wrong(name, "a number of at least 1", text)
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise _wrong("gapWaitSeconds", "a number of at least 0", text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _wrong("failOnGap", "true or false", text)
    return text.lower() == "true"
