"""Gate: where tasks wait until something has changed."""

from __future__ import annotations

import asyncio


class Gate:
    """Where tasks wait for a condition; each looks again when the gate opens."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiters)

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # cancelled before the gate opened
                self._waiters.remove(waiter)

    def open(self) -> bool:
        """Wake everybody; True if anybody waited."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return bool(waiters)
