"""View changes, explored: any set proposed at any time, a crash at any step, any frame lost or
late; and what goes wrong without each rule."""

from __future__ import annotations

import pytest

from ringcast.explore.explorer import explore
from ringcast.explore.view_ablations import ABLATIONS
from ringcast.explore.views import SCENARIOS, Views

QUICK = ("own", "gate", "tag", "freeze")
SLOW = ("all flushed", "deaf", "window")


@pytest.mark.parametrize("name", SCENARIOS)
def test_one_change_with_a_crash_anywhere_violates_nothing(name: str) -> None:
    report = explore(Views(SCENARIOS[name]._replace(proposals=1)))
    assert report.complete
    assert report.violations == []
    assert report.states > 100


@pytest.mark.proof
def test_two_changes_with_a_crash_anywhere_violate_nothing() -> None:
    report = explore(Views(SCENARIOS["crash"]))
    assert report.complete
    assert report.violations == []


@pytest.mark.parametrize(
    "rule",
    [*QUICK, *(pytest.param(rule, marks=pytest.mark.proof) for rule in SLOW)],
)
def test_every_rule_is_missed(rule: str) -> None:
    report = explore(ABLATIONS[rule].build(SCENARIOS), stop_at_violation=True)
    assert report.violations
