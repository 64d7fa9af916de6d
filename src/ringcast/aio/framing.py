"""What travels on a TCP connection: a handshake first, then datagrams, each behind a head.

The head has a tag, the length and a checksum. A stream that has lost its place is known by the
first, one that was changed on its way by the last: neither is read any further.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_intdigest

from ringcast.config import DATAGRAM_BYTES_MAX

if TYPE_CHECKING:
    from ringcast.wire.codec import Buffer

_HEAD: Final = Struct("<HHI")  # tag, bytes of body, their checksum
_TAG: Final = 0xA5C3
_CHECK: Final = 2**32 - 1

HEAD_BYTES: Final = _HEAD.size
FRAME_BYTES_MAX: Final = _HEAD.size + DATAGRAM_BYTES_MAX


class Malformed(Exception):
    """Bytes that none of ours has sent, or that were changed on their way."""


def head_of(body: Buffer) -> bytes:
    return _HEAD.pack(_TAG, len(body), xxh3_64_intdigest(body) & _CHECK)


def body_at(stream: memoryview, place: int, longest: int) -> memoryview | None:
    """The body of the frame that begins there; None if it is not whole yet."""
    start = place + HEAD_BYTES
    if len(stream) < start:
        return None
    tag, length, check = _HEAD.unpack_from(stream, place)
    if tag != _TAG or not 0 < length <= longest:
        raise Malformed
    if len(stream) < start + length:
        return None
    body = stream[start : start + length]
    if xxh3_64_intdigest(body) & _CHECK != check:
        raise Malformed
    return body


def cut(stream: memoryview, place: int, bodies: list[memoryview]) -> int:
    """Add the bodies of all datagrams that are whole from there on; where the next begins."""
    while place < len(stream):
        if (body := body_at(stream, place, DATAGRAM_BYTES_MAX)) is None:
            break
        bodies.append(body)
        place += HEAD_BYTES + len(body)
    return place
