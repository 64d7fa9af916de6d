"""U5, U7, U-L1–U-L3: when uniform messages come, and when what the departed left is resolved."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.protocols.channel import TICK_S
from ringcast.protocols.multicast import ASK_NS
from ringcast.rules.algebra import NOWHERE, Lives
from ringcast.rules.findings import Findings
from ringcast.rules.liveness import (
    NO_COMMON_CLOCK,
    DeliveredInTime,
    Drained,
    Journal,
    latest_rows,
)
from ringcast.rules.membership import LEAVE, GroupFacts
from ringcast.trace.rows import BACK, ESTATE, PHASE, RESOLVED, STOP, TX, Facts, split_key

if TYPE_CHECKING:
    from collections import deque

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import MemberKey, PairKey, Row

TAKEOVER_KINDS = ("takeover", "standing", "commit_wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedFacts(Facts):
    """The same run, with the bounds of a stream that waits for commits."""

    @classmethod
    def of(cls, facts: Facts) -> GatedFacts:
        values = {item.name: getattr(facts, item.name) for item in fields(Facts)}
        return cls(**{**values, "purge": "acks"})  # which everybody gives, on this stream

    def delivery_bound_ns(self, missing: int) -> int:
        """Until all hold it, as on the other stream (N-L1); then acks, or a probe for those that
        were lost, and the commit. With a further request the receiver must first deliver what it
        has, so each costs an ack and a commit too."""
        requests = max(1, -(-missing // self.nack_messages_max))
        further = (requests - 1) * (self.tau_ns + 4 * self.delta_ns)
        return 4 * self.tau_ns + 8 * self.delta_ns + further


def channel_bound_ns(facts: Facts) -> int:
    """How long a message between layers may take, with a sync if the connection was lost."""
    return 5 * min(facts.tau_ns, round(TICK_S * 1e9)) + 5 * facts.delta_ns


def resolve_bound_ns(facts: Facts) -> int:
    """From the last view until what the departed left is resolved there.

    All are asked and answer; the taker fetches what it lacks; the others are told and fetch; they
    say so; all are told to deliver; they say so; all are told that it is done. Only the first of
    these may have been lost before the network worked, and is repeated within τ.
    """
    return facts.tau_ns + 7 * facts.delta_ns + 4 * channel_bound_ns(facts)


@dataclass(frozen=True, kw_only=True)  # no slots: super() would not find the class they make
class HeirFacts(GroupFacts):
    """A run whose members make their own views, and finish what the departed have left."""

    @property
    def settle_bound_ns(self) -> int:
        """Until a coordinator may let somebody in: all that departed are resolved."""
        return resolve_bound_ns(self)

    @property
    def join_bound_ns(self) -> int:
        return super().join_bound_ns + self.settle_bound_ns

    @property
    def one_view_bound_ns(self) -> int:
        """Groups that come together are settled before, each time."""
        return super().one_view_bound_ns + (self.nodes - 1) * self.settle_bound_ns


@dataclass(frozen=True, kw_only=True)
class UniformFacts(HeirFacts):
    """A run whose members make their own views and have the uniform stream."""

    @property
    def settle_bound_ns(self) -> int:
        """The same, and all others have said what they have committed, and it has delivered
        that."""
        asked = ASK_NS + 2 * self.delta_ns
        committed = GatedFacts.of(self).delivery_bound_ns(max(self.capacity.values(), default=1))
        return super().settle_bound_ns + asked + committed

    @property
    def drained_bound_ns(self) -> int:
        """Until everything is delivered, known to be, and resolved."""
        drained = GatedFacts.of(self).drain_bound_ns(max(self.capacity.values(), default=1))
        return max(drained, resolve_bound_ns(self))

    @property
    def flush_bound_ns(self) -> int:
        """Until all others have delivered what was sent here, to all or to one, and have said
        so."""
        longest = max(self.capacity.values(), default=1)
        gated = GatedFacts.of(self).drain_bound_ns(longest)
        return (
            max(gated, self.drain_bound_ns(longest))
            + 2 * self.tau_ns
            + 2 * self.delta_ns
            + self.ack_interval_ns
        )


class Valid:
    """A live sender's message is delivered by all live members of its view."""

    id = "U5"
    title = "a uniform message of a live sender is delivered everywhere in time"
    events = DeliveredInTime.events

    def __init__(self) -> None:
        self.delivered = DeliveredInTime()

    def feed(self, row: Row) -> None:
        if row.stream in (Stream.UNIFORM, -1):
            self.delivered.feed(row)

    def merge(self, other: Valid) -> None:
        self.delivered.merge(other.delivered)

    def finish(self, facts: Facts) -> Verdict:
        verdict = self.delivered.finish(GatedFacts.of(facts))
        return replace(verdict, id=self.id, title=self.title)


class ThreeDelays:
    """Where nothing is amiss a message is delivered everywhere within three delays: it travels, is
    acknowledged, and is committed.

    Nothing is amiss from when all that was sent before the healing is delivered, and all are in
    their last view. Not judged where the sender's window is larger than a receiver's.
    """

    id = "U-L1"
    title = "without faults a uniform message takes three delays"
    events = Journal.EVENTS

    def __init__(self) -> None:
        self.journal = Journal()

    def feed(self, row: Row) -> None:
        if row.stream in (Stream.UNIFORM, -1):
            self.journal.feed(row)

    def merge(self, other: ThreeDelays) -> None:
        self.journal.merge(other.journal)

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


class Resolutions:
    """From when to when there was an estate of a departed sender at a member."""

    EVENTS = (ESTATE, PHASE, *Lives.EVENTS)

    __slots__ = ("ended", "heal", "lives", "open")

    def __init__(self) -> None:
        self.open: dict[PairKey, Row] = {}
        """The last row of those that are not resolved."""
        self.ended: list[Row] = []
        self.heal: Row | None = None
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == PHASE:
            if row.kind == "heal":
                self.heal = row
        elif row.event != ESTATE:
            self.lives.feed(row)
        elif row.kind in (RESOLVED, BACK):
            self.open.pop(row.pair, None)
            self.ended.append(row)
        else:
            self.open[row.pair] = row

    def merge(self, other: Resolutions) -> None:
        for row in other.ended:
            self.open.pop(row.pair, None)
        self.open |= other.open
        self.ended += other.ended
        self.heal = self.heal or other.heal
        self.lives.merge(other.lives)

    def all_in(self, row: Row) -> int:
        """When the last member of this row's view installed it, as far as any did."""
        view = next(view for view in self.lives.views[row.node, row.inc] if view.view == row.view)
        installed = [
            each.mono_ns
            for member in map(split_key, view.members)
            for each in self.lives.views.get(member, [])
            if (each.view, each.view_creator) == (view.view, view.view_creator)
        ]
        return max(installed)

    def left(self) -> list[Row]:
        """Of whom something is left at the end, at those who live."""
        return [row for pair, row in self.open.items() if self.lives.is_live(pair[:2])]


class Resolved:
    """What a departed sender left is resolved soon after the last view.

    The time runs from when the last member has installed the view in which it happens, or from the
    end of the faults. Not judged where some member's application does not take.
    """

    id = "U-L2"
    title = "what the departed left is resolved in time"
    events = Resolutions.EVENTS

    def __init__(self) -> None:
        self.all = Resolutions()

    def feed(self, row: Row) -> None:
        self.all.feed(row)

    def merge(self, other: Resolved) -> None:
        self.all.merge(other.all)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        heal = self.all.heal
        if heal is None or facts.stopped_members:
            return found.verdict(self.id, self.title)
        bound_ns = resolve_bound_ns(facts)
        for row in self.all.ended:
            if row.run_idx < 0:
                found.unknown.add(NO_COMMON_CLOCK)
            elif row.mono_ns > heal.mono_ns:
                since_ns = max(heal.mono_ns, self.all.all_in(row))
                self._judge(row, row.mono_ns - since_ns, bound_ns, found)
        for row in self.all.left():
            view = self.all.lives.last_view((row.node, row.inc))
            assert view is not None
            waited_ns = facts.end_ns - max(heal.mono_ns, self.all.all_in(view))
            if waited_ns > bound_ns:
                self._judge(row, waited_ns, bound_ns, found)
        return found.verdict(self.id, self.title)

    @staticmethod
    def _judge(row: Row, waited_ns: int, bound_ns: int, found: Findings) -> None:
        found.premises += 1
        found.waited(max(0, waited_ns), bound_ns)
        if waited_ns > bound_ns:
            found.violate(
                f"{row.peer} has departed and takes {waited_ns} ns to be resolved at "
                f"{row.member}, the bound is {bound_ns}",
                row,
            )


class LeavesSoon:
    """On a network that works, whoever leaves is out as soon as what it has sent is taken."""

    id = "U-L3"
    title = "whoever leaves is out when its uniform messages are, or after the leave time"
    events = (LEAVE, STOP)

    def __init__(self) -> None:
        self.asked: dict[MemberKey, Row] = {}
        self.out: dict[MemberKey, Row] = {}

    def feed(self, row: Row) -> None:
        (self.asked if row.event == LEAVE else self.out).setdefault((row.node, row.inc), row)

    def merge(self, other: LeavesSoon) -> None:
        self.asked = other.asked | self.asked
        self.out = other.out | self.out

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if not isinstance(facts, UniformFacts) or facts.gst_ns is None:
            return found.verdict(self.id, self.title)
        bound_ns = min(facts.leave_ns, facts.flush_bound_ns) + 2 * facts.delta_ns
        for member, asked in self.asked.items():
            out = self.out.get(member)
            if asked.mono_ns < facts.gst_ns or (out is None and facts.end_ns <= asked.mono_ns):
                continue
            waited_ns = (facts.end_ns if out is None else out.mono_ns) - asked.mono_ns
            if out is None and waited_ns <= bound_ns:
                continue
            found.premises += 1
            found.waited(waited_ns, bound_ns)
            if waited_ns > bound_ns:
                found.violate(
                    f"{asked.member} has not left after {waited_ns} ns, the bound is {bound_ns}",
                    *(asked, out),
                )
        return found.verdict(self.id, self.title)


class NothingLeft:
    """In the end no live sender keeps anything, nothing is left of departed ones, and nobody speaks
    of them any more."""

    id = "U7"
    title = "in the end uniform windows are empty and those of the departed are gone"
    events = (*Drained.events, ESTATE, PHASE, TX)

    def __init__(self) -> None:
        self.drained = Drained()
        self.resolutions = Resolutions()
        self.ending: Row | None = None
        self.said: defaultdict[MemberKey, deque[Row]] = defaultdict(latest_rows)

    def feed(self, row: Row) -> None:
        if row.event == TX:
            if row.kind in TAKEOVER_KINDS:
                self.said[row.node, row.inc].append(row)
            return
        if row.event == PHASE and row.kind == "end":
            self.ending = row
        if row.event in Drained.events and row.stream in (Stream.UNIFORM, -1):
            self.drained.feed(row)
        if row.event in Resolutions.EVENTS:
            self.resolutions.feed(row)

    def merge(self, other: NothingLeft) -> None:
        self.drained.merge(other.drained)
        self.resolutions.merge(other.resolutions)
        self.ending = self.ending or other.ending
        for member, rows in other.said.items():
            self.said[member] += rows

    def finish(self, facts: Facts) -> Verdict:
        drained = self.drained.finish(GatedFacts.of(facts))
        found = Findings(
            premises=drained.premises,
            violations=list(drained.violations),
            violation_count=drained.violation_count,
            unknown={drained.undecidable} if drained.undecidable else set(),
            worst=drained.worst,
        )
        if self.ending is None or facts.stopped_members:
            return found.verdict(self.id, self.title)
        found.premises += len(self.resolutions.ended)
        for row in self.resolutions.left():
            found.violate(f"{row.member} still has an estate of {row.peer}", row)
        for rows in self.said.values():
            late = [row for row in rows if row.mono_ns > self.ending.mono_ns]
            if late:
                found.violate(f"{late[0].member} still sends {late[-1].kind}", self.ending, *late)
        return found.verdict(self.id, self.title)
