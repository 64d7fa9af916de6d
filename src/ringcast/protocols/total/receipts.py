"""Receipts of total messages: when one is ordered, and when everybody has delivered it.

    state      what comes                                   then
    PENDING    it is taken                                  Ordered, with its place; ask → ORDERED
               it is known to be in the history             Ordered, without a place; Confirmed
               nobody can say what became of it             Ordered says so; Confirmed
    ORDERED    its sequencer says that all delivered it     Confirmed
               a member of its view departs                 Confirmed, which names it
               another is the sequencer, or the same one    Confirmed: all who go on have taken it
               from elsewhere, where it has forgotten it

At who was the sequencer, of its own log:
On SubmitQuery: note how far that origin waits; answer when all others of the view have delivered
    it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.events import Confirmed, Ordered
from ringcast.model import Member, Place, View

if TYPE_CHECKING:
    from collections.abc import Set

    from ringcast.core.effects import Effects
    from ringcast.protocols.multicast_sender import MulticastSender


@dataclass(slots=True)
class _Asked:
    number: int
    message: int
    is_flush: bool
    view: View | None = None
    """In which it was taken; None: it is pending."""


class OrderReceipts:
    """One member's own, in the order of their messages."""

    def __init__(self) -> None:
        self._asked: deque[_Asked] = deque()
        self._through = 0  # all others have delivered up to this one

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, number: int, message: int, *, is_flush: bool) -> None:
        """Of this message, which is pending."""
        self._asked.append(_Asked(number, message, is_flush))

    def taken(self, last: int, place: Place, view: View, out: Effects) -> None:
        """One's own messages up to this one, which has that place. In this view, or earlier: then
        all who have gone on have taken it."""
        for asked in list(self._asked):
            if asked.view is None and asked.message <= last:
                asked.view = view
                at = Place(place.view_id, place.position - (last - asked.message))
                out.event(Ordered(asked.number, at))
                is_over = len(view) == 1 or place.view_id != view.id
                if is_over or asked.message <= self._through:
                    self._asked.remove(asked)
                    out.event(Confirmed(asked.number))

    def drop(self, last: int, place: Place | None, out: Effects) -> None:
        """Those up to this one are in the history, somewhere before that place; None: nobody can
        say whether they are."""
        for asked in [each for each in self._asked if each.view is None and each.message <= last]:
            self._asked.remove(asked)
            out.event(Ordered(asked.number, place, is_submitted=place is None))
            out.event(Confirmed(asked.number))

    @property
    def wanted(self) -> int:
        """The highest message that is taken and not delivered by all; 0: none."""
        return max((each.message for each in self._asked if each.view is not None), default=0)

    def delivered(self, through: int, out: Effects) -> None:
        """All others have delivered up to this one."""
        self._through = max(self._through, through)
        for asked in list(self._asked):
            if asked.view is not None and asked.message <= through:
                self._asked.remove(asked)
                out.event(Confirmed(asked.number))

    def begin(self, view: View, staying: Set[Member], out: Effects) -> None:
        """This one begins; these come along with this member from the last one."""
        for asked in [each for each in self._asked if each.view is not None]:
            assert asked.view is not None
            gone = tuple(who for who in asked.view if who not in staying and not asked.is_flush)
            is_told = asked.view.coordinator == view.coordinator and view.coordinator in staying
            if gone or not is_told:
                self._asked.remove(asked)
                out.event(Confirmed(asked.number, gone, str(view) if gone else ""))

    def close(self, submitted: int, out: Effects) -> None:
        """This member is out. What was submitted may be ordered all the same."""
        for asked in self._asked:
            if asked.view is None:
                is_submitted = asked.message <= submitted
                out.event(Ordered(asked.number, None, is_submitted=is_submitted))
        self._asked.clear()


class Deliveries:
    """Of the log that this member has sent: how far the others have delivered it, for the origins
    that ask."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, Member, int]] = deque()  # seqno, origin, last number
        self._delivered: dict[Member, int] = {}
        self._asked: dict[Member, int] = {}

    def __len__(self) -> int:
        return len(self._batches) + len(self._asked)

    def sent(self, seqno: int, origin: Member, last: int) -> None:
        self._batches.append((seqno, origin, last))

    def ask(self, origin: Member, number: int) -> None:
        if number > self._asked.get(origin, 0):
            self._asked[origin] = number

    def look(self, log: MulticastSender) -> list[tuple[Member, int]]:
        """Who is to be told, and up to which of its numbers all have delivered."""
        batches = self._batches
        while batches and batches[0][0] <= log.window.low:
            _, origin, last = batches.popleft()
            self._delivered[origin] = last
        told = [(origin, self._through(origin, log)) for origin in self._asked]
        due = [(origin, through) for origin, through in told if through >= self._asked[origin]]
        for origin, _ in due:
            del self._asked[origin]
        return due

    def _through(self, origin: Member, log: MulticastSender) -> int:
        """Its messages that all others have delivered, whether or not its own application has."""
        through, low = self._delivered.get(origin, 0), log.acks.delivered_by_others(origin)
        for seqno, whose, last in self._batches:
            if seqno > low:
                break
            if whose == origin:
                through = last
        return through

    def begin(self, view: View, *, is_mine: bool) -> None:
        """`is_mine`: this member is its sequencer."""
        if not is_mine:
            self._batches.clear()
        for table in (self._asked, self._delivered):
            for member in [member for member in table if member not in view]:
                del table[member]
