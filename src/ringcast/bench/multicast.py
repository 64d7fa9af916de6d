"""ringcast bench multicast: real processes on loopback, and the raw ceiling of the same run.

One process per member. A warm-up round finds out how many messages make a round of the wanted
length; then rounds are repeated and medians taken. The ceiling moves datagrams of the same size in
the same pattern between as many processes, without any protocol.
"""

from __future__ import annotations

import json
import platform
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcast.aio.loop import loop_name
from ringcast.errors import RingcastError, UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

DATAGRAM_BYTES = 60_000
WARM_UP_BYTES = 20 << 20
CEILING_SECONDS = 0.7


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What to measure."""

    members: int = 3
    senders: str = "all"
    size: int = 1000
    loss: float = 0.0
    seconds: float = 1.0
    repeat: int = 3
    seed: int = 1
    record: Path | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.members <= 16:
            raise UsageError(f"members = {self.members}: must be from 2 to 16")
        if self.senders not in ("1", "all"):
            raise UsageError(f"senders = {self.senders!r}: must be 1 or all")
        if not 0 <= self.size <= 1 << 20:
            raise UsageError(f"size = {self.size}: must be from 0 to 1048576 bytes")
        if not 0 <= self.loss <= 0.5:
            raise UsageError(f"loss = {self.loss}: must be from 0 to 0.5")

    @property
    def sender_count(self) -> int:
        return self.members if self.senders == "all" else 1

    @property
    def label(self) -> str:
        if self.senders == "all":
            return f"{self.members} all"
        return f"1 → {self.members - 1}"


def bench_multicast(workload: Workload) -> dict[str, Any]:
    """Measure one workload; a flat report."""
    ceiling = raw_ceiling(workload)
    with Members(workload) as members:
        per_sender = max(512, WARM_UP_BYTES // max(1, workload.size) // workload.sender_count)
        warm = members.round(per_sender)
        scale = workload.seconds / max(answer["seconds"] for answer in warm)
        per_sender = max(512, int(per_sender * scale))
        resent_before = sum(answer["resent"] for answer in warm)
        rounds = [members.round(per_sender) for _ in range(workload.repeat)]
    rates = [_rate(answers) for answers in rounds]
    deliveries = [sum(answer["delivered"] for answer in answers) for answers in rounds]
    cpu = [sum(answer["cpu_s"] for answer in answers) for answers in rounds]
    rate = statistics.median(rates)
    # A member does not send to itself over the network; the ceiling does not either.
    foreign = (workload.sender_count - (workload.senders == "all")) / workload.sender_count
    return {
        "workload": workload.label,
        "size": workload.size,
        "loss": workload.loss,
        "rate_per_member": round(rate),
        "deliveries_per_s": round(rate * workload.members),
        "mb_per_s": round(rate * workload.size / 1e6, 1),
        "cpu_s_per_million": round(
            statistics.median(c / d * 1e6 for c, d in zip(cpu, deliveries, strict=True)), 3
        ),
        "retransmitted": sum(a["resent"] for a in rounds[-1]) - resent_before,
        "lost": sum(answer["lost"] for answers in rounds for answer in answers),
        "rss_mb": round(max(answer["rss_mb"] for answer in rounds[-1]), 1),
        "ceiling_mb_per_s": round(ceiling / 1e6, 1),
        "ceiling_ratio": round(rate * foreign * workload.size / ceiling, 3),
        "rates": [round(value) for value in rates],
        "messages": per_sender * workload.sender_count * workload.repeat,
        "recorded": workload.record is not None,
        "versions": {"python": platform.python_version(), "loop": loop_name()},
    }


def _rate(answers: list[dict[str, Any]]) -> float:
    """Messages per second delivered by a member: the median member's."""
    return float(statistics.median(answer["delivered"] / answer["seconds"] for answer in answers))


class Members:
    """The member processes of one workload, in one group until the block ends."""

    def __init__(self, workload: Workload, config: dict[str, Any] | None = None) -> None:
        self._workload = workload
        self._config = config or {}
        self._stack = ExitStack()
        self.processes: list[subprocess.Popen[str]] = []
        self.names = [f"m{at}" for at in range(workload.members)]

    def __enter__(self) -> Members:
        workload = self._workload
        addresses = [f"127.0.0.1:{port}" for port in free_ports(workload.members)]
        with ExitStack() as stack:
            for at, address in enumerate(addresses):
                process = stack.enter_context(child("ringcast.bench.member"))
                self.processes.append(process)
                tell(
                    process,
                    {
                        "listen": address,
                        "members": addresses,
                        "name": self.names[at],
                        "seed": workload.seed * 1000 + at,
                        "loss": workload.loss,
                        "record": str(workload.record) if workload.record else None,
                        "config": self._config,
                    },
                )
            for process in self.processes:
                hear(process)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        self._stack.close()

    def round(self, per_sender: int) -> list[dict[str, Any]]:
        """Everybody sends and reads one round; everybody's answer."""
        workload = self._workload
        expect = per_sender * workload.sender_count
        for at, process in enumerate(self.processes):
            send = per_sender if at < workload.sender_count else 0
            tell(process, {"op": "round", "send": send, "expect": expect, "size": workload.size})
        return [hear(process) for process in self.processes]

    def tell_all(self, message: dict[str, Any]) -> None:
        for process in self.processes:
            tell(process, message)

    def hear_all(self) -> list[dict[str, Any]]:
        return [hear(process) for process in self.processes]

    def kill(self, at: int) -> None:
        """kill -9 one member and let the others go on without it."""
        victim = self.processes.pop(at)
        victim.kill()
        victim.wait()
        self.tell_all({"op": "exclude", "name": self.names.pop(at)})


def raw_ceiling(workload: Workload) -> float:
    """Bytes per second that reach a receiver through plain sockets in the same pattern."""
    addresses = [("127.0.0.1", port) for port in free_ports(workload.members)]
    size = max(1, workload.size)
    datagram = DATAGRAM_BYTES // size * size or DATAGRAM_BYTES  # as full of messages as ours
    with ExitStack() as stack:
        processes = [stack.enter_context(child("ringcast.bench.ceiling")) for _ in addresses]
        for at, process in enumerate(processes):
            tell(
                process,
                {
                    "listen": addresses[at],
                    "peers": [address for address in addresses if address != addresses[at]],
                    "is_sender": at < workload.sender_count,
                    "size": datagram,
                    "seconds": CEILING_SECONDS,
                },
            )
        for process in processes:
            hear(process)
        for process in processes:
            tell(process, {"go": True})
        rates = [hear(process)["bytes_per_s"] for process in processes]
    receivers = rates if workload.senders == "all" else rates[1:]
    return float(statistics.median(receivers))


def free_ports(count: int) -> list[int]:
    """UDP ports on loopback that nobody uses at this moment."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for _ in range(count)
        ]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def child(module: str) -> subprocess.Popen[str]:
    """A Python process that runs a module of ours and talks JSON lines."""
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RingcastError(f"a member process ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer
