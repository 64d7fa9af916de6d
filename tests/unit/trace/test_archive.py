"""The index of an archive: each message once, the same ones whenever it is asked, gaps by name."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

import itertools
from typing import TYPE_CHECKING

from ringcast.errors import UsageError
from ringcast.trace import whole
from ringcast.trace.archive import Index
from ringcast.trace.held import Position, Range, origin_text, parse_origin
from support.archives import APP, WEB, WEB_UNIFORM, Kept, tear, write_file
from support.shaky_disk import ShakyDisk

if TYPE_CHECKING:
    from ringcast.trace.archive import Piece

LATER = time.time() + 1e6
"""Every gap is old by then."""


def index_of(directory: Path) -> Index:
    index = Index(directory)
    index.refresh()
    return index


def ranges(pieces: list[Piece]) -> list[tuple[str, int, int, str]]:
    """(sender, first, last, who keeps it) of each, in order."""
    return [(piece.origin[0], piece.first, piece.last, piece.file.writer[0]) for piece in pieces]


def seqnos(pieces: list[Piece]) -> list[int]:
    return [seqno for piece in pieces for seqno in range(piece.first, piece.last + 1)]


def test_what_two_archives_keep_is_read_once_and_from_one_as_long_as_it_goes(
    tmp_path: Path,
) -> None:
    for writer, cuts in (("one", (1, 10, 20, 31)), ("two", (1, 15, 31))):
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            write_file(tmp_path, writer, 100 * number, [Kept(WEB, start, stop - 1)])
    plan = index_of(tmp_path).pieces({}, LATER)
    assert ranges(plan.pieces) == [("web", 1, 14, "two"), ("web", 15, 30, "two")]
    assert plan.gaps == {}
    assert plan.after({APP: 3}) == {WEB: 30, APP: 3}


def test_another_archive_closes_what_one_that_was_down_did_not_see(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 1, 9)])
    write_file(tmp_path, "one", 0, [Kept(WEB, 21, 30)], incarnation=2)
    write_file(tmp_path, "two", 0, [Kept(WEB, 1, 5)])
    write_file(tmp_path, "two", 100, [Kept(WEB, 6, 25)])
    plan = index_of(tmp_path).pieces({}, LATER)
    assert seqnos(plan.pieces) == list(range(1, 31))
    assert plan.gaps == {}


def test_a_gap_is_waited_at_and_then_passed_over_by_name(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 5, 9), Kept(APP, 1, 2)])
    write_file(tmp_path, "one", 100, [Kept(WEB, 12, 14)])
    index = index_of(tmp_path)
    young = index.pieces({WEB: 4}, passed_before=0.0)
    assert ranges(young.pieces) == [("app/1#2", 1, 2, "one"), ("web", 5, 9, "one")]
    assert young.gaps == {}
    old = index.pieces({}, LATER)
    assert seqnos([piece for piece in old.pieces if piece.origin == WEB]) == [
        *range(5, 10),
        *range(12, 15),
    ]
    assert old.gaps == {WEB: [Range(1, 4), Range(10, 11)]}


def test_what_closes_a_gap_later_does_not_change_a_step_that_passed_it(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 5, 9)])
    index = index_of(tmp_path)
    plan = index.pieces({}, LATER)
    end = Position(plan.after({}), plan.gaps)
    before = index.pieces_between({}, end.digest, end.gaps)
    write_file(tmp_path, "two", 0, [Kept(WEB, 1, 20)])
    index.refresh()
    again = Position.from_dict(end.to_dict())
    after = index.pieces_between({}, again.digest, again.gaps)
    assert seqnos(before) == seqnos(after) == [5, 6, 7, 8, 9]


def test_limits_cut_the_longest_visible_first(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 1, 9), Kept(APP, 1, 5)])
    write_file(tmp_path, "one", 100, [Kept(WEB, 10, 19)])
    plan = index_of(tmp_path).pieces({}, LATER)
    few = plan.first_messages(12)
    assert sum(piece.length for piece in few.pieces) == 12
    assert few.after({}) == {APP: 5, WEB: 7}
    assert plan.first_messages(1000).pieces == plan.pieces
    assert plan.first_files(1).after({}) == {APP: 5, WEB: 9}


def test_a_step_names_only_the_gaps_that_it_passed(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 1, 3), Kept(WEB, 5, 6), Kept(WEB, 8, 9)])
    plan = index_of(tmp_path).pieces({}, LATER)
    assert plan.gaps == {WEB: [Range(4, 4), Range(7, 7)]}
    assert plan.first_messages(3).gaps == {}
    assert plan.first_messages(4).gaps == {WEB: [Range(4, 4)]}


def test_what_is_gone_and_not_read_is_an_error(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 1, 3)])
    write_file(tmp_path, "one", 100, [Kept(WEB, 4, 6)]).unlink()
    with pytest.raises(UsageError, match=r"messages 4\.\.6 of web#\d+/fifo are not to be read"):
        index_of(tmp_path).pieces_between({WEB: 1}, {WEB: 6}, {})


def test_files_that_go_are_let_go_of(tmp_path: Path) -> None:
    path = write_file(tmp_path, "one", 0, [Kept(WEB, 1, 3)])
    write_file(tmp_path, "one", 100, [Kept(APP, 1, 3)])
    index = index_of(tmp_path)
    assert index.origins == [APP, WEB]
    path.unlink()
    index.refresh()
    assert index.origins == [APP]
    assert len(index.files) == 1


def test_files_of_others_are_named_and_left_out(tmp_path: Path) -> None:
    path = write_file(tmp_path, "one", 0, [Kept(WEB, 1, 3)])
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(path.read_bytes()[:-9])
    index = index_of(tmp_path)
    assert list(index.unreadable) == [str(torn)]
    (told,) = index.untold(LATER)
    assert told.startswith("torn.parquet: not a whole segment")
    assert index.untold(0.0) == []
    assert seqnos(index.pieces({}, LATER).pieces) == [1, 2, 3]
    torn.unlink()
    index.refresh()
    assert index.untold(LATER) == []


def test_a_file_that_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "PAUSES_S", ())
    path = write_file(tmp_path, "one", 0, [Kept(WEB, 1, 3)])
    index = Index(tmp_path)
    with ShakyDisk(path, every=1):
        index.refresh()
        assert seqnos(index.pieces({}, LATER).pieces) == []
        assert len(index.untold(LATER)) == 1
    index.refresh()
    assert seqnos(index.pieces({}, LATER).pieces) == [1, 2, 3]
    assert index.unreadable == {}


def test_a_file_system_that_fails_now_and_then_hides_nothing(tmp_path: Path) -> None:
    for number in range(20):
        place = tmp_path / f"folder {number % 3}"
        write_file(place, "one", 10 * number, [Kept(WEB, 3 * number + 1, 3 * number + 3)])
    with ShakyDisk(tmp_path, every=20) as disk:
        index = index_of(tmp_path)
    assert disk.failed >= 2
    assert seqnos(index.pieces({}, LATER).pieces) == list(range(1, 61))


def test_a_folder_that_does_not_tell_what_is_in_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "PAUSES_S", ())
    write_file(tmp_path / "inner", "one", 0, [Kept(WEB, 1, 3)])
    index = index_of(tmp_path)
    with (
        ShakyDisk(tmp_path / "inner", every=1),
        pytest.raises(UsageError, match="inner: what is in it cannot be read"),
    ):
        index.refresh()


def test_other_archives_stand_in_for_a_file_that_the_next_one_tells_of(tmp_path: Path) -> None:
    first = write_file(tmp_path, "one", 0, [Kept(WEB, 1, 9), Kept(APP, 1, 4)])
    write_file(tmp_path, "one", 100, [Kept(WEB, 10, 12)], before=first)
    write_file(tmp_path, "two", 0, [Kept(WEB, 1, 7)])
    write_file(tmp_path, "two", 100, [Kept(APP, 1, 2)])
    tear(first)
    index = index_of(tmp_path)
    assert index.untold(LATER) == []
    plan = index.pieces({}, LATER)
    assert sorted(ranges(plan.pieces)) == [
        ("app/1#2", 1, 2, "two"),
        ("web", 1, 7, "two"),
        ("web", 10, 12, "one"),
    ]
    assert plan.gaps == {WEB: [Range(8, 9)], APP: [Range(3, 4)]}
    for origin, (gap,) in plan.gaps.items():
        (told,) = index.lost_in(origin, gap)
        assert told.startswith(first.name)
    with pytest.raises(UsageError, match=rf"messages 8\.\.9 of web.*{first.name}"):
        list(index.stand_ins([(WEB, 1, 9)]))
    # Nothing is read behind what is lost at the end, so nothing is passed over there.
    assert plan.only_passed().gaps == {WEB: [Range(8, 9)]}


def test_what_lay_within_a_file_that_goes_counts_again(tmp_path: Path) -> None:
    write_file(tmp_path, "one", 0, [Kept(WEB, 1, 9)])
    write_file(tmp_path, "one", 100, [Kept(WEB, 10, 19)])
    whole = write_file(tmp_path / "merged", "one", 0, [Kept(WEB, 1, 19)])
    index = index_of(tmp_path)
    assert ranges(index.pieces({}, LATER).pieces) == [("web", 1, 19, "one")]
    whole.unlink()
    index.refresh()
    assert seqnos(index.pieces({}, LATER).pieces) == list(range(1, 20))


def test_copies_of_files_change_nothing(tmp_path: Path) -> None:
    one = write_file(tmp_path, "one", 0, [Kept(WEB, 1, 30)])
    write_file(tmp_path, "one", 100, [Kept(WEB, 31, 40)])
    within = write_file(tmp_path / "again", "one", 0, [Kept(WEB, 10, 12)])
    shutil.copy(one, tmp_path / "copy.parquet")
    assert within.parent != tmp_path
    assert seqnos(index_of(tmp_path).pieces({}, LATER).pieces) == list(range(1, 41))


def test_a_link_to_a_directory_is_left_out_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_file(tmp_path / "elsewhere", "one", 0, [Kept(WEB, 1, 3)])
    archive = tmp_path / "archive"
    write_file(archive, "one", 100, [Kept(WEB, 4, 6)])
    (archive / "link").symlink_to(tmp_path / "elsewhere")
    index = index_of(archive)
    index.refresh()
    assert seqnos(index.pieces({}, LATER).pieces) == [4, 5, 6]
    assert caplog.text.count(f"{archive / 'link'} is a link to a directory") == 1


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        Index(tmp_path / "nowhere").refresh()


@pytest.mark.parametrize("origin", [WEB, WEB_UNIFORM, APP, ("", 1, 0), ("a/b#c", 2, 1)])
def test_positions_come_back_whatever_senders_are_called(origin: tuple[str, int, int]) -> None:
    assert parse_origin(origin_text(origin)) == origin
    position = Position({origin: 5, WEB: 2**63 - 1}, {origin: [Range(1, 2), Range(4, 4)]})
    assert Position.from_dict(position.to_dict()) == position


@pytest.mark.parametrize(
    "values",
    [
        {"web": 1},
        {"web#1/fifo": -1},
        {"web#1/fifo": "1"},
        {"web#1/fifo": True},
        {"web#x/fifo": 1},
        {"web#1/other": 1},
        {"gaps": [1]},
        {"gaps": {"web#1/fifo": [[1]]}},
    ],
)
def test_what_is_no_position_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="not a position"):
        Position.from_dict(values)


SEGMENTS = st.lists(
    st.tuples(st.sampled_from(["one", "two", "three"]), st.integers(1, 40), st.integers(0, 15)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60)
@given(SEGMENTS, st.integers(0, 30), st.integers(1, 30))
def test_from_anywhere_in_steps_of_any_size_each_message_comes_once(
    segments: list[tuple[str, int, int]], start: int, step: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        held: set[int] = set()
        for number, (writer, first, length) in enumerate(segments):
            write_file(Path(name), writer, 100 * number, [Kept(WEB, first, first + length)])
            held |= set(range(first, first + length + 1))
        index = index_of(Path(name))
        at = {WEB: start}
        read: list[int] = []
        while (plan := index.pieces(at, LATER).first_messages(step)).pieces:
            end = plan.after(at)
            found = seqnos(index.pieces_between(at, end, plan.gaps))
            assert found == seqnos(plan.pieces)
            assert len(found) <= step
            read += found
            at = end
        assert read == sorted(seqno for seqno in held if seqno > start)
