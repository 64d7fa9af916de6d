"""A member that keeps what it reads: it reads no faster than its disk writes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import read, until, with_members

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast import MulticastConfig
from ringcast.aio.driver import Driver
from ringcast.trace.footer import Recording
from ringcast.trace.rows import DELIVER, SEND, STOP
from ringcast.trace.scribe import ROOM_BYTES
from ringcast.trace.segments import Segment, segment_paths
from support.modes import modes_below, umask
from support.shaky_disk import standing_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringcast import Group
    from ringcast.trace.rows import Row

LARGE = os.urandom(1 << 20)


def recorder(group: Group) -> dict[str, Any]:
    found = group.stats()["recorder"]
    assert isinstance(found, dict)
    return found


def test_what_is_read_is_kept(tmp_path: Path) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send_many([b"one", LARGE])
        await a.send(b"all or none", guarantee="uniform")
        await a.send(b"in one order", guarantee="total")
        await b.send(b"in one order", guarantee="total")
        await a.send(b"you alone", to=b.me)
        await read(b, 6)

    with_members(2, per_member=[{}, {"record": tmp_path, "record_payloads": True}])(exchange)
    held = {}
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            held |= {(who, stream): ranges for (who, _, stream), ranges in segment_ranges(segment)}
    # A large message takes more than one number; those to one member are not the group's.
    assert held["A", 0][0].first == 1
    assert held["A", 0][-1].last > 2
    assert [tuple(found) for found in held["A", 1]] == [(1, 1)]
    assert [tuple(found) for found in held["A", 2]] == [(1, 1)]
    assert [tuple(found) for found in held["B", 2]] == [(1, 1)]
    assert len(held) == 4


def test_files_are_for_whom_their_member_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said to one member goes before what is said to all of the process."""
    monkeypatch.setenv("RINGCAST_FILE_MODE", "644")

    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"one")
        await read(b, 1)

    options = [{"record": tmp_path / "a"}, {"record": tmp_path / "b", "file_mode": 0o640}]
    with umask(0o077):
        with_members(2, per_member=options)(exchange)
    assert modes_below(tmp_path / "a") == ({0o755}, {0o644})
    assert modes_below(tmp_path / "b") == ({0o750}, {0o640})


def test_files_are_closed_as_often_as_was_asked_for(tmp_path: Path) -> None:
    """Those of two members, by the time at which they got their names."""
    intervals = {"often": 0.2, "rarely": 60.0}

    async def exchange(a: Group, b: Group) -> None:
        while len(segment_paths(tmp_path / "often")) < 4:
            await a.send(b"again")
            await read(b, 1)
            await asyncio.sleep(0.02)
        assert segment_paths(tmp_path / "rarely") == []

    options = [
        {"record": tmp_path / name, "record_interval_s": seconds}
        for name, seconds in intervals.items()
    ]
    with_members(2, per_member=options)(exchange)


@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_what_is_read_after_leaving_is_kept_once_and_before_the_end(
    tmp_path: Path, level: str
) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"one")
        await read(a, 1)
        await a.send_many([b"two", b"three"])
        await asyncio.gather(a.leave(), read(b, 3))
        assert await read(a, 3) == [("A", b"two"), ("A", b"three")]

    options = {"record": tmp_path, "record_payloads": True, "record_level": level}
    with_members(2, per_member=[options, {}])(exchange)
    rows = rows_in(tmp_path)
    assert seqnos(rows, DELIVER) == [1, 2, 3]
    assert rows[-1].event == STOP


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_what_is_sent_and_read_in_the_last_step_is_in_the_trace_as_both(
    tmp_path: Path, level: str, capacity: int
) -> None:
    async def exchange(a: Group) -> None:
        await a.send(bytes(2000))  # of which the window holds a fragment or two at a time
        leaving = asyncio.create_task(a.leave())
        assert await read(a, 1) == [("A", bytes(2000))]
        await leaving

    config = MulticastConfig(capacity=capacity, datagram_bytes=512)
    with_members(1, record=tmp_path, record_level=level, multicast=config)(exchange)
    rows = rows_in(tmp_path)
    assert len(seqnos(rows, SEND)) > 3
    assert seqnos(rows, DELIVER) == seqnos(rows, SEND)
    for last in seqnos(rows, SEND):
        (sent, *_), (taken, *_) = (
            [row.idx for row in rows if row.event == event and row.seqno <= last <= row.seqno2]
            for event in (SEND, DELIVER)
        )
        assert sent < taken


def test_who_has_left_reads_on_though_the_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"one")
        await asyncio.gather(a.leave(), read(b, 1))
        monkeypatch.setattr(Driver, "has_room", False)
        assert await read(a, 2) == [("A", b"one")]

    with_members(2, per_member=[{"record": tmp_path, "record_payloads": True}, {}])(exchange)


def rows_in(directory: Path) -> list[Row]:
    rows: list[Row] = []
    for path in segment_paths(directory):
        with Segment(path) as segment:
            rows += segment.rows()
    return rows


def seqnos(rows: list[Row], event: str) -> list[int]:
    """Those of one event, in its order."""
    ranges = [range(row.seqno, row.seqno2 + 1) for row in rows if row.event == event]
    return [seqno for seqnos in ranges for seqno in seqnos]


def segment_ranges(segment: Segment) -> Iterator[tuple[Any, Any]]:
    yield from segment.holdings.ranges.items()


def test_a_disk_that_hangs_holds_the_group_back_and_loses_nothing_more(tmp_path: Path) -> None:
    """The file that is to be written is a pipe without a reader: opening it waits for one."""

    async def exchange(a: Group, b: Group) -> None:
        recording = Recording(run_id="test", node="B", inc=b.me.incarnation)
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with standing_in(pipe, tmp_path / f"{recording.file_stem}-{0:012d}.part"):
            sending = asyncio.create_task(a.send_many([LARGE] * 100))
            taking = [asyncio.create_task(read(group, 100)) for group in (a, b)]
            await until(lambda: "until the disk" in " ".join(b.explain()))
        assert recorder(b)["queued_bytes"] >= ROOM_BYTES
        assert not sending.done()
        # It gets a reader, which goes: the disk refuses, which costs that file, and it goes on.
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        await sending
        await asyncio.gather(*taking)
        assert recorder(b)["lost"] > 0
        assert recorder(b)["lost_to_full_queue"] == 0

    with_members(2, per_member=[{}, {"record": tmp_path, "record_payloads": True}])(exchange)
    held = []
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            held += [last for _, (_, last) in segment.holdings]
    assert held  # what came after
