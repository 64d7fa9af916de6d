"""Who was in which view, and what it sent and delivered there: what the rules of views judge.

V→V′ at p: the application of p is told of V and then, next, of V′. *Together from V*: the members
that V′ says have come in one part from V.

A member's rows are condensed: runs of one origin that continue each other in one view, with no row
of a view change between them, are one. So the rules keep little, and a trace may be judged from
rows that were condensed elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from ringcast.trace import rows as trace
from ringcast.trace.rows import MemberKey, OriginKey, Row, ViewKey, split_key

K = TypeVar("K")

MARKS = (
    *(trace.FREEZE, trace.VIEW, trace.SHOWN, trace.OPEN, trace.CRASH, trace.STOP),
    *(trace.STATE_WAIT, trace.STATE_RECEIVED, trace.STATE_LOST),
)
"""What runs are not condensed across."""

TAKEN = "taken"
"""Of `order` rows: the numbers of one origin that a member takes in one view, whatever else stands
between them."""
PLACED = "placed"
"""Of the same rows: the positions that it takes in one view, whoever's messages stand there."""

RUNS = (trace.SEND, trace.DELIVER, trace.ACCEPT, TAKEN, PLACED)
"""What is condensed."""


def continues(before: Row, row: Row) -> bool:
    """Whether two runs of one origin are one."""
    is_next = before.seqno <= before.seqno2 and before.seqno2 + 1 == row.seqno <= row.seqno2
    return is_next and before.view_key == row.view_key and before.detail == row.detail


def order_parts(row: Row) -> tuple[Row, Row]:
    """What an `order` row tells of the numbers of its origin, and of positions."""
    last = row.low + row.seqno2 - row.seqno
    placed = row._replace(event=PLACED, peer="", peer_inc=0, seqno=row.low, seqno2=last, detail="")
    return row._replace(event=TAKEN), placed


class Condensed:
    """The rows of members that tell of views and of messages to the group."""

    EVENTS = (*MARKS, trace.SEND, trace.DELIVER)

    __slots__ = ("_last", "rows")

    def __init__(self) -> None:
        self.rows: defaultdict[MemberKey, list[Row]] = defaultdict(list)
        self._last: defaultdict[MemberKey, dict[tuple[str, OriginKey], int]] = defaultdict(dict)
        """Where the runs stand that may go on."""

    def feed(self, row: Row) -> None:
        for each in order_parts(row) if row.event == trace.ORDER else (row,):
            self._feed(each)

    def _feed(self, row: Row) -> None:
        member = row.key
        rows, last = self.rows[member], self._last[member]
        if row.event in RUNS:
            run = row.event, row.origin
            at = last.get(run)
            if at is not None and continues(rows[at], row):
                rows[at] = rows[at]._replace(seqno2=row.seqno2, size=rows[at].size + row.size)
                return
            last[run] = len(rows)
        else:
            last.clear()
        rows.append(row)


class Span:
    """The messages of one origin that a member sent or delivered in one view."""

    __slots__ = ("by_commit", "first", "last", "row", "size", "torn")

    def __init__(self, row: Row) -> None:
        self.first, self.last = row.seqno, row.seqno2
        self.size = row.size
        """How many whole messages these are, where condensed rows tell."""
        self.row = row
        self.by_commit: Row | None = None
        """The last of them while the member had not installed the view after."""
        self.torn: Row | None = None
        """A row that does not continue those before it."""

    def extend(self, row: Row) -> None:
        if row.seqno != self.last + 1:
            self.torn = self.torn or row
        self.last = max(self.last, row.seqno2)
        self.size += row.size
        self.row = row


class Stay:
    """One member in one view."""

    __slots__ = ("delivered", "had_sent", "opened", "sent", "shown", "view")

    def __init__(self, view: Row, had_sent: dict[int, int]) -> None:
        self.view = view
        self.had_sent = had_sent
        """By stream, what it had sent before."""
        self.shown: Row | None = None
        self.sent: dict[int, Span] = {}
        self.delivered: dict[OriginKey, Span] = {}
        self.opened: dict[OriginKey, Row] = {}

    @property
    def key(self) -> ViewKey:
        return self.view.view_key

    def through(self, origin: OriginKey) -> int:
        """Up to where it has delivered this origin in this view; 0: nothing."""
        span = self.delivered.get(origin)
        return 0 if span is None else span.last

    def row_of(self, origin: OriginKey) -> Row | None:
        span = self.delivered.get(origin)
        return None if span is None else span.row


class Step(NamedTuple):
    """V→V′ at one member."""

    stay: Stay
    next: Stay

    @property
    def together(self) -> tuple[str, ...]:
        return self.next.view.part


class Life:
    """All that one member did."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.stays: dict[ViewKey, Stay] = {}
        """In order."""
        self.freezes: list[Row] = []
        self.astray: list[tuple[Row, Row | None]] = []
        """Messages that were sent while it was frozen, or in a view that it was not in; with the
        last row of a change before them."""
        self.finished = 0
        """How often it installed a view though it had promised a later one: it had to, first."""
        self.unplaced: list[Row] = []
        """Messages that were delivered in a view that it had not installed."""
        self.unopened: list[Row] = []
        """Windows that opened with a view that it had not installed, or for who is not in it."""
        self.reopened: list[tuple[Row, Row]] = []
        """Windows that opened twice with one view."""
        self.is_whole = False
        """Nothing that it did is missing at the end."""
        rows = list(rows)
        self._leaves_at = _leaves_at(rows)
        sent: dict[int, int] = {}
        change: Row | None = None
        for row in rows:
            self.is_whole = row.run_idx >= 0 or row.event == trace.STOP
            if row.event == trace.VIEW:
                is_frozen = change is not None and change.event == trace.FREEZE
                self.finished += is_frozen and change is not None and change.view > row.view
                change = row
                self.stays[row.view_key] = Stay(row, dict(sent))
            elif row.event == trace.FREEZE:
                change = row
                self.freezes.append(row)
            elif row.event == trace.SEND:
                self._send(row, change)
                sent[row.stream] = max(sent.get(row.stream, 0), row.seqno2)
            else:
                self._place(row, change)
        shown = (stay for stay in self.stays.values() if stay.shown)
        self.steps = [Step(stay, after) for stay, after in pairwise(shown)]

    def last_sent(self, origin: OriginKey, view: ViewKey) -> int | None:
        """What it had sent on a stream when this view began; None: nobody knows."""
        stay = self.stays.get(view)
        return None if stay is None else stay.had_sent.get(origin[2], 0)

    def has_all_of(self, view: ViewKey) -> bool:
        """Whether all that it did in this view is known."""
        return self.is_whole or any(view < later for later in reversed(self.stays))

    def _send(self, row: Row, change: Row | None) -> None:
        stay = self.stays.get(row.view_key)
        if change is None or change.event == trace.FREEZE or change.view_key != row.view_key:
            self.astray.append((row, change))
        if stay is not None:
            _extend(stay.sent, row.stream, row)

    def _place(self, row: Row, change: Row | None) -> None:
        stay = self.stays.get(row.view_key)
        if row.event == trace.DELIVER:
            if stay is None:
                self.unplaced.append(row)
                return
            span = _extend(stay.delivered, row.origin, row)
            if next(reversed(self.stays)) == row.view_key and not self._leaves(row):
                span.by_commit = row
        elif stay is not None and row.event == trace.SHOWN:
            stay.shown = row
        elif row.event == trace.OPEN:
            self._open(row, stay)

    def _open(self, row: Row, stay: Stay | None) -> None:
        if stay is None or row.peer_member not in stay.view.members:
            self.unopened.append(row)
            return
        earlier = stay.opened.setdefault(row.origin, row)
        if earlier is not row:
            self.reopened.append((earlier, row))

    def _leaves(self, row: Row) -> bool:
        """Whether it is handed its own messages, by the cut of the view that it leaves with."""
        is_own = row.peer_key == row.key
        return is_own and self._leaves_at is not None and row.idx > self._leaves_at


def _leaves_at(rows: Sequence[Row]) -> int | None:
    """Where a member promised the view that it left with; None: it did not leave so."""
    changes = [row for row in rows if row.event in (trace.VIEW, trace.FREEZE)]
    is_frozen = bool(changes) and changes[-1].event == trace.FREEZE
    return changes[-1].idx if is_frozen and any(row.event == trace.STOP for row in rows) else None


def _extend(spans: dict[K, Span], key: K, row: Row) -> Span:
    span = spans.get(key)
    if span is None:
        span = spans[key] = Span(row)
    else:
        span.extend(row)
    return span


class History:
    """All members of a run."""

    def __init__(self, condensed: Condensed) -> None:
        self.lives = {member: Life(rows) for member, rows in condensed.rows.items() if member[0]}

    def life(self, key: str) -> Life | None:
        return self.lives.get(split_key(key))

    def delivered(self) -> Iterator[tuple[Stay, OriginKey, Span]]:
        """What each member delivered in each view, of whom."""
        for life in self.lives.values():
            for stay in life.stays.values():
                for origin, span in stay.delivered.items():
                    yield stay, origin, span

    def sent(self, stay: Stay, origin: OriginKey) -> tuple[Life | None, Span | None]:
        """Who the sender was, and what it sent in this view."""
        sender = self.lives.get(origin[:2])
        there = None if sender is None else sender.stays.get(stay.key)
        return sender, None if there is None else there.sent.get(origin[2])

    def steps(self) -> Iterator[Step]:
        return (step for life in self.lives.values() for step in life.steps)
