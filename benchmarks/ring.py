"""ringcast bench ring: the concurrent ring buffer under threads, beside a dict behind one lock.

Every element is added by two threads, so half of all adds are duplicates. Both buffers do the
same work in the same process, by turns; the ratio holds on any machine, the times do not.
"""

from __future__ import annotations

from threading import Condition, Thread
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING

from ringcast.window.threads import RingBuffer

if TYPE_CHECKING:
    from benchmarks.printing import Row

CAPACITY = 1024
RUN_LIMIT = 256
PATIENCE_S = 60.0
"""An adder that waits longer than this for room gives up: a run that is stuck ends."""


def bench_ring(elements: int, adders: int) -> list[Row]:
    ring: RingBuffer[int] = RingBuffer(CAPACITY)
    times = []
    for buffer in (ring, LockedBuffer(CAPACITY)):
        started = perf_counter_ns()
        removed, accepted = stress(buffer, elements, adders)
        times.append((perf_counter_ns() - started) / elements)
        assert len(removed) == accepted == elements
    ring_ns, locked_ns = times
    row = {"elements": elements, "adders": adders, "ns_per_element": round(ring_ns, 1)}
    return [row | {"comparison_ns": round(locked_ns, 1), "ratio": round(locked_ns / ring_ns, 2)}]


def stress(
    buffer: RingBuffer[int] | LockedBuffer, elements: int, adders: int
) -> tuple[list[int], int]:
    """Add 1, 2, 3… each from two threads: what came out, and how many adds succeeded."""
    consumer = buffer.consumer()
    accepted = [0] * adders

    def add_all(adder: int) -> None:
        # Ascending, so the lowest seqno anybody waits with always has room.
        near, far = sorted((adder, (adder + 1) % adders))
        for first in range(1, elements + 1, adders):
            for seqno in (first + near, first + far):
                if seqno <= elements:
                    accepted[adder] += buffer.add_waiting(seqno, seqno, PATIENCE_S)

    threads = [Thread(target=add_all, args=(adder,), daemon=True) for adder in range(adders)]
    for thread in threads:
        thread.start()
    removed: list[int] = []
    while len(removed) < elements:
        run = consumer.remove_run(RUN_LIMIT)
        if run:
            removed += run
        elif any(thread.is_alive() for thread in threads):
            sleep(0)  # let the adders have the interpreter
        else:
            removed += consumer.remove_run(elements)
            break
    for thread in threads:
        thread.join()
    removed += consumer.remove_run(elements)  # nothing may be left
    return removed, sum(accepted)


class LockedBuffer:
    """COMPARISON: the same contract with a dict, one lock and a condition."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._hd = 0
        self._items: dict[int, int] = {}
        self._room = Condition()

    def add_waiting(self, seqno: int, item: int, timeout: float) -> bool:
        with self._room:
            if not self._room.wait_for(lambda: seqno <= self._hd + self._capacity, timeout):
                return False
            if seqno <= self._hd or seqno in self._items:
                return False
            self._items[seqno] = item
            return True

    def consumer(self) -> LockedBuffer:
        return self

    def remove_run(self, limit: int) -> list[int]:
        with self._room:
            run: list[int] = []
            while len(run) < limit and self._hd + 1 in self._items:
                self._hd += 1
                run.append(self._items.pop(self._hd))
            if run:
                self._room.notify_all()
            return run
