"""ringcast demo: survivors and Spark have the same orders; and the whole of it, as it is shown."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ringcast.cli import main
from ringcast.cli.demo import REPEATED, _plant_duplicate
from ringcast.cli.demo_market import Market, Revenue
from ringcast.spark.audit import audit

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from cluster_traces import Traces
    from pyspark.sql import SparkSession

DEADLINE_S = 120.0


@pytest.mark.proof
def test_a_stream_adds_up_to_what_survivors_have(spark: SparkSession, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with Market(tmp_path, trace, loss=0.05, seed=1) as market:
        market.open()
        deadline = time.monotonic() + DEADLINE_S
        while any(len(totals) < 4 for totals in market.totals()):  # a look is a round trip
            assert time.monotonic() < deadline
        market.kill()
        market.close()
        assert market.traders == ["m0", "m1"]
        first, second = market.totals()
        market.end_archive()
        revenue = Revenue(spark, trace, tmp_path / "checkpoint")
        assert revenue.await_orders() > 0
        revenue.finish()
        heard: list[tuple[datetime, int, int]] = []
        market.hear_of(revenue, lambda *sums: heard.append(sums))
        assert market.traders == ["m0", "m1"]
    plain_of_killed = ("m2", "fifo")
    for totals in (first, second):
        assert totals.pop(plain_of_killed)[0] > 0
    assert first == second
    assert first.keys() == {("m0", "fifo"), ("m1", "fifo"), ("m3", "uniform")}
    windows = revenue.by_time()
    assert [(f"{since:%T}", *sums) for since, *sums in heard] == [
        (f"{since:%T}", *sums) for since, *sums in windows
    ]
    found = revenue.by_sender()
    assert sum(orders for orders, _ in found.values()) == sum(orders for _, orders, _ in windows)
    assert sum(cents for _, cents in found.values()) == sum(cents for *_, cents in windows)
    found.pop(plain_of_killed)
    assert found == first


def test_the_repeat_that_is_planted_is_found_by_what_the_demo_expects(
    recorded: Traces, tmp_path: Path
) -> None:
    (tmp_path / "trace").mkdir()
    recorded.copy().write(tmp_path / "trace")
    _plant_duplicate(tmp_path / "trace", tmp_path / "planted")
    verdicts = audit(None, tmp_path / "planted").verdicts
    assert [verdict.id for verdict in verdicts if verdict.violations] == REPEATED


def test_what_was_kept_is_not_mixed_with_another_run(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    result = CliRunner().invoke(main, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path} is not empty: name a new directory" in result.output


@pytest.mark.proof
def test_the_whole_demo(tmp_path: Path) -> None:
    keep = tmp_path / "run"
    command = [sys.executable, "-m", "ringcast", "demo", "--keep", str(keep)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\d+)\. ", done.stdout, re.M) == [str(n) for n in range(1, 11)]
    assert "Of m0, m1, m3 Spark has the same orders and revenue as the survivors." in done.stdout
    _, by_spark, by_member, _ = re.split(r"^(?=[678]\. )", done.stdout, flags=re.M)
    sums = [
        re.findall(r"(\d\d:\d\d:\d\d) +(\d+) for +(.+)$", each, re.M)
        for each in (by_spark, by_member)
    ]
    assert sums[0]
    assert sums[0] == sums[1]
    clean, planted = done.stdout.split("9. ")
    (verdict,) = re.findall(r"^G2 N2 .* (ok|violated) ", clean, re.M)
    assert verdict == "ok"
    (verdict,) = re.findall(r"^G2 N2 .* (ok|violated) ", planted, re.M)
    assert verdict == "violated"
    assert re.search(r"^G2 N2: (\S+) delivers .* again\n    \1 row \d+: deliver", planted, re.M)
    assert done.stdout.endswith(f"10. The run as a page, with charts:\n   {keep / 'report.html'}\n")
    assert "orders" in (keep / "report.html").read_text()
