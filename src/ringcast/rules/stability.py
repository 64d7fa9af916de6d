"""N-L3 where members report what they have delivered of plain messages (stability rounds)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.rules.algebra import NOWHERE
from ringcast.rules.liveness import NO_COMMON_CLOCK, OnStream, UnblockedAtOnce
from ringcast.rules.sequential import Sequential
from ringcast.trace.rows import SEND, SEND_BLOCK, SEND_FAIL, SEND_UNBLOCK, split_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from ringcast.rules.findings import Findings, Verdict
    from ringcast.rules.liveness import Waiting
    from ringcast.trace.rows import Facts, OriginKey, Row


class UnblockedByStability(OnStream):
    """Once everybody has delivered all that a sender has sent, a stability round tells it so, and
    if it was blocked it goes on: in the input of the purge, as with acks.

    The time runs from the end of healing, from the last view, from when it was blocked or from
    the last delivery, whichever is last; where every member of the view lives and takes.
    """

    id = UnblockedAtOnce.id
    title = UnblockedAtOnce.title
    events = tuple(dict.fromkeys((*UnblockedAtOnce.events, *OnStream.events)))

    def __init__(self) -> None:
        super().__init__()
        self.at_once: Sequential[Waiting] = Sequential(UnblockedAtOnce())
        self.waits: defaultdict[OriginKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.event in OnStream.events:
            super().feed(row)
        if row.event in UnblockedAtOnce.events:
            self.at_once.feed(row)
        if row.event in _GOING_ON and row.stream == self.stream:
            self.waits[row.own_origin].append(row)

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.at_once.merge(other.at_once)
        for origin, rows in other.waits.items():
            self.waits[origin] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = self.at_once.findings(facts)
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
        waited_ns = self.waited_ns(view.members, since_ns, ended_ns)
        bound_ns = facts.round_bound_ns
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
            block = None if row.detail == "change" else row
        elif block is not None:
            yield block, row
            block = None
    if block is not None:
        yield block, None
