"""Work on executors, and rows that are read again there: those that show what was found."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from ringcast.errors import RingcastError, UsageError
from ringcast.rules.history import TAKEN
from ringcast.spark.summary import SPAN_BLOCKS, MemberTrace, SegmentState
from ringcast.trace.columns import is_among
from ringcast.trace.held import Range
from ringcast.trace.rows import BLOCK, LISTS, ORDER, SEND, OriginKey, Row
from ringcast.trace.segments import Segment
from ringcast.trace.whole import patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


Item = TypeVar("Item")
Said = TypeVar("Said")

WITNESS_ROWS_MAX = 20
_CHOOSING = ("event", "peer", "peer_inc", "stream")
NOT_READ = "ringcast.not-read"
"""Stands in what a task says of a file that it could not read."""
_TASKS_PER_CORE_MAX = 4
_TASK_BYTES = 16 << 20
"""What a core has to read before its work is split further: each task costs some 50 ms."""
_ALONE_BYTES = 4 << 20
"""Not worth a second core: its first task starts a Python worker, for about a second."""


def damaged_files(spark: SparkSession, paths: Iterable[str]) -> list[str]:
    """Which of these are not as they were written."""
    return over_items(spark, [(path, size_of(path)) for path in paths], _damaged)


def size_of(*paths: str) -> int:
    """How many bytes they are to read. Who reads one that cannot be read says so."""
    return sum(map(_size, paths))


def _size(path: str) -> int:
    try:
        return patiently(lambda: os.stat(path)).st_size
    except OSError:
        return 0


def _damaged(path: str) -> list[str]:
    try:
        with Segment(path) as segment:
            segment.check_rows()
    except RingcastError:
        return [path]
    return []


# Rows to be read again


class Want(NamedTuple):
    """Rows of one member to be read again, for one finding."""

    finding: int
    events: tuple[str, ...]
    origin: OriginKey | None
    column: str
    """Which number must be among these: idx, block, or seqno for a run that overlaps them."""
    numbers: Range
    limit: int = WITNESS_ROWS_MAX

    @property
    def upper(self) -> str:
        return "seqno2" if self.column == "seqno" else self.column


Workers: TypeAlias = "SparkSession | SparkContext | None"
"""Who does the work: Spark's executors; None: this process."""

Look: TypeAlias = "tuple[MemberTrace, Want]"
"""Where to look for rows, and for which."""


def at_idx(trace: MemberTrace, idx: int) -> Look:
    return trace, Want(-1, (), None, "idx", Range(idx, idx))


def at_seqnos(trace: MemberTrace, event: str, origin: OriginKey, first: int, last: int) -> Look:
    events = (TAKEN, ORDER) if event == TAKEN else (event,)  # in summaries, and in files
    return trace, Want(-1, events, origin, "seqno", Range(first, last))


def at_span(trace: MemberTrace, origin: OriginKey, span: int) -> Look:
    blocks = Range(span * SPAN_BLOCKS, (span + 1) * SPAN_BLOCKS - 1)
    return trace, Want(-1, (BLOCK,), origin, "block", blocks, limit=4 * SPAN_BLOCKS)


def fetch_rows(spark: Workers, looks: Sequence[Look]) -> Iterator[tuple[int, Row]]:
    """The rows looked for, each with its finding, from the files that may have them."""
    wanted: defaultdict[str, list[Want]] = defaultdict(list)
    for trace, want in looks:
        for state in trace.states:
            if _may_have(state, want):
                for path in state.paths:
                    wanted[path].append(want)
    items = [(item, size_of(item[0])) for item in sorted(wanted.items())]
    yield from over_items(spark, items, _rows_wanted)


def _may_have(state: SegmentState, want: Want) -> bool:
    first, last = want.numbers
    if want.column == "idx":
        return state.info.first_idx <= last and first <= state.info.last_idx
    if want.column == "block":
        return any(
            track.origin == want.origin and first // SPAN_BLOCKS in spans
            for track, spans in state.summary.content.items()
        )
    return any(
        row.event in want.events
        and row.origin == want.origin
        and row.seqno <= last
        and row.seqno2 >= first
        for row in state.summary.rows
    )


def _rows_wanted(item: tuple[str, list[Want]]) -> Iterator[tuple[int, Row]]:
    """The rows of one file that are wanted, each with its finding."""
    path, wants = item
    left = [want.limit for want in wants]
    with Segment(path) as segment:
        for group in segment.groups:
            found = _places(segment, group, wants)
            if not found:
                continue
            whole = segment.group(group, Row._fields)
            for at, places in found.items():
                rows = whole.take(pa.array(places[: left[at]])).to_pylist()
                left[at] -= len(rows)
                for row in rows:
                    lists = {name: tuple(row[name]) for name in LISTS}
                    yield wants[at].finding, Row(**row | lists)


def _places(segment: Segment, group: int, wants: list[Want]) -> dict[int, NDArray[Any]]:
    """Where the rows are that are wanted in this row group, for each want that has some. They are
    few, and have many columns: those that choose them are read first, and only where the footer
    does not exclude all."""
    likely = {
        at: want
        for at, want in enumerate(wants)
        if segment.may_have(group, want.numbers, want.column, want.upper)
    }
    if not likely:
        return {}
    names = {name for want in likely.values() for name in (want.column, want.upper)}
    rows = segment.group(group, [*_CHOOSING, *sorted(names)])
    found = {at: _matches(rows, want) for at, want in likely.items()}
    return {at: places for at, places in found.items() if len(places)}


def _matches(rows: pa.RecordBatch, want: Want) -> NDArray[Any]:
    """The numbers first: they leave few rows for the rest."""
    low, high = rows[want.column].to_numpy(), rows[want.upper].to_numpy()
    places = np.flatnonzero((low <= want.numbers.last) & (high >= want.numbers.first))
    if want.events:
        places = places[is_among(rows["event"], want.events).to_numpy(False)[places]]
    if want.origin is not None:
        peer, inc, stream = want.origin
        places = places[rows["stream"].to_numpy()[places] == stream]
        if SEND not in want.events:  # Whose sends these are need not be said in the row.
            places = places[is_among(rows["peer"], (peer,)).to_numpy(False)[places]]
            places = places[rows["peer_inc"].to_numpy()[places] == np.uint64(inc)]
    return places


# Work on executors


def over_items(
    spark: Workers,
    items: Sequence[tuple[Item, int]],
    work: Callable[[Item], Iterable[Said]],
    *,
    merge: Merge[Said] | None = None,
) -> list[Said]:
    """What `work` says of each item, such as a file; with it come the bytes that it makes one read.
    What is said may be brought together by what it is about, and merged, before it comes here.

    What comes back is small by design. No DataFrame: Spark would plan and compile one, which takes
    longer than most audits. UsageError: there is an item of which a task could say nothing.
    """
    if spark is None:
        said = [each for item, _ in items for each in work(item)]
        return said if merge is None else list(merge.work(said))
    if not items:
        return []
    tasks = pack(items, tasks_for(spark, sum(size for _, size in items)))
    done = context_of(spark).parallelize(tasks, len(tasks)).flatMap(partial(_work_on, work))
    if merge is not None:
        done = done.groupBy(merge.key, len(tasks)).values().flatMap(merge.work)
    found: list[Said] = done.collect()
    for each in found:
        if isinstance(each, _Failed):
            raise UsageError(each.text)
    return found


class Merge(NamedTuple, Generic[Said]):
    """How what tasks say becomes less."""

    key: Callable[[Said], object]
    """What is to be brought together has the same."""
    work: Callable[[Iterable[Said]], Iterable[Said]]


class _Failed(NamedTuple):
    """What a task could not do at all. An error of ours is for the driver to tell: as Spark tells
    it nobody would read it."""

    text: str


def _work_on(work: Callable[[Item], Iterable[Said]], items: list[Item]) -> Iterator[Any]:
    for item in items:
        try:
            yield from work(item)
        except RingcastError as error:
            yield _Failed(str(error))


def context_of(spark: SparkSession | SparkContext) -> SparkContext:
    """What runs tasks for this session."""
    given: Any = spark
    is_one = hasattr(given, "parallelize")
    context: SparkContext | None = given if is_one else getattr(given, "sparkContext", None)
    if context is None:
        raise UsageError(
            "this needs a SparkContext, and Spark Connect has none: run it where Spark runs, or "
            "its command there, such as `ringcast audit DIRECTORY --master URL`"
        )
    return context


def tasks_for(spark: SparkSession | SparkContext, total_bytes: int) -> int:
    """As many for each core, so that all end together."""
    cores: int = context_of(spark).defaultParallelism
    if total_bytes <= _ALONE_BYTES:
        return 1
    return cores * min(_TASKS_PER_CORE_MAX, 1 + total_bytes // (cores * _TASK_BYTES))


def pack(items: Iterable[tuple[Item, float]], tasks: int) -> list[list[Item]]:
    """Into tasks of about the same size: the largest first, each to the lightest task."""
    ordered = sorted(items, key=lambda item: -item[1])
    packed: list[list[Item]] = [[] for _ in range(min(tasks, len(ordered)))]
    weights = [0.0] * len(packed)
    for item, size in ordered:
        at = weights.index(min(weights))
        packed[at].append(item)
        weights[at] += size
    return packed
