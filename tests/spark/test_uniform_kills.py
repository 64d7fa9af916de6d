"""Senders of uniform messages killed under load: survivors deliver the same of each of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.sim.processes import Cluster, hear, tell
from ringcast.spark.audit import audit

if TYPE_CHECKING:
    from pathlib import Path


MEMBERS = 5
KILLS = 3

PATIENT = {"suspect_after_s": 60.0, "verify_s": 10.0}
"""Who is killed refuses datagrams; nobody is to be missed because the machine is busy."""

TRADE = {
    "op": "trade",
    "seconds": 5.0,
    "batch": 50,
    "rate": 20_000,
    "guarantees": ["uniform", "uniform", "fifo"],
}
"""Fast enough, with what is lost, that messages are always under way."""
FRAMES_AND_WINDOWS = ("G5", "N4", "N6", "N7", "N10")
"""What a recording of both shows of messages to the group."""
ENDS_S = 120.0
"""By far."""


@pytest.mark.proof
def test_survivors_deliver_the_same_of_killed_senders(tmp_path: Path) -> None:
    """And with frames and windows: acks, repairs and purges are right on that stream, too."""
    assert check_kills(tmp_path, seed=1, level="full") > 0


@pytest.mark.proof
def test_survivors_deliver_the_same_of_thirty_killed_senders(tmp_path: Path) -> None:
    seeds = range(100, 110)
    unknown = sum(check_kills(tmp_path / str(seed), seed) for seed in seeds)
    assert unknown > len(seeds) * KILLS / 2


def check_kills(directory: Path, seed: int, level: str = "deliveries") -> int:
    """Of how many who were killed the content of the last messages is unknown: of all whose last
    rows were lost, and who dies right behind a segment has lost none."""
    killed = run_cluster(directory, seed, level)
    report = audit(None, directory)
    assert report.exit_status == 0, report.to_json()
    found = {verdict.id: verdict for verdict in report.verdicts}
    assert found["VS5"].status == "ok"
    assert found["VS5"].premises > 0
    assert found["G1"].unknown <= killed
    for name in ("G2 N2", "N1", "N3", "VS1", *(FRAMES_AND_WINDOWS if level == "full" else ())):
        assert found[name].status == "ok", name
    return len(found["G1"].unknown)


def run_cluster(directory: Path, seed: int, level: str) -> set[str]:
    """Members trade; some are killed one after the other. Their names."""
    generator = random.Random(seed)
    killed: set[str] = set()
    recording: dict[str, Any] = {"record": directory, "record_level": level}
    with (
        Cluster(members=MEMBERS, loss=0.1, seed=seed, membership=PATIENT, **recording) as cluster,
        cluster.within(ENDS_S),
    ):
        cluster.tell_all(TRADE)
        for _ in range(KILLS):
            at = generator.randrange(len(cluster.names))
            await_trading(cluster, at)
            killed.add(cluster.kill(at))
        sent = [answer["sent"] for answer in cluster.hear_all()]
        expect = dict(zip(cluster.names, sent, strict=True))
        cluster.tell_all({"op": "finish", "expect": expect})
        answers = cluster.hear_all()
        for answer in answers:
            assert {name: answer["read"][name] for name in expect} == expect
            assert answer["view"] == cluster.names
            # How many, and a checksum of them all, of everybody who ever sent.
            assert answer["uniform"] == answers[0]["uniform"]
        assert killed < answers[0]["uniform"].keys()
    return killed


def await_trading(cluster: Cluster, at: int) -> None:
    """Return while this member sends: after 200 uniform messages more. Each look is a round trip
    to the member, which paces it."""
    before = stats_of(cluster, at)["sent"]["uniform"]["high"]
    while stats_of(cluster, at)["sent"]["uniform"]["high"] < before + 200:
        pass


def stats_of(cluster: Cluster, at: int) -> dict[str, Any]:
    tell(cluster.processes[at], {"op": "stats"})
    stats = hear(cluster.processes[at])
    assert "ViewStreams" in stats, "the trade was over before the kill"
    found: dict[str, Any] = stats["ViewStreams"]
    return found
