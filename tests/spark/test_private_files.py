"""What Spark makes of traces is for whom the traces are: for their owner alone, if nobody says
more, whatever the umask of those who run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.spark import session as sessions
from ringcast.spark.follow import follow
from ringcast.trace.segments import write_trace_segments
from support.modes import PRIVATE, modes_below, umask

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_traces import Traces
    from pyspark.sql import SparkSession


def test_the_state_of_a_follower_is_its_owners_alone(
    spark: SparkSession, recorded: Traces, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with umask(0):
        write_trace_segments(home / "traces", "run", recorded.all_rows())
        list(follow(spark, home / "traces", every_s=None))
    assert modes_below(home) == PRIVATE
    names = {path.name for path in home.rglob("*")}
    assert {"offsets", "summaries", "lock"} <= names


def test_what_a_session_writes_is_its_owners_alone(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(10).selectExpr("id % 2 AS part", "id")
    frame.write.partitionBy("part").parquet(str(tmp_path / "table"))
    assert modes_below(tmp_path / "table") == PRIVATE


@pytest.mark.parametrize(("mode", "mask"), [("", "077"), ("640", "027"), ("660", "007")])
def test_a_session_is_told_for_whom_files_are(
    monkeypatch: pytest.MonkeyPatch, mode: str, mask: str
) -> None:
    monkeypatch.setenv("RINGCAST_FILE_MODE", mode)
    conf = sessions._conf("test", "local[1]")
    assert conf.get("spark.hadoop.fs.permissions.umask-mode") == mask
    assert conf.get("spark.executorEnv.RINGCAST_FILE_MODE") == (mode or "600")
