"""The ring buffer as a Python without a GIL may run it: every step in its parts.

What one call into C did at once is done here as an interpreter may do it that locks nothing: a dict
is read, changed and written back; slots and marks are looked at, copied and wiped one by one; and
ROOM is seen by others only after bells were looked for, as a processor may delay a store behind a
later load. Nothing of this is what a certain build of CPython does: it is the worst that is allowed
where no atomicity is promised.

`LockedDividedRing` takes these parts behind the lock of `LockedRingBuffer`: its `whole` is what
threads run there. `UnlockedDividedRing` does without, and the explorer shows what comes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.window.concurrent import (
    CLAIM,
    COPY_BELLS,
    COPY_MARKS,
    EMPTY,
    FILL,
    FIND,
    MARK,
    PUT_TOKENS,
    READ_HD,
    READ_LOW,
    TAKE,
    WIPE,
    WRITE_HD,
    WRITE_LOW,
    WRITE_ROOM,
    GilRingBuffer,
)
from ringcast.window.threads import LockedRingBuffer

if TYPE_CHECKING:
    from ringcast.window.concurrent import Steps
    from ringcast.window.threads import Mutex

READ_TOKENS = "read the tokens"
NEXT_MARK = "copy the next mark"
NEXT_BELL = "look at the next bell"


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
        yield CLAIM
        tokens.remove(seqno)
        self._tokens = dict.fromkeys(tokens, True)
        yield FILL
        self._slots[slot] = item
        yield MARK
        self._present[slot] = 1
        return True

    def take_steps(self, limit: int) -> Steps[list[int]]:
        """One message, whatever the limit: more are taken one by one."""
        slot = self._hd % self._capacity
        if self._hd == self._low + self._capacity:
            return []
        yield FIND
        if not self._present[slot]:
            return []
        yield TAKE
        item = self._slots[slot]
        yield WRITE_HD
        self._hd += 1
        if self._nullify:
            yield from self.free_steps(1)
        return [] if item is None else [item]

    def free_steps(self, freed: int) -> Steps[None]:
        for _ in range(freed):
            slot = self._low % self._capacity
            yield WIPE
            self._present[slot] = 0
            yield EMPTY
            self._slots[slot] = None
            yield WRITE_LOW
            self._low += 1
            yield READ_TOKENS
            tokens = [*sorted(self._tokens), self._low + self._capacity]
            yield PUT_TOKENS
            self._tokens = dict.fromkeys(tokens, True)
        room = self._low + self._capacity
        yield COPY_BELLS
        for bell, seqno in list(self._bells.items()):
            yield NEXT_BELL
            self._ring({bell: seqno}, room)
        yield WRITE_ROOM
        self._room = room

    def look_steps(self) -> Steps[tuple[int, bytes]]:
        yield READ_LOW
        low = self._low
        marks: list[int] = []
        yield COPY_MARKS
        while len(marks) < self._capacity:
            marks.append(self._present[len(marks)])
            yield NEXT_MARK
        yield READ_HD
        hd = self._hd
        start = low % self._capacity
        ascending = bytes(marks[start:] + marks[:start])
        return hd, ascending[hd - low :].rstrip(b"\0")


class LockedDividedRing(UnlockedDividedRing, LockedRingBuffer[int]):
    """The same parts behind the lock."""

    def _new_lock(self) -> Mutex:
        return StandInLock()
