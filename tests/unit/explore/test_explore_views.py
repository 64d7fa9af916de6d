"""View changes, explored: whatever is proposed, whoever crashes, whatever befalls a datagram; and
what goes wrong without each rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.explore.ablations import ABLATIONS as ALL_ABLATIONS
from ringcast.explore.scenarios import VIEWS as SCENARIOS
from ringcast.explore.view_steps import Fault, Script
from ringcast.explore.view_world import RULES
from ringcast.explore.views import STUCK, Proposals, Views
from ringcast.protocols.views.follower import Follower
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.proposer import Proposer
from ringcast.window.assembler import Assembler

if TYPE_CHECKING:
    from ringcast.explore.explorer import Report
    from ringcast.model import Member
    from ringcast.protocols.views.frames import Wishes
    from ringcast.wire.changes import Flushed, Install

ABLATIONS = ALL_ABLATIONS["views"]
MACHINES = [each for each in SCENARIOS.values() if isinstance(each, Proposals)]
SCRIPTS = [each for each in SCENARIOS.values() if isinstance(each, Script)]
QUICK = ("nodes leave", "state transfer", "full window", "large message, join")


def assert_nothing_is_wrong(report: Report) -> None:
    assert report.complete
    assert [(found.kind, found.witness) for found in report.violations] == []


# Members that propose whatever they like


@pytest.mark.parametrize(
    "scenario",
    [each for each in MACHINES if not each.name.startswith("two parts")],
    ids=lambda each: each.name,
)
def test_one_change_with_a_crash_anywhere(scenario: Proposals) -> None:
    report = replace(scenario, proposals=1).explore()
    assert_nothing_is_wrong(report)
    assert report.states > 1_000
    assert report.premises["healed"] > 300
    assert report.premises["VS2"] > 100


@pytest.mark.proof
@pytest.mark.parametrize("scenario", MACHINES, ids=lambda each: each.name)
def test_all_changes(scenario: Proposals) -> None:
    report = scenario.explore()
    assert_nothing_is_wrong(report)
    assert report.premises["healed"] > 1_000


@pytest.mark.proof
def test_every_rule_has_something_to_judge() -> None:
    judged = SCENARIOS["crash, uniform"].explore().premises
    assert {rule for rule in RULES if judged[rule]} == set(RULES)


# Whole nodes


@pytest.mark.parametrize("name", QUICK)
def test_a_crash_at_every_step(name: str) -> None:
    script = SCENARIOS[name]
    assert isinstance(script, Script)
    report = replace(script, faults=(Fault.DEATH,)).explore()
    assert_nothing_is_wrong(report)
    assert report.runs > 20


@pytest.mark.proof
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda each: each.name)
def test_every_fault_of_every_datagram(script: Script) -> None:
    report = script.explore()
    assert_nothing_is_wrong(report)
    assert report.runs > 80
    assert report.premises["VS5"] > 0


@pytest.mark.parametrize("name", ["large message", "large message, join"])
def test_a_large_message_that_nobody_gets_is_missed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Assembler, "_end", lambda self, *_: self.begun.clear())
    script = SCENARIOS[name]
    assert isinstance(script, Script)
    kinds = {found.kind[:4] for found in replace(script, faults=()).explore().violations}
    assert "VS3:" in kinds


# What each rule is for


def without(rule: str) -> Report:
    scenario: Proposals | Script = ABLATIONS[rule].scenario
    return scenario.explore(**ABLATIONS[rule].parts, stop_at_violation=True)


@pytest.mark.parametrize("rule", ABLATIONS)
def test_every_rule_is_missed(rule: str) -> None:
    report = without(rule)
    assert report.violations


@pytest.mark.parametrize(
    "rule", [rule for rule, each in ABLATIONS.items() if isinstance(each.scenario, Proposals)]
)
def test_with_the_rule_nothing_goes_wrong_there(rule: str) -> None:
    assert_nothing_is_wrong(ABLATIONS[rule].scenario.explore())


def witness_without(rule: str, kind: str) -> list[str]:
    report = without(rule)
    return next(found.witness for found in report.violations if found.kind.startswith(kind))


def test_a_frozen_member_that_sends_is_not_heard() -> None:
    witness = witness_without("freeze", "VS4")
    assert "A/fifo sends 1" in witness[1:]
    assert witness[-1] == "B flushes 2@A"


def test_who_hears_on_after_its_state_helps_a_commit_that_it_does_not_deliver() -> None:
    witness = witness_without("deaf to all", "VS6")
    taken, committed = witness.index("C gets A/uniform 1"), witness.index("A/uniform commits 1")
    assert witness.index("C proposes 2@C of AC") < taken < committed


def test_what_a_leaver_has_sent_is_lost_if_it_is_not_asked() -> None:
    witness = witness_without("leave", "R8")
    assert any("Propose 3@A of A, B" in line for line in witness)


# Planted defects: one for each other thing that the exploration looks at


class NeverInstalls(Follower):
    def on_install(self, source: Member, install: Install, out: Wishes) -> None: ...


class NeverTells(Proposer):
    def on_flushed(self, source: Member, flushed: Flushed, out: Wishes) -> None: ...


@pytest.mark.parametrize("parts", [{"follower": NeverInstalls}, {"proposer": NeverTells}])
def test_a_change_that_does_not_end_is_found(parts: dict[str, type]) -> None:
    scenario = Proposals("", ("AB",), messages=0, proposals=1, crashes=0)
    report = scenario.explore(type("Broken", (Views,), parts), stop_at_violation=True)
    assert [found.kind for found in report.violations] == [STUCK]


class AsksOnce(Proposer):
    _has_asked: object = None

    def repeat(self, out: Wishes) -> None:
        if self.awaited is not self._has_asked:
            super().repeat(out)
        self._has_asked = self.awaited


class NeverRepeats(GroupViews):
    proposing = AsksOnce


def test_a_lost_frame_that_is_not_repeated_is_found() -> None:
    script = Script("", ("ABC",), crashes="C", faults=(Fault.LOST,))
    report = script.explore(membership=NeverRepeats, stop_at_violation=True)
    (found, *_) = report.violations
    assert found.kind == "VL: a member goes on without another that lives and was with it"
    assert any(line.endswith("A→B Propose 3@A of A, B  LOST") for line in found.witness)
