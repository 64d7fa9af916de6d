"""N1, N8, N9, N11: what members deliver, of whom, and from where on. (N2 is G2.)"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Stream
from ringcast.rules.algebra import NOWHERE, Progress, Ranges, merge_progress
from ringcast.rules.findings import Findings
from ringcast.rules.sequential import Rule
from ringcast.trace.rows import CRASH, DELIVER, OPEN, PURGE, SEND, TX, VIEW, split_key

if TYPE_CHECKING:
    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row


class _Reach:
    """What one member has delivered of one origin: from `low` up to before `due`.

    Where a segment begins in the middle of a run, the reach of its first rows is not known. What
    would extend it there is put aside, for the earlier segment's reach to judge.
    """

    __slots__ = ("aside", "due", "is_known", "low", "opening")

    def __init__(self) -> None:
        self.aside: list[Row] = []
        self.opening: tuple[Row, int] | None = None  # put aside likewise, and what was due then
        self.is_known = False
        self.low = self.due = 0

    def start(self, offset: int) -> None:
        self.is_known = True
        self.low = self.due = offset + 1

    def open(self, row: Row, found: Findings) -> None:
        """A window opens; or another one does, for a sender that was away meanwhile."""
        if not self.is_known:
            self.opening = row, self.due
        elif row.seqno + 1 < self.due:
            found.violate(
                f"{row.member} opens {row.peer} at {row.seqno} and has delivered {self.due - 1}",
                row,
            )
        self.start(row.seqno)

    def reopen(self, opening: tuple[Row, int], found: Findings) -> None:
        """What a later segment has put aside."""
        row, due = opening
        self.due = max(self.due, due)
        self.open(row, found)

    def extend(self, row: Row, found: Findings) -> None:
        if not self.is_known and (not self.aside or not self.low <= row.seqno <= self.due):
            if not self.aside:
                self.low = self.due = row.seqno
            self.aside.append(row)
        elif row.seqno > self.due:
            found.violate(f"{_delivers(row)}, due was {self.due}", row)
        elif row.seqno < self.low:
            found.violate(f"{_delivers(row)}, its window begins at {self.low}", row)
        self.low = min(self.low, row.seqno)
        self.due = max(self.due, row.seqno2 + 1)


class InOrder:
    """From its window's offset on, a receiver delivers each next seqno. Fragments count as the
    seqnos they cover. Only what is new is judged: repeats are for G2. A window that opens anew does
    so at or above what was delivered before."""

    id = "N1"
    title = "each sender's messages are delivered in order, without a gap"
    events = (OPEN, DELIVER)

    def __init__(self) -> None:
        self.reached: defaultdict[PairKey, _Reach] = defaultdict(_Reach)
        self.found = Findings()

    def feed(self, row: Row) -> None:
        if row.event == OPEN:
            self.reached[row.pair].open(row, self.found)
            return
        self.found.premises += 1
        if row.seqno2 < row.seqno:
            self.found.violate(f"{_delivers(row)}, which is backwards", row)
        else:
            self.reached[row.pair].extend(row, self.found)

    def merge(self, other: InOrder) -> None:
        self.found.merge(other.found)
        for pair, later in other.reached.items():
            mine = self.reached.setdefault(pair, later)
            if mine is later:
                continue
            for row in later.aside:
                mine.extend(row, self.found)
            if later.opening is not None:
                mine.reopen(later.opening, self.found)
                mine.low, mine.due = later.low, later.due
            else:
                mine.due = max(mine.due, later.due)

    def finish(self, facts: Facts) -> Verdict:
        found = self.found.copy()
        for reach in self.reached.values():
            first = _Reach()
            first.start(0)  # Of a member's own stream, which has no `open`.
            for row in reach.aside:
                first.extend(row, found)
            if reach.opening is not None:
                first.reopen(reach.opening, found)
        return found.verdict(self.id, self.title)


class InView(NamedTuple):
    """The view in force at a member, as the keys its rows name peers by."""

    view: Row
    members: frozenset[MemberKey]

    @classmethod
    def of(cls, view: Row) -> InView:
        return cls(view, frozenset(map(split_key, view.members)))


class NothingOfTheDeparted(Rule[InView | None]):
    """Plain messages come only from members of the view, and repair is asked of nobody else.

    Uniform messages of a departed sender are finished by the survivors, so they are exempt.
    """

    id = "N8"
    title = "nothing comes from a member that has left the view"
    events = (VIEW, DELIVER, TX)
    initial = None

    def key(self, row: Row) -> MemberKey | None:
        if row.event == TX and row.kind != "nack":
            return None
        if row.event == DELIVER and row.stream != Stream.FIFO:
            return None
        return row.node, row.inc

    def settle(self, head: list[Row]) -> InView | None:
        return InView.of(head[-1]) if head[-1].event == VIEW else None

    def step(self, state: InView | None, row: Row, found: Findings) -> InView | None:
        if row.event == VIEW:
            present = InView.of(row)
            if state is not None:
                found.premises += len(state.members - present.members)
            return present
        if state is None:
            found.unknown.add(f"{row.member}: rows before its first view")
        elif (row.peer, row.peer_inc) not in state.members:
            what = "delivers from" if row.event == DELIVER else "asks for repair from"
            found.violate(
                f"{row.member} {what} {row.peer}#{row.peer_inc}, not in view {state.view.view}",
                *(state.view, row),
            )
        return state


class JoinerServed:
    """A window opens where its sender still has everything after, and delivery starts there."""

    id = "N9"
    title = "a joiner delivers exactly what comes after its offset"
    events: tuple[str, ...] = (OPEN, DELIVER, PURGE)

    def __init__(self) -> None:
        self.opened: list[Row] = []
        self.delivered: defaultdict[PairKey, Ranges] = defaultdict(Ranges)
        self.low: defaultdict[OriginKey, Progress] = defaultdict(Progress)

    def feed(self, row: Row) -> None:
        if row.event == DELIVER:
            self.delivered[row.pair].add(row.seqno, row.seqno2, row)
        elif row.event == OPEN:
            self.opened.append(row)
        else:
            self.low[row.own_origin].rise(row.run_idx, row.seqno, row)

    def merge(self, other: JoinerServed) -> None:
        self.opened += other.opened
        _merge_ranges(self.delivered, other.delivered)
        merge_progress(self.low, other.low)

    def must_serve(self, opening: Row) -> bool:
        """Whether the sender owes this window what comes after its offset."""
        return True

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        opened: defaultdict[PairKey, list[Row]] = defaultdict(list)
        for row in self.opened:
            opened[row.pair].append(row)
            if not self.must_serve(row):
                continue
            found.premises += 1
            low = self.low.get(row.origin, NOWHERE)
            if low.at(row.run_idx) <= row.seqno:
                continue
            if row.run_idx < 0:
                found.unknown.add("whether a sender had purged when a window opened: no run order")
            else:
                found.violate(
                    f"{row.member} opens {row.peer} at {row.seqno}; {row.peer} has purged "
                    f"through {low.at(row.run_idx)}",
                    *(low.row_at(row.run_idx), row),
                )
        for pair, rows in opened.items():
            for first, row in _misplaced(self.delivered.get(pair), rows):
                found.violate(
                    f"{row.member} delivers {row.peer} from {first}, offsets were "
                    f"{[opening.seqno for opening in rows]}",
                    *(*rows, row),
                )
        return found.verdict(self.id, self.title)


class PrefixOfTheDead:
    """What survivors delivered of a crashed sender is a prefix of what it sent, of any length."""

    id = "N11"
    title = "of a crashed sender everyone delivers a prefix"
    events = (CRASH, SEND, OPEN, DELIVER)

    def __init__(self) -> None:
        self.crashed: dict[MemberKey, Row] = {}
        self.sent: defaultdict[OriginKey, Progress] = defaultdict(Progress)
        self.opened: defaultdict[PairKey, list[Row]] = defaultdict(list)
        self.delivered: defaultdict[PairKey, Ranges] = defaultdict(Ranges)

    def feed(self, row: Row) -> None:
        if row.event == DELIVER:
            self.delivered[row.pair].add(row.seqno, row.seqno2, row)
        elif row.event == SEND:
            self.sent[row.own_origin].rise(row.run_idx, row.seqno2, row)
        elif row.event == OPEN:
            self.opened[row.pair].append(row)
        else:
            self.crashed.setdefault((row.node, row.inc), row)

    def merge(self, other: PrefixOfTheDead) -> None:
        self.crashed = other.crashed | self.crashed
        merge_progress(self.sent, other.sent)
        _merge_ranges(self.delivered, other.delivered)
        for pair, rows in other.opened.items():
            self.opened[pair] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for pair, delivered in self.delivered.items():
            crash = self.crashed.get(pair[2:4])
            if crash is None or pair[:2] in self.crashed:
                continue
            found.premises += 1
            for first, row in _misplaced(delivered, self.opened.get(pair, [])):
                found.violate(
                    f"{row.member} delivers {row.peer} from {first}: not a prefix", crash, row
                )
            sent = self.sent.get(pair[2:], NOWHERE)
            last, row = delivered.lasts[-1], delivered.rows[-1]
            if last <= sent.value:
                continue
            if row.run_idx < 0:
                found.unknown.add(f"what {crash.member} sent: its tail is lost")
            else:
                found.violate(
                    f"{row.member} delivers {row.peer} through {last}, sent were {sent.value}",
                    *(sent.row, crash, row),
                )
        return found.verdict(self.id, self.title)


def _delivers(row: Row) -> str:
    return f"{row.member} delivers {row.peer}:{row.seqno}..{row.seqno2}"


def _misplaced(delivered: Ranges | None, opened: list[Row]) -> list[tuple[int, Row]]:
    """Where delivery starts though no window was opened just before."""
    starts = {row.seqno + 1 for row in opened} or {1}
    return [(first, row) for first, _, row in delivered or () if first not in starts]


def _merge_ranges(mine: dict[PairKey, Ranges], theirs: dict[PairKey, Ranges]) -> None:
    for pair, ranges in theirs.items():
        known = mine.setdefault(pair, ranges)
        if known is not ranges:
            for first, last, row in ranges:
                known.add(first, last, row)
