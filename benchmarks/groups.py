"""ringcast bench join, crash, idle, memory and state: what becomes of a group, its members and
joiners. Times are of the clock that all processes of a machine share.

A state is on its way to a joiner while three others send and read. It comes in chunks that are made
and checked on the way and kept nowhere, so what a process grows by is what the transfer takes.
Everybody keeps a checksum over what it knows of each sender: that of the joiner, from the state and
from what followed it, must be what was sent.
"""

from __future__ import annotations

import random
import secrets
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from benchmarks.network import HostCluster, Network
from benchmarks.usage import cpu_ns, processes, wakeups
from benchmarks.worker import checksum_of, message
from benchmarks.workload import (
    MEMBERS_MAX,
    RUNS_MAX,
    Rounds,
    Size,
    Workload,
    check,
    check_duration,
    group_name,
    percentile,
    progress,
)
from ringcast.config_file import PRESETS
from ringcast.errors import RingcastError, UsageError
from ringcast.protocols.views.providing import CHUNK_BYTES_MAX, WINDOW
from ringcast.sim.processes import Cluster, hear, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.workload import Row

    MemorySample = tuple[float, list[float]]
    Sample = tuple[int, int, bool]

CALM_S = (0.5, 1.0)
"""How long a group is left alone before a kill: what follows a join is over by then, and the kill
falls anywhere between two heartbeats."""

PYTHON = {
    "start of python": "pass",
    "import asyncio": "import asyncio",
    "import ringcast": "import ringcast",
}
"""What of a join the interpreter takes by itself, with asyncio, and with us."""


def bench_join(*, members: int, runs: int, transports: Sequence[str]) -> Iterator[Row]:
    """From the start of a process until it is in the view of a running group."""
    for transport, cluster in _clusters(members, runs, transports, fewest=1):
        joined: list[int] = []
        held: list[float] = []
        for _ in range(runs):
            started = time.monotonic_ns()
            answer = cluster.enter(cluster.start())
            joined.append(answer["at"] - started)
            held += _held(cluster)
            cluster.leave(members)
            cluster.await_view()
        yield _row(transport, f"join {members} members", joined, held)
    for what, code in PYTHON.items():
        yield _row(None, what, [_time_of(code) for _ in range(runs)])


def bench_crash(
    *, members: int, runs: int, transports: Sequence[str], cut: bool = False, preset: str = "lan"
) -> Iterator[Row]:
    """From kill -9, or from the cut, until all survivors have the view without the victim."""
    dice = random.Random(1)
    how = "cut off" if cut else "kill"
    times = PRESETS[preset].get("membership", {})
    for transport, cluster in _clusters(
        members, runs, transports, fewest=2, on_hosts=cut, membership=times
    ):
        for whom, at in (("a member", members - 1), ("the coordinator", 0)):
            held: list[float] = []
            took = [_lose(cluster, at, dice, held) for _ in range(runs)]
            yield _row(transport, f"{how} {whom}", took, held)


def _clusters(
    members: int,
    runs: int,
    transports: Sequence[str],
    *,
    fewest: int,
    on_hosts: bool = False,
    **terms: Any,
) -> Iterator[tuple[str, Cluster]]:
    check("members", members, fewest, MEMBERS_MAX)
    check("runs", runs, 1, RUNS_MAX)
    for transport in transports:
        progress(f"measuring {transport}")
        options: dict[str, Any] = {"group": group_name(transport), "transport": transport, **terms}
        with ExitStack() as stack:
            if on_hosts:
                network = stack.enter_context(Network(members, 1500))
                cluster: Cluster = HostCluster(network, secrets.token_hex(32), **options)
            else:
                cluster = Cluster(members=members, **options)
            yield transport, stack.enter_context(cluster)


def _held(cluster: Cluster) -> list[float]:
    """For how many ms each who was there before was blocked by the change to the view of all."""
    cluster.await_view()
    cluster.tell_all({"op": "stats"})
    last = [stats["GroupViews"]["held_ms"][-1:] for stats in cluster.hear_all()]
    return [held for each in last for held in each if len(last) > 1]  # who is alone waits for none


def _lose(cluster: Cluster, at: int, dice: random.Random, held: list[float]) -> int:
    """Kill one, or cut it off where it has a host; see how long it takes to be missed by all, and
    have another in its place."""
    time.sleep(dice.uniform(*CALM_S))
    lost = time.monotonic_ns()
    with ExitStack() as stack:
        if isinstance(cluster, HostCluster):
            stack.enter_context(cluster.vanished(at))
        else:
            cluster.kill(at)
        missed: int = max(answer["at"] for answer in cluster.await_view())
        held += _held(cluster)
    cluster.enter(cluster.start())
    return missed - lost


def _time_of(code: str) -> int:
    started = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.monotonic_ns() - started


def _row(
    transport: str | None, what: str, times_ns: Sequence[int], held_ms: Sequence[float] = ()
) -> Row:
    return {
        "transport": transport,
        "what": what,
        "median_s": round(statistics.median(times_ns) / 1e9, 3),
        "least_s": round(min(times_ns) / 1e9, 3),
        "most_s": round(max(times_ns) / 1e9, 3),
        "held_p50_ms": percentile(held_ms, 50),
        "held_p99_ms": percentile(held_ms, 99),
        "runs": len(times_ns),
    }


# Nothing to do

IDLE_S = 2.0
"""How long a group is left alone before it counts as idle: heartbeats have been sent, and all that
follows a join is over."""

IDLERS_MAX = 200


def bench_idle(
    *, members: Sequence[int], seconds: float, transports: Sequence[str]
) -> Iterator[Row]:
    """What a member takes of the machine while nobody sends: the median, and the most of any."""
    check_duration("seconds", seconds, 3600)
    for transport, count in product(transports, members):
        check("members", count, 1, IDLERS_MAX)
        progress(f"measuring {transport}, {count} members")
        with Cluster(members=count, group=group_name(transport), transport=transport) as cluster:
            cluster.await_view()
            time.sleep(IDLE_S)
            pids = [process.pid for process in cluster.processes]
            before = _datagrams(cluster)
            started = time.monotonic_ns()
            used, woken = [*map(cpu_ns, pids)], [*map(wakeups, pids)]
            time.sleep(seconds)
            took = time.monotonic_ns() - started
            shares = [100 * (cpu_ns(pid) - at) / took for pid, at in zip(pids, used, strict=True)]
            wakes = [(wakeups(pid) - at) / took for pid, at in zip(pids, woken, strict=True)]
            passed = [now - at for now, at in zip(_datagrams(cluster), before, strict=True)]
            resident = _resident_mb(cluster)
        yield {
            "transport": transport,
            "members": count,
            "cpu_percent": round(statistics.median(shares), 3),
            "most_cpu_percent": round(max(shares), 3),
            "wakeups_per_s": round(statistics.median(wakes) * 1e9, 1),
            "datagrams_per_s": round(statistics.median(passed) / took * 1e9, 1),
            "resident_mb": round(statistics.median(resident), 1),
            "most_resident_mb": round(max(resident), 1),
            "seconds": seconds,
        }


def _datagrams(cluster: Cluster) -> list[int]:
    """That each member has sent and received."""
    cluster.tell_all({"op": "stats"})
    transports = [stats["transport"] for stats in cluster.hear_all()]
    return [each["sent"] + each["received"] for each in transports]


# Memory

SETTLING_S = 60.0
SETTLING_SHARE = 0.1

SAMPLES_MIN = 3
"""Fewer tell nothing of growth."""

FLAT_SHARE = 0.02
"""Who grows by no more than this share of what it had, over the whole time, is flat."""

ROUND_S = 1.0


def bench_memory(
    *, transport: str, members: int, size: int, minutes: float, every: float
) -> list[Row]:
    """The member that has most, or grows most, counts. A sample every so many seconds."""
    check_duration("minutes", minutes, 1440)
    if not 0.05 <= every <= 60 * minutes / SAMPLES_MIN:
        raise UsageError(f"every = {every}: must be from 0.05 to a third of the time, in seconds")
    seconds = min(ROUND_S, every)
    workload = Workload(members=members, size=Size(size), transport=transport, seconds=seconds)
    with workload.cluster() as cluster:
        time.sleep(IDLE_S)
        idle = _resident_mb(cluster)
        rounds = Rounds(cluster, workload)
        started = time.monotonic()
        due = 0.0
        samples: list[MemorySample] = []
        while (elapsed := time.monotonic() - started) < 60 * minutes or len(samples) < SAMPLES_MIN:
            rounds.measure()
            if elapsed >= due:
                due = elapsed + every
                resident = _resident_mb(cluster)
                samples.append((elapsed / 60, resident))
                progress(f"minute {elapsed / 60:.1f} of {minutes:g}: {max(resident):.1f} MB")
    figures = rounds.figures()
    row = {
        "transport": transport,
        "members": members,
        "size": size,
        "idle_mb": round(max(idle), 1),
        **_drift(samples, minutes),
        "rate_per_member": figures["rate_per_member"],
        "lost": figures["lost"],
        "minutes": round(elapsed / 60, 2),
        "samples": [
            {"minute": round(minute, 3), "resident_mb": [round(value, 2) for value in resident]}
            for minute, resident in samples
        ],
    }
    return [row]


def _drift(samples: Sequence[MemorySample], minutes: float) -> Row:
    """Of the member that grows most, once all have settled."""
    settled_at = min(SETTLING_S / 60, SETTLING_SHARE * minutes)
    settled = [sample for sample in samples if sample[0] >= settled_at]
    if len(settled) < SAMPLES_MIN:  # of so short a time there is no telling
        settled = list(samples)
    at = [minute for minute, _ in settled]
    slope, first, last = max(
        (slope_of(at, resident), resident[0], resident[-1])
        for resident in zip(*(resident for _, resident in settled), strict=True)
    )
    flat = FLAT_SHARE * first / (at[-1] - at[0])
    return {
        "first_mb": round(first, 1),
        "last_mb": round(last, 1),
        "most_mb": round(max(max(resident) for _, resident in samples), 1),
        "mb_per_minute": round(slope, 3),
        "flat_mb_per_minute": round(flat, 3),
        "is_flat": slope <= flat,
    }


def slope_of(at: Sequence[float], values: Sequence[float]) -> float:
    """Of the line through these points that fits best; 0 if all are at one place."""
    return statistics.linear_regression(at, values).slope if len(set(at)) > 1 else 0.0


def _resident_mb(cluster: Cluster) -> list[float]:
    """Of each process."""
    running = processes()
    return [running[process.pid].resident_mb for process in cluster.processes]


# State for joiners

MEMBERS = 3
PROGRAM = ("benchmarks.worker", "state")
UNDISTURBED_NS = 1_200_000_000
SETTLING_NS = 200_000_000
"""How long the group is left alone before somebody joins, and what of it does not count."""


def bench_state(
    *, size: int, kill: float = 0.0, rate: int = 2000, message_bytes: int = 1000
) -> list[Row]:
    """Let a fourth member get a state of `size` bytes from one of three. `kill`: at which share of
    it the provider is killed. `rate`: messages a second of each of the three; 0: all they can."""
    _check(size, kill, rate, message_bytes)
    with Cluster(members=MEMBERS, program=PROGRAM, state_bytes=size) as cluster:
        cluster.tell_all({"op": "send", "rate": rate, "size": message_bytes})
        calm = (time.monotonic_ns() + SETTLING_NS, time.monotonic_ns() + UNDISTURBED_NS)
        time.sleep(UNDISTURBED_NS / 1e9)
        cluster.tell_all({"op": "memory"})
        memory = {name: answer["memory_mb"] for name, answer in _answers(cluster)}
        joined = _let_in(cluster, int(size * kill))
        stopped = _stop(cluster)
        sent = {name: answer["sent"] for name, answer in stopped.items()}
        cluster.tell_all({"op": "finish", "expect": sent})
        ends = dict(_answers(cluster))
    provider, *_, joiner = ends
    for name, end in ends.items():
        check_known(name, end["known"], sent, message_bytes)
    transfer = (joined["began"], joined["ended"])
    samples = [answer["samples"] for answer in stopped.values()]
    before = statistics.median(_rate(_within(of_one, *calm)) for of_one in samples)
    meanwhile = statistics.median(_rate(_within(of_one, *transfer)) for of_one in samples)
    blocked = [is_blocked for of_one in samples for *_, is_blocked in _within(of_one, *transfer)]
    held = [each for end in ends.values() for each in end["stats"]["GroupViews"]["held_ms"][-1:]]
    row = {
        "size_mb": round(size / 1e6, 1),
        "join_s": round(joined["join_s"], 3),
        "transfer_s": round((joined["ended"] - joined["began"]) / 1e9, 3),
        "mb_per_s": round(size / 1e6 / joined["took_s"], 1),
        "providers": joined["calls"],
        "sent_per_s": round(before),
        "meanwhile_per_s": round(meanwhile),
        "goodput_ratio": round(meanwhile / before, 3) if before else None,
        "blocked": round(statistics.fmean(blocked), 3) if blocked else None,
        "held_p50_ms": percentile(held, 50),
        "held_p99_ms": percentile(held, 99),
        "provider_grew_mb": round(ends[provider]["memory_mb"] - memory[provider], 1),
        "joiner_grew_mb": round(ends[joiner]["memory_mb"] - joined["memory_before_mb"], 1),
        "messages": sum(count for count, _ in ends[joiner]["known"].values()),
    }
    return [row]


def _let_in(cluster: Cluster, kill_at: int) -> dict[str, Any]:
    """Let another member join; what it has to say of its state. The first one provides it: kill
    that when so many bytes have come, if any."""
    newcomer = cluster.start(pause_at=kill_at)
    answer = cluster.enter(newcomer)
    if kill_at:
        cluster.kill(0)
        tell(newcomer, {"op": "go on"})
        answer = hear(newcomer)
        cluster.await_view()
    if answer["state_lost"] is not None or not answer["is_ballast_right"]:
        raise RingcastError(f"the joiner has not got the state as it is: {answer}")
    return answer


def _stop(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """No more messages; how many there were."""
    senders = dict(zip(cluster.names[:-1], cluster.processes, strict=False))
    for process in senders.values():
        tell(process, {"op": "stop"})
    return {name: hear(process) for name, process in senders.items()}


def _answers(cluster: Cluster) -> Iterable[tuple[str, dict[str, Any]]]:
    return zip(cluster.names, cluster.hear_all(), strict=True)


def _within(samples: Iterable[Sample], first: int, last: int) -> list[Sample]:
    return [sample for sample in samples if first <= sample[0] <= last]


def _rate(samples: Sequence[Sample]) -> float:
    """Messages a second, of the time in which no joiner blocked senders."""
    count = elapsed = 0
    for before, after in pairwise(samples):
        if not before[2] and not after[2]:
            elapsed += after[0] - before[0]
            count += after[1] - before[1]
    return count * 1e9 / elapsed if elapsed else 0.0


def check_known(
    member: str, known: dict[str, tuple[int, int]], sent: dict[str, int], size: int
) -> None:
    """Of those who live everything; of who was killed, all up to some place."""
    for sender, (count, checksum) in known.items():
        right = checksum_of(message(sender, number, size) for number in range(count))
        if count != sent.get(sender, count) or checksum != right:
            what = f"{count} messages of {sender}, which sent {sent.get(sender, 'no one knows')}"
            raise RingcastError(f"{member} does not know what it must: it has {what}")


def _check(size: int, kill: float, rate: int, message_bytes: int) -> None:
    check("size", size, 0, 1 << 40, " bytes")
    if not 0 <= kill < 1:
        raise UsageError(f"kill = {kill}: must be a share of the state, from 0 to 1")
    left = WINDOW + CHUNK_BYTES_MAX
    if kill and size * (1 - kill) <= left:
        raise UsageError(
            f"kill = {kill}: when it happens more than {left} bytes must be on their way; "
            f"of a state of {size} bytes there are not"
        )
    check("rate", rate, 0, 1_000_000, " messages a second")
    check("message size", message_bytes, 32, 1 << 20, " bytes")
