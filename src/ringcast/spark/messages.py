"""Messages out of an archive's files, as Arrow batches: no Python object for any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringcast.errors import UsageError
from ringcast.trace.held import STREAMS, Range
from ringcast.trace.rows import DELIVER
from ringcast.trace.segments import PAYLOADS, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from ringcast.trace.archive import Piece
    from ringcast.trace.rows import OriginKey

DDL = (
    "sender STRING, incarnation STRING, stream STRING, seqno BIGINT, view BIGINT, "
    "delivered_at TIMESTAMP, payload BINARY"
)
"""An incarnation has 64 bits, which no integer of Spark holds and no decimal holds cheaply."""
SCHEMA = pa.schema(
    [
        ("sender", pa.string()),
        ("incarnation", pa.string()),
        ("stream", pa.string()),
        ("seqno", pa.int64()),
        ("view", pa.int64()),
        ("delivered_at", pa.timestamp("us", tz="UTC")),
        ("payload", pa.binary()),
    ]
)
"""The same, as Arrow has it."""

TASK_BYTES = 16 << 20
"""Worth a task of its own."""
MESSAGE_BYTES = 64
"""What a message costs beside its bytes in the file: its other columns."""

_COLUMNS = ("event", "kind", "peer", "peer_inc", "stream", "seqno", "seqno2", "view", "wall_ns")


class Wanted(NamedTuple):
    """Messages of one origin, to be read from one file."""

    origin: OriginKey
    first: int
    last: int


class FileRead(NamedTuple):
    """What to read from one file."""

    path: str
    wanted: tuple[Wanted, ...]


def tasks_of(pieces: Sequence[Piece]) -> list[list[FileRead]]:
    """Pieces as tasks of about the same weight. Every file is read by one of them."""
    wanted: dict[str, list[Wanted]] = {}
    weights: dict[str, float] = {}
    for piece in pieces:
        path = piece.file.path
        wanted.setdefault(path, []).append(Wanted(piece.origin, piece.first, piece.last))
        each = MESSAGE_BYTES + piece.file.size / piece.file.messages
        weights[path] = weights.get(path, 0.0) + each * piece.length
    count = min(len(wanted), 1 + int(sum(weights.values()) // TASK_BYTES))
    tasks: list[list[FileRead]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for path in sorted(wanted, key=lambda path: (-weights[path], path)):
        at = loads.index(min(loads))
        tasks[at].append(FileRead(path, tuple(wanted[path])))
        loads[at] += weights[path]
    return tasks


def read_messages(files: Sequence[FileRead]) -> Iterator[pa.RecordBatch]:
    """These messages, in the order of their origins; UsageError if a file has not all of them."""
    for file in files:
        with Segment(file.path) as segment:
            yield from _from_segment(segment, file)


def _from_segment(segment: Segment, file: FileRead) -> Iterator[pa.RecordBatch]:
    first = min(wanted.first for wanted in file.wanted)
    last = max(wanted.last for wanted in file.wanted)
    found = 0
    for rows in segment.row_groups((*_COLUMNS, PAYLOADS), Range(first, last)):
        is_delivery = pc.equal(rows["event"].cast(pa.string()), DELIVER)
        is_fragment = pc.equal(rows["kind"].cast(pa.string()), "fragment")
        for wanted in file.wanted:
            is_mine = pc.and_(is_delivery, _is_of(rows, wanted.origin))
            found += _overlap(_where(rows, pc.and_(is_mine, is_fragment)), wanted)
            batch = _messages(segment, _where(rows, pc.and_not(is_mine, is_fragment)), wanted)
            found += len(batch)
            if len(batch):
                yield batch
    expected = sum(wanted.last - wanted.first + 1 for wanted in file.wanted)
    if found != expected:
        raise UsageError(
            f"{segment.path.name}: damaged: {found} messages where its footer names {expected}"
        )


def _is_of(rows: pa.RecordBatch, origin: OriginKey) -> pa.Array:
    sender, incarnation, stream = origin
    is_sender = pc.equal(rows["peer"].cast(pa.string()), sender)
    is_incarnation = pc.equal(rows["peer_inc"], pa.scalar(incarnation, pa.uint64()))
    return pc.and_(pc.and_(is_sender, is_incarnation), pc.equal(rows["stream"], stream))


def _where(rows: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    """The rows of a mask; without a copy where they stand together."""
    places = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
    if not len(places):
        return rows.slice(0, 0)
    if places[-1] - places[0] + 1 == len(places):
        return rows.slice(places[0], len(places))
    return rows.take(pa.array(places))


def _overlap(rows: pa.RecordBatch, wanted: Wanted) -> int:
    """How many of the wanted seqnos are in these rows."""
    firsts = np.maximum(rows["seqno"].to_numpy(), wanted.first)
    lasts = np.minimum(rows["seqno2"].to_numpy(), wanted.last)
    return int(np.maximum(lasts - firsts + 1, 0).sum())


def _messages(segment: Segment, runs: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """Runs of one origin as one row for each message that is wanted."""
    firsts = runs["seqno"].to_numpy()
    counts = runs["seqno2"].to_numpy() - firsts + 1
    payloads = runs[PAYLOADS].flatten()
    if not np.array_equal(pc.list_value_length(runs[PAYLOADS]).to_numpy(), counts):
        raise UsageError(f"{segment.path.name}: damaged: messages are missing in a row")
    before = np.cumsum(counts) - counts
    seqnos = np.repeat(firsts - before, counts) + np.arange(len(payloads))
    views = np.repeat(runs["view"].to_numpy(), counts)
    times = np.repeat(runs["wall_ns"].to_numpy() // 1000, counts)
    if np.all(firsts[1:] > firsts[:-1] + counts[:-1] - 1):
        places = slice(*np.searchsorted(seqnos, [wanted.first, wanted.last + 1]))
        payloads = payloads.slice(places.start, places.stop - places.start)
        return _batch(wanted.origin, seqnos[places], views[places], times[places], payloads)
    # Something stands there twice, which must not be: once is enough.
    seqnos, at = np.unique(seqnos, return_index=True)
    is_wanted = (seqnos >= wanted.first) & (seqnos <= wanted.last)
    seqnos, at = seqnos[is_wanted], at[is_wanted]
    return _batch(wanted.origin, seqnos, views[at], times[at], payloads.take(pa.array(at)))


def _batch(
    origin: OriginKey,
    seqnos: npt.NDArray[np.int64],
    views: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    payloads: pa.Array,
) -> pa.RecordBatch:
    sender, incarnation, stream = origin
    count = len(seqnos)
    arrays = [
        *(
            pa.repeat(pa.scalar(same), count)
            for same in (sender, str(incarnation), STREAMS[stream])
        ),
        pa.array(seqnos),
        pa.array(views),
        pa.array(times).cast(SCHEMA.field("delivered_at").type),
        payloads,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
