"""Clean runs, judged from what their members recorded: nothing may be found.

Simulated ones have every fault that the simulator knows. Real ones have processes that are killed,
that leave and that join on the way, under both levels and all purge rules.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.sim.facts import CRASHED_SENDERS
from ringcast.sim.plan import expand
from ringcast.sim.processes import Cluster, hear, tell
from ringcast.sim.runner import run
from ringcast.spark.audit import audit
from ringcast.spark.fleet import AUDIT, Fleet, fleet_rows, tasks_for
from ringcast.spark.fleet_audit import audit_as_recorded
from ringcast.spark.fleet_tables import outcome
from ringcast.spark.report import NEED_FULL

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

RUNS = [
    ("multicast", "acks", False),
    ("multicast", "stability", False),
    ("group", "acks", False),
    ("group", "acks", True),
    ("group", "stability", False),
    ("group", "stability", True),
    ("uniform", "acks", False),
    ("uniform", "acks", True),
    ("uniform", "stability", False),
    ("uniform", "stability", True),
]
"""Protocol, purge rule, and whether the network parts."""


@pytest.mark.parametrize(("protocol", "purge", "partitions"), RUNS)
def test_a_clean_simulation_raises_no_alarm(protocol: str, purge: str, partitions: bool) -> None:
    options = expand(1, protocol, partitions=partitions, purge=purge)
    alarms = audit_as_recorded(run(options))
    assert alarms.found == []
    assert alarms.premises > 50


@pytest.mark.proof
@pytest.mark.parametrize(("protocol", "purge", "partitions"), [*RUNS, ("unicast", "acks", False)])
def test_a_fleet_violates_nothing_leaves_nothing_out_and_raises_no_alarm(
    spark: SparkSession, protocol: str, purge: str, partitions: bool
) -> None:
    """The simulator judges each run by all that happened, the audit by what members recorded."""
    few = 288 if protocol == "uniform" else 200  # VS7 has a case in 287, and in none before
    seeds = range(few if partitions else 400)
    fleet = Fleet(seeds=seeds, protocol=protocol, purge=purge, partitions=partitions, audit=True)
    rows = fleet_rows(spark, fleet, tasks_for(spark, fleet)).persist()
    tally = outcome(rows).tally
    judged = rows.select("seed", "judged", "failures").collect()
    rows.unpersist()
    assert len(judged) == tally.seeds == len(seeds)
    assert {row.seed: row.failures for row in judged if row.failures} == {}
    assert not tally.vacuous
    assert tally.deliveries >= 100 * len(seeds)
    if protocol == "uniform" and not partitions:
        assert tally.happenings[CRASHED_SENDERS] >= 0.15 * len(seeds)
    # A run of two members and a dozen deliveries gives a rule little to judge, but something;
    # an average run gives hundreds, one of a pair of members fewer.
    premises = {row.seed: row.judged[AUDIT].premises for row in judged}
    assert [seed for seed, count in premises.items() if not count] == []
    assert sum(premises.values()) > (100 if protocol == "unicast" else 500) * len(seeds)


# Real processes

PATIENT = {"suspect_after_s": 60.0, "verify_s": 10.0}
"""Who is killed refuses datagrams; nobody is to be missed because the machine is busy."""

TRADE = {
    "op": "trade",
    "seconds": 1.5,
    "batch": 20,
    "rate": 2000,
    "guarantees": ["fifo", "fifo", "uniform"],
}
ALWAYS = {"G5", "N4", "N6", "N7", "N10"}
"""What there is to judge in each run at level "full": of others, only if it comes to that."""
CONFIGS: list[dict[str, Any]] = [{}, {"stability": {}}, {"stability": {"retain_delivered": False}}]


def check_real_run(spark: SparkSession | None, directory: Path, seed: int) -> None:
    dice = random.Random(seed)
    level = ("deliveries", "full")[seed % 2]
    config = CONFIGS[seed % len(CONFIGS)]
    killed: set[str] = set()
    with Cluster(
        members=4,
        loss=0.02,
        seed=seed,
        record=directory,
        record_level=level,
        config=config,
        membership=PATIENT,
    ) as cluster:
        cluster.tell_all(TRADE)
        for _ in range(dice.randrange(3)):
            at = dice.randrange(len(cluster.names))
            await_more(cluster, at)
            killed.add(cluster.kill(at))
        cluster.hear_all()
        if dice.random() < 0.5:
            cluster.leave(dice.randrange(len(cluster.names)))
        if dice.random() < 0.5:
            cluster.enter(cluster.start())
        cluster.tell_all({**TRADE, "seconds": 0.3})
        cluster.hear_all()
    report = audit(spark, directory)
    assert report.exit_status == 0, report.to_json()
    found = {verdict.id: verdict for verdict in report.verdicts}
    assert found["N5"].premises > 0
    assert found["N5"].unknown <= killed
    for name in NEED_FULL if level == "full" else ():
        is_idle = name not in ALWAYS and not found[name].premises
        assert is_idle or found[name].status == "ok", (name, found[name].detail)


def await_more(cluster: Cluster, at: int) -> None:
    """Return when this member has sent 100 messages more. Each look is a round trip to it."""
    before = sent(cluster, at)
    while sent(cluster, at) < before + 100:
        pass


def sent(cluster: Cluster, at: int) -> int:
    tell(cluster.processes[at], {"op": "stats"})
    stats = hear(cluster.processes[at])
    assert "ViewStreams" in stats, "the trade was over before the kill"
    high: int = stats["ViewStreams"]["sent"]["fifo"]["high"]
    return high


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(25))
def test_a_clean_real_run_raises_no_alarm(tmp_path: Path, seed: int) -> None:
    check_real_run(None, tmp_path, seed)
