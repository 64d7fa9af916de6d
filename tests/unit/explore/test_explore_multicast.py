"""The exploration finds nothing wrong with the protocol, and everything wrong with broken ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ringcast.cli import main
from ringcast.events import Delivered
from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.explorer import STALL
from ringcast.explore.scenarios import SCENARIOS as ALL
from ringcast.explore.system import Fault, explore_scenario
from ringcast.model import Run
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_sender import MulticastSender

if TYPE_CHECKING:
    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.explore.system import Scenario
    from ringcast.model import Member, View
    from ringcast.wire.frames import Ack

SCENARIOS = ALL["multicast"]
PAIR = replace(SCENARIOS["loss"], name="pair", founders=2, messages=1)

SMALL = [
    SCENARIOS["any timer"],
    SCENARIOS["two senders"],
    replace(PAIR, name="pair, capacity 2", messages=2, capacity=2),
    *(replace(SCENARIOS[name], messages=1) for name in ("crash", "duplicate", "loss", "join")),
]


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_nothing_goes_wrong_in_small_groups(scenario: Scenario) -> None:
    report = explore_scenario(scenario)
    assert report.complete
    assert report.violations == []
    assert report.states > 500


@pytest.mark.proof
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_nothing_goes_wrong(scenario: Scenario) -> None:
    report = explore_scenario(scenario)
    assert report.complete
    assert report.violations == []
    assert report.states > 4_000


@pytest.mark.proof
def test_nothing_goes_wrong_in_a_join_with_capacity_two() -> None:
    report = explore_scenario(replace(SCENARIOS["join"], capacity=2))
    assert report.complete
    assert report.violations == []


def stall_of(scenario: Scenario, multicast: type) -> list[str]:
    report = explore_scenario(scenario, multicast)
    assert report.complete
    (witness,) = [found.witness for found in report.violations if found.kind == STALL]
    return witness


def test_without_highest_a_lost_last_message_is_never_missed() -> None:
    witness = stall_of(PAIR, ABLATIONS["multicast"]["highest"].protocol)
    assert witness == ["B: sends #1  [sends B→A Data 1..1]", "LOST: B→A Data 1..1"]


def test_without_the_reack_a_lost_last_ack_pins_the_sender() -> None:
    witness = stall_of(PAIR, ABLATIONS["multicast"]["reack"].protocol)
    assert len(witness) == 4
    assert witness[-1] == "LOST: A→B Ack received=1 delivered=1"


def test_without_the_freeze_the_joiner_starts_at_what_is_gone() -> None:
    scenario = replace(SCENARIOS["join"], messages=1, digest_first=True)
    witness = stall_of(scenario, ReliableMulticast)
    # The sender lets go of #1 after the digest that does without it, before it hears of C.
    assert "JOIN of C begins: A takes the digest [0]" in witness
    assert witness[-1] == "arrives: A→B Ack received=1 delivered=1"
    kinds = [found.kind for found in explore_scenario(scenario).violations]
    assert any("N9" in kind for kind in kinds)


def test_a_limit_is_no_proof() -> None:
    report = explore_scenario(PAIR, ABLATIONS["multicast"]["highest"].protocol, max_seconds=0)
    assert not report.complete
    assert report.violations == []


# Planted defects: one for each thing that the exploration looks at.


class Twice(ReliableMulticast):
    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return 2 * super().take_ready(limit, now, out)


class Reporting(ReliableMulticast):
    """Tells the application something else than what came."""

    def tell(self, run: Run) -> Run:
        raise NotImplementedError

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return [
            Delivered(event.sender, self.tell(event.run), event.view_id)
            if isinstance(event, Delivered)
            else event
            for event in super().take_ready(limit, now, out)
        ]


class Skipping(Reporting):
    def tell(self, run: Run) -> Run:
        return Run(run.stream, run.first + 1, run.payloads)


class Garbling(Reporting):
    def tell(self, run: Run) -> Run:
        return Run(run.stream, run.first, [b"?" for _ in run.payloads])


class FirstAckOutbox(MulticastSender):
    def on_ack(self, source: Member, ack: Ack, now: int, out: Effects) -> None:
        self.window.purge(ack.delivered)
        super().on_ack(source, ack, now, out)


class PurgingAtFirstAck(ReliableMulticast):
    sending = FirstAckOutbox


class RememberingTheDeparted(ReliableMulticast):
    def install_view(self, view: View, now: int, out: Effects) -> None:
        before = dict(self._receivers)
        super().install_view(view, now, out)
        self._receivers = before
        for receiver in before.values():
            self._note_ready(receiver)

    def check_invariants(self) -> None:
        """Sees nothing: the exploration has to."""


class Fragile(ReliableMulticast):
    def check_invariants(self) -> None:
        assert not self._receivers or self.digest().entries is None


@pytest.mark.parametrize(
    ("multicast", "fault", "finding"),
    [
        (Twice, Fault.LOSS, "twice (N2)"),
        (Skipping, Fault.LOSS, "before an earlier one (N1)"),
        (Garbling, Fault.LOSS, "another content (N1)"),
        (PurgingAtFirstAck, Fault.LOSS, "(N5, N9)"),
        (RememberingTheDeparted, Fault.CRASH, "departed member was delivered (N8)"),
        (Fragile, Fault.LOSS, "invariant is broken: assert not self._receivers"),
    ],
)
def test_a_planted_defect_is_found(
    multicast: type[ReliableMulticast], fault: Fault, finding: str
) -> None:
    founders = 3 if multicast is PurgingAtFirstAck else 2
    scenario = replace(PAIR, faults={fault: 1}, founders=founders)
    kinds = [found.kind for found in explore_scenario(scenario, multicast).violations]
    assert any(finding in kind for kind in kinds), kinds


COUNT = """
from dataclasses import replace
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.system import explore_scenario
scenario = replace(SCENARIOS["multicast"]["join"], messages=1, digest_first=True)
report = explore_scenario(scenario)
print(report.states, report.transitions, [found.witness for found in report.violations])
"""


def test_the_same_exploration_gives_the_same_report() -> None:
    reports = {
        subprocess.run(
            [sys.executable, "-c", COUNT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(reports) == 1
    assert "JOIN of C begins" in reports.pop()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["explore", "multicast", *arguments])
    return result.exit_code, result.output


def test_the_command_shows_what_a_missing_rule_leads_to() -> None:
    status, output = run("--without", "highest")
    assert status == 1
    assert f"VIOLATION {STALL}" in output
    assert "LOST: B→" in output


def test_the_command_says_that_it_did_not_finish() -> None:
    status, output = run("--seconds", "0")
    assert status == 1
    assert "NOT COMPLETE" in output
    assert "no violation" not in output


def test_the_command_speaks_json() -> None:
    status, output = run("--json", "--joiner", "--seconds", "0")
    document = json.loads(output)
    assert status == 1
    assert document["complete"] is False
    assert [row["scenario"] for row in document["scenarios"]] == ["join"]


def test_the_command_refuses_what_makes_no_sense() -> None:
    status, output = run("--without", "freeze", "--no-joiner")
    assert status == 2
    assert "freeze" in output
