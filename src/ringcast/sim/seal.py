"""A checksum around each datagram: what real networks and the encrypted envelope to come detect."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from ringcast.errors import DecodeError, Reject

if TYPE_CHECKING:
    from ringcast.wire.codec import Buffer


class ChecksumSeal:
    """Detects corruption, not forgery: for simulations that flip bits."""

    overhead = 4

    def seal(self, datagram: bytes) -> bytes:
        return datagram + crc32(datagram).to_bytes(4, "little")

    def unseal(self, datagram: Buffer, now: int = 0) -> Buffer | DecodeError:
        body = datagram[:-4]
        if len(datagram) < 4 or crc32(body) != int.from_bytes(datagram[-4:], "little"):
            return DecodeError(Reject.SEAL)
        return body
