"""The command line where no script was installed: `python -m ringcast`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "ringcast", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[-1] == version("ringcast")
