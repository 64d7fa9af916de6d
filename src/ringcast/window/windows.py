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

from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING

from ringcast.model import SEQNO_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

DATAGRAM_OVERHEAD = 768
"""Bytes of socket buffer that the kernel charges for even the smallest datagram."""

BULK_BYTES = 1 << 14
"""On loopback the kernel keeps what is beyond this of a datagram in pages, and charges about that
much for it. Shorter datagrams, and those that came in fragments, it charges for up to twice."""

_EMPTY = b""
"""What an empty slot holds. Presence is told by the pointers, never by the slot."""


class _Ring:
    """Slots indexed by seqno modulo a power of two; every operation wraps at most once."""

    __slots__ = ("_mask", "_slots")

    def __init__(self, capacity: int) -> None:
        size = _power_of_two(capacity)
        self._mask = size - 1
        self._slots = [_EMPTY] * size

    def resize(self, capacity: int, first: int, count: int) -> None:
        """Have slots for `capacity` seqnos, and keep `count` payloads from `first` on."""
        kept = self.get(first, count)
        size = _power_of_two(capacity)
        self._mask = size - 1
        self._slots = [_EMPTY] * size
        self.put(first, kept)

    def put(self, first: int, payloads: Sequence[bytes]) -> None:
        slots = self._slots
        start = first & self._mask
        stop = start + len(payloads)
        wrapped = stop - len(slots)
        if wrapped <= 0:
            slots[start:stop] = payloads
        else:
            slots[start:] = payloads[:-wrapped]
            slots[:wrapped] = payloads[-wrapped:]

    def get(self, first: int, count: int) -> list[bytes]:
        slots = self._slots
        start = first & self._mask
        stop = start + count
        wrapped = stop - len(slots)
        if wrapped <= 0:
            return slots[start:stop]
        return slots[start:] + slots[:wrapped]

    def take(self, first: int, count: int) -> list[bytes]:
        """Read and empty these slots."""
        slots = self._slots
        start = first & self._mask
        stop = start + count
        wrapped = stop - len(slots)
        if wrapped <= 0:
            taken = slots[start:stop]
            slots[start:stop] = [_EMPTY] * count
        else:
            taken = slots[start:] + slots[:wrapped]
            self.put(first, [_EMPTY] * count)
        return taken

    def clear(self, first: int, count: int) -> None:
        self.put(first, [_EMPTY] * count)

    def check_only(self, received: dict[int, bytes], capacity: int) -> None:
        """Assert that these payloads by seqno are here and nothing else, in a ring as small as
        `capacity` allows."""
        assert len(self._slots) == _power_of_two(capacity)
        assert self._mask == len(self._slots) - 1
        if not received:
            assert not any(self._slots)
            return
        expected = [_EMPTY] * len(self._slots)
        for seqno, payload in received.items():
            expected[seqno & self._mask] = payload
        assert self._slots == expected


class ReceiveWindow:
    """What one receiver has of one sender's stream: accepts runs in any order, gives them in order.

    Bounded in messages by `capacity_max`, and in bytes where the sender's own bound does not
    protect us: what is buffered ahead of a gap never exceeds `max_bytes`. The next in order is
    never refused for bytes, or the gap could not be closed.
    """

    __slots__ = (
        "_ahead",
        "_ring",
        "ahead_bytes",
        "capacity",
        "capacity_max",
        "capacity_min",
        "delivered",
        "dropped_bytes",
        "dropped_high",
        "dropped_low",
        "duplicates",
        "gate",
        "high",
        "low",
        "max_bytes",
        "received",
        "retain",
    )

    def __init__(
        self,
        capacity: int,
        *,
        capacity_max: int | None = None,
        offset: int = 0,
        max_bytes: int,
        retain: bool = False,
        gate: int = SEQNO_MAX,
    ) -> None:
        assert capacity >= 1
        assert max_bytes >= 0
        self.capacity = self.capacity_min = capacity
        self.capacity_max = capacity if capacity_max is None else capacity_max
        assert self.capacity_max >= capacity
        self.max_bytes = max_bytes
        self.retain = retain
        self.gate = gate
        """Nothing beyond this is ready, even if it is here. It only rises; see open_gate."""
        self.low = self.delivered = self.received = self.high = offset
        self.ahead_bytes = 0  # sum of the payloads beyond the first gap
        self.duplicates = 0  # already here
        self.dropped_low = 0  # ≤ low: delivered long ago
        self.dropped_high = 0  # > low + capacity_max: no slot for it yet
        self.dropped_bytes = 0  # beyond a gap, and too much is buffered there already
        self._ring = _Ring(capacity)
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
            self._ring.put(first, payloads)
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
                _resize(self, high - self.low)
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

    def pass_next(self) -> None:
        """The next message came and was taken in one step, out of an empty window."""
        assert self.low == self.high < self.gate
        self.low = self.delivered = self.received = self.high = self.high + 1

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
            _shrink(self)
        return taken

    def read_run(self, seqnos: range) -> list[bytes]:
        """Those of `seqnos` that lie in (low, received], for repair; the first of them is
        max(seqnos.start, low + 1)."""
        return _read(self._ring, seqnos, self.low, self.received)

    def stable(self, through: int) -> int:
        """Empty the slots that everybody has delivered; how many. Never passes delivered (RB6)."""
        low = min(through, self.delivered)
        emptied = low - self.low
        if emptied <= 0:
            return 0
        self._ring.clear(self.low + 1, emptied)
        self.low = low
        if self.capacity > self.capacity_min:
            _shrink(self)
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
        self._ring.clear(self.low + 1, low - self.low)
        self.low = low
        self.delivered = max(self.delivered, low)
        self.gate = max(self.gate, low)
        if beyond > 0:
            self._absorb()
        if self.capacity > self.capacity_min:
            _shrink(self)
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
        _check_capacity(self)
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


class SendWindow:
    """What one sender has in flight on one stream. Own messages are delivered through it too.

    Bounded in messages by `capacity_max`, and in bytes as the kernels on the way count them: more
    in flight than the slowest socket buffer holds is lost, and each loss costs a repair.
    `max_bytes` may be set at any time; lowering it revokes nothing that is in flight. So may
    `bulk_bytes`: of each datagram, what is beyond that many costs half.
    """

    __slots__ = (
        "_charges",
        "_ring",
        "bulk_bytes",
        "capacity",
        "capacity_max",
        "capacity_min",
        "ceiling",
        "charged",
        "datagram_bytes",
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
        max_bytes: int,
        datagram_bytes: int,
        offset: int = 0,
        gate: int = SEQNO_MAX,
    ) -> None:
        assert capacity >= 1
        assert datagram_bytes >= 1
        self.capacity = self.capacity_min = capacity
        self.capacity_max = capacity if capacity_max is None else capacity_max
        assert self.capacity_max >= capacity
        self.max_bytes = max_bytes
        self.datagram_bytes = datagram_bytes
        self.bulk_bytes: int | None = None
        self.gate = gate
        """Nothing beyond this is ready for the own application. It only rises."""
        self.ceiling = SEQNO_MAX
        """No seqno beyond this is given: somebody may have no slot for it yet."""
        self.low = self.delivered = self.high = offset
        self.charged = 0
        self._ring = _Ring(capacity)
        # (last seqno, charge) of each piece in flight, oldest first: at most one per message.
        self._charges: deque[tuple[int, int]] = deque()

    def append_run(self, payloads: Sequence[bytes]) -> int:
        """How many found room: exactly these got the seqnos after high, the rest got none (N3)."""
        last = self.high + len(payloads)
        if last > self.low + self.capacity_max or last > self.ceiling:
            payloads = payloads[: self.room]
        total = sum(map(len, payloads))
        charge = self._charge(total)
        if self.charged + charge > self.max_bytes:
            payloads = payloads[: self._affordable(payloads)]
            total = sum(map(len, payloads))
            charge = self._charge(total)
        if not payloads:
            return 0
        in_flight = self.high - self.low + len(payloads)
        if in_flight > self.capacity:
            _resize(self, in_flight)
        self._ring.put(self.high + 1, payloads)
        if total >= 2 * self.datagram_bytes:
            self._charge_pieces(payloads, total, charge)
        else:  # one piece, as most are
            self._charges.append((self.high + len(payloads), charge))
        self.high += len(payloads)
        self.charged += charge
        return len(payloads)

    def append(self, payload: bytes) -> bool:
        """Whether this one message got the seqno after high. It fits a datagram. If not, there may
        still be room as `append_run` finds it: this looks at the slots that there are."""
        seqno = self.high + 1
        charge = len(payload)
        if self.bulk_bytes is not None:
            charge = room_of(charge, self.bulk_bytes)
        if charge < DATAGRAM_OVERHEAD:
            charge = DATAGRAM_OVERHEAD
        charged = self.charged + charge
        if seqno > self.low + self.capacity or seqno > self.ceiling or charged > self.max_bytes:
            return False
        ring = self._ring
        ring._slots[seqno & ring._mask] = payload  # put() of one
        self.high = seqno
        self.charged = charged
        self._charges.append((seqno, charge))
        return True

    def _charge_pieces(self, payloads: Sequence[bytes], total: int, charge: int) -> None:
        """Charge a run in pieces of about a datagram, so that a long one does not hold the sender
        up until its very end. A piece costs its share; the last bears what remains."""
        count = len(payloads)
        pieces = min(count, total // self.datagram_bytes)
        step = count // pieces
        rest = charge
        for stop in range(step, step * pieces, step):
            size = sum(map(len, payloads[stop - step : stop]))
            if self.bulk_bytes is not None:
                size = size * charge // total
            rest -= size
            self._charges.append((self.high + stop, size))
        self._charges.append((self.high + count, rest))

    def _charge(self, total: int) -> int:
        """What a run of `total` bytes costs: its bytes, or more if its datagrams are small. Two
        runs never cost less than one: nothing that fits alone is refused behind others."""
        datagrams = -(-total // self.datagram_bytes) or 1
        bulk = self.bulk_bytes
        if bulk is not None:
            full, rest = divmod(total, self.datagram_bytes)
            total = full * room_of(self.datagram_bytes, bulk) + room_of(rest, bulk)
        return max(total, datagrams * DATAGRAM_OVERHEAD)

    def _affordable(self, payloads: Sequence[bytes]) -> int:
        """How many leading payloads the byte bound admits."""
        totals = list(accumulate(map(len, payloads)))
        budget = self.max_bytes - self.charged
        if self.high > self.low:
            return bisect_right(totals, budget, key=self._charge)
        # An empty window admits one datagram, or at least one message, whatever the bound:
        # otherwise a bound below it would stop the sender for ever.
        budget = max(budget, self._charge(self.datagram_bytes))
        return max(1, bisect_right(totals, budget, key=self._charge))

    def take_ready(self, limit: int) -> list[bytes]:
        """Own messages for the own application, at most `limit`. Calling this is delivery."""
        count = min(limit, self.ready)
        if count <= 0:
            return []
        ready = self._ring.get(self.delivered + 1, count)
        self.delivered += count
        return ready

    def read_run(self, seqnos: range) -> list[bytes]:
        """Those of `seqnos` that are still here, for repair; the first of them is
        max(seqnos.start, low + 1)."""
        return _read(self._ring, seqnos, self.low, self.high)

    def purge(self, through: int, *, forced: bool = False) -> int:
        """Empty the slots that all members have delivered; how many. Never passes what was
        delivered here (N5), and never goes back. A piece's charge returns with its last message.

        `forced`: they are not for this member's own application, so its `delivered` follows (RB6).
        """
        if forced:
            self.delivered = max(self.delivered, min(through, self.high))
        low = min(through, self.delivered)
        emptied = low - self.low
        if emptied <= 0:
            return 0
        self._ring.clear(self.low + 1, emptied)
        self.low = low
        charges = self._charges
        while charges and charges[0][0] <= low:
            self.charged -= charges.popleft()[1]
        if self.capacity > self.capacity_min:
            _shrink(self)
        return emptied

    @property
    def room(self) -> int:
        """How many more messages may be in flight; their bytes may allow fewer."""
        return min(self.low + self.capacity_max, self.ceiling) - self.high

    @property
    def is_full(self) -> bool:
        """Whether not even an empty message would be accepted."""
        if self.high == self.low:
            return self.room == 0  # else one datagram is admitted, whatever the bound
        return self.room == 0 or self.charged + DATAGRAM_OVERHEAD > self.max_bytes

    @property
    def size(self) -> int:
        """How many messages are not yet delivered here (RB8)."""
        return self.high - self.delivered

    @property
    def ready(self) -> int:
        """How many messages `take_ready` could give: there are no gaps."""
        return (self.high if self.high < self.gate else self.gate) - self.delivered

    def check_invariants(self) -> None:
        """Assert RB1–RB3 for a retaining window, and that every byte charged is in flight."""
        assert self.low <= self.delivered <= self.high <= self.ceiling
        _check_capacity(self)
        payloads = self._ring.get(self.low + 1, self.high - self.low)
        self._ring.check_only(dict(enumerate(payloads, self.low + 1)), self.capacity)
        lasts = [last for last, _ in self._charges]
        assert lasts == sorted(set(lasts))
        assert all(last > self.low for last in lasts)
        assert lasts[-1:] == ([self.high] if self.high > self.low else [])
        assert self.charged == sum(charge for _, charge in self._charges)


def bytes_in(window: ReceiveWindow | SendWindow) -> int:
    """Of all messages that are kept there."""
    return sum(map(len, window._ring._slots))


def room_of(size: int, bulk_bytes: int | None) -> int:
    """What a datagram of so many bytes takes of a socket buffer, if what is beyond `bulk_bytes`
    costs half."""
    return size if bulk_bytes is None or size <= bulk_bytes else (size + bulk_bytes + 1) // 2


def size_in(room: int, bulk_bytes: int | None) -> int:
    """The largest datagram that takes no more room than that."""
    return room if bulk_bytes is None or room <= bulk_bytes else 2 * room - bulk_bytes


def _read(ring: _Ring, seqnos: range, low: int, last: int) -> list[bytes]:
    """The payloads of those seqnos in (low, last]. A forged range costs nothing."""
    assert seqnos.step == 1
    first = max(seqnos.start, low + 1)
    count = min(seqnos.stop - 1, last) - first + 1
    return ring.get(first, count) if count > 0 else []


def _power_of_two(slots: int) -> int:
    """The smallest one that is not less."""
    return 1 << max(slots - 1, 0).bit_length()


def _resize(window: ReceiveWindow | SendWindow, slots: int) -> None:
    """Have at least so many slots, as the bounds allow, and keep all that is here."""
    slots = max(_power_of_two(slots), window.capacity_min)
    window.capacity = min(slots, window.capacity_max)
    window._ring.resize(window.capacity, window.low + 1, window.high - window.low)


def _shrink(window: ReceiveWindow | SendWindow) -> None:
    """Give slots back if at most a quarter is in use. Those of a burst go at once, not by halves:
    an idle window gets no second call."""
    used = window.high - window.low
    if 4 * used <= window.capacity:
        _resize(window, 2 * used)


def _check_capacity(window: ReceiveWindow | SendWindow) -> None:
    """Assert that there are slots enough, within the bounds, and not many more than needed."""
    used = window.high - window.low
    assert used <= window.capacity
    assert window.capacity_min <= window.capacity <= window.capacity_max
    assert window.capacity == window.capacity_min or 4 * used > window.capacity
