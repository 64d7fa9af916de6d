"""Datagrams of a simulation: what a trace tells of their frames, and a checksum around each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from ringcast.errors import DecodeError, Reject
from ringcast.model import Member
from ringcast.trace.observe.frames import Seen
from ringcast.wire.seal import DatagramSeal

if TYPE_CHECKING:
    from ringcast.wire.codec import Buffer

CHANGE_KINDS = (
    *("propose", "state", "refuse", "finish", "cut", "want", "forwarded", "flushed", "install"),
    *("installed", "hello", "complain", "leave"),
)
"""The frames of a view change, and what comes before one."""
_MULTICAST_KINDS = ("data", "ack", "nack", "watermark")
_GROUP_KINDS = (*_MULTICAST_KINDS, "udata", "heartbeat", "ping", "pong", "system", *CHANGE_KINDS)
KINDS = {
    "multicast": (*_MULTICAST_KINDS, *CHANGE_KINDS),
    "unicast": (*("udata", "uack", "unack", "close", "sync", "sync_ok", "sync_ack"), *CHANGE_KINDS),
    "group": _GROUP_KINDS,
    "uniform": (*_GROUP_KINDS, "commit"),
    "total": (*_GROUP_KINDS, "commit"),
}
"""The frames of each protocol, as traces name them."""
STABILITY_KINDS = ("stability_report", "stability_query", "stable")
RETAINED_KINDS = ("peer_repair_request", "peer_repair")


def frame_kinds(protocol: str, purge: str = "acks") -> tuple[str, ...]:
    """The frames of a run, as traces name them. Where members report only uniform messages are
    acknowledged."""
    kinds = KINDS[protocol]
    if purge == "acks":
        return kinds
    if protocol not in ("uniform", "total"):
        kinds = tuple(kind for kind in kinds if kind != "ack")
    return tuple(dict.fromkeys((*kinds, *STABILITY_KINDS, *RETAINED_KINDS)))


@dataclass(slots=True)
class Packet:
    """What is known of a datagram under way."""

    sender: str
    incarnation: int
    frames: list[Seen]
    kinds: tuple[str, ...]
    addressee: Member | None = None
    is_last_data: bool = False  # the last one of those with new messages that left together
    is_corrupted: bool = False


class ChecksumSeal(DatagramSeal):
    """Detects corruption, not forgery: for simulations that flip bits."""

    overhead = 4

    def seal(self, datagram: bytes) -> bytes:
        return datagram + crc32(datagram).to_bytes(4, "little")

    def unseal(self, datagram: Buffer, now: int = 0, at: int = 0) -> Buffer | DecodeError:
        body = datagram[:-4]
        if len(datagram) < 4 or crc32(body) != int.from_bytes(datagram[-4:], "little"):
            return DecodeError(Reject.SEAL)
        return body
