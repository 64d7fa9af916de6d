"""Timers that are served late, several at once and in any order: no protocol may mind.

The seeds are those of other tests, with more time and with timers that no node can rely on: served
in bursts, up to seconds late, or not at all for a while. Datagrams come in between. Every step
checks the invariants of every layer: one of them is that whatever is waited for has its timer, so
none is lost. Once timers are on time again, all that is promised then must hold: one view, and
everything delivered.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from random import Random
from typing import TYPE_CHECKING

import pytest
from seeded import Plan, check_nothing_failed, tally_of

from ringcast.sim.options import FAULTS, Incident
from ringcast.sim.runner import run
from support.timers import reorder_due

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.sim.options import Options
    from ringcast.sim.runner import Summary

SAFETY_MS = 3000.0
"""Faults last at least so long: timers are seconds late."""


SEEDS = {
    Plan("multicast"): range(1),
    Plan("multicast", "stability"): range(1),
    Plan("unicast"): range(2),
    Plan("group"): range(2),
    Plan("group", "stability"): range(1),
    Plan("group", partitions=True): (1,),
    Plan("uniform"): range(1),
    Plan("uniform", "stability"): range(1),
}
"""On every commit. Half of the groups transfer state."""


def late(options: Options, random: Random) -> Options:
    """The same run, longer, and its timers cannot be relied on for most of the time."""
    stretch = max(1.0, SAFETY_MS / options.safety_ms)
    safety = stretch * options.safety_ms
    incidents = [
        replace(incident, at_ms=round(stretch * incident.at_ms, 3))
        for incident in options.incidents
        if incident.fault != "F19"
    ]
    for slot in range(options.nodes):
        at = _log_uniform(random, 1, 500)
        while at < safety:
            what = random.choice(("bursts", "bursts", "late", "never"))
            fault = Incident(
                fault="F19",
                at_ms=at,
                ms=_log_uniform(random, 50, 3000),
                nodes=(slot,),
                what=what,
                amount=0.0 if what == "never" else _log_uniform(random, 20, 3000),
            )
            incidents.append(fault)
            at = round(at + fault.ms + _log_uniform(random, 1, 500), 3)
    return replace(
        options,
        safety_ms=safety,
        faults=tuple(fault for fault in FAULTS if fault in (*options.faults, "F19")),
        incidents=tuple(sorted(incidents, key=lambda incident: incident.at_ms)),
    )


def _log_uniform(random: Random, low: float, high: float) -> float:
    return round(exp(random.uniform(log(low), log(high))), 3)


def summaries(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, seeds: Iterable[int]
) -> Iterator[Summary]:
    """Of runs in which timers that are due at once are served in any order."""
    for seed in seeds:
        random = Random(f"late {plan} {seed}")
        with monkeypatch.context() as patch:
            reorder_due(patch, lambda due, random=random: random.sample(due, len(due)))
            yield run(late(plan.expand(seed), random)).summary


@pytest.mark.parametrize("plan", SEEDS, ids=str)
def test_timers_may_be_late_and_come_in_any_order(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = tally_of(summaries(monkeypatch, plan, SEEDS[plan]))
    check_nothing_failed(tally, f"(late timers of {plan})")


@pytest.mark.proof
@pytest.mark.parametrize("plan", SEEDS, ids=str)
def test_timers_may_be_late_in_many_seeds(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = tally_of(summaries(monkeypatch, plan, range(1000, 1040 + 80 * len(SEEDS[plan]))))
    check_nothing_failed(tally, f"(late timers of {plan})")
