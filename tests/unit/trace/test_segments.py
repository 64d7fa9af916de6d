"""Segments: what is written is read back; what is not whole is never taken for whole."""

from __future__ import annotations

import io
import json
import random
import re
import resource
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ringcast.errors import UsageError
from ringcast.trace import sealed, segments, whole
from ringcast.trace.columns import PAYLOADS, SCHEMA
from ringcast.trace.files import facts_from_values
from ringcast.trace.footer import Recording
from ringcast.trace.held import Range
from ringcast.trace.rows import Facts, Row
from ringcast.trace.sealed import VERSION, OtherVersion, Unreadable
from ringcast.trace.segments import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    Segment,
    SegmentWriter,
    segment_paths,
    write_segment,
    write_trace_segments,
)
from support.sealing import info_of, seal, write_sealed
from support.shaky_disk import ShakyDisk

ROW_ROWS = 1024
VERSION_1 = Path(__file__).parents[2] / "fixtures" / "segment-version-1.parquet"
RECORDING = Recording(
    run_id="run", node="a", inc=2**64 - 1, host="here", boot_id="boot", group="orders"
)


def some_rows(count: int, first_idx: int = 0) -> list[Row]:
    """Rows that use every column."""
    return [
        Row(
            *("deliver" if idx % 3 else "view", "a", 2**64 - 1, idx, -1, 1000 * idx, "b", 2**63, 1),
            *(60 * idx + 1, 60 * idx + 60, 7, "a#1", ("a#1", "b#2") if idx % 3 == 0 else ()),
            *(1, 2, 3, 4, 5, 6, "kind", idx, 2**64 - 1 - idx, "detail", 1, 8, 9),
        )
        for idx in range(first_idx, first_idx + count)
    ]


@pytest.mark.parametrize("count", [1, 100, ROW_GROUP_ROWS + 1])
def test_rows_come_back_as_they_were(tmp_path: Path, count: int) -> None:
    rows = some_rows(count)
    path = write_segment(tmp_path, RECORDING, rows, lost=3, is_last=True)
    with Segment(path) as segment:
        assert segment.rows() == rows
        info = segment.info
    assert (info.run_id, info.node, info.inc) == ("run", "a", 2**64 - 1)
    assert info.group == "orders"
    assert (info.rows, info.first_idx, info.last_idx) == (count, 0, count - 1)
    assert (info.schema, info.lost, info.is_last) == (VERSION, 3, True)


def test_every_column_of_a_row_is_stored() -> None:
    assert set(Row._fields) < set(SCHEMA.names)
    assert set(SCHEMA.names) - set(Row._fields) == {"run_id", "host", "boot_id", "wall_ns"}


def test_the_wall_clock_is_the_monotonic_one_and_an_offset(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, RECORDING)
    writer.add(some_rows(2), wall_offset_ns=5)
    table = pq.read_table(writer.finish(), columns=["wall_ns", "host", "boot_id"])
    assert table.to_pylist() == [
        {"wall_ns": 5, "host": "here", "boot_id": "boot"},
        {"wall_ns": 1005, "host": "here", "boot_id": "boot"},
    ]


def test_files_are_compact_and_encoded_as_meant(tmp_path: Path) -> None:
    rows = [
        Row("deliver", "a", 1, idx, -1, 1000 * idx, "b", 2, 0, 60 * idx + 1, 60 * idx + 60)
        for idx in range(10_000)
    ]
    path = write_segment(tmp_path, RECORDING, rows)
    assert path.stat().st_size < 3 * len(rows)
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    encodings = {column.path_in_schema: column.encodings for column in columns}
    assert "DELTA_BINARY_PACKED" in encodings["seqno"]
    assert {column.compression for column in columns} == {"ZSTD"}


def test_nothing_is_visible_before_it_is_whole(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, RECORDING)
    writer.add(some_rows(ROW_GROUP_ROWS))
    assert list(tmp_path.iterdir()) != []
    assert segment_paths(tmp_path) == []
    path = writer.finish()
    assert segment_paths(tmp_path) == list(tmp_path.iterdir()) == [path]


def test_an_abandoned_segment_leaves_nothing(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, RECORDING)
    writer.add(some_rows(ROW_GROUP_ROWS))
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../etc/x", "a b", "\x1b[31m", "ü" * 500, "", "a\0b", "/"])
def test_names_of_members_never_make_paths(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    path = write_segment(inside, Recording(run_id=name, node=name, inc=1), some_rows(1))
    assert path.parent == inside
    assert path.name.isascii()
    assert path.name.isprintable()
    assert len(path.name) < 120
    with Segment(path) as segment:
        assert segment.info.node == segment.info.run_id == name


def test_members_that_look_alike_have_different_files(tmp_path: Path) -> None:
    for node in ("a b", "a_b", "a/b"):
        write_segment(tmp_path, Recording(run_id="run", node=node, inc=1), some_rows(1))
    assert len(segment_paths(tmp_path)) == 3


@pytest.mark.parametrize("kept", [0, 3, 100, -8, -1])
def test_a_torn_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UsageError, match="not a whole segment"):
        Segment(path)


def test_parquet_of_others_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"idx": [1, 2]}), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="not a whole segment"):
        Segment(tmp_path / "other.parquet")


@pytest.mark.parametrize(
    "footer", [b"", b"no json", b"7", b"[]", b"{}", b"\xff\xfe", b"1" * 5000, b"[" * 100_000]
)
def test_a_footer_of_others_under_our_key_is_refused(tmp_path: Path, footer: bytes) -> None:
    path = tmp_path / "other.parquet"
    table = pa.table({"idx": [1, 2]}).replace_schema_metadata({b"ringcast": footer})
    pq.write_table(table, path)
    with pytest.raises(UsageError, match="not a whole segment"):
        Segment(path)


def test_a_footer_that_promises_more_rows_is_refused(tmp_path: Path) -> None:
    path = with_footer(write_segment(tmp_path, RECORDING, some_rows(10)), rows=11)
    with pytest.raises(Unreadable, match="rows are missing"):
        Segment(path)


def test_damaged_pages_are_an_error_not_rows(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(1000))
    data = bytearray(path.read_bytes())
    data[4:600] = bytes(596)
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"damaged|not a whole segment"), Segment(path) as segment:
        segment.rows()


def test_any_byte_that_is_damaged_is_found_and_the_file_named(tmp_path: Path) -> None:
    """Such as one that makes a page of rows another kind of page, which readers pass over."""
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    data = path.read_bytes()
    for at in (*range(4), *range(4, len(data), 29), *range(len(data) - 40, len(data))):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(Unreadable, match=re.escape(path.name)), Segment(path) as segment:
            segment.check_rows()


def test_other_readers_take_a_segment_for_plain_parquet(tmp_path: Path) -> None:
    rows = some_rows(ROW_GROUP_ROWS + 1)
    path = write_segment(tmp_path, RECORDING, rows)
    total = sum(row.seqno for row in rows)
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        assert pc.sum(file.read(["seqno"])["seqno"]).as_py() == total
    asked = duckdb.sql(f"SELECT count(*), sum(seqno) FROM '{path}'").fetchall()
    assert asked == [(len(rows), total)]


def test_pages_have_checksums_of_their_own(tmp_path: Path) -> None:
    """For readers that know nothing of the seal."""
    path = write_segment(tmp_path, RECORDING, some_rows(1000))
    data = bytearray(path.read_bytes())
    about = pq.read_metadata(path).row_group(0).column(SCHEMA.names.index("block_hash"))
    data[about.data_page_offset + about.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with (
        pq.ParquetFile(path, page_checksum_verification=True) as file,
        pytest.raises(OSError, match="CRC checksum"),
    ):
        file.read(["block_hash"])


def test_what_another_program_has_rewritten_is_refused(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    footer = {b"ringcast": pq.read_metadata(path).metadata[b"ringcast"]}
    pq.write_table(pq.read_table(path).replace_schema_metadata(footer), path)
    with pytest.raises(Unreadable, match="not a whole segment: it has no seal"):
        Segment(path)


def test_bytes_that_are_put_in_or_left_out_are_damage(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    data = path.read_bytes()
    for other in (data[:4] + data[5:], data[:4] + b"x" + data[4:], data + b"x", b"x" + data):
        path.write_bytes(other)
        with pytest.raises(Unreadable, match="not a whole segment"):
            Segment(path)


def test_a_large_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    """Damage in some pages is no matter for those who read others."""
    recording = replace(RECORDING, payloads=True)
    writer = SegmentWriter(tmp_path, recording)
    rows = some_rows(4)
    noise = [[random.Random(at).randbytes(300_000)] for at in range(4)]
    writer.add(rows, 0, noise)
    path = writer.finish()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with Segment(path) as segment:
        segment.check_rows()
        assert segment.rows() == rows
        with pytest.raises(Unreadable, match=r"damaged: bytes \d+\.\.\d+ are not what"):
            segment.group(0, [PAYLOADS])


def test_a_disk_that_fails_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    rows = some_rows(10)
    path = write_segment(tmp_path, RECORDING, rows)
    with ShakyDisk(tmp_path, every=3) as disk, Segment(path) as segment:
        assert segment.rows() == rows
    assert disk.failed


def test_a_disk_that_is_broken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    monkeypatch.setattr(whole, "PAUSES_S", (0.0,))
    with (
        ShakyDisk(tmp_path, every=1),
        pytest.raises(Unreadable, match=f"{path.name}: cannot be read: "),
    ):
        Segment(path)


def test_what_would_fill_the_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(1000))
    monkeypatch.setattr(segments, "GROUP_BYTES_MAX", 10_000)
    with Segment(path) as segment, pytest.raises(Unreadable, match="a row group of 1000 rows"):
        segment.rows()


def test_long_values_that_stand_for_many_rows_are_not_read(tmp_path: Path) -> None:
    """A dictionary makes gigabytes of lists out of some kilobytes."""
    path = write_segment(tmp_path, RECORDING, some_rows(5))
    table, info = pq.read_table(path), info_of(path)
    long = pa.array([["x" * 100_000]] * 5)
    table = table.set_column(table.schema.get_field_index("members"), "members", long)
    parquet = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({b"ringcast": json.dumps(info).encode()}),
        parquet,
        use_dictionary=["members.list.element"],
    )
    seal(path, parquet.getvalue())
    with Segment(path) as segment, pytest.raises(Unreadable, match="once it is unpacked"):
        segment.rows()


@pytest.mark.parametrize("column", ["detail", "peer", "kind"])
def test_a_long_text_that_stands_in_many_rows_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """In the file it is there once; nor is it written, where readers would refuse it."""
    text = {column: "x" * 400_000}
    rows = [row._replace(**text) for row in some_rows(5)]
    path = write_segment(tmp_path, RECORDING, [*rows, *some_rows(1, 5)])
    monkeypatch.setattr(segments, "GROUP_BYTES_MAX", 1_500_000)
    with Segment(path) as segment:
        assert segment.group(0, ["event", "idx"]).num_rows == 6
        with pytest.raises(Unreadable, match=r"6 rows and 2\d{6} bytes, or more"):
            segment.rows()
    monkeypatch.setattr(segments, "GROUP_BYTES_MAX", ROW_GROUP_BYTES + 1_500_000)
    writer = SegmentWriter(tmp_path, RECORDING)
    with pytest.raises(OverflowError, match="bytes at once"):
        writer.add(rows)
    writer.abandon()
    assert write_segment(tmp_path, RECORDING, some_rows(5)).exists()


def test_no_dictionary_hides_beside_another_column_of_a_name(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(5))
    table, info = pq.read_table(path), info_of(path)
    pair = pa.array([{"long": "x" * 100, "short": "y"}] * 5)
    table = table.set_column(table.schema.get_field_index("members"), "members", pair)
    text = json.dumps(info).encode()
    parquet = io.BytesIO()
    table = table.replace_schema_metadata({b"ringcast": text})
    pq.write_table(table, parquet, use_dictionary=["members.long"])
    seal(path, parquet.getvalue())
    with Segment(path) as segment, pytest.raises(Unreadable, match="once it is unpacked"):
        segment.rows()


def test_lists_are_read_as_lists_whatever_the_footer_says_of_their_elements(
    tmp_path: Path,
) -> None:
    rows = [row._replace(members=("a#1",)) for row in some_rows(5)]
    path = write_segment(tmp_path, RECORDING, rows)
    write_sealed(path, pq.read_table(path), info_of(path))  # with statistics of every column
    with Segment(path) as segment:
        assert [row.members for row in segment.rows()] == [("a#1",)] * 5


def test_a_column_that_a_file_lacks_may_have_anything(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(5))
    table = pq.read_table(path)
    write_sealed(path, table.drop_columns(["block"]), info_of(path))
    with Segment(path) as segment:
        assert segment.may_have(0, Range(1, 2), "block", "block")


def test_row_groups_are_cut_by_their_bytes_whatever_is_in_them(tmp_path: Path) -> None:
    members = tuple(f"member-{at}#{2**60 + at}" for at in range(200))
    rows = [Row("ackmap", "a", 1, idx, members=members) for idx in range(4 * ROW_ROWS)]
    writer = SegmentWriter(tmp_path, RECORDING)
    for start in range(0, len(rows), ROW_ROWS):
        writer.add(rows[start : start + ROW_ROWS])
    about = pq.read_metadata(writer.finish())
    sizes = [about.row_group(at).total_byte_size for at in range(about.num_row_groups)]
    assert max(sizes) < 2 * ROW_GROUP_BYTES
    assert sum(sizes) > 2 * ROW_GROUP_BYTES


def test_more_than_a_reader_takes_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "GROUP_BYTES_MAX", ROW_GROUP_BYTES + 10_000)
    writer = SegmentWriter(tmp_path, replace(RECORDING, payloads=True))
    with pytest.raises(OverflowError, match="bytes at once"):
        writer.add(some_rows(1), 0, [[bytes(20_000)]])
    writer.abandon()


def test_a_number_that_no_row_of_ours_has_is_damage(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    table = pq.read_table(path)
    at = table.schema.get_field_index("peer_inc")
    write_sealed(path, table.set_column(at, "peer_inc", pa.array([-1] * 10)), info_of(path))
    with Segment(path) as segment, pytest.raises(Unreadable, match="damaged"):
        segment.rows()


def test_a_disk_that_refuses_raises_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size stands for a full disk: the write fails with OSError either way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = SegmentWriter(tmp_path, RECORDING)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.add(some_rows(50 * ROW_GROUP_ROWS))  # more than any buffer holds
        writer.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_version_1_is_refused_by_name() -> None:
    with pytest.raises(OtherVersion) as refused:
        Segment(VERSION_1)
    assert str(refused.value) == (
        "segment-version-1.parquet: a segment of version 1; this ringcast reads version 3: use the "
        "one that wrote it"
    )


def test_columns_that_a_version_lacks_have_their_default(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(5))
    less = pq.read_table(path).drop_columns(["used", "kind", "members"])
    write_sealed(path, less.append_column("later", pa.array(range(5))), info_of(path))
    with Segment(path) as segment:
        read = segment.rows()
    assert read == [row._replace(used=-1, kind="", members=()) for row in some_rows(5)]


def with_footer(path: Path, **said: object) -> Path:
    """The same segment with more, or something else, in its footer."""
    return write_sealed(path, pq.read_table(path), info_of(path) | said)


def test_a_footer_may_say_more(tmp_path: Path) -> None:
    path = with_footer(write_segment(tmp_path, RECORDING, some_rows(5)), later=True)
    with Segment(path) as segment:
        assert segment.rows() == some_rows(5)


def test_a_newer_version_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = VERSION + 1
    with monkeypatch.context() as later:
        later.setattr(sealed, "VERSION", newer)
        path = write_segment(tmp_path, RECORDING, some_rows(5))
    with pytest.raises(OtherVersion) as refused:
        Segment(path)
    assert str(refused.value) == (
        f"{path.name}: a segment of version {newer}; this ringcast reads version {VERSION}: "
        "use the one that wrote it"
    )


def test_a_simulation_has_its_facts_beside_the_rows_of_the_run(tmp_path: Path) -> None:
    facts = Facts(seed=7, tau_ns=5, capacity={"a#1": 3}, stopped_members=frozenset({"a#1"}))
    rows = [
        Row("phase", "", 0, 0, 0, kind="safety"),
        Row("start", "a", 1, 0, 1),
        Row("crash", "a", 1, 1, 2),
        Row("phase", "", 0, 1, 3, kind="end"),
    ]
    write_trace_segments(tmp_path / "whole", "seed-7", rows, facts)
    read = {}
    for path in segment_paths(tmp_path / "whole"):
        with Segment(path) as segment:
            read[segment.info.node] = segment.info, segment.rows()
    assert [read[""][1], read["a"][1]] == [[rows[0], rows[3]], rows[1:3]]
    assert read["a"][0].facts is None
    assert read["a"][0].is_last  # the harness saw the end
    assert read[""][0].facts is not None
    assert facts_from_values(read[""][0].facts) == facts

    write_trace_segments(tmp_path / "recorded", "seed-7", rows)
    (path,) = segment_paths(tmp_path / "recorded")
    with Segment(path) as segment:
        assert (segment.info.node, segment.info.is_last) == ("a", False)
