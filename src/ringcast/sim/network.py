"""What a trace tells of datagrams: their frames, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.trace.observe.frames import Seen

_GROUP_KINDS = (
    *("discover", "discover_reply", "join", "view_is", "view_ack", "welcome", "leave", "suspect"),
    *(
        "merge_request",
        "merged",
        "begin",
        "begun",
        "heartbeat",
        "ping",
        "pong",
        "data",
        "ack",
        "udata",
    ),
)
KINDS = {
    "multicast": ("data", "ack", "nack", "watermark"),
    "unicast": ("udata", "uack", "unack", "close", "sync", "sync_ok", "sync_ack"),
    "group": _GROUP_KINDS,
    "uniform": (*_GROUP_KINDS, "commit", "commit_wanted", "takeover", "standing", "system"),
}
"""The frames of each protocol, as traces name them."""
STABILITY_KINDS = ("stability_report", "stability_query", "stable")
RETAINED_KINDS = ("peer_repair_request", "peer_repair", "takeover", "standing", "system")


def frame_kinds(protocol: str, purge: str = "acks") -> tuple[str, ...]:
    """The frames of a run, as traces name them. Where members report only uniform messages are
    acknowledged."""
    kinds = KINDS[protocol]
    if purge == "acks":
        return kinds
    if protocol != "uniform":
        kinds = tuple(kind for kind in kinds if kind != "ack")
    return tuple(dict.fromkeys((*kinds, *STABILITY_KINDS, *RETAINED_KINDS)))


@dataclass(slots=True)
class Packet:
    """One datagram under way."""

    source: int
    sender: str
    incarnation: int
    data: bytes
    frames: list[Seen]
    kinds: tuple[str, ...]
    addressee: Member | None = None
    is_last_data: bool = False
    """The last one of those with new messages that left together."""
    is_corrupted: bool = False
