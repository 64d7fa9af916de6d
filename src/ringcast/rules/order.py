"""The one order of total messages, as the rows of a run show it.

What a member takes in a view is a stretch of the *log* of that view. Its *history* is a line of
views: before each stands the view that the leading part came from, up to the position at which it
begins. A view's leading part are those of its members who are not said to have come to it.

What members take is condensed (`ringcast.rules.history`): numbers by origin, positions apart. So
rules judge ranges, and rows that were condensed elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from ringcast.rules.evidence import Ranges, Run
from ringcast.rules.history import PLACED, TAKEN, Condensed
from ringcast.trace import rows as trace
from ringcast.trace.rows import MemberKey, Row, ViewKey

EVENTS = (
    *(
        trace.FREEZE,
        trace.VIEW,
        trace.SHOWN,
        trace.STOP,
        trace.STATE_WAIT,
        trace.STATE_RECEIVED,
        trace.STATE_LOST,
    ),
    *(trace.ACCEPT, trace.ORDER, TAKEN, PLACED),
)
"""What tells of it."""


class Stay(NamedTuple):
    """One member in one view, as its application is told."""

    shown: Row
    view: Row
    taken: list[Row]  # by origin, its numbers
    placed: list[Row]  # its positions
    left: Row | None  # with which it installs a later view
    next: Row | None  # the view that its application is told of then
    then: Row | None  # that one's installation

    @property
    def key(self) -> ViewKey:
        return self.shown.view_key

    @property
    def is_led(self) -> bool:
        """It came along in the leading part."""
        return self.shown.member not in self.shown.members

    @property
    def last(self) -> int:
        """The position that it has come to in it."""
        return self.placed[-1].seqno2 if self.placed else self.shown.low

    @property
    def is_whole(self) -> bool:
        """It has taken every position from where the view stands."""
        positions = Ranges()
        for row in self.placed:
            positions.add(row.seqno, row.seqno2, row)
        return self.last == self.shown.low or positions.covers(self.shown.low + 1, self.last)


class Order:
    """All that a run shows of it."""

    def __init__(self, run: Run) -> None:
        condensed = Condensed()
        for row in run.rows(*EVENTS):
            condensed.feed(row)
        self.shown: dict[ViewKey, Row] = {}
        self.parents: dict[ViewKey, Stay] = {}
        """Of each view the one that the leading part came from, as somebody of it was there."""
        self.furthest: dict[ViewKey, Stay] = {}
        """In each view, who has come furthest."""
        self.stays: dict[MemberKey, list[Stay]] = {}
        self.accepted: dict[MemberKey, list[Row]] = {}
        self.astray: list[Row] = []
        for key, rows in condensed.rows.items():
            life = _Life(rows)
            self.stays[key] = list(life.stays())
            self.astray += life.astray
            self.accepted[key] = [row for row in rows if row.event == trace.ACCEPT]
        for stays in self.stays.values():
            for at, stay in enumerate(stays):
                view = stay.key
                self.shown.setdefault(view, stay.shown)
                before = stays[at - 1] if at else None
                if before is not None and before.next is stay.shown and stay.is_led:
                    self.parents.setdefault(view, before)
                if view not in self.furthest or self.furthest[view].last < stay.last:
                    self.furthest[view] = stay

    def line(self, view: ViewKey) -> list[Stay]:
        """The views of its history, oldest first, each as somebody was there who came along to the
        next one; the view itself not among them."""
        found: list[Stay] = []
        while (stay := self.parents.get(view)) is not None and stay.key < view:
            found.append(stay)
            view = stay.key
        return found[::-1]

    def history(self, view: ViewKey) -> list[Stay]:
        """The same, and the view itself."""
        return [*self.line(view), self.furthest[view]]

    def leaves(self) -> list[ViewKey]:
        """Views that are in no other one's history."""
        inner = {stay.key for stay in self.parents.values()}
        return [view for view in self.shown if view not in inner]

    def is_reading_behind(self, key: MemberKey) -> bool:
        """It was in a later view than its application has read of, and may have taken more."""
        stays = self.stays.get(key, ())
        return len(stays) > 0 and stays[-1].left is not None

    def own(self, key: MemberKey) -> Ranges:
        """Which of its messages were in a history that this member was in."""
        own, before = Ranges(), None
        for stay in self.stays.get(key, ()):
            parent = self.parents.get(stay.key)
            goes_on = parent is not None and parent.key == before
            for each in [stay] if goes_on else [*self.line(stay.key), stay]:
                for row in each.taken:
                    if row.peer_key == key:
                        own.add(row.seqno, row.seqno2, row)
            before = stay.key
        return own

    def accepts(self, row: Row) -> Iterator[Row]:
        """Where the origin accepted what this row tells of, if it has written that down."""
        rows = self.accepted.get(row.peer_key, [])
        for each in rows[bisect_left(rows, row.seqno, key=attrgetter("seqno2")) :]:
            if each.seqno > row.seqno2:
                return
            yield each


class _Told(NamedTuple):
    """A view that one member's application is told of, and what it takes in it."""

    shown: Row
    taken: list[Row]
    placed: list[Row]


class _Life:
    """One member. While it waits for its state it is told of views, and takes later what came in
    them; or it has that in its state, and never does."""

    def __init__(self, rows: list[Row]) -> None:
        self.told: dict[ViewKey, _Told] = {}
        self.views = {row.view_key: row for row in rows if row.event == trace.VIEW}
        self.skipped: list[tuple[ViewKey, ViewKey]] = []
        """It takes nothing of these and of those after them, up to the second, which it has."""
        self.astray: list[Row] = []
        """Positions of a view that its application is not in."""
        waits: ViewKey | None = None
        installed = current = (0, "")
        has_waited = False
        for row in rows:
            if row.event == trace.VIEW:
                installed = row.view_key
            elif row.event == trace.STATE_WAIT:
                waits, has_waited = installed, True
            elif row.event in (trace.STATE_RECEIVED, trace.STATE_LOST):
                if waits is not None and row.event == trace.STATE_RECEIVED:
                    self.skipped.append((waits, row.view_key))
                waits = None
            elif row.event == trace.SHOWN and row.low >= 0 and row.view_key in self.views:
                current = row.view_key
                self.told.setdefault(current, _Told(row, [], []))
            elif row.event in (TAKEN, PLACED):
                told = self.told.get(row.view_key)
                if told is None or (row.view_key != current and not has_waited):
                    self.astray += [row] * (row.event == PLACED)
                else:
                    (told.taken if row.event == TAKEN else told.placed).append(row)
        if waits is not None:
            self.skipped.append((waits, (1 << 62, "")))

    def stays(self) -> Iterator[Stay]:
        """Those in which it takes what comes."""
        ascending = sorted(self.views.values(), key=attrgetter("view"))
        told = list(self.told.values())
        for at, (shown, taken, placed) in enumerate(told):
            view = shown.view_key
            if any(first <= view < last for first, last in self.skipped):
                continue
            after = bisect_right(ascending, shown.view, key=attrgetter("view"))
            left = ascending[after] if after < len(ascending) else None
            next = told[at + 1].shown if at + 1 < len(told) else None
            then = None if next is None else self.views[next.view_key]
            yield Stay(shown, self.views[view], taken, placed, left, next, then)


@lru_cache(1)
def order_of(run: Run) -> Order:
    """Several rules ask, of one run after the other."""
    return Order(run)


class Log:
    """What is taken at which position of one view, by who told it first."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.rows: list[Row] = []

    def add(self, row: Row) -> Iterator[tuple[int, Row]]:
        """How many of its positions are known, and from which row, stretch by stretch."""
        position, end = row.low, row.low + row.seqno2 - row.seqno
        at = bisect_left(self.lasts, position)
        while position <= end:
            if at < len(self.firsts) and self.firsts[at] <= position:
                last = min(end, self.lasts[at])
                yield last - position + 1, self.rows[at]
            else:
                last = end if at == len(self.firsts) else min(end, self.firsts[at] - 1)
                self.firsts.insert(at, position)
                self.lasts.insert(at, last)
                self.rows.insert(at, row)
            position, at = last + 1, at + 1
