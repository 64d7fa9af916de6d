"""Receipt: what `send(..., receipt=True)` returns, to find out when a message has been delivered.

A receipt is ready when every other member of the view that the message was sent in has delivered
it, or that one member it was sent to. It fails when one of them departs before that, or this member
does. Pending ones are kept here: never more than messages in the windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.aio.gate import Gate
from ringcast.errors import GroupClosed, NotDelivered, NotOrdered, OutcomeUnknown, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.errors import RingcastError
    from ringcast.events import Confirmed, Ordered
    from ringcast.model import Place


class Receipt:
    """Of one message. Made by `send`; any number of tasks may await it, at any time."""

    __slots__ = ("_failure", "_gate", "_is_ready", "_number", "_place", "_unordered")

    def __init__(self, *, is_ready: bool = False, total: int = 0) -> None:
        """`total`: the number of a total message."""
        self._is_ready = is_ready
        self._number = total
        self._failure: Callable[[], RingcastError] | None = None
        self._place: Place | None = None
        self._unordered: Callable[[], RingcastError] | None = None
        self._gate = Gate()

    async def ordered(self) -> Place:
        """Of a total message: wait until it has its place in the one order, which this returns.
        This member has taken it there, and all who go on with this member do. Position 0: it has
        its place somewhere before that view, and other members took it there.

        NotOrdered: this member was out of its group before it could send the message.
        OutcomeUnknown: it has sent it, and nobody can say whether it is in the order.
        """
        if not self._number:
            raise UsageError("only total messages have a place: send with guarantee='total'")
        while self._place is None:
            if self._unordered is not None:
                raise self._unordered()
            await self._gate.wait()
        return self._place

    async def delivered(self) -> None:
        """Wait until every other member of the view that the message was sent in has delivered it;
        or the member that it was sent to, which may be oneself. Delivered is what their application
        has read; with `receive=False` that is what has arrived.

        NotDelivered names who left, or was excluded, before it had delivered the message: it may
        have it all the same. GroupClosed: this member itself has left, or was excluded.
        """
        while not self.is_delivered():
            await self._gate.wait()

    def is_delivered(self) -> bool:
        """What `delivered` would return or raise, without waiting; False: it would wait."""
        if self._failure is not None:
            raise self._failure()
        return self._is_ready

    def _order(self, event: Ordered) -> None:
        number, self._place = self._number, event.place
        if event.place is None and event.is_submitted:
            self._unordered = lambda: OutcomeUnknown(
                f"total message {number} was sent, and nobody can say whether it is in the order"
            )
        elif event.place is None:
            self._unordered = lambda: NotOrdered(number, number)
        self._gate.open()

    def _end(self, failure: Callable[[], RingcastError] | None = None) -> None:
        self._is_ready, self._failure = failure is None, failure
        self._gate.open()


class Receipts:
    """Those of a member that are pending, by the number that its node gave them."""

    def __init__(self) -> None:
        self._pending: dict[int, Receipt] = {}

    def of(self, number: int | None, total: int = 0) -> Receipt:
        """The receipt of this number; None: there is nothing to wait for. `total`: the number of
        the message, if it is one."""
        if number is None:
            return Receipt(is_ready=True)
        return self._pending.setdefault(number, Receipt(total=total))

    def on_ordered(self, event: Ordered) -> None:
        receipt = self._pending.get(event.number)
        if receipt is not None:
            receipt._order(event)

    def on_confirmed(self, event: Confirmed) -> None:
        receipt = self._pending.pop(event.number, None)
        if receipt is not None:
            missing = event.missing
            failure = (lambda: NotDelivered(missing, event.reason)) if missing else None
            receipt._end(failure)

    def fail(self, reason: str) -> None:
        """This member is out: nobody tells it anything more."""
        pending, self._pending = self._pending, {}
        for receipt in pending.values():
            receipt._end(lambda: GroupClosed(reason))

    def stats(self) -> dict[str, object]:
        return {"pending": len(self._pending)}
