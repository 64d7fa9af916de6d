"""Real processes over each transport: traffic and loss, kill -9, a stopped process, a restart on
the port of the dead. What was delivered is judged from the traces."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from random import Random
from threading import Timer
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.sim.processes import Cluster, hear, tell
from ringcast.spark.audit import audit

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MEMBERS = 4
MEMBERSHIP = {"heartbeat_s": 0.2, "suspect_after_s": 1.5, "verify_s": 0.5}
"""Who is stopped is soon left out."""

ROUND_S = 2.5
"""How long members trade for each round of faults; some faults may come when they have done."""

DEADLINE_S = 120.0
TRANSPORTS = ["udp", "multicast", "tcp"]


@pytest.mark.proof
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_faults_cost_nothing_that_was_promised(tmp_path: Path, transport: str) -> None:
    check_faults(tmp_path, transport, seed=1, rounds=1, loss=0.02)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_faults_cost_nothing_that_was_promised(
    tmp_path: Path, transport: str, seed: int
) -> None:
    check_faults(tmp_path, transport, seed=seed, rounds=4, loss=0.1)


def check_faults(directory: Path, transport: str, *, seed: int, rounds: int, loss: float) -> None:
    with (
        Cluster(
            members=MEMBERS,
            loss=loss,
            seed=seed,
            record=directory,
            membership=MEMBERSHIP,
            transport=transport,
        ) as cluster,
        deadline(cluster),
    ):
        faults = Faults(cluster, Random(seed), transport)
        faults.trade(cluster.names, rounds * ROUND_S)
        for _ in range(rounds):
            faults.happen()
        faults.finish()
    report = audit(None, directory)
    assert report.exit_status == 0, report.to_json()
    found = {verdict.id: verdict for verdict in report.verdicts}
    # Of whoever is killed first messages are under way; others may have sent their last by then.
    unknown = {
        label.partition("#")[0] for label in found["G1"].unknown
    }  # name, or name#incarnation
    assert faults.killed[0] in unknown
    assert unknown <= set(faults.killed)
    for name in ("G2 N2", "N1", "N3", "VS1"):
        assert found[name].status == "ok", name
        assert found[name].premises > 0, name


class Faults:
    """Things that happen to a cluster, one round after the other."""

    def __init__(self, cluster: Cluster, dice: Random, transport: str) -> None:
        self.killed: list[str] = []
        self._cluster = cluster
        self._dice = dice
        self._transport = transport
        self._spared = set(dice.sample(cluster.names, 2))
        """Those to whom nothing happens."""
        self._sent: dict[str, int] = {}

    def trade(self, names: Iterable[str], seconds: float) -> None:
        for name in names:
            self._tell(name, {"op": "trade", "seconds": seconds, "batch": 20, "rate": 1000})

    def happen(self) -> None:
        """One member stops, another is killed, and a new one takes the port of the dead."""
        cluster = self._cluster
        self._await_progress()
        exposed = [name for name in cluster.names if name not in self._spared]
        sleeper, victim = self._dice.sample(exposed, 2)
        before = self._await_view(cluster.names)
        process = self._process(sleeper)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            cluster.kill(cluster.names.index(victim))
            self.killed.append(victim)
            self._await_view([name for name in cluster.names if name != sleeper])
            newcomer = cluster.start(listen=before[victim]["listen"])
            assert cluster.enter(newcomer)["listen"] == before[victim]["listen"]
            self._await_view([name for name in cluster.names if name != sleeper])
        finally:
            os.kill(process.pid, signal.SIGCONT)
        after = self._await_view(cluster.names)
        for name in before.keys() - set(self.killed):  # who was left out comes back as it was
            assert before[name]["incarnation"] == after[name]["incarnation"], name
        self.trade(cluster.names[-1:], 0.5)

    def finish(self) -> None:
        """Everybody gets what the newest sends; who was spared, also what the others send who
        were."""
        names = self._cluster.names
        for name in names:
            if name not in self._sent:
                self._hear(name, "sent")
        assert min(self._sent[name] for name in (*self._spared, names[-1])) > 0
        for name in names:
            senders = {names[-1], *(self._spared if name in self._spared else ())}
            expect = {sender: self._sent[sender] for sender in senders}
            self._tell(name, {"op": "finish", "expect": expect})
            answer = self._hear(name, "read")
            assert {sender: answer["read"][sender] for sender in senders} == expect
            assert set(answer["view"]) == set(names)

    def _await_progress(self) -> None:
        """Return when somebody has sent a hundred messages more, over the transport that was meant;
        or has done. Each look is a round trip to it, which paces this."""
        name = min(self._spared)
        first = None
        while name not in self._sent:
            self._tell(name, {"op": "stats"})
            stats = self._hear(name, "transport")
            assert stats["transport"]["kind"] == self._transport
            high = stats["ViewStreams"]["sent"]["fifo"]["high"]
            first = high if first is None else first
            if high >= first + 100:
                return
        assert self.killed, "the trade was over before anything happened"

    def _await_view(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """When each of these is in a view of just these: what it says of itself."""
        for name in names:
            self._tell(name, {"op": "view", "names": names})
        return {name: self._hear(name, "view") for name in names}

    def _process(self, name: str) -> subprocess.Popen[str]:
        return self._cluster.processes[self._cluster.names.index(name)]

    def _tell(self, name: str, message: dict[str, Any]) -> None:
        tell(self._process(name), message)

    def _hear(self, name: str, key: str) -> dict[str, Any]:
        """The answer that has this; in between it may say how many it has sent."""
        while True:
            answer = hear(self._process(name))
            if "sent" in answer:
                self._sent[name] = answer["sent"]
            if key in answer:
                return answer


@contextmanager
def deadline(cluster: Cluster) -> Iterator[None]:
    """Whoever has not answered by then never will: its end is an answer too."""

    def end() -> None:
        for process in cluster.processes:
            process.kill()

    timer = Timer(DEADLINE_S, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
