"""Settings for all seeds alike, and which failures are alike."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ringcast.cli import main
from ringcast.errors import UsageError
from ringcast.sim.grid import SETTINGS, grid_points, parse_setting, place, point_words
from ringcast.sim.harness import Failure
from ringcast.sim.plan import expand
from ringcast.sim.runner import run, state_of
from ringcast.trace.rows import PHASE


def test_a_grid_is_every_combination() -> None:
    points = grid_points([parse_setting("capacity=16,1024"), parse_setting("loss=0,0.05")])
    assert [" ".join(point_words(point)) for point in points] == [
        "capacity=16 loss=0",
        "capacity=16 loss=0.05",
        "capacity=1024 loss=0",
        "capacity=1024 loss=0.05",
    ]
    assert grid_points([]) == ((),)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_value_is_read_as_it_was_written(name: str) -> None:
    text = f"{name}=7" if SETTINGS[name].is_whole else f"{name}=0.1234567890123"
    (point,) = grid_points([parse_setting(text)])
    assert point_words(point) == [text]
    run(place(expand(3), point))


@pytest.mark.parametrize(
    "text", ["loss", "loss=", "loss=x", "loss=nan", "capacity=1.5", "capacity=0", "loss=0,0"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=text.split("=", maxsplit=1)[0]):
        parse_setting(text)


def test_a_grid_has_a_limit() -> None:
    values = ",".join(map(str, range(1, 102)))
    with pytest.raises(UsageError, match="10201 points"):
        grid_points([parse_setting(f"burst={values}"), parse_setting(f"messages={values}")])


def test_only_what_is_set_changes() -> None:
    drawn = expand(2)
    assert place(drawn, ()) == drawn
    small = place(drawn, (("capacity", 16),))
    assert set(small.capacities) == {16}
    for seed in range(10):
        drawn = expand(seed)
        lossy = place(drawn, (("loss", 0.05),))
        assert lossy.loss == 0.05
        assert set(lossy.faults) == {*drawn.faults, "F1"}
        assert "F1" not in place(drawn, (("loss", 0.0),)).faults
        assert lossy.incidents == drawn.incidents


def test_failures_that_differ_in_names_and_numbers_are_alike() -> None:
    trace = run(expand(3)).trace
    phases = {row.kind: row for row in trace.rows if row.event == PHASE}
    rows = (phases["heal"],)
    states = {
        state_of(Failure("N1", "A#1 delivers 13 of C, due was 12", rows), trace),
        state_of(Failure("N1", "B#2 delivers 7 of A#1, due was 6", rows), trace),
    }
    assert states == {"heal: M delivers n of M, due was n"}
    later = state_of(Failure("N1", "A#1 delivers 13 of C, due was 12", (phases["end"],)), trace)
    assert later == "end: M delivers n of M, due was n"


def test_replay_refuses_what_is_not_one_point() -> None:
    for args in (
        "--seed 1 --set loss=0,0.1",
        "--options README.md --set loss=0",
        "--seed 1 --set x=1",
    ):
        result = CliRunner().invoke(main, ["replay", *args.split()])
        assert result.exit_code == 2, result.output
        assert "ringcast: " in result.output
