"""The audit of a run while it goes on: segments as a stream, judged again after each batch.

Spark's file source hands out each segment once, in batches, and its checkpoint remembers which. A
batch's segments are read by tasks and their summaries kept (`ringcast.spark.kept`); then all that
is kept is judged, by the code that judges a directory at once. So both say the same of the same
files, whatever order these came in and wherever the follower was killed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from ringcast.errors import UsageError
from ringcast.spark.audit import audit_states
from ringcast.spark.columns import literally
from ringcast.spark.kept import KeptDigests
from ringcast.spark.states import Read, Refused, parse_states, summarize_files
from ringcast.trace.disks import SUFFIX
from ringcast.trace.segments import segment_paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ringcast.spark.report import Report

STATE = ".audit"
"""Where the state is, below the segments, if nothing else is said. No reader takes it for one."""
FILES_PER_BATCH = 1000
_FOR_EVER = "36500d"
"""However old a segment is that comes late, it is not ignored."""
_POLL_S = 0.2

_FILES = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"


class Step(NamedTuple):
    """What one batch brought, and what is to be said of the run since."""

    batch: int
    """-1: there was nothing new."""
    new: int
    """Segments read."""
    segments: int
    """Segments known."""
    report: Report


def follow(
    spark: SparkSession,
    directory: Path,
    *,
    state: Path | None = None,
    run_id: str | None = None,
    every_s: float | None = 5.0,
    files_per_batch: int = FILES_PER_BATCH,
    stop: threading.Event | None = None,
) -> Iterator[Step]:
    """Judge the run whose segments are, and will be, under the directory; a step for each batch.

    Looks for new segments `every_s` until `stop` is set; None: takes what is there, and ends. What
    was done is remembered in `state`, and not done again.
    """
    directory = directory.resolve()
    root = (state or directory / STATE).resolve()
    with KeptDigests.opened(root, directory, summarize_files) as kept:
        follower = _Follower(spark, directory, run_id, kept)
        query = follower.start(every_s, files_per_batch)
        try:
            yield from follower.steps(query, stop or threading.Event())
        finally:
            follower.finish(query)
        if every_s is None and not follower.is_judged:
            yield follower.judge(-1, 0)


@dataclass(slots=True)
class _Follower:
    """Takes batches in a thread of the query's; hands steps to the caller's."""

    spark: SparkSession
    directory: Path
    run_id: str | None
    kept: KeptDigests
    is_judged: bool = False
    _found: SimpleQueue[Step | Exception] = field(default_factory=SimpleQueue)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _is_stopping: bool = False

    def start(self, every_s: float | None, files_per_batch: int) -> StreamingQuery:
        writer = (
            segments_as_stream(self.spark, self.directory, files_per_batch)
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.kept.checkpoint))
        )
        if every_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()

    def steps(self, query: StreamingQuery, stop: threading.Event) -> Iterator[Step]:
        """Until the query ends, or is to be stopped; what it has failed with is raised here."""
        while not stop.is_set():
            is_over = not query.isActive  # asked first: what it found is in the queue then
            try:
                found = self._found.get(timeout=0.0 if is_over else _POLL_S)
            except Empty:
                if not is_over:
                    continue
                error = query.exception()
                if error is not None:
                    raise UsageError(f"Spark has ended the stream: {error}") from error
                return
            if isinstance(found, OSError):
                raise UsageError(f"what was read cannot be kept: {found}") from found
            if isinstance(found, Exception):
                raise found
            yield found

    def finish(self, query: StreamingQuery) -> None:
        """Stop between two batches: one that is cut off would have to be taken again."""
        self._is_stopping = True
        with self._busy:
            pass
        query.stop()

    def judge(self, batch: int, new: int) -> Step:
        states, refused = self._states()
        paths = segment_paths(self.directory)
        refused += [
            Refused(str(path), hidden(path)) for path in paths if is_hidden(path, self.directory)
        ]
        if not states and not refused:
            raise UsageError(f"{self.directory}: no segments (*{SUFFIX}) in it")
        report = audit_states(self.spark, self.directory, states, refused, self.run_id)
        self.is_judged = True
        return Step(batch, new, len(states), report)

    def _take(self, frame: DataFrame, batch: int) -> None:
        """One batch. It is done with when this returns; if it raises it will be taken again."""
        with self._busy:
            if self._is_stopping:
                raise InterruptedError("the audit is being stopped")
            try:
                handed = [row.path.removeprefix("file:") for row in frame.collect()]
                found = self.kept.read(self.spark, batch, {*handed, *self.kept.stale()})
            except Exception as error:
                self._found.put(error)
                raise
            # Whatever is wrong from here on, what was read is kept.
            try:
                if self._is_awaited():
                    return
                self._found.put(self.judge(batch, len(found)))
            except Exception as error:
                self._found.put(error)

    def _is_awaited(self) -> bool:
        """Nothing of the run that is asked for has come yet."""
        if self.run_id is None:
            return False
        return all(state.info.run_id != self.run_id for state in self._states()[0])

    def _states(self) -> Read:
        return parse_states((kept.path, kept.said) for kept in self.kept.current())


def segments_as_stream(spark: SparkSession, directory: Path, files_per_batch: int) -> DataFrame:
    """The path of each segment below the directory, and of each that comes, once."""
    return (
        spark.readStream.format("binaryFile")
        .schema(_FILES)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", f"*{SUFFIX}")
        .option("maxFilesPerTrigger", files_per_batch)
        .option("maxFileAge", _FOR_EVER)
        .option("ignoreMissingFiles", "true")
        .load(literally(str(directory)))
        .select("path")  # and nothing else is read of them here
    )


def is_hidden(path: Path, directory: Path) -> bool:
    """Does Spark's file source not show this segment below the directory?"""
    return any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)


def hidden(path: Path) -> str:
    """What is wrong with such a one."""
    return f"{path.name}: Spark takes what begins with _ or . for hidden: rename it"
