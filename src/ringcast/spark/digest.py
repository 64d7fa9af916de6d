"""One segment as a digest: a small state that says all the audit needs to know of its rows.

The size of a digest depends on how many origins there are and on what is wrong, not on how many
rows. Deliveries and sends fold into *stretches*: maximal ranges of consecutive seqnos in the order
of idx. A clean trace has one for each window; every further one begins at a gap, a repeat, a swap,
or where rows are missing from the trace. Content folds into one number for each span of 64 blocks,
with a bit for each block that is there: two sides with the same bits and the same number have the
same blocks.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ringcast.errors import RingcastError, UsageError
from ringcast.trace.rows import BLOCK, DELIVER, ESTATE, OPEN, RESOLVED, SEND, VIEW, WIN

# The types of numpy and pyarrow say little here: `Any` stands for their element types.
try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise UsageError('the audit needs Spark: pip install "ringcast[spark]"') from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from ringcast.trace.rows import MemberKey, OriginKey
    from ringcast.trace.segments import Segment, SegmentInfo

STRETCHES_MAX = 1000
"""Kept of one track in one segment. So many breaks are violations enough; the rest is counted."""
HOLES_MAX = 1000
SPAN_BLOCKS = 64

_COLUMNS = (
    *("event", "node", "inc", "idx", "peer", "peer_inc", "stream", "seqno", "seqno2"),
    *("view", "view_creator", "members", "cap", "kind", "block", "block_hash"),
)


class Track(NamedTuple):
    """One sequence of messages at one member: its sends on a stream, or its deliveries of one
    origin."""

    role: str
    peer: str
    peer_inc: int
    stream: int

    @property
    def origin(self) -> OriginKey:
        return self.peer, self.peer_inc, self.stream


class Stretch(NamedTuple):
    """Messages first..last, one after the other, in the rows first_idx..last_idx."""

    is_opened: bool
    """A window was opened just before: nothing is said of what came earlier."""
    first: int
    last: int
    first_idx: int
    last_idx: int


class Span(NamedTuple):
    """The content of up to 64 blocks: which there are, one number for all, how many messages."""

    present: int
    mixed: int
    messages: int


NO_SPAN = Span(0, 0, 0)


class Installed(NamedTuple):
    """A view at a member."""

    idx: int
    counter: int
    creator: str
    members: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Installed:
        idx, counter, creator, members = values
        return cls(idx, counter, creator, tuple(members))


class Hole(NamedTuple):
    """Rows that the trace lacks, by idx."""

    first: int
    last: int


@dataclass(slots=True)
class Digest:
    """What one segment says. JSON on its way from the executors."""

    holes: list[Hole] = field(default_factory=list)
    tracks: dict[Track, list[Stretch]] = field(default_factory=dict)
    content: dict[Track, dict[int, Span]] = field(default_factory=dict)
    views: list[Installed] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by event, of the events that are judged."""
    cut: int = 0
    """Stretches left out."""
    capacity: int = 0
    """Of the member's send windows; 0: no row tells."""
    resolved: dict[MemberKey, int] = field(default_factory=dict)
    """Departed senders of whom nothing is left to be delivered, and the idx of the row."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "holes": self.holes,
                "tracks": list(self.tracks.items()),
                "content": [[track, list(spans.items())] for track, spans in self.content.items()],
                "views": self.views,
                "counts": self.counts,
                "cut": self.cut,
                "capacity": self.capacity,
                "resolved": list(self.resolved.items()),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Digest:
        values = json.loads(text)
        return cls(
            [Hole(*hole) for hole in values["holes"]],
            {
                Track(*track): [Stretch(*stretch) for stretch in stretches]
                for track, stretches in values["tracks"]
            },
            {
                Track(*track): {number: Span(*span) for number, span in spans}
                for track, spans in values["content"]
            },
            [Installed.of(view) for view in values["views"]],
            values["counts"],
            values["cut"],
            values["capacity"],
            {(name, inc): idx for (name, inc), idx in values["resolved"]},
        )


# The fold: one segment into a digest


class BrokenSegment(RingcastError):
    """Rows that no recorder writes: another member's, out of order, or in thousands of pieces."""


def digest_segment(segment: Segment) -> Digest:
    """Fold the rows, a batch of columns at a time."""
    info = segment.info
    digest = Digest()
    due_idx = info.first_idx
    for batch in segment.batches(_COLUMNS):
        if len(batch) == 0:
            continue
        columns = dict(zip(_COLUMNS, batch.columns, strict=True))
        _check_owner(columns, info)
        due_idx = _fold_order(columns["idx"].to_numpy(), due_idx, digest)
        events = _Events(columns["event"])
        _fold_tracks(columns, events, info, digest)
        _fold_content(columns, events, info, digest)
        _fold_views(columns, events, digest)
        _fold_capacity(columns, events, digest)
        _fold_estates(columns, events, digest)
    return digest


class _Events:
    """Rows by event, from the codes of a dictionary column."""

    def __init__(self, column: pa.DictionaryArray) -> None:
        self._codes: NDArray[Any] = column.indices.to_numpy()
        self._names: list[str] = column.dictionary.to_pylist()

    def where(self, *events: str) -> NDArray[Any]:
        """The places of rows of these events."""
        wanted = np.array([name in events for name in self._names])
        return np.flatnonzero(wanted[self._codes])

    def among(self, places: NDArray[Any], event: str) -> NDArray[Any]:
        """Which of these places are of this event, as booleans."""
        is_event = np.array([name == event for name in self._names])
        found: NDArray[Any] = is_event[self._codes[places]]
        return found


def _check_owner(columns: dict[str, pa.Array], info: SegmentInfo) -> None:
    nodes, incs = pc.unique(columns["node"]).to_pylist(), pc.unique(columns["inc"]).to_pylist()
    if nodes != [info.node] or incs != [info.inc]:
        raise BrokenSegment("has rows of another member than its footer says")


def _fold_order(idx: NDArray[Any], due: int, digest: Digest) -> int:
    steps = np.diff(idx, prepend=due - 1)
    if steps.min() < 1:
        raise BrokenSegment("its rows are not in order")
    for at in np.flatnonzero(steps > 1).tolist():
        digest.holes.append(Hole(int(idx[at] - steps[at] + 1), int(idx[at] - 1)))
    if len(digest.holes) > HOLES_MAX:
        raise BrokenSegment(f"its rows have more than {HOLES_MAX} gaps")
    return int(idx[-1]) + 1


def _fold_tracks(
    columns: dict[str, pa.Array], events: _Events, info: SegmentInfo, digest: Digest
) -> None:
    places = events.where(SEND, DELIVER, OPEN)
    if not len(places):
        return
    is_send, is_open = events.among(places, SEND), events.among(places, OPEN)
    digest.counts[SEND] = digest.counts.get(SEND, 0) + int(is_send.sum())
    delivered = len(places) - int(is_send.sum()) - int(is_open.sum())
    digest.counts[DELIVER] = digest.counts.get(DELIVER, 0) + delivered
    codes, tracks = _tracks(columns, places, is_send, info)
    order = np.argsort(codes, kind="stable")
    places, codes, is_open = places[order], codes[order], is_open[order]
    # An opened window is an empty stretch just after its offset; what is delivered extends it.
    first = columns["seqno"].to_numpy()[places] + is_open
    last = np.where(is_open, first - 1, columns["seqno2"].to_numpy()[places])
    idx = columns["idx"].to_numpy()[places]
    is_backward = (last < first) & ~is_open
    starts = np.ones(len(places), dtype=bool)
    starts[1:] = (codes[1:] != codes[:-1]) | (first[1:] != last[:-1] + 1)
    starts |= is_open | is_backward
    starts[1:] |= is_backward[:-1]
    begin = np.flatnonzero(starts)
    end = np.append(begin[1:], len(places)) - 1
    for code, *stretch in zip(
        codes[begin].tolist(),
        is_open[begin].tolist(),
        first[begin].tolist(),
        last[end].tolist(),
        idx[begin].tolist(),
        idx[end].tolist(),
        strict=True,
    ):
        known = digest.tracks.setdefault(tracks[code], [])
        if len(known) < STRETCHES_MAX:
            _append(known, Stretch(*stretch))
        else:
            digest.cut += 1


def _append(stretches: list[Stretch], later: Stretch) -> None:
    """Add what comes next in the order of idx, as a continuation where it is one."""
    if stretches and not later.is_opened and later.first <= later.last:
        earlier = stretches[-1]
        is_sound = earlier.is_opened or earlier.first <= earlier.last
        if is_sound and earlier.last + 1 == later.first:
            stretches[-1] = earlier._replace(last=later.last, last_idx=later.last_idx)
            return
    stretches.append(later)


def _tracks(
    columns: dict[str, pa.Array], places: NDArray[Any], is_sent: NDArray[Any], info: SegmentInfo
) -> tuple[NDArray[Any], dict[int, Track]]:
    """A small number for the track of each of these rows, and what the numbers stand for."""
    taken = pa.array(places)
    peer = columns["peer"].take(taken)
    inc = pc.dictionary_encode(columns["peer_inc"].take(taken))
    stream = pc.dictionary_encode(columns["stream"].take(taken))
    parts = [
        (is_sent.astype(np.int64), ["delivered", "sent"]),
        *(
            (column.indices.to_numpy().astype(np.int64), column.dictionary.to_pylist())
            for column in (peer, inc, stream)
        ),
    ]
    codes = np.zeros(len(places), dtype=np.int64)
    for part, values in parts:
        codes = codes * len(values) + part
    # Few tracks: sixteen bits are sorted by counting, in linear time.
    _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
    tracks = {}
    for code, at in enumerate(firsts.tolist()):
        track = Track(*(values[part[at]] for part, values in parts))
        if track.role == "sent":  # Whose sends these are need not be said in the row.
            track = track._replace(peer=info.node, peer_inc=info.inc)
        tracks[code] = track
    return codes.astype(np.uint16 if len(tracks) <= 0xFFFF else np.int64), tracks


def _fold_content(
    columns: dict[str, pa.Array], events: _Events, info: SegmentInfo, digest: Digest
) -> None:
    places = events.where(BLOCK)
    if not len(places):
        return
    digest.counts[BLOCK] = digest.counts.get(BLOCK, 0) + len(places)
    kind = columns["kind"].take(pa.array(places))
    names = kind.dictionary.to_pylist()
    is_sent = np.array([name == "sent" for name in names])[kind.indices.to_numpy()]
    codes, tracks = _tracks(columns, places, is_sent, info)
    block = columns["block"].to_numpy()[places]
    order = np.lexsort((block, codes))
    codes, block, places = codes[order], block[order], places[order]
    number = block.astype(np.uint64)
    hashes = columns["block_hash"].to_numpy()[places]
    last = columns["seqno2"].to_numpy()[places].astype(np.uint64)
    messages = columns["seqno2"].to_numpy()[places] - columns["seqno"].to_numpy()[places] + 1
    # The place is mixed in, so that two blocks cannot change places unseen, and so is the last
    # seqno: a block that a member's stop cut short is another block.
    mixed = hashes * (number * np.uint64(2) + np.uint64(1)) ^ last * np.uint64(0x9E3779B97F4A7C15)
    bits = np.uint64(1) << number % np.uint64(SPAN_BLOCKS)
    span = block // SPAN_BLOCKS
    starts = np.ones(len(places), dtype=bool)
    starts[1:] = (codes[1:] != codes[:-1]) | (span[1:] != span[:-1])
    begin = np.flatnonzero(starts)
    present = np.bitwise_or.reduceat(bits, begin)
    folded = np.bitwise_xor.reduceat(mixed, begin)
    for code, at, *found in zip(
        codes[begin].tolist(),
        span[begin].tolist(),
        present.tolist(),
        folded.tolist(),
        np.add.reduceat(messages, begin).tolist(),
        strict=True,
    ):
        _mix(digest.content.setdefault(tracks[code], {}), at, Span(*found))


def _mix(spans: dict[int, Span], at: int, found: Span) -> None:
    known = spans.get(at, NO_SPAN)
    spans[at] = Span(
        known.present | found.present,
        known.mixed ^ found.mixed,
        known.messages + found.messages,
    )


def _fold_views(columns: dict[str, pa.Array], events: _Events, digest: Digest) -> None:
    places = events.where(VIEW)
    if not len(places):
        return
    digest.counts[VIEW] = digest.counts.get(VIEW, 0) + len(places)
    taken = pa.array(places)
    names = ("idx", "view", "view_creator", "members")
    rows = zip(*(columns[name].take(taken).to_pylist() for name in names), strict=True)
    digest.views += [Installed.of(row) for row in rows]


def _fold_capacity(columns: dict[str, pa.Array], events: _Events, digest: Digest) -> None:
    places = events.where(WIN)
    if len(places) and not digest.capacity:
        taken = pa.array(places)
        is_send = pc.equal(columns["kind"].take(taken).cast(pa.string()), "send")
        digest.capacity = pc.max(columns["cap"].take(taken).filter(is_send)).as_py() or 0


def _fold_estates(columns: dict[str, pa.Array], events: _Events, digest: Digest) -> None:
    taken = pa.array(events.where(ESTATE))
    names = ("kind", "peer", "peer_inc", "idx")
    rows = zip(*(columns[name].take(taken).to_pylist() for name in names), strict=True)
    digest.resolved |= {(peer, inc): idx for kind, peer, inc, idx in rows if kind == RESOLVED}


# One member: its digests in order


@dataclass(slots=True)
class SegmentState:
    """A file, its footer and its digest."""

    path: str
    info: SegmentInfo
    digest: Digest


class MemberTrace:
    """All that is known of one member, merged in the order of idx."""

    def __init__(self, states: Sequence[SegmentState]) -> None:
        self.states = states
        self.holes: list[Hole] = []
        self.tracks: dict[Track, list[Stretch]] = {}
        self.content: dict[Track, dict[int, Span]] = {}
        self.views: list[Installed] = []
        self.resolved: dict[MemberKey, int] = {}
        due = 0
        for state in states:
            if state.info.first_idx > due:
                self.holes.append(Hole(due, state.info.first_idx - 1))
            self.holes += state.digest.holes
            due = state.info.last_idx + 1
            for track, stretches in state.digest.tracks.items():
                known = self.tracks.setdefault(track, [])
                for stretch in stretches:
                    _append(known, stretch)
            for track, spans in state.digest.content.items():
                for at, span in spans.items():
                    _mix(self.content.setdefault(track, {}), at, span)
            self.views += state.digest.views
            self.resolved |= state.digest.resolved
        self._hole_firsts = [hole.first for hole in self.holes]

    @property
    def member(self) -> MemberKey:
        info = self.states[0].info
        return info.node, info.inc

    @property
    def level(self) -> str:
        return self.states[0].info.level

    @property
    def capacity(self) -> int:
        return max(state.digest.capacity for state in self.states)

    @property
    def lost(self) -> int:
        return self.states[-1].info.lost

    @property
    def cut(self) -> int:
        """Stretches that were left out: there were too many."""
        return sum(state.digest.cut for state in self.states)

    @property
    def is_clean_stop(self) -> bool:
        return self.states[-1].info.is_last

    def has_hole(self, after_idx: int, before_idx: int) -> bool:
        """Are rows missing between these two?"""
        at = bisect_right(self._hole_firsts, after_idx)
        return at < len(self.holes) and self.holes[at].first < before_idx

    def missing_rows(self) -> int:
        return sum(hole.last - hole.first + 1 for hole in self.holes)
