"""N1, N8, N11: what members deliver, of whom, and in which view. (N2 is G2.)"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from ringcast.rules.algebra import NOWHERE, Progress, Ranges, merge_progress
from ringcast.rules.findings import Findings
from ringcast.rules.sequential import Rule
from ringcast.trace.rows import ASIDE, CRASH, DELIVER, HANDED, OPEN, SEND, SHOWN, TX, VIEW

if TYPE_CHECKING:
    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row


class InOrder:
    """From its window's offset on, a receiver delivers each next seqno. Fragments count as the
    seqnos they cover. Only what is new is judged: repeats are for G2. A window that opens anew does
    so at or above what was delivered before; what was sent in earlier views may be read behind it.
    """

    id = "N1"
    title = "each sender's messages are delivered in order, without a gap"
    events = (OPEN, DELIVER)

    def __init__(self) -> None:
        self.opened: defaultdict[PairKey, list[Row]] = defaultdict(list)
        self.runs: defaultdict[PairKey, list[Row]] = defaultdict(list)
        """Of deliveries that continue each other in one view only the first, through the last."""
        self.found = Findings()

    def feed(self, row: Row) -> None:
        if row.event == OPEN:
            self.opened[row.pair].append(row)
            return
        self.found.premises += 1
        if row.seqno2 < row.seqno:
            self.found.violate(f"{_delivers(row)}, which is backwards", row)
        else:
            self._add(row)

    def merge(self, other: InOrder) -> None:
        self.found.merge(other.found)
        for pair, rows in other.opened.items():
            self.opened[pair] += rows
        for rows in other.runs.values():
            for row in rows:
                self._add(row)

    def finish(self, facts: Facts) -> Verdict:
        found = self.found.copy()
        for pair, runs in self.runs.items():
            opened = deque(self.opened.get(pair, ()))
            low = due = 1  # One's own stream begins at 1, and has no window.
            for row in runs:
                while opened and _precedes(opened[0], row):
                    low = due = self._open(opened.popleft(), due, found)
                if row.seqno > due:
                    found.violate(f"{_delivers(row)}, due was {due}", row)
                elif row.seqno < low:
                    found.violate(f"{_delivers(row)}, its window begins at {low}", row)
                low = min(low, row.seqno)
                due = max(due, row.seqno2 + 1)
            for opening in opened:
                due = self._open(opening, due, found)
        return found.verdict(self.id, self.title)

    @staticmethod
    def _open(row: Row, due: int, found: Findings) -> int:
        """A window opens; or another one does, for a sender that was away meanwhile."""
        if row.seqno + 1 < due:
            found.violate(
                f"{row.member} opens {row.peer} at {row.seqno} and has delivered {due - 1}", row
            )
        return row.seqno + 1

    def _add(self, row: Row) -> None:
        runs, opened = self.runs[row.pair], self.opened.get(row.pair, ())
        if runs and runs[-1].seqno2 + 1 == row.seqno and runs[-1].view_key == row.view_key:
            before = runs[-1]
            if not any(before.idx < opening.idx < row.idx for opening in opened):
                runs[-1] = before._replace(seqno2=row.seqno2)
                return
        runs.append(row)


def _precedes(opening: Row, delivery: Row) -> bool:
    """Whether this window is one that the delivery may be out of."""
    return opening.idx < delivery.idx and opening.view <= delivery.view


class Reading(NamedTuple):
    """The view that a member is in, and the last that its application was told of."""

    view: Row | None = None
    shown: Row | None = None


class InItsView(Rule[Reading]):
    """Nothing of an earlier view is delivered after the application was told of the next, of
    nobody; and repair is asked of members of the view only.

    What is put aside for later may be ahead of the application, but never behind it.
    """

    id = "N8"
    title = "nothing of a view comes after the next one, and only its members are asked for repair"
    events = (VIEW, SHOWN, DELIVER, HANDED, TX)
    initial = Reading()

    def key(self, row: Row) -> MemberKey | None:
        return None if row.event == TX and row.kind != "nack" else (row.node, row.inc)

    def settle(self, head: list[Row]) -> Reading | None:
        last = {row.event: row for row in head}
        if VIEW in last and SHOWN in last:
            return Reading(last[VIEW], last[SHOWN])
        return None

    def step(self, state: Reading, row: Row, found: Findings) -> Reading:
        if row.event == VIEW:
            return state._replace(view=row)
        if row.event == SHOWN:
            found.premises += 1
            return state._replace(shown=row)
        if row.event == TX:
            self._judge_repair(state, row, found)
        elif state.shown is None:
            found.unknown.add(f"{row.member}: rows before its first view")
        elif row.view < state.shown.view or (
            row.detail != ASIDE and row.view_key != state.shown.view_key
        ):
            found.violate(
                f"{_delivers(row)} of view {row.view} after it was told of view {state.shown.view}",
                *(state.shown, row),
            )
        return state

    @staticmethod
    def _judge_repair(state: Reading, row: Row, found: Findings) -> None:
        if state.view is None:
            found.unknown.add(f"{row.member}: rows before its first view")
        elif f"{row.peer}#{row.peer_inc}" not in state.view.members:
            found.violate(
                f"{row.member} asks for repair from {row.peer}#{row.peer_inc}, not in view "
                f"{state.view.view}",
                *(state.view, row),
            )


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
