"""Members killed under load: what survivors delivered of them is never held against anybody."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ringcast.bench.cluster import Cluster, hear, tell
from ringcast.spark.audit import audit
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TRADE = {"op": "trade", "seconds": 5.0, "batch": 20, "rate": 2000}


@pytest.mark.parametrize(("seed", "kills"), [(1, 3), (2, 3), (3, 3), (4, 1)])
def test_kills_leave_unknown_tails_and_no_violation(
    spark: SparkSession, tmp_path: Path, seed: int, kills: int
) -> None:
    check_kills(spark, tmp_path, seed, kills)


@pytest.mark.proof
@pytest.mark.parametrize(("seed", "kills"), [*((seed, 3) for seed in range(100, 116)), (116, 2)])
def test_fifty_kills_leave_unknown_tails_and_no_violation(
    spark: SparkSession, tmp_path: Path, seed: int, kills: int
) -> None:
    check_kills(spark, tmp_path, seed, kills)


def check_kills(spark: SparkSession, directory: Path, seed: int, kills: int) -> None:
    killed = run_cluster(directory, seed, kills)
    report = audit(spark, directory)
    assert report.exit_status == 0, report.to_json()
    found = {verdict.id: verdict for verdict in report.verdicts}
    assert found["G1"].status == "unknown tail"
    assert found["G1"].unknown == killed
    assert found["content"].unknown <= killed
    for name in ("G2 N2", "G4", "N1", "N3"):
        assert found[name].status == "ok", name
        assert found[name].premises > 0, name
    for name in killed:
        assert name in report.summary


def run_cluster(directory: Path, seed: int, kills: int) -> set[str]:
    """Five members trade; some are killed one after the other. Their names."""
    generator = random.Random(seed)
    killed: set[str] = set()
    with Cluster(members=5, loss=0.02, seed=seed, record=directory) as cluster:
        cluster.tell_all(TRADE)
        for _ in range(kills):
            at = generator.randrange(len(cluster.names))
            # The first dies before it has written anything, the others in the middle.
            await_trading(cluster, at, directory if killed else None)
            killed.add(cluster.names[at])
            cluster.kill(at)
        sent = [answer["sent"] for answer in cluster.hear_all()]
        expect = dict(zip(cluster.names, sent, strict=True))
        cluster.tell_all({"op": "finish", "expect": expect})
        for answer in cluster.hear_all():
            assert {name: answer["read"][name] for name in expect} == expect
    return killed


def await_trading(cluster: Cluster, at: int, directory: Path | None) -> None:
    """Return while this member sends: after 200 messages more, and after a segment if there is a
    directory to look in. Each look is a round trip to the member, which paces it."""
    while directory is not None and cluster.names[at] not in writers(directory):
        messages_sent(cluster, at)
    before = messages_sent(cluster, at)
    while messages_sent(cluster, at) < before + 200:
        pass


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
    high: int = stats["ReliableMulticast"]["sent"]["fifo"]["high"]
    return high
