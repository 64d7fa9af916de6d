"""ringcast bench state: a state on its way to a joiner, while its group goes on.

Real processes on loopback: three members that send and read, and a fourth that joins. Its state
comes in chunks that are made and checked on the way and kept nowhere, so what a process grows by is
what the transfer takes. Everybody keeps a checksum over what it knows of each sender: that of the
joiner, from the state and from what followed it, must be what was sent.
"""

from __future__ import annotations

import statistics
import time
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ringcast.bench.cluster import Cluster, hear, tell
from ringcast.bench.state_member import message
from ringcast.errors import RingcastError, UsageError
from ringcast.protocols.state_provider import CHUNK_BYTES_MAX, WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Sample = tuple[int, int, bool]

MEMBERS = 3
UNDISTURBED_S = 1.0
"""How long the group is left alone before somebody joins, and after."""


def bench_state(
    size: int, *, kill: float = 0.0, rate: int = 2000, message_bytes: int = 1000
) -> dict[str, Any]:
    """Let a fourth member get a state of `size` bytes from one of three. `kill`: at which share of
    it the provider is killed. `rate`: messages a second of each of the three; 0: all they can."""
    _check(size, kill, rate, message_bytes)
    with Cluster(
        members=MEMBERS, module="ringcast.bench.state_member", state_bytes=size
    ) as cluster:
        cluster.tell_all({"op": "send", "rate": rate, "size": message_bytes})
        cluster.hear_all()
        started = time.monotonic_ns()
        time.sleep(UNDISTURBED_S)
        cluster.tell_all({"op": "memory"})
        before = cluster.hear_all()
        calm = (started + int(UNDISTURBED_S * 2e8), time.monotonic_ns())
        killed = {}
        newcomer = cluster.start(pause_at=max(1, int(size * kill)) if kill else 0)
        answer = cluster.enter(newcomer)
        if kill:
            killed[cluster.kill(0)] = 0
            before.pop(0)
            tell(newcomer, {"op": "go on"})
            answer = hear(newcomer)
        _check_joined(answer)
        if kill:
            cluster.await_view()
        *senders, _ = cluster.processes
        for process in senders:
            tell(process, {"op": "stop"})
        stopped = [hear(process) for process in senders]
        sent = {name: answer["sent"] for name, answer in zip(cluster.names, stopped, strict=False)}
        cluster.tell_all({"op": "finish", "expect": sent})
        ends = cluster.hear_all()
        _check_known(cluster.names, ends, sent, message_bytes)
    provider_mb = ends[0]["memory_mb"] - before[0]["memory_mb"]
    samples = [answer["samples"] for answer in stopped]
    transfer = (answer["began"], answer["ended"])
    during = [_rate(_within(of_one, *transfer)) for of_one in samples]
    undisturbed = [_rate(_within(of_one, *calm)) for of_one in samples]
    held_up = [sample[2] for of_one in samples for sample in _within(of_one, *transfer)]
    return {
        "size_mb": round(size / 1e6, 1),
        "transfer_s": round((answer["ended"] - answer["began"]) / 1e9, 3),
        "mb_per_s": round(size / 1e6 / answer["took_s"], 1),
        "join_s": round(answer["join_s"], 3),
        "providers": answer["calls"],
        "sent_per_s": round(statistics.median(undisturbed)),
        "sent_per_s_meanwhile": round(statistics.median(during)),
        "goodput_ratio": round(statistics.median(during) / statistics.median(undisturbed), 3),
        "held_up": round(sum(held_up) / max(1, len(held_up)), 3),
        "provider_grew_mb": round(provider_mb, 1),
        "joiner_grew_mb": round(answer["memory_mb"] - answer["memory_before_mb"], 1),
        "messages": sum(count for count, _ in ends[-1]["known"].values()),
        "is_complete": True,
    }


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


def _check_joined(answer: dict[str, Any]) -> None:
    if answer["state_lost"] is not None or not answer["is_ballast_right"]:
        raise RingcastError(f"the joiner has not got the state: {answer}")


def _check_known(
    names: Sequence[str], ends: Sequence[dict[str, Any]], sent: dict[str, int], size: int
) -> None:
    """Of those who live everybody has everything; of who was killed, all up to some place."""
    for member, end in zip(names, ends, strict=True):
        for sender, (count, checksum) in end["known"].items():
            is_whole = count == sent.get(sender, count)
            if not is_whole or checksum != _checksum(sender, count, size):
                what = f"{count} messages of {sender}, of {sent.get(sender, 'some')}"
                raise RingcastError(f"{member} does not know what it must: it has {what}")


def _checksum(sender: str, count: int, size: int) -> int:
    checksum = 0
    for number in range(count):
        checksum = zlib.crc32(message(sender, number, size), checksum)
    return checksum


def _check(size: int, kill: float, rate: int, message_bytes: int) -> None:
    if not 0 <= size <= 1 << 40:
        raise UsageError(f"size = {size}: must be from 0 to {1 << 40} bytes")
    if not 0 <= kill < 1:
        raise UsageError(f"kill = {kill}: must be a share of the state, from 0 to 1")
    left = WINDOW + CHUNK_BYTES_MAX
    if kill and size * (1 - kill) <= left:
        raise UsageError(
            f"kill = {kill}: when it happens more than {left} bytes must be on their way; "
            f"of a state of {size} bytes there are not"
        )
    if not 0 <= rate <= 1_000_000:
        raise UsageError(f"rate = {rate}: must be from 0 to 1000000 messages a second")
    if not 32 <= message_bytes <= 1 << 20:
        raise UsageError(f"message size = {message_bytes}: must be from 32 to {1 << 20} bytes")
