"""The mergeable pieces that rules are made of: ranges, progress by mark, lives of members."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from ringcast.trace.rows import CRASH, PAUSE, RESUME, STOP, VIEW, split_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.trace.rows import MemberKey, Row

K = TypeVar("K")


class Progress:
    """A number that only grows, and the mark (a place in the run, or a time) of each rise.

    Marks come in order. Rises at one mark are one: where rows have no run-wide order (all marks
    are -1), only the last value is kept, and `at(-1)` is that.
    """

    __slots__ = ("marks", "rows", "values")

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.values: list[int] = []
        self.rows: list[Row] = []

    def rise(self, mark: int, value: int, row: Row) -> None:
        if self.values:
            if value <= self.values[-1]:
                return
            if mark == self.marks[-1]:
                self.values[-1] = value
                self.rows[-1] = row
                return
        self.marks.append(mark)
        self.values.append(value)
        self.rows.append(row)

    def at(self, mark: int) -> int:
        """The value at this mark; 0 before the first rise."""
        place = bisect_right(self.marks, mark)
        return self.values[place - 1] if place else 0

    def row_at(self, mark: int) -> Row | None:
        """The row that brought the value `at(mark)`."""
        place = bisect_right(self.marks, mark)
        return self.rows[place - 1] if place else None

    def reached(self, value: int) -> Row | None:
        """The row with which the value came to `value` or more."""
        place = bisect_left(self.values, value)
        return self.rows[place] if place < len(self.rows) else None

    def __iter__(self) -> Iterator[tuple[int, int, Row]]:
        return zip(self.marks, self.values, self.rows, strict=True)

    @property
    def value(self) -> int:
        return self.values[-1] if self.values else 0

    @property
    def row(self) -> Row | None:
        return self.rows[-1] if self.rows else None


NOWHERE = Progress()
"""The progress of whoever has made none. Never raised."""


def merge_progress(mine: dict[K, Progress], theirs: dict[K, Progress]) -> None:
    """Take in the progress of other keys, and the continuation of known ones."""
    for key, other in theirs.items():
        known = mine.setdefault(key, other)
        if known is not other:
            for mark, value, row in other:
                known.rise(mark, value, row)


class Ranges:
    """Disjoint ranges of seqnos, ascending, each with the row that last extended it."""

    __slots__ = ("firsts", "lasts", "rows")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.rows: list[Row] = []

    def add(self, first: int, last: int, row: Row) -> list[Row]:
        """Add first..last; return the rows of ranges that already had some of it."""
        if not self.lasts or first > self.lasts[-1] + 1:
            self.firsts.append(first)
            self.lasts.append(last)
            self.rows.append(row)
            return []
        if first == self.lasts[-1] + 1:
            self.lasts[-1] = last
            self.rows[-1] = row
            return []
        # Those that overlap or touch first..last become one range with it.
        start = bisect_left(self.lasts, first - 1)
        stop = bisect_right(self.firsts, last + 1)
        overlapped = [
            self.rows[at]
            for at in range(start, stop)
            if self.firsts[at] <= last and self.lasts[at] >= first
        ]
        if start < stop:
            first = min(first, self.firsts[start])
            last = max(last, self.lasts[stop - 1])
        self.firsts[start:stop] = [first]
        self.lasts[start:stop] = [last]
        self.rows[start:stop] = [row]
        return overlapped

    def __iter__(self) -> Iterator[tuple[int, int, Row]]:
        return zip(self.firsts, self.lasts, self.rows, strict=True)


class Lives:
    """Who lived to the end, and who saw which views: what liveness and lost tails depend on."""

    EVENTS = (CRASH, STOP, PAUSE, RESUME, VIEW)

    __slots__ = ("ended", "paused", "views")

    def __init__(self) -> None:
        self.ended: dict[MemberKey, Row] = {}
        self.paused: dict[MemberKey, bool] = {}
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        member = row.node, row.inc
        if row.event == VIEW:
            self.views[member].append(row)
        elif row.event in (CRASH, STOP):
            self.ended.setdefault(member, row)
        else:
            self.paused[member] = row.event == PAUSE

    def merge(self, other: Lives) -> None:
        self.ended = other.ended | self.ended
        self.paused |= other.paused
        for member, views in other.views.items():
            self.views[member] += views

    def is_live(self, member: MemberKey) -> bool:
        return member not in self.ended and not self.paused.get(member, False)

    def last_view(self, member: MemberKey) -> Row | None:
        views = self.views.get(member)
        return views[-1] if views else None

    def without_tail(self) -> set[MemberKey]:
        """Whose trace may be a prefix where members record for themselves: the dead and the
        excluded. What hangs on their missing rows is unknown, neither ok nor violated."""
        lost = {member for member, row in self.ended.items() if row.event == CRASH}
        for views in self.views.values():
            seen = {key for row in views for key in row.members}
            lost |= {split_key(key) for key in seen.difference(views[-1].members)}
        return lost
