"""Operation: one thing that a space asks all members to do, from its number to its result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ringcast.errors import OperationFailed, OutcomeUnknown, StaleToken, TimedOut
from ringcast.replicated.encoding import Failure, Result
from ringcast.replicated.machine import FORGOTTEN

if TYPE_CHECKING:
    from ringcast.replicated.space import Space


class Unanswered(OutcomeUnknown):
    """An operation that may or may not be done. `await error.again()` returns its result: it is
    done then if it was not, and never twice."""

    def __init__(self, operation: Operation, reason: str) -> None:
        super().__init__(f"operation {operation.number} on {operation.name!r}: {reason}")
        self._operation = operation

    async def again(self) -> Any:
        """As often as you like, also after this space has joined its group anew."""
        operation = self._operation
        return await operation.run(operation.space.timeout_s, is_again=True)


class Operation:
    """Any number of tasks may wait for it, one after the other or at once."""

    def __init__(self, space: Space, name: str, body: tuple[bytes, ...], number: int) -> None:
        self.space = space
        self.name = name
        self.body = body
        self.number = number
        self.is_sent = False
        """Some time: it may be done."""
        self._answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    async def run(self, timeout_s: float | None, *, is_again: bool = False) -> Any:
        """Send it, and wait for what becomes of it."""
        answer = self._answer
        try:
            async with asyncio.timeout(timeout_s):
                if not answer.done():
                    await self.space._send(self, is_again=is_again)
                    self.is_sent = True
                await asyncio.wait([answer])
        except TimeoutError:
            if self.is_sent:
                raise Unanswered(self, f"no answer within {timeout_s:g} s") from None
            raise TimedOut(f"no room to send within {timeout_s:g} s, so nothing was sent") from None
        finally:
            if not self.is_sent:
                self.space._open.pop(self.number, None)
        result = answer.result()
        if isinstance(result, Failure):
            if result.kind == FORGOTTEN.kind:
                raise Unanswered(self, result.text)
            kind = StaleToken if result.kind == "StaleToken" else OperationFailed
            raise kind(f"{self.name}: {result.text}")
        return result

    def answer(self, result: Result) -> None:
        self._answer.set_result(result)

    def fail(self, reason: str) -> None:
        """Nobody will answer it, unless it is sent once more."""
        self.answer(Failure(FORGOTTEN.kind, reason))
        self._answer = self._answer.get_loop().create_future()
