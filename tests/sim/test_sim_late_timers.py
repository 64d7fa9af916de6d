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
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from seeded import check_nothing_failed, tally_of

from ringcast.core.shared import Timers
from ringcast.sim.options import FAULTS, Incident, Options
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from support.timers import reorder_due

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.sim.runner import Summary

SAFETY_MS = 3000.0
"""Faults last at least so long: timers are seconds late."""


class Kind(NamedTuple):
    """Runs of one protocol."""

    protocol: str
    partitions: bool = False
    purge: str = "acks"

    def __str__(self) -> str:
        return f"{self.protocol} {self.purge}{' partitions' if self.partitions else ''}"


SEEDS = {
    Kind("multicast"): range(5),
    Kind("multicast", purge="stability"): range(3),
    Kind("unicast"): range(8),
    Kind("group"): range(10),
    Kind("group", purge="stability"): range(2),
    Kind("group", partitions=True): (1, 3),
    Kind("uniform"): range(5),
    Kind("uniform", purge="stability"): range(2),
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
    monkeypatch: pytest.MonkeyPatch, kind: Kind, seeds: Iterable[int]
) -> Iterator[Summary]:
    """Of runs in which timers that are due at once are served in any order."""
    for seed in seeds:
        random = Random(f"late {kind} {seed}")
        options = expand(seed, kind.protocol, partitions=kind.partitions, purge=kind.purge)
        with monkeypatch.context() as patch:
            reorder_due(patch, lambda due, random=random: random.sample(due, len(due)))
            yield run(late(options, random)).summary


@pytest.mark.parametrize("kind", SEEDS, ids=str)
def test_timers_may_be_late_and_come_in_any_order(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = tally_of(summaries(monkeypatch, kind, SEEDS[kind]))
    check_nothing_failed(tally, f"(late timers of {kind})")


@pytest.mark.proof
@pytest.mark.parametrize("kind", SEEDS, ids=str)
def test_timers_may_be_late_in_many_seeds(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = tally_of(summaries(monkeypatch, kind, range(1000, 1000 + 20 * len(SEEDS[kind]))))
    check_nothing_failed(tally, f"(late timers of {kind})")


def a_joiner_dies() -> Options:
    """B asks A to let it in, and is dead before it is. A's timers come once in two seconds."""
    incidents = (
        Incident(fault="F19", at_ms=0.0, ms=3000.0, nodes=(0,), what="bursts", amount=2000.0),
        Incident(fault="join", at_ms=1.0, nodes=(1,)),
        Incident(fault="F10", at_ms=2.0, nodes=(1,), amount=1),
    )
    return Options(
        seed=1,
        protocol="group",
        nodes=2,
        initial=1,
        capacities=(16, 16),
        tau_ms=(100.0, 100.0),
        senders=(0,),
        warm_ms=300.0,
        safety_ms=3000.0,
        faults=("F10", "F19"),
        incidents=incidents,
    )


def latest_first(due: list[Any]) -> list[Any]:
    return due[::-1]


def test_a_view_that_is_overdue_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    reorder_due(monkeypatch, latest_first)
    assert run(a_joiner_dies()).failures == ()


def test_serving_what_is_not_due_any_more_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule taken away: all that was due is served, whatever the first of it has changed."""

    def take_all(timers: Timers[Any], now: int) -> list[Any]:
        due = timers.due(now)
        for key in due:
            timers.disarm(key)
        return due

    reorder_due(monkeypatch, latest_first)
    monkeypatch.setattr(Timers, "take_due", take_all)
    failure = run(a_joiner_dies()).failures[0]
    assert failure.rule == "G7"
    assert failure.text == "A: handle_timeout raised AssertionError()"
