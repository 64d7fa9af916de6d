"""Where tasks wait: at a Gate until something has changed, for one of so many Turns, or for one
Waiter to have a result."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

T = TypeVar("T")

_set_result = asyncio.Future.set_result  # named: to find it by super() takes longer


class Waiter(asyncio.Future[T]):
    """A future whose task can be made to go on at once, in place of after another turn of the
    loop: that takes as long as all else that is done for a datagram."""

    _woken: tuple[Callable[[Any], object], Context] | None = None
    """Who is called when it is done, and where; kept here until we know how."""

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        if self._woken is None and context is not None and not self.done():
            self._woken = fn, context
        else:
            self._pass_on()
            super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self._pass_on()
        return super().remove_done_callback(fn)

    def set_result(self, result: T, /) -> None:
        self._pass_on()
        super().set_result(result)

    def set_exception(self, exception: type | BaseException, /) -> None:
        self._pass_on()
        super().set_exception(exception)

    def cancel(self, msg: Any | None = None) -> bool:
        self._pass_on()
        return super().cancel(msg)

    def go_on(self, result: T) -> None:
        """Have this result; and whoever waits for it runs until it waits again, if we are not
        called by a task. To be called last: there is no telling what it does."""
        if self._woken is None:
            self.set_result(result)
            return
        wake, context = self._woken
        self._woken = None
        _set_result(self, result)
        try:
            context.run(wake, self)
        except RuntimeError:  # we are called by a task, or in that very context: nothing was done
            self.get_loop().call_soon(wake, self, context=context)

    def _pass_on(self) -> None:
        """As with any other future from now on."""
        if self._woken is not None:
            wake, context = self._woken
            self._woken = None
            super().add_done_callback(wake, context=context)


class Gate:
    """Where tasks wait for a condition; each looks again when the gate opens."""

    __slots__ = ("_make", "_waiters")

    def __init__(self, *, at_once: bool = False) -> None:
        """`at_once`: it may be opened so. Others need no Waiters, which take longer."""
        self._waiters: list[asyncio.Future[None]] = []
        self._make: type[asyncio.Future[None]] = Waiter if at_once else asyncio.Future

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiters)

    async def wait(self) -> None:
        waiter = self._make()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # cancelled before the gate opened
                self._waiters.remove(waiter)

    def open(self, *, at_once: bool = False) -> bool:
        """Wake everybody; True if anybody waited. `at_once`: the first runs before this returns."""
        waiters = self._waiters
        if not waiters:
            return False
        self._waiters = []
        first = waiters.pop(0) if at_once else None
        assert first is None or isinstance(first, Waiter)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if first is not None and not first.done():
            first.go_on(None)
        return True


class Turns:
    """So many may do something at once; who comes later waits, in order. A semaphore that costs
    nothing while there are `free` turns: whoever finds one counts it down and goes on."""

    __slots__ = ("free", "waiters")

    def __init__(self, count: int) -> None:
        self.free = count
        self.waiters: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn, when none is free."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
            if not waiter.cancelled():
                self.give()  # the turn had come, and nobody is there to use it
            raise

    def give(self) -> None:
        """One is over: the first who waits is next."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1
