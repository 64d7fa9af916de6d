"""Members that live and cannot hear each other.

One that is not heard is complained of to the coordinator, again and again for as long as that is
so. The coordinator verifies it: if it is gone, it is suspected anyway. If it lives, and the
complaint goes on for so long that the coordinator would have noticed, the link between the two is
broken, and one of them has to go: whoever stands in more complaints, its own or of others; of two
as bad the later one in the view. So it is the same one, whoever decides.

It may not come in again while somebody of the view still complains of it. Whoever is not heard is
told, too: it may hear the other one itself, and complains of it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.model import Member, View

BROKEN_AFTER_NS = 900_000_000
"""How long a complaint goes on before the link is taken to be broken."""

FRESH_NS = 3_000_000_000
"""How long a complaint counts after it was last repeated."""

PROBE_NS = 1_000_000_000
"""How often whoever is not heard is asked, and complained of."""

FORGET_NS = 60_000_000_000
"""After so long whoever is not heard is forgotten."""

COMPLAINTS_MAX = 1024


class Complaint(NamedTuple):
    since: int
    last: int


class Pairs:
    """Whom this member does not hear; and what others complain of, if it coordinates."""

    def __init__(self) -> None:
        self.unheard: dict[Member, int] = {}
        """Since when each is not heard."""
        self._complaints: dict[tuple[Member, Member], Complaint] = {}

    def miss(self, member: Member, now: int) -> None:
        """It is not a pair's affair if the coordinator does not hear it either."""
        self.unheard.setdefault(member, now)
        self._complaints = {pair: c for pair, c in self._complaints.items() if member not in pair}

    def hear(self, member: Member) -> None:
        self.unheard.pop(member, None)

    def forget_old(self, now: int) -> None:
        self.unheard = {
            who: since for who, since in self.unheard.items() if now - since < FORGET_NS
        }

    def begin(self, view: View) -> None:
        """What its members complained of before they were in it together does not count."""
        self._complaints = {
            (source, member): complaint
            for (source, member), complaint in self._complaints.items()
            if source not in view or member not in view
        }

    def complain(self, source: Member, member: Member, now: int) -> bool:
        """Whether it has done so before, lately."""
        if member in self.unheard:
            return False
        before = self._complaints.get((source, member))
        is_fresh = before is not None and now - before.last < FRESH_NS
        since = before.since if before is not None and is_fresh else now
        if before is None and len(self._complaints) >= COMPLAINTS_MAX:
            self._complaints = {
                pair: c for pair, c in self._complaints.items() if now - c.last < FRESH_NS
            }
        if before is not None or len(self._complaints) < COMPLAINTS_MAX:
            self._complaints[source, member] = Complaint(since, now)
        return is_fresh

    def broken(self, view: View, now: int) -> Member | None:
        """Who has to go, if two members of this view cannot hear each other."""
        fresh = [
            pair
            for pair, complaint in self._complaints.items()
            if now - complaint.last < FRESH_NS and pair[0] in view and pair[1] in view
        ]
        lasting = [pair for pair in fresh if self._is_lasting(self._complaints[pair], now)]
        if not lasting:
            return None
        involved = [who for pair in fresh for who in pair]
        place = view.members.index
        return max(lasting[0], key=lambda who: (involved.count(who), place(who)))

    def is_barred(self, members: Iterable[Member], view: View, now: int) -> bool:
        """Whether somebody of this view does not hear one of these, though others do."""
        return any(
            self._is_lasting(complaint, now) and source in view and member in members
            for (source, member), complaint in self._complaints.items()
        )

    def _is_lasting(self, complaint: Complaint, now: int) -> bool:
        is_fresh = now - complaint.last < FRESH_NS
        return is_fresh and complaint.last - complaint.since >= BROKEN_AFTER_NS
