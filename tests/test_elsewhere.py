"""On systems other than Linux: what works there, and one line where something does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ELSEWHERE = Path(__file__).resolve().parent / "support" / "elsewhere.py"
SYSTEMS = ["darwin", "win32"]

COMMANDS = """
import sys
from click.testing import CliRunner
from ringcast.cli import main

for command in sys.argv[1:]:
    result = CliRunner().invoke(main, command.split())
    print(result.exit_code, result.output.splitlines()[-1])
"""
CLUSTER = """
import asyncio, ringcast, ringcast.testing

async def app(group):
    await group.send(b"x")
    async for message in group:
        pass

with ringcast.testing.cluster(3, seed=1, loss=0.1) as c:
    c.start(app)
    c.run(asyncio.sleep(5))
    print(c.members[0].group.view)
"""
JOINS = """
import asyncio, ringcast

async def main():
    async with ringcast.join("orders", **options):
        pass

for options in ({}, {"key": "orders.key"}, {"insecure": True, "members": ["127.0.0.1:7800"]}):
    try:
        asyncio.run(main())
    except ringcast.UsageError as error:
        print(error)
try:
    with ringcast.blocking.join("orders"):
        pass
except ringcast.UsageError as error:
    print(error)
"""


def there(system: str, folder: Path, program: str, *arguments: str) -> str:
    """What a program prints on such a system."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, ELSEWHERE, system, folder / "program.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(system: str) -> str:
    audit = ", audit" if system == "darwin" else ""
    return (
        f"members of real groups need Linux, and this is {system}: ringcast.testing works here, "
        f"and so do ringcast simulate, replay, explore{audit}"
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_application_is_tested_anywhere(system: str, tmp_path: Path) -> None:
    assert there(system, tmp_path, CLUSTER).partition(":")[2] == " m0, m1, m2\n"


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_group_is_simulated_and_explored_anywhere(system: str, tmp_path: Path) -> None:
    commands = ("replay --seed 3", "explore ring --scenario A")
    replayed, explored = there(system, tmp_path, COMMANDS, *commands).splitlines()
    assert replayed.startswith("0 seed 3 · 0 violations"), replayed
    assert explored.startswith("0 "), explored
    assert explored.endswith("no violation"), explored


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_join_says_what_works_there(system: str, tmp_path: Path) -> None:
    assert there(system, tmp_path, JOINS) == 4 * f"{refusal(system)}\n"


@pytest.mark.parametrize("system", SYSTEMS)
def test_so_do_commands(system: str, tmp_path: Path) -> None:
    commands = ("join orders", "health orders", "top orders", "demo --quick", "keygen orders.key")
    output = there(system, tmp_path, COMMANDS, *commands)
    assert output == len(commands) * f"2 ringcast: {refusal(system)}\n"


def test_what_needs_files_of_unix_says_so_on_windows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs ringcast[spark]")
    output = there("win32", tmp_path, COMMANDS, "simulate --seeds 0:1 --record traces")
    assert output == "2 ringcast: this works on Unix alone: win32 has no fcntl\n"
