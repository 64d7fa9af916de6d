"""What a trace tells of datagrams: their frames, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.trace.observe.frames import Seen

_GROUP_KINDS = (
    *("discover", "present", "join", "view_is", "view_ack", "welcome", "leave", "suspect"),
    *("merge", "merged", "begin", "begun", "beat", "probe", "alive", "data", "ack", "udata"),
)
KINDS = {
    "multicast": ("data", "ack", "nack", "highest"),
    "unicast": ("udata", "uack", "unack", "close", "sync", "sync_ok", "sync_ack"),
    "group": _GROUP_KINDS,
    "uniform": (*_GROUP_KINDS, "commit", "commit_wanted", "takeover", "standing", "system"),
}
"""The frames of each protocol, as traces name them."""
VOTE_KINDS = ("vote", "vote_wanted", "stable")
RETAINED_KINDS = ("repair_wanted", "relayed", "takeover", "standing", "system")


def frame_kinds(protocol: str, purge: str = "acks") -> tuple[str, ...]:
    """The frames of a run, as traces name them. Where members vote only uniform messages are
    acknowledged."""
    kinds = KINDS[protocol]
    if purge == "acks":
        return kinds
    if protocol != "uniform":
        kinds = tuple(kind for kind in kinds if kind != "ack")
    return tuple(dict.fromkeys((*kinds, *VOTE_KINDS, *RETAINED_KINDS)))


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
