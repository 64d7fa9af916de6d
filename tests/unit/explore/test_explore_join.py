"""Nothing goes wrong with a join in any order of events; without the freeze it does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ringcast.cli import main
from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.explorer import STALL
from ringcast.explore.join import JoinSystem
from ringcast.explore.scenarios import SCENARIOS as ALL
from ringcast.explore.system import explore_scenario
from ringcast.protocols.membership import Membership, Timer

if TYPE_CHECKING:
    from ringcast.core.effects import Effects
    from ringcast.explore.system import Scenario

SCENARIOS = ALL["join"]
SMALL = {name: replace(scenario, messages=1) for name, scenario in SCENARIOS.items()}
RELEASE = "a sender purged what a member of its view has not delivered (N5, N9)"


@pytest.mark.parametrize("name", ["loss", "coordinator"])
def test_nothing_goes_wrong_with_one_message(name: str) -> None:
    report = explore_scenario(SMALL[name])
    assert report.complete
    assert report.violations == []
    assert report.states > 5_000


@pytest.mark.proof
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_nothing_goes_wrong(scenario: Scenario) -> None:
    report = explore_scenario(scenario)
    assert report.complete
    assert report.violations == []
    assert report.states > 5_000


@pytest.mark.proof
@pytest.mark.parametrize("name", ["quiet", "loss"])
def test_nothing_goes_wrong_with_capacity_two(name: str) -> None:
    report = explore_scenario(replace(SCENARIOS[name], capacity=2))
    assert report.complete
    assert report.violations == []


def test_a_digest_before_the_freeze_leaves_the_joiner_stuck() -> None:
    report = explore_scenario(SMALL["quiet"], ABLATIONS["join"]["freeze"].protocol)
    assert report.complete
    assert {violation.kind for violation in report.violations} == {RELEASE, STALL}
    (witness,) = [found.witness for found in report.violations if found.kind == RELEASE]
    # The sender lets go of a message when only the coordinator has acknowledged it, then gets
    # the view, then the joiner is told to begin before that message.
    told = "\n".join(witness)
    release = told.index("arrives: A→B Ack received=1 delivered=1")
    assert release < told.index("arrives: A→B ViewIs View 3: A, B, C")
    assert witness[-1].startswith(
        "arrives: A→C Welcome to View 3: A, B, C at {A/fifo: 0, B/fifo: 0"
    )


class SaidOnce(Membership):
    """BROKEN on purpose: neither a view nor a welcome is repeated."""

    def _repeat_change(self, now: int, out: Effects) -> None:
        self._timers.arm(Timer.CHANGE, now + 1)


class AskedOnce(Membership):
    """BROKEN on purpose: what was asked of the coordinator is not asked again."""

    has_asked = False

    def _request(self, now: int, out: Effects) -> None:
        if not self.has_asked:
            super()._request(now, out)
        self.has_asked = True
        self._timers.arm(Timer.REQUEST, now + 1)


class Forgetful(Membership):
    """BROKEN on purpose: whoever is missed while a join is under way is not left out."""

    def _advance(self, now: int, out: Effects) -> None:
        if self.change is None:
            super()._advance(now, out)


@pytest.mark.parametrize(
    ("name", "broken", "struck"),
    [
        ("loss", SaidOnce, "LOST: B→A ViewAck 3"),
        ("loss", AskedOnce, "LOST: C→A Join"),
        ("joiner", Forgetful, "CRASH of C"),
    ],
    ids=["said once", "asked once", "forgetful"],
)
def test_a_rule_that_is_missing_is_missed(name: str, broken: type[Membership], struck: str) -> None:
    report = explore_scenario(replace(SMALL[name], messages=0), broken)
    assert report.complete
    (stall,) = report.violations
    assert stall.kind == STALL
    assert struck in stall.witness


def test_the_joiner_has_found_the_group_and_asked_nobody_yet() -> None:
    system = JoinSystem(SMALL["quiet"])
    state = system.initial()
    labels = [label for label, _ in system.actions(state)]
    assert state.flight == ()
    assert labels == [
        "C: timer DECIDE fires  [sends C→A Join]",
        "B: sends #1  [sends B→A Data 1..1]",
    ]
    assert not system.goal(state)


def test_the_command_prints_states_and_a_witness() -> None:
    runner = CliRunner()
    clean = runner.invoke(main, ["explore", "join", "--scenario", "quiet", "--messages", "1"])
    assert clean.exit_code == 0
    assert "quiet  2 members and a joiner, B sends 1, capacity 1: no fault" in clean.output
    assert "violations: 0; complete" in clean.output
    broken = runner.invoke(
        main, ["explore", "join", "--without", "freeze", "--messages", "1", "--json"]
    )
    assert broken.exit_code == 1
    document = json.loads(broken.output)
    assert document["without"] == "freeze"
    kinds = [found["kind"] for row in document["scenarios"] for found in row["violations"]]
    assert RELEASE in kinds


def test_scenarios_say_what_may_happen() -> None:
    told = [scenario.description.partition(": ")[2] for scenario in SCENARIOS.values()]
    assert told == [
        "no fault",
        "a datagram is lost",
        "a timer fires too early",
        "C crashes",
        "B crashes",
        "A crashes",
    ]
