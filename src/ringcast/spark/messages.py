"""Messages out of an archive's files, as Arrow batches: no Python object for any of them but those
with headers.

Only those columns of a file are read that choose messages, and that those are made of which are
asked for. Row groups are passed over whose statistics say that they have nothing of the senders, of
the numbers or of the times; what the last ones hold is looked up only if other files must stand in.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringcast.errors import UsageError
from ringcast.spark.reading import pack
from ringcast.trace.archive import Index, Piece
from ringcast.trace.columns import PAYLOADS, is_among
from ringcast.trace.held import ALL, KEPT, STREAMS, Range, origin_text
from ringcast.trace.rows import HEADED, SEEN, OriginKey
from ringcast.trace.sealed import Unreadable
from ringcast.trace.segments import Segment
from ringcast.wire.headers import split_headers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from ringcast.trace.disks import Disk

Ints: TypeAlias = "npt.NDArray[np.int64]"

COLUMNS = {
    **dict.fromkeys(("sender", "incarnation", "stream"), ("string", pa.string())),
    **dict.fromkeys(("seqno", "view"), ("bigint", pa.int64())),
    "delivered_at": ("timestamp", pa.timestamp("us", tz="UTC")),
    "payload": ("binary", pa.binary()),
    "headers": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "position": ("bigint", pa.int64()),
}
"""What each column is, as Spark says it, and as Arrow has it. An incarnation has 64 bits, which no
integer of Spark holds and no decimal holds cheaply."""
_NULLABLE = "position"
"""Spark makes rows of our batches, and asks of each value that may be null whether it is: only
total messages have a position."""
DDL = ", ".join(
    f"{name} {kind}{' NOT NULL' * (name != _NULLABLE)}" for name, (kind, _) in COLUMNS.items()
)
SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=name == _NULLABLE) for name, (_, kind) in COLUMNS.items()]
)

TASK_BYTES = 32 << 20
"""Worth a task of its own, of which each costs some 30 ms of Python."""
MESSAGE_BYTES = 64
"""What a message costs beside its bytes in the file: its other columns."""

log = logging.getLogger("ringcast")

_CHOOSING = ("event", "kind", "peer", "peer_inc", "stream", "seqno", "seqno2")
"""The columns of a file that tell which messages are in a row."""
_MADE_OF = {
    **{"view": "view", "delivered_at": "wall_ns", "position": "low"},
    **dict.fromkeys(("payload", "headers"), PAYLOADS),
}
"""What else some columns are made of."""


class Wanted(NamedTuple):
    """Messages of one origin, to be read from one file."""

    origin: OriginKey
    first: int
    last: int


class FileRead(NamedTuple):
    """What to read from one file."""

    path: str
    wanted: tuple[Wanted, ...]


class _Reading(NamedTuple):
    """What is read of each file."""

    columns: pa.Schema
    """Of those in `SCHEMA`; each of them may be said to have nulls."""
    times: Range
    """When the messages were taken, in nanoseconds."""

    @property
    def names(self) -> list[str]:
        """The columns of a file that this takes."""
        more = [*{_MADE_OF[name]: None for name in self.columns.names if name in _MADE_OF}]
        if self.times != ALL and "wall_ns" not in more:
            more.append("wall_ns")
        return [*_CHOOSING, *more]


def tasks_of(pieces: Iterable[Piece], columns: pa.Schema = SCHEMA) -> list[list[FileRead]]:
    """Pieces as tasks of about the same weight. Every file is read by one of them."""
    pieces = list(pieces)
    weights: dict[str, float] = {}
    for piece in pieces:
        path = piece.file.path
        is_bulky = not {"payload", "headers"}.isdisjoint(columns.names)
        bulk = piece.file.size / piece.file.messages if is_bulky else 0.0
        each = MESSAGE_BYTES + bulk
        weights[path] = weights.get(path, 0.0) + each * piece.length
    files = [(file, weights[file.path]) for file in sorted(_by_file(pieces))]
    return pack(files, 1 + int(sum(weights.values()) // TASK_BYTES))


def _by_file(pieces: Iterable[Piece]) -> list[FileRead]:
    wanted: dict[str, list[Wanted]] = {}
    for piece in pieces:
        mine = wanted.setdefault(piece.file.path, [])
        mine.append(Wanted(piece.origin, piece.first, piece.last))
    return [FileRead(path, tuple(mine)) for path, mine in wanted.items()]


def read_messages(
    directory: str,
    files: Iterable[FileRead],
    *,
    columns: pa.Schema = SCHEMA,
    times: Range = ALL,
) -> Iterator[pa.RecordBatch]:
    """These messages, as far as they were taken at these times, each origin's in order in each
    file. Where a file cannot be read, or is gone, other files of the directory stand in for it;
    UsageError if they have not all of it."""
    due = deque(files)
    index = Index(directory)
    reading = _Reading(columns, times)
    troubles: dict[str, str] = {}
    while due:
        file = due.popleft()
        given: list[_Runs] = []
        trouble = yield from _from_file(index.disk, file, reading, given)
        if trouble is None:
            continue
        log.warning("others stand in for a file of the archive: %s", trouble)
        troubles[file.path] = str(trouble)
        index.refresh()  # files may have been merged meanwhile
        for path, reason in troubles.items():
            index.leave_out(path, reason)
        due.extendleft(_by_file(index.stand_ins(_left(file.wanted, given))))


def _from_file(
    disk: Disk, file: FileRead, reading: _Reading, given: list[_Runs]
) -> Generator[pa.RecordBatch, None, Unreadable | None]:
    """What the file has of this, as far as it can be read, noted in `given`; and what is wrong
    with it. What was taken at other times counts as given."""
    origins = [wanted.origin for wanted in file.wanted]
    span = Range(
        min(wanted.first for wanted in file.wanted), max(wanted.last for wanted in file.wanted)
    )
    senders = {sender for sender, _, _ in origins}
    trouble: Unreadable | None = None
    passed: list[int] = []
    try:
        opened = Segment(file.path, disk)
    except Unreadable as error:
        return error
    with opened as segment:
        for group in segment.groups:
            if not segment.may_have(group, span, "seqno", "seqno2"):
                continue
            if not segment.may_name(group, "peer", senders):
                continue
            if not segment.may_have(group, reading.times, "wall_ns", "wall_ns"):
                passed.append(group)
                continue
            try:
                rows = segment.group(group, reading.names)
            except Unreadable as error:
                trouble = trouble or error
                continue
            runs, fragments = _wanted_runs(rows, file.wanted)
            chosen = _taken_at(rows, runs, reading.times)
            if len(chosen.rows):
                batch = _messages(rows, chosen, origins, reading.columns)
                if batch is None:
                    reason = "damaged: messages are missing in a row"
                    trouble = trouble or Unreadable(file.path, reason)
                    continue
                yield batch
            given += (runs, fragments)
        if trouble is not None:
            for group in passed:
                with suppress(Unreadable):  # then others say when theirs was taken
                    given += _wanted_runs(segment.group(group, _CHOOSING), file.wanted)
    if passed:
        return trouble
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
    is_kept = pc.invert(is_among(rows["kind"], (SEEN,)))
    is_delivery = pc.and_(is_among(rows["event"], KEPT), is_kept)
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


def _taken_at(rows: pa.RecordBatch, runs: _Runs, times: Range) -> _Runs:
    if times == ALL:
        return runs
    taken_at = rows["wall_ns"].to_numpy()[runs.rows]
    return runs.only((times.first <= taken_at) & (taken_at <= times.last))


def _messages(
    rows: pa.RecordBatch, runs: _Runs, origins: Sequence[OriginKey], columns: pa.Schema
) -> pa.RecordBatch | None:
    """One row for each message; None if a row has not as many as it says, and they are read."""
    payloads = headers = None
    if not {"payload", "headers"}.isdisjoint(columns.names):
        messages = _payloads(rows, runs)
        if messages is None:
            return None
        is_headed = is_among(rows["kind"], (HEADED,)).to_numpy(False)[runs.rows]
        payloads, headers = _split(messages, np.repeat(is_headed, runs.counts))
    whose = pa.array(np.repeat(runs.wanted, runs.counts))
    arrays = []
    for item in columns:
        match item.name:
            case "sender":
                made = pa.array([sender for sender, _, _ in origins]).take(whose)
            case "incarnation":
                made = pa.array([str(incarnation) for _, incarnation, _ in origins]).take(whose)
            case "stream":
                made = pa.array([STREAMS[stream] for _, _, stream in origins]).take(whose)
            case "seqno":
                made = pa.array(_one_by_one(runs.firsts, runs.counts))
            case "view":
                made = pa.array(np.repeat(rows["view"].to_numpy()[runs.rows], runs.counts))
            case "delivered_at":
                micros = rows["wall_ns"].to_numpy()[runs.rows] // 1000
                made = pa.array(np.repeat(micros, runs.counts)).cast(item.type)
            case "position":
                made = _positions(rows, runs)
            case "payload":
                made = payloads
            case "headers":
                made = headers
        arrays.append(made)
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _positions(rows: pa.RecordBatch, runs: _Runs) -> pa.Array:
    """Where each stands in the one order, if it is a total message."""
    low = rows["low"].to_numpy()[runs.rows]
    starts = low + runs.firsts - rows["seqno"].to_numpy()[runs.rows]
    is_none = np.repeat(low < 0, runs.counts)
    return pa.array(_one_by_one(starts, runs.counts), mask=is_none)


def _payloads(rows: pa.RecordBatch, runs: _Runs) -> pa.Array | None:
    """The messages themselves; None if a row has not as many as it says."""
    lists = rows[PAYLOADS]
    offsets = lists.offsets.to_numpy().astype(np.int64)
    firsts, lasts = rows["seqno"].to_numpy(), rows["seqno2"].to_numpy()
    if not np.array_equal(np.diff(offsets)[runs.rows], (lasts - firsts + 1)[runs.rows]):
        return None
    starts = offsets[runs.rows] + runs.firsts - firsts[runs.rows]
    if np.array_equal(starts[1:], starts[:-1] + runs.counts[:-1]):
        # Side by side: not copied.
        return lists.values.slice(starts[0], int(runs.counts.sum()))
    return lists.values.take(pa.array(_one_by_one(starts, runs.counts)))


def _one_by_one(firsts: Ints, counts: Ints) -> Ints:
    """The numbers of all runs: so many from each first one on."""
    before = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(firsts - before, counts)
    return numbers


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
