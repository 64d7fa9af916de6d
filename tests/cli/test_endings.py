"""How commands end that cannot go on, without what they need or by Ctrl-C; how far they are."""

from __future__ import annotations

import os
import pty
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


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("replay --seed 1 --limit 0", "running seed 1"),
        ("simulate --economy 2", "measured: acks"),
        ("bench ring --elements 200", "measured: 200"),
        ("explore ring --scenario A", "exploring 1 of 1: A"),
    ],
)
def test_who_watches_a_long_command_sees_how_far_it_is(command: str, note: str) -> None:
    screen, theirs = pty.openpty()
    subprocess.run(
        [*COMMAND, *command.split()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        timeout=DEADLINE_S,
        check=True,
    )
    os.close(theirs)
    assert note in os.read(screen, 10_000).decode()
    os.close(screen)


@pytest.mark.parametrize(
    ("command", "begun"),
    [
        ("simulate --seeds 0:1000 --record traces", "seed-0"),
        ("simulate --seeds 0:1000 --jobs 2 --record traces", "seed-0"),
        ("bench join --transport udp", "measuring udp"),
        ("demo --quick", "1. Four processes"),
    ],
)
def test_ctrl_c_ends_with_one_line(command: str, begun: str, tmp_path: Path) -> None:
    """A terminal sends it to all processes of a command."""
    traces, said, told = tmp_path / "traces", tmp_path / "out", tmp_path / "err"
    traces.mkdir()
    with said.open("w") as out, told.open("w") as err:
        process = subprocess.Popen(
            [*COMMAND, *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=tmp_path,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        until(
            lambda: " ".join([said.read_text(), told.read_text(), *map(str, traces.iterdir())]),
            begun,
        )
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert status == 130
    lines = told.read_text().splitlines()
    assert lines[-1] == "ringcast: interrupted"
    assert not any("Traceback" in line for line in lines)
