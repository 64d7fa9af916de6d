"""The source: an archive as a table and as a stream, each message once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import shaky_source
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from shaky_source import LOG, ShakySource

from ringcast.errors import UsageError
from ringcast.spark import register
from ringcast.spark.messages import FileRead, Wanted, read_messages
from ringcast.spark.options import Options
from ringcast.spark.session import start_standalone
from ringcast.spark.source import ArchiveReader
from ringcast.spark.stream import ArchiveStreamReader
from ringcast.trace import sealed
from ringcast.trace.compaction import compact
from ringcast.trace.footer import Recording
from ringcast.trace.retention import Query, prune
from ringcast.trace.rows import DELIVER, Row
from ringcast.trace.segments import Segment, SegmentWriter, segment_paths
from ringcast.wire.headers import encode_headers
from support import shaky_disk
from support.archives import (
    APP,
    RUN,
    WEB,
    WEB_UNIFORM,
    Kept,
    damage,
    payload,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ringcast.trace.rows import OriginKey

LATER = 4e9

STORY = {
    ("one", 0): [Kept(WEB, 1, 40), Kept(WEB_UNIFORM, 1, 8), Kept(APP, 1, 10)],
    ("one", 100): [Kept(WEB, 41, 60), Kept(APP, 11, 14, is_fragment=True), Kept(APP, 15, 20)],
    ("two", 0): [Kept(WEB, 1, 55), Kept(APP, 1, 10), Kept(APP, 11, 14, is_fragment=True)],
    ("two", 100): [Kept(WEB, 56, 60), Kept(WEB_UNIFORM, 1, 8), Kept(APP, 15, 20)],
}
"""What two archives keep: the same, in different files."""

SENT = Counter(
    [(*WEB[:2], "fifo", seqno) for seqno in range(1, 61)]
    + [(*WEB[:2], "uniform", seqno) for seqno in range(1, 9)]
    + [(*APP[:2], "fifo", seqno) for seqno in (*range(1, 11), *range(15, 21))]
)


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for (writer, idx), kept in STORY.items():
        write_file(tmp_path / "archive", writer, idx, kept)
    return tmp_path / "archive"


def keys_of(rows: Iterable[Any]) -> Counter[tuple[str, int, str, int]]:
    """Whose messages, and how often each. What is in them is checked on the way."""
    found: Counter[tuple[str, int, str, int]] = Counter()
    for row in rows:
        stream = ("fifo", "uniform").index(row.stream)
        assert row.payload == payload((row.sender, int(row.incarnation), stream), row.seqno)
        found[row.sender, int(row.incarnation), row.stream, row.seqno] += 1
    return found


def keys(frame: DataFrame) -> Counter[tuple[str, int, str, int]]:
    return keys_of(frame.collect())


def start(
    spark: SparkSession, archive: Path, table: Path, *, once: bool = True, **options: object
) -> StreamingQuery:
    reader = spark.readStream.format("ringcast").option("query", "copy")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    writer = reader.load(str(archive)).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{table}-checkpoint")
    if once:
        writer = writer.trigger(availableNow=True)
    return writer.start(str(table))


def copy(spark: SparkSession, archive: Path, table: Path, **options: object) -> StreamingQuery:
    """All that is there now, in as many steps as it takes."""
    query = start(spark, archive, table, **options)
    query.awaitTermination()
    return query


class OnSpark:
    """Copies an archive into a table, and each time goes on where it was."""

    refusal = PySparkException

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def count(self, archive: Path, **options: str) -> int:
        return self._spark.read.format("ringcast").options(**options).load(str(archive)).count()

    def copy(self, archive: Path, table: Path, **options: object) -> list[dict[str, Any]]:
        """All that is there now; where each step ended."""
        steps = copy(self._spark, archive, table, **options).recentProgress
        return [json.loads(progress.sources[0].endOffset) for progress in steps]

    def keys(self, table: Path) -> Counter[tuple[str, int, str, int]]:
        return keys(self._spark.read.parquet(str(table)))

    def forget_last_step(self, table: Path) -> None:
        """As if the driver had died after offsets were logged, and before anything was written."""
        checkpoint = table.with_name(f"{table.name}-checkpoint")
        logged = [path for path in (checkpoint / "offsets").iterdir() if path.name.isdecimal()]
        last = len(logged) - 1
        for place in (checkpoint / "commits", table / "_spark_metadata"):
            for path in (place / str(last), place / f".{last}.crc"):
                path.unlink()


class InProcess:
    """The same calls of the readers without Spark, which takes a second to each step."""

    refusal = UsageError

    def __init__(self) -> None:
        self._steps: dict[Path, list[tuple[dict[str, Any], list[SimpleNamespace]]]] = {}
        self._logged: dict[Path, dict[str, Any]] = {}

    def count(self, archive: Path, **options: str) -> int:
        reader = ArchiveReader(Options.parse({"path": str(archive), **options}, is_stream=False))
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

    def copy(self, archive: Path, table: Path, **options: object) -> list[dict[str, Any]]:
        said = {"path": str(archive), "query": "copy"}
        said |= {name: str(value) for name, value in options.items()}
        reader = ArchiveStreamReader(Options.parse(said, is_stream=True))
        limit = reader.getDefaultReadLimit()
        steps = self._steps.setdefault(table, [])
        at = steps[-1][0] if steps else reader.initialOffset()
        before = len(steps)
        reader.prepareForTriggerAvailableNow()
        while (end := self._logged.pop(table, None) or reader.latestOffset(at, limit)) != at:
            if steps:
                reader.commit(at)  # of a step Spark tells when the next one begins
            rows = [
                SimpleNamespace(**row)
                for part in reader.partitions(at, end)
                for batch in reader.read(part)
                for row in batch.to_pylist()
            ]
            at = json.loads(json.dumps(end))
            steps.append((at, rows))
        return [end for end, _ in steps[before:]]

    def keys(self, table: Path) -> Counter[tuple[str, int, str, int]]:
        return keys_of(chain.from_iterable(rows for _, rows in self._steps[table]))

    def forget_last_step(self, table: Path) -> None:
        self._logged[table], _ = self._steps[table].pop()


@pytest.fixture(params=["in process", pytest.param("on Spark", marks=pytest.mark.proof)])
def stream(request: pytest.FixtureRequest) -> InProcess | OnSpark:
    if request.param == "in process":
        return InProcess()
    return OnSpark(request.getfixturevalue("spark"))


def test_each_message_is_read_once_as_it_was_sent(spark: SparkSession, archive: Path) -> None:
    messages = spark.read.format("ringcast").load(str(archive))
    assert keys(messages) == SENT
    first = messages.where("sender = 'web' AND stream = 'fifo' AND seqno = 1").first()
    assert first is not None
    assert first.incarnation == str(2**64 - 1)
    assert first.view == 4
    assert first.delivered_at.year == 2001  # ten to the eighteenth nanoseconds


def test_headers_are_a_column(spark: SparkSession, tmp_path: Path) -> None:
    """Also of some messages of a row, and what cannot be read is payload."""
    blocks = (encode_headers({"a": "1", "b": "ä"}), encode_headers(None, "locks", 7), b"\x05no")
    kept = [Kept(WEB, 1, 4), Kept(WEB, 5, 9, blocks=blocks), Kept(WEB, 10, 11)]
    write_file(tmp_path, "one", 0, [*kept, Kept(APP, 1, 6, blocks=blocks[:1])])
    write_file(tmp_path, "two", 0, [kept[0], Kept(WEB, 5, 6, blocks=blocks)])
    messages = spark.read.format("ringcast").load(str(tmp_path))
    rows = {(row.sender, row.seqno): row for row in messages.orderBy("seqno").collect()}
    assert len(rows) == 17
    said = ({"a": "1", "b": "ä"}, {"channel": "locks", "sent_at": "7"}, {})
    for seqno in range(1, 12):
        row, is_headed = rows["web", seqno], 5 <= seqno <= 9
        assert row.headers == (said[seqno % 3] if is_headed else {})
        before = blocks[2] if is_headed and seqno % 3 == 2 else b""
        assert row.payload == before + payload(WEB, seqno)
    assert {str(rows["app/1#2", seqno].headers) for seqno in range(1, 7)} == {str(said[0])}
    assert messages.where("headers['channel'] = 'locks'").count() == 1


def test_filters_on_sender_and_stream_choose_the_files(spark: SparkSession, archive: Path) -> None:
    messages = spark.read.format("ringcast").load(str(archive))
    uniform = messages.where("sender = 'web' AND stream IN ('uniform', 'other') AND seqno > 2")
    assert keys(uniform) == Counter(key for key in SENT if key[2] == "uniform" and key[3] > 2)
    plan = uniform._jdf.queryExecution().executedPlan().toString()
    assert "seqno" in plan.split("Filter", 1)[1]  # left for Spark
    assert "uniform" not in plan  # and this is not
    # A file with none of them may be damaged without anybody noticing.
    for path in segment_paths(archive):
        if path.name.startswith("one") and "100" in path.name:
            damage(path)
    assert keys(messages.where("stream = 'uniform'")) == Counter(
        key for key in SENT if key[2] == "uniform"
    )
    assert messages.where("sender = 'nobody'").count() == 0


@pytest.mark.proof
def test_steps_are_as_large_as_was_asked_for(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    query = copy(spark, archive, tmp_path / "table", maxMessagesPerTrigger=25)
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert max(sizes) <= 25
    assert len(sizes) >= 4
    assert sum(sizes) == SENT.total()
    assert keys(spark.read.parquet(str(tmp_path / "table"))) == SENT


@pytest.mark.proof
def test_files_can_be_counted_too(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    query = copy(spark, archive, tmp_path / "table", maxFilesPerTrigger=1)
    assert len([1 for progress in query.recentProgress if progress.numInputRows]) > 1
    assert keys(spark.read.parquet(str(tmp_path / "table"))) == SENT


def test_a_query_goes_on_where_it_was_and_retention_waits_for_it(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    copy(spark, archive, table)
    # What a query has committed it says when the next step begins: nothing may go before.
    assert prune(archive, LATER).removed == []
    write_file(archive, "one", 200, [Kept(WEB, 61, 70)])
    copy(spark, archive, table)
    assert Query(archive, "copy").committed.digest == {WEB: 60, WEB_UNIFORM: 8, APP: 20}
    assert len(prune(archive, LATER).removed) == 4
    assert [path.name[-20:] for path in segment_paths(archive)] == ["000000000200.parquet"]
    more = Counter((*WEB[:2], "fifo", seqno) for seqno in range(61, 71))
    assert keys(spark.read.parquet(str(table))) == SENT + more
    # Nothing of the others is to come: positions do not grow for ever.
    write_file(archive, "one", 300, [Kept(WEB, 71, 72)])
    query = copy(spark, archive, table)
    assert query.lastProgress is not None
    assert json.loads(query.lastProgress.sources[0].endOffset) == {f"web#{2**64 - 1}/fifo": 72}


@pytest.mark.proof
def test_a_query_that_stops_for_a_day_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Meanwhile senders and archives are started again, files are merged, and old ones would go."""
    archive, table = tmp_path / "archive", tmp_path / "table"
    register(spark)
    began, sent = time.time() - 86_400, Counter[tuple[str, int, str, int]]()
    idx: dict[tuple[str, int], int] = {}
    last: dict[OriginKey, int] = {}
    for hour in range(25):
        origin = "web", 100 + hour // 6, hour % 2
        for minute in range(0, 60, 10):
            first = last.get(origin, 0) + 1
            last[origin] = first + 9
            for replica in ("one", "two"):
                life = replica, 1 + (hour + 6 * (replica == "two")) // 12
                path = write_file(
                    archive,
                    replica,
                    idx.get(life, 0),
                    [Kept(origin, first, first + 9)],
                    incarnation=life[1],
                )
                idx[life] = idx.get(life, 0) + 1 + -(-10 // RUN)  # its view, and runs
                os.utime(path, (began + 3600 * hour + 60 * minute,) * 2)
            stream = ("fifo", "uniform")[origin[2]]
            sent += Counter((*origin[:2], stream, seqno) for seqno in range(first, first + 10))
        if hour == 0:
            copy(spark, archive, table)
            assert keys(spark.read.parquet(str(table))) == sent
        assert compact(archive).merged
        assert prune(archive, began + 3600 * (hour - 1)).removed == []  # the query waits for it
    copy(spark, archive, table, maxMessagesPerTrigger=400)
    assert keys(spark.read.parquet(str(table))) == sent
    assert sent.total() == 25 * 60
    assert prune(archive, LATER).removed


def test_a_gap_is_waited_at_and_passed_over_in_the_offset(
    stream: InProcess | OnSpark, archive: Path, tmp_path: Path
) -> None:
    write_file(archive, "one", 200, [Kept(WEB, 65, 70)])
    table = tmp_path / "table"
    stream.copy(archive, table, gapWaitSeconds=3600)
    assert stream.keys(table) == SENT
    with pytest.raises(stream.refusal, match=r"messages 61\.\.64 of web.*no file has them"):
        stream.copy(archive, table, gapWaitSeconds=0)
    ends = stream.copy(archive, table, gapWaitSeconds=0, failOnGap=False)
    beyond = Counter((*WEB[:2], "fifo", seqno) for seqno in range(65, 71))
    assert stream.keys(table) == SENT + beyond
    assert {f"web#{2**64 - 1}/fifo": [[61, 64]]} in [end.get("gaps") for end in ends]
    # Who comes too late with them is not read: this query has told that they were missing.
    write_file(archive, "two", 200, [Kept(WEB, 60, 72)])
    stream.copy(archive, table, gapWaitSeconds=0)
    last = Counter((*WEB[:2], "fifo", seqno) for seqno in (71, 72))
    assert stream.keys(table) == SENT + beyond + last


def test_what_is_there_and_cannot_be_read_is_never_passed_over(
    stream: InProcess | OnSpark, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a newer version: by the next file it is known what is in it."""
    with monkeypatch.context() as later:
        later.setattr(sealed, "VERSION", sealed.VERSION + 1)
        newer = write_file(archive, "one", 200, [Kept(WEB, 61, 70)])
    named = rf"{newer.name}: a segment of version {sealed.VERSION + 1};"
    with pytest.raises(stream.refusal, match=named):
        stream.count(archive)
    assert stream.count(archive, failOnGap="false") == SENT.total()
    output = tmp_path / "table"
    with pytest.raises(stream.refusal, match=named):
        stream.copy(archive, output, gapWaitSeconds=0)
    content = newer.read_bytes()
    newer.unlink()
    whole = write_file(archive, "one", 200, [Kept(WEB, 61, 70)])
    write_file(archive, "one", 300, [Kept(APP, 21, 22)], before=whole)
    newer.write_bytes(content)
    with pytest.raises(stream.refusal, match=rf"messages 61\.\.70 of web.*{named}"):
        stream.copy(archive, output, gapWaitSeconds=0)
    # After the upgrade, or where a replica has them, nothing is lost.
    write_file(archive, "two", 200, [Kept(WEB, 61, 70)])
    stream.copy(archive, output, gapWaitSeconds=0)
    more = [(*WEB[:2], "fifo", seqno) for seqno in range(61, 71)]
    more += [(*APP[:2], "fifo", seqno) for seqno in (21, 22)]
    assert stream.keys(output) == SENT + Counter(more)


def test_a_folder_that_is_out_of_sight_is_not_read_twice(
    stream: InProcess | OnSpark, archive: Path, tmp_path: Path
) -> None:
    inner, hidden = archive / "inner", tmp_path / "hidden"
    other = "other", 5, 0
    write_file(inner, "one", 200, [Kept(other, 1, 5)])
    table = tmp_path / "table"
    stream.copy(archive, table)
    inner.rename(hidden)
    write_file(archive, "one", 300, [Kept(WEB, 61, 62)])
    stream.copy(archive, table)
    hidden.rename(inner)
    write_file(archive, "one", 400, [Kept(WEB, 63, 64)])
    stream.copy(archive, table)
    more = [(*WEB[:2], "fifo", seqno) for seqno in range(61, 65)]
    more += [(*other[:2], "fifo", seqno) for seqno in range(1, 6)]
    assert stream.keys(table) == SENT + Counter(more)


@pytest.mark.proof
def test_a_disk_that_fails_every_twentieth_time_changes_nothing(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    """Though files are merged meanwhile, and a folder comes and goes."""
    inner, hidden = archive / "inner", tmp_path / "hidden"
    other = "other", 5, 0
    write_file(inner, "one", 200, [Kept(other, 1, 5)])
    for number in range(30):  # the view of each, and four runs
        last = 60 + 10 * number
        write_file(archive, "one", 200 + 5 * number, [Kept(WEB, last + 1, last + 10)])
    sent = SENT + Counter((*WEB[:2], "fifo", seqno) for seqno in range(61, 361))
    sent += Counter((*other[:2], "fifo", seqno) for seqno in range(1, 6))
    for module in (shaky_source, shaky_disk):  # executors do not know the tests
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(ShakySource)
    messages = spark.read.format("shaky").load(str(archive))
    assert keys(messages) == sent
    writer = (
        spark.readStream.format("shaky")
        .option("query", "copy")
        .option("maxMessagesPerTrigger", 150)
        .load(str(archive))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    for number in range(2):
        query = writer.start(str(tmp_path / "table"))
        size = max(path.stat().st_size for path in segment_paths(archive))
        assert compact(archive, bytes_max=(4 + 20 * number) * size).merged
        query.awaitTermination()
        first = 361 + 5 * number
        write_file(archive, "one", 350 + 3 * number, [Kept(WEB, first, first + 4)])
        sent += Counter((*WEB[:2], "fifo", seqno) for seqno in range(first, first + 5))
        inner.rename(hidden) if inner.exists() else hidden.rename(inner)
    writer.start(str(tmp_path / "table")).awaitTermination()
    assert keys(spark.read.parquet(str(tmp_path / "table"))) == sent
    assert len((tmp_path / LOG).read_text().splitlines()) >= 5


@pytest.mark.proof
def test_a_stream_reads_each_message_once_while_files_are_merged(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    paths = [path for path in segment_paths(archive) if path.name.startswith("one")]
    stop = threading.Event()
    merged = 0

    def merge() -> None:
        nonlocal merged
        while not stop.is_set():
            merged += compact(archive).merged

    with Segment(paths[-1]) as segment:
        idx = segment.info.last_idx + 1
    query = start(spark, archive, tmp_path / "table", once=False, maxMessagesPerTrigger=25)
    worker = threading.Thread(target=merge)
    worker.start()
    try:
        for number in range(60):
            first = 61 + 5 * number
            write_file(archive, "one", idx, [Kept(WEB, first, first + 4)])
            idx += 3  # its view and two runs; who looks may be too late
            if number % 10 == 0:
                query.processAllAvailable()
        query.processAllAvailable()
    finally:
        stop.set()
        worker.join()
        query.stop()
    more = Counter((*WEB[:2], "fifo", seqno) for seqno in range(61, 361))
    assert keys(spark.read.parquet(str(tmp_path / "table"))) == SENT + more
    assert merged >= 30


def test_a_step_that_is_tried_again_reads_the_same(
    stream: InProcess | OnSpark, archive: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    stream.copy(archive, table, maxMessagesPerTrigger=30)
    stream.forget_last_step(table)
    write_file(archive, "three", 0, [Kept(WEB, 1, 60), Kept(APP, 1, 20, is_fragment=True)])
    stream.copy(archive, table)
    assert stream.keys(table) == SENT


@pytest.mark.proof
def test_a_stream_goes_on_as_files_appear(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    query = start(spark, archive, table, once=False)
    try:
        query.processAllAvailable()
        assert keys(spark.read.parquet(str(table))) == SENT
        write_file(archive, "one", 200, [Kept(WEB, 61, 62)])
        query.processAllAvailable()
        assert spark.read.parquet(str(table)).count() == SENT.total() + 2
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs a name that stays the same"),
        ({"query": "q", "maxMessagesPerTrigger": "0"}, "a number of at least 1"),
        ({"query": "q", "gapWaitSeconds": "soon"}, "a number of at least 0"),
        ({"query": "q", "gapWaitSeconds": "inf"}, "a number of at least 0"),
        ({"query": "q", "failOnGap": "perhaps"}, "failOnGap is true or false, not 'perhaps'"),
        ({"query": "q", "maxMessages": "5"}, "no option maxmessages"),
        ({"query": "q", "sender": "web,"}, "several with commas between, not 'web,'"),
        ({"query": "q", "stream": "unicorn"}, "stream is fifo or uniform or total, not 'unicorn'"),
        ({"query": "q", "maxFilesPerTrigger": "1", "maxMessagesPerTrigger": "1"}, "not both"),
    ],
)
def test_mistakes_are_told(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options.parse({"path": "archive", **options}, is_stream=True)


@pytest.mark.proof
def test_a_stream_without_a_name_is_refused(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    stream = spark.readStream.format("ringcast").load(str(archive))
    checkpoint = str(tmp_path / "checkpoint")
    query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    with pytest.raises(PySparkException, match="needs a name that stays the same"):
        query.awaitTermination()


def test_an_archive_that_is_not_there_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no such directory"):
        spark.read.format("ringcast").load(str(tmp_path / "nowhere")).count()


def test_a_stream_may_be_of_some_senders_and_commits_the_others_too(
    stream: InProcess | OnSpark, archive: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    stream.copy(archive, table, sender="app/1#2, nobody", stream="fifo")
    assert stream.keys(table) == Counter(key for key in SENT if key[0] == APP[0])
    # What was left out has been passed: it never comes later, and nobody keeps it for this query.
    write_file(archive, "one", 200, [Kept(APP, 21, 22), Kept(WEB, 61, 63)])
    stream.copy(archive, table, sender="app/1#2,web")
    found = stream.keys(table)
    assert found == Counter(
        [key for key in SENT if key[0] == APP[0]]
        + [(*APP[:2], "fifo", seqno) for seqno in (21, 22)]
        + [(*WEB[:2], "fifo", seqno) for seqno in (61, 62, 63)]
    )
    # Spark tells of the second step's commit only when a third begins.
    assert len(prune(archive, LATER).removed) == len(STORY)


def read(directory: Path, *files: FileRead) -> Iterator[pa.RecordBatch]:
    return read_messages(str(directory), files)


def test_what_stands_twice_in_a_file_is_read_once(tmp_path: Path) -> None:
    path = write_file(tmp_path, "one", 0, [Kept(WEB, 1, 6), Kept(WEB, 4, 9)])
    (batch,) = read(tmp_path, FileRead(str(path), (Wanted(WEB, 2, 8),)))
    assert batch["seqno"].to_pylist() == [2, 3, 4, 5, 6, 7, 8]
    assert batch["payload"].to_pylist() == [payload(WEB, seqno) for seqno in range(2, 9)]


def test_what_does_not_stand_in_order_is_read_in_order(tmp_path: Path) -> None:
    kept = [Kept(WEB, 4, 6), Kept(APP, 1, 3), Kept(WEB, 1, 3), Kept(WEB, 7, 9)]
    path = write_file(tmp_path, "one", 0, kept)
    (batch,) = read(tmp_path, FileRead(str(path), (Wanted(APP, 1, 3), Wanted(WEB, 1, 9))))
    of_web = [row for row in batch.to_pylist() if row["sender"] == WEB[0]]
    assert [row["seqno"] for row in of_web] == list(range(1, 10))
    assert [row["payload"] for row in of_web] == [payload(WEB, at) for at in range(1, 10)]


def test_some_of_what_stands_side_by_side_is_read_by_itself(tmp_path: Path) -> None:
    """Rows of several senders in turns, as a group's are; cut where others begin."""
    kept = [
        Kept(origin, first, first + RUN - 1)
        for first in range(1, 10, RUN)
        for origin in (WEB, APP, WEB_UNIFORM)
    ]
    path = str(write_file(tmp_path, "one", 0, [*kept, Kept(APP, 10, 12, is_fragment=True)]))
    wanted = (Wanted(WEB, 2, 4), Wanted(APP, 3, 12), Wanted(WEB, 6, 8), Wanted(WEB_UNIFORM, 1, 9))
    for some in (wanted, wanted[:1], wanted[1:2], wanted[::2]):
        (batch,) = read(tmp_path, FileRead(path, some))
        assert Counter(zip(*batch.select(range(4)).to_pydict().values(), strict=True)) == Counter(
            (sender, str(incarnation), ("fifo", "uniform")[stream], seqno)
            for (sender, incarnation, stream), first, last in some
            for seqno in range(first, min(last, 9) + 1)
        )
        for row in batch.to_pylist():
            origin = row["sender"], int(row["incarnation"]), int(row["stream"] == "uniform")
            assert row["payload"] == payload(origin, row["seqno"])


def test_a_file_that_has_less_than_its_footer_says_is_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path, "one", 0, [Kept(WEB, 1, 6)])
    told = r"messages 7\.\.9 of web.* 6 messages where its footer names 9"
    with pytest.raises(UsageError, match=told):
        list(read(tmp_path, FileRead(str(path), (Wanted(WEB, 1, 9),))))
    damage(path)
    with pytest.raises(UsageError, match=rf"messages 1\.\.6 of web.*{path.name}: damaged"):
        list(read(tmp_path, FileRead(str(path), (Wanted(WEB, 1, 6),))))


def large_file(directory: Path, writer: str, *ends: int) -> Path:
    """The messages 1.. of WEB, in row groups that end with these."""
    directory.mkdir(exist_ok=True)
    segment = SegmentWriter(directory, Recording(run_id="t", node=writer, inc=1, payloads=True))
    for idx, (first, stop) in enumerate(pairwise((1, *(end + 1 for end in ends)))):
        place = (*WEB, first, stop - 1, 4)
        messages = [payload(WEB, seqno) for seqno in range(first, stop)]
        segment.add([Row(DELIVER, writer, 1, idx, -1, idx, *place)], 10**18, [messages])
        segment._write_group()
    return segment.finish()


def damage_group(path: Path, group: int) -> None:
    data = bytearray(path.read_bytes())
    about = pq.read_metadata(path).row_group(group)
    data[about.column(about.num_columns - 1).data_page_offset + 8] ^= 1
    path.write_bytes(data)


def test_replicas_stand_in_for_each_other_message_by_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "PIECE_BYTES", 1)  # each page by itself, as if they were large
    one = large_file(tmp_path, "one", 10, 20, 30)
    two = large_file(tmp_path, "two", 5, 15, 25, 30)
    wanted = FileRead(str(one), (Wanted(WEB, 3, 28),))
    damage_group(one, 1)
    damage_group(two, 0)
    rows = [row for batch in read(tmp_path, wanted) for row in batch.to_pylist()]
    assert sorted(row["seqno"] for row in rows) == list(range(3, 29))
    assert all(row["payload"] == payload(WEB, row["seqno"]) for row in rows)
    damage_group(two, 1)
    with pytest.raises(UsageError, match=rf"messages 11\.\.15 of web.*{one.name}.*{two.name}"):
        list(read(tmp_path, wanted))
    for path in (one, two):
        path.unlink()
    large_file(tmp_path, "three", 30)
    (batch,) = read(tmp_path, wanted)
    assert batch["seqno"].to_pylist() == list(range(3, 29))


def test_an_archive_is_a_trace_too(archive: Path) -> None:
    """One format: whoever reads traces finds the same columns, and one more."""
    names = pq.ParquetFile(segment_paths(archive)[0]).schema_arrow.names
    assert names[-1] == "payloads"
    assert "seqno2" in names


@pytest.mark.proof
def test_on_a_standalone_cluster_each_message_is_read_once(archive: Path, tmp_path: Path) -> None:
    shutil.copytree(archive, tmp_path / "shared")
    program = (
        "import sys; from ringcast.spark import register; from ringcast.spark.session import *\n"
        "spark = session('test', sys.argv[1]); register(spark)\n"
        "print(spark.read.format('ringcast').load(sys.argv[2]).count()); spark.stop()"
    )
    with start_standalone(workers=2) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", program, cluster.url, str(tmp_path / "shared")],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    assert done.stdout.split()[-1] == str(SENT.total())
