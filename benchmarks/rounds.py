"""Rounds of messages through a group of processes, and the raw ceiling beside them.

A warm-up round finds out how many messages make a round of the wanted length; then rounds are
repeated and medians taken. The ceiling moves bytes in the same pattern between as many processes
over the same kind of sockets, without any protocol.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks.workload import group_name
from ringcast.aio.multicast_socket import group_address
from ringcast.errors import RingcastError
from ringcast.sim.processes import child, hear, tell

if TYPE_CHECKING:
    from benchmarks.printing import Row
    from benchmarks.workload import Workload
    from ringcast.sim.processes import Cluster

    Answers = list[Row]

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
        self._rounds: list[Answers] = []
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

    def _round(self, per_sender: int) -> Answers:
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


def _sum(counter: str, answers: Answers) -> Any:
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
