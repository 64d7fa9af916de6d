"""N3–N7, N10: how senders number, block, purge and repeat, and what receivers tell them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Stream
from ringcast.rules.algebra import NOWHERE, Lives, Progress, merge_progress
from ringcast.rules.findings import Findings
from ringcast.rules.sequential import Rule
from ringcast.trace.rows import (
    ACKMAP,
    DELIVER,
    DROP_HIGH,
    OPEN,
    PURGE,
    RELEASE,
    SEND,
    SEND_BLOCK,
    STABILITY_REPORT,
    TX,
    VIEW,
    WIN,
    XMIT_MISMATCH,
    split_key,
)

if TYPE_CHECKING:
    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row


class FlowControl(Rule[int]):
    """A send takes the next seqnos and fits the window; it is blocked exactly when it would not.

    The state is the last seqno assigned. A send that waits behind the rest of a large message
    (detail "rest") is blocked for that message's sake; only its seqnos are judged.
    """

    id = "N3"
    title = "a send is blocked exactly when the window is full, and then takes no number"
    events = (SEND, SEND_BLOCK)
    initial = 0

    def key(self, row: Row) -> OriginKey:
        return row.own_origin

    def settle(self, head: list[Row]) -> int:
        return _assigned(head[-1])

    def step(self, state: int, row: Row, found: Findings) -> int:
        found.premises += 1
        if row.hr != state:
            found.violate(f"{row.member} has assigned {state}, its window says {row.hr}", row)
        if row.event == SEND:
            self._judge_send(row, found)
        else:
            self._judge_block(row, found)
        return _assigned(row)

    @staticmethod
    def _judge_send(row: Row, found: Findings) -> None:
        if row.seqno != row.hr + 1 or row.seqno2 < row.seqno:
            found.violate(f"{row.member} sends {row.seqno}..{row.seqno2} after {row.hr}", row)
        if row.seqno2 - row.low > row.cap:
            found.violate(f"{row.member} sends {row.seqno2} beyond {row.low} + {row.cap}", row)

    @staticmethod
    def _judge_block(row: Row, found: Findings) -> None:
        match row.detail:
            case "messages":
                is_full = row.hr - row.low >= row.cap
            case "bytes" if row.used < 0 or row.limit < 0:
                found.unknown.add(f"{row.member}: a send blocked for bytes without their count")
                return
            case "bytes":
                is_full = row.hr > row.low and row.used + row.size > row.limit
            case _:
                is_full = True
        if not is_full:
            found.violate(
                f"{row.member} holds a send back for {row.detail}; the window has room", row
            )


def _assigned(row: Row) -> int:
    return row.seqno2 if row.event == SEND else row.hr


class HighDrops:
    """Messages that a receiver had no slot for: the first row for each receiver and sender.

    A sender whose window is no larger than the receiver's is never that far ahead of it.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[tuple[MemberKey, MemberKey], Row] = {}

    def feed(self, row: Row) -> None:
        self.rows.setdefault(((row.node, row.inc), (row.peer, row.peer_inc)), row)

    def merge(self, other: HighDrops) -> None:
        self.rows = other.rows | self.rows

    def judge(self, facts: Facts, found: Findings) -> None:
        for row in self.rows.values():
            sender = f"{row.peer}#{row.peer_inc}"
            if row.member not in facts.capacity or sender not in facts.capacity:
                found.unknown.add(f"{row.member} drops from {sender}: capacities unknown")
            elif facts.capacity[sender] <= facts.capacity[row.member]:
                found.violate(f"{row.member} has no slot for a message of {sender}", row)


class WindowHonoured:
    """A receiver holds nothing outside (low, low + capacity], and equal windows drop nothing.

    Where windows grow, the capacity is what they may grow to, and no window is larger; but a view
    change makes room for all that a sender with a larger one has under way.
    """

    id = "N4"
    title = "receivers buffer only what has a slot, and with equal windows everything has"
    events = (WIN, DROP_HIGH)

    def __init__(self) -> None:
        self.found = Findings()
        self.drops = HighDrops()
        self.widest: dict[tuple[str, str, str], Row] = {}

    def feed(self, row: Row) -> None:
        if row.event == DROP_HIGH:
            self.drops.feed(row)
            return
        self._measure(row)
        if row.kind == "receive":
            self.found.premises += 1
            if not row.low <= row.hd <= row.hr <= row.low + row.cap:
                self.found.violate(
                    f"{row.member} has low {row.low}, delivered {row.hd}, high {row.hr} of "
                    f"{row.peer} in a window of {row.cap}",
                    row,
                )

    def merge(self, other: WindowHonoured) -> None:
        self.found.merge(other.found)
        self.drops.merge(other.drops)
        for row in other.widest.values():
            self._measure(row)

    def finish(self, facts: Facts) -> Verdict:
        found = self.found.copy()
        self.drops.judge(facts, found)
        if facts.has_stability:
            self._judge_growth(facts, found)
        return found.verdict(self.id, self.title)

    def _measure(self, row: Row) -> None:
        window = row.member, row.kind, f"{row.peer}#{row.peer_inc}"
        widest = self.widest.get(window)
        if widest is None or row.cap > widest.cap:
            self.widest[window] = row

    def _judge_growth(self, facts: Facts, found: Findings) -> None:
        for (member, kind, sender), row in self.widest.items():
            if not {member, sender} <= facts.capacity.keys() or row.stream != Stream.FIFO:
                continue
            most = facts.capacity[member]
            if kind == "receive":
                most = max(facts.window_max(member), facts.capacity[sender])
            if row.cap > most:
                found.violate(
                    f"a {kind} window of {member} admits {row.cap} messages, {most} is the most",
                    row,
                )


class PurgedByAll:
    """A sender purges only what every member of its view has delivered, itself included. So
    does a receiver that retains messages.

    A member whose window opens at an offset has its messages up to there from elsewhere. One that
    comes from another part opens it at what the sender had sent when the view began.
    """

    id = "N5"
    title = "a message is kept until every member of the view has delivered it"
    events = (PURGE, RELEASE, DELIVER, OPEN, SEND, *Lives.EVENTS)

    def __init__(self) -> None:
        self.purges: defaultdict[MemberKey, list[Row]] = defaultdict(list)
        self.delivered: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.sent: defaultdict[OriginKey, Progress] = defaultdict(Progress)
        """By the sender's own order."""
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == DELIVER:
            self.delivered[row.pair].rise(row.run_idx, row.seqno2, row)
        elif row.event == SEND:
            self.sent[row.own_origin].rise(row.idx, row.seqno2, row)
        elif row.event == OPEN:
            self.delivered[row.pair].rise(row.run_idx, row.seqno, row)
        elif row.event in (PURGE, RELEASE):
            self.purges[row.node, row.inc].append(row)
        else:
            self.lives.feed(row)

    def merge(self, other: PurgedByAll) -> None:
        for member, rows in other.purges.items():
            self.purges[member] += rows
        merge_progress(self.delivered, other.delivered)
        merge_progress(self.sent, other.sent)
        self.lives.merge(other.lives)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        prefixes = self.lives.without_tail()
        for keeper, purges in self.purges.items():
            views = self.lives.views.get(keeper, [])
            at = -1  # the view in force; views and purges of a member are both in its own order
            low: dict[OriginKey, Row] = {}
            for row in purges:
                while at + 1 < len(views) and views[at + 1].idx < row.idx:
                    at += 1
                earlier = low.get(_purged(row))
                if earlier is not None and row.seqno < earlier.seqno:
                    found.violate(
                        f"{row.member} purges to {row.seqno} after {earlier.seqno}", earlier, row
                    )
                low[_purged(row)] = row
                if at < 0:
                    found.unknown.add(f"{row.member} purges before its first view row")
                    continue
                found.premises += 1
                if row.seqno > row.hd:
                    found.violate(
                        f"{row.member} purges to {row.seqno}, itself delivered {row.hd}", row
                    )
                for member in map(split_key, views[at].members):
                    self._judge(row, views[at], member, prefixes, found)
        return found.verdict(self.id, self.title)

    def _judge(
        self, row: Row, view: Row, member: MemberKey, prefixes: set[MemberKey], found: Findings
    ) -> None:
        delivered = self.delivered.get((*member, *_purged(row)), NOWHERE)
        through = delivered.at(row.run_idx)
        if f"{member[0]}#{member[1]}" not in view.part:
            through = max(through, self._sent_before(_purged(row), view))
        if through < row.seqno and not (row.run_idx < 0 and member in prefixes):
            found.violate(
                f"{row.member} purges to {row.seqno} while {member[0]} has delivered {through}",
                *(view, delivered.row_at(row.run_idx), row),
            )
        elif row.run_idx < 0 and member != (row.node, row.inc):
            found.unknown.add("whether members had delivered when senders purged: no run order")

    def _sent_before(self, origin: OriginKey, view: Row) -> int:
        """What the sender had sent when it installed this view."""
        views = self.lives.views.get(origin[:2], [])
        own = next((each for each in views if each.view_key == view.view_key), None)
        return 0 if own is None else self.sent.get(origin, NOWHERE).at(own.idx)


def _purged(row: Row) -> OriginKey:
    """Whose messages were purged."""
    return row.own_origin if row.event == PURGE else row.origin


class Acked(NamedTuple):
    """What a member has delivered of an origin, and its last acknowledgement of it."""

    delivered: int
    ack: Row | None


class AckHonesty(Rule[Acked]):
    """An ack claims no more delivered than the application was handed, and marks never go back. A
    report is an ack for every member of the view, and goes back on nothing that was said in the
    same one."""

    id = "N6"
    title = "an acknowledgement says what was really delivered"
    events = (OPEN, DELIVER, TX, STABILITY_REPORT)
    initial = Acked(0, None)

    def key(self, row: Row) -> PairKey | None:
        return None if row.event == TX and row.kind != "ack" else row.pair

    def settle(self, head: list[Row]) -> Acked | None:
        last = head[-1]
        if last.event == OPEN:
            return Acked(last.seqno, None)
        # Until both a delivery and an ack are known, all rows are of the one kind.
        if last.event == head[0].event:
            return None
        if last.event == DELIVER:
            return Acked(last.seqno2, head[-2])
        return Acked(head[-2].seqno2, last)

    def step(self, state: Acked, row: Row, found: Findings) -> Acked:
        if row.event == OPEN:
            return Acked(row.seqno, None)
        if row.event == DELIVER:
            return Acked(max(state.delivered, row.seqno2), state.ack)
        found.premises += 1
        if row.hd > state.delivered:
            found.violate(
                f"{row.member} acks {row.peer} through {row.hd}, delivered {state.delivered}", row
            )
        if row.received < row.hd:
            found.violate(f"{row.member} acks {row.hd} delivered but {row.received} received", row)
        before = state.ack
        if before is not None and before.view != row.view:
            before = None
        if before is not None and (row.hd < before.hd or row.received < before.received):
            found.violate(f"{row.member} takes an ack of {row.peer} back", before, row)
        return Acked(state.delivered, row)


class AckersAreMembers(Rule["Row | None"]):
    """Acknowledgements are counted of the members of the view: of all of them and nobody else.

    Judged from `ackmap` rows, which show the table after a view or an ack.
    """

    id = "N7"
    title = "senders wait for exactly the members of their view"
    events = (VIEW, ACKMAP)
    initial = None

    def key(self, row: Row) -> MemberKey:
        return row.node, row.inc

    def settle(self, head: list[Row]) -> Row | None:
        return head[-1] if head[-1].event == VIEW else None

    def step(self, state: Row | None, row: Row, found: Findings) -> Row | None:
        if row.event == VIEW:
            return row
        found.premises += 1
        if state is None:
            found.unknown.add(f"{row.member}: acks counted before its first view row")
        elif set(row.members) != set(state.members):
            found.violate(
                f"{row.member} waits for {', '.join(row.members)} in view {state.view}",
                *(state, row),
            )
        return state


class SameBytesAgain:
    """A retransmission carries the original's bytes. The observer compares them: it has both."""

    id = "N10"
    title = "a repaired message is the original one"
    events = (TX, XMIT_MISMATCH)

    def __init__(self) -> None:
        self.found = Findings()

    def feed(self, row: Row) -> None:
        if row.event == XMIT_MISMATCH:
            self.found.violate(
                f"{row.member} repeats {row.seqno}..{row.seqno2} with other bytes", row
            )
        elif row.again and row.kind in ("data", "peer_repair"):
            self.found.premises += 1

    def merge(self, other: SameBytesAgain) -> None:
        self.found.merge(other.found)

    def finish(self, facts: Facts) -> Verdict:
        return self.found.verdict(self.id, self.title)
