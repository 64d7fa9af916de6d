"""Retention: what a query has not read stays, and only that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast.errors import UsageError
from ringcast.trace import retention
from ringcast.trace.archive import Index
from ringcast.trace.held import Position
from ringcast.trace.retention import Query, prune, queries
from ringcast.trace.segments import segment_paths
from support.archives import APP, WEB, Kept, write_file
from support.shaky_disk import ShakyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.trace.rows import OriginKey

LATER = 4e9
"""All files are old by then."""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [
        write_file(tmp_path, "one", 0, [Kept(WEB, 1, 9)]),
        write_file(tmp_path, "one", 100, [Kept(WEB, 10, 19), Kept(APP, 1, 2)]),
        write_file(tmp_path, "two", 0, [Kept(WEB, 1, 19)]),
    ]


def test_without_queries_age_alone_counts(tmp_path: Path, files: list[Path]) -> None:
    assert prune(tmp_path, before=0.0).removed == []
    trial = prune(tmp_path, LATER, is_trial=True)
    assert len(trial.removed) == 3
    assert trial.size == sum(path.stat().st_size for path in files)
    assert segment_paths(tmp_path) == sorted(files)
    assert prune(tmp_path, LATER).removed == trial.removed
    assert segment_paths(tmp_path) == []


def test_what_any_query_has_not_committed_stays(tmp_path: Path, files: list[Path]) -> None:
    fast, slow = Query(tmp_path, "fast"), Query(tmp_path, "slow")
    for query in (fast, slow):
        query.begin()
    fast.commit(Position({WEB: 19, APP: 2}))
    slow.commit(Position({WEB: 12, APP: 2}))
    pruned = prune(tmp_path, LATER)
    assert [file.path for file in pruned.removed] == [str(files[0])]
    assert pruned.kept_for == {"slow": 2}
    slow.commit(Position({WEB: 19}))
    assert prune(tmp_path, LATER).kept_for == {"slow": 1}  # nothing of app is committed
    assert segment_paths(tmp_path) == [files[1]]
    slow.forget()
    assert len(prune(tmp_path, LATER).removed) == 1


def test_a_query_that_begins_again_needs_everything(tmp_path: Path, files: list[Path]) -> None:
    Query(tmp_path, "q").begin()
    Query(tmp_path, "q").commit(Position({WEB: 19, APP: 2}))
    Query(tmp_path, "q").ensure()
    assert Query(tmp_path, "q").committed.digest == {WEB: 19, APP: 2}
    Query(tmp_path, "q").begin()
    assert prune(tmp_path, LATER).removed == []
    assert [query.name for query in queries(tmp_path)] == ["q"]


def test_two_queries_of_one_name_are_found_out(tmp_path: Path) -> None:
    one, two = Query(tmp_path, "q"), Query(tmp_path, "q")
    one.begin()
    two.commit(Position({WEB: 1}))
    with pytest.raises(UsageError, match="another query commits as 'q'"):
        one.commit(Position({WEB: 2}))


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 65])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a query's name"):
        Query(tmp_path, name)


def test_a_damaged_registration_removes_nothing(tmp_path: Path, files: list[Path]) -> None:
    Query(tmp_path, "q").begin()
    (tmp_path / "queries" / "q.json").write_text("{}")
    with pytest.raises(UsageError, match="damaged"):
        prune(tmp_path, LATER)
    assert segment_paths(tmp_path) == sorted(files)


def test_what_killed_writers_left_goes_when_it_is_old(tmp_path: Path) -> None:
    old, new = tmp_path / "old.part", tmp_path / "new.part"
    for path in (old, new):
        path.touch()
    os.utime(old, (1, 1))
    prune(tmp_path, before=2.0)
    assert (old.exists(), new.exists()) == (False, True)


def noted(directory: Path) -> dict[OriginKey, int]:
    index = Index(directory)
    index.refresh()
    return index.pruned


def test_up_to_where_messages_were_pruned_is_noted(tmp_path: Path, files: list[Path]) -> None:
    """And nothing of what is out of sight for a moment."""
    hidden = tmp_path.with_name("hidden")
    files[1].rename(hidden)
    prune(tmp_path, before=0.0)
    assert noted(tmp_path) == {}
    prune(tmp_path, LATER)
    assert noted(tmp_path) == {WEB: 19}
    hidden.rename(files[1])
    prune(tmp_path, LATER)
    assert noted(tmp_path) == {WEB: 19, APP: 2}
    write_file(tmp_path, "one", 200, [Kept(WEB, 20, 29)])
    prune(tmp_path, LATER)
    assert noted(tmp_path) == {WEB: 29, APP: 2}


def test_it_is_noted_before_anything_is_removed(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks at the directory meanwhile misses nothing that is not noted."""

    real = os.unlink

    def refused(path: str) -> None:
        if str(path).endswith(".parquet"):
            raise PermissionError
        real(path)

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(PermissionError):
        prune(tmp_path, LATER)
    assert noted(tmp_path) == {WEB: 19, APP: 2}


def test_of_whom_nobody_speaks_only_some_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PRUNED_MAX", 2)
    origins: list[OriginKey] = [(f"client {at}", 1, 0) for at in range(6)]
    query = Query(tmp_path, "q")
    query.begin()
    query.commit(Position(dict.fromkeys(origins, 3)))
    for at, origin in enumerate(origins):
        first = write_file(tmp_path, "one", 100 * at, [Kept(origin, 1, 3)])
        assert len(prune(tmp_path, LATER).removed) == 1
    assert list(noted(tmp_path)) == origins
    first = write_file(tmp_path, "one", 1000, [Kept(origins[1], 4, 5)])
    second = write_file(tmp_path, "one", 2000, [Kept(WEB, 1, 3)], before=first)
    query.commit(Position({origins[0]: 3, origins[1]: 5}))
    prune(tmp_path, LATER)
    # The query speaks of the first, a file of the second; the last two went last.
    assert second.exists()
    assert noted(tmp_path) == {origins[0]: 3, origins[1]: 5, origins[4]: 3, origins[5]: 3}


def test_what_version_0_2_pruned_is_not_missed(tmp_path: Path, files: list[Path]) -> None:
    """It noted of whom nothing is left, and not up to where."""
    write_file(tmp_path, "one", 200, [Kept(WEB, 20, 29)], before=files[1])
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "pruned").write_text("[]")
    for path in files:
        path.unlink()
    assert noted(tmp_path) == {WEB: 19, APP: 2}
    prune(tmp_path, before=0.0)
    assert noted(tmp_path) == {WEB: 19, APP: 2}


@pytest.mark.parametrize("text", ["{", '{"web": 1}', "null", '{"web#1/fifo": "x"}'])
def test_a_damaged_note_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "pruned").write_text(text)
    with pytest.raises(UsageError, match="pruned is damaged"):
        noted(tmp_path)


def test_a_disk_that_is_busy_does_not_forget_a_query(tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    query.begin()
    query.commit(Position({WEB: 9}))
    with ShakyDisk(tmp_path, every=3) as disk:
        for seqno in range(10, 20):
            query.commit(Position({WEB: seqno}))
            assert Query(tmp_path, "q").committed.digest == {WEB: seqno}
    assert disk.failed


def test_who_is_unknown_cannot_be_forgotten(tmp_path: Path) -> None:
    Query(tmp_path, "revenue").begin()
    with pytest.raises(UsageError, match="no query 'other' here; there are: revenue"):
        Query(tmp_path, "other").forget()
