"""A fleet on Spark says what plain runs of the same seeds say, and sums up what failed."""

from __future__ import annotations

import json
import re
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ringcast.cli import main
from ringcast.cli.fleet import run_fleet
from ringcast.cli.replay import replay
from ringcast.events import Delivered
from ringcast.node import build_node
from ringcast.protocols.views.streams import ViewStreams
from ringcast.sim.grid import grid_points, parse_setting, place
from ringcast.sim.plan import expand
from ringcast.sim.runner import Judged, Tally, run, run_seeds
from ringcast.spark.audit import audit_all
from ringcast.spark.fleet import KEPT_PER_TASK, Fleet, fleet_rows, tasks_for
from ringcast.spark.fleet_tables import outcome
from ringcast.spark.report import verdict_id

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.sim.cluster import NodeFactory
    from ringcast.sim.runner import Summary

SMALL = grid_points([parse_setting("messages=3"), parse_setting("loss=0,0.05")])


def delivers_twice() -> NodeFactory:
    """Nodes that break G2. The class travels to the workers, being nobody's but this function's."""

    class DeliversTwice(ViewStreams):
        def take_ready(
            self, limit: int, now: int, out: Effects, *, only_own: bool = False
        ) -> list[Event]:
            events = super().take_ready(limit, now, out, only_own=only_own)
            return events + [event for event in events if isinstance(event, Delivered)][:1]

    return partial(build_node, multicast=DeliversTwice, detector=None)


def assert_says(row: Row, summary: Summary) -> None:
    """That all of a plain run's summary stands in this row."""
    assert row.seed == summary.seed
    assert row.trace_hash == summary.hash
    judged = {name: Judged(*said) for name, said in row.judged.items()}
    assert judged == summary.judged
    assert row.violations == sum(judged.violations for judged in summary.judged.values())
    assert row.happenings == summary.happenings
    assert row.matrix == {" ".join(key): count for key, count in summary.matrix.items()}
    assert (row.deliveries, row.faults) == (summary.deliveries, summary.faults)
    assert row.rows == summary.rows


def test_every_row_is_what_a_plain_run_says(spark: SparkSession) -> None:
    fleet = Fleet(seeds=range(4), points=SMALL)
    rows = fleet_rows(spark, fleet, 4).persist()
    found = {(row.seed, row.point): row for row in rows.collect()}
    assert len(found) == fleet.runs == 8
    tally = Tally()
    for seed in fleet.seeds:
        for point, words in zip(SMALL, ("messages=3 loss=0", "messages=3 loss=0.05"), strict=True):
            row = found[seed, words]
            result = run(place(expand(seed), point))
            assert_says(row, result.summary)
            assert row.fault_classes == list(result.options.faults)
            assert row.virtual_ns == result.trace.rows[-1].mono_ns
            assert row.wall_s > 0
            assert row.parameters == dict(point)
            tally.add(result.summary)
    summed = outcome(rows)
    rows.unpersist()
    assert summed.tally.judged == tally.judged
    assert list(summed.tally.judged) == list(tally.judged)
    assert summed.tally.matrix == tally.matrix
    assert summed.tally.deliveries == tally.deliveries
    assert sum(point.runs for point in summed.points) == 8
    assert not summed.clusters


@pytest.mark.proof
def test_without_a_grid_they_are_the_seeds_of_plain_simulate(spark: SparkSession) -> None:
    rows = fleet_rows(spark, Fleet(seeds=range(3, 5)), 2).collect()
    for row, summary in zip(
        sorted(rows, key=attrgetter("seed")), run_seeds(range(3, 5)), strict=True
    ):
        assert_says(row, summary)
        assert row.point == ""


def test_failures_are_gathered_and_can_be_replayed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = delivers_twice()
    fleet = Fleet(seeds=range(12), points=SMALL[1:], out=str(tmp_path), node_factory=broken)
    figures = tmp_path / "figures.json"
    assert run_fleet(spark, fleet, json_file=figures) == 1
    printed = capsys.readouterr().out
    failures = json.loads(figures.read_text())["failures"]
    twice = [each for each in failures if each["rule"] == "G2"]
    assert {each["state"].split(": ")[1] for each in twice} == {
        "M delivers M:n..n, some of it again"
    }
    assert len(twice) <= 5  # one for each phase of a run
    stored = spark.read.parquet(str(tmp_path / "runs")).collect()
    failing = [row for row in stored if row.violations]
    assert max(each["runs"] for each in twice) > 1
    assert sum(each["runs"] for each in twice) >= len(failing)
    # The shortest run is the one that is shown.
    worst = twice[0]
    shown = next(row for row in failing if row.seed == worst["seed"])
    assert f"  {worst['replay']}\n" in printed
    assert worst["replay"] == (
        f"ringcast replay --protocol multicast --seed {shown.seed} --set messages=3 --set loss=0.05"
    )
    again = CliRunner().invoke(replay, worst["replay"].split()[2:], obj=broken)
    assert again.exit_code == 1
    assert f"trace {shown.trace_hash[:16]}" in again.output
    # Traces are kept of failures only, and the audit says the same of them.
    kept = {row.kept: row for row in stored if row.kept}
    assert all(row.violations for row in kept.values())
    assert 0 < len(kept) <= len(failing)
    reports = audit_all(spark, tmp_path / "failures")
    assert {f"failures/{report.run_id}" for report in reports} == set(kept)
    for report in reports:
        row = kept[f"failures/{report.run_id}"]
        (verdict,) = (each for each in report.verdicts if each.id == verdict_id("G2"))
        assert verdict.violation_count == row.judged["G2"].violations > 0


def test_what_never_had_a_case_fails_the_fleet(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_fleet(spark, Fleet(seeds=range(3, 4), points=SMALL[:1])) == 1
    printed = capsys.readouterr()
    assert "never had a case" in printed.out
    assert re.search(r"^messages=3 loss=0 +1 +0 +0 ", printed.out, re.M)
    assert printed.out.splitlines()[-1].startswith("1 run · 0 violations · ")
    assert printed.err.startswith("1 run in 1 task …\n")


def test_tasks_are_many_enough_for_every_core(spark: SparkSession) -> None:
    assert tasks_for(spark, Fleet(seeds=range(3), points=SMALL)) == 6
    assert tasks_for(spark, Fleet(seeds=range(50), points=SMALL)) == 8
    assert tasks_for(spark, Fleet(seeds=range(10**6), points=SMALL)) > 100


@pytest.mark.proof
def test_few_traces_of_a_task_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(
        seeds=range(12), points=SMALL[:1], out=str(tmp_path), node_factory=delivers_twice()
    )
    rows = fleet_rows(spark, fleet, 1).collect()
    assert sum(row.violations > 0 for row in rows) > KEPT_PER_TASK
    assert sum(row.kept != "" for row in rows) == KEPT_PER_TASK
    assert len(list((tmp_path / "failures").iterdir())) == KEPT_PER_TASK


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--grid loss=0", "go with --spark"),
        ("--spark --jobs 2", "do not go with --spark"),
        ("--spark --grid size=1", "names are capacity"),
        ("--spark --grid loss=2", "loss=2: a number from 0 to 0.9"),
        ("--spark --grid loss=0 --grid loss=0.1", "loss is set twice"),
        (f"--spark --seeds {2**63}", "seeds of a fleet"),
    ],
)
def test_mistakes_are_told_before_spark_starts(args: str, words: str) -> None:
    result = CliRunner().invoke(main, ["simulate", *args.split()])
    assert result.exit_code == 2
    assert words in result.output
    assert "Spark …" not in result.output


def test_an_old_fleet_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    result = CliRunner().invoke(main, ["simulate", "--spark", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "choose another directory" in result.output
    (tmp_path / "file").touch()
    result = CliRunner().invoke(
        main, ["simulate", "--spark", "--out", str(tmp_path / "file" / "x")]
    )
    assert result.exit_code == 2
    assert "Not a directory" in result.output
