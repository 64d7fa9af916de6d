"""Pending: one's own messages that are accepted and not taken.

On send: what finds room gets the next numbers; the rest is not accepted and takes no number.
On submit: from the cursor on, in batches of a datagram, as much as may be under way. An incomplete
    batch waits while several are under way: what is sent meanwhile joins it.
On take: what was taken is dropped, and so much more may be under way.
On a view, or when the sequencer lacks something: the cursor goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Headed, alike
from ringcast.wire.batches import (
    CARRIED,
    HEAD_BYTES,
    HEADED,
    MORE,
    SIZE_BYTES,
    encode_batch,
    encode_part,
)
from ringcast.wire.limits import MESSAGES_MAX
from ringcast.wire.runs import fitting_stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.wire.batches import Head

TOTAL_BYTES = 1 << 20
"""Of messages that are pending, and of what may be under way to the sequencer."""

INCOMPLETE_AFTER = 4
"""So many batches under way: an incomplete one waits."""


class Submitted(NamedTuple):
    batch: bytes
    is_lowest: bool
    """Nothing that comes before it is pending."""


class Pending:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.low = 1
        """The lowest number that is pending; beyond `high` if none is."""
        self.next, self.offset = 1, 0
        """What is submitted next: this message, from this byte on."""
        self.submitted = 0
        """The highest number that was ever submitted, if only in part."""
        self.carried = 0
        """Up to here accepted before this member came from elsewhere."""
        self.size = 0
        self._payloads: list[bytes] = []
        self._ahead = 0  # bytes that are submitted and not taken
        self._taken_of_lowest = 0  # bytes of it
        self._under_way: deque[int] = deque()  # the last number of each batch

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def high(self) -> int:
        return self.low + len(self._payloads) - 1

    @property
    def is_under_way(self) -> bool:
        """Something was submitted in this view and is not taken."""
        return self.next > self.low or self.offset > 0

    @property
    def is_full(self) -> bool:
        return len(self._payloads) >= self.capacity or self.size >= TOTAL_BYTES

    def accept(self, payloads: Sequence[bytes]) -> int:
        """How many found room, from the first on. One that is larger than all room may be alone."""
        room = max(0, self.capacity - len(self._payloads))
        sizes = list(accumulate(map(len, payloads[:room])))
        count = bisect_right(sizes, TOTAL_BYTES - self.size)
        if not count and sizes and not self._payloads:
            count = 1
        if count:
            self._payloads += payloads[:count]
            self.size += sizes[count - 1]
        return count

    def submit(self, place: int, largest: int) -> list[Submitted]:
        """What may be under way now, in batches of at most so many bytes."""
        batches: list[Submitted] = []
        if self.next > self.high:
            return batches
        room = max(1, largest - HEAD_BYTES)
        before = list(accumulate(map(len, self._payloads), initial=0))
        while self.next <= self.high and self._ahead < TOTAL_BYTES:
            at, flags = self.next - self.low, CARRIED * (self.next <= self.carried)
            is_lowest = not at and not self.offset
            payload = self._payloads[at]
            flags |= HEADED * (type(payload) is Headed)
            if self.offset or len(payload) > room:
                start, stop = self.offset, self.offset + room
                flags |= MORE * (stop < len(payload))
                batch = encode_part(flags, place, self.next, start, payload[start:stop])
                self._move(*((self.next, stop) if flags & MORE else (self.next + 1, 0)))
                self._ahead += min(stop, len(payload)) - start
            else:
                last = self.carried if flags & CARRIED else self.high
                stop = min(at + MESSAGES_MAX, last - self.low + 1)
                fitting = max(at + 1, min(stop, fitting_stop(before, at, room + SIZE_BYTES)))
                _, found = next(alike(self.next, self._payloads[at:fitting]))
                count = len(found)
                size = before[at + count] - before[at]
                is_complete = count < stop - at or last < self.high or 2 * size >= room
                if not is_complete and len(self._under_way) >= INCOMPLETE_AFTER:
                    break
                batch = encode_batch(flags, place, self.next, found)
                self._ahead += size
                self._move(self.next + count, 0)
            self._under_way.append(self.next - 1)
            batches.append(Submitted(batch, is_lowest))
        return batches

    def _move(self, number: int, offset: int) -> None:
        self.next, self.offset = number, offset
        self.submitted = max(self.submitted, number if offset else number - 1)

    def take(self, head: Head, size: int) -> None:
        """This batch of mine is taken, with so many bytes of content."""
        if head.ends:
            self.drop(head.last)
        elif head.first == self.low:
            more = max(0, head.extent + size - self._taken_of_lowest)
            self._taken_of_lowest += more
            self._ahead -= more
        while self._under_way and self._under_way[0] < self.low:
            self._under_way.popleft()

    def drop(self, through: int) -> None:
        """Up to here nothing is pending any more."""
        count = min(through, self.high) - self.low + 1
        if count <= 0:
            return
        dropped = sum(map(len, self._payloads[:count]))
        del self._payloads[:count]
        self.size -= dropped
        self.low += count
        self._ahead += self._taken_of_lowest - dropped
        self._taken_of_lowest = 0
        if self.next < self.low:
            self.next, self.offset = self.low, 0
            self._ahead = 0

    def go_back(self, number: int, offset: int) -> None:
        """Submit anew from there on, or from the lowest that is pending."""
        at = max((number, offset), (self.low, self._taken_of_lowest))
        if at < (self.next, self.offset):
            self.next, self.offset = at
            self._under_way.clear()
            self._ahead = self._count_ahead()

    def restart(self) -> None:
        """A view begins: nothing is under way in it."""
        self._taken_of_lowest = 0
        self._under_way.clear()
        self.go_back(0, 0)

    def _count_ahead(self) -> int:
        whole = sum(map(len, self._payloads[: self.next - self.low]))
        return whole + self.offset - self._taken_of_lowest

    def check_invariants(self) -> None:
        assert self.size == sum(map(len, self._payloads))
        assert self.low <= self.next <= self.high + 1
        assert self._ahead == self._count_ahead()
        assert self.submitted <= self.high
        assert len(self._payloads) <= self.capacity
        assert len(self._payloads) <= 1 or self.size <= TOTAL_BYTES
