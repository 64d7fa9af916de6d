"""ringcast bench audit: traces as a cluster writes them, and two that judge them alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.audit import Disagreement, ask, check_plants, measure
from benchmarks.audit_sql import ALL
from benchmarks.audit_traces import SKEWED, write_traces
from ringcast.cli import main
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

QUIET = ("--conf", "spark.log.level=ERROR")
COMMAND = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")


@pytest.mark.proof  # the command does that first, too
def test_spark_and_duckdb_find_what_is_planted(spark: SparkSession, tmp_path: Path) -> None:
    check_plants(spark, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_measured_is_what_was_written(spark: SparkSession, tmp_path: Path) -> None:
    traces = write_traces(tmp_path / "traces", 30_000)
    line = measure(spark, traces, runs=1)
    assert line["rows"] == pytest.approx(30_000, rel=0.05)
    assert line["messages"] > 50 * line["rows"]
    assert line["segments"] == len(segment_paths(tmp_path / "traces"))
    assert line["rows_per_s"] == pytest.approx(line["rows"] / line["seconds"], rel=0.01)
    assert line["core_ratio"] == pytest.approx(line["duckdb_core_s"] / line["seconds"], rel=0.05)
    assert line["peak_mb"] > 100  # a JVM and its workers
    assert line["cpu_s"] > 0
    assert line["shuffled_bytes"] == 0


def test_another_answer_is_told(tmp_path: Path) -> None:
    traces = write_traces(tmp_path / "traces", 4000)
    ask(traces.directory, set())
    with pytest.raises(Disagreement, match="Spark finds VS1 violated and DuckDB nothing"):
        ask(traces.directory, {"VS1"})
    assert "VS1" in ALL


def test_one_sender_has_nearly_all_rows(tmp_path: Path) -> None:
    write_traces(tmp_path / "traces", 40_000, SKEWED)
    peers: Counter[str] = Counter()
    for path in segment_paths(tmp_path / "traces"):
        with Segment(path) as segment:
            peers.update(row.peer for row in segment.iter_rows({"send", "deliver"}))
    assert peers["m0"] > 0.98 * peers.total()


def test_without_duckdb_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    result = CliRunner().invoke(main, ["bench", "audit"])
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        'ringcast: bench audit compares with DuckDB: pip install "ringcast[dev]"'
    ]


@pytest.mark.proof
@pytest.mark.parametrize("small", ["audit --members 2 --segments 1", "fleet --seeds 2"])
def test_spark_is_configured_as_it_is_told(small: str) -> None:
    done = subprocess.run(
        [*COMMAND, "bench", *small.split(), "--conf", "spark.master=nowhere"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1
    assert "Master must either be" in done.stderr


@pytest.mark.proof
def test_the_whole_command() -> None:
    options = ("--rows", "50000", "--rows", "100000", "--runs", "1", *QUIET, "--json")
    done = subprocess.run(
        [*COMMAND, "bench", "audit", *options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(line["senders"], line["on"]) for line in said["rows"]] == [
        ("even", "local[2]"),
        ("one sender", "local[2]"),
        ("even", "local[2]"),
        ("even", "executors: 1"),
        ("even", "executors: 2"),
    ]
    assert len(said["aims"]) == 8
    assert {aim["verdict"] for aim in said["aims"]} <= {"met", "missed"}
    assert said["compared_with"].startswith("DuckDB")
