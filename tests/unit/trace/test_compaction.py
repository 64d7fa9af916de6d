"""Compaction: fewer files, the same messages and rows, whoever reads, prunes or dies meanwhile."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs ringcast[spark]")

from typing import TYPE_CHECKING

from ringcast.errors import UsageError
from ringcast.spark.messages import read_messages, tasks_of
from ringcast.trace import compaction
from ringcast.trace.archive import Index
from ringcast.trace.compaction import compact
from ringcast.trace.disks import Listing, LocalDisk
from ringcast.trace.retention import Query, keeping_prune_out, prune
from ringcast.trace.segments import Segment, segment_paths
from ringcast.trace.whole import held_alone
from support.archives import APP, WEB, Kept, damage, payload, tear, told, write_file
from support.modes import PRIVATE, modes_below, umask

if TYPE_CHECKING:
    from ringcast.trace.archive import Piece
    from ringcast.trace.rows import Row

LATER = 4e9
FILES = 6
STEP = 9
"""Messages of WEB to a file; and one of APP."""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """One archive with some small files, each of which continues the one before, to its end."""
    write_files(tmp_path / "archive")
    return tmp_path / "archive"


def write_files(directory: Path, count: int = FILES, *, has_end: bool = True) -> list[Path]:
    paths: list[Path] = []
    idx = 0
    for number in range(count):
        first = number * STEP + 1
        kept = [Kept(WEB, first, first + STEP - 1), Kept(APP, number + 1, number + 1)]
        before = paths[-1] if paths else None
        is_last = has_end and number == count - 1
        paths.append(write_file(directory, "one", idx, kept, before=before, is_last=is_last))
        with Segment(paths[-1]) as segment:
            idx = segment.info.last_idx + 1
    return paths


def rows_of(directory: Path) -> list[Row]:
    rows: list[Row] = []
    for path in segment_paths(directory):
        with Segment(path) as segment:
            rows += segment.rows()
    return rows


def plan(directory: Path) -> list[Piece]:
    index = Index(directory)
    index.refresh()
    found = index.pieces({}, LATER)
    assert found.gaps == {}
    return found.pieces


def read(directory: Path, pieces: list[Piece]) -> list[tuple[str, int]]:
    """Whose messages, and which. What is in them is checked on the way."""
    found = []
    for task in tasks_of(pieces):
        for batch in read_messages(str(directory), task):
            for row in batch.to_pylist():
                origin = WEB if row["sender"] == "web" else APP
                assert row["payload"] == payload(origin, row["seqno"])
                found.append((row["sender"], row["seqno"]))
    return sorted(found)


EVERYTHING = sorted(
    [("web", seqno) for seqno in range(1, FILES * STEP + 1)]
    + [(APP[0], seqno) for seqno in range(1, FILES + 1)]
)


def test_files_become_one_with_the_same_messages_and_rows(archive: Path) -> None:
    rows = rows_of(archive)
    done = compact(archive)
    (path,) = segment_paths(archive)
    assert (done.merged, done.made, done.left_out) == (FILES, [path], [])
    assert rows_of(archive) == rows
    assert read(archive, plan(archive)) == EVERYTHING
    with Segment(path) as segment:
        assert len(segment.groups) == 1
        assert (segment.info.first_idx, segment.info.last_idx) == (0, rows[-1].idx)
    again = compact(archive)
    assert (again.merged, again.made) == (0, [])


def test_what_was_planned_before_is_read_after(archive: Path) -> None:
    """The files that were planned are gone: what they were merged into stands in for them."""
    pieces = plan(archive)
    index = Index(archive)
    index.refresh()
    compact(archive)
    assert read(archive, pieces) == EVERYTHING
    index.refresh()
    assert read(archive, index.pieces({}, LATER).pieces) == EVERYTHING


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_who_is_killed_anywhere_loses_and_doubles_nothing(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(Path, call)
    points = 0
    for survived in range(FILES + 1):
        shutil.rmtree(archive)
        write_files(archive)
        rows = rows_of(archive)
        left = survived

        def doomed(path: Path, *rest: object, **named: object) -> object:
            nonlocal left
            if (path.name.startswith("one") and path.suffix == ".parquet") or call == "rename":
                if left == 0:
                    raise Killed
                left -= 1
            return real(path, *rest, **named)

        with monkeypatch.context() as dying:
            dying.setattr(Path, call, doomed)
            try:
                compact(archive)
            except Killed:
                points += 1
        assert read(archive, plan(archive)) == EVERYTHING
        compact(archive)
        assert len(segment_paths(archive)) == 1
        assert rows_of(archive) == rows
        assert list(archive.glob("*.part")) == []
    assert points == (1 if call == "rename" else FILES)


def test_what_is_pruned_meanwhile_does_not_come_back(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pruned_before(directory: Path) -> object:
        prune(directory, LATER)
        return keeping_prune_out(directory)

    monkeypatch.setattr(compaction, "keeping_prune_out", pruned_before)
    assert compact(archive).made == []
    assert segment_paths(archive) == []


def test_a_merged_file_is_as_old_as_what_went_into_it(archive: Path) -> None:
    newest = max(path.stat().st_ctime for path in segment_paths(archive))
    compact(archive)
    assert prune(archive, newest).removed == []
    assert len(prune(archive, newest + 1e-6).removed) == 1


def test_a_damaged_file_is_named_and_left_as_it_is(archive: Path) -> None:
    paths = segment_paths(archive)
    tear(paths[2])
    damage(paths[5])
    done = compact(archive)
    assert [reason.split(":")[0] for reason in done.left_out] == [paths[2].name, paths[5].name]
    assert {paths[2], paths[5]} < set(segment_paths(archive))
    assert done.merged == 2  # those before the first; nothing was merged with the second
    index = Index(archive)
    index.refresh()
    assert index.untold(LATER) == []  # who came after it tells what is in it


def test_files_that_do_not_continue_each_other_stay(tmp_path: Path) -> None:
    write_files(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    write_file(tmp_path / "one", "one", 1000, [Kept(WEB, 100, 110)])
    write_file(tmp_path / "one", "two", 0, [Kept(WEB, 1, 5)])
    write_file(tmp_path / "one", "two", 3, [Kept(WEB, 6, 9)], incarnation=2)
    done = compact(tmp_path)
    assert done.merged == 2 * FILES
    assert sorted(path.parent.name for path in done.made) == ["one", "two"]
    assert len(segment_paths(tmp_path)) == 5


def test_merged_files_have_a_bound_and_tell_of_each_other(archive: Path) -> None:
    size = max(path.stat().st_size for path in segment_paths(archive))
    done = compact(archive, bytes_max=3 * size)
    assert len(done.made) >= 2
    assert read(archive, plan(archive)) == EVERYTHING
    tear(segment_paths(archive)[0])
    index = Index(archive)
    index.refresh()
    assert index.untold(LATER) == []
    # Those that are half as large as they may be are left as they are.
    assert compact(archive, bytes_max=size).made == []


@pytest.mark.parametrize(
    ("modes", "merged"), [((0o640, 0o640), 0o640), ((0o644, 0o660), 0o640), ((0o666, 0o666), 0o664)]
)
def test_whoever_may_read_all_files_may_read_the_merged_one(
    archive: Path, modes: tuple[int, int], merged: int
) -> None:
    for path, mode in zip(segment_paths(archive), FILES // 2 * modes, strict=True):
        path.chmod(mode)
    (path,) = compact(archive).made
    assert path.stat().st_mode & 0o777 == merged


def test_what_is_noted_in_an_archive_is_its_owners_alone(archive: Path) -> None:
    with umask(0):
        Query(archive, "revenue").begin()
        compact(archive)
        prune(archive, LATER)
    for name in ("queries", ".compact"):
        assert modes_below(archive / name) == PRIVATE


def test_nobody_looks_for_segments_in_what_others_note(archive: Path) -> None:
    """They may not be allowed to."""
    for name in (".audit", ".compact"):
        shutil.copytree(archive, archive.parent / name)
        (archive.parent / name).rename(archive / name)
    assert len(segment_paths(archive)) == FILES


def test_one_at_a_time(archive: Path) -> None:
    with (
        held_alone(archive / ".compact"),
        pytest.raises(UsageError, match="another process works here"),
    ):
        compact(archive)


def test_a_file_that_appears_while_files_are_listed_is_not_missed(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing that begins before the merged file has its name and ends when others are gone."""
    real = os.scandir
    old = list(real(archive))
    compact(archive)
    gone = [entry for entry in old if not Path(entry.path).exists()]
    looks = 0

    class Late:
        def __enter__(self) -> list[os.DirEntry[str]]:
            return [entry for entry in old if entry not in gone]

        def __exit__(self, *_: object) -> None: ...

    def listed(place: str) -> object:
        nonlocal looks
        looks += 1
        return Late() if looks == 1 else real(place)

    monkeypatch.setattr(os, "scandir", listed)
    assert read(archive, plan(archive)) == EVERYTHING


@pytest.mark.parametrize("runs", [1, 2])
def test_replicas_stand_in_for_merged_files_while_their_archive_goes_on(
    tmp_path: Path, runs: int
) -> None:
    """Its next file tells of the one that was its last when files were merged."""
    one = tmp_path / "one"
    last = write_files(one, 4, has_end=False)[-1]
    write_files(tmp_path / "two")
    for number in (4, 5)[-runs:]:
        before = told(last)
        compact(one)
        first, idx = number * STEP + 1, before_end(one)
        kept = [Kept(WEB, first, first + STEP - 1), Kept(APP, number + 1, number + 1)]
        last = write_file(one, "one", idx, kept, before=before)
    merged = [path for path in segment_paths(one) if path != last]
    assert len(merged) == 2
    for path in merged:
        content = path.read_bytes()
        tear(path)
        index = Index(tmp_path)
        index.refresh()
        assert list(index.unreadable) == [str(path)]
        assert index.untold(LATER) == []
        assert index.absent == {}
        path.write_bytes(content)
    assert compact(one).merged == 3
    again = compact(one)
    assert (again.merged, again.made) == (0, [])


def before_end(directory: Path) -> int:
    """The next row of this archive."""
    with Segment(segment_paths(directory)[-1]) as segment:
        return segment.info.last_idx + 1


def test_what_is_told_of_a_part_of_a_merged_file_is_not_all_of_it(tmp_path: Path) -> None:
    """As versions up to 0.2 merged: also the newest file."""
    tail = told(write_files(tmp_path, 3)[-1])
    (merged,) = compact(tmp_path).made
    idx = before_end(tmp_path)
    write_file(tmp_path, "one", idx, [Kept(WEB, 3 * STEP + 1, 4 * STEP)], before=tail)
    tear(merged)
    index = Index(tmp_path)
    index.refresh()
    (why,) = index.untold(LATER)
    assert why.startswith(merged.name)


@pytest.mark.parametrize("opened", [0, 3])
def test_files_that_are_merged_before_they_are_opened_are_not_missed(
    archive: Path, monkeypatch: pytest.MonkeyPatch, opened: int
) -> None:
    """They are listed, the merged one is not; those that are opened already stay no longer."""
    real = Index._add
    left = opened

    def add(index: Index, path: str) -> bool:
        nonlocal left
        left -= 1
        if left == -1:
            compact(archive)
        return real(index, path)

    monkeypatch.setattr(Index, "_add", add)
    assert read(archive, plan(archive)) == EVERYTHING
    assert left < -1


def test_files_are_merged_again_while_others_stand_in(archive: Path) -> None:
    size = max(path.stat().st_size for path in segment_paths(archive))
    tasks = tasks_of(plan(archive))
    compact(archive, bytes_max=3 * size)
    batches = read_messages(str(archive), itertools.chain(*tasks))
    found = next(batches)["seqno"].to_pylist()
    compact(archive)
    assert len(segment_paths(archive)) == 1
    for batch in batches:
        found += batch["seqno"].to_pylist()
    assert len(found) == len(EVERYTHING)


def test_a_file_that_is_listed_and_never_there_is_named(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [*segment_paths(archive), archive / "gone.parquet"]
    listing = Listing(frozenset(map(str, there)), {}, 0.0)
    monkeypatch.setattr(LocalDisk, "listing", lambda *_: listing)
    with pytest.raises(UsageError, match=r"gone\.parquet: it is listed, and gone whenever"):
        plan(archive)


def test_a_link_that_leads_nowhere_is_a_file_that_cannot_be_read(archive: Path) -> None:
    (archive / "link.parquet").symlink_to(archive / "nowhere")
    index = Index(archive)
    index.refresh()
    (told,) = index.untold(LATER)
    assert told.startswith("link.parquet: cannot be read")
