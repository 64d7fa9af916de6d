"""What befell senders of uniform messages, and those who took over: counted, so that runs in which
nothing happened are noticed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules import membership
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.trace.rows import MemberKey, PairKey, Row

CRASHED_SENDERS = "seeds: sender dies between data and commit"


class _Life:
    """What one member has done so far."""

    __slots__ = ("committed", "estates", "is_leaving", "sent", "view")

    def __init__(self) -> None:
        self.sent = 0
        self.committed = 0
        self.estates: set[PairKey] = set()
        self.view: Row | None = None
        self.is_leaving = False

    @property
    def is_torn(self) -> bool:
        """Some message has left and its commit has not."""
        return self.sent > self.committed


def departures(rows: Iterable[Row]) -> dict[str, int]:
    """How often what happened. The first is counted once a run."""
    lives: defaultdict[MemberKey, _Life] = defaultdict(_Life)
    received: dict[PairKey, int] = {}
    counts = {
        CRASHED_SENDERS: 0,
        "a taker dies of it": 0,
        "a sender leaves": 0,
        "delivered after the sender departed": 0,
        "fetched from others": 0,
        "resolved": 0,
    }
    for row in rows:
        life = lives[row.node, row.inc]
        match row.event:
            case trace.TX if row.kind == "data" and row.stream == Stream.UNIFORM:
                life.sent = max(life.sent, row.seqno2)
            case trace.TX if row.kind == "commit":
                life.committed = max(life.committed, row.seqno)
            case trace.VIEW:
                life.view = row
            case trace.CRASH:
                counts[CRASHED_SENDERS] |= life.is_torn
                is_taker = life.view is not None and life.view.members[0] == row.member
                counts["a taker dies of it"] += is_taker and bool(life.estates)
            case membership.LEAVE:
                life.is_leaving = True
            case trace.STOP:
                counts["a sender leaves"] += life.is_leaving and life.sent > 0
            case trace.ESTATE if row.kind in (trace.RESOLVED, trace.BACK):
                life.estates.discard(row.pair)
                counts["resolved"] += 1
            case trace.ESTATE:
                before = (
                    received.get(row.pair, row.received)
                    if row.pair in life.estates
                    else row.received
                )
                counts["fetched from others"] += row.received > before and not row.detail
                received[row.pair] = row.received
                life.estates.add(row.pair)
            case trace.DELIVER if row.stream == Stream.UNIFORM and life.view is not None:
                is_member = f"{row.peer}#{row.peer_inc}" in life.view.members
                counts["delivered after the sender departed"] += not is_member
    return counts
