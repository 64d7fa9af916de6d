"""What is planted in what members record by default is found by the rules of simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster_traces import check_found, judge, read_traces
from plants_recorded import FOUND, MISSING, NOT_SHOWN, record_life

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_traces import Traces


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    directory = tmp_path_factory.mktemp("life")
    record_life(directory)
    return read_traces(directory)


def test_the_clean_life_has_nothing_to_be_found(life: Traces, tmp_path: Path) -> None:
    report, found = judge(life, tmp_path)
    assert report.exit_status == 0, report.to_json()
    assert found["G3"].premises == 6
    assert found["G3"].remarks == ["a member that is killed writes nothing down any more"]


def test_all_that_is_planted_is_found_in_rows_that_were_changed(
    life: Traces, tmp_path: Path
) -> None:
    check_found(life, tmp_path, FOUND)


def test_hashes_that_are_not_there_are_missed_by_name(life: Traces, tmp_path: Path) -> None:
    for plant in MISSING:
        report, found = judge(life, tmp_path / plant.__name__, plant)
        assert report.exit_status == 3, plant.__name__
        assert found["content"].status == "incomplete"
        assert "has not written down the hash of block" in found["content"].detail


def test_what_nobody_had_to_deliver_is_told_and_no_violation(life: Traces, tmp_path: Path) -> None:
    for plant in NOT_SHOWN:
        report, _ = judge(life, tmp_path / plant.__name__, plant)
        assert report.exit_status == 0, plant.__name__
        assert report.summary != judge(life, tmp_path / "clean")[0].summary, plant.__name__
