"""RingBuffer: the buffer for threads that suits this interpreter.

While an interpreter has a global lock (GIL), nobody can divide a step of GilRingBuffer
(concurrent.py). Without one, other threads may come between the parts of a step, and may see stores
in another order than they were made. LockedRingBuffer takes the same steps behind one lock: a whole
operation at once, up to its end or to where it sleeps. So the two differ in speed, not in what they
promise. What is read without the lock is one attribute that only grows (LOW, HD, ROOM) or is only
ever set (CLOSED), and whoever acts on it does so behind the lock.

Which of the two RingBuffer is, is decided when this is imported. A build that can do without a GIL
may get one later, when an extension needs it; no process ever loses it.
"""

from __future__ import annotations

import sys
from threading import Event, Lock
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from ringcast.window.concurrent import Bell, GilRingBuffer, Steps

if TYPE_CHECKING:
    from types import TracebackType


T = TypeVar("T")
R = TypeVar("R")

HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()


class Mutex(Protocol):
    """A threading.Lock, or what stands for it where all schedules are explored."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def locked(self) -> bool: ...


class Turn(Event):
    """The step of taking a lock: possible while nobody holds it."""

    label: Final = "take the lock"

    def __init__(self, lock: Mutex) -> None:
        super().__init__()
        self._lock = lock

    def is_set(self) -> bool:
        return not self._lock.locked()


class LockedRingBuffer(GilRingBuffer[T]):
    """The same steps, and a lock of its own in place of the GIL."""

    __slots__ = ("_lock", "_turn")

    def __init__(self, capacity: int, *, offset: int = 0, nullify: bool = True) -> None:
        super().__init__(capacity, offset=offset, nullify=nullify)
        self._lock = self._new_lock()
        self._turn = Turn(self._lock)

    def ticket(self) -> int:
        with self._lock:
            return super().ticket()

    def take_ticket(self, held: list[int]) -> None:
        with self._lock:
            super().take_ticket(held)

    def whole(self, steps: Steps[R]) -> Steps[R]:
        """Nobody else comes in between, but while this one sleeps."""
        try:
            while True:
                yield self._turn
                with self._lock:
                    outcome = yield from _up_to_a_bell(steps)
                if not isinstance(outcome, Bell):
                    return outcome
                yield outcome
        except BaseException:  # it gives up its sleep: its bell is taken down behind the lock, too
            with self._lock:
                steps.close()
            raise

    def memory(self) -> dict[str, object]:
        return {**super().memory(), "LOCK": self._lock.locked()}

    def _new_lock(self) -> Mutex:
        return Lock()


def _up_to_a_bell(steps: Steps[R]) -> Steps[R | Bell]:
    """The result, or the bell to sleep on before the next step."""
    try:
        while not isinstance(step := next(steps), Bell):
            yield step
    except StopIteration as end:
        return cast("R", end.value)
    return step


if TYPE_CHECKING:
    RingBuffer = GilRingBuffer
else:
    RingBuffer = GilRingBuffer if HAS_GIL else LockedRingBuffer
