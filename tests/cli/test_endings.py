"""How commands end that cannot go on: without what they need, and by Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from terminals import COMMAND, DEADLINE_S, until

if TYPE_CHECKING:
    from pathlib import Path

BARE = """
import sys
sys.modules.update(dict.fromkeys(("pyspark", "pyarrow", "pandas", "numpy", "duckdb")))
from ringcast.cli import main
main(prog_name="ringcast")
"""
"""ringcast where nothing else is installed."""


@pytest.mark.parametrize(
    "command",
    [
        "audit .",
        "simulate --spark --seeds 0:2",
        "tables show .",
        "bench audit",
        "bench source",
        "bench fleet",
        "demo",
        "join x --record .",
    ],
)
def test_what_needs_spark_says_how_to_get_it(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.rstrip().endswith('pip install "ringcast[spark]"')


def test_ctrl_c_ends_with_one_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "simulate", "--seeds", "0:1000", "--record", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: " ".join(map(str, tmp_path.iterdir())), "seed-0")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert told.splitlines()[-1] == "ringcast: interrupted"
