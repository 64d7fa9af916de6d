"""Rounds of messages through a group of processes, and the raw ceiling beside them.

A warm-up round finds out how many messages make a round of the wanted length; then rounds are
repeated and medians taken. The ceiling moves bytes in the same pattern between as many processes
over the same kind of sockets, without any protocol.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ringcast.aio.multicast_socket import group_address
from ringcast.bench.cluster import child, hear, tell
from ringcast.bench.workload import group_name
from ringcast.errors import RingcastError

if TYPE_CHECKING:
    from ringcast.bench.cluster import Cluster
    from ringcast.bench.workload import Workload

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
        self._rounds: list[list[dict[str, Any]]] = []
        messages = min(WARM_UP_MESSAGES, WARM_UP_BYTES // max(1, workload.size))
        share = min(1.0, workload.seconds) / workload.sender_count
        warm_up = max(MESSAGES_MIN, int(messages * share))
        self._warm = self._round(warm_up)
        scale = workload.seconds / max(answer["seconds"] for answer in self._warm)
        self.per_sender = max(MESSAGES_MIN, int(warm_up * scale))

    def measure(self) -> None:
        self._rounds.append(self._round(self.per_sender))

    @property
    def rates(self) -> list[float]:
        """Messages per second delivered by the median member, of each round."""
        return [
            float(statistics.median(answer["delivered"] / answer["seconds"] for answer in readers))
            for readers in map(_readers, self._rounds)
        ]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu_us_per_delivery(self) -> float:
        """Of all members together, those that only send too."""
        costs = (
            sum(answer["cpu_s"] for answer in answers)
            / sum(answer["delivered"] for answer in answers)
            for answers in self._rounds
        )
        return float(statistics.median(costs)) * 1e6

    @property
    def retransmitted(self) -> int:
        return self._since_warm_up("retransmitted")

    @property
    def reports_per_1000(self) -> float:
        """Acks, reports and what comes of reports, for each thousand messages that were sent."""
        return 1000 * self._since_warm_up("reports") / self.messages

    @property
    def messages(self) -> int:
        """How many were sent in these rounds."""
        return self.per_sender * self._workload.sender_count * len(self._rounds)

    @property
    def lost(self) -> int:
        """Messages that did not come, whether or not others came in their place."""
        return sum(int(answer["lost"]) for answers in self._rounds for answer in answers)

    @property
    def rss_mb(self) -> float:
        return max(float(answer["rss_mb"]) for answer in self._rounds[-1])

    def _since_warm_up(self, counter: str) -> int:
        last, warm = (
            sum(int(answer[counter]) for answer in answers)
            for answers in (self._rounds[-1], self._warm)
        )
        return last - warm

    def _round(self, per_sender: int) -> list[dict[str, Any]]:
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


def _readers(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer for answer in answers if answer["delivered"]]


def raw_ceiling(workload: Workload) -> float:
    """Bytes per second that reach a receiver through plain sockets in the same pattern."""
    size = max(1, workload.size)
    datagram = DATAGRAM_BYTES // size * size or DATAGRAM_BYTES  # as full of messages as ours
    task = {
        "transport": workload.transport,
        "group": group_address(group_name(workload.transport)),
        "size": datagram,
        "seconds": max(CEILING_S_MIN, min(CEILING_S_MAX, workload.seconds)),
    }
    with ExitStack() as stack:
        processes = [
            stack.enter_context(child("ringcast.bench.ceiling")) for _ in range(workload.members)
        ]
        for at, process in enumerate(processes):
            roles = {
                "is_sender": at < workload.sender_count,
                "is_receiver": at > 0 or workload.senders == "all",
            }
            tell(process, {**task, **roles})
        addresses = [hear(process)["listen"] for process in processes]
        for address, process in zip(addresses, processes, strict=True):
            tell(process, {"peers": [other for other in addresses if other != address]})
        rates = [hear(process)["bytes_per_s"] for process in processes]
    receivers = rates if workload.senders == "all" else rates[1:]
    return float(statistics.median(receivers))


def ceiling_ratio(workload: Workload, rate: float, ceiling: float) -> float | None:
    """Which share of what raw sockets move a group delivers. Messages of no bytes have none."""
    if not workload.size:
        return None
    # A member does not send to itself over the network; the ceiling does not either.
    foreign = (workload.sender_count - (workload.senders == "all")) / workload.sender_count
    return round(rate * foreign * workload.size / ceiling, 3)
