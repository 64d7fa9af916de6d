"""One bit that is not as it was written, anywhere: nothing is read as something else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs ringcast[spark]")

PROGRAM = Path(__file__).with_name("flips.py")


def flip(directory: Path, seed: int, flips: int, how: str = "sealed") -> dict[str, int]:
    arguments = [str(directory), str(seed), str(flips), how]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr  # less than 0: it was aborted
    found: dict[str, int] = json.loads(done.stdout)
    assert sum(found.values()) == flips
    return found


def test_a_hundred_flips_are_found_and_the_files_named(tmp_path: Path) -> None:
    assert flip(tmp_path, 1, 100) == {"named": 100}


@pytest.mark.proof
def test_five_hundred_flips_are_found_and_the_files_named(tmp_path: Path) -> None:
    assert flip(tmp_path, 2, 500) == {"named": 500}


def test_without_checksums_some_are_read_as_something_else(tmp_path: Path) -> None:
    """So the flips are of a kind that matters."""
    found = flip(tmp_path, 3, 40, "unsealed")
    assert found["other messages"] > 0
