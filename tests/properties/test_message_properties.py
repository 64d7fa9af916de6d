"""What layers say to each other: whatever we encode comes out, whatever else is refused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ringcast.errors import DecodeError
from ringcast.wire.messages import decode_message, encode_message
from support.declared import any_message

if TYPE_CHECKING:
    from ringcast.wire.frames import SystemMessage

KINDS = st.integers(29, 40)


@settings(deadline=None)
@given(any_message)
def test_what_is_encoded_comes_out(message: SystemMessage) -> None:
    assert decode_message(encode_message(message)) == message


@settings(deadline=None)
@given(st.builds(bytes.__add__, KINDS.map(lambda kind: bytes([kind])), st.binary()))
def test_strange_bytes_are_refused_or_understood(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert encode_message(decode_message(payload)) == payload


@settings(deadline=None)
@given(any_message, st.data())
def test_flipped_bits_are_refused_or_understood(
    message: SystemMessage, data: st.DataObject
) -> None:
    payload = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, 8 * len(payload) - 1))
        payload[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(DecodeError):
        assert encode_message(decode_message(bytes(payload))) == bytes(payload)
