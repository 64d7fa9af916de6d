"""The command line where no script was installed: `python -m ringcast`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


SLOW = """
import os, signal, sys


class Interrupted:
    def find_spec(self, name, *rest):
        if name == "ringcast.node":
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupted())
from ringcast_command import main
main()
"""
"""Somebody presses Ctrl-C before the command knows what it is to do."""


def test_ctrl_c_may_come_while_modules_are_imported() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "ringcast: interrupted\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"ringcast": "ringcast_command:main"}


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "ringcast", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[-1] == version("ringcast")
