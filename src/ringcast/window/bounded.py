"""BoundedWindow: a receive window of which all that waits is bounded in bytes, whoever sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.window.windows import ReceiveWindow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class BoundedWindow(ReceiveWindow):
    """At most `held_max` bytes wait for the application; half of them may be beyond a gap. Senders
    are told to stay below it. What comes all the same is dropped, and not asked for before half of
    the room is free again. What closes a gap is accepted, or it would be asked for in vain; and so
    is anything while nothing waits, or a large message would never come."""

    __slots__ = ("held", "held_max", "is_flushing", "is_full")

    def __init__(self, capacity: int, held_max: int, **options: Any) -> None:
        super().__init__(capacity, max_bytes=held_max // 2, **options)
        self.held = 0
        self.held_max = held_max
        self.is_full = False
        """Something was dropped, and there is little room since."""
        self.is_flushing = False
        """A view ends: everything up to its cut is accepted, and no reader waited for."""

    def bound(self, held_max: int) -> None:
        """From now on; what is here stays."""
        self.held_max = held_max
        self.max_bytes = max(held_max // 2, self.ahead_bytes)

    @property
    def last_slot(self) -> int:
        return self.high if self.is_full else super().last_slot

    def add_run(self, first: int, payloads: Sequence[bytes]) -> int:
        size = sum(map(len, payloads))
        is_beyond = first > self.high and not self.is_flushing
        if is_beyond and self.held and self.held + size > self.held_max:
            self.is_full = True
            self.dropped_bytes += len(payloads)
            return 0
        new = super().add_run(first, payloads)
        self.held = self.held + size if new == len(payloads) else self._count()
        return new

    def take_ready(self, limit: int) -> list[bytes]:
        payloads = super().take_ready(limit)
        self.held -= sum(map(len, payloads))
        self.is_full &= self.held > self.held_max // 2
        return payloads

    def skip(self, through: int) -> int:
        emptied = super().skip(through)
        self.held = self._count()
        self.is_full = False
        return emptied

    def check_invariants(self) -> None:
        super().check_invariants()
        assert self.held == self._count()

    def _count(self) -> int:
        return sum(map(len, self._ring.get(self.delivered + 1, self.high - self.delivered)))


def open_window(
    capacity: int, held_max: int | None, *, max_bytes: int, **options: Any
) -> ReceiveWindow:
    """`held_max` None: what waits in order is bounded by what its sender may have out."""
    if held_max is None:
        return ReceiveWindow(capacity, max_bytes=max_bytes, **options)
    return BoundedWindow(capacity, held_max, **options)
