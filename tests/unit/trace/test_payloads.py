"""A recorder that keeps messages: all of them, in files of bounded size, and what is in which."""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

import pyarrow.parquet as pq

from ringcast.events import Delivered, FragmentsDelivered
from ringcast.model import Address, Headed, Member, Run, Stream, ViewId
from ringcast.trace.columns import PAYLOADS
from ringcast.trace.footer import Before
from ringcast.trace.held import Holdings, Range
from ringcast.trace.recorder import Recorder
from ringcast.trace.scribe import ROOM_BYTES, SEGMENT_BYTES
from ringcast.trace.sealed import Unreadable
from ringcast.trace.segments import ROW_GROUP_BYTES, Segment, segment_paths
from support.sealing import seal

if TYPE_CHECKING:
    from pathlib import Path

A = Member(Address("127.0.0.1", 7801), 11, "a")
B = Member(Address("127.0.0.1", 7802), 2**64 - 1, "b")
VIEW = ViewId(A, 3)
FROM_B = ("b", 2**64 - 1, 0)
CLOSE_S = 60.0
MEGABYTE = bytes(1 << 20)


def delivery(first: int, payloads: list[bytes]) -> Delivered:
    return Delivered(B, Run(Stream.FIFO, first, payloads), VIEW)


def test_messages_stand_in_the_rows_of_their_delivery(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, payloads=True)
    recorder.start(0)
    recorder.sent(Stream.FIFO, 1, [b"own"], VIEW, 1)
    recorder.delivered(delivery(1, [b"one", b""]), 1)
    recorder.delivered(delivery(3, [b"three"]), 2)
    recorder.delivered_fragments(FragmentsDelivered(B, Stream.FIFO, 4, 6, VIEW), 3)
    recorder.delivered(delivery(7, [b"seven"]), 4)
    recorder.stopped(5)
    assert recorder.close(CLOSE_S)
    assert recorder.stats()["messages_kept"] == 4
    (path,) = segment_paths(tmp_path)
    with Segment(path) as segment:
        assert segment.info.payloads
        assert segment.holdings.ranges == {FROM_B: [Range(1, 7)]}
        rows = segment.rows()
        batch = segment.group(0, ["event", "kind", PAYLOADS])
        assert segment.may_have(0, Range(1, 7), "seqno", "seqno2")
        assert not segment.may_have(0, Range(8, 9), "seqno", "seqno2")
    kept = [row for row in batch.to_pylist() if row[PAYLOADS]]
    assert [row[PAYLOADS] for row in kept] == [[b"one", b"", b"three"], [b"seven"]]
    assert {(row["event"], row["kind"]) for row in kept} == {("deliver", "")}
    assert [row.event for row in rows] == [row["event"] for row in batch.to_pylist()]


def test_messages_with_headers_have_rows_of_their_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, payloads=True)
    recorder.start(0)
    runs: list[list[bytes]] = [[b"one"], [Headed(b"two"), Headed(b"three")], [Headed(b"four")]]
    first = 1
    for payloads in (*runs, [b"five"]):
        recorder.delivered(delivery(first, payloads), first)
        first += len(payloads)
    recorder.stopped(9)
    assert recorder.close(CLOSE_S)
    (path,) = segment_paths(tmp_path)
    with Segment(path) as segment:
        rows = segment.group(0, ["event", "kind", "seqno", PAYLOADS]).to_pylist()
    assert [(row["kind"], row["seqno"], row[PAYLOADS]) for row in rows if row[PAYLOADS]] == [
        ("", 1, [b"one"]),
        ("headed", 2, [b"two", b"three", b"four"]),
        ("", 5, [b"five"]),
    ]


def test_without_payloads_nothing_is_held(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A)
    recorder.start(0)
    recorder.delivered(delivery(1, [b"one"]), 1)
    recorder.stopped(5)
    assert recorder.close(CLOSE_S)
    (path,) = segment_paths(tmp_path)
    with Segment(path) as segment:
        assert not segment.info.payloads
        assert segment.holdings.ranges == {}
    assert PAYLOADS not in pq.ParquetFile(path).schema_arrow.names


def test_files_and_what_is_read_at_once_are_bounded_in_bytes(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, payloads=True, segment_seconds=3600)
    recorder.start(0)
    count = (SEGMENT_BYTES >> 20) + 20
    for seqno in range(1, count + 1):
        recorder.delivered(delivery(seqno, [MEGABYTE]), seqno * 10**9)
        recorder.tick(seqno * 10**9 + 10**8)
        assert recorder.wait_for_room(CLOSE_S)
    recorder.stopped(count * 10**9)
    assert recorder.close(CLOSE_S)
    held = []
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            held += segment.holdings.ranges[FROM_B]
        about = pq.ParquetFile(path).metadata
        sizes = [about.row_group(at).total_byte_size for at in range(about.num_row_groups)]
        assert max(sizes) < 2 * ROW_GROUP_BYTES
    assert len(held) == 2
    assert (held[0].first, held[0].last + 1, held[1].last) == (1, held[1].first, count)


def test_while_the_disk_is_behind_there_is_no_room(tmp_path: Path) -> None:
    """Nothing is written before the recorder starts."""
    keeps = Recorder(tmp_path, "run", A, payloads=True)
    traces = Recorder(tmp_path, "run", B)
    for seqno in range(1, (ROOM_BYTES >> 20) + 1):
        assert keeps.has_room
        for recorder in (keeps, traces):
            recorder.delivered(delivery(seqno, [MEGABYTE]), seqno * 10**9)
            recorder.tick(seqno * 10**9 + 10**8)
    assert not keeps.has_room
    assert not keeps.wait_for_room(0.0)
    assert traces.has_room  # it holds none of them
    keeps.start(10**12)
    assert keeps.wait_for_room(CLOSE_S)
    keeps.stopped(10**12)
    assert keeps.close(CLOSE_S)
    assert keeps.lost == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}x",
        b"7",
        b"[7]",
        b'[["b", 1, 0, 1]]',
        b'[["b", 1, 0, 5, 4]]',
        b'[["b", 1, 0, 0, 4]]',
        b'[["b", 1, 9, 1, 4]]',
        b'[["b", -1, 0, 1, 4]]',
        b"[[7, 1, 0, 1, 4]]",
    ],
)
def test_what_is_no_list_of_ranges_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        Holdings.from_values(json.loads(text))


def test_a_footer_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, payloads=True)
    recorder.start(0)
    recorder.delivered(delivery(1, [b"one"]), 1)
    recorder.stopped(5)
    assert recorder.close(CLOSE_S)
    (path,) = segment_paths(tmp_path)
    footer = pq.read_metadata(path).metadata
    held = {**footer, b"ringcast.held": b'[["b", 18446744073709551615, 0, 1, 0]]'}
    parquet = io.BytesIO()
    pq.write_table(pq.read_table(path).replace_schema_metadata(held), parquet)
    seal(path, parquet.getvalue())
    with pytest.raises(Unreadable, match="no range of messages"):
        Segment(path)


def test_each_file_tells_what_the_one_before_holds(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, payloads=True, segment_rows=1)
    recorder.start(0)
    for seqno in range(1, 4):
        recorder.delivered(delivery(seqno, [b"one"]), seqno * 10**9)
        recorder.tick(seqno * 10**9 + 10**8)
        until_written(recorder)
    recorder.stopped(5 * 10**9)
    assert recorder.close(CLOSE_S)
    before: Before | None = None
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            if before is not None:
                assert segment.before is not None
                assert segment.before.name == before.name
                assert segment.before.holdings.ranges == before.holdings.ranges
            before = Before(path.name, segment.holdings)
    assert before is not None
    assert len(segment_paths(tmp_path)) >= 3


def until_written(recorder: Recorder) -> None:
    """Until what was recorded is in files."""
    deadline = time.monotonic() + CLOSE_S
    while recorder.stats()["queued"]:
        assert time.monotonic() < deadline
        recorder.wait_for_room(0.0)
        time.sleep(0.01)
