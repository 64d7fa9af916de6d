"""The recorder: rows as the member lived them, hashes that do not depend on how runs are cut."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast.errors import ConfigError
from ringcast.events import Delivered, FragmentsDelivered
from ringcast.model import Address, Member, Origin, Run, Stream, View, ViewId
from ringcast.trace.content import HASHED_EVERY, Block, BlockHasher
from ringcast.trace.footer import Recording
from ringcast.trace.recorder import Recorder
from ringcast.trace.rows import Row
from ringcast.trace.segments import Segment, segment_paths
from support.modes import modes_below
from support.shaky_disk import standing_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.trace.footer import SegmentInfo

A = Member(Address("127.0.0.1", 7801), 11, "a")
B = Member(Address("127.0.0.1", 7802), 12, "b")
VIEW = View(ViewId(A, 1), (A, B))
FROM_B = Origin(B, Stream.FIFO)
CLOSE_S = 60.0
SECOND = 1_000_000_000


def reference(payloads: Sequence[bytes]) -> int:
    each = b"".join(xxhash.xxh3_64_digest(payload) for payload in payloads)
    return xxhash.xxh3_64_intdigest(each)


def read(directory: Path) -> tuple[list[Row], list[SegmentInfo]]:
    rows: list[Row] = []
    infos: list[SegmentInfo] = []
    for path in segment_paths(directory):
        with Segment(path) as segment:
            rows += segment.rows()
            infos.append(segment.info)
    return rows, infos


def delivery(first: int, payloads: list[bytes]) -> Delivered:
    return Delivered(B, Run(Stream.FIFO, first, payloads), VIEW.id)


def deliver_apart(recorder: Recorder, seqnos: range) -> None:
    """One row each: so long after each other that they are not gathered."""
    for seqno in seqnos:
        recorder.delivered(delivery(seqno, [b"."]), seqno * SECOND)
        recorder.tick(seqno * SECOND + SECOND // 2)


# Content


@given(
    st.lists(st.binary(max_size=9), max_size=70),
    st.lists(st.integers(1, 20), min_size=1),
    st.integers(0, 20),
)
def test_blocks_do_not_depend_on_how_runs_are_cut(
    payloads: list[bytes], cuts: list[int], offset: int
) -> None:
    hasher = BlockHasher(offset, block_messages=8)
    ended: list[Block] = []
    at = turn = 0
    while at < len(payloads):
        size = cuts[turn % len(cuts)]
        ended += hasher.add_run(offset + at + 1, payloads[at : at + size])
        at += size
        turn += 1
    last = offset + len(payloads)
    expected = [
        Block(number, 8 * number + 1, 8 * number + 8, reference(payloads[start : start + 8]))
        for number in range(last // 8)
        if (start := 8 * number - offset) >= 0
    ]
    assert ended == expected
    tail = last % 8
    begun = tail and tail <= len(payloads)
    assert hasher.finish() == (
        Block(last // 8, last - tail + 1, last, reference(payloads[-tail:])) if begun else None
    )


def test_a_gap_spoils_the_block_it_is_in_and_no_other() -> None:
    hasher = BlockHasher(block_messages=4)
    assert hasher.add_run(1, [b"1", b"2"]) == []
    assert hasher.add_run(4, [b"4"]) == []
    assert hasher.add_run(5, [b"5", b"6", b"7", b"8"]) == [
        Block(1, 5, 8, reference([b"5", b"6", b"7", b"8"]))
    ]


def test_what_comes_again_is_not_hashed_again() -> None:
    hasher = BlockHasher(block_messages=4)
    hasher.add_run(1, [b"1", b"2", b"3"])
    assert hasher.add_run(2, [b"2", b"3", b"4"]) == [
        Block(0, 1, 4, reference([b"1", b"2", b"3", b"4"]))
    ]


def test_fragments_count_as_seqnos_and_the_message_where_its_last_one_stands() -> None:
    hasher = BlockHasher(block_messages=4)
    assert hasher.add_run(1, [b"1"]) == []
    assert hasher.skip(2, 5) == [Block(0, 1, 4, reference([b"1"]))]
    assert hasher.add_run(6, [b"large", b"7", b"8"]) == [
        Block(1, 5, 8, reference([b"large", b"7", b"8"]))
    ]


# Rows


def test_a_life_is_recorded_in_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, level="full", block_messages=2)
    recorder.start(1)
    recorder.opened(FROM_B, 5, VIEW.id, 3)
    recorder.sent(Stream.FIFO, 1, [b"x", b"y", b"z"], VIEW.id, 4)
    recorder.delivered(delivery(6, [b"6", b"7", b"8"]), 5)
    recorder.delivered_fragments(FragmentsDelivered(B, Stream.FIFO, 9, 10, VIEW.id), 6)
    recorder.write("tx", 7, kind="data")
    recorder.stopped(8)
    assert recorder.close(CLOSE_S)
    rows, infos = read(tmp_path)
    common = {"node": "a", "inc": 11}
    from_b = {"peer": "b", "peer_inc": 12, "stream": 0}
    own = {"peer": "a", "peer_inc": 11, "stream": 0}
    in_view = {"view": 1, "view_creator": "a#11"}
    expected: list[dict[str, object]] = [
        {"event": "start", "mono_ns": 1},
        {"event": "open", "mono_ns": 3, "seqno": 5, "seqno2": 5, **from_b, **in_view},
        {"event": "send", "mono_ns": 4, "seqno": 1, "seqno2": 3, **own, **in_view},
        {"event": "block", "mono_ns": 4, "seqno": 1, "seqno2": 2, "kind": "sent", "block": 0,
         "block_hash": reference([b"x", b"y"]), **own},
        {"event": "deliver", "mono_ns": 5, "seqno": 6, "seqno2": 8, **from_b, **in_view},
        {"event": "block", "mono_ns": 5, "seqno": 7, "seqno2": 8, "kind": "delivered", "block": 3,
         "block_hash": reference([b"7", b"8"]), **from_b},
        {"event": "deliver", "mono_ns": 6, "seqno": 9, "seqno2": 10, "kind": "fragment", **from_b,
         **in_view},
        {"event": "block", "mono_ns": 6, "seqno": 9, "seqno2": 10, "kind": "delivered", "block": 4,
         "block_hash": reference([]), **from_b},
        {"event": "tx", "mono_ns": 7, "kind": "data"},
        {"event": "block", "mono_ns": 8, "seqno": 3, "seqno2": 3, "kind": "sent", "block": 1,
         "block_hash": reference([b"z"]), **own},
        {"event": "stop", "mono_ns": 8},
    ]  # fmt: skip
    assert rows == [
        Row(**{"idx": idx, **common, **columns})  # type: ignore[arg-type]
        for idx, columns in enumerate(expected)
    ]
    assert [info.is_last for info in infos] == [True]
    assert recorder.stats()["lost"] == 0


def test_segments_name_their_level_and_windows_end_at_level_full_only(tmp_path: Path) -> None:
    for level in ("deliveries", "full"):
        recorder = Recorder(tmp_path / level, "run", A, level=level)
        recorder.start(1)
        recorder.opened(FROM_B, 5, VIEW.id, 2)
        recorder.dropped(FROM_B, 3)
        assert recorder.close(CLOSE_S)
    rows, infos = read(tmp_path / "full")
    assert rows[2:] == [Row("drop_window", "a", 11, 2, mono_ns=3, peer="b", peer_inc=12, stream=0)]
    assert [(info.level, info.is_last) for info in infos] == [("full", False)]
    assert [row.event for row in read(tmp_path / "deliveries")[0]] == ["start", "open"]


@pytest.mark.parametrize(("level", "every"), [("deliveries", HASHED_EVERY), ("full", 1)])
def test_both_sides_hash_the_same_blocks(tmp_path: Path, level: str, every: int) -> None:
    """The last one is begun, and not hashed at level deliveries."""
    payloads = [b"%d" % number for number in range(4 * HASHED_EVERY + 3)]
    recorder = Recorder(tmp_path, "run", A, level=level, block_messages=2)
    recorder.start(1)
    recorder.opened(FROM_B, 0, VIEW.id, 1)
    recorder.sent(Stream.FIFO, 1, payloads, VIEW.id, 2)
    for at in range(0, len(payloads), 3):
        recorder.delivered(delivery(at + 1, payloads[at : at + 3]), 3)
    recorder.stopped(4)
    assert recorder.close(CLOSE_S)
    expected = [
        (number, 2 * number + 1, reference(payloads[2 * number : 2 * number + 2]))
        for number in range(0, 2 * HASHED_EVERY + 2, every)
    ]
    for kind in ("sent", "delivered"):
        found = [row for row in read(tmp_path)[0] if (row.event, row.kind) == ("block", kind)]
        assert [(row.block, row.seqno, row.block_hash) for row in found] == expected


def test_segments_are_cut_by_rows_and_follow_each_other(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, segment_rows=1000)
    recorder.start(0)
    deliver_apart(recorder, range(1, 5001))
    recorder.stopped(0)
    assert recorder.close(CLOSE_S)
    rows, infos = read(tmp_path)
    assert [row.idx for row in rows] == list(range(len(rows)))
    assert len(infos) >= 3
    assert [info.is_last for info in infos] == [False] * (len(infos) - 1) + [True]
    assert recorder.stats()["segments"] == len(infos)


def test_a_full_queue_costs_rows_and_is_counted(tmp_path: Path) -> None:
    """Rows that come before the writer starts fill the queue, whatever the threads do."""
    recorder = Recorder(tmp_path, "run", A, queue_rows=10)
    deliver_apart(recorder, range(1, 26))
    assert recorder.stats()["queued"] == 10
    assert recorder.lost == recorder.stats()["lost_to_full_queue"] == 15
    recorder.start(99)
    assert recorder.close(CLOSE_S)
    rows, infos = read(tmp_path)
    assert [row.idx for row in rows] == list(range(10))
    assert [info.lost for info in infos] == [16]
    assert recorder.stats()["rows"] == 26


def test_a_disk_that_fails_costs_rows_and_the_recorder_goes_on(tmp_path: Path) -> None:
    """The directory goes away and comes back, as a mount does."""
    directory = tmp_path / "mount"
    recorder = Recorder(directory, "run", A, segment_rows=10, segment_seconds=0.01)
    directory.rename(tmp_path / "away")
    recorder.start(0)
    deliver_apart(recorder, range(1, 101))
    wait_until(lambda: recorder.stats()["lost_to_disk"] == 101)
    assert str(recorder.stats()["last_error"]).startswith("FileNotFoundError")
    (tmp_path / "away").rename(directory)
    recorder.delivered(delivery(101, [b"."]), 1)
    recorder.stopped(2)
    assert recorder.close(CLOSE_S)
    rows, infos = read(directory)
    assert [row.idx for row in rows] == list(range(101, 104))
    assert infos[-1].lost == 101
    assert infos[-1].is_last


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_disk_without_room_costs_rows_and_the_recorder_goes_on(tmp_path: Path) -> None:
    """The first segment's file is a device that has no room: the kernel says ENOSPC."""
    recorder = Recorder(tmp_path, "run", A, segment_seconds=0.01)
    stem = Recording(run_id="run", node="a", inc=A.incarnation).file_stem
    with standing_in("/dev/full", tmp_path / f"{stem}-{0:012d}.part"):
        recorder.start(0)
        wait_until(lambda: recorder.stats()["lost_to_disk"] == 1)
    assert "No space left on device" in str(recorder.stats()["last_error"])
    recorder.stopped(1)
    assert recorder.close(CLOSE_S)
    rows, infos = read(tmp_path)
    assert [(row.idx, row.event) for row in rows] == [(1, "stop")]
    assert [(info.lost, info.is_last) for info in infos] == [(1, True)]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Let the other thread run until this holds; fails after a minute."""
    turn = threading.Event()
    for _ in range(6000):
        if is_so():
            return
        turn.wait(0.01)
    pytest.fail("it did not come true")


def test_runs_that_continue_each_other_are_one_row_for_a_while(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A)
    recorder.start(1)
    recorder.delivered(delivery(1, [b"1", b"2"]), 2)
    recorder.sent(Stream.FIFO, 1, [b"x"], VIEW.id, 3)
    recorder.delivered(delivery(3, [b"3"]), 4)
    recorder.tick(5)  # too early
    recorder.sent(Stream.FIFO, 2, [b"y", b"z"], VIEW.id, 6)
    recorder.tick(2 * SECOND)
    recorder.delivered(delivery(4, [b"4"]), 2 * SECOND)
    recorder.delivered(delivery(6, [b"6"]), 2 * SECOND)  # 5 is missing
    recorder.stopped(3 * SECOND)
    assert recorder.close(CLOSE_S)
    rows = [(row.event, row.seqno, row.seqno2, row.mono_ns) for row in read(tmp_path)[0]]
    assert [row for row in rows if row[0] in ("send", "deliver")] == [
        ("send", 1, 3, 3),  # before any delivery: nothing is delivered before it is sent
        ("deliver", 1, 3, 2),
        ("deliver", 4, 4, 2 * SECOND),
        ("deliver", 6, 6, 2 * SECOND),
    ]


def test_close_without_start_has_nothing_to_wait_for(tmp_path: Path) -> None:
    assert Recorder(tmp_path, "run", A).close(0.0)
    assert list(tmp_path.iterdir()) == []


def test_windows_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, block_messages=4)
    recorder.start(0)
    recorder.delivered(delivery(1, [b"1"]), 1)
    recorder.dropped(FROM_B, 1)
    recorder.stopped(2)
    assert recorder.close(CLOSE_S)
    assert [row.event for row in read(tmp_path)[0]] == ["start", "deliver", "stop"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("level", "some"), ("segment_rows", 0), ("segment_seconds", 0.0), ("queue_rows", -1)],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        Recorder(tmp_path, "run", A, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "directories"), [(None, 0o700), (0o640, 0o750), (0o660, 0o770)])
def test_what_is_recorded_is_for_its_owner_alone_or_for_whom_it_is_said_to_be(
    tmp_path: Path, mode: int | None, directories: int
) -> None:
    directory = tmp_path / "new" / "traces"
    recorder = Recorder(directory, "run", A, mode=mode)
    recorder.start(0)
    deliver_apart(recorder, range(1, 5))
    assert recorder.close(CLOSE_S)
    assert modes_below(tmp_path / "new") == ({directories}, {mode or 0o600})


# One order


def total(sender: Member, first: int, count: int, position: int, **said: bool) -> Delivered:
    run = Run(Stream.TOTAL, first, [b"."] * count)
    return Delivered(sender, run, VIEW.id, 0, position, **said)


def told(rows: list[Row], event: str) -> list[tuple[str, int, int, int, str]]:
    return [
        (row.peer, row.seqno, row.seqno2, row.low, row.detail) for row in rows if row.event == event
    ]


def test_total_messages_are_one_row_where_numbers_and_positions_go_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A)
    recorder.start(SECOND)
    recorder.accepted(1, 2, VIEW.id, SECOND)
    recorder.accepted(3, 3, VIEW.id, SECOND)
    for each in (
        total(B, 1, 3, 11),
        total(B, 4, 1, 14),
        total(A, 1, 2, 15),
        total(B, 5, 2, 17),
        total(B, 7, 1, 20),  # A's third is not taken here: a gap
        total(B, 8, 1, 21, carried=True),
        total(B, 9, 1, 22, carried=True, seen=True),
    ):
        recorder.ordered(each, SECOND)
    recorder.accepted(4, 4, VIEW.id, 2 * SECOND)
    recorder.tick(3 * SECOND)
    recorder.ordered(total(B, 10, 1, 23), 3 * SECOND)
    recorder.stopped(3 * SECOND)
    assert recorder.close(CLOSE_S)
    rows, _ = read(tmp_path)
    assert told(rows, "accept") == [("", 1, 4, -1, "")]
    assert told(rows, "order") == [
        ("b", 1, 4, 11, ""),
        ("a", 1, 2, 15, ""),
        ("b", 5, 6, 17, ""),
        ("b", 7, 7, 20, ""),
        ("b", 8, 8, 21, "carried"),
        ("b", 9, 9, 22, "carried seen"),
        ("b", 10, 10, 23, ""),
    ]
    assert {row.view for row in rows if row.event in ("accept", "order")} == {1}
    order = [row.event for row in rows]
    assert order.index("accept") < order.index("order")


def test_views_stand_between_what_is_taken_before_and_after_them(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A)
    recorder.start(SECOND)
    recorder.accepted(1, 1, VIEW.id, SECOND)
    recorder.ordered(total(B, 1, 1, 1), SECOND)
    recorder.write("view", SECOND)
    recorder.accepted(2, 2, VIEW.id, SECOND)
    recorder.ordered(total(B, 2, 1, 2), SECOND)
    recorder.stopped(SECOND)
    assert recorder.close(CLOSE_S)
    events = [row.event for row in read(tmp_path)[0]]
    assert events == ["start", "accept", "order", "view", "accept", "order", "stop"]


def test_an_archive_keeps_total_messages_and_none_that_it_has_already(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "run", A, payloads=True)
    recorder.start(SECOND)
    recorder.ordered(total(B, 1, 2, 1), SECOND)
    recorder.ordered(total(B, 3, 1, 3), SECOND)
    recorder.ordered(total(B, 2, 2, 7, seen=True), SECOND)
    recorder.ordered(total(B, 4, 1, 9), SECOND)
    assert recorder.stats()["messages_kept"] == 0
    recorder.stopped(SECOND)
    assert recorder.stats()["messages_kept"] == 4
    assert recorder.close(CLOSE_S)
    (path,) = segment_paths(tmp_path)
    with Segment(path) as segment:
        assert list(segment.holdings) == [(("b", 12, 2), (1, 4))]
        payloads = [
            each
            for batch in segment.batches(["payloads"])
            for each in batch["payloads"].to_pylist()
        ]
    assert [len(each or ()) for each in payloads] == [0, 3, 0, 1, 0]
