"""One segment as a summary: a small state that says all the audit needs to know of its rows.

The size of a summary depends on how many origins there are and on what is wrong, not on how many
rows. Deliveries and sends fold into *stretches*: maximal ranges of consecutive seqnos in the order
of idx. A clean trace has one for each window; every further one begins at a gap, a repeat, a swap,
or where rows are missing from the trace. Content rules into one number for each span of 64 blocks,
with a bit for each block that is there: two sides with the same bits and the same number have the
same blocks.

Digests of segments that follow each other merge into one, which is no larger for it: executors hand
on one for each stretch of a member's trace that they have read, as if it were one large segment.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ringcast.rules.history import MARKS, continues
from ringcast.trace.rows import LISTS, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ringcast.trace.rows import MemberKey, OriginKey
    from ringcast.trace.segments import SegmentInfo

SPAN_BLOCKS = 64

ViewKey = tuple[str, int]
"""A view's creator and counter."""


class Track(NamedTuple):
    """One sequence of messages at one member: its sends on a stream, or its deliveries of one
    origin."""

    role: str
    peer: str
    peer_inc: int
    stream: int

    @property
    def is_sent(self) -> bool:
        return self.role == "sent"

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
NOT_ONE = Span(0, 0, -1)
"""In the place of a block that there is not one of: its rows tell."""


class Installed(NamedTuple):
    """A view at a member."""

    idx: int
    counter: int
    creator: str
    members: tuple[str, ...]
    sent: tuple[tuple[int, int], ...] = ()
    """The last that the member had sent by then, by stream; what it sent in earlier segments only
    is known once these are merged."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> Installed:
        idx, counter, creator, members, sent = values
        return cls(idx, counter, creator, tuple(members), tuple(map(tuple, sent)))

    @property
    def key(self) -> ViewKey:
        return self.creator, self.counter


class Purged(NamedTuple):
    """A member had purged its own messages up to `through`, the last time it did in the view of the
    row before."""

    idx: int
    through: int


class Hole(NamedTuple):
    """Rows that the trace lacks, by idx."""

    first: int
    last: int


@dataclass(slots=True)
class SegmentSummary:
    """What one segment says, or several that follow each other. JSON on its way from the
    executors."""

    holes: list[Hole] = field(default_factory=list)
    tracks: dict[Track, list[Stretch]] = field(default_factory=dict)
    content: dict[Track, dict[int, Span]] = field(default_factory=dict)
    blocks: dict[Track, dict[int, Span]] = field(default_factory=dict)
    """The same block by block, of tracks with few: a slow sender's span is in many segments, which
    need not all be read again to compare two of its blocks."""
    views: list[Installed] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by event, of the events that are judged."""
    cut: int = 0
    """Stretches left out."""
    capacity: int = 0
    """Of the member's send windows; 0: no row tells."""
    history: list[Row] = field(default_factory=list)
    """Rows of views, and of the runs in them, condensed."""
    purged: dict[int, list[Purged]] = field(default_factory=dict)
    """By stream, one for each view."""
    caught_up: int = -1
    """The idx of the row with which a joiner had its state; -1: none tells."""
    is_behind: bool = False
    """It was gone before its application got what it had put aside."""

    def to_json(self) -> str:
        values = {item: getattr(self, item) for item in self.__slots__}
        for name in ("content", "blocks"):
            values[name] = [[track, list(spans.items())] for track, spans in values[name].items()]
        for name in ("tracks", "purged"):
            values[name] = list(values[name].items())
        values["history"] = [[getattr(row, name) for name in HISTORY] for row in self.history]
        values["member"] = [self.history[0].node, self.history[0].inc] if self.history else ["", 0]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SegmentSummary:
        values = json.loads(text)
        values["holes"] = [Hole(*hole) for hole in values["holes"]]
        values["tracks"] = {
            Track(*track): [Stretch(*stretch) for stretch in stretches]
            for track, stretches in values["tracks"]
        }
        for name in ("content", "blocks"):
            values[name] = {
                Track(*track): {number: Span(*span) for number, span in spans}
                for track, spans in values[name]
            }
        values["views"] = [Installed.of(view) for view in values["views"]]
        node, inc = values.pop("member")
        values["history"] = [history_row(node, inc, row) for row in values["history"]]
        values["purged"] = {
            stream: [Purged(*mark) for mark in marks] for stream, marks in values["purged"]
        }
        return cls(**values)

    def extend(self, later: SegmentSummary) -> None:
        """Take in what follows in the order of idx."""
        sent = {track.stream: runs[-1].last for track, runs in self.tracks.items() if track.is_sent}
        self.views += [
            view._replace(sent=tuple(sorted((sent | dict(view.sent)).items())))
            for view in later.views
        ]
        self.holes += later.holes
        for track, stretches in later.tracks.items():
            known = self.tracks.setdefault(track, [])
            for stretch in stretches:
                append_stretch(known, stretch)
        for track, spans in later.content.items():
            for at, span in spans.items():
                mix_span(self, track, at, span)
        for track, blocks in later.blocks.items():
            for number, block in blocks.items():
                add_block(self, track, number, block)
        for event, count in later.counts.items():
            self.counts[event] = self.counts.get(event, 0) + count
        self.cut += later.cut
        self.capacity = max(self.capacity, later.capacity)
        extend_history(self.history, later.history)
        for stream, marks in later.purged.items():
            for mark in marks:
                self.add_purged(stream, mark)
        self.caught_up = max(self.caught_up, later.caught_up)
        self.is_behind |= later.is_behind

    def add_purged(self, stream: int, mark: Purged) -> None:
        """The last one of each view counts."""
        marks = self.purged.setdefault(stream, [])
        if marks and not self._is_view_between(marks[-1], mark):
            marks.pop()
        marks.append(mark)

    def _is_view_between(self, one: Purged, two: Purged) -> bool:
        at = bisect_left(self.views, two.idx, key=lambda view: view.idx)
        return at > 0 and self.views[at - 1].idx > one.idx


HISTORY = (
    *("event", "idx", "peer", "peer_inc", "stream", "seqno", "seqno2"),
    *("view", "view_creator", "members", "part", "cut"),
)
"""What the history needs of a row."""


def history_row(node: str, inc: int, values: Sequence[Any]) -> Row:
    """A row from these columns of it."""
    event, idx, *others = values
    columns = dict(zip(HISTORY[2:], others, strict=True))
    columns |= {name: tuple(columns[name]) for name in LISTS}
    return Row(event, node, inc, idx, **columns)


def extend_history(history: list[Row], later: Sequence[Row]) -> None:
    """Add what follows; runs go on that no view change parts."""
    last: dict[tuple[str, OriginKey], int] = {}
    for at in range(len(history) - 1, -1, -1):
        if history[at].event in MARKS:
            break
        last.setdefault((history[at].event, history[at].origin), at)
    for number, row in enumerate(later):
        if row.event in MARKS:
            history += later[number:]
            return
        run = row.event, row.origin
        at = last.get(run, -1)
        if at >= 0 and continues(history[at], row):
            history[at] = history[at]._replace(seqno2=row.seqno2)
        else:
            last[run] = len(history)
            history.append(row)


def append_stretch(stretches: list[Stretch], later: Stretch) -> None:
    """Add what comes next in the order of idx, as a continuation where it is one."""
    if stretches and not later.is_opened and later.first <= later.last:
        earlier = stretches[-1]
        is_sound = earlier.is_opened or earlier.first <= earlier.last
        if is_sound and earlier.last + 1 == later.first:
            stretches[-1] = earlier._replace(last=later.last, last_idx=later.last_idx)
            return
    stretches.append(later)


def mix_span(into: SegmentSummary, track: Track, at: int, found: Span) -> None:
    spans = into.content.setdefault(track, {})
    known = spans.get(at, NO_SPAN)
    spans[at] = Span(
        known.present | found.present,
        known.mixed ^ found.mixed,
        known.messages + found.messages,
    )
    for number in block_numbers(at, known.present & found.present):
        into.blocks.setdefault(track, {})[number] = NOT_ONE


def add_block(into: SegmentSummary, track: Track, number: int, found: Span) -> None:
    blocks = into.blocks.setdefault(track, {})
    blocks[number] = NOT_ONE if number in blocks else found


def block_numbers(at: int, present: int) -> list[int]:
    """Of the blocks that are present in a span."""
    return [at * SPAN_BLOCKS + bit for bit in range(SPAN_BLOCKS) if present >> bit & 1]


# One member: its summaries in order


@dataclass(slots=True)
class SegmentState:
    """A file, its footer and its summary; or several that follow each other, as if they were
    one."""

    paths: tuple[str, ...]
    info: SegmentInfo
    summary: SegmentSummary

    @property
    def path(self) -> str:
        """Of the first."""
        return self.paths[0]

    @property
    def member(self) -> MemberKey:
        return self.info.node, self.info.inc

    def is_same_as(self, other: SegmentState) -> bool:
        """A copy: it says the same."""
        return (self.info, self.summary) == (other.info, other.summary)

    def is_before(self, later: SegmentState) -> bool:
        """The other one goes on where this one ends."""
        return (
            self.info.last_idx + 1 == later.info.first_idx
            and not self.info.is_last
            and self.info.recording == later.info.recording
        )

    def extend(self, later: SegmentState) -> None:
        self.paths += later.paths
        self.summary.extend(later.summary)
        self.info = replace(
            later.info,
            first_idx=self.info.first_idx,
            rows=self.info.rows + later.info.rows,
            facts=later.info.facts or self.info.facts,
        )


def join_states(states: Iterable[SegmentState]) -> list[SegmentState]:
    """Those that follow each other become one; a copy of them becomes another. None may be used
    afterwards."""
    ends: dict[tuple[str, MemberKey, int], list[SegmentState]] = {}
    joined: list[SegmentState] = []
    for state in sorted(states, key=lambda state: (state.info.first_idx, state.path)):
        info = state.info
        earlier = ends.get((info.run_id, state.member, info.first_idx - 1), [])
        found = next((each for each in earlier if each.is_before(state)), None)
        if found is None:
            joined.append(found := state)
        else:
            earlier.remove(found)
            found.extend(state)
        ends.setdefault((info.run_id, state.member, info.last_idx), []).append(found)
    return joined


class MemberTrace:
    """All that is known of one member, merged in the order of idx."""

    def __init__(self, states: Sequence[SegmentState]) -> None:
        self.states = states
        self.summary = SegmentSummary()
        due = 0
        for state in states:
            if state.info.first_idx > due:
                self.summary.holes.append(Hole(due, state.info.first_idx - 1))
            self.summary.extend(state.summary)
            due = state.info.last_idx + 1
        self.holes = self.summary.holes
        self.tracks = self.summary.tracks
        self.content = self.summary.content
        self.blocks = self.summary.blocks
        self.views = self.summary.views
        self.history = self.summary.history
        self.purged = self.summary.purged
        self._hole_firsts = [hole.first for hole in self.holes]

    @property
    def member(self) -> MemberKey:
        return self.states[0].member

    @property
    def level(self) -> str:
        return self.states[0].info.level

    @property
    def capacity(self) -> int:
        """Of its send windows, as its footers say, or its rows; 0: neither does."""
        return int(self.settings.get("capacity", 0)) or self.summary.capacity

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.states[0].info.settings

    @property
    def purge(self) -> str:
        """How its group learns what everybody has; empty: nobody knows."""
        return str(self.settings.get("purge", ""))

    @property
    def lost(self) -> int:
        return self.states[-1].info.lost

    @property
    def cut(self) -> int:
        """Stretches that were left out: there were too many."""
        return self.summary.cut

    @property
    def is_clean_stop(self) -> bool:
        return self.states[-1].info.is_last

    @property
    def is_whole(self) -> bool:
        """Every row is there, the last one too."""
        return self.is_clean_stop and not (self.holes or self.lost or self.cut)

    @cached_property
    def places(self) -> dict[ViewKey, int]:
        """Where each view stands among this member's."""
        return {view.key: at for at, view in enumerate(self.views)}

    @cached_property
    def presence(self) -> dict[str, list[range]]:
        """In which of these each member was, by its key."""
        found: dict[str, list[range]] = {}
        for at, view in enumerate(self.views):
            for key in view.members:
                places = found.setdefault(key, [])
                if places and places[-1].stop == at:
                    places[-1] = range(places[-1].start, at + 1)
                else:
                    places.append(range(at, at + 1))
        return found

    def has_hole(self, after_idx: int, before_idx: int) -> bool:
        """Are rows missing between these two?"""
        at = bisect_right(self._hole_firsts, after_idx)
        return at < len(self.holes) and self.holes[at].first < before_idx

    def missing_rows(self) -> int:
        return sum(hole.last - hole.first + 1 for hole in self.holes)

    def view_of(self, mark: Purged) -> Installed | None:
        """In which it was purged; None: no row of it is here."""
        at = bisect_left(self.views, mark.idx, key=lambda view: view.idx)
        return self.views[at - 1] if at else None


def equal_blocks(
    sender: MemberTrace, receiver: MemberTrace, track: Track, at: int, present: int
) -> list[Span] | None:
    """Those of the `present` blocks of a span that both have alike; None if one differs or is not
    known by itself: then their rows tell. One that a stop cut short on one side is another block,
    and left out."""
    sent = sender.blocks.get(track._replace(role="sent"), {})
    delivered = receiver.blocks.get(track, {})
    found = []
    for number in block_numbers(at, present):
        here, there = delivered.get(number, NOT_ONE), sent.get(number, NOT_ONE)
        if NOT_ONE in (here, there):
            return None
        if here == there:
            found.append(here)
        elif here.messages == there.messages:
            return None
    return found
