"""ringcast demo --quick: real processes, no Spark, and survivors that agree."""

from __future__ import annotations

import re

from click.testing import CliRunner

from ringcast.cli import main


def test_survivors_agree_without_spark() -> None:
    result = CliRunner().invoke(main, ["demo", "--quick", "--loss", "0.1"])
    assert result.exit_code == 0, result.output
    assert [line[0] for line in result.output.splitlines() if line[0].isdigit()] == list("12345")
    assert "later the view is m0, m1" in result.output
    sums = r"(\d+) for +([\d,.]+) +"
    uniform = re.search(f"m3 +{sums}{sums}the same: it sent uniform", result.output)
    assert uniform is not None
    assert uniform.group(1, 2) == uniform.group(3, 4)


def test_nothing_can_be_kept_of_it() -> None:
    result = CliRunner().invoke(main, ["demo", "--quick", "--keep", "run"])
    assert result.exit_code == 2
    assert "--quick records nothing" in result.output
