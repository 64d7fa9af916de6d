"""Windows: what a sender has in flight and what a receiver has buffered. Runs in, runs out.

low = everything ≤ low is gone; delivered (HD) = the highest taken; received = the highest received
without a gap; high (HR) = the highest received or sent. A window admits seqnos in (low, low +
capacity_max], and always low ≤ delivered ≤ received ≤ high ≤ low + capacity. On creation all four
equal the offset, so the first acceptable seqno is offset + 1.

These are the bounded successors of the buffer in the RingBuffer note. Instead of one class whose
LOW means two things there are two: a ReceiveWindow has gaps, a SendWindow has none and keeps
every message until all members have delivered it. Whether a receive window empties slots at
delivery or retains them until told that they are stable is fixed at construction: a mixture
would leave an element below low that blocks its slot for ever.

Nothing here knows of frames, time or members, and nothing loops over messages: payloads move by
slices of a ring, and gaps are found by searching a bytearray. Pointers and counters are plain
attributes for everybody to read and for the window alone to write.

A window may grow: `capacity` is how many slots it has now, `capacity_min` and `capacity_max` are
the bounds; in a fixed window all three are one. It grows to the next power of two when something
accepted lies beyond its slots, and shrinks to about twice what is in use when that is a quarter or
less. As with any array that doubles when full and shrinks at a quarter, moving slots costs a
constant per seqno passed.

One accepted seqno at the far end is enough to grow at once, so the upper bound is what protects a
receiver from a forger: 8 bytes for each of capacity_max slots, rounded up to a power of two, and a
byte for each seqno beyond a gap. With 65,536 slots that is 0.6 MB per sender, and another 0.5 MB
for the moment of the move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Required, TypedDict

from ringcast.model import SEQNO_MAX

_EMPTY = b""
"""What an empty slot holds. Presence is told by the pointers, never by the slot."""


class Ring:
    """Slots indexed by seqno modulo a power of two; every operation wraps at most once."""

    __slots__ = ("mask", "slots")

    def __init__(self, capacity: int) -> None:
        self.resize(capacity, 0, 0)

    def resize(self, capacity: int, first: int, count: int) -> None:
        """Have slots for `capacity` seqnos, and keep `count` payloads from `first` on."""
        kept = self.get(first, count) if count else ()
        size = _power_of_two(capacity)
        self.mask = size - 1
        self.slots = [_EMPTY] * size
        self.put(first, kept)

    def put(self, first: int, payloads: Sequence[bytes]) -> None:
        slots = self.slots
        start = first & self.mask
        stop = start + len(payloads)
        wrapped = stop - len(slots)
        if wrapped <= 0:
            slots[start:stop] = payloads
        else:
            slots[start:] = payloads[:-wrapped]
            slots[:wrapped] = payloads[-wrapped:]

    def get(self, first: int, count: int) -> list[bytes]:
        slots = self.slots
        start = first & self.mask
        stop = start + count
        wrapped = stop - len(slots)
        if wrapped <= 0:
            return slots[start:stop]
        return slots[start:] + slots[:wrapped]

    def take(self, first: int, count: int) -> list[bytes]:
        """Read and empty these slots."""
        slots = self.slots
        start = first & self.mask
        stop = start + count
        wrapped = stop - len(slots)
        if wrapped <= 0:
            taken = slots[start:stop]
            slots[start:stop] = [_EMPTY] * count
        else:
            taken = slots[start:] + slots[:wrapped]
            self.put(first, [_EMPTY] * count)
        return taken

    def check_only(self, received: dict[int, bytes], capacity: int) -> None:
        """Assert that these payloads by seqno are here and nothing else, in a ring as small as
        `capacity` allows."""
        size = len(self.slots)
        assert size == self.mask + 1
        assert size & self.mask == 0, "it is no power of two"
        assert capacity <= size < 2 * capacity
        if not received:
            assert not any(self.slots)
            return
        expected = [_EMPTY] * len(self.slots)
        for seqno, payload in received.items():
            expected[seqno & self.mask] = payload
        assert self.slots == expected


class Bounds(TypedDict, total=False):
    """What a window is made with, besides its capacity."""

    capacity_max: int | None
    offset: int
    max_bytes: Required[int]
    gate: int


class Window:
    """What both windows have: slots for what is in (low, high], and how many there may be."""

    __slots__ = (
        "_ring",
        "capacity",
        "capacity_max",
        "capacity_min",
        "delivered",
        "gate",
        "high",
        "low",
        "max_bytes",
    )

    def __init__(
        self,
        capacity: int,
        *,
        capacity_max: int | None = None,
        offset: int = 0,
        max_bytes: int,
        gate: int = SEQNO_MAX,
    ) -> None:
        assert capacity >= 1
        assert max_bytes >= 0
        self.capacity = self.capacity_min = capacity
        self.capacity_max = capacity if capacity_max is None else capacity_max
        assert self.capacity_max >= capacity
        self.max_bytes = max_bytes
        self.gate = gate
        """Nothing beyond this is ready, even if it is here. It only rises."""
        self.low = self.delivered = self.high = offset
        self._ring = Ring(capacity)

    @property
    def kept_bytes(self) -> int:
        """Of all messages that are kept here."""
        return sum(map(len, self._ring.slots))

    def _read(self, seqnos: range, last: int) -> list[bytes]:
        """The payloads of those seqnos in (low, last]. A forged range costs nothing."""
        assert seqnos.step == 1
        first = max(seqnos.start, self.low + 1)
        count = min(seqnos.stop - 1, last) - first + 1
        return self._ring.get(first, count) if count > 0 else []

    def _empty(self, low: int) -> None:
        """Everything ≤ `low` is gone."""
        self._ring.put(self.low + 1, [_EMPTY] * (low - self.low))
        self.low = low
        if self.capacity > self.capacity_min:
            self._shrink()

    def _resize(self, slots: int) -> None:
        """Have at least so many slots, as the bounds allow, and keep all that is here."""
        slots = max(_power_of_two(slots), self.capacity_min)
        self.capacity = min(slots, self.capacity_max)
        self._ring.resize(self.capacity, self.low + 1, self.high - self.low)

    def _shrink(self) -> None:
        """Give slots back if at most a quarter is in use. Those of a burst go at once, not by
        halves: an idle window gets no second call."""
        used = self.high - self.low
        if 4 * used <= self.capacity:
            self._resize(2 * used)

    def _check_capacity(self) -> None:
        """Assert that there are slots enough, within the bounds, and not many more than needed."""
        used = self.high - self.low
        assert used <= self.capacity
        assert self.capacity_min <= self.capacity <= self.capacity_max
        assert self.capacity == self.capacity_min or 4 * used > self.capacity


def _power_of_two(slots: int) -> int:
    """The smallest one that is not less."""
    return 1 << max(slots - 1, 0).bit_length()
