"""Messages out of an archive's files, as Arrow batches: no Python object for any of them but those
with headers."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringcast.errors import UsageError
from ringcast.spark.reading import pack
from ringcast.trace.archive import Index
from ringcast.trace.columns import PAYLOADS, is_among
from ringcast.trace.held import STREAMS, Range, origin_text
from ringcast.trace.rows import DELIVER, HEADED
from ringcast.trace.sealed import Unreadable
from ringcast.trace.segments import Segment
from ringcast.wire.headers import split_headers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from ringcast.trace.archive import Piece
    from ringcast.trace.rows import OriginKey

Ints: TypeAlias = "npt.NDArray[np.int64]"

DDL = (
    "sender STRING NOT NULL, incarnation STRING NOT NULL, stream STRING NOT NULL, "
    "seqno BIGINT NOT NULL, view BIGINT NOT NULL, delivered_at TIMESTAMP NOT NULL, "
    "payload BINARY NOT NULL, headers MAP<STRING, STRING> NOT NULL"
)
"""An incarnation has 64 bits, which no integer of Spark holds and no decimal holds cheaply. Spark
makes rows of our batches, and asks of each value that may be null whether it is."""
SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("sender", pa.string()),
            ("incarnation", pa.string()),
            ("stream", pa.string()),
            ("seqno", pa.int64()),
            ("view", pa.int64()),
            ("delivered_at", pa.timestamp("us", tz="UTC")),
            ("payload", pa.binary()),
            ("headers", pa.map_(pa.string(), pa.string())),
        )
    ]
)
"""The same, as Arrow has it."""

TASK_BYTES = 32 << 20
"""Worth a task of its own, of which each costs some 30 ms of Python."""
MESSAGE_BYTES = 64
"""What a message costs beside its bytes in the file: its other columns."""

log = logging.getLogger("ringcast")

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
    weights: dict[str, float] = {}
    for piece in pieces:
        path = piece.file.path
        each = MESSAGE_BYTES + piece.file.size / piece.file.messages
        weights[path] = weights.get(path, 0.0) + each * piece.length
    files = [(file, weights[file.path]) for file in sorted(_by_file(pieces))]
    return pack(files, 1 + int(sum(weights.values()) // TASK_BYTES))


def _by_file(pieces: Iterable[Piece]) -> list[FileRead]:
    wanted: dict[str, list[Wanted]] = {}
    for piece in pieces:
        mine = wanted.setdefault(piece.file.path, [])
        mine.append(Wanted(piece.origin, piece.first, piece.last))
    return [FileRead(path, tuple(mine)) for path, mine in wanted.items()]


def read_messages(directory: str, files: Iterable[FileRead]) -> Iterator[pa.RecordBatch]:
    """These messages, each origin's in order in each file. Where a file cannot be read, or is gone,
    other files of the directory stand in for it; UsageError if they have not all of it."""
    due = deque(files)
    index = Index(directory)
    troubles: dict[str, str] = {}
    while due:
        file = due.popleft()
        given: list[_Runs] = []
        trouble = yield from _from_file(file, given)
        if trouble is None:
            continue
        log.warning("others stand in for a file of the archive: %s", trouble)
        troubles[file.path] = str(trouble)
        index.refresh()  # files may have been merged meanwhile
        for path, reason in troubles.items():
            index.leave_out(path, reason)
        due.extendleft(_by_file(index.stand_ins(_left(file.wanted, given))))


def _from_file(
    file: FileRead, given: list[_Runs]
) -> Generator[pa.RecordBatch, None, Unreadable | None]:
    """What the file has of this, as far as it can be read, noted in `given`; and what is wrong
    with it."""
    origins = [wanted.origin for wanted in file.wanted]
    span = Range(
        min(wanted.first for wanted in file.wanted), max(wanted.last for wanted in file.wanted)
    )
    trouble: Unreadable | None = None
    try:
        opened = Segment(file.path)
    except Unreadable as error:
        return error
    with opened as segment:
        for group in segment.groups:
            if not segment.may_have(group, span, "seqno", "seqno2"):
                continue
            try:
                rows = segment.group(group, (*_COLUMNS, PAYLOADS))
            except Unreadable as error:
                trouble = trouble or error
                continue
            runs, fragments = _wanted_runs(rows, file.wanted)
            if len(runs.rows):
                batch = _messages(rows, runs, origins)
                if batch is None:
                    reason = "damaged: messages are missing in a row"
                    trouble = trouble or Unreadable(file.path, reason)
                    continue
                yield batch
            given += (runs, fragments)
    found = sum(int(runs.counts.sum()) for runs in given)
    expected = sum(wanted.last - wanted.first + 1 for wanted in file.wanted)
    if trouble is None and found != expected:
        reason = f"damaged: {found} messages where its footer names {expected}"
        return Unreadable(file.path, reason)
    return trouble


def _left(wanted: Sequence[Wanted], given: Sequence[_Runs]) -> Iterator[Wanted]:
    """What was not given of it. UsageError: something was given twice."""
    for number, wish in enumerate(wanted):
        mine = [runs.only(runs.wanted == number) for runs in given]
        firsts = np.concatenate([wish.first - np.ones(1, np.int64), *(r.firsts for r in mine)])
        ends = np.concatenate([np.full(1, wish.first), *(r.firsts + r.counts for r in mine)])
        order = np.argsort(firsts, kind="stable")
        firsts, ends = np.append(firsts[order][1:], wish.last + 1), ends[order]
        if (firsts < ends).any():
            raise UsageError(f"messages of {origin_text(wish.origin)} stand in a file twice")
        for at in np.flatnonzero(firsts > ends):
            yield Wanted(wish.origin, int(ends[at]), int(firsts[at]) - 1)


class _Runs(NamedTuple):
    """Messages to be taken out of rows: out of which, whose, from which seqno on, how many."""

    rows: Ints
    wanted: Ints
    firsts: Ints
    counts: Ints

    def only(self, places: npt.NDArray[np.bool_] | Ints) -> _Runs:
        return _Runs(*(column[places] for column in self))


def _wanted_runs(rows: pa.RecordBatch, wanted: Sequence[Wanted]) -> tuple[_Runs, _Runs]:
    """All that is wanted, each origin's in order and else as rows are, so that payloads stand as
    they are stored; and which seqnos are fragments, which are no messages of their own."""
    is_delivery = is_among(rows["event"], (DELIVER,))
    is_fragment = is_among(rows["kind"], ("fragment",)).to_numpy(False)
    found = [
        _runs_of(rows, pc.and_(is_delivery, _is_of(rows, wish.origin)), number, wish)
        for number, wish in enumerate(wanted)
    ]
    runs = _Runs(*map(np.concatenate, zip(*found, strict=True)))
    places = np.concatenate([np.maximum.accumulate(mine.rows) for mine in found])
    runs = runs.only(np.argsort(places, kind="stable"))
    is_part = is_fragment[runs.rows]
    return runs.only(~is_part), runs.only(is_part)


def _is_of(rows: pa.RecordBatch, origin: OriginKey) -> pa.Array:
    sender, incarnation, stream = origin
    is_sender = is_among(rows["peer"], (sender,))
    is_incarnation = pc.equal(rows["peer_inc"], pa.scalar(incarnation, pa.uint64()))
    return pc.and_(pc.and_(is_sender, is_incarnation), pc.equal(rows["stream"], stream))


def _runs_of(rows: pa.RecordBatch, is_mine: pa.Array, number: int, wanted: Wanted) -> _Runs:
    """One origin's part of these rows, which have the wanted `number`."""
    mine = np.flatnonzero(is_mine.to_numpy(zero_copy_only=False))
    mine = mine[np.argsort(rows["seqno"].to_numpy()[mine], kind="stable")]
    firsts, lasts = rows["seqno"].to_numpy()[mine], rows["seqno2"].to_numpy()[mine]
    # If something stands there twice, which must not be, once is enough.
    behind = np.maximum.accumulate(np.append(wanted.first - 1, lasts))[:-1]
    firsts = np.maximum(firsts, behind + 1)
    counts = np.minimum(lasts, wanted.last) - firsts + 1
    return _Runs(mine, np.full(len(mine), number), firsts, counts).only(counts > 0)


def _messages(
    rows: pa.RecordBatch, runs: _Runs, origins: Sequence[OriginKey]
) -> pa.RecordBatch | None:
    """One row for each message; None if a row has not as many as it says."""
    lists = rows[PAYLOADS]
    offsets = lists.offsets.to_numpy().astype(np.int64)
    firsts, lasts = rows["seqno"].to_numpy(), rows["seqno2"].to_numpy()
    if not np.array_equal(np.diff(offsets)[runs.rows], (lasts - firsts + 1)[runs.rows]):
        return None
    whose = np.repeat(runs.wanted, runs.counts)
    places = np.arange(len(whose))
    before = np.cumsum(runs.counts) - runs.counts
    starts = offsets[runs.rows] + runs.firsts - firsts[runs.rows]
    if np.array_equal(starts[1:], starts[:-1] + runs.counts[:-1]):
        payloads = lists.values.slice(starts[0], len(whose))  # side by side: not copied
    else:
        payloads = lists.values.take(pa.array(places + np.repeat(starts - before, runs.counts)))
    is_headed = is_among(rows["kind"], (HEADED,)).to_numpy(False)[runs.rows]
    payloads, headers = _split(payloads, np.repeat(is_headed, runs.counts))
    micros = rows["wall_ns"].to_numpy()[runs.rows] // 1000
    arrays = [
        pa.array([sender for sender, _, _ in origins]).take(pa.array(whose)),
        pa.array([str(incarnation) for _, incarnation, _ in origins]).take(pa.array(whose)),
        pa.array([STREAMS[stream] for _, _, stream in origins]).take(pa.array(whose)),
        pa.array(places + np.repeat(runs.firsts - before, runs.counts)),
        pa.array(np.repeat(rows["view"].to_numpy()[runs.rows], runs.counts)),
        pa.array(np.repeat(micros, runs.counts)).cast(SCHEMA.field("delivered_at").type),
        payloads,
        headers,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _split(messages: pa.Array, is_headed: npt.NDArray[np.bool_]) -> tuple[pa.Array, pa.Array]:
    """Payloads and headers of messages of which these have some. Where they cannot be read all is
    payload."""
    counts = np.zeros(len(messages) + 1, np.int32)
    names: list[str] = []
    values: list[str] = []
    if is_headed.any():
        mask, rest = pa.array(is_headed), []
        for place, message in zip(
            np.flatnonzero(is_headed), messages.filter(mask).to_pylist(), strict=True
        ):
            try:
                named, payload = split_headers(message)
            except ValueError:
                named, payload = {}, message
            rest.append(payload)
            counts[place + 1] = len(named)
            names += named
            values += named.values()
        messages = pc.replace_with_mask(messages, mask, pa.array(rest, pa.binary()))
    offsets = pa.array(np.cumsum(counts, dtype=np.int32))
    kinds = pa.array(names, pa.string()), pa.array(values, pa.string())
    return messages, pa.MapArray.from_arrays(offsets, *kinds)
