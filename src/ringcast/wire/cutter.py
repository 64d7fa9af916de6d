"""Cuts one frame into what it says, in order. Anybody may have sent it: raises DecodeError."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from ringcast.errors import DecodeError, Reject
from ringcast.model import Member, ViewId
from ringcast.wire.limits import COUNTER_MAX
from ringcast.wire.members import COUNTER, MALFORMED, cut_member

COUNT: Final = Struct("<H")  # of what follows


class Cutter:
    """What is left of a frame that begins at `start` and ends where the view does."""

    __slots__ = ("_view", "offset")

    def __init__(self, view: memoryview, start: int) -> None:
        self._view = view
        self.offset = start

    @property
    def left(self) -> int:
        """How many bytes."""
        return len(self._view) - self.offset

    def numbers(self, numbers: Struct) -> tuple[Any, ...]:
        start = self._skip(numbers.size)
        return numbers.unpack_from(self._view, start)

    def count(self, most: int) -> int:
        """How many of something follow."""
        (count,) = self.numbers(COUNT)
        if count > most:
            raise DecodeError(Reject.COUNT)
        return int(count)

    def count_left(self, size: int, most: int) -> int:
        """How many of this size are left; at least one, and nothing else."""
        count, left_over = divmod(self.left, size)
        if left_over:
            raise DecodeError(Reject.FRAME_LENGTH)
        if not 1 <= count <= most:
            raise DecodeError(Reject.COUNT)
        return count

    def is_next(self, byte: int) -> bool:
        """Whether this byte comes next; then it is skipped."""
        is_next = self.offset < len(self._view) and self._view[self.offset] == byte
        self.offset += is_next
        return is_next

    def take(self, size: int) -> memoryview:
        """The next so many."""
        start = self._skip(size)
        return self._view[start : self.offset]

    def member(self) -> Member:
        try:
            member, self.offset = cut_member(self._view, self.offset)
        except MALFORMED:
            raise DecodeError(Reject.MEMBER) from None
        return member

    def view_id(self) -> ViewId:
        (counter,) = self.numbers(COUNTER)
        if not 1 <= counter <= COUNTER_MAX:
            raise DecodeError(Reject.SEQNO)
        return ViewId(self.member(), counter)

    def finish(self, size: int = 0) -> None:
        """Nothing must be left, but for zeros up to that offset."""
        padding = self._view[self.offset :]
        if len(padding) != max(0, size - self.offset) or any(padding):
            raise DecodeError(Reject.FRAME_LENGTH)

    def _skip(self, size: int) -> int:
        """Where so many bytes begin, which are there."""
        start = self.offset
        self.offset += size
        if self.offset > len(self._view):
            raise DecodeError(Reject.FRAME_LENGTH)
        return start
