"""U3, U5, U7, U-L1: when uniform messages are committed, and how soon they come.

That all who go on deliver the same of them is VS5 and VS6; that they come in order is N1.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules.algebra import NOWHERE, Progress, merge_progress
from ringcast.rules.findings import Findings
from ringcast.rules.liveness import NO_COMMON_CLOCK, DeliveredInTime, Drained, OnStream
from ringcast.trace.rows import DELIVER, FREEZE, OPEN, SEND, STOP, TX, VIEW, WIN, split_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row

NO_RUN_ORDER = "who received what when a commit left: no run order"


class ReceivedByAll:
    """A sender commits what every member of its view has received, in that view. While a member has
    not installed the next view it delivers nothing else; but who leaves with it gets what it has
    sent itself."""

    id = "U3"
    title = "only what every member of the view holds is committed, or delivered before the next"
    events = (TX, DELIVER, SEND, WIN, OPEN, VIEW, FREEZE, STOP)

    def __init__(self) -> None:
        self.frozen: dict[MemberKey, Row] = {}
        """When each member promised its last proposal,"""
        self.left: set[MemberKey] = set()
        """and who left with the view that it made."""
        self.commits: dict[tuple[MemberKey, OriginKey, int, str], Row] = {}
        """The first time that this was said, or done: commits are repeated."""
        self.received: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.event == VIEW:
            self.views[row.node, row.inc].append(row)
        elif row.event == FREEZE:
            self.frozen[row.node, row.inc] = row
        elif row.event == STOP:
            if row.detail == "left":
                self.left.add((row.node, row.inc))
        elif row.stream != Stream.UNIFORM:
            return
        elif row.event == DELIVER:
            self._note(row, row.origin, row.seqno2)
        elif row.event == TX:
            if row.kind == "commit" and row.seqno:  # 0 is nothing
                self._note(row, row.own_origin, row.seqno)
        elif row.event == SEND:
            own = (row.node, row.inc, *row.own_origin)
            self.received[own].rise(row.run_idx, row.seqno2, row)
        elif row.event == OPEN:
            self.received[row.pair].rise(row.run_idx, row.seqno, row)
        else:
            self.received[row.pair].rise(row.run_idx, row.received, row)

    def merge(self, other: ReceivedByAll) -> None:
        self.commits = other.commits | self.commits
        self.frozen |= other.frozen
        self.left |= other.left
        merge_progress(self.received, other.received)
        for member, views in other.views.items():
            self.views[member] += views

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for (member, origin, through, _), row in self.commits.items():
            if row.run_idx < 0:
                found.unknown.add(NO_RUN_ORDER)
                continue
            views = [view for view in self.views.get(member, []) if view.idx < row.idx]
            if row.event == TX and not (views and views[-1].view == row.view):
                found.violate(f"{row.member} commits in view {row.view}, where it is not", row)
            elif views and views[-1].view == row.view and not self._goes(row):
                self._judge(row, origin, through, views[-1], found)
        return found.verdict(self.id, self.title)

    def _goes(self, row: Row) -> bool:
        """Whether it delivers its own by the cut of the view that it leaves with."""
        member = row.node, row.inc
        frozen = self.frozen.get(member)
        is_own = row.event == DELIVER and row.origin == row.own_origin
        is_last = frozen is not None and frozen.idx < row.idx
        return is_own and is_last and member in self.left

    def _note(self, row: Row, origin: OriginKey, through: int) -> None:
        self.commits.setdefault(((row.node, row.inc), origin, through, row.event), row)

    def _judge(self, row: Row, origin: OriginKey, through: int, view: Row, found: Findings) -> None:
        sent = self.received.get((*split_key(row.member), *origin), NOWHERE)
        if row.event == TX and through <= sent.at(view.run_idx):
            return  # it was sent before the view began: the flush brought it to all who need it
        for member in map(split_key, view.members):
            found.premises += 1
            received = self.received.get((*member, *origin), NOWHERE)
            if received.at(row.run_idx) < through:
                does = "delivers" if row.event == DELIVER else "commits"
                found.violate(
                    f"{row.member} {does} {origin[0]}:{through} in view {view.view}, "
                    f"{member[0]} holds {received.at(row.run_idx)}",
                    *(view, received.row_at(row.run_idx), row),
                )


class Valid(DeliveredInTime):
    """A live sender's message is delivered by all live members of its view.

    All have to hold it first. A member whose application does not read holds one window and no
    more: where the sender's is larger, nothing is owed of what that member has no slot for.
    """

    id = "U5"
    title = "a uniform message of a live sender is delivered everywhere in time"
    stream = Stream.UNIFORM

    def owed_through(self, row: Row, taking: Collection[str], since_ns: int, facts: Facts) -> int:
        through = row.seqno2
        for member in facts.stopped_members.intersection(taking) - {row.member}:
            pair = (*split_key(member), *row.own_origin)
            delivered = self.journal.delivered.get(pair, NOWHERE).at(since_ns)
            low = max(delivered, self.journal.offset(pair))
            through = min(through, low + facts.capacity.get(member, 0))
        return through


class NothingLeft(Drained):
    """In the end no live sender keeps any uniform message."""

    id = "U7"
    title = "in the end uniform windows are empty"
    stream = Stream.UNIFORM


class ThreeDelays(OnStream):
    """Where nothing is amiss a message is delivered everywhere within three delays: it travels, is
    acknowledged, and is committed.

    Nothing is amiss from when all that was sent before the healing is delivered, and all are in
    their last view. Not judged where the sender's window is larger than a receiver's.
    """

    id = "U-L1"
    title = "without faults a uniform message takes three delays"
    stream = Stream.UNIFORM

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if facts.gst_ns is None:
            return found.verdict(self.id, self.title)
        for origin, sends, views in self.journal.live_origins():
            if sends[0].run_idx < 0:
                found.unknown.add(NO_COMMON_CLOCK)
                continue
            members, sender = views[-1].members, sends[0].member
            if all(
                self.journal.is_due(member, sender, facts)
                and facts.capacity.get(sender, 1) <= facts.capacity.get(member, 0)
                for member in members
            ):
                pairs = [(*split_key(member), *origin) for member in members]
                self._judge(pairs, sends, facts.gst_ns, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(
        self, pairs: list[PairKey], sends: list[Row], gst_ns: int, facts: Facts, found: Findings
    ) -> None:
        since_ns = self._calm_since(pairs, sends, gst_ns)
        bound_ns = 3 * facts.delta_ns
        for row in sends:
            if since_ns is None or not since_ns < row.mono_ns <= facts.end_ns - bound_ns:
                continue
            for pair in pairs:
                arrival = self.journal.delivered.get(pair, NOWHERE).reached(row.seqno2)
                waited_ns = (arrival.mono_ns if arrival else facts.end_ns) - row.mono_ns
                found.premises += 1
                found.waited(waited_ns, bound_ns)
                if waited_ns > bound_ns:
                    found.violate(
                        f"{row.member}:{row.seqno}..{row.seqno2} took {waited_ns} ns to {pair[0]}, "
                        f"three delays are {bound_ns}",
                        *(row, arrival),
                    )

    def _calm_since(self, pairs: list[PairKey], sends: list[Row], gst_ns: int) -> int | None:
        """None: something is amiss to the end."""
        before = max((row.seqno2 for row in sends if row.mono_ns <= gst_ns), default=0)
        since_ns = gst_ns
        for pair in pairs:
            view, opening = self.journal.lives.last_view(pair[:2]), self.journal.opened.get(pair)
            since_ns = max(since_ns, view.mono_ns if view else 0)
            since_ns = max(since_ns, opening.mono_ns if opening else 0)
            if self.journal.offset(pair) < before:
                reached = self.journal.delivered.get(pair, NOWHERE).reached(before)
                if reached is None:
                    return None
                since_ns = max(since_ns, reached.mono_ns)
        return since_ns
