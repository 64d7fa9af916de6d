"""What befell senders of uniform messages, and view changes: counted, so that runs in which nothing
happened are noticed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules import membership
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.trace.rows import MemberKey, Row

CRASHED_SENDERS = "seeds: sender dies between data and commit"


class _Life:
    """What one member has done so far."""

    __slots__ = ("change", "committed", "is_leaving", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.committed = 0
        self.change: Row | None = None
        """The last row of a view change: it is frozen, or in a view."""
        self.is_leaving = False

    @property
    def is_torn(self) -> bool:
        """Some message has left and its commit has not."""
        return self.sent > self.committed

    def is_proposing(self, row: Row) -> bool:
        change = self.change
        is_frozen = change is not None and change.event == trace.FREEZE
        return is_frozen and change is not None and change.view_creator == row.member


def departures(rows: Iterable[Row]) -> dict[str, int]:
    """How often what happened. The first is counted once a run."""
    lives: defaultdict[MemberKey, _Life] = defaultdict(_Life)
    counts = {
        CRASHED_SENDERS: 0,
        "a proposer dies": 0,
        "a sender leaves": 0,
        "delivered by a cut": 0,
        "fetched from others": 0,
    }
    for row in rows:
        life = lives[row.node, row.inc]
        match row.event:
            case trace.TX if row.kind == "data" and row.stream == Stream.UNIFORM:
                life.sent = max(life.sent, row.seqno2)
            case trace.TX if row.kind == "commit":
                life.committed = max(life.committed, row.seqno)
            case trace.TX if row.kind == "forwarded" and row.stream == Stream.UNIFORM:
                counts["fetched from others"] += 1
            case trace.VIEW | trace.FREEZE:
                life.change = row
            case trace.CRASH:
                counts[CRASHED_SENDERS] |= life.is_torn
                counts["a proposer dies"] += life.is_proposing(row)
            case membership.LEAVE:
                life.is_leaving = True
            case trace.STOP:
                counts["a sender leaves"] += life.is_leaving and life.sent > 0
            case trace.DELIVER if row.stream == Stream.UNIFORM and life.change is not None:
                is_in_next = life.change.event == trace.VIEW and life.change.view > row.view
                counts["delivered by a cut"] += is_in_next
    return counts
