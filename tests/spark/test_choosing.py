"""What of an archive is read: columns, and row groups by sender, number and time. Without Spark."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ringcast.errors import UsageError
from ringcast.spark.options import Options
from ringcast.spark.source import ArchiveReader
from ringcast.spark.stream import ArchiveStreamReader
from ringcast.trace import disks, sealed
from ringcast.trace.archive import Index
from ringcast.trace.retention import Query, prune
from ringcast.trace.starts import taken_before
from support.archives import APP, WEB, WEB_UNIFORM, Kept, write_file
from support.groups import BEGIN, content, damage_column, minute, write_groups
from support.reads import Reads
from support.s3 import store
from support.shaky_disk import ShakyDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import Filter


GROUP = 20
"""Messages of an origin to a row group, a minute each."""
GROUPS = 4
FILES = 3
LAST = GROUP * GROUPS * FILES
ZED = 200
"""The first message of zed, of whom nothing else was archived."""
ALL_COLUMNS = ("sender", "incarnation", "stream", "seqno", "view", "delivered_at", "payload")
_KINDS = {"seqno": LongType(), "view": LongType()}


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of four row groups, in which web and app stand side by side; zed alone in the last."""
    monkeypatch.setattr(sealed, "PIECE_BYTES", 1)  # each page by itself, as if they were large
    directory = tmp_path / "archive"
    for number in range(FILES):
        groups = []
        for at in range(GROUPS):
            first = (number * GROUPS + at) * GROUP + 1
            groups.append([(origin, first, first + GROUP - 1) for origin in (WEB, APP)])
        if number == FILES - 1:
            groups.append([(("zed", 5, 1), ZED, ZED + GROUP - 1)])
        write_groups(directory, "one", groups, idx=1000 * number)
    return directory


def struct(*columns: str) -> StructType:
    from pyspark.sql.types import BinaryType, TimestampType

    kinds = _KINDS | {"delivered_at": TimestampType(), "payload": BinaryType()}
    return StructType([StructField(name, kinds.get(name, StringType())) for name in columns])


def table(
    archive: Path | str,
    columns: Sequence[str] = ALL_COLUMNS,
    filters: Sequence[Filter] = (),
    **options: str,
) -> list[dict[str, Any]]:
    """Rows as the source hands them to Spark, which has its part of the filters still to do."""
    said = {"path": str(archive), **options}
    parsed = Options.parse(said, is_stream=False, columns=struct(*columns))
    reader = ArchiveReader(parsed)
    left = list(reader.pushFilters(list(filters)))
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    return [row for row in rows if all(holds(wish, row) for wish in left)]


def holds(wish: Filter, row: dict[str, Any]) -> bool:
    """What Spark does with a filter."""
    match wish:
        case Not(child):
            return not holds(child, row)
        case In((name,), some):
            return row[name] in some
        case IsNotNull():
            return True
    name, value = row[wish.attribute[0]], wish.value
    return {
        EqualTo: name == value,
        EqualNullSafe: name == value,
        GreaterThan: name > value,
        GreaterThanOrEqual: name >= value,
        LessThan: name < value,
        LessThanOrEqual: name <= value,
    }[type(wish)]


def keys(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["sender"], row["seqno"]) for row in rows)


SENDER, SEQNO, TIME = ("sender",), ("seqno",), ("delivered_at",)
QUERIES: dict[str, tuple[tuple[str, ...], list[Filter], int]] = {
    "who sent how much": (("sender", "seqno"), [], 3),
    "one sender's last messages": (
        ALL_COLUMNS,
        [EqualTo(SENDER, "web"), GreaterThan(SEQNO, LAST - GROUP)],
        5,
    ),
    "a quarter of an hour": (
        ALL_COLUMNS,
        [GreaterThanOrEqual(TIME, minute(130)), LessThan(TIME, minute(145))],
        3,
    ),
    "one that stands alone": (ALL_COLUMNS, [EqualTo(SENDER, "zed")], 6),
}
"""Columns, filters, and how many times fewer bytes at least."""


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_reads_what_it_needs(archive: Path, name: str) -> None:
    columns, filters, ratio = QUERIES[name]
    with Reads(archive) as whole:
        everything = table(archive)
    wanted = [row for row in everything if all(holds(wish, row) for wish in filters)]
    with Reads(archive) as some:
        rows = table(archive, columns, filters)
    assert keys(rows) == keys(wanted)
    assert all(
        row["payload"] == content(("web", 2**64 - 1, 0), row["seqno"])
        for row in rows
        if "payload" in row and row["sender"] == "web"
    )
    assert some.bytes * ratio < whole.bytes
    if filters:
        assert some.groups <= 2 < whole.groups == FILES * GROUPS + 1
        assert some.opened == FILES + 1  # each for its footer, and one to be read
    else:
        assert some.groups == whole.groups


def test_columns_come_in_any_order_and_with_nulls_where_it_is_said(archive: Path) -> None:
    wanted = struct("seqno", "sender")
    wanted["seqno"].nullable = False
    reader = ArchiveReader(Options.parse({"path": str(archive)}, is_stream=False, columns=wanted))
    batch = next(reader.read(reader.partitions()[0]))
    assert batch.schema.names == ["seqno", "sender"]
    assert [item.nullable for item in batch.schema] == [False, True]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_chosen_is_what_the_filters_leave(archive: Path, seed: int) -> None:
    dice = random.Random(seed)
    kinds = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualNullSafe)
    filters: list[Filter] = []
    for _ in range(dice.randint(1, 3)):
        kind = dice.choice(kinds)
        number = dice.randint(1, LAST)
        odd = timedelta(microseconds=dice.randint(-1, 1))
        one = kind(SEQNO, number) if dice.random() < 0.5 else kind(TIME, minute(number) + odd)
        filters.append(Not(one) if dice.random() < 0.2 else one)
    filters += [IsNotNull(SEQNO)] + [In(SENDER, ("web", "zed"))] * dice.randint(0, 1)
    found = table(archive, ALL_COLUMNS, filters)
    everything = table(archive)
    assert keys(found) == keys(
        [row for row in everything if all(holds(wish, row) for wish in filters)]
    )


def test_options_choose_as_filters_do(archive: Path) -> None:
    options = {"firstSeqno": "100", "lastSeqno": "130", "sender": "app/1#2"}
    assert keys(table(archive, **options)) == [(APP[0], at) for at in range(100, 131)]
    times = {
        "deliveredSince": "2026-11-19T13:00:00Z",
        "deliveredBefore": "2026-11-19T14:02:00+01:00",
    }
    assert keys(table(archive, **times)) == sorted(
        (o[0], at) for o in (WEB, APP) for at in (60, 61)
    )
    assert table(archive, deliveredBefore="2026-11-19T12:00:59.999999Z") == []
    assert keys(table(archive, filters=[LessThan(SEQNO, 4)], firstSeqno="3", sender="web")) == [
        ("web", 3)
    ]


def test_what_is_not_read_may_be_damaged(archive: Path) -> None:
    first = min(archive.iterdir())
    damage_column(first, 1, "payloads")
    with pytest.raises(UsageError, match=r"messages 21\.\.40 of .*damaged"):
        table(archive)
    assert len(table(archive, ("sender", "seqno"))) == 2 * LAST + GROUP
    assert len(table(archive, filters=[LessThan(TIME, minute(21))])) == 2 * GROUP
    assert len(table(archive, filters=[GreaterThan(SEQNO, 40)])) == 2 * (LAST - 40) + GROUP


def test_a_gap_elsewhere_is_none(archive: Path) -> None:
    write_groups(archive, "one", [[(WEB, LAST + 11, LAST + 20)]], idx=9000)
    with pytest.raises(UsageError, match=rf"messages {LAST + 1}\.\.{LAST + 10} of web"):
        table(archive)
    assert len(table(archive, lastSeqno=str(LAST), sender="web")) == LAST
    assert len(table(archive, filters=[GreaterThan(SEQNO, LAST + 10)])) == 10


def test_others_stand_in_for_the_time_that_is_asked_for_alone(archive: Path) -> None:
    """A replica has what cannot be read, and not what the times leave out."""
    first = min(archive.iterdir())
    damage_column(first, 1, "payloads")
    other = [(origin, 21, 40) for origin in (WEB, APP)]
    # Its clock is half a minute behind.
    write_groups(archive, "two", [other], begin=BEGIN - timedelta(seconds=30))
    times = [GreaterThanOrEqual(TIME, minute(30)), LessThan(TIME, minute(100))]
    found = keys(table(archive, filters=times))
    assert found == sorted((o[0], at) for o in (WEB, APP) for at in range(31, 100))


def test_a_disk_that_fails_now_and_then_changes_nothing_of_it(archive: Path) -> None:
    filters = [GreaterThan(TIME, minute(30)), LessThanOrEqual(SEQNO, ZED)]
    wanted = keys(table(archive, ("sender", "seqno", "delivered_at"), filters))
    assert len(wanted) == 2 * 170 + 1
    since = "2026-11-19T12:31:00Z"
    for every in range(11, 31):  # wherever it hits
        with ShakyDisk(archive, every) as disk:
            assert keys(table(archive, ("sender", "seqno", "delivered_at"), filters)) == wanted
            stream = Stream(archive, deliveredSince=since, lastSeqno=str(ZED))
            stream.step()
            assert sorted(stream.read) == wanted
            stream = Stream(archive, startingOffsets=since)
            stream.step()
        assert disk.failed > 2
        assert sorted(stream.read) == sorted(
            [(o[0], at) for o in (WEB, APP) for at in range(31, LAST + 1)]
            + [("zed", at) for at in range(ZED, ZED + GROUP)]
        )


def test_an_object_store_is_asked_for_less_where_less_is_wanted(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it fails every twentieth request."""
    monkeypatch.setattr(disks, "RELIST_S", 0.0)
    with store(archive.parent.parent, every=20) as server:
        uri = server.uri(f"{archive.parent.name}/{archive.name}")
        assert len(table(uri)) == 2 * LAST + GROUP
        whole, server.sent_bytes = server.sent_bytes, 0
        late = [GreaterThan(SEQNO, LAST - GROUP)]
        assert len(table(uri, ("sender", "seqno"), late)) == 2 * GROUP
        assert server.sent_bytes < whole / 2
        stream = Stream(uri)
        stream.step()
        write_groups(archive, "one", [[(WEB, LAST + 1, LAST + 5)]], idx=9000)
        stream.step()
        assert len(stream.read) == len(set(stream.read)) == 2 * LAST + GROUP + 5
        assert server.failed
    assert not (archive / "queries").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"firstSeqno": "0"}, "firstSeqno is a number of at least 1, not '0'"),
        ({"lastSeqno": "x"}, "lastSeqno is a number of at least 1, not 'x'"),
        (
            {"deliveredSince": "noon"},
            r"deliveredSince is a time with its zone, as in 2026-.*'noon'",
        ),
        ({"deliveredBefore": "2026-11-19T12:00:00"}, "deliveredBefore is a time with its zone"),
        ({"startingOffsets": "now"}, "startingOffsets is earliest, latest, a time with its zone"),
        ({"startingOffsets": '{"web": 1}'}, "or an offset as a stream's progress shows it, not"),
        ({"path": "nfs://host/archive"}, "nfs://host/archive: pyarrow cannot read there"),
        (
            {"path": "s3://me:secret@b/a?region=x"},
            r"query is for .* noted in s3://b/a, so leave it out",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        Options.parse({"path": "archive", "query": "q", **options}, is_stream=True)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (struct(), "no column is asked for; there are "),
        (struct("sender", "sequence"), "no column 'sequence'; there are .*'seqno'"),
        (StructType([StructField("seqno", StringType())]), "seqno is BIGINT, not STRING"),
    ],
)
def test_columns_that_there_are_not_are_told(columns: StructType, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options.parse({"path": "archive"}, is_stream=False, columns=columns)


# Streams


class Stream:
    """A query that takes one step after the other, and what it has read."""

    def __init__(self, archive: Path | str, **options: str) -> None:
        named = {"query": "q"} if isinstance(archive, Path) else {}  # an object store knows none
        said = {"path": str(archive), "gapWaitSeconds": "0", **named, **options}
        self.reader = ArchiveStreamReader(Options.parse(said, is_stream=True))
        self.at = self.reader.initialOffset()
        self.read: list[tuple[str, int]] = []

    def step(self) -> dict[str, Any]:
        end = self.reader.latestOffset(self.at, ReadAllAvailable())
        if end != self.at:
            self.read += self.between(self.at, end)
            self.reader.commit(end)
        self.at = end
        return end

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
        return [
            (row["sender"], row["seqno"])
            for part in self.reader.partitions(start, end)
            for batch in self.reader.read(part)
            for row in batch.to_pylist()
        ]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_file(tmp_path / "archive", "one", 0, [Kept(WEB, 1, 10), Kept(APP, 1, 3)])
    return tmp_path / "archive"


def test_a_stream_may_begin_with_what_comes_next(small: Path) -> None:
    stream = Stream(small, startingOffsets="latest")
    assert stream.step() == stream.at
    assert stream.read == []
    write_file(small, "one", 100, [Kept(WEB, 11, 12), Kept(WEB_UNIFORM, 1, 2)])
    end = stream.step()
    assert sorted(stream.read) == [("web", 1), ("web", 2), ("web", 11), ("web", 12)]
    assert end["from"] == {"app/1#2#7/fifo": 3, f"web#{2**64 - 1}/fifo": 10}
    write_file(small, "one", 200, [Kept(APP, 4, 4)])
    assert "from" not in stream.step()
    assert stream.read[-1] == ("app/1#2", 4)


@pytest.mark.parametrize("there", [True, False])
def test_a_first_step_that_is_tried_again_begins_where_it_began(
    tmp_path: Path, there: bool
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    if there:
        write_file(archive, "one", 0, [Kept(WEB, 1, 10)])
    first = Stream(archive, startingOffsets="latest")
    write_file(archive, "one", 100, [Kept(WEB, 11, 12)] if there else [Kept(WEB, 1, 12)])
    end = first.reader.latestOffset(first.at, ReadAllAvailable())
    write_file(archive, "one", 200, [Kept(WEB, 13, 15)])
    # The driver dies, and Spark asks the next one for the step that it has logged.
    again = Stream(archive, startingOffsets="latest")
    assert again.at != first.at
    wanted = [("web", at) for at in range(11 if there else 1, 13)]
    assert again.between(again.at, end) == wanted
    again.at = end
    again.step()
    assert again.read == [("web", at) for at in (13, 14, 15)]


def test_what_a_first_step_may_need_is_not_pruned(small: Path) -> None:
    Stream(small, startingOffsets="latest")
    assert len(prune(small, 4e9, is_trial=True).removed) == 1
    write_file(small, "one", 100, [Kept(WEB, 11, 12)])
    Stream(small, startingOffsets="latest")
    assert Query(small, "q").committed.digest == {WEB: 10, APP: 3}
    assert len(prune(small, 4e9, is_trial=True).removed) == 1
    Stream(small)
    assert Query(small, "q").committed.digest == {}


def test_a_stream_may_begin_at_a_time(archive: Path) -> None:
    """In the middle of a row group, with a replica whose clock is a minute ahead."""
    write_groups(archive, "two", [[(WEB, 95, 110)]], begin=BEGIN + timedelta(minutes=1))
    stream = Stream(archive, startingOffsets="2026-11-19T13:40:00Z")
    stream.step()
    wanted = [("app/1#2", at) for at in range(100, LAST + 1)]
    wanted += [("web", at) for at in range(99, LAST + 1)]
    wanted += [("zed", at) for at in range(ZED, ZED + GROUP)]
    assert sorted(stream.read) == wanted
    stream = Stream(archive, startingOffsets="2026-11-19T13:21:00Z")  # as a file begins
    stream.step()
    assert min(stream.read) == ("app/1#2", 81)
    assert min(stream.read[1:], key=lambda read: (read[0] != "web", read[1])) == ("web", 81)
    late = Stream(archive, startingOffsets="2027-01-01T00:00:00Z")
    late.step()
    assert late.read == []


def test_a_start_by_time_passes_over_nothing_that_cannot_be_read(archive: Path) -> None:
    paths = sorted(archive.iterdir())
    index = Index(archive)
    index.refresh()
    at_ns = int(minute(130).timestamp()) * 10**9
    assert taken_before(index, at_ns)[WEB] == 129
    damage_column(paths[1], 2, "seqno")
    assert taken_before(index, at_ns)[WEB] == LAST // FILES
    index.leave_out(str(paths[1]), "gone")
    assert taken_before(index, at_ns)[WEB] == LAST // FILES


def test_a_stream_may_begin_at_an_offset(small: Path) -> None:
    stream = Stream(small, startingOffsets=f'{{"web#{2**64 - 1}/fifo": 7}}')
    stream.step()
    assert sorted(stream.read) == [("app/1#2", at) for at in (1, 2, 3)] + [
        ("web", at) for at in (8, 9, 10)
    ]


def test_a_stream_tells_how_far_the_archive_has_come(small: Path) -> None:
    stream = Stream(small, maxMessagesPerTrigger="4")
    end = stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())
    there = stream.reader.reportLatestOffset()
    assert there == {"app/1#2#7/fifo": 3, f"web#{2**64 - 1}/fifo": 10}
    assert sum(there.values()) - sum(end.values()) == 9


# Listings


def test_a_stream_that_waits_lists_once_a_second(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(small)
    stream.step()
    with monkeypatch.context() as later:
        later.setattr(disks, "SETTLED_S", -1e3)  # as if nothing had changed for long
        later.setattr(disks, "RELIST_S", 1e3)
        stream.step()
        with Reads(small) as waiting:
            for _ in range(50):
                stream.step()
    assert waiting.listings == waiting.opened == 0
    write_file(small, "one", 100, [Kept(WEB, 11, 12)])
    with Reads(small) as moving:
        stream.step()
    assert stream.read[-2:] == [("web", 11), ("web", 12)]
    # Once to find it, and not to plan what to read: the archive and its queries.
    assert moving.listings == 2


def test_a_file_system_that_sets_no_times_is_listed_all_the_same(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "SETTLED_S", -1e3)
    stream = Stream(small)
    stream.step()
    stream.step()
    changed_at = small.stat().st_mtime_ns
    write_file(small, "one", 100, [Kept(WEB, 11, 12)])
    os.utime(small, ns=(changed_at, changed_at))
    deadline = time.monotonic() + 60
    while len(stream.read) == 13:
        assert time.monotonic() < deadline
        stream.step()
    assert stream.read[-1] == ("web", 12)


def test_a_directory_that_has_just_changed_is_listed_again(small: Path) -> None:
    """Its time may be the same after the next change."""
    index = Index(small)
    index.refresh()
    assert index._listing is not None
    assert not index.disk.is_as_listed(index._listing)
