"""Rules over everything one member did, instant by instant.

Some rules need a whole table of a member's connections, and what arrived in the very input that
changed it. Their rows are kept until the end and then replayed, member by member: so segments and
members merge by joining lists, and a rule is plain code over local state.

An *instant* is all rows of one member at one time. It may hold several inputs, so what a rule
asks of an instant is never more than what it may ask of an input.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from ringcast.rules.findings import Findings
from ringcast.trace.rows import CONN, CRASH, PAUSE, RESUME, RX, STOP, TX, UNICAST_WIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, Row

Stream: TypeAlias = tuple[str, int, str, int, int]
"""A unicast stream: (sender, its incarnation, receiver, its incarnation, epoch)."""

Side: TypeAlias = tuple[str, str, int]
"""One entry of a member: ("S" or "R", peer, its incarnation)."""

ConnKey: TypeAlias = tuple[int, int]
"""(epoch, conn): newer is greater."""

ROUNDING_NS = 2
"""By so much may a timer's time differ from the fact it is judged by: both are rounded."""

NONE = "NONE"
OPEN = "OPEN"
CLOSING = "CLOSING"


class Watch(Protocol):
    """One rule, watching one member."""

    id: str
    title: str
    events: tuple[str, ...]

    def __init__(self, found: Findings, facts: Facts) -> None: ...

    def see(self, rows: list[Row]) -> None:
        """Judge the rows of one instant."""
        ...

    def close(self) -> None:
        """Judge what is still open when the member's rows end. Most rules have nothing open."""
        return


class Replay:
    """A watch as a rule. What members say to themselves needs no connection and is left out."""

    def __init__(self, watch: type[Watch]) -> None:
        self.id = watch.id
        self.title = watch.title
        self.events = watch.events
        self._watch = watch
        self._rows: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if (row.peer, row.peer_inc) != (row.node, row.inc):
            self._rows[row.node, row.inc].append(row)

    def merge(self, other: Replay) -> None:
        for member, rows in other._rows.items():
            self._rows[member] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for rows in self._rows.values():
            watch = self._watch(found, facts)
            for _, instant in groupby(rows, key=attrgetter("mono_ns")):
                watch.see(list(instant))
            watch.close()
        return found.verdict(self.id, self.title)


class Entry(NamedTuple):
    """A connection as a member has it: its state, and the last row that showed its window."""

    state: str
    row: Row

    @property
    def conn(self) -> ConnKey:
        return self.row.epoch, self.row.conn

    @property
    def is_drained(self) -> bool:
        """At a sender: everything is acknowledged."""
        return self.row.low >= self.row.hr


class Entries:
    """A member's connections, followed by its `conn` and `unicast_win` rows."""

    EVENTS = (CONN, UNICAST_WIN)

    __slots__ = ("_now", "_shown", "_since")

    def __init__(self) -> None:
        self._now: dict[Side, Entry] = {}
        self._shown: dict[Side, list[Entry | None]] = {}  # in this instant, and just before it
        self._since = -1

    def update(self, row: Row) -> None:
        side = row.kind, row.peer, row.peer_inc
        entry = self._now.get(side)
        if row.mono_ns != self._since:
            self._shown.clear()
            self._since = row.mono_ns
        shown = self._shown.setdefault(side, [entry])
        if row.event == CONN:
            state = row.detail.partition(">")[2]
            if state == NONE:
                self._now.pop(side, None)
            else:
                self._now[side] = Entry(state, row)
        elif entry is not None:
            self._now[side] = Entry(entry.state, row)
        shown.append(self._now.get(side))

    def now(self, side: Side) -> Entry | None:
        return self._now.get(side)

    def before(self, side: Side, now_ns: int) -> Entry | None:
        """As it was when the instant began."""
        return self._shown_in(side, now_ns)[0]

    def lately(self, side: Side, now_ns: int) -> list[Entry]:
        """As it was in this instant, at any time: what is done in it may belong to each."""
        return [entry for entry in self._shown_in(side, now_ns) if entry is not None]

    def _shown_in(self, side: Side, now_ns: int) -> list[Entry | None]:
        shown = self._shown.get(side) if now_ns == self._since else None
        return shown or [self._now.get(side)]

    def __iter__(self) -> Iterator[tuple[Side, Entry]]:
        return iter(self._now.items())


class Presence:
    """Whether the member lives at the end of its rows."""

    EVENTS = (CRASH, STOP, PAUSE, RESUME)

    __slots__ = ("is_live",)

    def __init__(self) -> None:
        self.is_live = True

    def see(self, row: Row) -> None:
        self.is_live = row.event == RESUME


def sent_stream(row: Row) -> Stream:
    """The stream of a row that its sender wrote."""
    return row.node, row.inc, row.peer, row.peer_inc, row.epoch


def delivered_stream(row: Row) -> Stream:
    """The stream of a row that its receiver wrote."""
    return row.peer, row.peer_inc, row.node, row.inc, row.epoch


def side_stream(row: Row) -> Stream:
    """The stream of a row about one side's entry."""
    return sent_stream(row) if row.kind == "S" else delivered_stream(row)


def conn_of(row: Row) -> ConnKey:
    return row.epoch, row.conn


def side_of(kind: str, row: Row) -> Side:
    return kind, row.peer, row.peer_inc


def arrived(rows: Iterable[Row], *kinds: str) -> list[Row]:
    """The frames of these kinds that came in."""
    return [row for row in rows if row.event == RX and row.kind in kinds]


def left(rows: Iterable[Row], *kinds: str) -> list[Row]:
    """The frames of these kinds that went out."""
    return [row for row in rows if row.event == TX and row.kind in kinds]


def is_prompt(row: Row, facts: Facts) -> bool:
    """Whether frames leave in the instant that made them. Faulty drivers hold them back, so what
    a frame says is compared with its sender's state only once the run has healed."""
    return facts.gst_ns is not None and row.mono_ns > facts.gst_ns
