"""A stream over an archive, on a cluster that loses executors: each message once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from executor_kills import DEADLINE_S, kill_executor, tell_losses, until
from stream_driver import copy

from ringcast.spark.session import start_standalone, stop_group
from support.archives import APP, WEB, WEB_UNIFORM, Kept, payload, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringcast.trace.rows import OriginKey

DRIVER = Path(__file__).parent / "stream_driver.py"
FILES, MESSAGES, STEP = 40, 3000, 15_000
KILLS = 3


@pytest.mark.proof
def test_executors_are_killed_while_a_stream_reads(spark: SparkSession, tmp_path: Path) -> None:
    origins = (WEB, WEB_UNIFORM, APP)
    for number in range(FILES):
        first, last = number * MESSAGES + 1, (number + 1) * MESSAGES
        kept = [Kept(origin, first, last) for origin in origins]
        for replica in ("one", "two"):
            write_file(tmp_path / "archive", replica, number * len(origins) * MESSAGES, kept)
    places = [str(tmp_path / name) for name in ("archive", "table", "checkpoint")]
    log = tmp_path / "driver.log"
    with start_standalone(workers=2) as cluster, log.open("wb") as said:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), *places, cluster.url, str(STEP)],
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            env={**os.environ, **tell_losses(tmp_path / "conf")},
        )
        try:
            for _ in range(KILLS):
                kill_executor(cluster, driver, log)
            until(lambda: (tmp_path / "checkpoint" / "commits" / "5").exists(), driver)
        finally:
            stop_group(driver)
    assert copy(spark, *places, is_last=True).awaitTermination(DEADLINE_S)
    copied = Counter(map(tuple, spark.read.parquet(places[1]).collect()))
    assert copied == Counter(
        row(origin, seqno) for origin in origins for seqno in range(1, FILES * MESSAGES + 1)
    )


def row(origin: OriginKey, seqno: int) -> tuple[str, str, str, int, str]:
    """What the driver writes of it."""
    name, incarnation, stream = origin
    content = hashlib.sha256(payload(origin, seqno)).hexdigest()
    return name, str(incarnation), ("fifo", "uniform")[stream], seqno, content
