"""Requests and answers: what is encoded comes out, and strangers' bytes are refused."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from ringcast.errors import DecodeError, Reject
from ringcast.events import ReplyReceived, RequestReceived
from ringcast.model import Address, Member, Stream
from ringcast.wire.frames import JoinerBlocked, Watermark
from ringcast.wire.limits import COUNTER_MAX
from ringcast.wire.messages import (
    decode_message,
    decode_request,
    encode_answer,
    encode_ask,
    encode_message,
)
from support.echo import Echo

if TYPE_CHECKING:
    from collections.abc import Callable

ME = Member(Address("127.0.0.1", 7800), 42, "a")
CASES = [
    (encode_ask(1, b"what?"), RequestReceived(ME, 1, b"what?")),
    (encode_ask(COUNTER_MAX, b""), RequestReceived(ME, COUNTER_MAX, b"")),
    (encode_ask(7, b"12", is_inquiry=True), RequestReceived(ME, 7, b"12", True)),
    (
        encode_answer(COUNTER_MAX, b"this", is_refused=False),
        ReplyReceived(ME, COUNTER_MAX, b"this", False),
    ),
    (encode_answer(1, b"", is_refused=True), ReplyReceived(ME, 1, b"", True)),
]


@pytest.mark.parametrize(("payload", "event"), CASES, ids=repr)
def test_what_is_encoded_is_told(payload: bytes, event: RequestReceived | ReplyReceived) -> None:
    assert decode_request(ME, payload) == event


@pytest.mark.parametrize(("payload", "event"), CASES, ids=repr)
def test_cut_short_it_is_refused_or_says_less(
    payload: bytes, event: RequestReceived | ReplyReceived
) -> None:
    for size in range(1, len(payload)):
        try:
            cut = decode_request(ME, payload[:size])
        except DecodeError:
            continue
        assert isinstance(cut, type(event))
        assert cut.number == event.number
        assert cut.payload == event.payload[: len(cut.payload)] != event.payload


@pytest.mark.parametrize(
    "payload", [b"", b"\x3b", b"\x3f", encode_message(JoinerBlocked(is_full=True))]
)
def test_what_is_for_a_layer_is_none(payload: bytes) -> None:
    assert decode_request(ME, payload) is None


@pytest.mark.parametrize(("payload", "_"), CASES)
def test_none_is_a_message_of_a_layer_or_a_frame(payload: bytes, _: object) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_message(payload)
    assert caught.value.reason is Reject.FRAME_KIND
    codec = Echo("g", ME, 512)
    header = codec.pack([Watermark(Stream.FIFO, 0)], ME)[0][:-12]
    frame = struct.pack("<BH", payload[0], len(payload) - 1) + payload[1:]
    with pytest.raises(DecodeError) as caught:
        codec.unpack(header + frame)
    assert caught.value.reason is Reject.FRAME_KIND


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x3c" + bytes(7), Reject.FRAME_LENGTH),
        (b"\x3c" + struct.pack("<Q", 0), Reject.SEQNO),
        (b"\x3c" + struct.pack("<Q", COUNTER_MAX + 1), Reject.SEQNO),
        (b"\x3d" + struct.pack("<Q", 1), Reject.FRAME_LENGTH),
        (b"\x3d" + struct.pack("<QB", 0, 0), Reject.SEQNO),
        (b"\x3d" + struct.pack("<QB", COUNTER_MAX + 1, 0), Reject.SEQNO),
        (b"\x3d" + struct.pack("<QB", 1, 2), Reject.FLAGS),
    ],
)
def test_refused_with_its_reason(payload: bytes, reason: Reject) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_request(ME, payload)
    assert caught.value.reason is reason


@pytest.mark.parametrize("number", [0, COUNTER_MAX + 1])
@pytest.mark.parametrize(
    "encode", [encode_ask, lambda number, payload: encode_answer(number, payload, is_refused=False)]
)
def test_what_cannot_be_right_is_our_bug(
    encode: Callable[[int, bytes], bytes], number: int
) -> None:
    with pytest.raises(AssertionError):
        encode(number, b"")
