"""Seeded runs of the real node: none may violate anything, and each is the same everywhere."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from seeded import MANY, check_determinism, check_nothing_failed, tally_of

from ringcast.sim.cluster import Cluster
from ringcast.sim.fleet import run_seeds
from ringcast.sim.options import Options
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.sim.fleet import Tally


def check(tally: Tally) -> None:
    check_nothing_failed(tally, "--protocol multicast")
    assert not tally.vacuous


def test_the_first_seeds_violate_nothing() -> None:
    check(tally_of(run_seeds(range(60))))


@pytest.mark.proof
def test_many_seeds_violate_nothing() -> None:
    tally = tally_of(run_seeds(MANY, jobs=os.cpu_count() or 1))
    check(tally)
    assert tally.deliveries / tally.seeds >= 500


def test_a_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    check_determinism(6, "multicast")


@pytest.mark.proof
def test_many_seeds_give_the_same_traces_under_any_hash_seed() -> None:
    check_determinism(50, "multicast")


def quiet(**changes: object) -> Options:
    """Three nodes and no faults."""
    return replace(Options(seed=1), **changes)  # type: ignore[arg-type]


def test_without_faults_every_message_is_delivered_by_everybody() -> None:
    result = run(quiet(messages=40, late_messages=2))
    assert result.failures == ()
    assert result.summary.deliveries == 3 * 3 * (40 + 2)
    assert not any(row.event == trace.NET_DROP for row in result.trace.rows)


def test_digest_before_freeze_leaves_joiners_unserved() -> None:
    """The order of a join matters: the broken one is caught, on runs that the right one passes."""
    caught = 0
    for seed in range(60):
        options = expand(seed)
        if options.initial < options.nodes and not run(options).failures:
            broken = run(replace(options, digest_before_freeze=True))
            caught += any(failure.rule == "N9" for failure in broken.failures)
        if caught:
            break
    assert caught


def test_late_packets_of_an_excluded_member_are_ignored() -> None:
    excluded = 0
    for seed in range(200):
        options = expand(seed)
        if any(incident.what == "exclude" for incident in options.incidents):
            cluster = Cluster(options)
            cluster.run()
            rows = cluster.recorder.rows
            stops = [row for row in rows if row.event == trace.STOP]
            excluded += len(stops)
            assert not [
                row
                for stop in stops
                for row in rows[stop.run_idx :]
                if row.event in (trace.SEND, trace.DELIVER, trace.TX)
                and (row.node, row.inc) == (stop.node, stop.inc)
            ]
        if excluded >= 3:
            break
    assert excluded >= 3
