"""Workload: what a benchmark of a group is to measure, checked when it is built. Rounds: messages
through a group of processes, and the raw ceiling beside them.

A warm-up round finds out how many messages make a round of the wanted length; then rounds are
repeated and medians taken. The ceiling moves bytes in the same pattern between as many processes
over the same kind of sockets, without any protocol.
"""

from __future__ import annotations

import platform
import secrets
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from ringcast.aio.loop import loop_name
from ringcast.aio.multicast_socket import group_address
from ringcast.checks import check_whole
from ringcast.config import RECEIVE_BUFFER_MIN
from ringcast.errors import RingcastError, UsageError
from ringcast.sim.processes import Cluster, child, hear, tell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Row: TypeAlias = dict[str, Any]

TRANSPORTS = ("udp", "multicast", "tcp")

DEADLINE_S = 60.0
"""What a round may take; those that are measured are far shorter."""


class Size(NamedTuple):
    """Bytes of a message; `is_mixed`: on average, from 0 to twice as many."""

    size: int
    is_mixed: bool = False

    def __str__(self) -> str:
        return f"{self.size}{'-mixed' * self.is_mixed}"


SIZE = Size(1000)
MEMBERS_MAX = 16
RUNS_MAX = 1000

RATIOS = (
    *("record_ratio", "uniform_ratio", "total_ratio", "stability_ratio", "buffer_ratio"),
    "seal_ratio",
)
"""Beside what a workload is measured, if anything."""


def progress(text: str) -> None:
    """Progress goes to the screen beside what is printed."""
    click.echo(text, err=True)


def check(name: str, value: float, least: float, most: float, unit: str = "") -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} = {value}: must be from {least} to {most}{unit}")


def check_duration(name: str, value: float, most: int) -> None:
    if not 0 < value <= most:
        raise UsageError(f"{name} = {value}: must be more than 0, at most {most}")


def percentile(values: Sequence[float], share: int) -> float | None:
    """What so many of a hundred are at most; None: there are none."""
    return sorted(values)[len(values) * share // 100] if values else None


def versions() -> dict[str, str]:
    """What ran: figures of another Python are others."""
    built = f"{platform.python_version()}, {platform.python_compiler()}"
    return {"python": built, "loop": loop_name()}


def group_name(transport: str) -> str:
    """Of a cluster with this transport: one that no other listens to."""
    return f"bench-{secrets.token_hex(4)}" if transport == "multicast" else "bench"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Messages to the group, or, with `is_unicast`, of the first member to the second."""

    members: int = 3
    senders: str = "all"
    size: Size = SIZE
    is_unicast: bool = False
    is_single: bool = False
    """Messages are sent and read one at a time, as most people write it."""
    loss: float = 0.0
    seconds: float = 1.0
    runs: int = 3
    seed: int = 1
    record: Path | None = None
    record_level: str = "deliveries"
    guarantee: str = "fifo"
    purge: str = "acks"
    retain: bool | None = None
    """With reports: whether receivers keep messages until all have them; None: as by default."""
    transport: str = "udp"
    receive_buffer: int | None = None
    """Bytes of socket buffer that each member asks for; None: as by default. Measured beside the
    same workload with the default."""
    has_key: bool = True
    """The group is sealed, as by default."""
    is_beside_insecure: bool = False
    """Measured beside the same workload without a key."""
    deadline_s: float = DEADLINE_S
    """How long a round may take before it counts as stuck."""

    def __post_init__(self) -> None:
        check("members", self.members, 2, MEMBERS_MAX)
        check("runs", self.runs, 1, RUNS_MAX)
        check("size", self.size.size, 0, 1 << 20, " bytes")
        check("loss", self.loss, 0, 0.5)
        check_duration("seconds", self.seconds, 3600)
        if self.receive_buffer is not None:
            check_whole("receive_buffer", self.receive_buffer, RECEIVE_BUFFER_MIN, 1 << 30)
            if self.transport == "tcp":
                raise UsageError("receive_buffer: datagrams have one; with tcp nothing is to set")
        if self.retain is not None and self.purge == "acks":
            raise UsageError("retain: groups that acknowledge keep nothing; add purge = stability")
        if len(self._compared) > 1:
            costs = " and ".join(f"what {cost} costs" for cost in self._compared.values())
            raise UsageError(f"{costs}: one at a time")

    @property
    def sender_count(self) -> int:
        return self.members if self.senders == "all" else 1

    @property
    def beside(self) -> str | None:
        """What the ratio is of: to the same without this."""
        return next(iter(self._compared), None)

    @property
    def _compared(self) -> dict[str, str]:
        """What is measured beside the same without it; with a buffer, both sides have the rest."""
        has_buffer = self.receive_buffer is not None
        costs = {
            "record": ("recording", self.record is not None),
            "buffer": ("a receive buffer", has_buffer),
            "seal": ("sealing", self.is_beside_insecure),
            "uniform": ("uniform", self.guarantee == "uniform" and not has_buffer),
            "total": ("one order", self.guarantee == "total" and not has_buffer),
            "stability": ("stability", self.purge != "acks" and not has_buffer),
        }
        return {name: cost for name, (cost, is_on) in costs.items() if is_on}

    @property
    def stability(self) -> dict[str, Any] | None:
        """How the group reports; None: it acknowledges."""
        if self.purge == "acks":
            return None
        return {} if self.retain is None else {"retain_delivered": self.retain}

    @property
    def shape(self) -> str:
        """Who sends to whom."""
        return f"{self.members} all" if self.senders == "all" else f"1 → {self.members - 1}"

    def __str__(self) -> str:
        loss = f", {self.loss:.0%} lost" if self.loss else ""
        buffer = f", receive buffer {self.receive_buffer} B" if self.receive_buffer else ""
        return f"{self.transport}, {self.shape}, {self.size} B{loss}{buffer}"

    def cluster(self) -> Cluster:
        """The group to measure; not started yet."""
        return Cluster(
            members=self.members,
            group=group_name(self.transport),
            loss=self.loss,
            seed=self.seed,
            record=self.record,
            record_level=self.record_level,
            config={"stability": self.stability},
            transport=self.transport,
            receive_buffer_bytes=self.receive_buffer,
            insecure=not self.has_key,
        )

    def tasks(self, per_sender: int, guarantee: str) -> list[dict[str, Any]]:
        """What each member is to do in a round in which each sender sends so many."""
        task = {
            "op": "round",
            "size": self.size.size,
            "mixed": self.size.is_mixed,
            "guarantee": guarantee,
            "deadline_s": self.deadline_s,
            "singly": self.is_single,
            "senders": self.sender_count,
        }
        expect = per_sender * self.sender_count
        tasks = [
            {**task, "send": per_sender if at < self.sender_count else 0, "expect": expect}
            for at in range(self.members)
        ]
        if self.is_unicast:
            tasks[0] |= {"to": "m1", "expect": 0}
        return tasks


# Rounds

DATAGRAM_BYTES = 60_000

WARM_UP_BYTES = 20 << 20
WARM_UP_MESSAGES = 200_000
"""Whichever is less; for rounds of less than a second, that share of it."""

MESSAGES_MIN = 4
"""Of a round, from each sender."""

CEILING_S_MIN = 0.1
CEILING_S_MAX = 0.5
"""The ceiling is measured for as long as a round, within these bounds."""

GRACE_S = 10.0
"""After its deadline a member says why it is stuck. One that does not is killed."""


class Rounds:
    """A group, warmed up, and its rounds with one guarantee so far."""

    def __init__(self, cluster: Cluster, workload: Workload, guarantee: str = "fifo") -> None:
        self._cluster = cluster
        self._workload = workload
        self._guarantee = guarantee
        self._rounds: list[list[Row]] = []
        messages = min(WARM_UP_MESSAGES, WARM_UP_BYTES // max(1, workload.size.size))
        share = min(1.0, workload.seconds) / workload.sender_count
        warm_up = max(MESSAGES_MIN, int(messages * share))
        self._warm = self._round(warm_up)
        scale = workload.seconds / max(answer["seconds"] for answer in self._warm)
        self._per_sender = max(MESSAGES_MIN, int(warm_up * scale))

    def measure(self) -> None:
        self._rounds.append(self._round(self._per_sender))

    def figures(self) -> Row:
        """Of all rounds: messages per second delivered by the median member, CPU time of all
        members together, acks and reports for each thousand messages that were sent, and messages
        that did not come, whether or not others came in their place."""
        rates = [
            statistics.median(
                answer["delivered"] / answer["seconds"] for answer in answers if answer["delivered"]
            )
            for answers in self._rounds
        ]
        costs = [_sum("cpu_s", answers) / _sum("delivered", answers) for answers in self._rounds]
        last, warm = self._rounds[-1], self._warm
        messages = self._per_sender * self._workload.sender_count * len(self._rounds)
        reports = _sum("reports", last) - _sum("reports", warm)
        return {
            "rates": [round(rate) for rate in rates],
            "rate_per_member": round(statistics.median(rates)),
            "cpu_us_per_delivery": round(statistics.median(costs) * 1e6, 3),
            "messages": messages,
            "retransmitted": _sum("retransmitted", last) - _sum("retransmitted", warm),
            "reports_per_1000": round(1000 * reports / messages, 2),
            "lost": sum(_sum("lost", answers) for answers in self._rounds),
            "rss_mb": round(max(answer["rss_mb"] for answer in last), 1),
        }

    def _round(self, per_sender: int) -> list[Row]:
        """Everybody sends and reads one round; everybody's answer."""
        cluster, workload = self._cluster, self._workload
        tasks = workload.tasks(per_sender, self._guarantee)
        with cluster.within(workload.deadline_s + GRACE_S):
            for process, task in zip(cluster.processes, tasks, strict=True):
                tell(process, task)
            answers = cluster.hear_all()
        for name, answer in zip(cluster.names, answers, strict=True):
            if "stuck" in answer:
                raise RingcastError(f"{workload}: {name} {answer['stuck']}")
        return answers


def _sum(counter: str, answers: list[Row]) -> Any:
    return sum(answer[counter] for answer in answers)


def raw_ceiling(workload: Workload) -> float:
    """Bytes per second that reach a receiver through plain sockets in the same pattern."""
    size = max(1, workload.size.size)
    task = {
        "transport": workload.transport,
        "group": group_address(group_name(workload.transport)),
        "size": DATAGRAM_BYTES // size * size or DATAGRAM_BYTES,  # as full of messages as ours
        "seconds": max(CEILING_S_MIN, min(CEILING_S_MAX, workload.seconds)),
    }
    first_receiver = 0 if workload.senders == "all" else 1
    with ExitStack() as stack:
        processes = [
            stack.enter_context(child("benchmarks.worker", "ceiling"))
            for _ in range(workload.members)
        ]
        for at, process in enumerate(processes):
            roles = {"is_sender": at < workload.sender_count, "is_receiver": at >= first_receiver}
            tell(process, {**task, **roles})
        addresses = [hear(process)["listen"] for process in processes]
        for address, process in zip(addresses, processes, strict=True):
            tell(process, {"peers": [other for other in addresses if other != address]})
        rates = [hear(process)["bytes_per_s"] for process in processes]
    return float(statistics.median(rates[first_receiver:]))


def ceiling_ratio(workload: Workload, rate: float, ceiling: float) -> float | None:
    """Which share of what raw sockets move a group delivers. Messages of no bytes have none."""
    if not workload.size.size:
        return None
    # A member does not send to itself over the network; the ceiling does not either.
    foreign = (workload.sender_count - (workload.senders == "all")) / workload.sender_count
    return round(rate * foreign * workload.size.size / ceiling, 3)


def take_turns(groups: Sequence[Rounds], runs: int) -> None:
    """So many rounds of each, so that all meet the same machine."""
    for turn in range(runs):
        for group in groups if turn % 2 == 0 else reversed(groups):
            group.measure()
