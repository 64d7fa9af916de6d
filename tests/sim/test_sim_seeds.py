"""Seeded runs of whole nodes: none may violate anything, and each is the same everywhere.

Many more seeds of each plan are judged by the fleets of `tests/spark/test_false_alarms.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from seeded import PLANS, check_determinism, check_nothing_failed

from ringcast.sim.faults import SETTLED_KINDS
from ringcast.sim.options import Incident, Options, from_json
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from seeded import Plan

every_plan = pytest.mark.parametrize("plan", PLANS, ids=str)


@every_plan
def test_the_first_seeds_violate_nothing(plan: Plan) -> None:
    check_nothing_failed(plan.run((0, 1, *plan.kept)), str(plan))


@pytest.mark.proof
@every_plan
def test_more_seeds_violate_nothing(plan: Plan) -> None:
    check_nothing_failed(plan.run(range(2, plan.first)), str(plan))


@pytest.mark.parametrize("plan", PLANS[3::6], ids=str)  # view changes; one order
def test_a_seed_gives_the_same_trace_under_any_hash_seed(plan: Plan) -> None:
    check_determinism(plan, 2)


@pytest.mark.proof
@every_plan
def test_many_seeds_give_the_same_traces_under_any_hash_seed(plan: Plan) -> None:
    check_determinism(plan, 30)


@every_plan
def test_options_survive_json_and_read_as_a_block(plan: Plan) -> None:
    for seed in range(30):
        options = plan.expand(seed)
        assert from_json(options.to_json()) == options
        lines = str(options).splitlines()
        assert lines[0].startswith(f"seed {seed}")
        assert all(len(line) < 200 for line in lines)


# Single runs


def quiet(**changes: object) -> Options:
    """Three nodes that start at once, and no faults."""
    return replace(Options(seed=1, warm_ms=300.0), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ["multicast", "group"])
def test_without_faults_every_message_is_delivered_by_everybody(protocol: str) -> None:
    result = run(quiet(protocol=protocol, messages=40, late_messages=2))
    assert result.failures == ()
    assert result.summary.deliveries == 3 * 3 * (40 + 2)
    assert not any(row.event == trace.NET_DROP for row in result.trace.rows)


def test_an_incident_waits_for_the_frame_that_it_names() -> None:
    """D joins; whoever proposes it dies when two have heard that the view begins."""
    join = Incident(fault="join", at_ms=100.0, nodes=(3,))
    dies = Incident(fault="F10", at_ms=50.0, when="install", after=1)
    four = {"nodes": 4, "capacities": (16,) * 4, "tau_ms": (50.0,) * 4, "faults": ("F10",)}
    result = run(quiet(incidents=(dies, join), safety_ms=2000.0, **four))
    assert result.failures == ()
    rows = result.trace.rows
    (crash,) = (row for row in rows if row.event == trace.CRASH)
    told = [row for row in rows[crash.run_idx :] if row.kind == "install" and row.peer == "A"]
    assert crash.node == "A"
    assert [row.event for row in told] == [trace.RX] * 2
    last = {row.node: row.members for row in rows if row.event == trace.VIEW and row.node != "A"}
    assert {frozenset(members) for members in last.values()} == {frozenset({"B#1", "C#1", "D#1"})}


def test_stale_datagrams_come_also_when_all_is_calm_and_change_nothing() -> None:
    crash = Incident(fault="F10", at_ms=200.0, nodes=(0,))
    options = quiet(faults=("F10", "F22"), stale=0.9, stale_ms=700.0, incidents=(crash,))
    result = run(options)
    assert result.failures == ()
    rows = result.trace.rows
    calm = next(row for row in rows if row.event == trace.PHASE and row.kind == "liveness")
    after = rows[calm.run_idx :]
    assert [row for row in after if row.event == trace.RX and row.kind in SETTLED_KINDS]
    assert [row for row in after if row.event in (trace.VIEW, trace.FREEZE)] == []


@pytest.mark.parametrize("what", ["propose", "suspect"])
def test_views_that_nobody_needs_are_made_and_all_come_back_as_they_are(what: str) -> None:
    needless = [
        Incident(fault="F18", at_ms=at, ms=20.0, nodes=nodes, what=what)
        for at, nodes in ((50.0, (0, 1)), (120.0, (2, 0)), (121.0, (0, 2)))
    ]
    result = run(quiet(faults=("F18",), incidents=tuple(needless)))
    assert result.failures == ()
    views = [set(row.members) for row in result.trace.rows if row.event == trace.VIEW]
    assert any(len(members) < 3 for members in views[3:])
    assert views[-3:] == [{"A#1", "B#1", "C#1"}] * 3
