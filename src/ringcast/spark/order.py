"""The one order of total messages: what each member took at which position, as few numbers.

The positions of a view come in buckets of 4096. What one member took in a bucket is one number:
the sum, over runs of one origin at consecutive positions, of a random factor (for the origin and by
how much its numbers are ahead of the positions) times the difference of two random numbers (for the
last position, and for the one before the first). However a run is cut the sum is the same. Members
with the same number took the same; where numbers differ, or one took less, the rows are read again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from ringcast.model import Stream
from ringcast.rules.history import PLACED
from ringcast.spark.reading import Look, Want, Workers, fetch_rows
from ringcast.spark.summary import BUCKET_POSITIONS, Bucket, SegmentSummary, condensed_row
from ringcast.trace.held import Range
from ringcast.trace.rows import ORDER, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from ringcast.spark.recorded_run import RecordedRun
    from ringcast.trace.footer import SegmentInfo

    Columns = dict[str, pa.Array]
    Numbers = NDArray[Any]

BUCKETS_REREAD_MAX = 4096
"""A clean run has one for each member that was killed, and for each part that went apart."""
MESSAGES_MAX = 1 << 24
"""More than recorders put into a row."""


def placed_runs(
    columns: Columns, places: Numbers, marks: Numbers, info: SegmentInfo
) -> Iterator[Row]:
    """The positions that `order` rows, at these places, take; as one row where they follow each
    other in one view and between two marks."""
    if not len(places):
        return
    first, last = _positions(columns, places)
    view, creator = _views(columns, places)
    starts = changes(view, creator, marks[places])
    starts[1:] |= (first[1:] != last[:-1] + 1) | (last[1:] < first[1:])
    begin = np.flatnonzero(starts)
    end = np.append(begin[1:], len(places)) - 1
    makers = columns["view_creator"].dictionary.to_pylist()
    for idx, low, high, counter, maker in zip(
        columns["idx"].to_numpy()[places[begin]].tolist(),
        first[begin].tolist(),
        last[end].tolist(),
        view[begin].tolist(),
        creator[begin].tolist(),
        strict=True,
    ):
        origin = "", 0, int(Stream.TOTAL)
        place = PLACED, idx, *origin, low, high, counter, makers[maker]
        yield condensed_row(info, place)


def is_sound(columns: Columns, places: Numbers) -> bool:
    """Whether no row speaks of more messages than recorders put into one."""
    first, last = _positions(columns, places)
    return bool((last - first < MESSAGES_MAX).all())


def fold_order(columns: Columns, places: Numbers, summary: SegmentSummary) -> None:
    """What stands at the positions of these `order` rows."""
    first, last = _positions(columns, places)
    places, first, last = (each[last >= first] for each in (places, first, last))
    if not len(places):
        return
    factor = _factors(columns, places, first)
    view, creator = _views(columns, places)
    idx = columns["idx"].to_numpy()[places]
    # A row may reach over several buckets.
    begun, ended = first // BUCKET_POSITIONS, last // BUCKET_POSITIONS
    counts = ended - begun + 1
    row = np.repeat(np.arange(len(places)), counts)
    before = np.cumsum(counts) - counts
    number = np.arange(len(row)) - before[row] + begun[row]
    low = np.maximum(first[row], number * BUCKET_POSITIONS)
    high = np.minimum(last[row], (number + 1) * BUCKET_POSITIONS - 1)
    mixed = factor[row] * (_scatter(high) - _scatter(low - 1))
    keys = view[row], creator[row], number
    order = np.lexsort(keys)
    begin = np.flatnonzero(changes(*(key[order] for key in keys)))
    makers = columns["view_creator"].dictionary.to_pylist()
    for counter, maker, at, *found in zip(
        *(key[order][begin].tolist() for key in keys),
        np.add.reduceat((high - low + 1)[order], begin).tolist(),
        np.add.reduceat(mixed[order], begin).tolist(),
        np.minimum.reduceat(idx[row][order], begin).tolist(),
        np.maximum.reduceat(idx[row][order], begin).tolist(),
        strict=True,
    ):
        summary.add_bucket((counter, makers[maker], at), Bucket(*found))


def changes(*columns: Numbers) -> NDArray[np.bool_]:
    """Which rows differ from the one before in one of these columns. The first one does."""
    found = np.zeros(len(columns[0]), dtype=bool)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def _positions(columns: Columns, places: Numbers) -> tuple[Numbers, Numbers]:
    first, seqno, seqno2 = (columns[name].to_numpy()[places] for name in ("low", "seqno", "seqno2"))
    return first, first + (seqno2 - seqno)


def _views(columns: Columns, places: Numbers) -> tuple[Numbers, Numbers]:
    return columns["view"].to_numpy()[places], columns["view_creator"].indices.to_numpy()[places]


def _factors(columns: Columns, places: Numbers, first: Numbers) -> Numbers:
    """A number for whose messages these are, and how far from their positions their numbers are."""
    named = columns["peer"].dictionary.to_pylist(), columns["detail"].dictionary.to_pylist()
    names = np.array(
        [xxhash.xxh3_64_intdigest(name.encode()) for name in named[0]], dtype=np.uint64
    )
    carried = np.array(["carried" in said for said in named[1]], dtype=np.uint64)
    peer, said = (columns[name].indices.to_numpy()[places] for name in ("peer", "detail"))
    origin = _scatter(names[peer] ^ _scatter(columns["peer_inc"].to_numpy()[places]))
    ahead = columns["seqno"].to_numpy()[places] - first
    return _scatter(origin + _scatter(ahead) * np.uint64(2) + carried[said])


def _scatter(numbers: Numbers) -> Numbers:
    """A random number for each: the finalizer of splitmix64."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(slots=True)
class Orders:
    """What members took, compared."""

    alike: int = 0
    """Positions at which one took what another had."""
    rows: list[Row] = field(default_factory=list)
    """Of those whose numbers differ: rules judge them."""
    left_out: int = 0
    """Buckets that were not compared: there were too many."""


def compare_orders(spark: Workers, run: RecordedRun) -> Orders:
    found = Orders()
    took: defaultdict[tuple[int, str, int], dict[tuple[int, int], Look]]
    took = defaultdict(dict)
    for trace in run.members.values():
        for key, bucket in trace.summary.orders.items():
            count, mixed, first, last = bucket
            numbers = Range(first, last)
            look = trace, Want(-1, (ORDER,), None, "idx", numbers, limit=numbers.length)
            if took[key].setdefault((count, mixed), look) is not look:
                found.alike += count
    unsure = [looks.values() for looks in took.values() if len(looks) > 1]
    found.left_out = max(0, len(unsure) - BUCKETS_REREAD_MAX)
    looks = [look for each in unsure[:BUCKETS_REREAD_MAX] for look in each]
    rows = {row for _, row in fetch_rows(spark, looks)}
    found.rows = sorted(rows, key=attrgetter("node", "inc", "idx"))
    return found
