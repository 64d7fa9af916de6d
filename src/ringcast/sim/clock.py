"""The virtual clock with what is to happen when, and the clocks that processes believe in."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

NS_PER_MS = 1_000_000


def ns(milliseconds: float) -> int:
    """Options are in milliseconds, the clock in whole nanoseconds."""
    return round(milliseconds * NS_PER_MS)


class VirtualClock:
    """Time, and the actions that are due: in the order of their time, then of their planning."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        """Plan an action; what is overdue happens now."""
        self._planned += 1
        heappush(self._heap, (max(time, self.now), self._planned, action, arguments))

    def after(self, milliseconds: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + ns(milliseconds), action, *arguments)

    @property
    def next_time(self) -> int | None:
        """When the next action is due; None: nothing is planned."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """The next action."""
        self.now, _, action, arguments = heappop(self._heap)
        action(*arguments)

    def run_until(self, time: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.now, _, action, arguments = heappop(heap)
            action(*arguments)
        self.now = max(self.now, time)


class LocalClock:
    """One process's monotonic clock: it may start anywhere, drift, jump ahead or stand still.

    It never goes back. The rate is in thousandths, so that every reading is exact.
    """

    __slots__ = ("_local", "_rate", "_true")

    def __init__(self, start: int = 0) -> None:
        self._true = 0
        self._local = start
        self._rate = 1000

    def read(self, true: int) -> int:
        return self._local + (true - self._true) * self._rate // 1000

    def when(self, local: int) -> int | None:
        """The first true time at which the clock shows `local`; None if it stands still."""
        if not self._rate:
            return None
        return self._true + -(-(local - self._local) * 1000 // self._rate)

    def change(self, true: int, *, rate: float = 1.0, jump: int = 0) -> None:
        """From now on run at this rate, `jump` ns further on."""
        assert jump >= 0
        self._local = self.read(true) + jump
        self._true = true
        self._rate = round(rate * 1000)
