"""Operation: one thing that a space asks all members to do, from its number to its result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ringcast.errors import OperationFailed, OutcomeUnknown, StaleToken, TimedOut
from ringcast.replicated.encoding import Failure, Op, encode_op
from ringcast.replicated.machine import FORGOTTEN

if TYPE_CHECKING:
    from ringcast.replicated.encoding import Result
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
        self.number = number
        self._body = body
        self._waiters: set[asyncio.Future[None]] = set()
        self._answer: list[Result] = []

    async def run(self, timeout_s: float | None, *, is_again: bool = False) -> Any:
        """Send it, and wait for what becomes of it."""
        is_sent, waiter = is_again, asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                if not self._answer:
                    space = self.space
                    op = Op(space.client, self.number, space._low(self), is_again, self._body)
                    await space._send(self.name, encode_op(op))
                    is_sent = True
                if not self._answer:
                    await waiter
        except TimeoutError:
            if is_sent:
                raise Unanswered(self, f"no answer within {timeout_s:g} s") from None
            raise TimedOut(f"no room to send within {timeout_s:g} s, so nothing was sent") from None
        finally:
            self._waiters.remove(waiter)
            if not is_sent:
                self.space._open.pop(self.number, None)
        return self._result()

    def answer(self, result: Result) -> None:
        self._answer = [result]
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, reason: str) -> None:
        """Nobody will answer it, unless it is sent once more."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Unanswered(self, reason))

    def _result(self) -> Any:
        (result,) = self._answer
        if result == FORGOTTEN:
            raise Unanswered(self, FORGOTTEN.text)
        if isinstance(result, Failure):
            kind = StaleToken if result.kind == "StaleToken" else OperationFailed
            raise kind(f"{self.name}: {result.text}")
        return result
