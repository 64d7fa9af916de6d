"""Receive windows: what a receiver has buffered of one sender's stream (ring.py)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Unpack

from ringcast.window.ring import Bounds, Window


class ReceiveWindow(Window):
    """What one receiver has of one sender's stream: accepts runs in any order, gives them in order.

    Bounded in messages by `capacity_max`, and in bytes where the sender's own bound does not
    protect us: what is buffered ahead of a gap never exceeds `max_bytes`. The next in order is
    never refused for bytes, or the gap could not be closed.
    """

    __slots__ = (
        "_ahead",
        "ahead_bytes",
        "dropped_bytes",
        "dropped_high",
        "dropped_low",
        "duplicates",
        "received",
        "retain",
    )

    def __init__(self, capacity: int, *, retain: bool = False, **bounds: Unpack[Bounds]) -> None:
        super().__init__(capacity, **bounds)
        self.retain = retain
        self.received = self.high
        self.ahead_bytes = 0  # sum of the payloads beyond the first gap
        self.duplicates = 0  # already here
        self.dropped_low = 0  # ≤ low: delivered long ago
        self.dropped_high = 0  # > low + capacity_max: no slot for it yet
        self.dropped_bytes = 0  # beyond a gap, and too much is buffered there already
        # One byte for each seqno of (received, high]: 1 if it is here. The first is always 0 and
        # the last always 1, so it is empty exactly when there is no gap.
        self._ahead = bytearray()

    def add_run(self, first: int, payloads: Sequence[bytes]) -> int:
        """How many of these were new. What is known or has no slot is counted and dropped (RB4)."""
        count = len(payloads)
        received = self.received
        if (
            first == received + 1
            and received == self.high
            and received + count <= self.low + self.capacity
        ):
            ring = self._ring
            if count == 1:
                ring.slots[first & ring.mask] = payloads[0]
            else:
                ring.put(first, payloads)
            self.received = self.high = received + count
            return count
        return self._add_anywhere(first, payloads)

    def _add_anywhere(self, first: int, payloads: Sequence[bytes]) -> int:
        """Fill those gaps that the run covers; the rest of it is counted and dropped."""
        if first <= self.received or first + len(payloads) - 1 > self.low + self.capacity_max:
            first, payloads = self._clip(first, payloads)
        if not payloads:
            return 0
        gaps = self._gaps(first, first + len(payloads), self.capacity_max)
        fresh = sum(map(len, gaps))
        self.duplicates += len(payloads) - fresh
        # A run that starts at the next in order leaves nothing beyond a gap that was not there
        # before, so only the others are received to the byte bound.
        is_next = first == self.received + 1
        added = 0
        for gap in gaps:
            piece = payloads[gap.start - first : gap.stop - first]
            size = sum(map(len, piece))
            if not is_next and self.ahead_bytes + size > self.max_bytes:
                sizes = list(accumulate(map(len, piece), initial=0))
                fitting = bisect_right(sizes, self.max_bytes - self.ahead_bytes) - 1
                if fitting:
                    self._fill(gap.start, piece[:fitting], sizes[fitting])
                added += fitting
                self.dropped_bytes += fresh - added
                break
            self._fill(gap.start, piece, size)
            added += len(piece)
        if is_next:
            self._absorb()
        return added

    def _clip(self, first: int, payloads: Sequence[bytes]) -> tuple[int, Sequence[bytes]]:
        """The part of the run that lies in (received, low + capacity_max]; the rest is counted."""
        count = len(payloads)
        below = min(max(self.low + 1 - first, 0), count)
        known = min(max(self.received + 1 - first, 0), count)
        above = min(max(first + count - 1 - (self.low + self.capacity_max), 0), count)
        self.dropped_low += below
        self.duplicates += known - below
        self.dropped_high += above
        return first + known, payloads[known : count - above]

    def _fill(self, first: int, piece: Sequence[bytes], size: int) -> None:
        """Put payloads of `size` bytes in all into slots beyond received, and mark them. They are
        accepted: here, and not before, the window grows."""
        ahead = self._ahead
        start = first - self.received - 1
        stop = start + len(piece)
        if stop > len(ahead):
            ahead.extend(bytes(stop - len(ahead)))
            high = self.received + stop
            if high - self.low > self.capacity:
                self._resize(high - self.low)
            self.high = high
        ahead[start:stop] = b"\x01" * len(piece)
        self.ahead_bytes += size
        self._ring.put(first, piece)

    def _absorb(self) -> None:
        """Raise received over what has become contiguous with it."""
        ahead = self._ahead
        count = ahead.find(0)
        if count < 0:
            self.received = self.high
            self.ahead_bytes = 0
            ahead.clear()
        elif count:
            self.ahead_bytes -= sum(map(len, self._ring.get(self.received + 1, count)))
            self.received += count
            del ahead[:count]

    def has_slot(self, first: int, last: int) -> bool:
        """Whether some of first..last could be accepted; if not, they are counted as dropped.

        Lets a caller turn late and forged runs away without cutting them into payloads.
        """
        if last <= self.low:
            self.dropped_low += last - first + 1
            return False
        if first > self.low + self.capacity_max:
            self.dropped_high += last - first + 1
            return False
        return True

    def take_ready(self, limit: int) -> list[bytes]:
        """The next messages in order, at most `limit`. Calling this is delivery (RB5)."""
        delivered = self.delivered
        last = min(self.received, self.gate, delivered + limit)
        if last <= delivered:
            return []
        first = delivered + 1
        count = last - delivered
        self.delivered = last
        if self.retain:
            return self._ring.get(first, count)
        self.low = last
        taken = self._ring.take(first, count)
        if self.capacity > self.capacity_min:
            self._shrink()
        return taken

    def read_run(self, seqnos: range) -> list[bytes]:
        """Those of `seqnos` that lie in (low, received], for repair; the first of them is
        max(seqnos.start, low + 1)."""
        return self._read(seqnos, self.received)

    def stable(self, through: int) -> int:
        """Empty the slots that everybody has delivered; how many. Never passes delivered (RB6)."""
        low = min(through, self.delivered)
        emptied = low - self.low
        if emptied <= 0:
            return 0
        self._empty(low)
        return emptied

    def skip(self, through: int) -> int:
        """Give up on everything ≤ `through`, delivered or not; how many slots that emptied."""
        low = min(max(self.low, through), self.high)
        emptied = min(low, self.received) - self.low
        beyond = low - self.received
        if beyond > 0:
            emptied += self._ahead.count(1, 0, beyond)
            self.ahead_bytes -= sum(map(len, self._ring.get(self.received + 1, beyond)))
            del self._ahead[:beyond]
            self.received = low
        self._empty(low)
        self.delivered = max(self.delivered, low)
        self.gate = max(self.gate, low)
        if beyond > 0:
            self._absorb()
        return emptied

    def missing(self, limit: int) -> list[range]:
        """The gaps below high, ascending, at most `limit` of them."""
        return self._gaps(self.received + 1, self.high + 1, limit)

    def missing_within(self, first: int, last: int, limit: int) -> list[range]:
        """Those of first..last that are not here and would have a slot; at most `limit` ranges.

        Looks beyond high too: a lost last message leaves no gap to see.
        """
        first = max(first, self.received + 1)
        return self._gaps(first, min(last, self.low + self.capacity_max) + 1, limit)

    def _gaps(self, start: int, stop: int, limit: int) -> list[range]:
        """Those of start..stop-1, all beyond received, that are not here; at most `limit`
        ranges."""
        ahead = self._ahead
        base = self.received + 1
        start -= base
        stop -= base
        gaps: list[range] = []
        while len(gaps) < limit:
            hole = ahead.find(0, start, stop)
            start = hole if hole >= 0 else max(start, len(ahead))
            if start >= stop:
                break
            end = ahead.find(1, start, stop)
            if end < 0:
                end = stop
            gaps.append(range(base + start, base + end))
            start = end
        return gaps

    @property
    def size(self) -> int:
        """How many messages are here and not delivered (RB8)."""
        return self.received - self.delivered + self._ahead.count(1)

    @property
    def missing_count(self) -> int:
        """How many messages below high are not here."""
        return self._ahead.count(0)

    @property
    def last_slot(self) -> int:
        """Nothing beyond this would be accepted now."""
        return self.low + self.capacity_max

    @property
    def ready(self) -> int:
        """How many messages `take_ready` could give."""
        return (self.received if self.received < self.gate else self.gate) - self.delivered

    def open_gate(self, through: int) -> bool:
        """Let everything ≤ `through` be taken; whether that is more than before."""
        is_more = through > self.gate
        self.gate = max(self.gate, through)
        return is_more

    def check_invariants(self) -> None:
        """Assert RB1–RB3 and RB8, slot by slot."""
        assert self.low <= self.delivered <= self.received <= self.high
        self._check_capacity()
        assert self.retain or self.low == self.delivered
        assert self.delivered <= self.gate
        ahead = self._ahead
        assert len(ahead) == self.high - self.received
        if self.high == self.low:  # nothing is here, as mostly when a simulation looks
            assert self.ahead_bytes == 0
            self._ring.check_only({}, self.capacity)
            return
        assert set(ahead) <= {0, 1}
        assert not ahead or ahead[0] == 0
        assert not ahead or ahead[-1] == 1
        empty = [seqno for seqno, here in enumerate(ahead, self.received + 1) if not here]
        beyond = [seqno for seqno, here in enumerate(ahead, self.received + 1) if here]
        present = [*range(self.low + 1, self.received + 1), *beyond]
        payloads = {seqno: self._ring.get(seqno, 1)[0] for seqno in present}
        self._ring.check_only(payloads, self.capacity)
        assert self.ahead_bytes == sum(len(self._ring.get(seqno, 1)[0]) for seqno in beyond)
        assert self.ahead_bytes <= self.max_bytes
        assert self.size == sum(seqno > self.delivered for seqno in present)
        assert self.missing_count == self.high - self.delivered - self.size
        assert [seqno for gap in self.missing(self.capacity) for seqno in gap] == empty


class BoundedWindow(ReceiveWindow):
    """At most `held_max` bytes wait for the application; half of them may be beyond a gap. Senders
    are told to stay below it. What comes all the same is dropped, and not asked for before half of
    the room is free again. What closes a gap is accepted, or it would be asked for in vain; and so
    is anything while nothing waits, or a large message would never come."""

    __slots__ = ("held", "held_max", "is_flushing", "is_full")

    def __init__(self, capacity: int, held_max: int, **bounds: Any) -> None:
        super().__init__(capacity, max_bytes=held_max // 2, **bounds)
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
    capacity: int, held_max: int | None, *, max_bytes: int, **bounds: Any
) -> ReceiveWindow:
    """`held_max` None: what waits in order is bounded by what its sender may have out."""
    if held_max is None:
        return ReceiveWindow(capacity, max_bytes=max_bytes, **bounds)
    return BoundedWindow(capacity, held_max, **bounds)
