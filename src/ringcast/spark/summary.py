"""One segment as a summary: a small state that says all the audit needs to know of its rows.

The size of a summary depends on how many origins and views there are and on what is wrong, not on
how many rows. What tells of views and of messages to the group is *condensed*, as the rules do it
(`ringcast.rules.history`): runs of one origin that continue each other in one view are one row. A
clean trace has one for each origin and view; every further one begins at a gap, a repeat, a swap,
or where rows are missing from the trace. Content rules into one number for each span of 64 blocks,
with a bit for each block that is there: two sides with the same bits and the same number have the
same blocks.

Digests of segments that follow each other merge into one, which is no larger for it: executors hand
on one for each stretch of a member's trace that they have read, as if it were one large segment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.rules.history import TAKEN, Condensed
from ringcast.trace.rows import DELIVER, LISTS, SEND, VIEW, MemberKey, OriginKey, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ringcast.trace.footer import SegmentInfo

SPAN_BLOCKS = 64

KEPT = (
    *("event", "idx", "peer", "peer_inc", "stream", "seqno", "seqno2", "view", "view_creator"),
    *("detail", "size", "low", *LISTS),
)
"""Columns of condensed rows. Only rows about views have lists, and positions in `low`. Of messages
`size` is how many whole ones there are; the rest are fragments."""

HOLE = "hole"
"""In the place of rows that the trace lacks: those with idx `seqno`..`seqno2`."""
CUT = "cut"
"""Runs are left out from here on: there were too many."""

ROLES = {SEND: "sent", DELIVER: "delivered", TAKEN: "taken"}

BUCKET_POSITIONS = 4096


class Track(NamedTuple):
    """One sequence of messages at one member: its sends on a stream, its deliveries of one origin,
    or the total messages of one that it takes."""

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


class Span(NamedTuple):
    """The content of up to 64 blocks: which there are, one number for all, how many messages."""

    present: int
    mixed: int
    messages: int


NO_SPAN = Span(0, 0, 0)
NOT_ONE = Span(0, 0, -1)
"""In the place of a block that there is not one of: its rows tell."""


class Bucket(NamedTuple):
    """Positions of one view: how many of them a member took, one number for what stands there, and
    between which rows."""

    positions: int
    mixed: int
    first_idx: int
    last_idx: int

    def plus(self, other: Bucket) -> Bucket:
        mixed = (self.mixed + other.mixed) % 2**64
        first, last = min(self.first_idx, other.first_idx), max(self.last_idx, other.last_idx)
        return Bucket(self.positions + other.positions, mixed, first, last)


class Purged(NamedTuple):
    """A member had purged its own messages up to `through`, the last time it did in a view."""

    idx: int
    through: int


@dataclass(slots=True)
class SegmentSummary:
    """What one segment says, or several that follow each other. JSON where it is kept."""

    condensed: Condensed = field(default_factory=Condensed)
    content: dict[Track, dict[int, Span]] = field(default_factory=dict)
    blocks: dict[Track, dict[int, Span]] = field(default_factory=dict)
    """The same block by block, of tracks with few: a slow sender's span is in many segments, which
    need not all be read again to compare two of its blocks."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by event, of the events that are judged."""
    cut: int = 0
    """Runs left out."""
    capacity: int = 0
    """Of the member's send windows; 0: no row tells."""
    purged: dict[tuple[int, int], Purged] = field(default_factory=dict)
    """By stream, and by the idx of the view's row, or of a hole since: then nobody knows the view.
    -1: either is in an earlier segment."""
    orders: dict[tuple[int, str, int], Bucket] = field(default_factory=dict)
    """What was taken in each view, by its counter, its maker, and the number of the bucket."""

    @property
    def rows(self) -> list[Row]:
        """Condensed, in the order of idx."""
        return next(iter(self.condensed.rows.values()), [])

    def to_json(self) -> str:
        values = {item: getattr(self, item) for item in self.__slots__}
        values["condensed"] = [_values(row) for row in self.rows]
        for name in ("content", "blocks"):
            values[name] = [[track, list(spans.items())] for track, spans in values[name].items()]
        for name in ("purged", "orders"):
            values[name] = list(values[name].items())
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, info: SegmentInfo) -> SegmentSummary:
        values = json.loads(text)
        condensed = Condensed()
        for row in values["condensed"]:
            condensed.feed(condensed_row(info, row))
        values["condensed"] = condensed
        for name in ("content", "blocks"):
            values[name] = {
                Track(*track): {number: Span(*span) for number, span in spans}
                for track, spans in values[name]
            }
        values["purged"] = {tuple(key): Purged(*mark) for key, mark in values["purged"]}
        orders = values["orders"]
        values["orders"] = {tuple(key): Bucket(*bucket) for key, bucket in orders}
        return cls(**values)

    def extend(self, later: SegmentSummary) -> None:
        """Take in what follows in the order of idx."""
        last = next((row.idx for row in reversed(self.rows) if row.event in (VIEW, HOLE)), -1)
        for (stream, idx), mark in later.purged.items():
            self.purged[stream, last if idx < 0 else idx] = mark
        for row in later.rows:
            self.condensed.feed(row)
        for track, spans in later.content.items():
            for at, span in spans.items():
                self.mix_span(track, at, span)
        for track, blocks in later.blocks.items():
            for number, block in blocks.items():
                self.add_block(track, number, block)
        for key, bucket in later.orders.items():
            self.add_bucket(key, bucket)
        for event, count in later.counts.items():
            self.counts[event] = self.counts.get(event, 0) + count
        self.cut += later.cut
        self.capacity = max(self.capacity, later.capacity)

    def mix_span(self, track: Track, at: int, found: Span) -> None:
        spans = self.content.setdefault(track, {})
        known = spans.get(at, NO_SPAN)
        messages = known.messages + found.messages
        spans[at] = Span(known.present | found.present, known.mixed ^ found.mixed, messages)
        for number in block_numbers(at, known.present & found.present):
            self.blocks.setdefault(track, {})[number] = NOT_ONE

    def add_bucket(self, key: tuple[int, str, int], found: Bucket) -> None:
        known = self.orders.get(key)
        self.orders[key] = found if known is None else known.plus(found)

    def add_block(self, track: Track, number: int, found: Span) -> None:
        blocks = self.blocks.setdefault(track, {})
        blocks[number] = NOT_ONE if number in blocks else found


def condensed_row(info: SegmentInfo, values: Sequence[Any]) -> Row:
    """From its values of `KEPT`; lists may be left out."""
    columns: dict[str, Any] = dict(zip(KEPT, values, strict=False))
    columns |= {name: tuple(columns.get(name, ())) for name in LISTS}
    return Row(node=info.node, inc=info.inc, **columns)


def _values(row: Row) -> list[Any]:
    """As JSON has a condensed row."""
    values = [getattr(row, name) for name in KEPT]
    return values if any(getattr(row, name) for name in LISTS) else values[: -len(LISTS)]


def hole(info: SegmentInfo, first: int, last: int) -> Row:
    return Row(HOLE, info.node, info.inc, first, seqno=first, seqno2=last)


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
        return (self.info, self.summary.to_json()) == (other.info, other.summary.to_json())

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
                self.summary.condensed.feed(hole(state.info, due, state.info.first_idx - 1))
            self.summary.extend(state.summary)
            due = state.info.last_idx + 1
        self.rows = self.summary.rows
        self.holes = [row for row in self.rows if row.event == HOLE]
        self.content = self.summary.content
        self.blocks = self.summary.blocks

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
    def block_messages(self) -> int:
        """How many messages it hashes together; 0: nobody knows."""
        return int(self.settings.get("block_messages", 0))

    @property
    def is_clean_stop(self) -> bool:
        return self.states[-1].info.is_last

    @property
    def is_whole(self) -> bool:
        """Every row is there, the last one too."""
        return self.is_clean_stop and not (self.holes or self.lost or self.summary.cut)

    @cached_property
    def views(self) -> list[Row]:
        return [row for row in self.rows if row.event == VIEW]

    @cached_property
    def runs(self) -> dict[Track, list[Row]]:
        """What it sent on each stream, and delivered of each origin."""
        found: dict[Track, list[Row]] = {}
        for row in self.rows:
            if row.event in ROLES:
                found.setdefault(Track(ROLES[row.event], *row.origin), []).append(row)
        return found

    @cached_property
    def after_holes(self) -> set[int]:
        """Runs before which others of their track may be missing, by idx."""
        found: set[int] = set()
        last: dict[Track, int] = {}
        hole_idx = -1
        for row in self.rows:
            if row.event == HOLE:
                hole_idx = row.idx
            elif row.event in ROLES:
                track = Track(ROLES[row.event], *row.origin)
                if last.get(track, -1) < hole_idx:
                    found.add(row.idx)
                last[track] = row.idx
        return found

    @cached_property
    def sure_rows(self) -> list[Row]:
        """Up to the first that is missing: what they show is so, whatever came after them."""
        return list(takewhile(lambda row: row.event not in (HOLE, CUT), self.rows))

    def missing_rows(self) -> int:
        return sum(row.seqno2 - row.seqno + 1 for row in self.holes)


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
