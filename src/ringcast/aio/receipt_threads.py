"""The receipt of a message for threads: they wait for what the event loop is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.config import check_seconds
from ringcast.errors import GroupClosed, TimedOut

if TYPE_CHECKING:
    from ringcast.aio import receipts
    from ringcast.aio.engine import Engine

TIMEOUT_S_MAX = 86_400.0


def check_timeout(timeout: float | None) -> None:
    if timeout is not None:
        check_seconds("timeout", timeout, 0.0, TIMEOUT_S_MAX)


class Receipt:
    """Of one message. Made by `send`; any number of threads may wait for it, at any time."""

    def __init__(self, engine: Engine, receipt: receipts.Receipt) -> None:
        self._engine = engine
        self._receipt = receipt

    def delivered(self, *, timeout: float | None = None) -> None:
        """Wait until every other member of the view that the message was sent in has delivered it;
        or the member that it was sent to. TimedOut after `timeout` seconds; what else is raised is
        as with asyncio."""
        check_timeout(timeout)
        try:
            self._engine.call(self._receipt.delivered, timeout)
        except TimedOut:
            raise TimedOut(f"not everybody has delivered it within {timeout:g} s") from None
        except GroupClosed:
            if not self.is_delivered():  # it was known before the end
                raise

    def is_delivered(self) -> bool:
        """What `delivered` would return or raise, without waiting; False: it would wait."""
        return self._receipt.is_delivered()
