"""What rules judge: a run's rows in order, and what follows from them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeVar

from ringcast.rules.history import Condensed, History
from ringcast.rules.instants import EVENTS, instants
from ringcast.trace import rows as trace
from ringcast.trace.rows import Facts, MemberKey, Row

K = TypeVar("K")
T = TypeVar("T")


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


def progress(
    rows: Iterable[Row],
    key: Callable[[Row], K],
    mark: Callable[[Row], int] = attrgetter("run_idx"),
    value: Callable[[Row], int] = attrgetter("seqno2"),
) -> dict[K, Progress]:
    """How far these rows have come, for each key."""
    found: defaultdict[K, Progress] = defaultdict(Progress)
    for row in rows:
        found[key(row)].rise(mark(row), value(row), row)
    return found


def by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """These, for each key."""
    found: defaultdict[K, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


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

    def covers(self, first: int, last: int) -> bool:
        """Whether all of these are among them."""
        at = bisect_left(self.lasts, last)
        return at < len(self.firsts) and self.firsts[at] <= first

    def __iter__(self) -> Iterator[tuple[int, int, Row]]:
        return zip(self.firsts, self.lasts, self.rows, strict=True)


class Lives:
    """Who lived to the end, and who saw which views: what liveness and lost tails depend on."""

    EVENTS = (trace.CRASH, trace.STOP, trace.PAUSE, trace.RESUME, trace.VIEW)

    __slots__ = ("ended", "paused", "views")

    def __init__(self, rows: Iterable[Row]) -> None:
        self.ended: dict[MemberKey, Row] = {}
        self.paused: dict[MemberKey, bool] = {}
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)
        for row in rows:
            member = row.key
            if row.event == trace.VIEW:
                self.views[member].append(row)
            elif row.event in (trace.CRASH, trace.STOP):
                self.ended.setdefault(member, row)
            else:
                self.paused[member] = row.event == trace.PAUSE

    def is_live(self, member: MemberKey) -> bool:
        return member not in self.ended and not self.paused.get(member, False)

    def last_view(self, member: MemberKey) -> Row | None:
        views = self.views.get(member)
        return views[-1] if views else None

    def without_tail(self) -> set[MemberKey]:
        """Whose trace may be a prefix where members record for themselves: the dead and the
        excluded. What hangs on their missing rows is unknown, neither ok nor violated."""
        lost = {member for member, row in self.ended.items() if row.event == trace.CRASH}
        for views in self.views.values():
            seen = {key for row in views for key in row.members}
            lost |= {trace.split_key(key) for key in seen.difference(views[-1].members)}
        return lost


class Phases:
    """When the network was calm: before the faults, and from the healing on."""

    __slots__ = ("end", "heal", "safety")

    def __init__(self, rows: Iterable[Row]) -> None:
        last = {row.kind: row for row in rows}
        self.safety, self.heal, self.end = map(last.get, ("safety", "heal", "end"))

    def calm_since(self, begun_ns: int, end_ns: int) -> int | None:
        """From when on something that took so long was not disturbed; None: it was to the end."""
        if self.safety is None or end_ns <= self.safety.mono_ns:
            return begun_ns
        if self.heal is not None and end_ns >= self.heal.mono_ns:
            return max(begun_ns, self.heal.mono_ns)
        return None


class Frozen(NamedTuple):
    """From when to when one member was frozen."""

    promised: tuple[Row, ...]  # the proposals that held it, at least one
    end: Row | None  # with which it ended; None: it has not
    before: Row | None  # the view that it was in

    @property
    def first(self) -> Row:
        return self.promised[0]

    @property
    def last(self) -> Row:
        return self.promised[-1]

    def asked(self, since_ns: int) -> set[str]:
        """Whose proposal it has promised by then, and the members of those since."""
        later = {key for row in self.promised if row.mono_ns >= since_ns for key in row.members}
        by_then = [row.view_creator for row in self.promised if row.mono_ns < since_ns]
        return later.union(by_then[-1:])


class Freezes:
    """When members were frozen: senders are held then, and messages wait for the next view."""

    EVENTS = (trace.FREEZE, trace.VIEW, trace.STOP, trace.CRASH)

    __slots__ = ("rows",)

    def __init__(self, rows: dict[MemberKey, list[Row]]) -> None:
        self.rows = rows

    def of(self, member: MemberKey) -> Iterator[Frozen]:
        frozen: Frozen | None = None
        before: Row | None = None
        for row in self.rows.get(member, []):
            if row.event == trace.FREEZE:
                promised = () if frozen is None else frozen.promised
                frozen = Frozen((*promised, row), None, before)
                continue
            if frozen is not None:
                yield frozen._replace(end=row)
                frozen = None
            if row.event == trace.VIEW:
                before = row
        if frozen is not None:
            yield frozen

    def deaths(self, frozen: Frozen, since_ns: int, until_ns: int) -> int:
        """How many members have crashed or left then; or before that, if they were asked all the
        same: only now they are waited for."""
        asked = frozen.asked(since_ns)
        return sum(
            (row.member in asked or row.mono_ns >= since_ns) and row.mono_ns <= until_ns
            for rows in self.rows.values()
            for row in rows
            if row.event in (trace.CRASH, trace.STOP)
        )

    def held_ns(self, members: Iterable[MemberKey], since_ns: int, until_ns: int) -> int:
        """For how long some of these were frozen meanwhile."""
        spans = sorted(
            (frozen.first.mono_ns, until_ns if frozen.end is None else frozen.end.mono_ns)
            for member in members
            for frozen in self.of(member)
        )
        held_ns = 0
        for start_ns, end_ns in spans:
            start_ns, end_ns = max(start_ns, since_ns), min(end_ns, until_ns)
            if end_ns > start_ns:
                held_ns += end_ns - start_ns
                since_ns = end_ns
        return held_ns


class Run:
    """One run: its rows, in its order or in that of each member, and its facts."""

    def __init__(
        self, rows: Iterable[Row], facts: Facts, unrecorded: frozenset[str] = frozenset()
    ) -> None:
        self.facts = facts
        self.unrecorded = unrecorded
        """Member keys of those whose rows are not all there: nothing follows from what is not among
        them."""
        self._rows = list(rows)
        self._places = by(range(len(self._rows)), lambda place: self._rows[place].event)
        self._of: dict[tuple[str, ...], list[Row]] = {}

    def rows(self, *events: str) -> list[Row]:
        """Those of these events."""
        if events not in self._of:
            places = (self._places.get(event, ()) for event in set(events))
            self._of[events] = [self._rows[place] for place in sorted(chain(*places))]
        return self._of[events]

    def by(self, key: Callable[[Row], K], *events: str) -> dict[K, list[Row]]:
        return by(self.rows(*events), key)

    def until_ns(self, end: Row | None) -> int:
        """When something ended; None: it lasts."""
        return self.facts.end_ns if end is None else end.mono_ns

    def waited_ns(self, since_ns: int, end: Row | None) -> int:
        return max(0, self.until_ns(end) - since_ns)

    def by_member(self, *events: str) -> dict[MemberKey, list[Row]]:
        return self.by(attrgetter("node", "inc"), *events)

    @cached_property
    def pairs(self) -> list[tuple[MemberKey, list[list[Row]]]]:
        """Each member with each peer, instant by instant."""
        members = by(self.rows(*EVENTS), attrgetter("node", "inc"))
        return [
            (member, each) for member, mine in members.items() for each in instants(member, mine)
        ]

    @cached_property
    def lives(self) -> Lives:
        return Lives(self.rows(*Lives.EVENTS))

    @cached_property
    def freezes(self) -> Freezes:
        return Freezes(self.by_member(*Freezes.EVENTS))

    @cached_property
    def phases(self) -> Phases:
        return Phases(self.rows(trace.PHASE))

    @cached_property
    def history(self) -> History:
        condensed = Condensed()
        for row in self.rows(*Condensed.EVENTS):
            condensed.feed(row)
        return History(condensed)
