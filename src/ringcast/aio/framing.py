"""What travels on a TCP connection: a hello first, then datagrams, each behind a head.

The head has a tag, the length and a checksum. A stream that has lost its place is known by the
first, one that was changed on its way by the last: neither is read any further.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from ringcast.config import DATAGRAM_BYTES_MAX
from ringcast.model import Address

ROUND_MAX: Final = 2**31 - 1
HOST_BYTES_MAX: Final = 45

_HEAD: Final = Struct("<HHI")  # tag, bytes of body, their checksum
_TAG: Final = 0xA5C3
_CHECK: Final = 2**32 - 1

_HELLO: Final = Struct("<4sBIH")  # magic, version, round, port; the host follows
_MAGIC: Final = b"mesh"
_VERSION: Final = 1

HEAD_BYTES: Final = _HEAD.size
HELLO_BYTES_MAX: Final = _HELLO.size + HOST_BYTES_MAX
FRAME_BYTES_MAX: Final = _HEAD.size + DATAGRAM_BYTES_MAX


class Malformed(Exception):
    """Bytes that none of ours has sent, or that were changed on their way."""


class Hello(NamedTuple):
    """Who has opened a connection."""

    address: Address
    """Where it listens."""
    round: int
    """One more than that of any other connection of this pair that it knew of."""

    def encode(self) -> bytes:
        """With its head."""
        body = _HELLO.pack(_MAGIC, _VERSION, self.round, self.address.port)
        body += self.address.host.encode()
        return head_of(body) + body

    @classmethod
    def decode(cls, body: memoryview) -> Hello:
        if len(body) <= _HELLO.size:
            raise Malformed
        magic, version, number, port = _HELLO.unpack_from(body)
        host = bytes(body[_HELLO.size :])
        is_ours = magic == _MAGIC and version == _VERSION and host.isascii()
        if not is_ours or not 1 <= number <= ROUND_MAX or not port:
            raise Malformed
        return cls(Address(host.decode(), port), number)


def head_of(body: bytes) -> bytes:
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
