"""What layers say to each other: whatever we encode comes out, whatever else is refused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ringcast.errors import DecodeError
from ringcast.model import (
    INCARNATION_MAX,
    SEQNO_MAX,
    Address,
    Digest,
    Member,
    Origin,
    Stream,
)
from ringcast.wire.frames import (
    JoinerBlocked,
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
)
from ringcast.wire.limits import COUNTER_MAX
from ringcast.wire.messages import decode_message, encode_message

if TYPE_CHECKING:
    from ringcast.wire.frames import SystemMessage

KINDS = st.integers(29, 40)
counters = st.one_of(st.integers(1, 3), st.integers(1, COUNTER_MAX))
numbers = st.one_of(st.integers(0, 3), st.integers(0, COUNTER_MAX))
members = st.builds(
    Member,
    st.builds(Address, st.sampled_from(["h", "127.0.0.1", "é" * 32]), st.integers(0, 65535)),
    st.one_of(st.integers(1, 3), st.integers(1, INCARNATION_MAX)),
    st.sampled_from(["", "a", "n" * 64, "名"]),
)
digests = st.builds(
    Digest,
    st.dictionaries(
        st.builds(Origin, members, st.sampled_from(Stream)), st.integers(0, SEQNO_MAX), max_size=9
    ),
)


messages: st.SearchStrategy[SystemMessage] = st.one_of(
    st.builds(StateRefused, counters),
    st.builds(StateBegin, counters, counters, digests),
    st.builds(StateData, counters, numbers, st.binary(max_size=300)),
    st.builds(StateEnd, counters, numbers),
    st.builds(StateAck, counters, numbers),
    st.builds(StateCancel, counters),
    st.builds(JoinerBlocked, st.booleans()),
)


@settings(deadline=None)
@given(messages)
def test_what_is_encoded_comes_out(message: SystemMessage) -> None:
    assert decode_message(encode_message(message)) == message


@settings(deadline=None)
@given(st.builds(bytes.__add__, KINDS.map(lambda kind: bytes([kind])), st.binary()))
def test_strange_bytes_are_refused_or_understood(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert encode_message(decode_message(payload)) == payload


@settings(deadline=None)
@given(messages, st.data())
def test_flipped_bits_are_refused_or_understood(
    message: SystemMessage, data: st.DataObject
) -> None:
    payload = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, 8 * len(payload) - 1))
        payload[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(DecodeError):
        assert encode_message(decode_message(bytes(payload))) == bytes(payload)
