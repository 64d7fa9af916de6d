"""Steps of a stream, and tables, without Spark around them: what is missing is told from what was
pruned and from what came before."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ringcast.errors import UsageError
from ringcast.spark.options import Options
from ringcast.spark.source import ArchiveReader
from ringcast.spark.stream import ArchiveStreamReader
from ringcast.trace.retention import prune
from support.archives import APP, WEB, Kept, tear, write_file

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.trace.rows import OriginKey

LATER = 4e9
WEB_TEXT = f"web#{2**64 - 1}/fifo"


class Stream:
    """A query that takes one step after the other, and what it has read."""

    def __init__(self, archive: Path, gap_wait_s: int = 0) -> None:
        told = {"path": str(archive), "query": "q", "gapWaitSeconds": str(gap_wait_s)}
        self.reader = ArchiveStreamReader(Options.parse(told, is_stream=True))
        self.at = self.reader.initialOffset()
        self.read: Counter[tuple[str, int]] = Counter()

    def step(self) -> dict[str, Any]:
        end = self.reader.latestOffset(self.at, ReadAllAvailable())
        if end != self.at:
            for partition in self.reader.partitions(self.at, end):
                for batch in self.reader.read(partition):
                    named = batch.select(["sender", "seqno"]).to_pydict().values()
                    self.read.update(zip(*named, strict=True))
            self.reader.commit(end)
        self.at = end
        return end


def messages(*ranges: tuple[OriginKey, int, int]) -> Counter[tuple[str, int]]:
    return Counter(
        (origin[0], at) for origin, first, last in ranges for at in range(first, last + 1)
    )


def table(archive: Path, **options: str) -> int:
    reader = ArchiveReader(Options.parse({"path": str(archive), **options}, is_stream=False))
    return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))


@pytest.fixture
def pruned(tmp_path: Path) -> Stream:
    """1..10 of web were read and pruned, and the next step came."""
    archive = tmp_path / "archive"
    write_file(archive, "one", 0, [Kept(WEB, 1, 10), Kept(APP, 1, 3)])
    stream = Stream(archive)
    stream.step()
    assert len(prune(archive, LATER).removed) == 1
    return stream


def test_what_was_read_after_a_prune_and_is_out_of_sight_is_not_read_twice(
    pruned: Stream, tmp_path: Path
) -> None:
    archive, inner, hidden = tmp_path / "archive", tmp_path / "archive" / "b", tmp_path / "hidden"
    write_file(inner, "one", 100, [Kept(WEB, 11, 20)])
    pruned.step()
    inner.rename(hidden)
    write_file(archive, "one", 200, [Kept(APP, 4, 6)])
    assert pruned.step()[WEB_TEXT] == 20
    hidden.rename(inner)
    write_file(archive, "one", 300, [Kept(APP, 7, 9)])
    pruned.step()
    assert pruned.read == messages((WEB, 1, 20), (APP, 1, 9))


def test_what_is_missing_behind_what_was_pruned_is_a_gap(pruned: Stream, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write_file(archive, "one", 100, [Kept(APP, 4, 6)])
    assert WEB_TEXT not in pruned.step()
    prune(archive, LATER)  # web is in nobody's position any more
    lost = write_file(archive, "one", 200, [Kept(WEB, 11, 20)])
    write_file(archive, "one", 300, [Kept(WEB, 21, 30)])
    lost.unlink()
    for read in (pruned.step, lambda: table(archive)):
        with pytest.raises(UsageError, match=r"messages 1\.\.20 of web.*no file has them"):
            read()
    write_file(archive, "one", 200, [Kept(WEB, 11, 20)])
    pruned.step()
    assert pruned.read == messages((WEB, 1, 30), (APP, 1, 6))


def test_a_file_that_another_tells_of_is_missed_where_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first messages of a sender are out of sight when it is met."""
    archive, inner, hidden = tmp_path / "archive", tmp_path / "archive" / "a", tmp_path / "hidden"
    first = write_file(inner, "one", 0, [Kept(WEB, 1, 10)])
    write_file(archive, "one", 100, [Kept(WEB, 11, 20)], before=first)
    inner.rename(hidden)
    told = rf"messages 1\.\.10 of web.*{first.name}: it is not there"
    for read in (Stream(archive).step, lambda: table(archive)):
        with pytest.raises(UsageError, match=told):
            read()
    assert table(archive, failOnGap="false") == 10
    assert "1..10 of web" in caplog.text
    patient = Stream(archive, gap_wait_s=3600)
    assert patient.step() == {}
    hidden.rename(inner)
    patient.step()
    assert patient.read == messages((WEB, 1, 20))


def test_what_came_before_the_first_archive_is_no_gap_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_file(tmp_path, "one", 0, [Kept(WEB, 11, 20)])
    assert table(tmp_path) == 10
    assert "messages 1..10 of web" in caplog.text


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_table_does_not_ask_what_time_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_torn: bool
) -> None:
    """The driver's clock may be behind that of the file server."""
    paths = [write_file(tmp_path, "one", at, [Kept(WEB, at + 1, at + 10)]) for at in (0, 10, 20)]
    tear(paths[1]) if is_torn else paths[1].unlink()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    with pytest.raises(UsageError, match="cannot be read"):
        table(tmp_path)
