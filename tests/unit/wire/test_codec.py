"""The codec: how datagrams are filled, its limits, and what strangers may send it."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import (
    CONN_ID_MAX,
    INCARNATION_MAX,
    SEQNO_MAX,
    Address,
    Conn,
    Member,
    Stream,
    View,
    ViewId,
)
from ringcast.wire import runs as runs_module
from ringcast.wire.codec import Codec
from ringcast.wire.frames import (
    Ack,
    Close,
    Commit,
    Data,
    Heartbeat,
    Leave,
    Mark,
    Messages,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    Ping,
    Pong,
    StabilityQuery,
    StabilityReport,
    Stable,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
    Watermark,
)
from ringcast.wire.limits import (
    ALLOWANCE_MAX,
    COUNTER_MAX,
    FRAMES_MAX,
    IDENTITIES_MAX,
    MESSAGES_MAX,
    NACK_RANGES_MAX,
    VIEW_MEMBERS_MAX,
    WINDOW_SIZE_MAX,
)
from support.echo import Echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringcast.wire.frames import Frame


FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
ME = Member(Address("127.0.0.1", 7800), 42, "a")
OTHER = Member(Address("127.0.0.1", 7801), 7, "b")
VIEW = View(ViewId(ME, 2), (ME, OTHER))
CONN = Conn(3, 1)
HEADER = Echo("orders", ME, 512).pack([Watermark(FIFO, 0)])[0][:-12]
TO_ME = HEADER[:-8] + struct.pack("<Q", ME.incarnation)
MEMORY_CONSTANT = 96 << 10
TAG = 19  # with what is purged
"""Bytes of each datagram that are kept for the tag of a view."""


def codec(datagram_bytes: int = 60_000) -> Echo:
    return Echo("orders", ME, datagram_bytes)


def payloads_of(frames: Iterable[Frame]) -> list[bytes]:
    return [
        payload for frame in frames if isinstance(frame, Messages) for payload in frame.payloads
    ]


def refusal(datagram: bytes, by: Echo | None = None) -> Reject:
    with pytest.raises(DecodeError) as caught:
        (by or codec()).unpack(datagram)
    return caught.value.reason


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack("<BH", kind, len(body)) + body


def run(
    first: int, count: int, rest: bytes, *, stream: int = 0, flags: int = 1, kind: int = 1
) -> bytes:
    return frame(kind, struct.pack("<BBQH", stream, flags, first, count) + rest)


def ack(received: int, delivered: int, allowance: int = 0, *, stream: int = 0) -> bytes:
    return frame(2, struct.pack("<BQQQ", stream, received, delivered, allowance))


def nack(*ranges: tuple[int, int]) -> bytes:
    return frame(3, b"\0" + b"".join(struct.pack("<QI", *pair) for pair in ranges))


def conn(epoch: int = 3, conn_id: int = 1) -> bytes:
    return struct.pack("<QI", epoch, conn_id)


def unicast_run(
    first: int, count: int, rest: bytes, *, on: bytes | None = None, flags: int = 1
) -> bytes:
    return frame(6, (on or conn()) + struct.pack("<BQH", flags, first, count) + rest)


def unicast_ack(delivered: int, allowance: int = 0, *, on: bytes | None = None) -> bytes:
    return frame(7, (on or conn()) + struct.pack("<QQ", delivered, allowance))


def unicast_nack(*ranges: tuple[int, int]) -> bytes:
    return frame(8, conn() + b"".join(struct.pack("<QI", *pair) for pair in ranges))


def sync(nonce: int, *, kind: int = 10) -> bytes:
    return frame(kind, conn() + struct.pack("<Q", nonce))


def sync_ok(nonce: int, low: int, high: int, flags: int = 0) -> bytes:
    return frame(11, conn() + struct.pack("<QQQB", nonce, low, high, flags))


def member(host: bytes = b"h", name: bytes = b"", incarnation: int = 1, *, port: int = 1) -> bytes:
    numbers = struct.pack("<HQ", port, incarnation)
    return bytes([len(host)]) + host + numbers + bytes([len(name)]) + name


def commit(seqno: int) -> bytes:
    return frame(40, struct.pack("<Q", seqno))


def view_id(counter: int = 1) -> bytes:
    return struct.pack("<Q", counter) + member()


def report(*delivered: int, number: int = 0, allowance: int = 0, counter: int = 1) -> bytes:
    numbers = struct.pack(f"<{2 + len(delivered)}Q", number, allowance, *delivered)
    return frame(44, view_id(counter) + numbers)


def stable(
    *marks: tuple[int, int, int], number: int = 1, allowance: int = 0, counter: int = 1
) -> bytes:
    numbers = [struct.pack("<QQ", number, allowance), *(struct.pack("<QQH", *m) for m in marks)]
    return frame(46, view_id(counter) + b"".join(numbers))


def peer_repair_request(*ranges: tuple[int, int], who: bytes | None = None) -> bytes:
    pairs = [struct.pack("<QI", *pair) for pair in ranges]
    return frame(47, (who or member()) + b"".join(pairs))


def repair_of(who: bytes) -> bytes:
    return peer_repair_request((1, 1), who=who)


def peer_repair(data: bytes, who: bytes | None = None) -> bytes:
    """What `run` encodes, passed on."""
    return frame(48, (who or member()) + data[3:])


def counted(kind: int, counter: int) -> bytes:
    return frame(kind, struct.pack("<Q", counter))


def identified(identity: bytes) -> bytes:
    highest = frame(4, struct.pack("<BQ", 0, 1))
    return b"RC\x02\x00" + bytes([len(identity)]) + identity + bytes(8) + highest


def identity(
    group: bytes = b"orders", host: bytes = b"h", name: bytes = b"", incarnation: int = 1
) -> bytes:
    return bytes([len(group)]) + group + member(host, name, incarnation)


# Packing


def test_nothing_to_pack_is_no_datagram() -> None:
    assert codec().pack([]) == []


def test_runs_that_continue_each_other_become_one() -> None:
    (datagram,) = codec().pack(
        [Data(FIFO, 1, [b"a"]), Data(FIFO, 2, [b"bb"]), Data(FIFO, 3, [b"c"])]
    )
    assert codec().unpack(datagram) == (ME, [Data(FIFO, 1, [b"a", b"bb", b"c"])])


@pytest.mark.parametrize(
    "second",
    [
        Data(FIFO, 4, [b"x"]),
        Data(FIFO, 2, [b"x"]),
        Data(UNIFORM, 3, [b"x"]),
        Data(FIFO, 3, [b"x"], more=True),
    ],
)
def test_other_runs_stay_apart(second: Data) -> None:
    frames: list[Frame] = [Data(FIFO, 1, [b"a", b"b"]), second]
    (datagram,) = codec().pack(frames)
    assert codec().unpack(datagram)[1] == frames


def test_runs_on_one_connection_become_one() -> None:
    runs: list[Frame] = [UnicastData(CONN, 1, [b"a"]), UnicastData(CONN, 2, [b"bb", b"c"])]
    (datagram,) = codec().pack(runs, to=ME)
    assert codec().unpack(datagram) == (ME, [UnicastData(CONN, 1, [b"a", b"bb", b"c"])])


@pytest.mark.parametrize(
    "second",
    [
        UnicastData(CONN, 4, [b"x"]),
        UnicastData(CONN, 2, [b"x"]),
        UnicastData(Conn(3, 2), 3, [b"x"]),
        UnicastData(Conn(4, 1), 3, [b"x"]),
        UnicastData(CONN, 3, [b"x"], more=True),
        Data(FIFO, 3, [b"x"]),
    ],
    ids=repr,
)
def test_other_runs_to_one_member_stay_apart(second: Data | UnicastData) -> None:
    frames: list[Frame] = [UnicastData(CONN, 1, [b"a", b"b"]), second]
    (datagram,) = codec().pack(frames, to=ME)
    assert codec().unpack(datagram)[1] == frames


def test_a_run_to_one_member_does_not_continue_one_to_the_group() -> None:
    frames: list[Frame] = [Data(FIFO, 1, [b"a"]), UnicastData(CONN, 2, [b"b"])]
    (datagram,) = codec().pack(frames, to=ME)
    assert codec().unpack(datagram)[1] == frames


def test_a_frame_between_two_runs_keeps_them_apart() -> None:
    frames: list[Frame] = [Data(FIFO, 1, [b"a"]), Watermark(FIFO, 2), Data(FIFO, 2, [b"b"])]
    (datagram,) = codec().pack(frames)
    assert codec().unpack(datagram)[1] == frames


def test_merging_leaves_the_frames_as_they_were() -> None:
    first, second = Data(FIFO, 1, [b"a"]), Data(FIFO, 2, [b"b"])
    codec().pack([first, second])
    assert (first.payloads, second.payloads) == ([b"a"], [b"b"])


def test_the_largest_payload_fits_whomever_it_is_for() -> None:
    one = codec(512)
    largest = bytes(one.payload_bytes_max)
    (datagram,) = one.pack([UnicastData(CONN, 1, [largest])], to=ME)
    assert len(datagram) == 512 - TAG
    assert len(one.pack([Data(FIFO, 1, [largest])])) == 1
    with pytest.raises(AssertionError, match="larger than a datagram"):
        one.pack([UnicastData(CONN, 1, [largest + b"x"])], to=ME)
    with pytest.raises(AssertionError, match="larger than a datagram"):
        one.pack([Data(FIFO, 1, [bytes(512)])])


@pytest.mark.parametrize("sizes", [[100] * 1000, [99, 101] * 500], ids=["equal", "mixed"])
def test_a_long_run_fills_every_datagram_but_the_last(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    datagrams = codec(1400).pack([Data(FIFO, 1, payloads)])
    assert all(1400 - TAG - 103 < len(datagram) <= 1400 for datagram in datagrams[:-1])
    runs = [codec().unpack(datagram)[1][0] for datagram in datagrams]
    assert payloads_of(runs) == payloads


@pytest.mark.parametrize("sizes", [[100] * 1000, [99, 101] * 500], ids=["equal", "mixed"])
def test_a_long_run_to_one_member_fills_every_datagram_but_the_last(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    datagrams = codec(1400).pack([UnicastData(CONN, 1, payloads, more=True)], to=ME)
    assert all(1400 - TAG - 103 < len(datagram) <= 1400 for datagram in datagrams[:-1])
    runs = [codec().unpack(datagram)[1][0] for datagram in datagrams]
    assert payloads_of(runs) == payloads
    following = 1
    for run in runs:
        assert isinstance(run, UnicastData)
        assert (run.conn, run.first, run.more) == (CONN, following, True)
        following = run.last + 1


def test_stretches_of_equal_length_are_found_in_a_mixed_run() -> None:
    payloads = [bytes(100)] * 100 + [b"end"]
    datagrams = codec(1400).pack([Data(FIFO, 1, payloads)])
    (equal,) = codec(1400).pack([Data(FIFO, 1, payloads[:13])])
    assert datagrams[0] == equal
    assert len(datagrams) == 8
    runs = [run for datagram in datagrams for run in codec().unpack(datagram)[1]]
    assert len(runs) == 8
    assert payloads_of(runs) == payloads


@pytest.mark.parametrize("sizes", [[0] * 300 + [1], [2, 1, 3] * 200], ids=["empty", "same sum"])
def test_a_cut_leaves_no_room_for_another_piece(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    runs = [codec().unpack(datagram)[1] for datagram in codec(512).pack([Data(FIFO, 1, payloads)])]
    assert all(len(frames) == 1 for frames in runs)
    assert payloads_of(run for (run,) in runs) == payloads


def test_a_run_uses_what_room_is_left() -> None:
    one = codec(512)
    datagrams = one.pack([Watermark(FIFO, 9), Data(FIFO, 1, [bytes(200)] * 3)])
    frames = [one.unpack(datagram)[1] for datagram in datagrams]
    assert frames == [
        [Watermark(FIFO, 9), Data(FIFO, 1, [bytes(200)] * 2)],
        [Data(FIFO, 3, [bytes(200)])],
    ]


def test_empty_messages_are_bounded_by_count() -> None:
    datagrams = codec().pack([Data(FIFO, 1, [b""] * (MESSAGES_MAX + 1))])
    runs = [codec().unpack(datagram)[1] for datagram in datagrams]
    assert runs == [
        [Data(FIFO, 1, [b""] * MESSAGES_MAX)],
        [Data(FIFO, MESSAGES_MAX + 1, [b""])],
    ]


def test_messages_are_counted_over_all_runs_of_a_datagram() -> None:
    runs: list[Frame] = [Data(FIFO, 1, [b""] * MESSAGES_MAX), Data(UNIFORM, 1, [b"", b"x"])]
    datagrams = codec().pack(runs)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [runs[:1], runs[1:]]
    runs = [Data(FIFO, 1, [b""] * MESSAGES_MAX), UnicastData(CONN, 1, [b"", b"x"])]
    datagrams = codec().pack(runs, to=ME)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [runs[:1], runs[1:]]


def test_empty_messages_need_room_for_their_size() -> None:
    one = codec(512)
    filler = UnicastData(CONN, 1, [bytes(one.payload_bytes_max - 16)])  # leaves one byte too few
    datagrams = one.pack([filler, Data(UNIFORM, 1, [b""])], to=ME)
    assert [one.unpack(datagram)[1] for datagram in datagrams] == [
        [filler],
        [Data(UNIFORM, 1, [b""])],
    ]


@pytest.mark.parametrize(
    "one_of_many",
    [
        Watermark(FIFO, 1),
        Data(FIFO, 5, [b"x"]),
        Nack(FIFO, [range(1, 2)]),
        UnicastData(CONN, 5, [b"x"]),
        UnicastNack(CONN, [range(1, 2)]),
        PeerRepairRequest(OTHER, (range(1, 2),)),
        Close(CONN),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_frames_are_bounded_by_count(one_of_many: Frame) -> None:
    frames: list[Frame] = [Watermark(FIFO, 0)] * FRAMES_MAX
    datagrams = codec().pack([*frames, one_of_many], to=ME)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [frames, [one_of_many]]


MISSING = [range(seqno, seqno + 1) for seqno in range(1, 2 * NACK_RANGES_MAX, 2)]


@pytest.mark.parametrize(
    "whole",
    [Nack(FIFO, MISSING), UnicastNack(CONN, MISSING), PeerRepairRequest(OTHER, tuple(MISSING))],
    ids=lambda frame: type(frame).__name__,
)
def test_a_nack_is_cut_where_a_datagram_is_full(
    whole: Nack | UnicastNack | PeerRepairRequest,
) -> None:
    one = codec(512)
    datagrams = one.pack([whole], to=ME)
    assert all(512 - TAG - 12 < len(datagram) <= 512 for datagram in datagrams[:-1])
    frames = [frame for datagram in datagrams for frame in one.unpack(datagram)[1]]
    assert len(frames) == len(datagrams) == 4
    cuts: list[Any] = [
        frame.missing
        for frame in frames
        if isinstance(frame, Nack | UnicastNack | PeerRepairRequest)
    ]
    assert [replace(whole, missing=cut) for cut in cuts] == frames
    assert [gap for cut in cuts for gap in cut] == MISSING


def test_ranges_are_counted_over_all_nacks_of_a_datagram() -> None:
    frames: list[Frame] = [
        Nack(FIFO, MISSING),
        UnicastNack(CONN, MISSING),
        PeerRepairRequest(OTHER, tuple(MISSING)),
        Nack(UNIFORM, MISSING),
    ]
    datagrams = codec().pack(frames, to=ME)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [[frame] for frame in frames]


@pytest.mark.parametrize(
    "ours",
    [
        Data(FIFO, 1, []),
        Data(FIFO, 0, [b"x"]),
        Data(FIFO, SEQNO_MAX, [b"x", b"y"]),
        Ack(FIFO, 1, 2, 0),
        Nack(FIFO, []),
        Nack(FIFO, [range(2 * i, 2 * i + 1) for i in range(1, NACK_RANGES_MAX + 2)]),
        Nack(FIFO, [range(0, 1)]),
        Nack(FIFO, [range(3, 3)]),
        Nack(FIFO, [range(1, 9, 2)]),
        Nack(FIFO, [range(1, 1 + 2**32)]),
        Nack(FIFO, [range(5, 7), range(6, 8)]),
        Nack(FIFO, [range(SEQNO_MAX, SEQNO_MAX + 2)]),
        UnicastData(CONN, 1, []),
        UnicastData(CONN, 0, [b"x"]),
        UnicastData(CONN, SEQNO_MAX, [b"x", b"y"]),
        UnicastData(Conn(0, 1), 1, [b"x"]),
        UnicastData(Conn(COUNTER_MAX + 1, 1), 1, [b"x"]),
        UnicastData(Conn(1, 0), 1, [b"x"]),
        UnicastData(Conn(1, CONN_ID_MAX + 1), 1, [b"x"]),
        UnicastNack(CONN, []),
        UnicastNack(CONN, [range(5, 7), range(6, 8)]),
        Close(Conn(0, 1)),
        Close(Conn(COUNTER_MAX + 1, 1)),
        Close(Conn(1, 0)),
        Close(Conn(1, CONN_ID_MAX + 1)),
        SyncOk(CONN, 1, 3, 2, is_middle=False),
        StabilityReport(ViewId(ME, 0), 0, 0, (0,)),
        StabilityReport(VIEW.id, 0, 0, ()),
        StabilityReport(VIEW.id, 0, 0, (0,) * (VIEW_MEMBERS_MAX + 1)),
        StabilityReport(VIEW.id, 0, 0, (1, -1)),
        StabilityReport(VIEW.id, 0, 0, (SEQNO_MAX + 1, 0)),
        StabilityQuery(ViewId(ME, 0), 0),
        Stable(ViewId(ME, 0), 1, 0, (Mark(0, 0, 0),)),
        Stable(VIEW.id, 1, 0, ()),
        Stable(VIEW.id, 1, 0, (Mark(0, 0, 0),) * (VIEW_MEMBERS_MAX + 1)),
        Stable(VIEW.id, 1, 0, (Mark(2, 1, 0),)),
        Stable(VIEW.id, 1, 0, (Mark(-1, 1, 0),)),
        Stable(VIEW.id, 1, 0, (Mark(1, SEQNO_MAX + 1, 0),)),
        Stable(VIEW.id, 1, 0, (Mark(0, 0, 1),)),
        Stable(VIEW.id, 1, 0, (Mark(0, 0, -1),)),
        PeerRepairRequest(ME, ()),
        PeerRepairRequest(ME, (range(5, 7), range(6, 8))),
        PeerRepairRequest(ME, (range(0, 1),)),
        PeerRepair(ME, Data(FIFO, 1, [])),
        PeerRepair(ME, Data(FIFO, 0, [b"x"])),
        PeerRepair(ME, Data(FIFO, SEQNO_MAX, [b"x", b"y"])),
        PeerRepair(ME, Data(UNIFORM, 1, [b"x"])),
    ],
    ids=repr,
)
def test_what_cannot_be_right_is_our_bug(ours: Frame) -> None:
    with pytest.raises(AssertionError):
        codec().pack([ours], to=ME)


UNICAST: list[Frame] = [
    UnicastData(CONN, 1, [b"abc", b"def"]),
    UnicastAck(CONN, 1, 9),
    UnicastNack(CONN, [range(1, 2), range(4, 5)]),
    Close(CONN),
    Sync(CONN, 1),
    SyncOk(CONN, 1, 2, 3, is_middle=True),
    SyncAck(CONN, 1),
]
VOTES: list[Frame] = [
    StabilityReport(VIEW.id, 0, 0, (0,)),
    StabilityReport(ViewId(OTHER, COUNTER_MAX), COUNTER_MAX, ALLOWANCE_MAX, (SEQNO_MAX, 7, 0)),
    StabilityQuery(VIEW.id, 0),
    StabilityQuery(VIEW.id, COUNTER_MAX),
]
REPAIRS: list[Frame] = [
    PeerRepairRequest(OTHER, (range(1, 3), range(SEQNO_MAX, SEQNO_MAX + 1))),
    PeerRepair(OTHER, Data(FIFO, 1, [b"abc", b"def"])),
    PeerRepair(OTHER, Data(FIFO, SEQNO_MAX - 1, [b"abc", b""], more=True)),
]


@pytest.mark.parametrize("ours", UNICAST + VOTES + REPAIRS, ids=lambda frame: type(frame).__name__)
def test_what_two_incarnations_have_between_them_is_for_one_member(ours: Frame) -> None:
    with pytest.raises(AssertionError):
        codec().pack([ours])
    (datagram,) = codec().pack([ours], to=ME)
    assert codec().unpack(datagram) == (ME, [ours])
    to_anyone = HEADER + datagram[len(HEADER) :]
    assert refusal(to_anyone) is Reject.ADDRESSEE
    with pytest.raises(DecodeError):
        codec().unpack(to_anyone, overhear=True)


STABLE: list[Frame] = [
    Stable(VIEW.id, 1, 0, (Mark(0, 0, 0),)),
    Stable(
        ViewId(OTHER, COUNTER_MAX),
        COUNTER_MAX,
        ALLOWANCE_MAX,
        (Mark(7, 9, 1), Mark(SEQNO_MAX, SEQNO_MAX, 0)),
    ),
]
CONTROL: list[Frame] = [
    Leave(),
    Heartbeat(2),
    Ping(5),
    Pong(5),
    Commit(0),
    Commit(SEQNO_MAX),
]


@pytest.mark.parametrize("to", [None, ME], ids=["anyone", "one member"])
@pytest.mark.parametrize("ours", CONTROL + STABLE, ids=lambda frame: type(frame).__name__)
def test_what_speaks_of_the_group_may_be_for_anyone(ours: Frame, to: Member | None) -> None:
    (datagram,) = codec().pack([ours], to)
    assert codec().unpack(datagram) == (ME, [ours])


def test_a_member_that_cannot_be_is_not_sent() -> None:
    for wrong in (
        OTHER._replace(name="a\nb"),
        OTHER._replace(incarnation=0),
        OTHER._replace(address=Address("", 1)),
        OTHER._replace(address=Address("h", 65536)),
    ):
        with pytest.raises(ConfigError):
            codec().pack([PeerRepairRequest(wrong, (range(1, 2),))], to=ME)


@pytest.mark.parametrize(
    "with_view",
    [
        StabilityReport(VIEW.id, 1, 2, (3, 4)),
        Stable(VIEW.id, 1, 2, (Mark(3, 4, 1), Mark(5, 6, 0))),
        PeerRepair(OTHER, Data(FIFO, 2, [b"y"])),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_what_speaks_of_many_or_for_another_has_a_datagram_of_its_own(with_view: Frame) -> None:
    frames: list[Frame] = [Heartbeat(1), with_view, with_view, Data(FIFO, 1, [b"x"]), Heartbeat(2)]
    datagrams = codec().pack(frames, to=ME)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [
        [Heartbeat(1)],
        [with_view],
        [with_view],
        [Data(FIFO, 1, [b"x"]), Heartbeat(2)],
    ]


def test_the_votes_of_the_largest_view_fit_one_datagram_however_small_the_others_are() -> None:
    first = Member(Address("h" * 64, 65535), INCARNATION_MAX, "n" * 64)
    view_id = ViewId(first, COUNTER_MAX)
    most: list[Frame] = [
        StabilityReport(view_id, COUNTER_MAX, ALLOWANCE_MAX, (SEQNO_MAX,) * VIEW_MEMBERS_MAX),
        Stable(
            view_id,
            COUNTER_MAX,
            ALLOWANCE_MAX,
            (Mark(SEQNO_MAX, SEQNO_MAX, VIEW_MEMBERS_MAX - 1),) * VIEW_MEMBERS_MAX,
        ),
    ]
    one = Echo("g" * 64, first, 512, 4)
    datagrams = one.pack(most, to=first)
    assert [one.unpack(datagram)[1] for datagram in datagrams] == [[ours] for ours in most]
    assert all(4096 < len(datagram) < 10_000 for datagram in datagrams)


# Passing on


@pytest.mark.parametrize("sizes", [[100] * 50, [99, 101] * 25, [0] * 900], ids=str)
def test_a_long_run_is_passed_on_in_datagrams_of_our_own_size(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    one = codec(1400)
    datagrams = one.pack([PeerRepair(OTHER, Data(FIFO, 7, payloads, more=True))], to=ME)
    assert all(1400 - TAG - 103 < len(datagram) <= 1400 for datagram in datagrams[:-1])
    following = 7
    passed_on = []
    for datagram in datagrams:
        _, (piece,) = one.unpack(datagram)
        assert isinstance(piece, PeerRepair)
        assert (piece.sender, piece.data.first, piece.data.more) == (OTHER, following, True)
        following = piece.data.last + 1
        passed_on += piece.data.payloads
    assert passed_on == payloads


def test_more_messages_than_a_datagram_may_have_are_passed_on_in_two() -> None:
    run = Data(FIFO, 1, [b""] * (MESSAGES_MAX + 1))
    datagrams = codec().pack([PeerRepair(OTHER, run)], to=ME)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [
        [PeerRepair(OTHER, Data(FIFO, 1, [b""] * MESSAGES_MAX))],
        [PeerRepair(OTHER, Data(FIFO, MESSAGES_MAX + 1, [b""]))],
    ]


def test_a_message_that_came_in_a_larger_datagram_goes_on_in_one() -> None:
    """Members may build datagrams of different sizes, and have names of different lengths."""
    run = Data(FIFO, 1, [b"a" * 10, b"b" * 600, b"c" * 600, b"d" * 10])
    one = codec(512)
    datagrams = one.pack([PeerRepair(OTHER, run), Heartbeat(1)], to=ME)
    assert [one.unpack(datagram)[1] for datagram in datagrams] == [
        [PeerRepair(OTHER, Data(FIFO, 1, run.payloads[:1]))],
        [PeerRepair(OTHER, Data(FIFO, 2, run.payloads[1:2]))],
        [PeerRepair(OTHER, Data(FIFO, 3, run.payloads[2:3]))],
        [PeerRepair(OTHER, Data(FIFO, 4, run.payloads[3:]))],
        [Heartbeat(1)],
    ]
    assert [len(datagram) > 512 for datagram in datagrams] == [False, True, True, False, False]


def test_what_is_passed_on_is_cut_when_it_is_read() -> None:
    (datagram,) = codec().pack([PeerRepair(OTHER, Data(FIFO, 1, [b"a", b"b"]))], to=ME)
    buffer = bytearray(datagram)
    _, (received,) = codec().unpack(buffer)
    assert isinstance(received, PeerRepair)
    buffer[-1:] = b"c"  # as if the next datagram had come before anybody read this one
    assert received.data.payloads == [b"a", b"c"]
    buffer.append(0)  # would raise BufferError if anything still referred to it


def test_the_extremes_survive() -> None:
    frames: list[Frame] = [
        Data(FIFO, SEQNO_MAX - 1, [b"x", b""]),
        Ack(UNIFORM, SEQNO_MAX, SEQNO_MAX, WINDOW_SIZE_MAX, WINDOW_SIZE_MAX),
        Ack(FIFO, 0, 0, 0),
        Nack(FIFO, [range(1, 2**32), range(2**32, 2**32 + 1), range(SEQNO_MAX, SEQNO_MAX + 1)]),
        Watermark(UNIFORM, SEQNO_MAX),
        Watermark(FIFO, 0),
        Heartbeat(3),
        UnicastData(Conn(COUNTER_MAX, CONN_ID_MAX), SEQNO_MAX - 1, [b"x", b""], more=True),
        UnicastAck(Conn(1, 1), 0, 0),
        UnicastAck(CONN, SEQNO_MAX, ALLOWANCE_MAX),
        UnicastNack(CONN, [range(1, 2**32), range(SEQNO_MAX, SEQNO_MAX + 1)]),
        Close(Conn(COUNTER_MAX, CONN_ID_MAX)),
        Sync(CONN, COUNTER_MAX),
        SyncOk(CONN, COUNTER_MAX, SEQNO_MAX, SEQNO_MAX, is_middle=True),
        SyncOk(CONN, 1, 0, 0, is_middle=False),
        SyncAck(CONN, COUNTER_MAX),
        Heartbeat(COUNTER_MAX),
        Ping(COUNTER_MAX),
        Pong(1),
    ]
    (datagram,) = codec().pack(frames, to=ME)
    assert codec().unpack(datagram) == (ME, frames)


# Receiving


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda d: memoryview(bytearray(d))])
@pytest.mark.parametrize("payloads", [[b"abc"] * 3, [b"a", b"", b"bcd"], [b"ab"] * 2000])
def test_payloads_come_out_as_bytes_from_any_buffer(
    wrap: Callable[[bytes], bytes | bytearray | memoryview], payloads: list[bytes]
) -> None:
    for run in (Data(FIFO, 1, payloads), UnicastData(CONN, 1, payloads)):
        (datagram,) = codec().pack([run], to=ME)
        _, (received,) = codec().unpack(wrap(datagram))
        assert isinstance(received, Data | UnicastData)
        assert received == run
        assert {type(payload) for payload in received.payloads} == {bytes}


def test_payloads_read_in_time_outlive_the_buffer() -> None:
    (datagram,) = codec().pack([Data(FIFO, 1, [b"abc", b"de"])])
    buffer = bytearray(datagram)
    _, (received,) = codec().unpack(buffer)
    assert isinstance(received, Data)
    kept = received.payloads
    buffer[:] = bytes(len(buffer))
    assert kept == [b"abc", b"de"]


@pytest.mark.parametrize("run", [Data(FIFO, 1, [b"a", b"b"]), UnicastData(CONN, 1, [b"a", b"b"])])
def test_payloads_are_cut_when_they_are_read_and_once(run: Frame) -> None:
    (datagram,) = codec().pack([run], to=ME)
    buffer = bytearray(datagram)
    _, (received,) = codec().unpack(buffer)
    assert isinstance(received, Messages)
    assert (received.count, received.last) == (2, 2)
    buffer[-1:] = b"c"  # as if the next datagram had come before anybody read this one
    payloads = received.payloads
    assert payloads == [b"a", b"c"]
    assert received.payloads is payloads
    buffer.append(0)  # would raise BufferError if anything still referred to it


@pytest.mark.parametrize(
    ("data", "opens"),
    [
        (UnicastData(Conn(7, 1), 1, [b"a", b"b"]), True),
        (UnicastData(Conn(7, 1), 2, [b"a"]), False),
        (UnicastData(Conn(7, 2), 1, [b"a"]), False),
    ],
    ids=repr,
)
def test_the_first_message_on_the_first_connection_opens(data: UnicastData, opens: bool) -> None:
    assert data.opens is opens


def test_runs_are_equal_if_all_of_them_is() -> None:
    run = UnicastData(CONN, 1, [b"a"])
    others = [
        UnicastData(Conn(3, 2), 1, [b"a"]),
        UnicastData(CONN, 2, [b"a"]),
        UnicastData(CONN, 1, [b"b"]),
        UnicastData(CONN, 1, [b"a"], more=True),
        Data(FIFO, 1, [b"a"]),
    ]
    assert run == UnicastData(CONN, 1, [b"a"])
    assert run not in others
    assert Data(FIFO, 1, [b"a"]) != run


def test_runs_read_well() -> None:
    assert repr(Data(FIFO, 7, [b"a", b"b"])) == "Data(FIFO, 7..8)"
    assert repr(UnicastData(CONN, 7, [b"a"], more=True)) == "UnicastData(3.1, 7..7, more)"


REFUSED = {
    "nothing": (b"", Reject.TOO_SHORT),
    "one byte": (b"R", Reject.TOO_SHORT),
    "no frame": (HEADER, Reject.TOO_SHORT),
    "identity cut short": (HEADER[:-1], Reject.TOO_SHORT),
    "beyond IPv4": (HEADER + bytes(65_508 - len(HEADER)), Reject.TOO_LONG),
    "magic": (b"rc" + HEADER[2:] + ack(1, 1), Reject.NOT_OURS),
    "version": (b"RC\x00" + HEADER[3:] + ack(1, 1), Reject.VERSION),
    "sealed": (b"RC\x02\x01" + HEADER[4:] + ack(1, 1), Reject.SEALED),
    "header flags": (b"RC\x02\x80" + HEADER[4:] + ack(1, 1), Reject.FLAGS),
    "group": (identified(identity(group=b"order")), Reject.GROUP),
    "no group": (identified(identity(group=b"")), Reject.IDENTITY),
    "no host": (identified(identity(host=b"")), Reject.IDENTITY),
    "long name": (identified(identity(name=b"n" * 65)), Reject.IDENTITY),
    "escape in name": (identified(identity(name=b"\x1b[2J")), Reject.IDENTITY),
    "not UTF-8": (identified(identity(name=b"\xff")), Reject.IDENTITY),
    "surrogate": (identified(identity(name=b"\xed\xa0\x80")), Reject.IDENTITY),
    "identity too long": (identified(identity() + b"\0"), Reject.IDENTITY),
    "name too short": (identified(identity(name=b"name")[:-1]), Reject.IDENTITY),
    "no name": (identified(identity()[:-1]), Reject.IDENTITY),
    "half an incarnation": (identified(identity()[:-5]), Reject.IDENTITY),
    "incarnation 0": (identified(identity(incarnation=0)), Reject.IDENTITY),
    "no identity": (identified(b""), Reject.IDENTITY),
    "for another incarnation": (HEADER[:-8] + b"\7" + bytes(7) + ack(1, 1), Reject.ADDRESSEE),
    "kind 0": (HEADER + frame(0, b""), Reject.FRAME_KIND),
    "kind 255": (HEADER + frame(255, b""), Reject.FRAME_KIND),
    "kind 255 to us": (TO_ME + frame(255, b""), Reject.FRAME_KIND),
    "close for anyone": (HEADER + frame(9, conn()), Reject.ADDRESSEE),
    "kind 5": (HEADER + frame(5, b""), Reject.FRAME_KIND),
    "half a frame header": (HEADER + ack(1, 1) + b"\x02\x19", Reject.FRAME_LENGTH),
    "frame beyond the end": (HEADER + ack(1, 1)[:-1], Reject.FRAME_LENGTH),
    "short run": (HEADER + run(1, 1, b"\0"), Reject.FRAME_LENGTH),
    "nack without stream": (HEADER + frame(3, b""), Reject.FRAME_LENGTH),
    "half a range": (HEADER + frame(3, bytes(7)), Reject.FRAME_LENGTH),
    "stream of a run": (HEADER + run(1, 1, b"\1\0x", stream=3), Reject.STREAM),
    "flags of a run": (HEADER + run(1, 1, b"\1\0x", flags=5), Reject.FLAGS),
    "seqno 0": (HEADER + run(0, 1, b"\1\0x"), Reject.SEQNO),
    "seqno 2**63": (HEADER + run(2**63, 1, b"\1\0x"), Reject.SEQNO),
    "seqno 2**64-1": (HEADER + run(2**64 - 1, 1, b"\1\0x"), Reject.SEQNO),
    "last seqno 2**63": (HEADER + run(SEQNO_MAX, 2, b"\1\0xy"), Reject.SEQNO),
    "delivered above received": (HEADER + ack(1, 2), Reject.SEQNO),
    "missing 0": (HEADER + nack((0, 1)), Reject.SEQNO),
    "missing 2**63": (HEADER + nack((SEQNO_MAX, 2)), Reject.SEQNO),
    "no message": (HEADER + run(1, 0, b"\0\0"), Reject.COUNT),
    "messages": (HEADER + run(1, MESSAGES_MAX + 1, b"\0\0"), Reject.COUNT),
    "messages of two runs": (HEADER + run(1, MESSAGES_MAX, b"\0\0") * 2, Reject.COUNT),
    "frames": (HEADER + ack(1, 1) * (FRAMES_MAX + 1), Reject.COUNT),
    "no range": (HEADER + nack(), Reject.COUNT),
    "empty range": (HEADER + nack((1, 0)), Reject.COUNT),
    "ranges": (HEADER + nack(*((2 * i, 1) for i in range(1, 130))), Reject.COUNT),
    "ranges of two nacks": (HEADER + nack(*((2 * i, 1) for i in range(1, 66))) * 2, Reject.COUNT),
    "equal length too large": (HEADER + run(1, 2, b"\2\0abc"), Reject.LENGTHS),
    "equal length too small": (HEADER + run(1, 2, b"\1\0abc"), Reject.LENGTHS),
    "table beyond the frame": (HEADER + run(1, 3, b"\0\0\0\0", flags=0), Reject.LENGTHS),
    "table too large": (HEADER + run(1, 2, b"\1\0\2\0ab", flags=0), Reject.LENGTHS),
    "table too small": (HEADER + run(1, 2, b"\1\0\0\0ab", flags=0), Reject.LENGTHS),
    "ranges overlap": (HEADER + nack((5, 2), (6, 1)), Reject.RANGES),
    "ranges go back": (HEADER + nack((5, 2), (1, 1)), Reject.RANGES),
    "short unicast run": (TO_ME + unicast_run(1, 1, b"\0"), Reject.FRAME_LENGTH),
    "unicast run without conn": (TO_ME + frame(6, b""), Reject.FRAME_LENGTH),
    "unicast nack without conn": (TO_ME + frame(8, b""), Reject.FRAME_LENGTH),
    "half a unicast range": (TO_ME + frame(8, conn() + bytes(6)), Reject.FRAME_LENGTH),
    "flags of a unicast run": (TO_ME + unicast_run(1, 1, b"\1\0x", flags=4), Reject.FLAGS),
    "unicast seqno 0": (TO_ME + unicast_run(0, 1, b"\1\0x"), Reject.SEQNO),
    "last unicast seqno 2**63": (TO_ME + unicast_run(SEQNO_MAX, 2, b"\1\0xy"), Reject.SEQNO),
    "epoch 0": (TO_ME + unicast_run(1, 1, b"\1\0x", on=conn(0)), Reject.SEQNO),
    "conn id 0": (TO_ME + unicast_ack(1, on=conn(3, 0)), Reject.SEQNO),
    "unicast missing 0": (TO_ME + unicast_nack((0, 1)), Reject.SEQNO),
    "low above high": (TO_ME + sync_ok(1, 3, 2), Reject.SEQNO),
    "no unicast message": (TO_ME + unicast_run(1, 0, b"\0\0"), Reject.COUNT),
    "unicast messages": (TO_ME + unicast_run(1, MESSAGES_MAX + 1, b"\0\0"), Reject.COUNT),
    "messages of both kinds": (
        TO_ME + run(1, MESSAGES_MAX, b"\0\0") + unicast_run(1, 1, b"\0\0"),
        Reject.COUNT,
    ),
    "no unicast range": (TO_ME + unicast_nack(), Reject.COUNT),
    "ranges of both kinds": (
        TO_ME + nack((1, 1)) + unicast_nack(*((2 * i, 1) for i in range(1, 129))),
        Reject.COUNT,
    ),
    "unicast lengths": (TO_ME + unicast_run(1, 2, b"\1\0\2\0ab", flags=0), Reject.LENGTHS),
    "unicast ranges overlap": (TO_ME + unicast_nack((5, 2), (6, 1)), Reject.RANGES),
    "leave with a body": (HEADER + frame(19, b"\0"), Reject.FRAME_LENGTH),
    "message in place of a frame": (HEADER + frame(38, bytes(60)), Reject.FRAME_KIND),
    "report for anyone": (HEADER + report(0), Reject.ADDRESSEE),
    "report in no view": (TO_ME + frame(44, b""), Reject.FRAME_LENGTH),
    "report in view 0": (TO_ME + report(0, counter=0), Reject.SEQNO),
    "report in nobody's view": (TO_ME + frame(44, view_id()[:-1]), Reject.MEMBER),
    "report without allowance": (TO_ME + frame(44, view_id() + bytes(15)), Reject.FRAME_LENGTH),
    "report on nobody": (TO_ME + report(), Reject.COUNT),
    "report on too many": (TO_ME + report(*range(VIEW_MEMBERS_MAX + 1)), Reject.COUNT),
    "half a number in a report": (TO_ME + frame(44, report(0, 1)[3:-1]), Reject.FRAME_LENGTH),
    "report 2**63": (TO_ME + report(0, 2**63, 1), Reject.SEQNO),
    "report after a beat": (TO_ME + counted(21, 1) + report(0), Reject.COUNT),
    "beat after a report": (TO_ME + report(0) + counted(21, 1), Reject.COUNT),
    "report wanted of anyone": (HEADER + frame(45, bytes(8) + view_id()), Reject.ADDRESSEE),
    "report wanted without number": (TO_ME + frame(45, bytes(7)), Reject.FRAME_LENGTH),
    "report wanted in no view": (TO_ME + frame(45, bytes(8)), Reject.FRAME_LENGTH),
    "report wanted in view 2**63": (TO_ME + frame(45, bytes(8) + view_id(2**63)), Reject.SEQNO),
    "report wanted and more": (
        TO_ME + frame(45, bytes(8) + view_id() + b"\0"),
        Reject.FRAME_LENGTH,
    ),
    "stable in no view": (HEADER + frame(46, b""), Reject.FRAME_LENGTH),
    "stable in view 2**63": (HEADER + stable((0, 0, 0), counter=2**63), Reject.SEQNO),
    "stable without allowance": (HEADER + frame(46, view_id() + bytes(15)), Reject.FRAME_LENGTH),
    "nobody's messages stable": (HEADER + stable(), Reject.COUNT),
    "too many marks": (HEADER + stable(*((0, 0, 0),) * (VIEW_MEMBERS_MAX + 1)), Reject.COUNT),
    "half a mark": (HEADER + frame(46, stable((0, 0, 0))[3:-1]), Reject.FRAME_LENGTH),
    "all have more than the others": (HEADER + stable((0, 0, 0), (2, 1, 0)), Reject.SEQNO),
    "stable up to 2**63": (HEADER + stable((0, 2**63, 0)), Reject.SEQNO),
    "slowest is nobody": (HEADER + stable((0, 0, 2), (0, 0, 0)), Reject.VIEW),
    "stable after a beat": (HEADER + counted(21, 1) + stable((0, 0, 0)), Reject.COUNT),
    "two rounds": (HEADER + stable((0, 0, 0)) * 2, Reject.COUNT),
    "repair by anyone": (HEADER + peer_repair_request((1, 1)), Reject.ADDRESSEE),
    "repair of nobody's": (TO_ME + frame(47, b""), Reject.MEMBER),
    "repair of half a sender": (TO_ME + frame(47, member()[:-1]), Reject.MEMBER),
    "repair of a name that is in the next frame": (
        TO_ME + frame(47, member(name=b"n")[:-1]) + peer_repair_request((1, 1)),  # its kind is "/"
        Reject.MEMBER,
    ),
    "repair of a member without host": (TO_ME + repair_of(member(b"")), Reject.MEMBER),
    "repair of a long host": (TO_ME + repair_of(member(b"h" * 65)), Reject.MEMBER),
    "repair of a long name": (TO_ME + repair_of(member(name=b"n" * 65)), Reject.MEMBER),
    "repair of a name not in UTF-8": (TO_ME + repair_of(member(name=b"\xff")), Reject.MEMBER),
    "repair of an escape": (TO_ME + repair_of(member(name=b"\x1b[2J")), Reject.MEMBER),
    "repair of incarnation 0": (TO_ME + repair_of(member(incarnation=0)), Reject.MEMBER),
    "repair of nothing": (TO_ME + peer_repair_request(), Reject.COUNT),
    "repair of half a range": (TO_ME + frame(47, member() + bytes(11)), Reject.FRAME_LENGTH),
    "repair of an empty range": (TO_ME + peer_repair_request((1, 0)), Reject.COUNT),
    "repair of 0": (TO_ME + peer_repair_request((0, 1)), Reject.SEQNO),
    "repair up to 2**63": (TO_ME + peer_repair_request((SEQNO_MAX, 2)), Reject.SEQNO),
    "repair twice": (TO_ME + peer_repair_request((5, 2), (6, 1)), Reject.RANGES),
    "repair of too much": (
        TO_ME + peer_repair_request(*((2 * i, 1) for i in range(1, 130))),
        Reject.COUNT,
    ),
    "ranges of a repair and of a nack": (
        TO_ME + nack((1, 1)) + peer_repair_request(*((2 * i, 1) for i in range(1, 129))),
        Reject.COUNT,
    ),
    "passed on to anyone": (HEADER + peer_repair(run(1, 1, b"\1\0x")), Reject.ADDRESSEE),
    "passed on for nobody": (TO_ME + frame(48, b""), Reject.MEMBER),
    "passed on for half a sender": (TO_ME + frame(48, member()[:-1]), Reject.MEMBER),
    "nothing passed on": (TO_ME + frame(48, member()), Reject.FRAME_LENGTH),
    "passed on, half a run": (TO_ME + peer_repair(run(1, 1, b"\0")), Reject.FRAME_LENGTH),
    "passed on from stream 1": (TO_ME + peer_repair(run(1, 1, b"\1\0x", stream=1)), Reject.STREAM),
    "passed on from stream 2": (TO_ME + peer_repair(run(1, 1, b"\1\0x", stream=2)), Reject.STREAM),
    "passed on with other flags": (TO_ME + peer_repair(run(1, 1, b"\1\0x", flags=5)), Reject.FLAGS),
    "passed on from 0": (TO_ME + peer_repair(run(0, 1, b"\1\0x")), Reject.SEQNO),
    "passed on up to 2**63": (TO_ME + peer_repair(run(SEQNO_MAX, 2, b"\1\0xy")), Reject.SEQNO),
    "too many passed on": (TO_ME + peer_repair(run(1, MESSAGES_MAX + 1, b"\0\0")), Reject.COUNT),
    "passed on with other lengths": (TO_ME + peer_repair(run(1, 2, b"\2\0abc")), Reject.LENGTHS),
    "passed on after a beat": (
        TO_ME + counted(21, 1) + peer_repair(run(1, 1, b"\1\0x")),
        Reject.COUNT,
    ),
    "passed on twice": (TO_ME + peer_repair(run(1, 1, b"\1\0x")) * 2, Reject.COUNT),
    "kind 49": (TO_ME + frame(49, b""), Reject.FRAME_KIND),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(name: str) -> None:
    datagram, reason = REFUSED[name]
    assert refusal(datagram) is reason


def test_every_reason_is_tested() -> None:
    by_envelope = {Reject.SEAL, Reject.UNSEALED, Reject.KEY, Reject.REPLAY}
    by_envelope |= {Reject.POSES, Reject.SALTS, Reject.OURS, Reject.LEAP}
    elsewhere = by_envelope | {Reject.SETTINGS}  # the latter with the frames of a view change
    assert {reason for _, reason in REFUSED.values()} | elsewhere == set(Reject)


@pytest.mark.parametrize(
    "only",
    [
        Data(FIFO, 1, [b"abc", b"def"]),
        Data(FIFO, 1, [b"abc", b"de"]),
        Ack(FIFO, 2, 1, 3),
        Nack(FIFO, [range(1, 2), range(4, 5)]),
        Watermark(FIFO, 4),
        UnicastData(CONN, 1, [b"abc", b"de"]),
        *UNICAST,
        *CONTROL,
        *VOTES,
        *STABLE,
        *REPAIRS,
    ],
    ids=repr,
)
def test_cut_short_at_any_byte_it_is_refused(only: Frame) -> None:
    (datagram,) = codec().pack([only], to=ME)
    reasons = {refusal(datagram[:size]) for size in range(len(datagram))}
    assert reasons == {Reject.TOO_SHORT, Reject.FRAME_LENGTH}


def test_one_bad_frame_refuses_the_datagram() -> None:
    assert refusal(HEADER + ack(2, 1) + frame(255, b"")) is Reject.FRAME_KIND


# Identities


def test_members_with_every_kind_of_name_know_each_other() -> None:
    for member in (
        Member(Address("::1", 65535), 2**64 - 1, ""),
        Member(Address("h" * 64, 0), 1, "ü" * 32),
    ):
        (datagram,) = Echo("g" * 64, member, 512).pack([Watermark(FIFO, 1)])
        assert Echo("g" * 64, ME, 512).unpack(datagram) == (member, [Watermark(FIFO, 1)])


def test_known_senders_are_bounded() -> None:
    one = codec()
    for incarnation in range(1, IDENTITIES_MAX + 100):
        sender, _ = one.unpack(identified(identity(incarnation=incarnation)))
        assert sender.incarnation == incarnation
    assert len(one._senders) == IDENTITIES_MAX
    assert one.unpack(identified(identity(incarnation=1)))[0].incarnation == 1
    assert len(one._senders) == IDENTITIES_MAX


def test_refused_senders_are_not_remembered() -> None:
    one = codec()
    refusal(identified(identity(group=b"other")), one)
    refusal(identified(identity(name=b"\n")), one)
    assert one._senders == {}


def test_a_known_sender_is_decoded_once() -> None:
    one = codec()
    datagram = identified(identity())
    assert one.unpack(datagram)[0] is one.unpack(datagram)[0]


def test_of_a_known_sender_no_less_is_wanted() -> None:
    one = codec()
    datagram = identified(identity())
    one.unpack(datagram)
    assert refusal(datagram[:-12], one) is Reject.TOO_SHORT  # all but its one frame
    assert refusal(datagram[:-13], one) is Reject.TOO_SHORT
    assert refusal(b"rc" + datagram[2:], one) is Reject.NOT_OURS
    assert one.unpack(datagram)[1] == [Watermark(FIFO, 1)]


def test_one_message_of_whoever_was_last_heard_takes_the_short_way() -> None:
    one, other = codec(), Echo("orders", OTHER, 2000)
    message = UnicastData(CONN, 7, [b"payload"])
    datagram = other.pack_message(ME, CONN, 7, b"payload")
    assert one.unpack_message(datagram) is None  # nobody was heard before
    assert one.unpack(datagram) == (OTHER, [message])
    assert one.unpack_message(memoryview(datagram)) == (OTHER, CONN, 7, b"payload")
    (for_all,) = other.pack([Watermark(FIFO, 1)])
    one.unpack(for_all)  # it was to nobody alone
    assert one.unpack_message(datagram) == (OTHER, CONN, 7, b"payload")
    another = Conn(CONN.epoch + 1, CONN.id + 1)
    reopened = other.pack_message(ME, another, 1, b"")
    assert one.unpack_message(reopened) == (OTHER, another, 1, b"")
    for frames in (
        [UnicastData(CONN, 7, [b"a", b"b"])],
        [UnicastData(CONN, 7, [b"part"], more=True)],
        [message, Close(CONN)],
        [UnicastData(CONN, 7, [bytes(1500)])],
    ):
        (longer,) = other.pack(frames, ME)
        assert one.unpack_message(longer) is None
        assert one.unpack(longer) == (OTHER, frames)
    for size in range(len(datagram)):
        assert one.unpack_message(datagram[:size]) is None


def test_who_was_overheard_is_not_known_for_that() -> None:
    one = codec()
    other = Member(ME.address, ME.incarnation + 1, ME.name)
    (datagram,) = Echo("orders", OTHER, 512).pack([Ack(FIFO, 1, 1, 9)], other)
    assert one.unpack(datagram, overhear=True) == (OTHER, [Ack(FIFO, 1, 1, 9)])
    assert refusal(datagram, one) is Reject.ADDRESSEE


def test_structs_are_bounded() -> None:
    limit = runs_module._struct_of.cache_parameters()["maxsize"]
    for count in range(1, limit + 10):
        (datagram,) = codec().pack([Data(FIFO, 1, [b"ab"] * count)])
        _, (received,) = codec().unpack(datagram)
        assert isinstance(received, Data)
        assert len(received.payloads) == count
    assert runs_module._struct_of.cache_info().currsize == limit == 64


@pytest.mark.parametrize(
    ("group", "me", "datagram_bytes", "field"),
    [
        ("", ME, 512, "group"),
        ("g" * 65, ME, 512, "group"),
        ("g", ME._replace(name="a\nb"), 512, "name"),
        ("g", ME._replace(address=Address("", 1)), 512, "host"),
        ("g", ME._replace(address=Address("h", 65536)), 512, "port"),
        ("g", ME._replace(incarnation=2**64), 512, "incarnation"),
        ("g", ME._replace(incarnation=0), 512, "incarnation"),  # it stands for anyone
        ("g", ME, 511, "datagram_bytes"),
        ("g", ME, 65_508, "datagram_bytes"),
    ],
)
def test_a_codec_that_cannot_work_is_not_built(
    group: str, me: Member, datagram_bytes: int, field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Echo(group, me, datagram_bytes)
    assert caught.value.field == field


# Room for a seal


def test_a_datagram_leaves_room_for_what_is_added_to_it() -> None:
    roomy = Echo("orders", ME, 512, 4)
    assert roomy.payload_bytes_max == codec(512).payload_bytes_max - 4
    frames: list[Frame] = [UnicastData(CONN, 1, [bytes(roomy.payload_bytes_max)])]
    (datagram,) = roomy.pack(frames, to=ME)
    assert len(datagram) == 512 - TAG - 4
    assert roomy.unpack(memoryview(datagram)) == (ME, frames)


def test_what_is_added_may_not_take_all_the_room() -> None:
    with pytest.raises(ConfigError, match="553 or more"):
        Echo("orders", ME, 512, 400)
    assert Echo("orders", ME, 553, 400).payload_bytes_max == 64


# Memory


def full(body: bytes) -> bytes:
    """As many of this frame as one datagram may hold."""
    return HEADER + body * min((65_507 - len(HEADER)) // len(body), FRAMES_MAX)


def table_run(count: int, size: int) -> bytes:
    table = struct.pack("<H", size) * count
    return run(1, count, table + bytes(size * count), flags=0)


def small_members(count: int) -> list[bytes]:
    """Few bytes and much memory each: texts that the interpreter does not share, large numbers."""
    return [
        member("\u0100".encode(), "\u0101".encode(), 2**63 + index, port=60_000 + index)
        for index in range(count)
    ]


MOST_MARKS = [(2**61 + place, 2**62 + place, 511 - place) for place in range(VIEW_MEMBERS_MAX)]
MOST_NACK = nack(*((2**62 + 1000 * i, 500) for i in range(128)))

MEMORY = {
    "small payloads in a table": HEADER + table_run(MESSAGES_MAX, 2),
    "wide lengths that do not add up": HEADER + run(1, 8192, b"\xff\xff" * 8192, flags=0),
    "many tables": full(table_run(60, 2)),
    "many equal runs": full(run(2**62, 64, b"\0\0")),
    "many short tables": full(run(2**62, 2, bytes(4), flags=0)),
    "many acks": full(ack(2**62, 2**62 - 1, 2**62)),
    "many highest": full(frame(4, struct.pack("<BQ", 0, 2**62))),
    "most ranges in one": HEADER + nack(*((2**62 + 1000 * i, 500) for i in range(128))),
    "most ranges in many": HEADER + b"".join(nack((2**62 + 1000 * i, 500)) for i in range(128)),
    "ranges one too many": HEADER + nack(*((2**62 + 1000 * i, 500) for i in range(128))) * 2,
    "most of all": HEADER
    + run(2**62, 2, bytes(4), flags=0) * 127
    + nack(*((2**62 + 1000 * i, 500) for i in range(128))),
    "more than most of all": HEADER
    + run(2**62, 2, bytes(4), flags=0) * 126
    + nack(*((2**62 + 1000 * i, 500) for i in range(128))) * 2,
    "most unicast of all": TO_ME
    + unicast_run(2**62, 2, bytes(4), on=conn(2**62, 2**31), flags=0) * 127
    + unicast_nack(*((2**62 + 1000 * i, 500) for i in range(128))),
    "more than most unicast of all": TO_ME
    + unicast_run(2**62, 2, bytes(4), on=conn(2**62, 2**31), flags=0) * 126
    + unicast_nack(*((2**62 + 1000 * i, 500) for i in range(128))) * 2,
    "many answers": TO_ME + sync_ok(2**62, 2**61, 2**62) * FRAMES_MAX,
    "many commits": HEADER + commit(2**62) * 127 + MOST_NACK,
    "many reports": TO_ME + report(*range(2**62, 2**62 + VIEW_MEMBERS_MAX), number=2**62),
    "many marks": HEADER + stable(*MOST_MARKS, number=2**62, allowance=2**62),
    "many marks but the last is wrong": HEADER + stable(*MOST_MARKS[:-1], (2, 1, 0)),
    "many that want a report": TO_ME
    + frame(45, struct.pack("<QQ", 2**62, 2**62) + small_members(1)[0]) * 127
    + MOST_NACK,
    "many repairs": TO_ME
    + b"".join(
        peer_repair_request((2**62 + 1000 * at, 500), who=who)
        for at, who in enumerate(small_members(FRAMES_MAX))
    ),
    "many repairs and a range too many": TO_ME
    + peer_repair_request((2**62, 500), who=small_members(1)[0]) * 127
    + MOST_NACK,
    "small payloads passed on": TO_ME + peer_repair(table_run(MESSAGES_MAX, 2)),
    "one large message passed on": TO_ME
    + peer_repair(run(1, 1, struct.pack("<H", 60_000) + bytes(60_000))),
    "many passed on": TO_ME + peer_repair(run(2**62, 2, bytes(4), flags=0)) * FRAMES_MAX,
    "largest random": HEADER + bytes(range(256)) * 255,
    "one large message": HEADER + run(1, 1, struct.pack("<H", 60_000) + bytes(60_000)),
}


MEMORY_REFUSED = {
    "wide lengths that do not add up",
    "ranges one too many",
    "more than most of all",
    "more than most unicast of all",
    "one group more than can be",
    "many claims but the last is wrong",
    "many shares that nobody has",
    "many marks but the last is wrong",
    "many repairs and a range too many",
    "many passed on",
    "most members but the last is wrong",
    "most members after most of all",
    "most members many times",
    "largest random",
}


@pytest.mark.parametrize("name", MEMORY)
def test_unpacking_takes_memory_in_proportion(name: str) -> None:
    one = codec()
    datagram = MEMORY[name]
    tracemalloc.start()
    try:
        try:
            kept = one.unpack(datagram)
        except DecodeError:
            kept = None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (kept is None) == (name in MEMORY_REFUSED)
    assert peak <= 4 * len(datagram) + MEMORY_CONSTANT


def test_what_is_for_one_member_is_for_that_incarnation_alone() -> None:
    restarted = ME._replace(incarnation=ME.incarnation + 1)
    sender = Echo("orders", Member(Address("127.0.0.1", 1), 5, "b"), 512)
    (datagram,) = sender.pack([Ack(FIFO, 1, 1, 9)], to=ME)
    assert codec().unpack(datagram)[1] == [Ack(FIFO, 1, 1, 9)]
    with pytest.raises(DecodeError) as caught:
        Echo("orders", restarted, 512).unpack(datagram)
    assert caught.value.reason is Reject.ADDRESSEE
    overheard = Echo("orders", restarted, 512).unpack(datagram, overhear=True)
    assert overheard[1] == [Ack(FIFO, 1, 1, 9)]


def test_what_says_to_come_from_oneself_is_refused() -> None:
    """Also under another incarnation: nobody else is at this address."""
    for me in (ME, ME._replace(incarnation=ME.incarnation + 1)):
        for to in (ME, None):
            (datagram,) = Codec("orders", me, 512).pack([Ping(1)], to)
            reader = Codec("orders", ME, 512)
            for _ in range(2):
                with pytest.raises(DecodeError) as caught:
                    reader.unpack(datagram)
                assert caught.value.reason is Reject.OURS
            assert reader.unpack(datagram, overhear=True) == (me, [Ping(1)])


def test_a_message_that_says_to_come_from_oneself_does_not_take_the_fast_path() -> None:
    one = Codec("orders", ME, 512)
    (datagram,) = one.pack([UnicastData(CONN, 7, [b"payload"])], to=ME)
    one.unpack(datagram, overhear=True)
    assert one.unpack_message(datagram) is None
