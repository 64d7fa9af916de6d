"""Spark on what the simulator records: clean seeds raise no alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.sim.fleet import run_seeds
from ringcast.spark.audit import audit

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NOBODY_NOTICED = "the end of its trace is missing"
"""What is said of a member that crashed so late that no view went on without it."""


def alarms(spark: SparkSession, directory: Path, seeds: range) -> list[tuple[int, str, str]]:
    found = []
    judged = 0
    for summary in run_seeds(seeds, record=directory):
        report = audit(spark, directory / f"seed-{summary.seed}")
        judged += sum(verdict.premises for verdict in report.verdicts)
        found += [
            (summary.seed, verdict.id, verdict.detail)
            for verdict in report.verdicts
            if verdict.status == "violated"
            or not all(why.endswith(NOBODY_NOTICED) for why in verdict.incomplete)
        ]
    assert judged > 100 * len(seeds)
    return found


def test_clean_seeds_raise_no_alarm(spark: SparkSession, tmp_path: Path) -> None:
    assert alarms(spark, tmp_path, range(20)) == []


@pytest.mark.proof
def test_a_hundred_clean_seeds_raise_no_alarm(spark: SparkSession, tmp_path: Path) -> None:
    assert alarms(spark, tmp_path, range(100)) == []
