"""Timers: a table of deadlines. No callbacks: the owner looks at its state when one is due.

Timers may be served late: a busy machine, SIGSTOP. Then several are due at once, and serving one
may disarm another or set a later deadline for it: what is not due any more is not served.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

K = TypeVar("K")


class Named(Enum):
    """What names timers and states. An Enum hashes its name, in Python; this hashes as any object
    does, in C, and every message looks some up. So no order may come from a set of them."""

    __hash__ = object.__hash__


class Timers(Generic[K]):
    """Deadlines by key, in nanoseconds. A key is armed at most once."""

    __slots__ = ("_deadlines",)

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}

    def arm(self, key: K, deadline: int) -> None:
        """Set the deadline, replacing an earlier or later one."""
        self._deadlines[key] = deadline

    def arm_if_idle(self, key: K, deadline: int) -> None:
        """Set the deadline unless one is set: repeated causes do not push it back."""
        self._deadlines.setdefault(key, deadline)

    def disarm(self, key: K) -> None:
        self._deadlines.pop(key, None)

    def disarm_all(self) -> None:
        self._deadlines.clear()

    def is_armed(self, key: K) -> bool:
        return key in self._deadlines

    def until(self, key: K, now: int) -> int:
        """How long until this one is due; 0 if it is, or is not armed."""
        return max(0, self._deadlines.get(key, now) - now)

    def lateness(self, key: K, now: int) -> int:
        """For how long this one has been due; 0 if it is not, or is not armed."""
        return max(0, now - self._deadlines.get(key, now))

    def next_timeout(self) -> int | None:
        return min(self._deadlines.values()) if self._deadlines else None

    def due(self, now: int) -> list[K]:
        """The keys whose deadline has come, earliest first."""
        due = [key for key, deadline in self._deadlines.items() if deadline <= now]
        if len(due) > 1:
            due.sort(key=self._deadlines.__getitem__)
        return due

    def take(self, key: K, now: int) -> bool:
        """Disarm this key if its deadline has come; whether it has."""
        is_due = self._deadlines.get(key, now + 1) <= now
        if is_due:
            del self._deadlines[key]
        return is_due

    def take_due(self, now: int) -> Iterator[K]:
        """The keys whose deadline has come, each disarmed just before the caller gets it. A key
        that the caller has disarmed or put off meanwhile is left out, and none comes twice. If the
        caller stops, the others stay armed."""
        for key in self.due(now):
            if self.take(key, now):
                yield key

    def canonical(self) -> frozenset[K]:
        """What is armed. When it is due is left to whoever explores all orders."""
        return frozenset(self._deadlines)
