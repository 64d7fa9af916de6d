"""Messages: those of the application itself that wait for their reader, in the order of a space."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ringcast import Message

MESSAGES_MAX = 1024
"""So many; then everything waits for the reader."""


class Messages:
    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._is_ending = self._is_closed = False
        self._changed = asyncio.Event()

    async def add(self, message: Message) -> None:
        while len(self._waiting) >= MESSAGES_MAX and not self._is_ending:
            self._changed.clear()
            await self._changed.wait()
        self._waiting.append(message)
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Message]:
        while self._waiting or not self._is_closed:
            self._changed.set()
            if self._waiting:
                yield self._waiting.popleft()
            else:
                self._changed.clear()
                await self._changed.wait()

    def end(self) -> None:
        """Nobody waits for room any more."""
        self._is_ending = True
        self._changed.set()

    def close(self) -> None:
        """No more will come."""
        self._is_closed = True
        self.end()
