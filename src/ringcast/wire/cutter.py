"""Cuts one frame into what it says, in order. Anybody may have sent it: raises DecodeError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.errors import DecodeError, Reject
from ringcast.wire.members import (
    MALFORMED,
    MEMBER_COUNT,
    are_distinct,
    cut_member,
    decode_view_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from struct import Struct

    from ringcast.model import Member, ViewId


class Cutter:
    """What is left of a frame that begins at `start` and ends where the view does."""

    __slots__ = ("_view", "offset")

    def __init__(self, view: memoryview, start: int) -> None:
        self._view = view
        self.offset = start

    @property
    def is_at_end(self) -> bool:
        return self.offset == len(self._view)

    def numbers(self, numbers: Struct) -> tuple[Any, ...]:
        start = self._skip(numbers.size)
        return numbers.unpack_from(self._view, start)

    def flags(self, known: int) -> int:
        flags = self._view[self._skip(1)]
        if flags & ~known:
            raise DecodeError(Reject.FLAGS)
        return flags

    def count(self, most: int) -> int:
        """How many of something follow."""
        (count,) = self.numbers(MEMBER_COUNT)
        if count > most:
            raise DecodeError(Reject.COUNT)
        return int(count)

    def table(self, numbers: Struct, most: int) -> Iterator[tuple[Any, ...]]:
        """A list of such numbers, as they are read."""
        count = self.count(most)
        start = self._skip(count * numbers.size)
        return numbers.iter_unpack(self._view[start : self.offset])

    def is_next(self, byte: int) -> bool:
        """Whether this byte comes next; then it is skipped."""
        is_next = self.offset < len(self._view) and self._view[self.offset] == byte
        self.offset += is_next
        return is_next

    def rest(self) -> bytes:
        """All that is left."""
        start = self._skip(len(self._view) - self.offset)
        return bytes(self._view[start:])

    def member(self) -> Member:
        try:
            member, self.offset = cut_member(self._view, self.offset)
        except MALFORMED:
            raise DecodeError(Reject.MEMBER) from None
        return member

    def members(self, most: int) -> tuple[Member, ...]:
        """A list of members, each another process."""
        members = tuple([self.member() for _ in range(self.count(most))])
        if not are_distinct(members):
            raise DecodeError(Reject.VIEW)
        return members

    def view_id(self) -> ViewId:
        view_id, self.offset = decode_view_id(self._view, self.offset)
        return view_id

    def finish(self) -> None:
        """Nothing must be left."""
        if self.offset != len(self._view):
            raise DecodeError(Reject.FRAME_LENGTH)

    def _skip(self, size: int) -> int:
        """Where so many bytes begin, which are there."""
        start = self.offset
        self.offset += size
        if self.offset > len(self._view):
            raise DecodeError(Reject.FRAME_LENGTH)
        return start
