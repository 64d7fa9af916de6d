"""One segment's rows folded into its summary, some ten thousand at a time, in columns.

This is where an audit's time goes, so nothing here is done for each row in Python, columns are read
only where the statistics of the file leave a question, and rows are sorted by one byte or two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.errors import RingcastError, UsageError
from ringcast.rules.history import MARKS
from ringcast.spark.summary import (
    HISTORY,
    SPAN_BLOCKS,
    Hole,
    Installed,
    Purged,
    SegmentSummary,
    Span,
    Stretch,
    Track,
    add_block,
    append_stretch,
    history_row,
    mix_span,
)
from ringcast.trace.rows import (
    BLOCK,
    DELIVER,
    LEFT_BEHIND,
    OPEN,
    PURGE,
    SEND,
    STATE_LOST,
    STATE_RECEIVED,
    VIEW,
    WIN,
)

# The types of numpy and pyarrow say little here: `Any` stands for their element types.
try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise UsageError('the audit needs Spark: pip install "ringcast[spark]"') from error

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from ringcast.trace.segments import Segment, SegmentInfo

STRETCHES_MAX = 1000
"""Kept of one track in one segment. So many breaks are violations enough; the rest is counted."""
HISTORY_MAX = 100_000
"""Rows of views, and of runs in them."""
HOLES_MAX = 1000
BLOCKS_MAX = 16
"""Of one track in one batch, to be kept one by one."""

_COLUMNS = (
    *("event", "node", "inc", "idx", "peer", "peer_inc", "stream", "seqno", "seqno2"),
    *("view", "view_creator", "members", "part", "cut"),
    *("cap", "kind", "block", "block_hash", "detail"),
)
_ONLY_FOR = {
    # Statistics that leave FREEZE open, which sorts behind VIEW, leave VIEW open too.
    **dict.fromkeys(("members", "part", "cut"), VIEW),
    **dict.fromkeys(("block", "block_hash"), BLOCK),
    "cap": WIN,
    "detail": STATE_LOST,
}


class BrokenSegment(RingcastError):
    """Rows that no recorder writes: another member's, out of order, or in thousands of pieces."""


def summarize_segment(segment: Segment) -> SegmentSummary:
    """Rule the rows, a batch of columns at a time."""
    info = segment.info
    summary = SegmentSummary()
    due_idx = info.first_idx
    for batch in segment.batches(_COLUMNS, _ONLY_FOR):
        if len(batch) == 0:
            continue
        if any(column.null_count for column in batch.columns):
            raise BrokenSegment("has rows without a value")
        columns = dict(zip(_COLUMNS, batch.columns, strict=True))
        _check_owner(columns, info)
        due_idx = _fold_order(columns["idx"].to_numpy(), due_idx, summary)
        events = _Events(columns["event"])
        _fold_views(columns, events, info, summary)
        _fold_tracks(columns, events, info, summary)
        _fold_content(columns, events, info, summary)
        _fold_purges(columns, events, summary)
        _fold_capacity(columns, events, summary)
        _fold_state(columns, events, summary)
        _fold_history(columns, events, info, summary)
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


def _fold_order(idx: NDArray[Any], due: int, summary: SegmentSummary) -> int:
    steps = np.diff(idx, prepend=due - 1)
    if steps.min() < 1:
        raise BrokenSegment("its rows are not in order")
    for at in np.flatnonzero(steps > 1).tolist():
        summary.holes.append(Hole(int(idx[at] - steps[at] + 1), int(idx[at] - 1)))
    if len(summary.holes) > HOLES_MAX:
        raise BrokenSegment(f"its rows have more than {HOLES_MAX} gaps")
    return int(idx[-1]) + 1


_OTHER, _OPENED, _DELIVERED, _SENT = range(4)
_RUNS = {OPEN: _OPENED, DELIVER: _DELIVERED, SEND: _SENT}


def _fold_tracks(
    columns: dict[str, pa.Array], events: _Events, info: SegmentInfo, summary: SegmentSummary
) -> None:
    what = events.among(_RUNS)
    counts = np.bincount(what, minlength=len(_RUNS) + 1).tolist()
    if counts[_OTHER] == len(what):
        return
    for event in (SEND, DELIVER):
        summary.counts[event] = summary.counts.get(event, 0) + counts[_RUNS[event]]
    # Those that are neither sent nor delivered come first, and are left out.
    roles = np.array([0, 1, 1, 2], dtype=np.uint8)[what]
    codes, values = _tracks(columns, roles)
    order = np.argsort(codes, kind="stable")[counts[_OTHER] :]
    codes = codes[order]
    # An opened window is an empty stretch just after its offset; what is delivered extends it.
    is_open = what[order] == _OPENED
    first = columns["seqno"].to_numpy()[order] + is_open
    last = columns["seqno2"].to_numpy()[order]
    last[is_open] = first[is_open] - 1
    idx = columns["idx"].to_numpy()
    is_backward = (last < first) & ~is_open
    starts = is_open | is_backward
    starts[0] = True
    starts[1:] |= (codes[1:] != codes[:-1]) | (first[1:] != last[:-1] + 1) | is_backward[:-1]
    begin = np.flatnonzero(starts)
    end = np.append(begin[1:], len(order)) - 1
    tracks = {code: _track(info, values, code) for code in set(codes[begin].tolist())}
    for code, *stretch in zip(
        codes[begin].tolist(),
        is_open[begin].tolist(),
        first[begin].tolist(),
        last[end].tolist(),
        idx[order[begin]].tolist(),
        idx[order[end]].tolist(),
        strict=True,
    ):
        known = summary.tracks.setdefault(tracks[code], [])
        if len(known) < STRETCHES_MAX:
            append_stretch(known, Stretch(*stretch))
        else:
            summary.cut += 1


def _tracks(
    columns: dict[str, pa.Array], roles: NDArray[Any]
) -> tuple[NDArray[Any], list[list[Any]]]:
    """A small number for the track of each of these rows, and the values that it is made of.
    `roles` are 1 for what is delivered, 2 for what is sent, 0 for rows that are not asked about."""
    inc, stream = (pc.dictionary_encode(columns[name]) for name in ("peer_inc", "stream"))
    parts = [columns["peer"], inc, stream]
    values = [part.dictionary.to_pylist() for part in parts]
    size = 3 * len(values[0]) * len(values[1]) * len(values[2])
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
    if code == 2:  # Whose sends these are need not be said in the row.
        return Track("sent", info.node, info.inc, stream)
    return Track("delivered", peer, inc, stream)


def _fold_content(
    columns: dict[str, pa.Array], events: _Events, info: SegmentInfo, summary: SegmentSummary
) -> None:
    places = events.where(BLOCK)
    if not len(places):
        return
    summary.counts[BLOCK] = summary.counts.get(BLOCK, 0) + len(places)
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
    starts = np.ones(len(places), dtype=bool)
    starts[1:] = (codes[1:] != codes[:-1]) | (span[1:] != span[:-1])
    begin = np.flatnonzero(starts)
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
        mix_span(summary, tracks[code], at, Span(*found))
    counts = np.diff(np.flatnonzero(codes[1:] != codes[:-1]) + 1, prepend=0, append=len(codes))
    few = np.flatnonzero(np.repeat(counts <= BLOCKS_MAX, counts))
    for code, at, *found in zip(
        *(column[few].tolist() for column in (codes, block, bits, mixed, messages)), strict=True
    ):
        add_block(summary, tracks[code], at, Span(*found))


def _fold_views(
    columns: dict[str, pa.Array], events: _Events, info: SegmentInfo, summary: SegmentSummary
) -> None:
    """With what this member had sent when it installed each."""
    places = events.where(VIEW)
    if not len(places):
        return
    summary.counts[VIEW] = summary.counts.get(VIEW, 0) + len(places)
    before = {
        track.stream: stretches[-1].last
        for track, stretches in summary.tracks.items()
        if track.is_sent
    }
    sends = events.where(SEND)
    streams, lasts = (columns[name].to_numpy()[sends] for name in ("stream", "seqno2"))
    names = ("idx", "view", "view_creator", "members")
    taken = pa.array(places)
    rows = zip(*(columns[name].take(taken).to_pylist() for name in names), strict=True)
    for place, row in zip(places.tolist(), rows, strict=True):
        earlier = int(np.searchsorted(sends, place))
        for stream in np.unique(streams[:earlier]).tolist():
            before[stream] = int(lasts[:earlier][streams[:earlier] == stream][-1])
        summary.views.append(Installed.of((*row, sorted(before.items()))))


def _fold_purges(columns: dict[str, pa.Array], events: _Events, summary: SegmentSummary) -> None:
    """The last of each stream in each view."""
    places = events.where(PURGE)
    if not len(places):
        return
    idx, stream, through = (columns[name].to_numpy()[places] for name in ("idx", "stream", "seqno"))
    installed = np.searchsorted([each.idx for each in summary.views], idx)
    order = np.lexsort((idx, stream))
    changes = [np.diff(values[order]) != 0 for values in (stream, installed)]
    last = order[np.append(np.logical_or.reduce(changes), True)]
    for at in last.tolist():
        summary.add_purged(int(stream[at]), Purged(int(idx[at]), int(through[at])))


def _fold_state(columns: dict[str, pa.Array], events: _Events, summary: SegmentSummary) -> None:
    for event in (STATE_RECEIVED, STATE_LOST):
        for place in events.where(event).tolist():
            summary.caught_up = max(summary.caught_up, columns["idx"][place].as_py())
            summary.is_behind |= columns["detail"][place].as_py() == LEFT_BEHIND


def _fold_capacity(columns: dict[str, pa.Array], events: _Events, summary: SegmentSummary) -> None:
    if summary.capacity:
        return
    places = events.where(WIN)
    if len(places):
        taken = pa.array(places)
        is_send = pc.equal(columns["kind"].take(taken).cast(pa.string()), "send")
        summary.capacity = pc.max(columns["cap"].take(taken).filter(is_send)).as_py() or 0


_MARKED = 3
_HISTORY = {**dict.fromkeys(MARKS, _MARKED), DELIVER: 1, SEND: 2}


def _fold_history(
    columns: dict[str, pa.Array], events: _Events, info: SegmentInfo, summary: SegmentSummary
) -> None:
    """Rows of view changes as they are; of messages one for each run in one view, without a row of
    a view change in between."""
    what = events.among(_HISTORY)
    marks = np.flatnonzero(what == _MARKED)
    runs = np.flatnonzero((what == 1) | (what == 2))
    last = np.zeros(len(what), dtype=np.int64)
    if len(runs):
        codes, _ = _tracks(columns, np.where(what == _MARKED, 0, what).astype(np.uint8))
        order = runs[np.argsort(codes[runs], kind="stable")]
        view = columns["view"].to_numpy()
        creator = columns["view_creator"].indices.to_numpy()
        since = np.cumsum(what == _MARKED)
        first, end = columns["seqno"].to_numpy()[order], columns["seqno2"].to_numpy()[order]
        starts = np.ones(len(order), dtype=bool)
        starts[1:] = (first[1:] != end[:-1] + 1) | (end[1:] < first[1:])
        for values in (codes, view, creator, since):
            starts[1:] |= values[order][1:] != values[order][:-1]
        begin = np.flatnonzero(starts)
        runs = order[begin]
        last[runs] = end[np.append(begin[1:], len(order)) - 1]
    places = np.sort(np.concatenate((marks, runs)))
    taken = pa.array(places)
    rows = zip(*(columns[name].take(taken).to_pylist() for name in HISTORY), strict=True)
    for place, values in zip(places.tolist(), rows, strict=True):
        row = history_row(info.node, info.inc, values)
        if what[place] != _MARKED:
            row = row._replace(seqno2=int(last[place]))
        if len(summary.history) < HISTORY_MAX:
            summary.history.append(row)
        else:
            summary.cut += 1
