"""Digests are merged where files are read; whatever the files are called, the verdicts are those of
each file read by itself."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from ringcast.spark import audit as auditing
from ringcast.spark import states
from ringcast.spark.audit import audit, audit_states
from ringcast.spark.states import parse_states, read_states, summarize_files
from ringcast.trace.segments import segment_paths, write_segment
from support.shaky_disk import ShakyDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces
    from pyspark.sql import SparkSession

    from ringcast.spark.report import Report


def write(traces: Traces, directory: Path, piece_rows: int) -> None:
    directory.mkdir()
    for name, rows in traces.rows.items():
        for start in range(0, len(rows), piece_rows):
            piece = rows[start : start + piece_rows]
            is_last = start + piece_rows >= len(rows) and name in traces.stopped
            lost = traces.lost.get(name, 0)
            write_segment(directory, traces.recordings[name], piece, is_last=is_last, lost=lost)


@pytest.fixture(scope="module")
def planted(recorded: Traces, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which something is to be found."""
    traces = recorded.copy()
    at = traces.find("b", event="deliver", peer="a", stream=0, seqno=12)
    traces.insert("b", at + 2, traces.rows["b"][at])
    directory = tmp_path_factory.mktemp("states") / "run"
    write(traces, directory, 20)
    return directory


def file_by_file(directory: Path) -> Report:
    said = summarize_files(None, segment_paths(directory))
    return audit_states(None, directory, *parse_states(said.items()))


def names(report: Report) -> list[str]:
    """Of the files that count: of two copies it may be either."""
    return sorted(path.rpartition("/")[2] for path in report.paths)


OTHERS = [(1, True), (5, False)]


def as_they_are(directory: Path) -> None:
    pass


def called_anything(directory: Path) -> None:
    paths = segment_paths(directory)
    random.Random(7).shuffle(paths)
    for at, path in enumerate(paths):
        path.rename(directory / f"{at:05}.parquet")


def all_twice(directory: Path) -> None:
    shutil.copytree(directory, directory / "again")


def some_twice_under_other_names(directory: Path) -> None:
    for path in segment_paths(directory)[5:25]:
        shutil.copy(path, directory / f"a copy of {path.name}")


def one_gone(directory: Path) -> None:
    segment_paths(directory)[10].unlink()


def one_damaged(directory: Path) -> None:
    segment_paths(directory)[10].write_bytes(b"PAR1")


@pytest.mark.parametrize(
    "happen",
    [
        as_they_are,
        called_anything,
        all_twice,
        some_twice_under_other_names,
        one_gone,
        one_damaged,
    ],
)
@pytest.mark.parametrize(
    ("tasks", "is_merged_again"),
    [(1, False), (5, True), *(pytest.param(*each, marks=pytest.mark.proof) for each in OTHERS)],
)
def test_what_is_merged_says_what_each_file_says(
    planted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    happen: Callable[[Path], None],
    tasks: int,
    is_merged_again: bool,
) -> None:
    monkeypatch.setattr(states, "TASKS_HERE", tasks)
    if is_merged_again:
        monkeypatch.setattr(states, "MERGED_FILES", 1)
    directory = shutil.copytree(planted, tmp_path / "run")
    happen(directory)
    merged, apart = audit(None, directory), file_by_file(directory)
    assert sorted(merged.notes) == sorted(apart.notes)
    assert names(merged) == names(apart)
    assert merged.verdicts == apart.verdicts
    assert merged.exit_status == 1
    assert (merged.segments, merged.rows) == (apart.segments, apart.rows)


def test_what_comes_back_grows_with_the_members_and_not_with_the_segments(
    traces: Traces, tmp_path: Path
) -> None:
    sizes = {}
    for piece_rows in (60, 15):
        directory = tmp_path / str(piece_rows)
        write(traces, directory, piece_rows)
        found, refused = read_states(None, segment_paths(directory))
        assert refused == []
        assert sorted(state.info.node for state in found) == list("abcde")
        sizes[piece_rows] = sum(len(state.summary.to_json()) for state in found)
        assert sum(len(state.paths) for state in found) == len(segment_paths(directory))
    assert sizes[15] == sizes[60]
    assert len(segment_paths(tmp_path / "15")) > 3 * len(segment_paths(tmp_path / "60"))


def test_files_that_vanish_after_they_were_listed_are_listed_again(
    traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(traces, tmp_path / "run", 20)
    gone = tmp_path / "run" / "gone.parquet"
    listings = [[gone, *segment_paths(tmp_path / "run")], segment_paths(tmp_path / "run")]
    monkeypatch.setattr(auditing, "find_segments", lambda _: listings.pop(0))
    assert audit(None, tmp_path / "run").exit_status == 0
    assert listings == []
    listings += 10 * [[gone, *segment_paths(tmp_path / "run")]]
    report = audit(None, tmp_path / "run")
    assert report.exit_status == 3
    assert "gone.parquet: cannot be read: No such file" in report.verdicts[0].detail


def test_a_disk_that_fails_now_and_then_changes_nothing(planted: Path) -> None:
    before = audit(None, planted).to_json()
    with ShakyDisk(planted, every=10) as disk:
        assert audit(None, planted).to_json() == before
    assert disk.failed >= 5


def test_executors_merge_as_one_process_does(
    spark: SparkSession, planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(planted, tmp_path / "run")
    some_twice_under_other_names(directory)
    here = audit(None, directory)
    monkeypatch.setattr(states, "MERGED_FILES", 1)
    monkeypatch.setattr(states, "tasks_for", lambda *_: 5)
    assert audit(spark, directory).to_json() == here.to_json()
