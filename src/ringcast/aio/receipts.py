"""Receipt: what `send(..., receipt=True)` returns, to find out when a message has been delivered.

A receipt is ready when every other member of the view that the message was sent in has delivered
it, or that one member it was sent to. It fails when one of them departs before that, or this member
does. Pending ones are kept here: never more than messages in the windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.aio.gate import Gate
from ringcast.errors import GroupClosed, NotDelivered

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.errors import RingcastError
    from ringcast.events import Confirmed


class Receipt:
    """Of one message. Made by `send`; any number of tasks may await it, at any time."""

    __slots__ = ("_failure", "_gate", "_is_ready")

    def __init__(self, *, is_ready: bool = False) -> None:
        self._is_ready = is_ready
        self._failure: Callable[[], RingcastError] | None = None
        self._gate = Gate()

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

    def _end(self, failure: Callable[[], RingcastError] | None = None) -> None:
        self._is_ready, self._failure = failure is None, failure
        self._gate.open()


class Receipts:
    """Those of a member that are pending, by the number that its node gave them."""

    def __init__(self) -> None:
        self._pending: dict[int, Receipt] = {}

    def of(self, number: int | None) -> Receipt:
        """The receipt of this number; None: there is nothing to wait for."""
        if number is None:
            return Receipt(is_ready=True)
        return self._pending.setdefault(number, Receipt())

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
