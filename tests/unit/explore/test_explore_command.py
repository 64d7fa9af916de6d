"""`ringcast explore`: what it prints, and how it ends."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from ringcast.cli.explore import explore
from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.explorer import STALL
from ringcast.explore.ring import RINGS
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.total import Orders

TWICE_ACCEPTED = "add() accepted one seqno twice (RB7)"


def run(command: str, *options: str, status: int = 1) -> str:
    result = CliRunner().invoke(explore, [*command.split(), *options])
    assert result.exit_code == status, result.output
    return result.output


def run_json(command: str, *options: str) -> Any:
    return json.loads(run(command, "--json", *options))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("multicast --without highest", [f"VIOLATION {STALL}", "LOST: B→"]),
        ("unicast --without tombstone", ["VIOLATION a message was delivered twice (S1, Y3)"]),
        ("sync --without tombstone", ["delivered twice (S1, Y3)", "DROPS its window for A"]),
        (
            "views --without finish",
            [
                "VIOLATION VS7: nobody misses a view of members that it was never parted from",
                "      1  A proposes 2@A of AB",
            ],
        ),
        (
            "total --without gate",
            ["VIOLATION O5: what is taken before a view comes is taken", "B sends 1"],
        ),
        ("ring --variant unlocked --scenario B", [f"VIOLATION {TWICE_ACCEPTED}"]),
        ("ring --scenario E --unguarded", ["one message was delivered twice (RB7)"]),
    ],
)
def test_it_shows_what_goes_wrong(command: str, told: list[str]) -> None:
    output = run(command)
    assert all(each in output for each in told), output


def test_it_shows_a_run_of_nodes() -> None:
    (row,) = run_json("views --without order")["scenarios"]
    assert row["runs"] == 1
    assert any("C crashes" in line for line in row["violations"][0]["witness"])


def test_it_prints_the_schedule_of_a_violation() -> None:
    lines = run("ring --variant note --scenario B").splitlines()
    start = lines.index(f"   VIOLATION {TWICE_ACCEPTED}")
    assert lines[start + 1] == "      1  T0 add(5): read LOW"
    assert lines[start + 13].endswith("accepted=[5, 5]]")


def test_it_says_what_was_explored() -> None:
    output = run("views --scenario join --proposals 1", status=0)
    first, counts, judged, total = output.splitlines()
    assert first == (
        "join  AB | C; proposals: 1, any set by anybody; crashes: 1; messages: 1 fifo by B; every "
        "order, any frame lost, late or again"
    )
    assert "states, " in counts
    assert counts.endswith("no violation")
    assert judged.startswith("   judged: VS1 ")
    assert total.endswith("violations: 0; complete")
    output = run("unicast", "--scenario", "any timer", status=0)
    assert "no violation" in output
    assert "complete" in output


@pytest.mark.parametrize("variant", ["real", "locked"])
def test_it_prints_each_ring_and_finds_nothing(variant: str) -> None:
    output = run("ring --variant", variant, status=0)
    for scenario in RINGS.values():
        assert f"{scenario.name}  {scenario.description}" in output
    assert output.count("; no violation") == len(RINGS)
    assert "VIOLATION" not in output


def test_it_compares_what_can_be_compared() -> None:
    document = run_json("ring --variant naive")
    assert document["variant"] == "naive"
    assert [row["scenario"] for row in document["scenarios"]] == ["A", "B", "C", "D"]
    assert all(row["complete"] and row["violations"] for row in document["scenarios"])
    assert document["scenarios"][0]["violations"][0]["witness"]


# A limit is no proof


@pytest.mark.parametrize(("command", "rule"), [("multicast", "highest"), ("unicast", "resend")])
def test_silence_before_the_end_proves_nothing(command: str, rule: str) -> None:
    parts = ABLATIONS[command][rule].parts
    report = replace(SCENARIOS[command]["loss"], messages=1).explore(**parts, max_seconds=0)
    assert not report.complete
    assert report.violations == []


@pytest.mark.parametrize("command", ["multicast", "sync"])
def test_it_says_that_it_did_not_finish(command: str) -> None:
    output = run(command, "--seconds", "0")
    assert "NOT COMPLETE" in output
    assert "no violation" not in output


@pytest.mark.parametrize(
    ("command", "name", "options"),
    [("multicast", "loss", ""), ("sync", "drop and loss", "--capacity 2")],
)
def test_it_speaks_json(command: str, name: str, options: str) -> None:
    document = run_json(command, "--scenario", name, "--seconds", "0", *options.split())
    assert document["complete"] is False
    (row,) = document["scenarios"]
    assert row["scenario"] == name
    assert options.strip("-") in row["description"]


def test_a_rule_that_has_nothing_to_judge_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Orders("quiet", ("AB",), messages=0, proposals=0, crashes=0)
    monkeypatch.setitem(SCENARIOS, "total", {"quiet": quiet})
    output = run("total")
    assert "no violation" in output
    assert output.splitlines()[-1] == "never judged: O-L1, O2, O3, O4, O5, O6, O8, O9"


# What is chosen


def test_a_rule_can_be_missed_in_another_scenario_too() -> None:
    output = run("views --without fetch --seconds 0", "--scenario", "nodes leave")
    assert "nodes leave  ABC, whole nodes: B leaves; " in output
    assert "NOT COMPLETE" in output


def test_bounds_are_for_members_that_propose_whatever_they_like() -> None:
    output = run("views --crashes 0 --seconds 0", "--scenario", "nodes crash")
    assert "nodes crash  ABC, whole nodes: C crashes; " in output
    output = run("views --crashes 0 --seconds 0 --scenario join")
    assert "; crashes: 0; " in output


@pytest.mark.parametrize(
    ("command", "name", "told"),
    [
        (
            *("multicast", "uniform"),
            "3 members, B sends 2 uniformly, capacity 1: a datagram arrives twice",
        ),
        ("unicast", "loss", "2 members, A sends 2, capacity 2: a datagram is lost"),
        ("unicast", "any timer", "timers fire at any time"),
        ("sync", "drop", "(2 times)"),
        ("sync", "drop", "again and again"),
    ],
)
def test_a_scenario_says_what_it_is(command: str, name: str, told: str) -> None:
    scenario = SCENARIOS[command][name]
    assert told in scenario.description
    assert "no fault" in replace(scenario, faults={}).description


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--scenario A --unguarded", "--unguarded is for --scenario E only"),
        ("--variant note --scenario E", "add --unguarded"),
        ("--variant note --scenario W", "needs operations the note variant lacks"),
    ],
)
def test_it_refuses_what_makes_no_sense(options: str, message: str) -> None:
    assert message in run(f"ring {options}", status=2)


@pytest.mark.parametrize("command", ["", "ring"])
def test_help_shows_an_example(command: str) -> None:
    assert "ringcast explore ring" in run(command, "--help", status=0)


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("ring --scenario E --unguarded", r"\d+ s or more"),
        ("views --without finish", r"\d+ to \d+ s"),
    ],
)
def test_who_watches_is_told_how_far_it_is_and_when_it_ends_at_the_latest(
    command: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("ringcast.cli.explore.note", told.append)
    monkeypatch.setattr("ringcast.cli.explore.NOTE_EVERY_S", 0.0)
    run(command)
    assert re.fullmatch(rf"   \d+ done, \d+ more known so far; about {left} to go", told[-1])
