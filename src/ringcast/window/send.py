"""Send windows: what a sender has in flight (ring.py), and what the kernels on its way charge."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Unpack

from ringcast.model import SEQNO_MAX
from ringcast.window.ring import Bounds, Window

DATAGRAM_OVERHEAD = 768
"""Bytes of socket buffer that the kernel charges for even the smallest datagram."""

BULK_BYTES = 1 << 14
"""On loopback the kernel keeps what is beyond this of a datagram in pages, and charges about that
much for it. Shorter datagrams, and those that came in fragments, it charges for up to twice."""


class SendWindow(Window):
    """What one sender has in flight on one stream. Own messages are delivered through it too.

    Bounded in messages by `limit`, and in bytes as the kernels on the way count them: more
    in flight than the slowest socket buffer holds is lost, and each loss costs a repair.
    `max_bytes` and `limit`, up to `capacity_max`, may be set at any time; lowering them revokes
    nothing that is in flight. So may `bulk_bytes`: of each datagram, what is beyond that many costs
    half.
    """

    __slots__ = ("_charges", "bulk_bytes", "ceiling", "charged", "datagram_bytes", "limit")

    def __init__(self, capacity: int, *, datagram_bytes: int, **bounds: Unpack[Bounds]) -> None:
        super().__init__(capacity, **bounds)
        assert datagram_bytes >= 1
        self.datagram_bytes = datagram_bytes
        self.bulk_bytes: int | None = None
        self.limit = self.capacity_max
        self.ceiling = SEQNO_MAX
        """No seqno beyond this is given: somebody may have no slot for it yet."""
        self.charged = 0
        # (last seqno, charge) of each piece in flight, oldest first: at most one per message.
        self._charges: deque[tuple[int, int]] = deque()

    def append_run(self, payloads: Sequence[bytes]) -> int:
        """How many found room: exactly these got the seqnos after high, the rest got none (N3)."""
        last = self.high + len(payloads)
        if last > self.low + self.limit or last > self.ceiling:
            payloads = payloads[: self.room]
        total = sum(map(len, payloads))
        is_least = total <= DATAGRAM_OVERHEAD <= self.datagram_bytes
        charge = DATAGRAM_OVERHEAD if is_least else self._charge(total)
        if self.charged + charge > self.max_bytes:
            payloads = payloads[: self._affordable(payloads)]
            total = sum(map(len, payloads))
            charge = self._charge(total)
        if not payloads:
            return 0
        in_flight = self.high - self.low + len(payloads)
        if in_flight > self.capacity:
            self._resize(in_flight)
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
        slots = self.capacity if self.capacity < self.limit else self.limit
        if seqno > self.low + slots or seqno > self.ceiling or charged > self.max_bytes:
            return False
        ring = self._ring
        ring.slots[seqno & ring.mask] = payload  # put() of one
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
        last = min(self.high, self.gate, self.delivered + limit)
        count = last - self.delivered
        if count <= 0:
            return []
        ready = self._ring.get(self.delivered + 1, count)
        self.delivered = last
        return ready

    def read_run(self, seqnos: range) -> list[bytes]:
        """Those of `seqnos` that are still here, for repair; the first of them is
        max(seqnos.start, low + 1)."""
        return self._read(seqnos, self.high)

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
        self._empty(low)
        charges = self._charges
        while charges and charges[0][0] <= low:
            self.charged -= charges.popleft()[1]
        return emptied

    @property
    def room(self) -> int:
        """How many more messages may be in flight; their bytes may allow fewer."""
        return max(0, min(self.low + self.limit, self.ceiling) - self.high)

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
        assert self.capacity_min <= self.limit <= self.capacity_max
        self._check_capacity()
        if not self._charges:  # nothing is here, as mostly when a simulation looks
            assert (self.high, self.charged) == (self.low, 0)
            self._ring.check_only({}, self.capacity)
            return
        payloads = self._ring.get(self.low + 1, self.high - self.low)
        self._ring.check_only(dict(enumerate(payloads, self.low + 1)), self.capacity)
        lasts = [self.low, *(last for last, _ in self._charges)]
        assert lasts == sorted(set(lasts))
        assert lasts[-1] == self.high
        assert self.charged == sum(charge for _, charge in self._charges)


def room_of(size: int, bulk_bytes: int | None) -> int:
    """What a datagram of so many bytes takes of a socket buffer, if what is beyond `bulk_bytes`
    costs half."""
    return size if bulk_bytes is None or size <= bulk_bytes else (size + bulk_bytes + 1) // 2


def size_in(room: int, bulk_bytes: int | None) -> int:
    """The largest datagram that takes no more room than that."""
    return room if bulk_bytes is None or room <= bulk_bytes else 2 * room - bulk_bytes
