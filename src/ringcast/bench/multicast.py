"""ringcast bench multicast: real processes on loopback, and the raw ceiling of the same run.

One process per member. A warm-up round finds out how many messages make a round of the wanted
length; then rounds are repeated and medians taken. The ceiling moves datagrams of the same size in
the same pattern between as many processes by UDP, without any protocol. What recording costs is
measured by a second group that does not record and takes turns with the first, and so is what votes
cost, by one that acknowledges; what uniform delivery costs, by plain rounds of the same group in
turn with uniform ones.
"""

from __future__ import annotations

import platform
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ringcast.aio.loop import loop_name
from ringcast.bench.cluster import Cluster, child, free_ports, hear, tell
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

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
    record_level: str = "deliveries"
    guarantee: str = "fifo"
    purge: str = "acks"
    retain: bool | None = None
    """With votes: whether receivers keep messages until all have them; None: as by default."""
    transport: str = "udp"

    def __post_init__(self) -> None:
        if not 2 <= self.members <= 16:
            raise UsageError(f"members = {self.members}: must be from 2 to 16")
        if self.senders not in ("1", "all"):
            raise UsageError(f"senders = {self.senders!r}: must be 1 or all")
        if not 0 <= self.size <= 1 << 20:
            raise UsageError(f"size = {self.size}: must be from 0 to 1048576 bytes")
        if not 0 <= self.loss <= 0.5:
            raise UsageError(f"loss = {self.loss}: must be from 0 to 0.5")
        if self.guarantee not in ("fifo", "uniform"):
            raise UsageError(f"guarantee = {self.guarantee!r}: must be fifo or uniform")
        if self.purge not in ("acks", "stability"):
            raise UsageError(f"purge = {self.purge!r}: must be acks or stability")
        if self.retain is not None and self.purge == "acks":
            raise UsageError("retain: groups that acknowledge keep nothing; add purge = stability")
        if self.transport not in ("udp", "tcp"):
            raise UsageError(f"transport = {self.transport!r}: must be udp or tcp")
        compared = {
            "recording": self.record is not None,
            "uniform": self.guarantee == "uniform",
            "voting": self.purge == "stability",
        }
        if sum(compared.values()) > 1:
            costs = " and ".join(f"what {name} costs" for name, is_on in compared.items() if is_on)
            raise UsageError(f"{costs}: one at a time")

    @property
    def sender_count(self) -> int:
        return self.members if self.senders == "all" else 1

    @property
    def stability(self) -> dict[str, Any] | None:
        """How the group votes; None: it acknowledges."""
        if self.purge == "acks":
            return None
        return {} if self.retain is None else {"retain_delivered": self.retain}

    @property
    def label(self) -> str:
        if self.senders == "all":
            return f"{self.members} all"
        return f"1 → {self.members - 1}"


def bench_multicast(workload: Workload) -> dict[str, Any]:
    """Measure one workload; a flat report."""
    ceiling = raw_ceiling(workload)
    with ExitStack() as stack:
        cluster = stack.enter_context(_cluster(workload))
        measured, plain = Measured(cluster, workload, workload.guarantee), None
        if workload.guarantee != "fifo":
            plain = Measured(cluster, workload, "fifo")
        elif workload.record is not None or workload.purge != "acks":
            simple = replace(workload, record=None, purge="acks", retain=None)
            plain = Measured(stack.enter_context(_cluster(simple)), simple, "fifo")
        for turn in range(workload.repeat):
            groups = [group for group in (measured, plain) if group is not None]
            for group in groups if turn % 2 == 0 else reversed(groups):
                group.measure()
    rate = measured.rate
    ratio = round(rate / plain.rate, 3) if plain is not None else None
    # A member does not send to itself over the network; the ceiling does not either.
    foreign = (workload.sender_count - (workload.senders == "all")) / workload.sender_count
    return {
        "workload": workload.label,
        "guarantee": workload.guarantee,
        "purge": workload.purge,
        "transport": workload.transport,
        "size": workload.size,
        "loss": workload.loss,
        "rate_per_member": round(rate),
        "deliveries_per_s": round(rate * workload.members),
        "mb_per_s": round(rate * workload.size / 1e6, 1),
        "cpu_s_per_million": round(measured.cpu_s_per_million, 3),
        "retransmitted": measured.retransmitted,
        "reports_per_1000": round(measured.reports_per_1000, 2),
        "lost": measured.lost + (plain.lost if plain is not None else 0),
        "rss_mb": round(measured.rss_mb, 1),
        "ceiling_mb_per_s": round(ceiling / 1e6, 1),
        "ceiling_ratio": round(rate * foreign * workload.size / ceiling, 3),
        "rates": [round(value) for value in measured.rates],
        "messages": measured.per_sender * workload.sender_count * workload.repeat,
        "recorded": workload.record_level if workload.record is not None else None,
        "record_ratio": ratio if workload.record is not None else None,
        "uniform_ratio": ratio if workload.guarantee == "uniform" else None,
        "stability_ratio": ratio if workload.purge == "stability" else None,
        "plain_rates": [round(value) for value in plain.rates] if plain is not None else None,
        "plain_cpu_s_per_million": round(plain.cpu_s_per_million, 3) if plain is not None else None,
        "plain_reports_per_1000": round(plain.reports_per_1000, 2) if plain is not None else None,
        "versions": {"python": platform.python_version(), "loop": loop_name()},
    }


def _cluster(workload: Workload) -> Cluster:
    return Cluster(
        members=workload.members,
        loss=workload.loss,
        seed=workload.seed,
        record=workload.record,
        record_level=workload.record_level,
        config={"stability": workload.stability},
        transport=workload.transport,
    )


class Measured:
    """A group, warmed up, and its rounds with one guarantee so far."""

    def __init__(self, cluster: Cluster, workload: Workload, guarantee: str) -> None:
        self._cluster = cluster
        self._workload = workload
        self._guarantee = guarantee
        self._rounds: list[list[dict[str, Any]]] = []
        warm_up = max(512, WARM_UP_BYTES // max(1, workload.size) // workload.sender_count)
        warm = _round(cluster, workload, warm_up, guarantee)
        scale = workload.seconds / max(answer["seconds"] for answer in warm)
        self.per_sender = max(512, int(warm_up * scale))
        self._warm = warm

    def measure(self) -> None:
        answers = _round(self._cluster, self._workload, self.per_sender, self._guarantee)
        self._rounds.append(answers)

    @property
    def rates(self) -> list[float]:
        return [_rate(answers) for answers in self._rounds]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu_s_per_million(self) -> float:
        costs = (
            sum(answer["cpu_s"] for answer in answers)
            / sum(answer["delivered"] for answer in answers)
            for answers in self._rounds
        )
        return float(statistics.median(costs)) * 1e6

    @property
    def retransmitted(self) -> int:
        return self._since_warm_up("resent")

    @property
    def reports_per_1000(self) -> float:
        """Acks, votes and what comes of votes, for each thousand messages that were sent."""
        messages = self.per_sender * self._workload.sender_count * len(self._rounds)
        return 1000 * self._since_warm_up("reports") / messages

    def _since_warm_up(self, counter: str) -> int:
        last, warm = (
            sum(int(answer[counter]) for answer in answers)
            for answers in (self._rounds[-1], self._warm)
        )
        return last - warm

    @property
    def lost(self) -> int:
        return sum(int(answer["lost"]) for answers in self._rounds for answer in answers)

    @property
    def rss_mb(self) -> float:
        return max(float(answer["rss_mb"]) for answer in self._rounds[-1])


def _round(
    cluster: Cluster, workload: Workload, per_sender: int, guarantee: str
) -> list[dict[str, Any]]:
    """Everybody sends and reads one round; everybody's answer."""
    expect = per_sender * workload.sender_count
    for at, process in enumerate(cluster.processes):
        send = per_sender if at < workload.sender_count else 0
        task = {"op": "round", "send": send, "expect": expect, "size": workload.size}
        tell(process, {**task, "guarantee": guarantee})
    return cluster.hear_all()


def _rate(answers: list[dict[str, Any]]) -> float:
    """Messages per second delivered by a member: the median member's."""
    return float(statistics.median(answer["delivered"] / answer["seconds"] for answer in answers))


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
