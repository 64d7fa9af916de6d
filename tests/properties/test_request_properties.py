"""Requests and answers: whatever we encode is told, whatever else is refused."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from ringcast.errors import DecodeError
from ringcast.events import ReplyReceived, RequestReceived
from ringcast.model import Address, Member
from ringcast.wire.limits import COUNTER_MAX
from ringcast.wire.messages import decode_request, encode_answer, encode_ask

SENDER = Member(Address("h", 1), 1, "a")
counters = st.one_of(st.integers(1, 3), st.integers(1, COUNTER_MAX))
payloads = st.binary(max_size=300)
events = st.one_of(
    st.builds(RequestReceived, st.just(SENDER), counters, payloads, st.booleans()),
    st.builds(ReplyReceived, st.just(SENDER), counters, payloads, st.booleans()),
)


def encode(event: RequestReceived | ReplyReceived) -> bytes:
    if isinstance(event, RequestReceived):
        return encode_ask(event.number, event.payload, is_inquiry=event.is_inquiry)
    return encode_answer(event.number, event.payload, is_refused=event.is_refused)


@settings(deadline=None)
@given(events)
def test_what_is_encoded_is_told(event: RequestReceived | ReplyReceived) -> None:
    assert decode_request(SENDER, encode(event)) == event


@settings(deadline=None)
@given(st.integers(59, 63), st.binary())
def test_strange_bytes_are_refused_or_understood(kind: int, rest: bytes) -> None:
    payload = bytes([kind]) + rest
    with contextlib.suppress(DecodeError):
        event = decode_request(SENDER, payload)
        assert event is None if kind in (59, 63) else event is not None and encode(event) == payload
