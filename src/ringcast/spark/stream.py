"""`spark.readStream` over an archive, for which Spark tells of limits since 4.2.

Spark may repeat the first step of a query after a restart, and then asks again where the query
begins. With `startingOffsets` "latest" the answer has moved on by then. So the end of the first
step also says where the step began, and it reads the same messages whenever it is tried.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ringcast.errors import UsageError
from ringcast.spark.messages import tasks_of
from ringcast.spark.options import LATEST, Options, nanoseconds
from ringcast.spark.source import (
    MessagesPartition,
    planned,
    read_partition,
    streams_are_missing,
    tell_gaps,
)
from ringcast.trace.archive import Index, Plan
from ringcast.trace.held import Position
from ringcast.trace.retention import Query
from ringcast.trace.starts import latest, taken_before

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise streams_are_missing() from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from ringcast.trace.rows import OriginKey


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages as they come into the archive. One of these lives as long as its query; copies of it
    read for tasks and have no state."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._index = Index(options.path)
        here = self._index.disk.is_local
        self._query = Query(self._index.directory, options.query) if here else None
        self._is_registered = False
        self._frozen_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        start = self._start()
        if self._query is not None:
            self._query.begin(start)
        return Position(start or {}, start=start).to_dict()

    def _start(self) -> dict[OriginKey, int] | None:
        """None: the first message of all."""
        wanted = self._options.start
        if isinstance(wanted, Position):
            return wanted.digest
        if isinstance(wanted, datetime):
            self._refresh()
            return taken_before(self._index, nanoseconds(wanted))
        if wanted == LATEST:
            self._refresh()
            return latest(self._index)
        return None

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
        if self._query is not None and not self._is_registered:
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
        began = position.digest if position.digest == position.start else None
        return Position(self._kept(plan.after(position.digest)), plan.gaps, began).to_dict()

    def reportLatestOffset(self) -> dict[str, Any]:
        """What Spark shows beside how far a step has come."""
        return Position(latest(self._index)).to_dict()

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
        through, chosen = Position.from_dict(end), self._options.chosen
        began = Position.from_dict(start).digest if through.start is None else through.start
        # Offsets pass over what is not wanted too, so that retention does not wait for it.
        digest = {origin: seqno for origin, seqno in through.digest.items() if chosen.wants(origin)}
        try:
            pieces = self._index.pieces_between(began, digest, through.gaps)
        except UsageError:  # after a restart nothing is known yet
            self._refresh()
            pieces = self._index.pieces_between(began, digest, through.gaps)
        tasks = tasks_of(chosen.of(pieces), self._options.columns)
        return [MessagesPartition(files) for files in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._query is not None:
            self._query.commit(Position(Position.from_dict(end).digest))

    def _refresh(self) -> None:
        if self._frozen_at is None:
            self._index.follow()


def _limited(plan: Plan, limit: ReadLimit) -> Plan:
    match limit:
        case ReadMaxRows(max_rows):
            return plan.first_messages(max_rows)
        case ReadMaxFiles(max_files):
            return plan.first_files(max_files)
        case _:
            return plan.only_passed()
