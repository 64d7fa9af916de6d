"""ringcast demo uniform: the time line that it tells is that of a flush."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ringcast.cli import main


def told(reached: str) -> list[str]:
    result = CliRunner().invoke(main, ["demo", "uniform", "--reached", reached])
    assert result.exit_code == 0, result.output
    return [line.split(" ms  ")[-1] for line in result.output.splitlines()]


def test_members_fetch_what_another_holds_and_all_deliver_before_the_view() -> None:
    lines = told("D")
    steps = [
        "D gets 1..3 of A, and keeps it.",
        "A dies. It has delivered 0 of them itself.",
        "B to C: let B, C, D be view 5. What do you hold?",
        "C to B: I hold nothing of others.",
        "D to B: I hold 1..3 of A.",
        "B to C: before view 5 all deliver A up to 3.",
        "C to D: give me 1..3 of A.",
        "D hands C 1..3 of A.",
        "C to B: I hold it.",
        "B to C: all hold it. View 5 begins.",
        "C delivers 1..3 of A.",
        "C installs View 5: B, C, D.",
        "B, C, D have each delivered 3 messages of A.",
    ]
    places = [lines.index(step) for step in steps]
    assert places == sorted(places)


def test_who_proposes_fetches_nothing_that_it_has() -> None:
    lines = told("B")
    assert "B hands D 1..3 of A." in lines
    assert not any(line.startswith(("B to C: give", "B to D: give")) for line in lines)
    assert lines[-1] == "B, C, D have each delivered 3 messages of A."


def test_what_nobody_has_nobody_delivers() -> None:
    lines = told("nobody")
    assert not any("delivers" in line or "hands" in line for line in lines)
    assert lines[-1] == "B, C, D have each delivered 0 messages of A."


def test_only_members_can_be_reached() -> None:
    result = CliRunner().invoke(main, ["demo", "uniform", "--reached", "A"])
    assert result.exit_code == 2


@pytest.mark.parametrize("reached", ["B", "C", "D", "nobody"])
def test_the_same_is_told_each_time(reached: str) -> None:
    assert told(reached) == told(reached)
