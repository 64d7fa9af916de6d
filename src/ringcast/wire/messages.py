"""What layers say to each other on the wire: it travels as messages to one member, not as frames.

Kinds 30 to 39 are theirs; no datagram has a frame of these kinds.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ringcast.errors import DecodeError, Reject
from ringcast.model import SEQNO_MAX, Digest, Origin
from ringcast.wire.frames import (
    JoinerBlocked,
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
)
from ringcast.wire.limits import COUNTER_MAX, DIGEST_ENTRIES_MAX
from ringcast.wire.members import (
    MALFORMED,
    cut_member,
    decode_counter,
    decode_stream,
    encode_counter,
    encode_member,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.wire.frames import SystemMessage

    MessageDecoders: TypeAlias = dict[int, Callable[[memoryview], SystemMessage]]

_STATE_REFUSED, _STATE_BEGIN, _STATE_DATA, _STATE_END = range(31, 35)
_STATE_ACK, _STATE_CANCEL, _JOINER_BLOCKED = range(35, 38)

_FLAGS: Final = Struct("<B")
_STREAM_SEQNO: Final = Struct("<BQ")
_NUMBERS: Final = Struct("<QQ")  # of a transfer, and the index, count or attempt


def encode_message(message: SystemMessage) -> bytes:
    """The payload that carries it to one member."""
    match message:
        case StateRefused():
            kind, head, body = _STATE_REFUSED, encode_counter(message.attempt), b""
        case StateBegin():
            kind, head = _STATE_BEGIN, _encode_numbers(message.transfer, message.attempt)
            body = _encode_digest(message.cut)
        case StateData():
            kind, head = _STATE_DATA, _encode_numbers(message.transfer, message.index)
            body = message.payload
        case StateEnd():
            kind, head, body = _STATE_END, _encode_numbers(message.transfer, message.count), b""
        case StateAck():
            kind, head, body = _STATE_ACK, _encode_numbers(message.transfer, message.taken), b""
        case StateCancel():
            kind, head, body = _STATE_CANCEL, encode_counter(message.attempt), b""
        case JoinerBlocked():
            kind, head, body = _JOINER_BLOCKED, b"", _FLAGS.pack(message.is_full)
        case _:
            assert_never(message)
    return b"".join((bytes([kind]), head, body))


def _encode_numbers(transfer: int, other: int) -> bytes:
    assert 1 <= transfer <= COUNTER_MAX, transfer
    assert 0 <= other <= COUNTER_MAX, other
    return _NUMBERS.pack(transfer, other)


def _encode_digest(digest: Digest) -> bytes:
    assert len(digest.entries) <= DIGEST_ENTRIES_MAX, len(digest.entries)
    entries = [
        _STREAM_SEQNO.pack(stream, seqno) + encode_member(sender)
        for (sender, stream), seqno in digest.entries.items()
    ]
    return b"".join(entries)


def decode_message(payload: bytes) -> SystemMessage:
    """What the payload says; DecodeError if any byte of it is not as it must be."""
    if not payload:
        raise DecodeError(Reject.TOO_SHORT)
    decode = _MESSAGE_DECODERS.get(payload[0])
    if decode is None:
        raise DecodeError(Reject.FRAME_KIND)
    return decode(memoryview(payload)[1:])


def _decode_state_refused(body: memoryview) -> StateRefused:
    return StateRefused(decode_counter(body, 0, len(body)))


def _decode_state_begin(body: memoryview) -> StateBegin:
    transfer, attempt, rest = _decode_numbers(body)
    if not attempt:
        raise DecodeError(Reject.SEQNO)
    return StateBegin(transfer, attempt, _decode_digest(rest))


def _decode_state_data(body: memoryview) -> StateData:
    transfer, index, rest = _decode_numbers(body)
    return StateData(transfer, index, bytes(rest))


def _decode_state_end(body: memoryview) -> StateEnd:
    transfer, count, rest = _decode_numbers(body)
    _check_end(rest)
    return StateEnd(transfer, count)


def _decode_state_ack(body: memoryview) -> StateAck:
    transfer, taken, rest = _decode_numbers(body)
    _check_end(rest)
    return StateAck(transfer, taken)


def _decode_state_cancel(body: memoryview) -> StateCancel:
    return StateCancel(decode_counter(body, 0, len(body)))


def _decode_joiner_blocked(body: memoryview) -> JoinerBlocked:
    if len(body) != _FLAGS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    if body[0] > 1:
        raise DecodeError(Reject.FLAGS)
    return JoinerBlocked(bool(body[0]))


def _decode_numbers(body: memoryview) -> tuple[int, int, memoryview]:
    """The number of the transfer, the other one, and what comes after them."""
    if len(body) < _NUMBERS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    transfer, other = _NUMBERS.unpack_from(body)
    if not 1 <= transfer <= COUNTER_MAX or other > COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    return transfer, other, body[_NUMBERS.size :]


def _check_end(rest: memoryview) -> None:
    if rest:
        raise DecodeError(Reject.FRAME_LENGTH)


def _decode_digest(body: memoryview) -> Digest:
    """All of it; each origin at most once."""
    entries: dict[Origin, int] = {}
    offset = 0
    while offset < len(body):
        if len(entries) == DIGEST_ENTRIES_MAX:
            raise DecodeError(Reject.COUNT)
        if len(body) - offset < _STREAM_SEQNO.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        stream, seqno = _STREAM_SEQNO.unpack_from(body, offset)
        if seqno > SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        try:
            sender, offset = cut_member(body, offset + _STREAM_SEQNO.size)
        except MALFORMED:
            raise DecodeError(Reject.MEMBER) from None
        origin = Origin(sender, decode_stream(stream))
        if origin in entries:
            raise DecodeError(Reject.MEMBER)
        entries[origin] = seqno
    return Digest(entries)


_MESSAGE_DECODERS: Final[MessageDecoders] = {
    _STATE_REFUSED: _decode_state_refused,
    _STATE_BEGIN: _decode_state_begin,
    _STATE_DATA: _decode_state_data,
    _STATE_END: _decode_state_end,
    _STATE_ACK: _decode_state_ack,
    _STATE_CANCEL: _decode_state_cancel,
    _JOINER_BLOCKED: _decode_joiner_blocked,
}
