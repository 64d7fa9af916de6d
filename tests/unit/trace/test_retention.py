"""Retention: what a query has not read stays, and only that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast.errors import UsageError
from ringcast.trace.held import Position
from ringcast.trace.retention import Query, prune, pruned_origins, queries
from ringcast.trace.segments import segment_paths
from support.archives import APP, WEB, Kept, tear, write_file
from support.shaky_disk import ShakyDisk

if TYPE_CHECKING:
    from pathlib import Path

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


def test_only_what_was_pruned_leaves_the_positions(tmp_path: Path, files: list[Path]) -> None:
    """And not what is out of sight for a moment."""
    query = Query(tmp_path, "q")
    query.begin()
    query.commit(Position({WEB: 19, APP: 2}))
    hidden = tmp_path.with_name("hidden")
    files[1].rename(hidden)
    prune(tmp_path, before=0.0)
    assert pruned_origins(tmp_path) == set()
    prune(tmp_path, LATER)
    assert pruned_origins(tmp_path) == {WEB}  # of app nothing was removed
    hidden.rename(files[1])
    prune(tmp_path, before=0.0)
    assert pruned_origins(tmp_path) == set()
    prune(tmp_path, LATER)
    assert pruned_origins(tmp_path) == {WEB, APP}
    query.commit(Position({WEB: 19}))
    prune(tmp_path, LATER)
    assert pruned_origins(tmp_path) == {WEB}


def test_who_was_read_further_than_what_was_pruned_is_out_of_sight(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 1, 9)])
    query = Query(tmp_path, "q")
    query.begin()
    query.commit(Position({WEB: 12}))
    assert len(prune(tmp_path, LATER).removed) == 1
    assert pruned_origins(tmp_path) == set()


def test_while_a_file_tells_nothing_nobody_is_known_to_be_pruned(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 1, 9)])
    tear(write_file(tmp_path, "one", 100, [Kept(WEB, 10, 12)]))
    query = Query(tmp_path, "q")
    query.begin()
    query.commit(Position({WEB: 9}))
    assert len(prune(tmp_path, LATER).removed) == 1
    assert pruned_origins(tmp_path) == set()


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
