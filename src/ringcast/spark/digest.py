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

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ringcast.trace.rows import MemberKey, OriginKey
    from ringcast.trace.segments import SegmentInfo

SPAN_BLOCKS = 64


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
NOT_ONE = Span(0, 0, -1)
"""In the place of a block that there is not one of: its rows tell."""


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
    resolved: dict[MemberKey, int] = field(default_factory=dict)
    """Departed senders of whom nothing is left to be delivered, and the idx of the row."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "holes": self.holes,
                "tracks": list(self.tracks.items()),
                "content": [[track, list(spans.items())] for track, spans in self.content.items()],
                "blocks": [[track, list(spans.items())] for track, spans in self.blocks.items()],
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
            {
                Track(*track): {number: Span(*span) for number, span in spans}
                for track, spans in values.get("blocks", ())  # Older ones were kept without.
            },
            [Installed.of(view) for view in values["views"]],
            values["counts"],
            values["cut"],
            values["capacity"],
            {(name, inc): idx for (name, inc), idx in values["resolved"]},
        )


def append_stretch(stretches: list[Stretch], later: Stretch) -> None:
    """Add what comes next in the order of idx, as a continuation where it is one."""
    if stretches and not later.is_opened and later.first <= later.last:
        earlier = stretches[-1]
        is_sound = earlier.is_opened or earlier.first <= earlier.last
        if is_sound and earlier.last + 1 == later.first:
            stretches[-1] = earlier._replace(last=later.last, last_idx=later.last_idx)
            return
    stretches.append(later)


def mix_span(into: Digest | MemberTrace, track: Track, at: int, found: Span) -> None:
    spans = into.content.setdefault(track, {})
    known = spans.get(at, NO_SPAN)
    spans[at] = Span(
        known.present | found.present,
        known.mixed ^ found.mixed,
        known.messages + found.messages,
    )
    for number in _numbers(at, known.present & found.present):
        into.blocks.setdefault(track, {})[number] = NOT_ONE


def add_block(into: Digest | MemberTrace, track: Track, number: int, found: Span) -> None:
    blocks = into.blocks.setdefault(track, {})
    blocks[number] = NOT_ONE if number in blocks else found


def _numbers(at: int, present: int) -> list[int]:
    """Of the blocks that are present in a span."""
    return [at * SPAN_BLOCKS + bit for bit in range(SPAN_BLOCKS) if present >> bit & 1]


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
        self.blocks: dict[Track, dict[int, Span]] = {}
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
                    append_stretch(known, stretch)
            for track, spans in state.digest.content.items():
                for at, span in spans.items():
                    mix_span(self, track, at, span)
            for track, blocks in state.digest.blocks.items():
                for number, block in blocks.items():
                    add_block(self, track, number, block)
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


def equal_blocks(
    sender: MemberTrace, receiver: MemberTrace, track: Track, at: int, present: int
) -> list[Span] | None:
    """Those of the `present` blocks of a span that both have alike; None if one differs or is not
    known by itself: then their rows tell. One that a stop cut short on one side is another block,
    and left out."""
    sent = sender.blocks.get(track._replace(role="sent"), {})
    delivered = receiver.blocks.get(track, {})
    found = []
    for number in _numbers(at, present):
        here, there = delivered.get(number, NOT_ONE), sent.get(number, NOT_ONE)
        if NOT_ONE in (here, there):
            return None
        if here == there:
            found.append(here)
        elif here.messages == there.messages:
            return None
    return found
