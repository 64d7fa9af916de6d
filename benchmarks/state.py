"""ringcast bench state: a state on its way to a joiner, while its group goes on.

Real processes on loopback: three members that send and read, and a fourth that joins. Its state
comes in chunks that are made and checked on the way and kept nowhere, so what a process grows by is
what the transfer takes. Everybody keeps a checksum over what it knows of each sender: that of the
joiner, from the state and from what followed it, must be what was sent.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmarks.worker import checksum_of, message
from benchmarks.workload import check, percentile
from ringcast.errors import RingcastError, UsageError
from ringcast.protocols.views.providing import CHUNK_BYTES_MAX, WINDOW
from ringcast.sim.processes import Cluster, hear, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.printing import Row

    Sample = tuple[int, int, bool]

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
    """Messages a second, of the time in which no joiner held senders up."""
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
