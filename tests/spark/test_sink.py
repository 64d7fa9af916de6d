"""The sink: rows of tables and streams into a group, each once at every member."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import _parse_datatype_string
from sink_driver import publish

from ringcast import MembershipConfig, blocking
from ringcast.errors import UsageError
from ringcast.model import Stream
from ringcast.spark import register
from ringcast.spark.session import stop_group
from ringcast.spark.sink import SinkOptions, start_publisher
from ringcast.trace.staging import Staging
from ringcast.wire.headers import split_headers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringcast import Message

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "howto" / "publish.md"
RINGCAST = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")
DEADLINE_S = 500.0
LOOK_S = 0.005
ROWS = 400
PATIENT = MembershipConfig(suspect_after_s=600.0)
"""Who is killed refuses datagrams; nobody is to be missed because the machine is busy."""


@pytest.fixture
def staging(spark: SparkSession, tmp_path: Path) -> Staging:
    register(spark)
    return Staging(tmp_path / "staged")


def staged(staging: Staging) -> dict[int, list[list[bytes]]]:
    """What is in each batch that waits, by partition."""
    return {
        number: [
            list(chain.from_iterable(messages for _, messages, _, _ in staging.messages(name)))
            for name in json.loads(path.read_text())
        ]
        for number, path in staging._manifests()
    }


def test_a_table_is_staged_in_order_and_each_write_is_a_batch(
    spark: SparkSession, staging: Staging
) -> None:
    rows = spark.range(100).repartition(3).sortWithinPartitions("id")
    rows = rows.selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS payload")
    writer = rows.write.format("ringcast").option("publisherId", "p").mode("append")
    writer.save(str(staging.path))
    writer.save(str(staging.path))
    found = staged(staging)
    assert found.keys() == {0, 1}
    for partitions in found.values():
        numbers = [[int(message) for message in partition] for partition in partitions]
        assert len(numbers) == 3
        assert numbers == [sorted(partition) for partition in numbers]
        assert sorted(chain.from_iterable(numbers)) == list(range(100))


def test_the_example_of_the_page_stages_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "files"))
    readings = spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "files"))
    names = {"spark": spark, "readings": readings}
    exec(program.replace('"alerts/', f'"{tmp_path}/alerts/'), names)
    query: Any = names["query"]
    query.processAllAvailable()
    query.stop()
    ((partition,),) = staged(Staging(tmp_path / "alerts" / "staged")).values()
    about = {"content-type": "application/json"}
    assert list(map(split_headers, partition)) == [(about, b'{"id":%d}' % n) for n in range(3)]


def test_rows_say_how_they_are_sent_and_to_whom(spark: SparkSession, staging: Staging) -> None:
    rows = spark.sql("""
        SELECT CAST(concat(coalesce(to, '*'), ' ', coalesce(how, '')) AS BINARY) AS payload,
               to, how AS guarantee, map('n', '1') AS headers
        FROM VALUES (NULL, NULL), (NULL, 'uniform'), (NULL, 'plain'), ('a', NULL), ('a', 'plain'),
                    ('b', 'fifo'), (NULL, 'total') AS v (to, how)
    """).coalesce(1)
    writer = rows.write.format("ringcast").option("publisherId", "p").mode("append")
    writer.save(str(staging.path))
    batch = staging.next_batch(0)
    assert batch is not None
    found = [
        (first, [split_headers(message)[1] for message in messages], stream, to)
        for first, messages, stream, to in staging.messages(*batch.files)
    ]
    assert found == [
        (0, [b"* ", b"* uniform"], Stream.UNIFORM, ""),
        (2, [b"* plain"], Stream.FIFO, ""),
        (3, [b"a ", b"a plain"], Stream.FIFO, "a"),
        (5, [b"b fifo"], Stream.FIFO, "b"),
        (6, [b"* total"], Stream.TOTAL, ""),
    ]


MISTAKES = [
    ("payload BINARY", {}, "a publisher needs a name"),
    ("payload BINARY", {"publisherId": "p", "publiser": "x"}, "no option publiser"),
    ("payload BINARY", {"publisherId": "x" * 65}, "1 to 64 bytes of printable text"),
    ("payload BINARY", {"publisherId": "p", "stagedBytes": "0"}, "a number of bytes, not '0'"),
    (
        "payload BINARY, tu STRING",
        {"publisherId": "p"},
        "no column 'tu': columns are payload binary, ",
    ),
    ("to STRING", {"publisherId": "p"}, "the column payload is missing: columns are .*to string"),
    ("payload STRING", {"publisherId": "p"}, r"payload is string: .* CAST\(payload AS BINARY\)"),
    ("payload BINARY, to INT", {"publisherId": "p"}, "the column to is int: it has to be string"),
    (
        "payload BINARY, headers MAP<STRING, INT>",
        {"publisherId": "p"},
        r"headers is map<string,int>: it has to be map<string,string>",
    ),
]


@pytest.mark.parametrize(("columns", "options", "words"), MISTAKES)
def test_mistakes_are_told(
    spark: SparkSession, columns: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        SinkOptions.parse({"path": "staged", **options}, _parse_datatype_string(columns))


ROWS_THAT_FAIL = [
    ("CAST(NULL AS BINARY) AS payload", "NULL cannot be sent"),
    ("payload, map('k', repeat('x', 990)) AS headers", "1024 at most"),
    ("payload, 'all' AS guarantee", "guarantee is plain, uniform or total, .* not 'all'"),
    ("payload, '' AS to", "the name of a member, or NULL for all; not ''"),
    ("payload, 'a' AS to, 'total' AS guarantee", "a row to 'a' alone cannot be total"),
]


@pytest.mark.parametrize(("columns", "words"), ROWS_THAT_FAIL)
def test_rows_that_cannot_be_sent_fail_their_task_and_leave_nothing(
    spark: SparkSession, staging: Staging, columns: str, words: str
) -> None:
    rows = spark.sql(f"SELECT {columns} FROM (SELECT CAST('x' AS BINARY) AS payload)")
    writer = rows.write.format("ringcast").option("publisherId", "p").mode("append")
    with pytest.raises(Exception, match=words):  # whatever Spark makes of it
        writer.save(str(staging.path))
    assert list(staging.path.glob("batch-*")) == []
    assert list(staging.files.iterdir()) == []


def test_a_batch_that_spark_hands_out_again_is_staged_once(
    spark: SparkSession, staging: Staging, tmp_path: Path
) -> None:
    """As if the driver had died when it had staged the last batch, and before it knew that."""
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()
    for batch in range(2):
        rows = {"payload": [b"%d.%d" % (batch, row) for row in range(10)]}
        file = files / f"{batch}.parquet"
        pq.write_table(pa.table(rows), file)
        os.utime(file, (batch, batch))  # Spark takes the oldest first
    arguments = [str(files), str(staging.path), str(checkpoint)]
    for _ in range(2):
        assert publish(spark, *arguments).awaitTermination(DEADLINE_S)
        found = [sorted(chain(*partitions)) for _, partitions in sorted(staged(staging).items())]
        assert found == [[b"%d.%d" % (batch, row) for row in range(10)] for batch in range(2)]
        (checkpoint / "commits" / "1").unlink()
        (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)


# Whole ways


class Story:
    """A group with two members that read, a publisher and a driver that are killed."""

    def __init__(self, directory: Path, batches: int) -> None:
        self.directory = directory
        self.files = directory / "files"
        self.staging = Staging(directory / "staged")
        self.got: dict[str, list[Message]] = {"a": [], "b": []}
        self._processes = ExitStack()
        self.files.mkdir()
        headers = pa.map_(pa.string(), pa.string())
        for batch in range(batches):
            table = {
                "payload": pa.array([b"%d.%d" % (batch, row) for row in range(ROWS)]),
                "headers": pa.array([[("row", str(row))] for row in range(ROWS)], headers),
            }
            pq.write_table(pa.table(table), self.files / f"{batch:03d}.parquet")
        self.expected = Counter(b"%d.%d" % (n, row) for n in range(batches) for row in range(ROWS))

    def __enter__(self) -> Story:
        for name in self.got:
            group = self._processes.enter_context(
                blocking.join("rows", name=name, membership=PATIENT)
            )
            threading.Thread(target=self._read, args=(group, name), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def _read(self, group: blocking.Group, name: str) -> None:
        for message in group:
            self.got[name].append(message)
            time.sleep(0.0005)

    def start_publisher(self) -> subprocess.Popen[str]:
        command = (*RINGCAST, "publish", str(self.staging.path), "rows")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
        self._processes.callback(process.wait)
        self._processes.callback(process.kill)
        return process

    def start_driver(self) -> subprocess.Popen[str]:
        arguments = [str(self.directory / name) for name in ("files", "staged", "checkpoint")]
        process = subprocess.Popen(
            [sys.executable, str(HERE / "sink_driver.py"), *arguments, "local[2]", "1000000", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._processes.callback(stop_group, process)
        return process

    def wait(self, what: str, process: subprocess.Popen[str] | None = None) -> None:
        """Until there is one more file of this kind than there was; or the process has ended."""
        before = set(self.directory.glob(what))
        deadline = time.monotonic() + DEADLINE_S
        while not set(self.directory.glob(what)) - before:
            assert time.monotonic() < deadline, what
            if process is not None and process.poll() is not None:
                return
            time.sleep(LOOK_S)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while min(map(len, self.got.values())) < count:
            assert time.monotonic() < deadline, {who: len(got) for who, got in self.got.items()}
            time.sleep(0.05)

    def check(self) -> None:
        """Each once at each member, with its headers, and no member has another order."""
        self.wait_for(self.expected.total())
        time.sleep(1)
        for got in self.got.values():
            assert Counter(message.payload for message in got) == self.expected
            rows = [message.payload.decode().split(".")[1] for message in got]
            assert [message.headers["row"] for message in got] == rows
            assert {message.guarantee for message in got} == {"uniform"}
            batches = [message.payload.split(b".")[0] for message in got]
            assert Counter(batch for batch, _ in groupby(batches)).total() == len(set(batches))


KILL_AT = ("staged/staged/*.parquet", "staged/batch-*.json", "checkpoint/commits/*")
"""What shows that a task has staged, that a batch is committed, that the stream knows it."""


def check_kills(
    spark: SparkSession, directory: Path, *, batches: int, points: list[str], publishers: int
) -> None:
    dice = random.Random(7)
    with Story(directory, batches) as story:
        for point in points:
            driver = story.start_driver()
            story.wait(point, driver)
            stop_group(driver)
        publisher = story.start_publisher()
        for number in range(1, publishers + 1):
            story.wait_for(min(number * ROWS // 4, story.expected.total() // 3))
            time.sleep(dice.uniform(0, 0.2))
            publisher.send_signal(signal.SIGKILL)
            publisher.wait()
            publisher = story.start_publisher()
        arguments = [str(directory / name) for name in ("files", "staged", "checkpoint")]
        assert publish(spark, *arguments).awaitTermination(DEADLINE_S)
        story.check()
        deadline = time.monotonic() + DEADLINE_S
        while story.staging.progress().through < batches - 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        publisher.terminate()
        assert publisher.wait() == 0


@pytest.mark.proof
def test_a_driver_and_a_publisher_are_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    check_kills(spark, tmp_path, batches=3, points=["staged/batch-*.json"], publishers=2)


@pytest.mark.proof
def test_six_drivers_and_eight_publishers_are_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    check_kills(spark, tmp_path, batches=12, points=[*KILL_AT, *KILL_AT], publishers=8)


def test_the_stream_waits_while_too_much_is_staged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the sink starts a publisher where none works."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Story(tmp_path, 2) as story:
        arguments = [str(tmp_path / name) for name in ("files", "staged", "checkpoint")]
        query = publish(spark, *arguments, stagedBytes=1)
        story.wait("staged/batch-*.json")
        time.sleep(1)
        assert len(list(story.staging.path.glob("batch-*.json"))) == 1  # the second has to wait
        assert query.isActive
        options = SinkOptions(str(story.staging.path), "rows", "rows")
        try:
            start_publisher(options)
            story.wait_for(1)
            start_publisher(options)  # one works there
            assert query.awaitTermination(DEADLINE_S)
            story.check()
            assert len(publishers(story.staging.path)) == 1
        finally:
            for pid in publishers(story.staging.path):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def publishers(staging: Path) -> list[int]:
    """The processes that work in this directory."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if b"publish" in words and str(staging).encode() in words:
                found.append(int(place.name))
    return found
