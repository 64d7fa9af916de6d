"""Rules over everything one member did, instant by instant.

Some rules need a whole table of a member's connections, and what arrived in the very input that
changed it.

An *instant* is all rows of one member at one time. It may hold several inputs, so what a rule
asks of an instant is never more than what it may ask of an input.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringcast.rules.findings import Stepwise
from ringcast.trace.rows import CONN, RX, TX, UNICAST_WIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
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


class Watch(Stepwise):
    """One rule, watching one member. What members say to themselves needs no connection and is left
    out."""

    def __init__(self, run: Run, member: MemberKey, found: Findings) -> None:
        self.is_live = run.lives.is_live(member)
        """At the end of the run."""
        self.entries = Entries()
        self.taken: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        """Up to where its application was handed each stream, as far as the rule notes it."""
        super().__init__(run.facts, found)

    def see(self, rows: list[Row]) -> None:
        """Judge the rows of one instant."""
        raise NotImplementedError

    def take(self, row: Row, through: int) -> None:
        self.taken[heard_stream(row)] = max(self.taken[heard_stream(row)], through)

    @classmethod
    def judge(cls, run: Run, found: Findings) -> None:
        for member, rows in run.by_member(*cls.events).items():
            others = (row for row in rows if row.peer_key != member)
            watch = cls(run, member, found)
            for _, instant in groupby(others, key=attrgetter("mono_ns")):
                watch.see(list(instant))
            watch.close()

    def lasted(
        self,
        since: Row,
        end: Row | None,
        bound_ns: int,
        text: str,
        slack_ns: int = 0,
        now_ns: int | None = None,
    ) -> bool:
        """Judge a wait since then, or since the end of healing, to the end of the run if it has
        none; whether it was too long. "{}" in the text stands for how long it was."""
        if now_ns is None:
            now_ns = self.facts.end_ns if end is None else end.mono_ns
        waited_ns = now_ns - max(since.mono_ns, self.facts.gst_ns or 0)
        if end is not None:
            self.found.premises += 1
            self.found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns + slack_ns:
            told = f"{text.replace('{}', str(waited_ns))}, the bound is {bound_ns}"
            self.found.violate(told, since, end)
        return waited_ns > bound_ns + slack_ns


class Waiting(Watch):
    """Something is owed since a row: judged when it comes, or when the run ends."""

    def begin(self) -> None:
        self.waiting: dict[Any, Row] = {}

    def close(self) -> None:
        if self.is_live and self.facts.gst_ns is not None:
            for since in list(self.waiting.values()):
                self.judge_wait(since, None)

    def judge_wait(self, since: Row, end: Row | None) -> None:
        raise NotImplementedError


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

    def update_all(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.event in self.EVENTS:
                self.update(row)

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


def is_gone(row: Row) -> bool:
    """Whether an entry ends with this row."""
    return row.event == CONN and row.detail.endswith(NONE)


def heard_stream(row: Row) -> tuple[str, int, int]:
    """A stream with one peer, as the member knows it."""
    return row.peer, row.peer_inc, row.epoch


def side_of(kind: str, row: Row) -> Side:
    return kind, row.peer, row.peer_inc


def arrived(rows: Iterable[Row], *kinds: str) -> list[Row]:
    """The frames of these kinds that came in."""
    return [row for row in rows if row.event == RX and row.kind in kinds]


def left(rows: Iterable[Row], *kinds: str) -> list[Row]:
    """The frames of these kinds that went out."""
    return [row for row in rows if row.event == TX and row.kind in kinds]


def of_peer(rows: Iterable[Row], peer: MemberKey) -> list[Row]:
    return [row for row in rows if row.peer_key == peer]


def is_prompt(row: Row, facts: Facts) -> bool:
    """Whether frames leave in the instant that made them. Faulty drivers hold them back, so what
    a frame says is compared with its sender's state only once the run has healed."""
    return facts.gst_ns is not None and row.mono_ns > facts.gst_ns
