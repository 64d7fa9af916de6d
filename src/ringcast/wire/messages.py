"""What layers say to each other on the wire: it travels as messages to one member, not as frames.

Kinds 30 to 39 are theirs; no datagram has a frame of these kinds. They are declared in frames.py.
"""

from __future__ import annotations

from typing import Final, get_args

from ringcast.errors import DecodeError, Reject
from ringcast.wire.frames import SystemMessage
from ringcast.wire.layout import MESSAGES

_LAYOUTS: Final = {MESSAGES[each].kind: MESSAGES[each] for each in get_args(SystemMessage)}


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
