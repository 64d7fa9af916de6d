"""Members killed under load: what survivors delivered of them is never held against anybody."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from ringcast.sim.processes import Cluster, hear, tell
from ringcast.spark.audit import audit
from ringcast.spark.report import RECORDED
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    from pathlib import Path

PATIENT = {"suspect_after_s": 60.0, "verify_s": 10.0}
"""Who is killed refuses datagrams; nobody is to be missed because the machine is busy."""

TRADE = {"op": "trade", "seconds": 5.0, "batch": 20, "rate": 2000}


@pytest.mark.parametrize(
    ("seed", "kills"),
    [
        (4, 1),
        *(pytest.param(seed, 3, marks=pytest.mark.proof) for seed in (1, 2, 3)),
    ],
)
def test_kills_leave_unknown_tails_and_no_violation(tmp_path: Path, seed: int, kills: int) -> None:
    check_kills(tmp_path, seed, kills)


@pytest.mark.proof
@pytest.mark.parametrize(("seed", "kills"), [*((seed, 3) for seed in range(100, 116)), (116, 2)])
def test_fifty_kills_leave_unknown_tails_and_no_violation(
    tmp_path: Path, seed: int, kills: int
) -> None:
    check_kills(tmp_path, seed, kills)


def check_kills(directory: Path, seed: int, kills: int) -> None:
    killed = run_cluster(directory, seed, kills)
    report = audit(None, directory)
    assert report.exit_status == 0, report.to_json()
    found = {verdict.id: verdict for verdict in report.verdicts}
    assert found["G1"].status == "unknown tail"
    assert found["G1"].unknown == killed
    assert found["content"].unknown <= killed
    for name in ("G2 N2", "N1", "N3", "VS1"):
        assert found[name].status == "ok", name
        assert found[name].premises > 0, name
    for name in killed:
        assert name in report.summary


def run_cluster(directory: Path, seed: int, kills: int) -> set[str]:
    """Five members trade; some are killed one after the other. Their names."""
    generator = random.Random(seed)
    killed: set[str] = set()
    with Cluster(members=5, loss=0.02, seed=seed, record=directory, membership=PATIENT) as cluster:
        cluster.tell_all(TRADE)
        for _ in range(kills):
            at = generator.randrange(len(cluster.names))
            # The first dies before it has written anything, the others in the middle.
            await_trading(cluster, at, directory if killed else None)
            killed.add(cluster.kill(at))
        sent = [answer["sent"] for answer in cluster.hear_all()]
        expect = dict(zip(cluster.names, sent, strict=True))
        cluster.tell_all({"op": "finish", "expect": expect})
        for answer in cluster.hear_all():
            assert {name: answer["read"][name] for name in expect} == expect
            assert answer["view"] == cluster.names
    return killed


@pytest.mark.proof
def test_a_member_that_was_stopped_leaves_one_whole_trace(tmp_path: Path) -> None:
    """It is left out while it sleeps, and comes back as the same incarnation."""
    soon = {"heartbeat_s": 0.2, "suspect_after_s": 1.0, "verify_s": 0.3}
    with Cluster(members=4, loss=0.02, record=tmp_path, membership=soon) as cluster:
        cluster.tell_all(TRADE)
        await_trading(cluster, 1, None)
        stopped, others = cluster.processes[1], [cluster.processes[at] for at in (0, 2, 3)]
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            for process in others:
                tell(process, {"op": "view", "names": ["m0", "m2", "m3"]})
            assert [hear(process)["view"] for process in others] == [["m0", "m2", "m3"]] * 3
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        cluster.hear_all()
        # Of its own messages some are lost, and it has not seen all of the others'.
        cluster.tell_all({"op": "finish", "expect": {}})
        assert {tuple(answer["view"]) for answer in cluster.hear_all()} == {
            ("m0", "m2", "m3", "m1")
        }
    report = audit(None, tmp_path)
    assert report.exit_status == 0, report.to_json()
    judged = [verdict for verdict in report.verdicts if verdict.id in RECORDED]
    assert {verdict.status for verdict in judged} <= {"ok", "inconclusive"}
    incarnations = set()
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            incarnations.add((segment.info.node, segment.info.inc))
    assert sorted(node for node, _ in incarnations) == ["m0", "m1", "m2", "m3"]


def await_trading(cluster: Cluster, at: int, directory: Path | None) -> None:
    """Return while this member sends: after 200 messages more, and after a segment if there is a
    directory to look in. Each look is a round trip to the member, which paces it."""
    if directory is not None:
        await_segment(cluster, at, directory)
    before = messages_sent(cluster, at)
    while messages_sent(cluster, at) < before + 200:
        pass


def await_segment(cluster: Cluster, at: int, directory: Path) -> None:
    """Return when this member has closed a segment: killed before that, it leaves no trace."""
    while cluster.names[at] not in writers(directory):
        messages_sent(cluster, at)


def writers(directory: Path) -> set[str]:
    found = set()
    for path in segment_paths(directory):
        with Segment(path) as segment:
            found.add(segment.info.node)
    return found


def messages_sent(cluster: Cluster, at: int) -> int:
    tell(cluster.processes[at], {"op": "stats"})
    stats = hear(cluster.processes[at])
    assert "sent" not in stats, "the trade was over before the kill"
    high: int = stats["ViewStreams"]["sent"]["fifo"]["high"]
    return high
