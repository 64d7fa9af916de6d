"""Both windows against naive ones: a dict, one message at a time, everything recomputed."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ringcast.window.receive import ReceiveWindow
from ringcast.window.send import DATAGRAM_OVERHEAD, SendWindow

# The last is near the highest seqno there is, and farther from it than a test can come.
OFFSETS = st.sampled_from([0, 1, 7, 2**32 - 3, 2**63 - 2**14])
CAPACITIES = st.integers(1, 9)
GROWTHS = st.none() | st.integers(0, 24)  # None: a fixed window; else capacity_max - capacity
LIMITS = st.integers(0, 12)
SHIFTS = st.integers(-4, 14)  # a seqno relative to low: from well below to well above the window
FORGED = st.sampled_from([-1, 2**63 - 1, 2**64, 10**30])


def as_ranges(seqnos: list[int]) -> list[range]:
    ranges: list[range] = []
    for seqno in seqnos:
        if ranges and ranges[-1].stop == seqno:
            ranges[-1] = range(ranges[-1].start, seqno + 1)
        else:
            ranges.append(range(seqno, seqno + 1))
    return ranges


def upper_bound(capacity: int, growth: int | None) -> int | None:
    return None if growth is None else capacity + growth


class NaiveReceiveWindow:
    """What each operation means, message by message."""

    def __init__(self, capacity: int, offset: int, max_bytes: int, retain: bool) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes
        self.retain = retain
        self.low = self.delivered = self.high = offset
        self.messages: dict[int, bytes] = {}
        self.duplicates = self.dropped_low = self.dropped_high = self.dropped_bytes = 0

    @property
    def received(self) -> int:
        seqno = self.delivered
        while seqno + 1 in self.messages:
            seqno += 1
        return seqno

    @property
    def ahead_bytes(self) -> int:
        return sum(
            len(payload) for seqno, payload in self.messages.items() if seqno > self.received
        )

    def add_run(self, first: int, payloads: list[bytes]) -> int:
        added = 0
        cut = False
        for seqno, payload in enumerate(payloads, first):
            if seqno <= self.low:
                self.dropped_low += 1
            elif seqno > self.low + self.capacity:
                self.dropped_high += 1
            elif seqno in self.messages:
                self.duplicates += 1
            elif cut or not self.fits(seqno, payload):
                cut = True
                self.dropped_bytes += 1
            else:
                self.messages[seqno] = payload
                self.high = max(self.high, seqno)
                added += 1
        return added

    def fits(self, seqno: int, payload: bytes) -> bool:
        return seqno == self.received + 1 or self.ahead_bytes + len(payload) <= self.max_bytes

    def take_ready(self, limit: int) -> list[bytes]:
        ready: list[bytes] = []
        while len(ready) < limit and self.delivered + 1 in self.messages:
            self.delivered += 1
            ready.append(self.messages[self.delivered])
            if not self.retain:
                self.forget(self.delivered)
        return ready

    def forget(self, low: int) -> int:
        gone = [seqno for seqno in self.messages if seqno <= low]
        for seqno in gone:
            del self.messages[seqno]
        self.low = low
        return len(gone)

    def stable(self, through: int) -> int:
        return self.forget(min(max(self.low, through), self.delivered))

    def skip(self, through: int) -> int:
        low = min(max(self.low, through), self.high)
        self.delivered = max(self.delivered, low)
        return self.forget(low)

    def missing_within(self, first: int, last: int) -> list[range]:
        within = range(max(first, self.received + 1), min(last, self.low + self.capacity) + 1)
        return as_ranges([seqno for seqno in within if seqno not in self.messages])

    def read_run(self, first: int, count: int) -> list[bytes]:
        seqnos = range(max(first, self.low + 1), min(first + count, self.received + 1))
        return [self.messages[seqno] for seqno in seqnos]


class ReceiveWindowMachine(RuleBasedStateMachine):
    @initialize(
        capacity=CAPACITIES,
        growth=GROWTHS,
        offset=OFFSETS,
        max_bytes=st.one_of(st.integers(0, 60), st.just(10**6)),
        retain=st.booleans(),
    )
    def open(
        self, capacity: int, growth: int | None, offset: int, max_bytes: int, retain: bool
    ) -> None:
        self.window = ReceiveWindow(
            capacity,
            capacity_max=upper_bound(capacity, growth),
            offset=offset,
            max_bytes=max_bytes,
            retain=retain,
        )
        # How many slots there are is nobody's business: only the upper bound may show.
        self.naive = NaiveReceiveWindow(capacity + (growth or 0), offset, max_bytes, retain)
        self.adds = 0

    def add(self, first: int, sizes: list[int]) -> None:
        # Each payload begins with its own number, so that a copy in the wrong slot, or a
        # duplicate that replaced the original, is seen.
        self.adds += 1
        payloads = [b"%d/%d " % (first + i, self.adds) * size for i, size in enumerate(sizes)]
        assert self.window.add_run(first, payloads) == self.naive.add_run(first, payloads)

    @rule(shift=SHIFTS, sizes=st.lists(st.integers(0, 2), max_size=14))
    def add_run(self, shift: int, sizes: list[int]) -> None:
        self.add(self.naive.low + shift, sizes)

    @rule(sizes=st.lists(st.integers(0, 2), max_size=10))
    def add_next(self, sizes: list[int]) -> None:
        self.add(self.naive.received + 1, sizes)

    @rule(first=FORGED, sizes=st.lists(st.integers(0, 2), max_size=3))
    def add_forged(self, first: int, sizes: list[int]) -> None:
        if first < 0 or first > self.naive.low + 100:
            self.add(first, sizes)

    @rule(limit=LIMITS)
    def take_ready(self, limit: int) -> None:
        assert self.window.take_ready(limit) == self.naive.take_ready(limit)

    @rule(shift=SHIFTS)
    def stable(self, shift: int) -> None:
        through = self.naive.low + shift
        assert self.window.stable(through) == self.naive.stable(through)

    @rule(shift=SHIFTS)
    def skip(self, shift: int) -> None:
        through = self.naive.low + shift
        assert self.window.skip(through) == self.naive.skip(through)

    @rule(shift=SHIFTS, length=LIMITS, limit=LIMITS)
    def look_for_gaps_within(self, shift: int, length: int, limit: int) -> None:
        first = self.naive.low + shift
        last = first + length - 1
        expected = self.naive.missing_within(first, last)[:limit]
        assert self.window.missing_within(first, last, limit) == expected

    @rule(shift=SHIFTS, count=LIMITS)
    def read_run(self, shift: int, count: int) -> None:
        first = self.naive.low + shift
        expected = self.naive.read_run(first, count)
        assert self.window.read_run(range(first, first + count)) == expected

    @invariant()
    def same_as_naive(self) -> None:
        window, naive = self.window, self.naive
        for name in ("low", "delivered", "received", "high", "ahead_bytes"):
            assert getattr(window, name) == getattr(naive, name), name
        for name in ("duplicates", "dropped_low", "dropped_high", "dropped_bytes"):
            assert getattr(window, name) == getattr(naive, name), name
        undelivered = sum(seqno > naive.delivered for seqno in naive.messages)
        assert window.size == undelivered
        assert window.missing_count == naive.high - naive.delivered - undelivered
        assert window.missing(naive.capacity) == naive.missing_within(1, naive.high)
        assert window.ready == naive.received - naive.delivered
        window.check_invariants()


class NaiveSendWindow:
    """What each operation means, message by message."""

    def __init__(self, capacity: int, offset: int, max_bytes: int, datagram_bytes: int) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes
        self.datagram_bytes = datagram_bytes
        self.low = self.delivered = self.high = offset
        self.messages: dict[int, bytes] = {}
        self.runs: list[tuple[range, int]] = []
        self.sizes: dict[int, int] = {}  # of each run, by its first seqno
        self.bulk_bytes: int | None = None
        self.charged = 0  # as the window says: a partly purged run may cost less than at first

    def charged_least_and_most(self) -> tuple[int, int]:
        """The charge of runs wholly in flight and the bytes left of partly purged ones; and the
        charge of both."""
        least = sum(
            charge if seqnos.start > self.low else self.least(charge, seqnos)
            for seqnos, charge in self.runs
        )
        most = sum(charge for seqnos, charge in self.runs if seqnos.stop - 1 > self.low)
        return least, most

    def least(self, charge: int, seqnos: range) -> int:
        """Of a run that is partly purged: the bytes that are left, or their share of the charge."""
        left = sum(len(self.messages[seqno]) for seqno in seqnos if seqno > self.low)
        if self.bulk_bytes is None:
            return left
        return charge * left // max(1, self.sizes[seqnos.start])

    def charge(self, payloads: list[bytes]) -> int:
        """The bytes, or what the kernel charges for so many of the smallest datagrams. What is
        beyond `bulk_bytes` of a datagram costs half."""
        total = sum(map(len, payloads))
        datagrams = [self.datagram_bytes] * (total // self.datagram_bytes)
        datagrams += [total % self.datagram_bytes] if total % self.datagram_bytes else []
        bulk = self.datagram_bytes if self.bulk_bytes is None else self.bulk_bytes
        halves = [math.ceil(max(0, size - bulk) / 2) for size in datagrams]
        costs = sum(min(size, bulk) for size in datagrams) + sum(halves)
        return max(costs, max(1, len(datagrams)) * DATAGRAM_OVERHEAD)

    def admits(self, payloads: list[bytes]) -> bool:
        if self.high - self.low + len(payloads) > self.capacity:
            return False
        charge = self.charge(payloads)
        if self.high > self.low:
            return self.charged + charge <= self.max_bytes
        one_datagram = self.charge([bytes(self.datagram_bytes)])
        return len(payloads) == 1 or charge <= max(self.max_bytes, one_datagram)

    def append_run(self, payloads: list[bytes]) -> int:
        prefixes = (payloads[:count] for count in range(len(payloads), 0, -1))
        accepted = next(filter(self.admits, prefixes), [])
        if accepted:
            self.messages.update(enumerate(accepted, self.high + 1))
            first = self.high + 1
            self.high += len(accepted)
            self.runs.append((range(first, self.high + 1), self.charge(accepted)))
            self.sizes[first] = sum(map(len, accepted))
        return len(accepted)

    def take_ready(self, limit: int) -> list[bytes]:
        first, self.delivered = self.delivered + 1, min(self.delivered + limit, self.high)
        return [self.messages[seqno] for seqno in range(first, self.delivered + 1)]

    def purge(self, through: int) -> int:
        low = min(max(self.low, through), self.delivered)
        for seqno in range(self.low + 1, low + 1):
            del self.messages[seqno]
        emptied, self.low = low - self.low, low
        return emptied

    def read_run(self, first: int, count: int) -> list[bytes]:
        seqnos = range(first, first + count)
        return [self.messages[seqno] for seqno in seqnos if seqno in self.messages]


class SendWindowMachine(RuleBasedStateMachine):
    @initialize(
        capacity=CAPACITIES,
        growth=GROWTHS,
        offset=OFFSETS,
        max_bytes=st.sampled_from([0, 767, 768, 2000, 5000, 10**6]),
        datagram_bytes=st.sampled_from([512, 768, 1000, 1400]),
        bulk_bytes=st.sampled_from([None, 512, 513, 800]),
    )
    def open(
        self,
        capacity: int,
        growth: int | None,
        offset: int,
        max_bytes: int,
        datagram_bytes: int,
        bulk_bytes: int | None,
    ) -> None:
        self.window = SendWindow(
            capacity,
            capacity_max=upper_bound(capacity, growth),
            offset=offset,
            max_bytes=max_bytes,
            datagram_bytes=datagram_bytes,
        )
        self.window.bulk_bytes = bulk_bytes
        self.naive = NaiveSendWindow(capacity + (growth or 0), offset, max_bytes, datagram_bytes)
        self.naive.bulk_bytes = bulk_bytes

    @rule(sizes=st.lists(st.sampled_from([0, 1, 256, 500, 512, 900, 1000]), max_size=14))
    def append_run(self, sizes: list[int]) -> None:
        first = self.naive.high + 1
        payloads = [(b"%d " % (first + i)).ljust(size)[:size] for i, size in enumerate(sizes)]
        charged = self.window.charged
        assert self.window.append_run(payloads) == self.naive.append_run(payloads)
        if self.naive.high >= first:
            assert self.window.charged == charged + self.naive.runs[-1][1]

    @rule(limit=LIMITS)
    def take_ready(self, limit: int) -> None:
        assert self.window.take_ready(limit) == self.naive.take_ready(limit)

    @rule(shift=SHIFTS)
    def purge(self, shift: int) -> None:
        through = self.naive.low + shift
        charged = self.window.charged
        assert self.window.purge(through) == self.naive.purge(through)
        assert self.window.charged <= charged

    @rule(shift=SHIFTS, count=LIMITS)
    def read_run(self, shift: int, count: int) -> None:
        first = self.naive.low + shift
        expected = self.naive.read_run(first, count)
        assert self.window.read_run(range(first, first + count)) == expected

    @rule(max_bytes=st.integers(0, 6000))
    def change_the_bound(self, max_bytes: int) -> None:
        self.window.max_bytes = self.naive.max_bytes = max_bytes

    @invariant()
    def same_as_naive(self) -> None:
        window, naive = self.window, self.naive
        for name in ("low", "delivered", "high"):
            assert getattr(window, name) == getattr(naive, name), name
        least, most = naive.charged_least_and_most()
        assert least <= window.charged <= most
        naive.charged = window.charged
        assert window.room == naive.capacity - len(naive.messages)
        assert window.size == window.ready == naive.high - naive.delivered
        assert window.is_full == (not naive.admits([b""]))
        window.check_invariants()


TestReceiveWindow = ReceiveWindowMachine.TestCase
TestSendWindow = SendWindowMachine.TestCase
