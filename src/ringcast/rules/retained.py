"""N8, N11 and N-L3 where members report what they have delivered of plain messages (stability
rounds).

Where receivers also retain messages until then, what a departed sender left is not lost: whoever
goes on delivers all that any of them had without a gap, and they deliver the same.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules.algebra import NOWHERE, Progress, merge_progress
from ringcast.rules.delivery import NothingOfTheDeparted, PrefixOfTheDead
from ringcast.rules.findings import Findings
from ringcast.rules.liveness import NO_COMMON_CLOCK, Journal, UnblockedAtOnce
from ringcast.rules.sequential import Sequential
from ringcast.rules.uniform import AllOrNone
from ringcast.trace.rows import (
    BACK,
    DELIVER,
    ESTATE,
    RESOLVED,
    SEND,
    SEND_BLOCK,
    SEND_FAIL,
    SEND_UNBLOCK,
    VIEW,
    split_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.rules.delivery import InView
    from ringcast.rules.findings import Rule, Verdict
    from ringcast.rules.liveness import Waiting
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row


class Joint:
    """Rules that judge one guarantee together."""

    def __init__(self, id: str, title: str, *rules: Rule) -> None:
        self.id = id
        self.title = title
        self.events = tuple(dict.fromkeys(event for rule in rules for event in rule.events))
        self._rules = rules

    def feed(self, row: Row) -> None:
        for rule in self._rules:
            if row.event in rule.events:
                rule.feed(row)

    def merge(self, other: Joint) -> None:
        for mine, theirs in zip(self._rules, other._rules, strict=True):
            mine.merge(theirs)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for rule in self._rules:
            verdict = rule.finish(facts)
            found.merge(
                Findings(
                    verdict.premises,
                    list(verdict.violations),
                    verdict.violation_count,
                    {verdict.undecidable} if verdict.undecidable else set(),
                    verdict.worst,
                )
            )
        return found.verdict(self.id, self.title)


class NothingAskedOfTheDeparted(NothingOfTheDeparted):
    """The half of N8 that is the same where messages are retained."""

    title = "nothing is asked of a member that has left the view"

    def key(self, row: Row) -> MemberKey | None:
        return None if row.event == DELIVER else super().key(row)


class OnlyWhatWasLeft:
    """Of a departed sender only what somebody who goes on had without a gap is delivered.

    Whoever goes on is in a view of the receiver since the sender's departure.
    """

    id = NothingOfTheDeparted.id
    title = NothingOfTheDeparted.title
    events = (VIEW, DELIVER, ESTATE)

    def __init__(self) -> None:
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)
        self.delivered: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.estates: defaultdict[PairKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.event == VIEW:
            self.views[row.node, row.inc].append(row)
        elif row.stream != Stream.FIFO:
            return
        elif row.event == DELIVER:
            self.delivered[row.pair].rise(row.idx, row.seqno2, row)
        else:
            self.estates[row.pair].append(row)

    def merge(self, other: OnlyWhatWasLeft) -> None:
        for member, views in other.views.items():
            self.views[member] += views
        merge_progress(self.delivered, other.delivered)
        for pair, rows in other.estates.items():
            self.estates[pair] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for pair, delivered in self.delivered.items():
            sender = f"{pair[2]}#{pair[3]}"
            for _, through, row in delivered:
                since = self._views_without(sender, row)
                if not since:
                    continue
                found.premises += 1
                most, shown = self._most_received(since, pair[2:])
                if through > most:
                    found.violate(
                        f"{row.member} delivers {sender}:{through} after its departure; nobody who "
                        f"goes on holding more than {most}",
                        *(since[0], shown, row),
                    )
        return found.verdict(self.id, self.title)

    def _views_without(self, sender: str, delivery: Row) -> list[Row]:
        """Those of the receiver, up to this delivery, since the sender is not in them."""
        views = self.views.get((delivery.node, delivery.inc), [])
        since: list[Row] = []
        for view in views:
            if view.idx > delivery.idx:
                break
            since = [] if sender in view.members else [*since, view]
        return since

    def _most_received(self, views: list[Row], origin: OriginKey) -> tuple[int, Row | None]:
        """By anybody in these views, when it saw the sender depart."""
        heirs = dict.fromkeys(split_key(key) for view in views for key in view.members)
        shown = [
            row
            for heir in heirs
            for row in departures(self.estates.get((*heir, *origin), []))
            if not row.detail
        ]
        last = max(shown, key=lambda row: row.received, default=None)
        return (0, None) if last is None else (last.received, last)


def departures(estates: list[Row]) -> Iterator[Row]:
    """The first row of each departure of a sender: it may have been back in between."""
    before: Row | None = None
    for row in estates:
        if before is None or before.kind in (RESOLVED, BACK):
            yield row
        before = row


class UnblockedByStability:
    """Once everybody has delivered all that a sender has sent, a stability round tells it so, and
    if it was blocked it goes on.

    The time runs from the end of healing, from the last view, from when it was blocked or from
    the last delivery, whichever is last; where every member of the view lives and takes.
    """

    id = UnblockedAtOnce.id
    title = UnblockedAtOnce.title
    events = (SEND_BLOCK, SEND_UNBLOCK, SEND_FAIL, *Journal.EVENTS)

    def __init__(self) -> None:
        self.journal = Journal()
        self.waits: defaultdict[OriginKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.event in Journal.EVENTS:
            self.journal.feed(row)
        if row.event in _GOING_ON and row.stream == Stream.FIFO:
            self.waits[row.own_origin].append(row)

    def merge(self, other: UnblockedByStability) -> None:
        self.journal.merge(other.journal)
        for origin, rows in other.waits.items():
            self.waits[origin] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if facts.gst_ns is not None:
            for origin, sends, views in self.journal.live_origins():
                sender, view = sends[-1].member, views[-1]
                if sends[-1].run_idx < 0:
                    found.unknown.add(NO_COMMON_CLOCK)
                elif all(self.journal.is_due(member, sender, facts) for member in view.members):
                    for block, end in _blocked_by_bytes(self.waits.get(origin, [])):
                        self._judge(origin, block, end, view, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(
        self,
        origin: OriginKey,
        block: Row,
        end: Row | None,
        view: Row,
        facts: Facts,
        found: Findings,
    ) -> None:
        assert facts.gst_ns is not None
        ended_ns = facts.end_ns if end is None else end.mono_ns
        since_ns = max(facts.gst_ns, view.mono_ns, block.mono_ns)
        if ended_ns < since_ns:
            return
        for member in view.members:
            pair = (*split_key(member), *origin)
            arrival = self.journal.delivered.get(pair, NOWHERE).reached(block.hr)
            if self.journal.offset(pair) >= block.hr:
                continue
            if arrival is None:
                return  # N-L1 sees to that
            since_ns = max(since_ns, arrival.mono_ns)
        waited_ns, bound_ns = max(0, ended_ns - since_ns), facts.round_bound_ns
        if end is None and waited_ns <= bound_ns:
            return
        found.premises += 1
        found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            found.violate(
                f"{block.member} is blocked for {waited_ns} ns after all have delivered "
                f"{block.hr}, the bound is {bound_ns}",
                *(view, block, end),
            )


_GOING_ON = (SEND_BLOCK, SEND_UNBLOCK, SEND_FAIL, SEND)


def _blocked_by_bytes(rows: list[Row]) -> Iterator[tuple[Row, Row | None]]:
    """When a sender was blocked, and when it could go on: with the rest of a large message, or
    with more."""
    block: Row | None = None
    for row in rows:
        if row.event == SEND_BLOCK:
            block = row
        elif block is not None:
            yield block, row
            block = None
    if block is not None:
        yield block, None


def only_what_was_left() -> Joint:
    asked: Sequential[InView | None] = Sequential(NothingAskedOfTheDeparted())
    return Joint(
        NothingOfTheDeparted.id,
        "nothing is asked of a member that has left the view, and what comes is what it has left",
        asked,
        OnlyWhatWasLeft(),
    )


def same_prefix() -> Joint:
    return Joint(
        PrefixOfTheDead.id,
        "of a departed sender all who go on deliver the same prefix",
        PrefixOfTheDead(),
        AllOrNone(Stream.FIFO),
    )


def unblocked_by_stability() -> Joint:
    at_once: Sequential[Waiting] = Sequential(UnblockedAtOnce())
    return Joint(
        UnblockedAtOnce.id,
        UnblockedAtOnce.title,
        at_once,
        UnblockedByStability(),
    )
