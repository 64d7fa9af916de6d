"""Real processes, each on a host of its own, to which things happen in the middle of view changes.

At a random instant after a member has promised a view it is killed, stopped for a while, restarted
on its port, or cut off from others, both ways or one way. Then all are in one view, messages pass,
and an audit of all traces finds no violation. The traces say which step of the change was hit.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hosts import Hosts
from namespace import in_own_network

from ringcast.sim.processes import Cluster, hear, tell

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")
from ringcast.spark.audit import audit
from ringcast.spark.report import VIOLATED
from ringcast.trace.rows import FREEZE, RX, STOP, TX, VIEW
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from ringcast.trace.rows import Row

MEMBERS = 4
HOSTS = 6
AROUND_S = 0.015
"""How long after its beginning a change may be over, or not."""

AFTER_A_WHILE = 0.6
"""So many of the instants; the others are as soon as the victim has said what begins the change."""

CAUSES = ("join", "leave", "kill")
FAULTS = ("kill", "stop", "restart", "cut", "cut_one_way")
SIGNALS = {"kill": signal.SIGKILL, "restart": signal.SIGKILL, "stop": signal.SIGSTOP}

SOON = {"heartbeat_s": 0.1, "suspect_after_s": 0.6, "verify_s": 0.2, "leave_timeout_s": 3.0}
DEADLINE_S = 60.0
HIT: Counter[str] = Counter()
"""What happened at which step."""

CHANGE = ("propose", "state", "refuse", "finish", "cut", "want", "flushed", "install", "installed")


class Town:
    """A cluster of processes that send and read, and what happens to them."""

    def __init__(self, cluster: Cluster, hosts: Hosts, dice: Random) -> None:
        self._cluster = cluster
        self._hosts = hosts
        self._dice = dice
        self._host_of: dict[str, int] = {}
        self._free = list(range(HOSTS))
        self.struck: list[tuple[str, int]] = []
        """What happened, and when."""

    def form(self) -> None:
        for _ in range(MEMBERS):
            self._cluster.enter(self._start(self._free.pop(0)))
        self._check("formed")

    def strike(self, number: int) -> None:
        """One instant: a change begins, and in the middle of it something happens to a member."""
        dice, cluster = self._dice, self._cluster
        others = list(cluster.names)
        dice.shuffle(others)
        cause = dice.choice(CAUSES) if len(others) >= MEMBERS else "join"
        fault = dice.choice(FAULTS)
        joiner = self._start(self._free.pop(0)) if cause == "join" else None
        victim = others.pop()
        # A proposal is out for less than a millisecond before it is answered: often at once.
        delay_s = dice.uniform(0.0, AROUND_S) * (dice.random() < AFTER_A_WHILE)
        self._arm(victim, delay_s, SIGNALS.get(fault, 0))
        match cause:
            case "join":
                assert joiner is not None
                tell(joiner, {"op": "join"})
            case "leave":
                self._leave(others[0])
            case "kill":
                self._kill(others[0])
        self.struck.append((fault, hear(self._process(victim))["struck"]))
        getattr(self, f"_{fault}")(victim)
        if joiner is not None:
            hear(joiner)
        self._bury_leavers()
        self._check(f"{number}")

    # What happens

    def _arm(self, name: str, delay_s: float, number: int) -> None:
        tell(self._process(name), {"op": "arm", "delay_s": delay_s, "signal": number})
        hear(self._process(name))

    def _kill(self, name: str) -> None:
        cluster = self._cluster
        cluster.kill(cluster.names.index(name))
        self._free.append(self._host_of.pop(name))

    def _stop(self, name: str) -> None:
        """It has stopped itself."""
        time.sleep(self._dice.uniform(0.05, 1.5))
        self._process(name).send_signal(signal.SIGCONT)

    def _restart(self, name: str) -> None:
        at = self._host_of[name]
        self._kill(name)
        self._free.remove(at)
        self._cluster.enter(self._start(at))

    def _leave(self, name: str) -> None:
        leaver = self._process(name)
        assert leaver.stdin is not None
        leaver.stdin.close()

    def _cut(self, name: str) -> None:
        """From some others."""
        here, others = self._sides(name)
        self._hosts.cut(here, others)
        self._hosts.cut(others, here)
        self._heal_later()

    def _cut_one_way(self, name: str) -> None:
        sides = self._sides(name)
        source, dest = self._dice.sample(sides, 2)
        self._hosts.cut(source, dest)
        self._heal_later()

    def _heal_later(self) -> None:
        time.sleep(self._dice.uniform(0.05, 2.0))
        self._hosts.heal()

    # Processes

    def _start(self, at: int) -> subprocess.Popen[str]:
        """A process on this host, always on the same port."""
        with self._hosts.inside(at):
            process = self._cluster.start(listen=f"{self._hosts.addresses[at]}:7800")
        self._host_of[self._cluster.names[-1]] = at
        return process

    def _process(self, name: str) -> subprocess.Popen[str]:
        return self._cluster.processes[self._cluster.names.index(name)]

    def _sides(self, name: str) -> tuple[list[int], list[int]]:
        """Its host, and those of some others, at least one."""
        others = [at for other, at in self._host_of.items() if other != name]
        return [self._host_of[name]], self._dice.sample(others, self._dice.randint(1, len(others)))

    def _bury_leavers(self) -> None:
        cluster = self._cluster
        for at, process in reversed(list(enumerate(cluster.processes))):
            assert process.stdin is not None
            if process.stdin.closed:
                assert process.wait() == 0
                self._free.append(self._host_of.pop(cluster.names[at]))
                del cluster.processes[at], cluster.names[at]

    def _check(self, mark: str) -> None:
        """All are in one view, and hear each other."""
        with self._cluster.within(DEADLINE_S):
            self._cluster.await_view()
            self._cluster.tell_all({"op": "exchange", "mark": mark})
            self._cluster.hear_all()


def strike(directory: Path, transport: str, seed: int, times: int) -> Counter[str]:
    """Which steps of changes were hit, in a cluster of its own."""
    options = {"record": directory, "record_level": "full", "transport": transport}
    with (
        Hosts(HOSTS) as hosts,
        Cluster(members=0, program=("steady_member",), membership=SOON, **options) as cluster,
    ):
        town = Town(cluster, hosts, Random(seed))
        town.form()
        for number in range(times):
            town.strike(number)
    report = audit(None, directory)
    violated = [verdict for verdict in report.verdicts if verdict.status == VIOLATED]
    assert not violated
    assert report.exit_status == 0, report.summary
    rows = sorted(rows_in(directory), key=lambda row: row.mono_ns)
    return Counter(f"{what} at {step_at(rows, when)}" for what, when in town.struck)


def rows_in(directory: Path) -> Iterator[Row]:
    for path in segment_paths(directory):
        with Segment(path) as segment:
            yield from segment.rows()


def step_at(rows: list[Row], when: int) -> str:
    """What the members had said last of a change that was not over."""
    frozen: set[str] = set()
    step = ""
    for row in rows:
        if row.mono_ns > when:
            break
        if row.event == FREEZE:
            frozen.add(row.node)
        elif row.event in (VIEW, STOP):
            frozen.discard(row.node)
        elif row.event in (TX, RX) and row.kind in CHANGE:
            step = row.kind
    return step if frozen else "its end"


@pytest.fixture(autouse=True)
def _members_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


@pytest.mark.parametrize(
    ("transport", "seed"),
    [
        ("udp", 0),
        *(
            pytest.param(transport, seed, marks=pytest.mark.proof)
            for transport in ("udp", "tcp")
            for seed in range(1, 26)
        ),
    ],
)
@in_own_network
def test_nothing_that_happens_in_the_middle_of_a_change_breaks_a_promise(
    tmp_path: Path, transport: str, seed: int
) -> None:
    times = 1 if seed == 0 else 2
    hit = strike(tmp_path, transport, seed, times)
    assert hit.total() == times
    HIT.update(hit)
    print(transport, seed, dict(hit))  # noqa: T201


@pytest.mark.proof
def test_all_steps_of_a_change_were_hit() -> None:
    """By the tests above, in this process."""
    print(dict(HIT))  # noqa: T201
    if HIT.total() < 50:
        pytest.skip(f"only {HIT.total()} instants were tried")
    assert {what.partition(" at ")[2] for what in HIT} >= {"propose", "state", "cut", "flushed"}
