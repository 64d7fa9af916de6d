"""Rules over everything one member did with one peer, instant by instant.

Some rules need both ends of a member's connections with a peer, and what arrived in the very input
that changed them.

An *instant* is all rows of one member at one time that are about one peer, or about nobody. It may
hold several inputs, so what a rule asks of an instant is never more than what it may ask of an
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ringcast.rules.evidence import Run
from ringcast.rules.findings import Findings, Instants, Rule, begin, end
from ringcast.rules.instants import Late
from ringcast.trace.rows import CONN, RX, TX, UNICAST_WIN, Facts, Row

Stream: TypeAlias = tuple[str, int, str, int, int]
"""A unicast stream: (sender, its incarnation, receiver, its incarnation, epoch)."""

ConnKey: TypeAlias = tuple[int, int]
"""(epoch, conn): newer is greater."""

ROUNDING_NS = 2
"""By so much may a timer's time differ from the fact it is judged by: both are rounded."""

NONE = "NONE"
OPEN = "OPEN"
CLOSING = "CLOSING"


class Pair:
    """One member and one of its peers, as one rule looks at them."""

    def __init__(
        self,
        facts: Facts,
        found: Findings,
        *,
        is_live: bool,
        is_whole: bool = True,
        late: Late = Late.NEVER,
    ) -> None:
        """`late`: when the member's machine kept it from what was due."""
        self.facts = facts
        self.found = found
        self.is_live = is_live
        """At the end of the run."""
        self.is_whole = is_whole
        """No row is missing at the end."""
        self.entries = Entries()
        """As far as the rule has followed them."""
        self._late = late

    def end_at(self, now_ns: int) -> None:
        """It is followed up to then."""
        self.facts = replace(self.facts, end_ns=now_ns)

    def slack_ns(self, since_ns: int, until_ns: int) -> int:
        """By how much a time between these may be longer than it was meant to be."""
        return self._late.between(since_ns, until_ns)

    def is_prompt(self, row: Row) -> bool:
        """Whether frames leave in the instant that made them. Faulty drivers delay them, so
        what a frame says is compared with its sender's state only once the run has healed."""
        return self.facts.gst_ns is not None and row.mono_ns > self.facts.gst_ns

    def is_owed(self) -> bool:
        """Whether what has not come by the end of the run should have."""
        return self.is_live and self.facts.gst_ns is not None

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
        since_ns = max(since.mono_ns, self.facts.gst_ns or 0)
        waited_ns = now_ns - since_ns
        slack_ns += self.slack_ns(since_ns, now_ns)
        return self.found.wait(waited_ns, bound_ns, end, text, since, end, slack_ns=slack_ns)


def of_pairs(id: str, title: str) -> Callable[[Callable[[Pair], Instants]], Rule]:
    """Make a function a rule that judges each member with each of its peers."""

    def make(steps: Callable[[Pair], Instants]) -> Rule:
        def judge(run: Run, found: Findings) -> None:
            for member, instants in run.pairs:
                feed = follow(steps, Pair(run.facts, found, is_live=run.lives.is_live(member)))
                for rows in instants:
                    feed(rows)
                end(feed)

        return Rule(id, title, judge, of_pair=steps)

    return make


def follow(steps: Callable[[Pair], Instants], pair: Pair) -> Callable[[list[Row] | None], None]:
    """What takes the instants of this pair."""
    feed = begin(steps(pair))

    def take(rows: list[Row] | None) -> None:
        pair.entries.begin_instant()
        feed(rows)

    return take


class Entry(NamedTuple):
    """A connection as a member has it: its state, and the last row that showed its window."""

    state: str
    row: Row

    @property
    def conn(self) -> ConnKey:
        return self.row.conn_key

    @property
    def place(self) -> tuple[ConnKey, int, int]:
        """What only the frames of its own direction may change."""
        row = self.row
        return (self.conn, row.low, 0) if row.kind == "S" else (self.conn, row.received, row.hr)


class Entries:
    """A member's connections with a peer, followed by its `conn` and `unicast_win` rows: "S" is
    its end as a sender, "R" as a receiver."""

    EVENTS = (CONN, UNICAST_WIN)

    __slots__ = ("_now", "_shown")

    def __init__(self) -> None:
        self._now: dict[str, Entry] = {}
        self._shown: dict[str, list[Entry | None]] = {}  # in this instant, and just before it

    def begin_instant(self) -> None:
        self._shown = {}

    def update(self, row: Row) -> None:
        if row.event not in self.EVENTS:
            return
        entry = self._now.get(row.kind)
        shown = self._shown.setdefault(row.kind, [entry])
        if row.event != CONN:
            if entry is not None:
                self._now[row.kind] = Entry(entry.state, row)
        elif is_gone(row):
            self._now.pop(row.kind, None)
        else:
            self._now[row.kind] = Entry(row.detail.partition(">")[2], row)
        shown.append(self._now.get(row.kind))

    def update_all(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.update(row)

    def now(self, kind: str) -> Entry | None:
        return self._now.get(kind)

    def before(self, kind: str) -> Entry | None:
        """As it was when the instant began."""
        return self._shown.get(kind, [self._now.get(kind)])[0]

    def lately(self, kind: str) -> list[Entry]:
        """As it was in this instant, at any time: what is done in it may belong to each."""
        shown = self._shown.get(kind, [self._now.get(kind)])
        return [entry for entry in shown if entry is not None]

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
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


def acked_and_sent(row: Row) -> tuple[int, int, int]:
    """HA and HS of a sender, and of which stream."""
    return row.epoch, row.low, row.hr


def is_gone(row: Row) -> bool:
    """Whether an entry ends with this row."""
    return row.event == CONN and row.detail.endswith(NONE)


def arrived(rows: Iterable[Row], *kinds: str) -> list[Row]:
    """The frames of these kinds that came in."""
    return [row for row in rows if row.event == RX and row.kind in kinds]


def left(rows: Iterable[Row], *kinds: str) -> list[Row]:
    """The frames of these kinds that went out."""
    return [row for row in rows if row.event == TX and row.kind in kinds]
