"""What layers say to each other: what is encoded comes out, and strangers' bytes are refused."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from ringcast.config import CAPACITY_LIMIT
from ringcast.errors import DecodeError, Reject
from ringcast.model import SEQNO_MAX, Address, Digest, Member, Origin, Stream, ViewId
from ringcast.wire.codec import Codec
from ringcast.wire.frames import (
    EstateRun,
    EstateWanted,
    JoinerBlocked,
    Refusal,
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
    StateRequest,
    Watermark,
)
from ringcast.wire.limits import COUNTER_MAX, DIGEST_ENTRIES_MAX
from ringcast.wire.messages import decode_message, encode_message

if TYPE_CHECKING:
    from ringcast.wire.frames import SystemMessage

ME = Member(Address("127.0.0.1", 7800), 42, "a")
OTHER = Member(Address("::1", 1), 2**64 - 1, "")
DIGEST = Digest({Origin(ME, Stream.FIFO): 0, Origin(OTHER, Stream.UNIFORM): SEQNO_MAX})

MESSAGES: list[SystemMessage] = [
    StateRequest(1, ViewId(OTHER, COUNTER_MAX), DIGEST),
    StateRequest(COUNTER_MAX, ViewId(ME, 1), Digest({})),
    *(StateRefused(7, reason) for reason in Refusal),
    StateBegin(1, COUNTER_MAX, DIGEST),
    StateData(COUNTER_MAX, 0, b"a chunk"),
    StateData(1, COUNTER_MAX, b""),
    StateEnd(3, 0),
    StateAck(3, COUNTER_MAX),
    StateCancel(5),
    JoinerBlocked(is_full=True),
    JoinerBlocked(is_full=False),
    EstateWanted(ViewId(OTHER, COUNTER_MAX), ME, 1, SEQNO_MAX),
    EstateWanted(ViewId(ME, 1), OTHER, 7, 7, Stream.FIFO),
    EstateRun(OTHER, SEQNO_MAX, (b"last",), (False,)),
    EstateRun(ME, 1, (b"", b"part", b"rest"), (False, True, False), Stream.FIFO),
]

MEMBER = b"\x01h" + struct.pack("<HQ", 1, 1) + b"\x00"
ENTRY = b"\x00" + struct.pack("<Q", 5) + MEMBER
VIEW_ID = struct.pack("<Q", 1) + MEMBER


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def wanted(first: int, last: int, stream: int = 1) -> bytes:
    return b"\x26" + struct.pack("<BQQ", stream, first, last)


def run(first: int, more: bytes, sizes: list[int], rest: bytes, count: int | None = None) -> bytes:
    size = len(sizes) if count is None else count
    return (
        b"\x01"
        + MEMBER
        + struct.pack("<QI", first, size)
        + more
        + struct.pack(f"<{len(sizes)}I", *sizes)
        + rest
    )


def refusal(payload: bytes) -> Reject:
    with pytest.raises(DecodeError) as caught:
        decode_message(payload)
    return caught.value.reason


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_what_is_encoded_comes_out(message: SystemMessage) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_cut_short_it_is_refused_or_says_less(message: SystemMessage) -> None:
    whole = encode_message(message)
    for size in range(len(whole)):
        try:
            cut = decode_message(whole[:size])
        except DecodeError:
            continue
        # A chunk has no end of its own, and a digest may have fewer entries.
        assert isinstance(cut, StateData | StateRequest | StateBegin)
        assert cut != message
        assert encode_message(cut) == whole[:size]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_none_is_a_frame(message: SystemMessage) -> None:
    codec = Codec("g", ME, 512)
    header = codec.pack([Watermark(Stream.FIFO, 0)], ME)[0][:-12]
    payload = encode_message(message)
    frame = struct.pack("<BH", payload[0], len(payload) - 1) + payload[1:]
    with pytest.raises(DecodeError) as caught:
        codec.unpack(header + frame)
    assert caught.value.reason is Reject.FRAME_KIND


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", Reject.TOO_SHORT),
        (b"\x1d", Reject.FRAME_KIND),
        (b"\xff", Reject.FRAME_KIND),
        (b"\x01" + bytes(20), Reject.FRAME_KIND),
        (b"\x1e", Reject.FRAME_LENGTH),
        (b"\x1e" + numbers(0) + VIEW_ID, Reject.SEQNO),
        (b"\x1e" + numbers(1) + VIEW_ID[:-1], Reject.MEMBER),
        (b"\x1e" + numbers(1, 0) + MEMBER, Reject.SEQNO),
        (b"\x1e" + numbers(1) + VIEW_ID + ENTRY + b"\x00", Reject.FRAME_LENGTH),
        (b"\x1e" + numbers(1) + VIEW_ID + ENTRY[:-1], Reject.MEMBER),
        (b"\x1e" + numbers(1) + VIEW_ID + b"\x02" + ENTRY[1:], Reject.STREAM),
        (b"\x1e" + numbers(1) + VIEW_ID + ENTRY + ENTRY, Reject.MEMBER),
        (b"\x1e" + numbers(1) + VIEW_ID + b"\x00" + numbers(2**63) + MEMBER, Reject.SEQNO),
        (b"\x1f" + numbers(1) + b"\x03", Reject.FLAGS),
        (b"\x1f" + numbers(1), Reject.FRAME_LENGTH),
        (b"\x1f" + numbers(0) + b"\x00", Reject.SEQNO),
        (b"\x20" + numbers(1), Reject.FRAME_LENGTH),
        (b"\x20" + numbers(1, 0), Reject.SEQNO),
        (b"\x20" + numbers(0, 1), Reject.SEQNO),
        (b"\x21" + numbers(1, 2**63), Reject.SEQNO),
        (b"\x21" + numbers(2**63, 1), Reject.SEQNO),
        (b"\x22" + numbers(1, 1) + b"x", Reject.FRAME_LENGTH),
        (b"\x23" + numbers(1, 1) + b"x", Reject.FRAME_LENGTH),
        (b"\x24" + numbers(1) + b"x", Reject.FRAME_LENGTH),
        (b"\x24" + numbers(0), Reject.SEQNO),
        (b"\x25", Reject.FRAME_LENGTH),
        (b"\x25\x02", Reject.FLAGS),
        (b"\x25\x01\x01", Reject.FRAME_LENGTH),
        (b"\x26" + numbers(1, 1), Reject.FRAME_LENGTH),
        (wanted(0, 1) + VIEW_ID + MEMBER, Reject.SEQNO),
        (wanted(2, 1) + VIEW_ID + MEMBER, Reject.SEQNO),
        (wanted(1, 2**63) + VIEW_ID + MEMBER, Reject.SEQNO),
        (wanted(1, 1) + numbers(0) + MEMBER + MEMBER, Reject.SEQNO),
        (wanted(1, 1), Reject.FRAME_LENGTH),
        (wanted(1, 1, stream=2) + VIEW_ID + MEMBER, Reject.STREAM),
        (wanted(1, 1) + VIEW_ID, Reject.MEMBER),
        (wanted(1, 1) + VIEW_ID + MEMBER[:-1], Reject.MEMBER),
        (wanted(1, 1) + VIEW_ID + MEMBER + b"x", Reject.FRAME_LENGTH),
        (b"\x27", Reject.FRAME_LENGTH),
        (b"\x27\x02" + MEMBER, Reject.STREAM),
        (b"\x27\x01" + MEMBER[:-1], Reject.MEMBER),
        (b"\x27\x01" + MEMBER + bytes(11), Reject.FRAME_LENGTH),
        (b"\x27" + run(1, b"", [], b""), Reject.COUNT),
        (b"\x27" + run(1, b"", [], b"", count=CAPACITY_LIMIT + 1), Reject.COUNT),
        (b"\x27" + run(0, b"\0", [1], b"x"), Reject.SEQNO),
        (b"\x27" + run(SEQNO_MAX, b"\0\0", [0, 0], b""), Reject.SEQNO),
        (b"\x27" + run(1, b"\0", [0], b"", count=2), Reject.FRAME_LENGTH),
        (b"\x27" + run(1, b"\2", [1], b"x"), Reject.FLAGS),
        (b"\x27" + run(1, b"\0", [2], b"x"), Reject.LENGTHS),
        (b"\x27" + run(1, b"\0", [1], b"xy"), Reject.LENGTHS),
        (b"\x28", Reject.FRAME_KIND),
        (b"\x3c" + bytes(8), Reject.FRAME_KIND),
    ],
)
def test_refused_with_its_reason(payload: bytes, reason: Reject) -> None:
    assert refusal(payload) is reason


@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_a_run_takes_memory_in_proportion(count: int) -> None:
    """Empty messages are the costliest: five bytes each, and a place in two tuples."""
    run = EstateRun(OTHER, 1, (b"",) * count, (False,) * count)
    payload = encode_message(run)
    tracemalloc.start()
    try:
        assert decode_message(payload) == run
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 8 * len(payload) + 16_384


def test_a_run_of_many_that_are_not_there_takes_no_memory() -> None:
    payload = b"\x27" + run(1, bytes(100), [], b"", count=CAPACITY_LIMIT)
    tracemalloc.start()
    try:
        assert refusal(payload) is Reject.FRAME_LENGTH
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16_384


def test_a_digest_has_so_many_entries_and_no_more() -> None:
    entries = {
        Origin(Member(Address("h", 1), number, ""), Stream.FIFO): number
        for number in range(1, DIGEST_ENTRIES_MAX + 1)
    }
    most = StateBegin(1, 1, Digest(entries))
    assert decode_message(encode_message(most)) == most
    assert refusal(encode_message(most) + ENTRY) is Reject.COUNT
    too_many = Digest({**entries, Origin(OTHER, Stream.FIFO): 1})
    with pytest.raises(AssertionError):
        encode_message(StateBegin(1, 1, too_many))


@pytest.mark.parametrize(
    "ours",
    [
        StateCancel(0),
        StateEnd(0, 1),
        StateData(1, -1, b""),
        StateAck(1, COUNTER_MAX + 1),
        StateRefused(0, Refusal.WAITING),
        EstateRun(ME, 1, (), ()),
        EstateRun(ME, 0, (b"x",), (False,)),
        EstateRun(ME, 1, (b"x",), (False, False)),
        EstateWanted(ViewId(ME, 0), ME, 1, 1),
        EstateWanted(ViewId(ME, 1), ME, 0, 1),
        EstateWanted(ViewId(ME, 1), ME, 2, 1),
        StateRequest(1, ViewId(ME, 1), Digest({}, {Origin(ME, Stream.FIFO): (b"half",)})),
    ],
    ids=repr,
)
def test_what_cannot_be_right_is_our_bug(ours: SystemMessage) -> None:
    with pytest.raises(AssertionError):
        encode_message(ours)


def test_refusals_read_well() -> None:
    assert [str(reason) for reason in Refusal] == [
        "gives no state",
        "waits for its own state",
        "could not give its state",
    ]
