"""What protects whole datagrams on their way between two drivers. Nodes see neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ringcast.wire.codec import Buffer


class DatagramSeal(Protocol):
    """Encryption and authentication of one member's datagrams."""

    overhead: int
    """Bytes that sealing adds."""

    def seal(self, datagram: bytes) -> bytes: ...

    def open(self, datagram: Buffer, now: int) -> Buffer:
        """What was sealed; DecodeError unless it comes from a holder of the key, and only once."""
        ...
