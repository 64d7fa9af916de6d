"""How long the windows take per message, beside a window that handles one message at a time.

Both do the same work in the same process, by turns, and the best of the repeats counts: the ratio
says what runs and slices are worth, whatever the machine.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from ringcast.window.windows import ReceiveWindow, SendWindow

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = 1 << 15
CAPACITY = 4096
PAYLOAD = bytes(100)
RUN_LENGTHS = (1, 8, 64, 512)
WINDOW_BYTES = 8 << 20
DATAGRAM_BYTES = 60_000

Runs = list[tuple[int, list[bytes]]]


def bench_window(repeats: int = 5) -> list[dict[str, object]]:
    """One row per case and run length: nanoseconds per message, the comparison's, their ratio."""
    cases: list[tuple[str, Callable[[int], Runs], Callable[[Runs], int], Callable[[Runs], int]]] = [
        ("receive in order", _in_order, _receive, _receive_singly),
        ("receive swapped", _swapped, _receive, _receive_singly),
        ("send", _in_order, _send, _send_singly),
    ]
    rows: list[dict[str, object]] = []
    for case, arrange, by_runs, singly in cases:
        for length in RUN_LENGTHS:
            runs = arrange(length)
            best = best_comparison = MESSAGES * 10**9
            for _ in range(repeats):
                best = min(best, _time(by_runs, runs))
                best_comparison = min(best_comparison, _time(singly, runs))
            rows.append(
                {
                    "case": case,
                    "run": length,
                    "ns_per_message": round(best / MESSAGES, 1),
                    "comparison_ns": round(best_comparison / MESSAGES, 1),
                    "ratio": round(best_comparison / best, 1),
                }
            )
    return rows


def _time(work: Callable[[Runs], int], runs: Runs) -> int:
    start = perf_counter_ns()
    done = work(runs)
    elapsed = perf_counter_ns() - start
    assert done == MESSAGES
    return elapsed


def _in_order(length: int) -> Runs:
    return [(first, [PAYLOAD] * length) for first in range(1, MESSAGES + 1, length)]


def _swapped(length: int) -> Runs:
    """Every second run arrives before the one it should follow."""
    runs = _in_order(length)
    runs[::2], runs[1::2] = runs[1::2], runs[::2]
    return runs


def _receive(runs: Runs) -> int:
    window = ReceiveWindow(CAPACITY, max_bytes=WINDOW_BYTES)
    taken = 0
    for first, payloads in runs:
        window.add_run(first, payloads)
        taken += len(window.take_ready(CAPACITY))
    return taken


def _receive_singly(runs: Runs) -> int:
    window = SingleWindow()
    taken = 0
    for first, payloads in runs:
        for seqno, payload in enumerate(payloads, first):
            window.add(seqno, payload)
        ready: list[bytes] = []
        while (message := window.take()) is not None:
            ready.append(message)
        taken += len(ready)
    return taken


def _send(runs: Runs) -> int:
    window = SendWindow(CAPACITY, max_bytes=WINDOW_BYTES, datagram_bytes=DATAGRAM_BYTES)
    for _, payloads in runs:
        window.append_run(payloads)
        window.take_ready(CAPACITY)
        window.purge(window.high)
    return window.low


def _send_singly(runs: Runs) -> int:
    window = SingleWindow()
    for _, payloads in runs:
        for payload in payloads:
            window.add(window.high + 1, payload)
        while window.take() is not None:
            pass
    return window.low


class SingleWindow:
    """For comparison only: the bounded window as a dict, one message per call."""

    __slots__ = ("_messages", "charged", "high", "low")

    def __init__(self) -> None:
        self._messages: dict[int, bytes] = {}
        self.low = self.high = 0
        self.charged = 0

    def add(self, seqno: int, payload: bytes) -> bool:
        if not self.low < seqno <= self.low + CAPACITY or seqno in self._messages:
            return False
        if self.charged + len(payload) > WINDOW_BYTES and seqno != self.low + 1:
            return False
        self._messages[seqno] = payload
        self.charged += len(payload)
        self.high = max(self.high, seqno)
        return True

    def take(self) -> bytes | None:
        payload = self._messages.pop(self.low + 1, None)
        if payload is not None:
            self.low += 1
            self.charged -= len(payload)
        return payload
