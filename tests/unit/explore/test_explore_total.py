"""One order of total messages, explored: however views change, whoever crashes, whatever befalls a
datagram; and what goes wrong without each rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.explore.ablations import ABLATIONS as ALL_ABLATIONS
from ringcast.explore.scenarios import TOTAL as SCENARIOS
from ringcast.explore.total import STUCK, Orders, TotalViews
from ringcast.explore.view_steps import Fault, Script
from ringcast.protocols.views.proposer import Proposer
from ringcast.rules.table import ORDER

if TYPE_CHECKING:
    from ringcast.explore.explorer import Report
    from ringcast.model import Member
    from ringcast.protocols.views.frames import Wishes
    from ringcast.wire.changes import Flushed

ABLATIONS = ALL_ABLATIONS["total"]
ORDERS = [each for each in SCENARIOS.values() if isinstance(each, Orders)]
SCRIPTS = [each for each in SCENARIOS.values() if isinstance(each, Script)]
JUDGED = {rule.id for rule in ORDER}


def assert_nothing_is_wrong(report: Report) -> None:
    assert report.complete
    assert [(found.kind, found.witness) for found in report.violations] == []


# Members that change their views however they like


@pytest.mark.parametrize("crashes", [0, 1])
def test_one_change_of_views(crashes: int) -> None:
    scenario = SCENARIOS["one origin"]
    assert isinstance(scenario, Orders)
    report = replace(scenario, crashes=crashes).explore()
    assert_nothing_is_wrong(report)
    assert report.states == [278, 1027][crashes]
    assert {rule for rule, count in report.premises.items() if count} == JUDGED | {"healed"}


@pytest.mark.proof
@pytest.mark.parametrize("scenario", ORDERS, ids=lambda each: each.name)
def test_all_changes(scenario: Orders) -> None:
    report = scenario.explore()
    assert_nothing_is_wrong(report)
    assert min(report.premises[rule] for rule in JUDGED - {"O-L1"}) > 100
    assert report.premises["healed"] > 100


# Whole nodes


def test_the_sequencer_dies_and_a_crash_at_every_step() -> None:
    script = SCENARIOS["sequencer dies"]
    assert isinstance(script, Script)
    report = replace(script, faults=(Fault.DEATH,)).explore()
    assert_nothing_is_wrong(report)
    assert report.runs > 20
    assert report.premises["O4"] > 0


@pytest.mark.proof
def test_every_fault_of_every_datagram() -> None:
    premises: Counter[str] = Counter()
    for script in SCRIPTS:
        report = script.explore()
        assert_nothing_is_wrong(report)
        assert report.runs > 80
        premises.update(report.premises)
    assert {rule for rule in JUDGED if not premises[rule]} == set()


# What each rule is for


def without(rule: str) -> Report:
    scenario: Orders | Script = ABLATIONS[rule].scenario
    return scenario.explore(**ABLATIONS[rule].parts, stop_at_violation=True)


@pytest.mark.parametrize("rule", ABLATIONS)
def test_every_rule_is_missed(rule: str) -> None:
    assert without(rule).violations


@pytest.mark.parametrize("rule", ["gate", "held", "lower marks"])
def test_with_the_rule_nothing_goes_wrong_there(rule: str) -> None:
    assert_nothing_is_wrong(ABLATIONS[rule].scenario.explore())


@pytest.mark.proof
@pytest.mark.parametrize("rule", ABLATIONS)
def test_with_each_rule_nothing_goes_wrong_there(rule: str) -> None:
    assert_nothing_is_wrong(ABLATIONS[rule].scenario.explore())


def test_what_was_taken_alone_is_seen_though_a_view_comes_between() -> None:
    (found, *_) = without("seen").violations
    assert found.kind.startswith("O2: ")
    assert found.witness == [
        "B sends 1",
        "B→A Submit arrives",
        "A changes the view: A",
        "B changes the view: ABC",
    ]


def test_what_is_said_before_a_member_is_gone_is_told_from_what_it_carries() -> None:
    kinds = {found.kind[:3] for found in without("tag").violations}
    assert kinds == {"O6:"}


# Planted defects: one for each other thing that the exploration looks at


class NeverTells(Proposer):
    def on_flushed(self, source: Member, flushed: Flushed, out: Wishes) -> None: ...


def test_a_change_that_does_not_end_is_found() -> None:
    scenario = Orders("", ("AB",), messages=0, proposals=0, crashes=0)
    broken = type("Broken", (TotalViews,), {"proposer": NeverTells})
    report = scenario.explore(broken, stop_at_violation=True)
    assert [found.kind.partition(";")[0] for found in report.violations] == [STUCK]


def test_a_scenario_says_what_it_is() -> None:
    assert SCENARIOS["two messages"].description == (
        "ABC; changes: 1, of any who live, led by any of their parts; crashes: 0; messages: 2 "
        "total by B; every order, anything late or lost"
    )
    assert "changes: 2, AC led by A, then ABC led by A; " in ABLATIONS["tag"].scenario.description
    assert "messages: 1 fifo and 1 total by each" in SCENARIOS["sequencer dies"].description
