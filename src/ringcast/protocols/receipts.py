"""Receipts: when the members that a message was sent to have delivered it.

One table for each stream of one's own messages. A receipt stands for all messages up to the last
one that was accepted when it was asked for, and names the members that have not delivered them.

On ask: note the seqno of that message, and who is behind it. A large message that has not all its
    seqnos yet is noted as open, until its last fragment has one.
On a watermark that rises: look at the oldest receipt first. Seqnos only grow, and a receipt waits
    for all members that older ones wait for, so none is ready before an older one is.
On view: a member that has departed delivers nothing more. A receipt that waits for it ends at once
    and names it; a flush goes on without it.

There is at most one receipt and one flush for each seqno, so never more than the window holds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ringcast.events import Confirmed
from ringcast.model import SEQNO_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from ringcast.core.effects import Effects
    from ringcast.model import Member

    HasDelivered: TypeAlias = Callable[[Member, int], bool]

OPEN = SEQNO_MAX + 1
"""Stands for the seqno of a message that has not got its last one yet."""


@dataclass(slots=True)
class _Pending:
    number: int
    seqno: int
    waiting: list[Member]
    is_flush: bool


class Receipts:
    """Those of one stream that are pending, oldest first."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def ask(self, number: int, seqno: int, waiting: list[Member], *, is_flush: bool) -> int:
        """The number under which Confirmed follows: this one, or that of an equal receipt."""
        for pending in reversed(self._pending):
            if pending.seqno != seqno:
                break
            if pending.is_flush and is_flush:
                return pending.number
        self._pending.append(_Pending(number, seqno, waiting, is_flush))
        return number

    def close(self, seqno: int) -> None:
        """The message that was open ends with this seqno."""
        for pending in reversed(self._pending):
            if pending.seqno != OPEN:
                break
            pending.seqno = seqno

    def look(self, has_delivered: HasDelivered, out: Effects) -> None:
        """Confirm those that nobody is behind any more."""
        pending = self._pending
        while pending:
            first = pending[0]
            # The last one stands for all: each member is asked until it is past, and then no more.
            while first.waiting and has_delivered(first.waiting[-1], first.seqno):
                first.waiting.pop()
            if first.waiting:
                return
            out.event(Confirmed(pending.popleft().number))

    def depart(
        self, staying: Container[Member], has_delivered: HasDelivered, reason: str, out: Effects
    ) -> None:
        """Members that are not `staying` deliver nothing more; `reason` is for people."""
        kept: deque[_Pending] = deque()
        for pending in self._pending:
            waiting = [who for who in pending.waiting if not has_delivered(who, pending.seqno)]
            gone = tuple(who for who in waiting if who not in staying)
            if gone and not pending.is_flush:
                out.event(Confirmed(pending.number, gone, reason))
            else:
                pending.waiting = [who for who in waiting if who in staying]
                kept.append(pending)
        self._pending = kept
        self.look(has_delivered, out)

    def clear(self) -> None:
        """This member is out: nobody is told anything by it."""
        self._pending.clear()
