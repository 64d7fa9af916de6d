"""What goes over the channel between two members: payloads of messages to one, and no frames.

Kinds 30 to 39 are what layers say to each other, declared in frames.py. Kinds 60 and 61 are what
applications ask each other, and kind 62 what their edges do: somebody waits for each of them, so
they are written and read in one call, and become no objects in between. No datagram has a frame of
these kinds.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, get_args

from ringcast.errors import DecodeError, Reject
from ringcast.events import ReplyReceived, RequestReceived
from ringcast.wire.frames import SystemMessage
from ringcast.wire.layout import MESSAGES
from ringcast.wire.limits import COUNTER_MAX

if TYPE_CHECKING:
    from ringcast.model import Member

_LAYOUTS: Final = {MESSAGES[each].kind: MESSAGES[each] for each in get_args(SystemMessage)}

_ASK, _ANSWER, _INQUIRE = range(60, 63)
_ASK_HEAD: Final = Struct("<BQ")  # kind, number
_ANSWER_HEAD: Final = Struct("<BQB")  # kind, number, flags
_HEADS: Final = {_ASK: _ASK_HEAD, _ANSWER: _ANSWER_HEAD, _INQUIRE: _ASK_HEAD}


def encode_message(message: SystemMessage) -> bytes:
    """The payload that carries it to one member."""
    layout = MESSAGES[type(message)]
    return bytes([layout.kind]) + layout.encode(message)


def decode_message(payload: bytes) -> SystemMessage:
    """What the payload says; DecodeError if any byte of it is not as it must be."""
    if not payload:
        raise DecodeError(Reject.TOO_SHORT)
    layout = _LAYOUTS.get(payload[0])
    if layout is None:
        raise DecodeError(Reject.FRAME_KIND)
    message: SystemMessage = layout.decode(memoryview(payload), 1, len(payload))
    return message


def encode_ask(number: int, payload: bytes, *, is_inquiry: bool = False) -> bytes:
    """The application of a member is asked this; or (`is_inquiry`) ringcast itself, at its edge.
    Numbers are the asker's own."""
    assert 1 <= number <= COUNTER_MAX, number
    return _ASK_HEAD.pack(_INQUIRE if is_inquiry else _ASK, number) + payload


def encode_answer(number: int, payload: bytes, *, is_refused: bool) -> bytes:
    """What an application says to this request, or, if it `is_refused`, why it says nothing."""
    assert 1 <= number <= COUNTER_MAX, number
    return _ANSWER_HEAD.pack(_ANSWER, number, is_refused) + payload


def decode_request(sender: Member, payload: bytes) -> RequestReceived | ReplyReceived | None:
    """What the application is to be told; None: it is for a layer. DecodeError if any
    byte of it is not as it must be."""
    head = _HEADS.get(payload[0] if payload else 0)
    if head is None:
        return None
    if len(payload) < head.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    kind, number, *flags = head.unpack_from(payload)
    if not 1 <= number <= COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    if kind != _ANSWER:
        return RequestReceived(sender, number, payload[head.size :], kind == _INQUIRE)
    if flags[0] > 1:
        raise DecodeError(Reject.FLAGS)
    return ReplyReceived(sender, number, payload[head.size :], flags[0] == 1)
