"""What of an archive Spark has read, asked in SQL and in streams: columns, filters, starts, lag."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import shaky_source
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from shaky_source import LOG, ShakySource

from ringcast.errors import UsageError
from ringcast.spark import decode, lag, register
from ringcast.trace import sealed
from ringcast.trace.footer import Recording
from ringcast.trace.retention import queries
from ringcast.trace.rows import DELIVER, Row
from ringcast.trace.segments import SegmentWriter
from support import shaky_disk
from support.archives import APP, WEB, Kept, write_file
from support.groups import content, damage_column, write_groups
from support.s3 import store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LAST = 120
"""Messages of each, twenty to a row group, sixty to a file."""


@pytest.fixture
def archive(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
    register(spark)
    monkeypatch.setattr(sealed, "PIECE_BYTES", 1)  # each page by itself, as if they were large
    directory = tmp_path / "bucket" / "archive"
    for number in range(2):
        firsts = range(1 + 60 * number, 61 + 60 * number, 20)
        groups = [[(origin, first, first + 19) for origin in (WEB, APP)] for first in firsts]
        write_groups(directory, "one", groups, idx=1000 * number)
    return directory


def seqnos(frame: DataFrame) -> Counter[tuple[str, int]]:
    return Counter((row.sender, row.seqno) for row in frame.collect())


def both(first: int, last: int) -> Counter[tuple[str, int]]:
    return Counter((origin[0], at) for origin in (WEB, APP) for at in range(first, last + 1))


def stream(spark: SparkSession, place: object, source: str = "ringcast", **options: str) -> Any:
    reader = spark.readStream.format(source)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(place))


def copy(frame: DataFrame, table: Path) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{table}-checkpoint").start(str(table))
    query.awaitTermination()
    return query


def test_only_the_columns_of_a_schema_are_read(spark: SparkSession, archive: Path) -> None:
    damage_column(min(archive.iterdir()), 1, "payloads")
    reader = spark.read.format("ringcast")
    messages = reader.schema("seqno BIGINT NOT NULL, sender STRING").load(str(archive))
    assert messages.columns == ["seqno", "sender"]
    assert seqnos(messages) == both(1, LAST)
    assert reader.schema("sender STRING").load(str(archive)).distinct().count() == 2
    with pytest.raises(PySparkException, match="no column 'number'; there are"):
        reader.schema("number BIGINT").load(str(archive)).count()
    with pytest.raises(PySparkException, match=r"messages 21\.\.40 of .*damaged"):
        reader.schema("sender STRING, payload BINARY").load(str(archive)).count()


def test_filters_on_time_and_number_reach_the_row_groups(
    spark: SparkSession, archive: Path
) -> None:
    damage_column(min(archive.iterdir()), 1, "payloads")
    messages = spark.read.format("ringcast").load(str(archive))
    late = messages.where("delivered_at > '2026-11-19 12:40:00' AND sender = 'web'")
    rows = late.collect()
    assert sorted(row.seqno for row in rows) == list(range(41, LAST + 1))
    assert all(bytes(row.payload) == content(WEB, row.seqno) for row in rows)
    early = "delivered_at <= timestamp'2026-11-19 12:20:00' OR false"
    assert seqnos(messages.where(early)) == both(1, 20)
    assert seqnos(messages.where("seqno BETWEEN 41 AND 50")) == both(41, 50)
    assert seqnos(messages.where("seqno = 20")) == both(20, 20)
    with pytest.raises(PySparkException, match=r"messages 21\.\.21 of "):
        messages.where("seqno = 21").count()


def test_a_table_is_made_in_sql(spark: SparkSession, archive: Path) -> None:
    spark.sql(f"CREATE TABLE messages USING ringcast OPTIONS (path '{archive}')")
    try:
        assert spark.table("messages").columns[0] == "sender"
        found = spark.sql("SELECT sender, max(seqno) AS last FROM messages GROUP BY sender")
        assert {tuple(row) for row in found.collect()} == {("web", LAST), ("app/1#2", LAST)}
        write_groups(archive, "one", [[(WEB, LAST + 1, LAST + 5)]], idx=9000)
        assert spark.sql("SELECT * FROM messages WHERE seqno > 120").count() == 5
    finally:
        spark.sql("DROP TABLE messages")
    assert archive.is_dir()  # a table that is dropped takes nothing with it
    spark.sql(
        "CREATE TABLE some USING ringcast "
        f"OPTIONS (path '{archive}', sender 'web', deliveredSince '2026-11-19T13:00:00Z')"
    )
    try:
        found = spark.sql("SELECT count(*), min(seqno) FROM some")
        assert tuple(found.collect()[0]) == (66, 60)
        coming = spark.readStream.option("query", "copy").table("some")
        copy(coming.select("sender", "seqno"), archive.parent / "copy")
        assert spark.read.parquet(str(archive.parent / "copy")).count() == 66
    finally:
        spark.sql("DROP TABLE some")
    spark.sql(f"CREATE TABLE bare (seqno BIGINT) USING ringcast OPTIONS (path '{archive}')")
    try:
        with pytest.raises(PySparkException, match="CREATE TABLE … without columns"):
            spark.sql("SELECT * FROM bare").collect()
        assert spark.sql(f"SELECT * FROM bare WITH (path '{archive}')").count() == 2 * LAST + 5
    finally:
        spark.sql("DROP TABLE bare")


def test_a_view_of_some_columns_is_made_in_sql(spark: SparkSession, archive: Path) -> None:
    damage_column(min(archive.iterdir()), 1, "payloads")
    spark.sql(
        "CREATE TEMPORARY VIEW seen (sender STRING, seqno BIGINT) USING ringcast "
        f"OPTIONS (path '{archive}', firstSeqno '101')"
    )
    try:
        assert seqnos(spark.table("seen")) == both(101, LAST)
    finally:
        spark.catalog.dropTempView("seen")


def write_orders(directory: Path) -> None:
    directory.mkdir(parents=True)
    segment = SegmentWriter(directory, Recording(run_id="t", node="a", inc=1, payloads=True))
    orders = [{"item": "tea", "cents": 250}, {"item": "cake"}, None]
    payloads = [json.dumps(order).encode() for order in orders[:2]] + [b"\xff no JSON"]
    row = Row(DELIVER, "a", 1, 0, -1, 0, "web", 7, 0, 1, 3, 1)
    segment.add([row], 10**18, [payloads])
    segment.finish()


def test_messages_are_decoded(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    archive = tmp_path / "archive"
    write_orders(archive)
    messages = spark.read.format("ringcast").load(str(archive))
    orders = decode(messages, "item STRING, cents BIGINT", "json")
    assert orders.columns[:4] == ["sender", "incarnation", "stream", "seqno"]
    assert orders.columns[-2:] == ["item", "cents"]
    wanted = [("tea", 250), ("cake", None), (None, None)]
    assert [tuple(row) for row in orders.select("item", "cents").collect()] == wanted
    schema = orders.select("item", "cents").schema
    for frame in (messages, stream(spark, archive, query="orders")):
        assert decode(frame, schema).columns == orders.columns
    copy(decode(stream(spark, archive, query="orders"), schema), tmp_path / "table")
    table = spark.read.parquet(str(tmp_path / "table")).orderBy("seqno")
    assert [tuple(row) for row in table.select("item", "cents").collect()] == wanted
    for said, kind, told in (
        ("item STRING", "avro", "decoded as \"json\", not 'avro'"),
        ("seqno BIGINT", "json", "there is a column seqno already"),
        ("STRING", "json", 'as in "cents BIGINT"'),
    ):
        with pytest.raises(UsageError, match=told):
            decode(messages, said, kind)
    with pytest.raises(UsageError, match="no column payload"):
        decode(orders, "item STRING")


@pytest.mark.proof
def test_a_stream_begins_where_it_is_told_and_shows_its_lag(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    options = {"query": "copy", "startingOffsets": "2026-11-19T13:20:00Z"}
    messages = stream(spark, archive, maxMessagesPerTrigger="25", **options)
    query = copy(messages.select("sender", "seqno"), table)
    assert seqnos(spark.read.parquet(str(table))) == both(80, LAST)
    lags = [sum(lag(progress).values()) for progress in query.recentProgress]
    assert [one for one in lags if one] == [57, 32, 7]
    assert lag(query.recentProgress[-1]) == {}
    # The first step again, as if the driver had died after it was logged, with "latest".
    again = tmp_path / "again"
    options = {"query": "next", "startingOffsets": "latest"}
    copy(stream(spark, archive, **options).select("sender", "seqno"), again)
    assert spark.read.parquet(str(again)).count() == 0
    write_groups(archive, "one", [[(WEB, LAST + 1, LAST + 5)]], idx=9000)
    copy(stream(spark, archive, **options).select("sender", "seqno"), again)
    wanted = Counter((WEB[0], at) for at in range(LAST + 1, LAST + 6))
    assert seqnos(spark.read.parquet(str(again))) == wanted


@pytest.mark.proof
def test_a_first_step_is_made_again_from_where_it_began(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    """As if the driver had died after the step was logged, and before anything was written."""
    table = tmp_path / "table"
    options = {"query": "next", "startingOffsets": "2026-11-19T13:20:00Z"}
    copy(stream(spark, archive, **options).select("sender", "seqno"), table)
    for place in (tmp_path / "table-checkpoint" / "commits", table / "_spark_metadata"):
        for path in place.iterdir():
            path.unlink()
    write_groups(archive, "two", [[(WEB, 1, 10), (APP, LAST + 1, LAST + 3)]])
    options["startingOffsets"] = "latest"
    copy(stream(spark, archive, **options).select("sender", "seqno"), table)
    more = Counter((APP[0], at) for at in range(LAST + 1, LAST + 4))
    assert seqnos(spark.read.parquet(str(table))) == both(80, LAST) + more


@pytest.mark.proof
def test_an_object_store_is_a_table_and_a_stream(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    """It fails every twentieth request, and is asked for less where less is wanted."""
    with store(tmp_path, every=20) as server:
        uri = server.uri("bucket/archive")
        messages = spark.read.format("ringcast").load(uri)
        assert seqnos(messages) == both(1, LAST)
        whole, server.sent_bytes = server.sent_bytes, 0
        some = spark.read.format("ringcast").schema("sender STRING, seqno BIGINT").load(uri)
        assert seqnos(some.where("seqno > 100")) == both(101, LAST)
        assert server.sent_bytes < whole / 2
        table = tmp_path / "table"
        for number in range(2):
            copy(stream(spark, uri, maxMessagesPerTrigger="50").select("sender", "seqno"), table)
            assert seqnos(spark.read.parquet(str(table))) == both(1, LAST + 5 * number)
            kept = [(origin, LAST + 1, LAST + 5) for origin in (WEB, APP)]
            write_groups(archive, "one", [kept], idx=9000)
        spark.sql(f"CREATE TABLE far USING ringcast OPTIONS (path '{uri}', firstSeqno '121')")
        try:
            assert spark.table("far").count() == 10
        finally:
            spark.sql("DROP TABLE far")
        assert server.failed
    assert queries(archive) == []
    assert not (archive / "queries").exists()


@pytest.mark.proof
def test_a_disk_that_fails_every_twentieth_time_changes_nothing_of_what_is_chosen(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    for number in range(30):
        write_file(archive, "two", 10 * number, [Kept(APP, 1 + 10 * number, 10 + 10 * number)])
    for module in (shaky_source, shaky_disk):  # executors do not know the tests
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(ShakySource)
    reader = spark.read.format("shaky").schema(
        "sender STRING, seqno BIGINT, delivered_at TIMESTAMP"
    )
    messages = reader.load(str(archive)).where("sender = 'web' AND seqno > 30")
    late = messages.where("delivered_at > '2026-11-19 12:40:00'")
    for _ in range(3):
        assert sorted(row.seqno for row in late.collect()) == list(range(41, LAST + 1))
    options = {"query": "copy", "startingOffsets": "2026-11-19T12:40:00Z", "sender": "web"}
    chosen = stream(spark, archive, "shaky", maxMessagesPerTrigger="50", lastSeqno="110", **options)
    copy(chosen.select("sender", "seqno"), tmp_path / "table")
    found = seqnos(spark.read.parquet(str(tmp_path / "table")))
    assert found == Counter((WEB[0], at) for at in range(40, 111))
    assert (archive.parent / LOG).read_text()
