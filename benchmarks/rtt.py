"""ringcast bench rtt: how long a request takes, beside a round trip over plain blocking sockets.

All kinds take turns, so that they meet the same machine; and of all kinds each process has a core
of its own: some pairs would share one otherwise, which differs by far.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from benchmarks.sockets import SPACE, Wire, open_socket
from benchmarks.workload import RUNS_MAX, Row, check, group_name, percentile, progress, versions
from ringcast.aio.loop import run
from ringcast.sim.processes import Cluster, child, hear, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Times = list[int]
    """Nanoseconds of each round trip of a run."""

WARM_UP = 200
SIZE_MAX = 60_000
DEADLINE_S = 60.0

RUNS_OF_A_PAIR = 3
"""Then two other processes take part: where the system has put their memory makes a tenth."""

SPIN_S = 0.001
"""Longer than a round trip, and short enough that members sleep while others are measured."""


def bench_rtt(*, transports: Sequence[str], size: int, count: int, runs: int) -> Iterator[Row]:
    check("runs", runs, 1, RUNS_MAX)
    check("size", size, 1, SIZE_MAX, " bytes")
    check("count", count, 100, 1_000_000)
    for transport in transports:
        for spin_s, how in ((0.0, ""), (SPIN_S, ", spinning")):
            progress(f"measuring {transport}{how}")
            yield _measure(transport, size, count, runs, spin_s)


def _measure(transport: str, size: int, count: int, runs: int, spin_s: float) -> Row:
    """Medians over the runs of what half of the round trips take at most, and 99 of 100; and of
    how these compare within a run, as the machine may be slower in the next."""
    asked: list[Times] = []
    raw: list[Times] = []
    bare: list[Times] = []
    while len(asked) < runs:
        with Cluster(
            members=2,
            group=group_name(transport),
            program=("benchmarks.worker", "asker"),
            transport=transport,
            spin_s=spin_s,
        ) as cluster:
            first, second = cluster.processes
            tell(second, {"op": "reply"})
            _ask(cluster, size, WARM_UP)
            for _ in range(min(RUNS_OF_A_PAIR, runs - len(asked))):
                raw.append(_raw_times(transport, size, count))
                bare.append(_bare_times(transport, size, count))
                with _apart(first.pid, second.pid):
                    asked.append(_ask(cluster, size, count))
    p50, p99 = _percentile(asked, 50), _percentile(asked, 99)
    raw_each = [_percentile([times], 50) for times in raw]
    return {
        "transport": transport,
        "what": "request and reply",
        "spin_ms": spin_s * 1e3,
        "size": size,
        "p50_us": round(p50, 1),
        "p99_us": round(p99, 1),
        "raw_p50_us": round(_percentile(raw, 50), 1),
        "raw_p99_us": round(_percentile(raw, 99), 1),
        "raw_p50_least_us": round(min(raw_each), 1),
        "raw_p50_most_us": round(max(raw_each), 1),
        "asyncio_p50_us": round(_percentile(bare, 50), 1),
        "p50_to_raw": _ratio(asked, raw),
        "p50_to_asyncio": _ratio(asked, bare),
        "p99_to_p50": round(p99 / p50, 2),
        "count": count,
        "runs": runs,
        "versions": versions(),
    }


def _ask(cluster: Cluster, size: int, count: int) -> Times:
    """The first member asks the second."""
    first, _ = cluster.processes
    with cluster.within(DEADLINE_S):
        tell(first, {"op": "ask", "to": cluster.names[1], "size": size, "count": count})
        times: Times = hear(first)["times_ns"]
    return times


def _raw_times(transport: str, size: int, count: int) -> Times:
    """Over plain blocking sockets."""
    payload = bytes(size)
    times = []
    with _echoed("echo", transport) as sock:
        for _ in range(WARM_UP + count):
            started = time.perf_counter_ns()
            sock.send(payload)
            missing = size
            while missing > 0:
                missing -= len(sock.recv(SPACE))
            times.append(time.perf_counter_ns() - started)
    return times[WARM_UP:]


def _bare_times(transport: str, size: int, count: int) -> Times:
    """The same sockets in an event loop on both sides."""
    with _echoed("echo_loop", transport) as sock:
        return run(_exchange(sock, bytes(size), WARM_UP + count))[WARM_UP:]


async def _exchange(sock: socket.socket, payload: bytes, count: int) -> Times:
    wire = Wire(sock)
    times = []
    for _ in range(count):
        started = time.perf_counter_ns()
        wire.send(payload)
        missing = len(payload)
        while missing > 0:
            missing -= len(await wire.receive())
        times.append(time.perf_counter_ns() - started)
    wire.close()
    return times


@contextmanager
def _echoed(role: str, transport: str) -> Iterator[socket.socket]:
    """A socket to a worker of this role, which sends back what it gets."""
    with ExitStack() as stack:
        process = stack.enter_context(child("benchmarks.worker", role))
        stack.enter_context(_apart(os.getpid(), process.pid))
        tell(process, {"transport": transport})
        sock = stack.enter_context(open_socket(transport))
        sock.connect(tuple(hear(process)["listen"]))
        yield sock
        sock.shutdown(socket.SHUT_WR) if transport == "tcp" else sock.send(b"")


@contextmanager
def _apart(first: int, second: int) -> Iterator[None]:
    """Let each of two processes run on one core and nowhere else, where the system has that."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        yield
        return
    try:
        _pin(first, cores[:1])
        _pin(second, cores[1:2])
        yield
    finally:
        _pin(first, cores)


def _pin(process: int, cores: Sequence[int]) -> None:
    with suppress(PermissionError):  # then it runs where the system likes
        os.sched_setaffinity(process, cores)


def _percentile(runs: Sequence[Times], share: int) -> float:
    """In microseconds: the median of the runs."""
    return statistics.median(percentile(times, share) or 0 for times in runs) / 1e3


def _ratio(runs: Sequence[Times], others: Sequence[Times]) -> float:
    """How much longer these took than the others of the same run; the median of the runs."""
    ratios = [
        _percentile([a], 50) / _percentile([b], 50) for a, b in zip(runs, others, strict=True)
    ]
    return round(statistics.median(ratios), 2)
