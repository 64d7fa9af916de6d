"""One segment's rows folded into its summary, some ten thousand at a time, in columns.

This is where an audit's time goes, so nothing here is done for each row in Python, columns are read
only where the statistics of the file leave a question, and rows are sorted by one byte or two.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringcast.errors import RingcastError
from ringcast.rules.history import MARKS, RUNS, TAKEN
from ringcast.spark.order import changes, fold_order, is_sound, placed_runs
from ringcast.spark.summary import (
    CUT,
    HOLE,
    KEPT,
    SPAN_BLOCKS,
    Purged,
    SegmentSummary,
    Span,
    Track,
    condensed_row,
    hole,
)
from ringcast.trace.rows import ACCEPT, BLOCK, DELIVER, ORDER, PURGE, SEND, SHOWN, VIEW, WIN, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ringcast.trace.footer import SegmentInfo
    from ringcast.trace.segments import Segment

RUNS_MAX = 1000
"""Kept of one track in one segment. So many breaks are violations enough; the rest is counted."""
HOLES_MAX = 1000
BLOCKS_MAX = 16
"""Of one track in one batch, to be kept one by one."""

_COLUMNS = (*KEPT, "node", "inc", "cap", "kind", "block", "block_hash")
_ONLY_FOR = {
    "part": (VIEW, SHOWN),
    "cut": (VIEW,),
    "low": (SHOWN, ORDER),
    **dict.fromkeys(("block", "block_hash"), (BLOCK,)),
    "cap": (WIN,),
}
_COUNTED = (SEND, DELIVER, VIEW, BLOCK)
_RUNS = {DELIVER: 1, SEND: 2, ORDER: 3, ACCEPT: 4}
_CONDENSED = {"delivered": DELIVER, "sent": SEND, "taken": TAKEN, "accepted": ACCEPT}
"""In the order of these numbers."""
_MARKS = dict.fromkeys(MARKS, 1)


class BrokenSegment(RingcastError):
    """Rows that no recorder writes: another member's, out of order, or in thousands of pieces."""


def summarize_segment(segment: Segment) -> SegmentSummary:
    """Rule the rows, a batch of columns at a time."""
    info = segment.info
    summary = SegmentSummary()
    due_idx, gaps = info.first_idx, 0
    counts: Counter[Track] = Counter()
    for batch in segment.batches(_COLUMNS, _ONLY_FOR):
        if len(batch) == 0:
            continue
        if any(column.null_count for column in batch.columns):
            raise BrokenSegment("has rows without a value")
        columns = dict(zip(_COLUMNS, batch.columns, strict=True))
        _check_owner(columns, info)
        idx = columns["idx"].to_numpy()
        holes = list(_holes(idx, due_idx, info))
        gaps += len(holes)
        if gaps > HOLES_MAX:
            raise BrokenSegment(f"its rows have more than {HOLES_MAX} gaps")
        due_idx = int(idx[-1]) + 1
        events = _Events(columns["event"])
        marks = np.cumsum(events.among(_MARKS), dtype=np.int64)
        orders = events.where(ORDER)
        if not is_sound(columns, orders):
            raise BrokenSegment("has a row of more messages than there can be")
        rows = [*holes, *_marks(columns, events, info), *_runs(columns, events, marks, info)]
        _fold_rows([*rows, *placed_runs(columns, orders, marks, info)], counts, summary)
        fold_order(columns, orders, summary)
        _fold_content(columns, events, info, summary)
        _fold_purges(columns, events, summary)
        _fold_capacity(columns, events, summary)
        for event, count in zip(_COUNTED, events.counts(_COUNTED), strict=True):
            summary.counts[event] = summary.counts.get(event, 0) + count
    return summary


class _Events:
    """Rows by event, from the codes of a dictionary column."""

    def __init__(self, column: pa.DictionaryArray) -> None:
        self._codes: NDArray[Any] = column.indices.to_numpy()
        self._names: list[str] = column.dictionary.to_pylist()

    def among(self, numbers: dict[str, int]) -> NDArray[Any]:
        """The number of each row's event, 0 for events that have none here."""
        table = np.array([numbers.get(name, 0) for name in self._names], dtype=np.uint8)
        found: NDArray[Any] = table[self._codes]
        return found

    def counts(self, names: Sequence[str]) -> list[int]:
        """How many rows of each of these events there are."""
        numbers = {name: at for at, name in enumerate(names, 1)}
        found: list[int] = np.bincount(self.among(numbers), minlength=len(names) + 1).tolist()
        return found[1:]

    def where(self, event: str) -> NDArray[Any]:
        """The places of rows of this event."""
        if event not in self._names:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.among({event: 1}))


def _check_owner(columns: dict[str, pa.Array], info: SegmentInfo) -> None:
    nodes, incs = columns["node"], columns["inc"].to_numpy()
    if nodes.dictionary.to_pylist() != [info.node]:  # It may list more than there is.
        nodes = pc.unique(nodes).dictionary_decode()
        if nodes.to_pylist() != [info.node]:
            raise BrokenSegment("has rows of another member than its footer says")
    if (incs != info.inc).any():
        raise BrokenSegment("has rows of another member than its footer says")


def _holes(idx: NDArray[Any], due: int, info: SegmentInfo) -> Iterator[Row]:
    steps = np.diff(idx, prepend=due - 1)
    if steps.min() < 1:
        raise BrokenSegment("its rows are not in order")
    for at in np.flatnonzero(steps > 1).tolist():
        yield hole(info, int(idx[at] - steps[at] + 1), int(idx[at] - 1))


def _fold_rows(rows: list[Row], counts: Counter[Track], summary: SegmentSummary) -> None:
    """In the order of idx; of a track that has too many, the first ones."""
    for row in sorted(rows, key=attrgetter("idx")):
        if row.event in RUNS:
            track = Track(row.event, *row.origin)
            counts[track] += 1
            if counts[track] > RUNS_MAX:
                summary.cut += 1
                if summary.cut > 1:
                    continue
                row = row._replace(event=CUT)
        summary.condensed.feed(row)


def _marks(columns: dict[str, pa.Array], events: _Events, info: SegmentInfo) -> Iterator[Row]:
    """Rows that are kept one by one."""
    places = np.flatnonzero(events.among(_MARKS))
    taken = pa.array(places)
    for values in zip(*(columns[name].take(taken).to_pylist() for name in KEPT), strict=True):
        yield condensed_row(info, values)


def _runs(
    columns: dict[str, pa.Array], events: _Events, marks: NDArray[Any], info: SegmentInfo
) -> Iterator[Row]:
    """What one sends on a stream, delivers or takes of one origin, or accepts, in one view and
    between two marks: as one row where it is consecutive."""
    roles = events.among(_RUNS)
    others = int(np.count_nonzero(roles == 0))
    if others == len(roles):
        return
    codes, values = _tracks(columns, roles)
    # Those that are neither sent nor delivered come first, and are left out.
    order = np.argsort(codes, kind="stable")[others:]
    codes = codes[order]
    first, last, view = (columns[name].to_numpy()[order] for name in ("seqno", "seqno2", "view"))
    creator, detail = (
        columns[name].indices.to_numpy()[order] for name in ("view_creator", "detail")
    )
    is_backward = last < first
    starts = changes(codes, view, creator, detail, marks[order]) | is_backward
    starts[1:] |= (first[1:] != last[:-1] + 1) | is_backward[:-1]
    begin = np.flatnonzero(starts)
    end = np.append(begin[1:], len(order)) - 1
    tracks = {code: _track(info, values, code) for code in set(codes[begin].tolist())}
    creators, details = (
        columns[name].dictionary.to_pylist() for name in ("view_creator", "detail")
    )
    whole = np.where(_is(columns["kind"], "fragment")[order], 0, last - first + 1)
    for code, idx, seqno, seqno2, counter, maker, how, size in zip(
        codes[begin].tolist(),
        columns["idx"].to_numpy()[order[begin]].tolist(),
        first[begin].tolist(),
        last[end].tolist(),
        view[begin].tolist(),
        creator[begin].tolist(),
        detail[begin].tolist(),
        np.add.reduceat(whole, begin).tolist(),
        strict=True,
    ):
        track = tracks[code]
        event = _CONDENSED[track.role]
        place = (event, idx, *track.origin, seqno, seqno2, counter, creators[maker])
        yield condensed_row(info, (*place, details[how], size))


def _is(column: pa.DictionaryArray, value: str) -> NDArray[Any]:
    """Which rows have this text."""
    names = np.array(column.dictionary.to_pylist(), dtype=object)
    found: NDArray[Any] = (names == value)[column.indices.to_numpy()]
    return found


def _tracks(
    columns: dict[str, pa.Array], roles: NDArray[Any]
) -> tuple[NDArray[Any], list[list[Any]]]:
    """A small number for the track of each of these rows, and the values that it is made of.
    `roles` are those of `_RUNS`, 0 for rows that are not asked about."""
    inc, stream = (pc.dictionary_encode(columns[name]) for name in ("peer_inc", "stream"))
    parts = [columns["peer"], inc, stream]
    values = [part.dictionary.to_pylist() for part in parts]
    size = (1 + len(_RUNS)) * len(values[0]) * len(values[1]) * len(values[2])
    # Few tracks: numbers of eight or sixteen bits are sorted by counting, in linear time.
    codes = roles.astype(np.min_scalar_type(size))
    for part, known in zip(parts, values, strict=True):
        codes *= len(known)
        codes += part.indices.to_numpy().astype(codes.dtype)
    return codes, values


def _track(info: SegmentInfo, values: list[list[Any]], code: int) -> Track:
    """What such a number stands for."""
    found = []
    for known in reversed(values):
        code, at = divmod(code, len(known))
        found.append(known[at])
    stream, inc, peer = found
    if code == _RUNS[SEND]:  # Whose sends these are need not be said in the row.
        return Track("sent", info.node, info.inc, stream)
    return Track([*_CONDENSED][code - 1], peer, inc, stream)


def _fold_content(
    columns: dict[str, pa.Array], events: _Events, info: SegmentInfo, summary: SegmentSummary
) -> None:
    places = events.where(BLOCK)
    if not len(places):
        return
    names = ("kind", "peer", "peer_inc", "stream", "seqno", "seqno2", "block", "block_hash")
    taken = pa.array(places)
    rows = {name: columns[name].take(taken) for name in names}
    kinds = rows["kind"].dictionary.to_pylist()
    roles = np.array([1 + (kind == "sent") for kind in kinds], dtype=np.uint8)
    codes, values = _tracks(rows, roles[rows["kind"].indices.to_numpy()])
    block = rows["block"].to_numpy()
    order = np.lexsort((block, codes))
    codes, block = codes[order], block[order]
    number = block.astype(np.uint64)
    hashes = rows["block_hash"].to_numpy()[order]
    last = rows["seqno2"].to_numpy()[order]
    messages = last - rows["seqno"].to_numpy()[order] + 1
    # The place is mixed in, so that two blocks cannot change places unseen, and so is the last
    # seqno: a block that a member's stop cut short is another block.
    mixed = hashes * (number * np.uint64(2) + np.uint64(1))
    mixed ^= last.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = np.uint64(1) << number % np.uint64(SPAN_BLOCKS)
    span = block // SPAN_BLOCKS
    begin = np.flatnonzero(changes(codes, span))
    present = np.bitwise_or.reduceat(bits, begin)
    folded = np.bitwise_xor.reduceat(mixed, begin)
    tracks = {code: _track(info, values, code) for code in set(codes[begin].tolist())}
    for code, at, *found in zip(
        codes[begin].tolist(),
        span[begin].tolist(),
        present.tolist(),
        folded.tolist(),
        np.add.reduceat(messages, begin).tolist(),
        strict=True,
    ):
        summary.mix_span(tracks[code], at, Span(*found))
    counts = np.diff(np.flatnonzero(changes(codes)), append=len(codes))
    few = np.flatnonzero(np.repeat(counts <= BLOCKS_MAX, counts))
    for code, at, *found in zip(
        *(column[few].tolist() for column in (codes, block, bits, mixed, messages)), strict=True
    ):
        summary.add_block(tracks[code], at, Span(*found))


def _fold_purges(columns: dict[str, pa.Array], events: _Events, summary: SegmentSummary) -> None:
    """The last of each stream in each view."""
    places = events.where(PURGE)
    if not len(places):
        return
    idx, stream, seqno = (columns[name].to_numpy()[places] for name in ("idx", "stream", "seqno"))
    since = [-1, *(row.idx for row in summary.rows if row.event in (VIEW, HOLE))]
    installed = np.searchsorted(since, idx) - 1
    order = np.lexsort((idx, stream))
    changes = [np.diff(values[order]) != 0 for values in (stream, installed)]
    for at in order[np.append(np.logical_or(*changes), True)].tolist():
        mark = Purged(int(idx[at]), int(seqno[at]))
        summary.purged[int(stream[at]), since[installed[at]]] = mark


def _fold_capacity(columns: dict[str, pa.Array], events: _Events, summary: SegmentSummary) -> None:
    if summary.capacity:
        return
    places = events.where(WIN)
    if len(places):
        taken = pa.array(places)
        is_send = pc.equal(columns["kind"].take(taken).cast(pa.string()), "send")
        summary.capacity = pc.max(columns["cap"].take(taken).filter(is_send)).as_py() or 0
