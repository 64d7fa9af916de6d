"""The ring buffer otherwise: with divided steps, as a note describes it, and a naive one
(docs/protocols/ring-buffer.md).

Divided: as an interpreter that locks nothing may run it, every step in its parts. Nothing of this
is what a certain build of CPython does: it is the worst that is allowed where no atomicity is
promised.

COMPARISONS, not for use: `NoteRing` and `NaiveRing`. Both decide by the slot whether a seqno may be
added, and so may add one twice. Items are seqnos; a slot holds one or None. HR is raised in the
same step as the compare-and-set, which is kinder than any real implementation.
"""

from __future__ import annotations

from ringcast.window import concurrent as step
from ringcast.window.concurrent import GilRingBuffer, Steps
from ringcast.window.threads import LockedRingBuffer, Mutex

READ_TOKENS = "read the tokens"
NEXT_MARK = "copy the next mark"
NEXT_BELL = "look at the next bell"
READ_SLOT = "read the slot"
COMPARE_AND_SET = "compare-and-set the slot"


class StandInLock:
    """A lock for programs that are interleaved by hand: whether it is held, and no more. Who
    wants it waits for its turn before, so it is never asked for in vain."""

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> bool:
        self._is_held = True
        return True

    def __exit__(self, *error: object) -> None:
        self._is_held = False

    def locked(self) -> bool:
        return self._is_held


class UnlockedDividedRing(GilRingBuffer[int]):
    """No step is whole, and nothing makes it so."""

    def add_steps(self, seqno: int, item: int) -> Steps[bool]:
        slot = (seqno - 1) % self._capacity
        yield READ_TOKENS
        tokens = sorted(self._tokens)
        if seqno not in tokens:
            return False
        yield step.CLAIM
        tokens.remove(seqno)
        self._tokens = dict.fromkeys(tokens, True)
        yield step.FILL
        self._slots[slot] = item
        yield step.MARK
        self._present[slot] = 1
        return True

    def take_steps(self, limit: int) -> Steps[list[int]]:
        """One message, whatever the limit: more are taken one by one."""
        slot = self._hd % self._capacity
        if self._hd == self._low + self._capacity:
            return []
        yield step.FIND
        if not self._present[slot]:
            return []
        yield step.TAKE
        item = self._slots[slot]
        yield step.WRITE_HD
        self._hd += 1
        if self._nullify:
            yield from self.free_steps(1)
        return [] if item is None else [item]

    def free_steps(self, freed: int) -> Steps[None]:
        for _ in range(freed):
            slot = self._low % self._capacity
            yield step.WIPE
            self._present[slot] = 0
            yield step.EMPTY
            self._slots[slot] = None
            yield step.WRITE_LOW
            self._low += 1
            yield READ_TOKENS
            tokens = [*sorted(self._tokens), self._low + self._capacity]
            yield step.PUT_TOKENS
            self._tokens = dict.fromkeys(tokens, True)
        room = self._low + self._capacity
        yield step.COPY_BELLS
        for bell, seqno in list(self._bells.items()):
            yield NEXT_BELL
            self._ring({bell: seqno}, room)
        yield step.WRITE_ROOM
        self._room = room

    def look_steps(self) -> Steps[tuple[int, bytes]]:
        yield step.READ_LOW
        low = self._low
        marks: list[int] = []
        yield step.COPY_MARKS
        while len(marks) < self._capacity:
            marks.append(self._present[len(marks)])
            yield NEXT_MARK
        yield step.READ_HD
        hd = self._hd
        start = low % self._capacity
        ascending = bytes(marks[start:] + marks[:start])
        return hd, ascending[hd - low :].rstrip(b"\0")


class LockedDividedRing(UnlockedDividedRing, LockedRingBuffer[int]):
    """The same parts behind the lock."""

    def _new_lock(self) -> Mutex:
        return StandInLock()


class NaiveRing(GilRingBuffer[int]):
    """COMPARISON. add: read LOW, read HD, compare-and-set. It has no waiting add, no stable, no
    missing: those that it inherits know nothing of its slots."""

    def __init__(self, capacity: int, *, offset: int = 0, nullify: bool = True) -> None:
        super().__init__(capacity, offset=offset, nullify=nullify)
        self._hr = offset

    def add_steps(self, seqno: int, item: int) -> Steps[bool]:
        slot = (seqno - 1) % self._capacity
        yield step.READ_LOW
        if seqno > self._low + self._capacity:
            return False
        yield step.READ_HD
        if seqno <= self._hd:
            return False
        return (yield from self.set_steps(slot, item))

    def set_steps(self, slot: int, item: int) -> Steps[bool]:
        yield COMPARE_AND_SET
        if self._slots[slot] is not None:
            return False
        self._slots[slot] = item
        self._hr = max(self._hr, item)
        return True

    def take_steps(self, limit: int) -> Steps[list[int]]:
        """The note's remove(nullify=true), one message whatever the limit."""
        yield step.FIND
        item = self._slots[self._hd % self._capacity]
        if item is None or self._hd >= self._hr:
            return []
        yield step.WRITE_HD
        self._hd += 1
        yield step.EMPTY
        self._slots[(self._hd - 1) % self._capacity] = None
        yield step.WRITE_LOW
        self._low = self._hd
        return [item]

    def look_steps(self) -> Steps[tuple[int, bytes]]:
        """At once: nobody asks for what is missing here."""
        yield from ()
        hd = min(self._hd, self._hr)
        return hd, b"\1" * (self._hr - hd)

    def memory(self) -> dict[str, object]:
        slots = {f"slot[{i}]": item for i, item in enumerate(self._slots) if item is not None}
        return {"LOW": self._low, "HD": self._hd, "HR": self._hr, **slots}


class NoteRing(NaiveRing):
    """COMPARISON. add as in the note: read LOW, HD, the slot, HD again, then compare-and-set."""

    def set_steps(self, slot: int, item: int) -> Steps[bool]:
        yield READ_SLOT
        if self._slots[slot] is not None:
            return False
        yield step.READ_HD
        if item <= self._hd:
            return False
        return (yield from super().set_steps(slot, item))
