"""COMPARISONS, not for use: the ring buffer as the RingBuffer note describes it, and a naive one.

Both decide by the slot whether a seqno may be added: compare-and-set from empty. Between an
adder's last check and its compare-and-set the slot can be filled by a second adder, delivered and
emptied; then it looks free again, and the seqno is added twice. They are here so that the explorer
can show it. Items are seqnos; a slot holds one or None. HR is raised in the same step as the
compare-and-set, which is kinder than any real implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.window.concurrent import EMPTY, FIND, READ_HD, READ_LOW, WRITE_HD, WRITE_LOW

if TYPE_CHECKING:
    from ringcast.window.concurrent import Steps

READ_SLOT = "read the slot"
COMPARE_AND_SET = "compare-and-set the slot"


class NaiveRing:
    """COMPARISON. add: read LOW, read HD, compare-and-set."""

    def __init__(self, capacity: int, *, offset: int = 0, nullify: bool = True) -> None:
        self.capacity = capacity
        self.low = offset
        self.hd = offset
        self.hr = offset
        self.slots: list[int | None] = [None] * capacity

    def add_steps(self, seqno: int, item: int) -> Steps[bool]:
        slot = (seqno - 1) % self.capacity
        yield READ_LOW
        if seqno > self.low + self.capacity:
            return False
        yield READ_HD
        if seqno <= self.hd:
            return False
        return (yield from self.set_steps(slot, item))

    def set_steps(self, slot: int, item: int) -> Steps[bool]:
        yield COMPARE_AND_SET
        if self.slots[slot] is not None:
            return False
        self.slots[slot] = item
        self.hr = max(self.hr, item)
        return True

    def take_steps(self, limit: int) -> Steps[list[int]]:
        """The note's remove(nullify=true), one message whatever the limit."""
        yield FIND
        item = self.slots[self.hd % self.capacity]
        if item is None or self.hd >= self.hr:
            return []
        yield WRITE_HD
        self.hd += 1
        yield EMPTY
        self.slots[(self.hd - 1) % self.capacity] = None
        yield WRITE_LOW
        self.low = self.hd
        return [item]

    def memory(self) -> dict[str, object]:
        slots = {f"slot[{i}]": item for i, item in enumerate(self.slots) if item is not None}
        return {"LOW": self.low, "HD": self.hd, "HR": self.hr, **slots}


class NoteRing(NaiveRing):
    """COMPARISON. add as in the note: read LOW, HD, the slot, HD again, then compare-and-set."""

    def set_steps(self, slot: int, item: int) -> Steps[bool]:
        yield READ_SLOT
        if self.slots[slot] is not None:
            return False
        yield READ_HD
        if item <= self.hd:
            return False
        return (yield from super().set_steps(slot, item))
