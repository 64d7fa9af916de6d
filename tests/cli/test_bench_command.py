"""ringcast bench: in a checkout from any directory, and where the library was installed alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringcast.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("words", [["bench", "codec"], ["bench", "codec", "--help"]])
def test_without_the_repository_it_says_where_benchmarks_are(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringcast.cli.BENCHMARKS", tmp_path / "table.py")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        "ringcast: benchmarks come with the repository: run this in a checkout of it"
    ]
    listed = CliRunner().invoke(main, ["--help"])
    assert (listed.exit_code, "bench " in listed.output) == (0, False)
    said = CliRunner().invoke(main, ["bench", "--help"])
    assert said.exit_code == 0
    assert "comes with the repository" in said.output


def test_a_checkout_needs_nothing_but_its_source(tmp_path: Path) -> None:
    options = ["--members", "2", "--seconds", "0.02", "--runs", "1", "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ringcast", "bench", "multicast", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["lost"], row["failed"]) == (0, None)
    assert row["ceiling_mb_per_s"] > 0
