"""ringcast bench sink: in a process of its own, as it ends its session."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

COMMAND = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")


@pytest.mark.proof
def test_it_measures_what_it_says() -> None:
    options = ("--messages", "20000", "--size", "20", "--conf", "spark.master=local[1]", "--json")
    done = subprocess.run(
        [*COMMAND, "bench", "sink", *options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert (report.pop("messages"), report.pop("size")) == (20_000, 20)
    assert len(report) == 7
    assert min(report.values()) > 0
    assert report["ratio"] == pytest.approx(
        report["rows_per_s"] / report["parquet_rows_per_s"], abs=0.02
    )


def test_nothing_to_measure_is_refused() -> None:
    from click.testing import CliRunner

    from ringcast.cli import main

    result = CliRunner().invoke(main, ["bench", "sink", "--messages", "0"])
    assert result.exit_code == 2
    assert "at least 1" in result.output
