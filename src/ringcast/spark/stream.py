"""`spark.readStream` over an archive, for which Spark tells of limits since 4.2."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader

from ringcast.errors import UsageError
from ringcast.spark.messages import read_messages, tasks_of
from ringcast.spark.source import MessagesPartition, planned, tell_gaps
from ringcast.trace.archive import Index
from ringcast.trace.held import Position
from ringcast.trace.retention import Query

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    found = pyspark.__version__
    raise UsageError(f"a stream needs PySpark 4.2 or newer, and this is {found}") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from ringcast.spark.source import Options
    from ringcast.trace.archive import Plan
    from ringcast.trace.rows import OriginKey


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages as they come into the archive. One of these lives as long as its query; copies of it
    read for tasks and have no state."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._index = Index(options.path)
        self._query = Query(options.path, options.query)
        self._is_registered = False
        self._frozen_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        self._query.begin()
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._index.refresh()
        self._frozen_at = time.time()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not self._is_registered:
            self._query.ensure()
            self._is_registered = True
        self._refresh()
        now = self._frozen_at or time.time()
        position = Position.from_dict(start)
        plan = planned(self._index, position, now - self._options.gap_wait_s, self._options)
        plan = _limited(plan, limit)
        if not plan.pieces:
            return start
        tell_gaps(self._index, plan, position)
        return Position(self._kept(plan.after(position.digest)), plan.gaps).to_dict()

    def _kept(self, digest: dict[OriginKey, int]) -> dict[OriginKey, int]:
        """Without origins that were pruned as far as they were read, so that positions stay small:
        they are read from where they go on. Not while nobody knows whose files are there."""
        there, pruned = set(self._index.origins), self._index.pruned
        if self._index.untold(float("inf")):
            return digest
        return {
            origin: seqno
            for origin, seqno in digest.items()
            if origin in there or seqno > pruned.get(origin, 0)
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refresh()
        behind, through = Position.from_dict(start), Position.from_dict(end)
        # Offsets pass over what is not wanted too, so that retention does not wait for it.
        digest = {
            origin: seqno for origin, seqno in through.digest.items() if self._options.wants(origin)
        }
        pieces = self._index.pieces_between(behind.digest, digest, through.gaps)
        return [MessagesPartition(files) for files in tasks_of(pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessagesPartition)
        return read_messages(self._options.path, partition.files)

    def commit(self, end: dict[str, Any]) -> None:
        self._query.commit(Position(Position.from_dict(end).digest))

    def _refresh(self) -> None:
        if self._frozen_at is None:
            self._index.refresh()


def _limited(plan: Plan, limit: ReadLimit) -> Plan:
    match limit:
        case ReadMaxRows(max_rows):
            return plan.first_messages(max_rows)
        case ReadMaxFiles(max_files):
            return plan.first_files(max_files)
        case _:
            return plan.only_passed()
