"""What layers say to each other: what is encoded comes out, and strangers' bytes are refused."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from ringcast.errors import DecodeError, Reject
from ringcast.model import SEQNO_MAX, Address, Digest, Member, Origin, Stream
from ringcast.wire.frames import (
    JoinerBlocked,
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
    Submit,
    SubmitFrom,
    SubmitQuery,
    Watermark,
)
from ringcast.wire.limits import COUNTER_MAX, DIGEST_ENTRIES_MAX
from ringcast.wire.messages import decode_message, encode_message
from support.echo import Echo

if TYPE_CHECKING:
    from ringcast.wire.frames import SystemMessage

ME = Member(Address("127.0.0.1", 7800), 42, "a")
OTHER = Member(Address("::1", 1), 2**64 - 1, "")
DIGEST = Digest({Origin(ME, Stream.FIFO): 0, Origin(OTHER, Stream.UNIFORM): SEQNO_MAX})

MESSAGES: list[SystemMessage] = [
    StateRefused(7),
    StateBegin(1, COUNTER_MAX, DIGEST),
    StateData(COUNTER_MAX, 0, b"a chunk"),
    StateData(1, COUNTER_MAX, b""),
    StateEnd(3, 0),
    StateAck(3, COUNTER_MAX),
    StateCancel(5),
    JoinerBlocked(is_full=True),
    JoinerBlocked(is_full=False),
    Submit(1, b"a batch", is_lowest=True),
    Submit(2**64 - 1, b""),
    SubmitQuery(1, COUNTER_MAX),
    SubmitFrom(1, COUNTER_MAX, 2**32 - 1, 7),
    SubmitFrom(1, delivered=3),
]

MEMBER = b"\x01h" + struct.pack("<HQ", 1, 1) + b"\x00"
ENTRY = b"\x00" + struct.pack("<Q", 5) + MEMBER


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


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
        assert isinstance(cut, StateData | StateBegin | Submit)
        assert cut != message
        assert encode_message(cut) == whole[:size]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_none_is_a_frame(message: SystemMessage) -> None:
    codec = Echo("g", ME, 512)
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
        (b"\x1e" + numbers(1), Reject.FRAME_LENGTH),
        (b"\x1f", Reject.FRAME_LENGTH),
        (b"\x1f" + numbers(1) + b"\x00", Reject.FRAME_LENGTH),
        (b"\x1f" + numbers(0), Reject.SEQNO),
        (b"\x20" + numbers(1), Reject.FRAME_LENGTH),
        (b"\x20" + numbers(1, 0), Reject.SEQNO),
        (b"\x20" + numbers(0, 1), Reject.SEQNO),
        (b"\x20" + numbers(1, 1) + ENTRY + b"\x00", Reject.FRAME_LENGTH),
        (b"\x20" + numbers(1, 1) + ENTRY[:-1], Reject.MEMBER),
        (b"\x20" + numbers(1, 1) + b"\x03" + ENTRY[1:], Reject.STREAM),
        (b"\x20" + numbers(1, 1) + ENTRY + ENTRY, Reject.MEMBER),
        (b"\x20" + numbers(1, 1) + b"\x00" + numbers(2**63) + MEMBER, Reject.SEQNO),
        (b"\x21" + numbers(1, 2**63), Reject.SEQNO),
        (b"\x21" + numbers(2**63, 1), Reject.SEQNO),
        (b"\x22" + numbers(1, 1) + b"x", Reject.FRAME_LENGTH),
        (b"\x23" + numbers(1, 1) + b"x", Reject.FRAME_LENGTH),
        (b"\x24" + numbers(1) + b"x", Reject.FRAME_LENGTH),
        (b"\x24" + numbers(0), Reject.SEQNO),
        (b"\x25", Reject.FRAME_LENGTH),
        (b"\x25\x02", Reject.FLAGS),
        (b"\x25\x01\x01", Reject.FRAME_LENGTH),
        (b"\x26\x02" + numbers(1), Reject.FLAGS),
        (b"\x26\x01" + numbers(0), Reject.SEQNO),
        (b"\x27" + numbers(0, 1), Reject.SEQNO),
        (b"\x27" + numbers(1), Reject.FRAME_LENGTH),
        (b"\x1e" + numbers(1, 2**63, 0, 1), Reject.SEQNO),
        (b"\x28", Reject.FRAME_KIND),
        (b"\x3c" + bytes(8), Reject.FRAME_KIND),
    ],
)
def test_refused_with_its_reason(payload: bytes, reason: Reject) -> None:
    assert refusal(payload) is reason


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
