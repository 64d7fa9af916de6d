"""The fuzzer runs every target, and notices what it is there for."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import fuzz  # noqa: E402


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/fuzz.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_two_seconds_of_it_find_no_crash() -> None:
    done = run("--minutes", "0.033", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    _, *lines = done.stdout.splitlines()
    assert len(lines) >= 7
    for line in lines:
        assert line.endswith(" 0 crashes")
        assert int(line.split()[1]) > 0, line


def test_a_crash_is_kept_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fragile(data: bytes) -> None:
        assert b"\xff" not in data

    monkeypatch.setattr(fuzz, "FOUND", tmp_path)
    monkeypatch.setattr(fuzz, "ROOT", tmp_path)
    target = fuzz.Target(fragile, (ValueError,), [b"harmless"])
    dice = random.Random(1)
    while not target.crashes:
        fuzz.step("keys", target, dice)
    (path,) = tmp_path.iterdir()
    assert b"\xff" in path.read_bytes()
    assert f"again: python tools/fuzz.py --replay {path.name}" in capsys.readouterr().out
    replayed = run("--replay", str(path))
    assert replayed.stdout.startswith("refused, as declared: DamagedKey: fuzz, line 1")


def test_inputs_that_take_new_paths_are_kept() -> None:
    from ringcast.wire.envelope import Key

    target = fuzz.Target(lambda data: Key(data[:1] * 32), (), [b"a"])
    dice = random.Random(1)
    for _ in range(2 * fuzz.TRACED):
        fuzz.step("none", target, dice)
    assert target.paths
    assert target.kept == 1
