"""The exploration finds nothing wrong with uniform delivery, and everything without its rules."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import pytest
from click.testing import CliRunner

from ringcast.cli import main
from ringcast.events import Delivered
from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.explorer import STALL
from ringcast.explore.scenarios import SCENARIOS as EVERY
from ringcast.explore.system import Fault, explore_scenario
from ringcast.explore.uniform import THROWN_AWAY, UniformSystem
from ringcast.model import Run
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.uniform import Uniform
from ringcast.wire.frames import Stage

if TYPE_CHECKING:
    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.explore.explorer import Report
    from ringcast.explore.system import Scenario
    from ringcast.model import Member

SCENARIOS, ABLATED = EVERY["uniform"], ABLATIONS["uniform"]
CRASH, LOSS, ALONE = SCENARIOS["crash"], SCENARIOS["loss"], SCENARIOS["alone"]
SMALL = [SCENARIOS[name] for name in ("crash", "leave", "alone")]
LARGE = [
    *SCENARIOS.values(),
    replace(SCENARIOS["two crashes"], name="two messages, two crashes", messages=2),
    replace(LOSS, name="two messages, a loss", messages=2),
    replace(LOSS, name="two losses", faults={Fault.CRASH: 1, Fault.LOSS: 2}),
    replace(CRASH, name="a receiver leaves", leaver=2, faults={Fault.CRASH: 2, Fault.LEAVE: 1}),
    replace(CRASH, name="nothing sent", founders=4, messages=0, faults={Fault.CRASH: 3}),
]
SLOW = {"deafness", "memory"}


def assert_nothing_is_wrong(report: Report) -> None:
    assert report.complete
    assert report.violations == []
    assert report.states > 1000


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_nothing_goes_wrong_in_small_scenarios(scenario: Scenario) -> None:
    assert_nothing_is_wrong(explore_scenario(scenario))


@pytest.mark.proof
@pytest.mark.parametrize("scenario", LARGE, ids=lambda scenario: scenario.name)
def test_nothing_goes_wrong(scenario: Scenario) -> None:
    assert_nothing_is_wrong(explore_scenario(scenario))


# What each rule is for.

NOT_ALL = "delivered by somebody, and not by every survivor (U1)"


@cache
def report_without(rule: str) -> Report:
    multicast, scenario, _ = ABLATED[rule]
    return explore_scenario(scenario, multicast, stop_at_violation=True)


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.proof] if rule in SLOW else []) for rule in ABLATED],
)
def test_every_rule_is_missed(rule: str) -> None:
    assert ABLATED[rule].finding in [found.kind for found in report_without(rule).violations]


def witness_of(report: Report, kind: str) -> list[str]:
    return next(found.witness for found in report.violations if found.kind == kind)


def test_without_a_restart_a_taker_waits_for_the_dead() -> None:
    *_, answered, last = witness_of(report_without("restart"), STALL)
    assert answered.startswith("arrives: C→A Standing in view 2: B 0/1  [")
    assert last == "CRASH of C"


def test_who_delivers_before_all_hold_takes_a_message_into_its_grave() -> None:
    witness = witness_of(report_without("taker-hold"), NOT_ALL)
    delivered = next(at for at, step in enumerate(witness) if "gets B#1" in step)
    assert "CRASH of A" in witness[delivered:]


@pytest.mark.proof
def test_what_is_resolved_may_be_lost_on_its_way() -> None:
    witness = witness_of(report_without("memory"), STALL)
    assert witness[-1] == "LOST: B→C Takeover in view 2: A RESOLVED 0"


# Planted defects: one for each thing that the exploration looks at.


class Doubling(ReliableMulticast):
    """Delivers whatever it delivers once more."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return 2 * super().take_ready(limit, now, out)


class Shifting(ReliableMulticast):
    """Takes each message for the one after it."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return [
            replace(event, run=Run(event.run.stream, event.run.first + 1, event.run.payloads))
            for event in super().take_ready(limit, now, out)
            if isinstance(event, Delivered)
        ]


class SkippingOutbox(MulticastSender):
    """Keeps a message from its own application, which does not learn of it."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[bytes]:
        if self.window.ready:
            self.window.delivered += 1
        return super().take_ready(limit, now, out)


class Skipping(ReliableMulticast):
    sending: ClassVar[type[MulticastSender]] = SkippingOutbox


class Fragile(ReliableMulticast):
    def check_invariants(self) -> None:
        assert not self.uniform.estates, "nobody departs"


class Timid(Uniform):
    """A taker that never takes its own share."""

    def _step(self, sender: Member, out: Effects) -> bool:
        return self.estates[sender].stage is not Stage.COMMIT and super()._step(sender, out)


class NeverDone(ReliableMulticast):
    estates: ClassVar[type[Uniform]] = Timid


class Generous(Uniform):
    """Resolves whatever it hears of."""

    def _step(self, sender: Member, out: Effects) -> bool:
        self._resolve(sender)
        return True


class Careless(ReliableMulticast):
    estates: ClassVar[type[Uniform]] = Generous


@pytest.mark.parametrize(
    ("multicast", "scenario", "finding"),
    [
        (Doubling, ALONE, "a message was delivered twice (U2)"),
        (Shifting, ALONE, "a message was delivered before an earlier one (U4)"),
        (Skipping, ALONE, "a live sender's message is not delivered by all (U5)"),
        (Fragile, CRASH, "an invariant is broken: assert not self.uniform.estates"),
        (Careless, CRASH, THROWN_AWAY),
    ],
)
def test_a_planted_defect_is_found(
    multicast: type[ReliableMulticast], scenario: Scenario, finding: str
) -> None:
    report = explore_scenario(scenario, multicast, stop_at_violation=True)
    kinds = [found.kind for found in report.violations]
    assert any(finding in kind for kind in kinds), kinds


def test_what_is_resolved_too_early_is_missing_in_every_way() -> None:
    kinds = {found.kind for found in explore_scenario(CRASH, Careless).violations}
    assert {NOT_ALL, THROWN_AWAY, "survivors have delivered different messages (U6)"} <= kinds


def test_nobody_comes_to_rest_by_way_of_a_crash() -> None:
    """A taker that never ends is stuck, although the next crash would end its wait."""
    (found,) = explore_scenario(CRASH, NeverDone).violations
    assert found.kind == STALL
    assert len(found.witness) == 1


def test_a_limit_is_no_proof() -> None:
    report = explore_scenario(CRASH, NeverDone, max_seconds=0)
    assert not report.complete
    assert report.violations == []


def test_a_scenario_says_what_it_is() -> None:
    assert CRASH.description == "3 members, B sends 1, capacity 2: a member crashes"
    assert LOSS.description.endswith("a member crashes, a datagram is lost")
    assert ALONE.description.startswith("1 member and a joiner, A sends 2, ")
    assert ALONE.description.endswith("B joins")
    assert SCENARIOS["leave"].description.endswith("B leaves")
    assert SCENARIOS["two senders"].description.startswith("3 members, A, B send 1 each")
    assert SCENARIOS["four"].description.endswith("; begins after: B: sends #1, CRASH of B")


def test_an_opening_has_happened_already() -> None:
    state = UniformSystem(SCENARIOS["four"]).initial()
    assert state.sent == (1,)
    assert state.left == (1,)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["explore", "uniform", *arguments])
    return result.exit_code, result.output


def test_the_command_explores_one_scenario() -> None:
    status, output = run("--scenario", "alone")
    assert status == 0
    assert "no violation" in output
    assert "violations: 0; complete" in output


def test_the_command_shows_what_a_missing_rule_leads_to() -> None:
    status, output = run("--without", "freeze")
    assert status == 1
    assert f"VIOLATION {NOT_ALL}" in output
    assert "A: sends #1  [sends A→B Data 1..1, sends A→B Commit 1 in view 2, gets A#1]" in output


def test_a_rule_can_be_missed_in_another_scenario_too() -> None:
    status, output = run("--without", "restart", "--scenario", "leave")
    assert status == 0
    assert output.startswith("leave  ")


def test_the_command_says_that_it_did_not_finish() -> None:
    status, output = run("--seconds", "0")
    assert status == 1
    assert "NOT COMPLETE" in output
    assert "no violation" not in output


def test_the_command_speaks_json() -> None:
    status, output = run("--json", "--scenario", "alone")
    assert status == 0
    document = json.loads(output)
    assert [row["scenario"] for row in document["scenarios"]] == ["alone"]
    assert document["complete"]
    assert document["violations"] == 0
