"""Which messages there are: for each origin, ranges of seqnos.

Fragments count as held where the archive took them: their seqnos bear no message, and nothing is
missing there.

A reader's position is a digest, the last seqno it has read of each origin, and the gaps it passed
over on its last step. As JSON it is an object with one number for each origin, {"web-1#17/fifo":
4711, …}, sorted, so that equal positions have equal texts. Gaps stand beside them under "gaps" and
only in the position that ends the step: with them a step means the same messages for ever, whatever
files appear later. For the same reason the first step of a reader that does not begin with the
first message says in its end, under "from", where it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ringcast.errors import UsageError
from ringcast.model import INCARNATION_MAX, SEQNO_MAX, Stream
from ringcast.trace.rows import DELIVER, ORDER, SEEN, OriginKey, Row

STREAMS = {int(stream): stream.name.lower() for stream in Stream}
"""What a stream is called where people read it."""
KEPT = (DELIVER, ORDER)
"""Rows that have messages, in an archive."""
_GAPS = "gaps"
_FROM = "from"


class Range(NamedTuple):
    """Seqnos, both inclusive."""

    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    def within(self, other: Range) -> Range:
        """What is in both; its length is not positive if there is nothing."""
        return Range(max(self.first, other.first), min(self.last, other.last))


ALL = Range(-(2**63), 2**63 - 1)
"""Leaves no number out."""


class Holdings:
    """For each origin what is held of it, in the order in which it was taken."""

    def __init__(self) -> None:
        self.ranges: dict[OriginKey, list[Range]] = {}

    def __iter__(self) -> Iterator[tuple[OriginKey, Range]]:
        for origin, ranges in self.ranges.items():
            for held in ranges:
                yield origin, held

    def add(self, rows: Sequence[Row]) -> None:
        """What these rows deliver; total messages by their numbers. What continues the last range
        makes it longer."""
        for row in rows:
            if row.event in KEPT and row.kind != SEEN:
                self.add_range(row.origin, Range(row.seqno, row.seqno2))

    def add_range(self, origin: OriginKey, held: Range) -> None:
        ranges = self.ranges.setdefault(origin, [])
        if ranges and ranges[-1].last + 1 == held.first:
            ranges[-1] = Range(ranges[-1].first, held.last)
        else:
            ranges.append(held)

    def to_values(self) -> list[list[str | int]]:
        """As JSON has it."""
        return [[*origin, *held] for origin, held in self]

    @classmethod
    def from_values(cls, values: Iterable[Any]) -> Holdings:
        """ValueError, TypeError: this is not what `to_values` returns."""
        holdings = cls()
        for name, incarnation, stream, first, last in values:
            if not (isinstance(name, str) and 0 <= incarnation <= INCARNATION_MAX):
                raise ValueError("no sender")
            if stream not in STREAMS or not 1 <= first <= last <= SEQNO_MAX:
                raise ValueError("no range of messages")
            holdings.add_range((name, incarnation, stream), Range(first, last))
        return holdings


def origin_text(origin: OriginKey) -> str:
    """An origin as a key in JSON, and for people: name#incarnation/stream."""
    name, incarnation, stream = origin
    return f"{name}#{incarnation}/{STREAMS[stream]}"


def parse_origin(text: str) -> OriginKey:
    """What `origin_text` wrote; ValueError or LookupError otherwise. A name may be anything."""
    member, _, stream = text.rpartition("/")
    name, _, incarnation = member.rpartition("#")
    return name, int(incarnation), int(Stream[stream.upper()])


@dataclass(frozen=True, slots=True)
class Position:
    """Behind these messages."""

    digest: dict[OriginKey, int] = field(default_factory=dict)
    gaps: dict[OriginKey, list[Range]] = field(default_factory=dict)
    start: dict[OriginKey, int] | None = None
    """Where the reader began, if it has made one step at most, and did not begin at the first
    message. Before that step it is the digest."""

    def to_dict(self) -> dict[str, object]:
        position: dict[str, object] = dict(_digest_to_values(self.digest))
        if self.gaps:
            gaps = {origin_text(origin): list(map(list, gap)) for origin, gap in self.gaps.items()}
            position[_GAPS] = dict(sorted(gaps.items()))
        if self.start is not None:
            position[_FROM] = _digest_to_values(self.start)
        return position

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        """UsageError: this is not a position in an archive."""
        try:
            beside = {_GAPS, _FROM}
            gaps, start = values.get(_GAPS, {}), values.get(_FROM)
            return cls(
                _digest_of({key: values[key] for key in values if key not in beside}),
                {
                    parse_origin(key): [Range(_seqno(first), _seqno(last)) for first, last in some]
                    for key, some in dict(gaps).items()
                },
                None if start is None else _digest_of(dict(start)),
            )
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"not a position in an archive: {str(values)[:100]}") from error


def _digest_to_values(digest: Mapping[OriginKey, int]) -> dict[str, int]:
    return dict(sorted((origin_text(origin), seqno) for origin, seqno in digest.items()))


def _digest_of(values: Mapping[str, Any]) -> dict[OriginKey, int]:
    return {parse_origin(key): _seqno(value) for key, value in values.items()}


def _seqno(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= SEQNO_MAX:
        raise ValueError(f"{value!r} is not a seqno")
    return value
