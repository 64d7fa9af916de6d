"""The notebook of examples/ runs from top to bottom, and was saved without what it printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "chart.ipynb"

CHECK = """
assert sum(chart.values) > 0, chart.values
print("CHART", chart._repr_svg_())
"""


def code() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_was_saved_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len(cells) == 7
    for cell in cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    for source in code():
        compile(source, str(NOTEBOOK), "exec")


@pytest.mark.proof
def test_the_notebook_ends_with_a_chart(tmp_path: Path) -> None:
    """In a process of its own: it ends Spark, which other tests go on with."""
    program = tmp_path / "chart.py"
    program.write_text("\n\n".join([*code(), CHECK]))
    places = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **places},
    )
    assert done.returncode == 0, done.stderr
    assert "|coffee|" in done.stdout
    (drawn,) = [line for line in done.stdout.splitlines() if line.startswith("CHART ")]
    bars = ET.fromstring(drawn.removeprefix("CHART ")).findall("{*}rect")
    assert len(bars) >= 5
    assert all(float(bar.attrib["height"]) >= 0 for bar in bars)
