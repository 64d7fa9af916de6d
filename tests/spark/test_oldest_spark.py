"""The oldest PySpark that ringcast[spark] admits: archives as tables, tables that are staged for a
group, the audit and its page; of a stream it says what that needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

pyspark = pytest.importorskip("pyspark", reason="needs ringcast[spark]")
FOUND = pyspark.__version__
if not FOUND.startswith("4.0."):
    pytest.skip("`make proof` has it where only this test sees it", allow_module_level=True)

from pyspark.errors import PySparkException  # noqa: E402 (as the following: they need pyspark)

from ringcast.model import Stream  # noqa: E402
from ringcast.spark import register  # noqa: E402
from ringcast.trace.staging import Staging  # noqa: E402
from ringcast.wire.headers import split_headers  # noqa: E402
from support.archives import APP, WEB, WEB_UNIFORM, Kept, payload, write_file  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_traces import Traces
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.proof


@pytest.fixture
def archive(tmp_path: Path, spark: SparkSession) -> str:
    """Two replicas, of which each alone has a gap."""
    register(spark)
    directory = tmp_path / "archive"
    write_file(directory, "one", 0, [Kept(WEB, 1, 40), Kept(WEB_UNIFORM, 1, 8)])
    write_file(directory, "two", 0, [Kept(WEB, 30, 60), Kept(APP, 1, 20)])
    return str(directory)


def test_an_archive_is_a_table(spark: SparkSession, archive: str) -> None:
    messages = spark.read.format("ringcast").load(archive)
    found = Counter(
        (row.sender, row.stream, row.seqno, bytes(row.payload)) for row in messages.collect()
    )
    assert found == Counter(
        (sender, ("fifo", "uniform")[stream], seqno, payload((sender, inc, stream), seqno))
        for (sender, inc, stream), last in ((WEB, 60), (WEB_UNIFORM, 8), (APP, 20))
        for seqno in range(1, last + 1)
    )
    chosen = messages.where("sender = 'web' AND stream IN ('uniform', 'other') AND seqno > 2")
    assert chosen.count() == 6
    counts = messages.groupBy("sender").count().collect()
    assert {row["sender"]: row["count"] for row in counts} == {"web": 68, "app/1#2": 20}
    one = spark.read.format("ringcast").option("sender", "app/1#2").load(archive)
    assert one.count() == 20


def test_a_stream_says_what_it_needs(spark: SparkSession, archive: str) -> None:
    stream = spark.readStream.format("ringcast").option("query", "copy").load(archive)
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=f"a stream needs PySpark 4.2 .* this is {FOUND}"):
        query.awaitTermination(60)


def test_a_table_is_staged_for_a_group(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    rows = spark.range(100).coalesce(1)
    rows = rows.selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS payload", "map('k', 'v') AS headers"
    )
    writer = rows.write.format("ringcast").option("publisherId", "p").mode("append")
    writer.save(str(tmp_path))
    staging = Staging(tmp_path)
    batch = staging.next_batch(0)
    assert batch is not None
    ((_, messages, stream, to),) = staging.messages(*batch.files)
    assert (stream, to) == (Stream.UNIFORM, "")
    assert [*map(split_headers, messages)] == [({"k": "v"}, b"%d" % id) for id in range(100)]


def test_a_stream_to_a_group_says_what_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    rows = spark.readStream.format("rate").load().selectExpr("CAST('x' AS BINARY) AS payload")
    writer = rows.writeStream.format("ringcast").option("publisherId", "p")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=f"a stream needs PySpark 4.2 .* this is {FOUND}"):
        writer.start(str(tmp_path / "staged")).awaitTermination(60)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringcast", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_so_does_the_demo() -> None:
    done = run("demo")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line == f"ringcast: a stream needs PySpark 4.2 or newer, and this is {FOUND}"


def test_the_audit_finds_and_draws_a_delivery_that_is_written_twice(
    traces: Traces, tmp_path: Path
) -> None:
    traces.rows["b"].insert(40, traces.rows["b"][39])
    traces.number("b")
    traces.write(tmp_path / "traces")
    page, verdicts = tmp_path / "run.html", tmp_path / "verdicts.json"
    done = run("audit", tmp_path / "traces", "--report", page, "--json", verdicts)
    assert done.returncode == 1, done.stderr
    found = {each["id"]: each["verdict"] for each in json.loads(verdicts.read_text())["verdicts"]}
    assert [name for name in found if found[name] == "violated"] == ["G2 N2", "VS3"]
    assert f"pyspark {FOUND}" in page.read_text()
