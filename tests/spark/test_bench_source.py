"""ringcast bench source: in a process of its own, as it ends its session."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

COMMAND = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")


@pytest.mark.proof
def test_it_measures_what_it_says() -> None:
    options = ("--messages", "50000", "--size", "10", "--step", "5000", "--json")
    done = subprocess.run(
        [*COMMAND, "bench", "source", *options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["messages"] == 50_000
    assert report["rows_per_s"] > 0
    assert report["cpu_s"] > 0
    assert report["ceiling_rows_per_s"] > 0
    rate, output = report["aims"]
    assert rate["verdict"] == ("met" if report["rows_per_s"] >= 2_000_000 else "missed")
    assert output["verdict"] == ("met" if report["output_median_ms"] <= 1000 else "missed")
    assert 200 < report["output_median_ms"] <= report["output_max_ms"]
    for name in ("keys", "last_tenth", "time_tenth", "time_keys"):
        assert 0 < report[f"{name}_mb"] < report["all_mb"]
    assert report["plain_rows_per_s"] > report["rows_per_s"]
    assert report["steps"] >= 5
    assert report["step_median_ms"] > 0


def test_nothing_to_measure_is_refused() -> None:
    from click.testing import CliRunner

    from ringcast.cli import main

    result = CliRunner().invoke(main, ["bench", "source", "--messages", "0"])
    assert result.exit_code == 2
    assert "at least 1" in result.output
