"""Segments: what is written is read back; what is not whole is never taken for whole."""

from __future__ import annotations

import json
import re
import resource
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

import pyarrow as pa
import pyarrow.parquet as pq

from ringcast.errors import UsageError
from ringcast.trace.facts import facts_from_values
from ringcast.trace.files import TooNew
from ringcast.trace.rows import Facts, Row
from ringcast.trace.segments import (
    ROW_GROUP_ROWS,
    SCHEMA,
    SCHEMA_VERSION,
    Recording,
    Segment,
    SegmentWriter,
    segment_paths,
    write_segment,
    write_trace_segments,
)

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
    assert (info.schema, info.lost, info.is_last) == (SCHEMA_VERSION, 3, True)


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
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    path.write_bytes(path.read_bytes().replace(b'"rows": 10', b'"rows": 11'))
    with pytest.raises(UsageError, match="rows are missing"):
        Segment(path)


def test_damaged_pages_are_an_error_not_rows(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(1000))
    data = bytearray(path.read_bytes())
    data[4:600] = bytes(596)
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"damaged|not a whole segment"), Segment(path) as segment:
        segment.rows()


def test_no_bit_that_is_damaged_takes_rows_away_unseen(tmp_path: Path) -> None:
    """Such as one that makes a page of rows another kind of page, which readers pass over."""
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    data = path.read_bytes()
    about = pq.ParquetFile(path).metadata.row_group(0).column(SCHEMA.names.index("idx"))
    start = about.data_page_offset
    for bit in range(8 * start, 8 * (start + about.total_compressed_size)):
        at = bit // 8
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :])
        with suppress(UsageError), Segment(path) as segment:
            assert sum(map(len, segment.batches(("event", "idx")))) == 10, bit


def test_statistics_that_are_no_text_settle_nothing(tmp_path: Path) -> None:
    rows = some_rows(10)
    path = write_segment(tmp_path, RECORDING, rows)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    changed, times = re.subn(rb"deliver(?!ies)", b"deli\xffer", data[footer:])
    assert times
    path.write_bytes(data[:footer] + changed)
    with Segment(path) as segment:
        assert segment.rows() == rows


def test_a_footer_that_leaves_out_an_event_is_damage(tmp_path: Path) -> None:
    """Else what is told of it would be taken for its default: here one bit makes a v a t."""
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    data = path.read_bytes()
    greatest, least = b"(\x04view", b"\x18\x07deliver"
    assert greatest + least in data
    path.write_bytes(data.replace(greatest + least, b"(\x04tiew" + least))
    with Segment(path) as segment, pytest.raises(UsageError, match="leaves out events"):
        list(segment.batches(("event", "block"), {"block": "view"}))


def test_text_that_others_wrote_as_bytes_is_read(tmp_path: Path) -> None:
    rows = some_rows(10)
    path = write_segment(tmp_path, RECORDING, rows)
    table = pq.read_table(path)
    metadata = pq.ParquetFile(path).metadata.metadata
    for name in ("event", "node"):
        column = table[name].cast(pa.string()).cast(pa.binary())
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table.replace_schema_metadata({b"ringcast": metadata[b"ringcast"]}), path)
    with Segment(path) as segment:
        (batch,) = segment.batches(("event", "block"), {"block": "view"})
    assert batch["event"].to_pylist() == [row.event for row in rows]


def test_a_number_that_no_row_of_ours_has_is_damage(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(10))
    table = pq.read_table(path)
    metadata = pq.ParquetFile(path).metadata.metadata
    at = table.schema.get_field_index("peer_inc")
    table = table.set_column(at, "peer_inc", pa.array([-1] * 10))
    pq.write_table(table.replace_schema_metadata({b"ringcast": metadata[b"ringcast"]}), path)
    with Segment(path) as segment, pytest.raises(UsageError, match="damaged"):
        segment.rows()


def test_a_disk_that_refuses_raises_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size stands for a full disk: the write fails with OSError either way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = SegmentWriter(tmp_path, RECORDING)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.add(some_rows(ROW_GROUP_ROWS))
        writer.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_version_1_is_read_for_ever() -> None:
    with Segment(VERSION_1) as segment:
        rows = segment.rows()
        info = segment.info
    assert (info.schema, info.run_id, info.node, info.inc) == (1, "fixture", "a", 11)
    assert (info.first_idx, info.last_idx, info.lost, info.is_last) == (0, 3, 0, True)
    assert [row.event for row in rows] == ["start", "view", "deliver", "stop"]
    assert rows[1].members == ("a#11", "b#12")
    assert rows[2].origin == ("b", 12, 0)
    assert (rows[2].seqno, rows[2].seqno2, rows[2].view, rows[2].view_creator) == (1, 60, 1, "a#11")
    assert rows[2].run_idx == -1


def test_columns_that_a_version_lacks_have_their_default(tmp_path: Path) -> None:
    path = write_segment(tmp_path, RECORDING, some_rows(5))
    table = pq.read_table(path)
    metadata = pq.ParquetFile(path).metadata.metadata
    less = table.drop_columns(["used", "kind", "members"])
    more = less.append_column("later", pa.array(range(5)))
    pq.write_table(more.replace_schema_metadata({b"ringcast": metadata[b"ringcast"]}), path)
    with Segment(path) as segment:
        read = segment.rows()
    assert read == [row._replace(used=-1, kind="", members=()) for row in some_rows(5)]


def with_footer(path: Path, **said: object) -> Path:
    """The same segment with more, or something else, in its footer."""
    info = json.loads(pq.ParquetFile(path).metadata.metadata[b"ringcast"])
    footer = json.dumps(info | said).encode()
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"ringcast": footer}), path)
    return path


def test_a_footer_may_say_more(tmp_path: Path) -> None:
    path = with_footer(write_segment(tmp_path, RECORDING, some_rows(5)), later=True)
    with Segment(path) as segment:
        assert segment.rows() == some_rows(5)


def test_a_newer_version_is_refused_in_one_line(tmp_path: Path) -> None:
    newer = SCHEMA_VERSION + 1
    path = with_footer(write_segment(tmp_path, RECORDING, some_rows(5)), schema=newer)
    with pytest.raises(TooNew) as refused:
        Segment(path)
    assert str(refused.value) == (
        f"{path.name}: a trace of version {newer}; this ringcast reads up to {SCHEMA_VERSION}: "
        "use a newer one"
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
