"""What a harness sees of membership and failure detection on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.sim.network import Seen
from ringcast.wire.frames import (
    Begin,
    Begun,
    Discover,
    DiscoverReply,
    Half,
    HalfWanted,
    Heartbeat,
    Join,
    Leave,
    Merged,
    MergeRequest,
    Ping,
    Pong,
    Suspect,
    ViewAck,
    ViewIs,
    Welcome,
)

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

KINDS: dict[type, str] = {
    Discover: "discover",
    DiscoverReply: "discover_reply",
    Join: "join",
    ViewIs: "view_is",
    ViewAck: "view_ack",
    Welcome: "welcome",
    HalfWanted: "half_wanted",
    Half: "half",
    Leave: "leave",
    Suspect: "suspect",
    MergeRequest: "merge_request",
    Merged: "merged",
    Begin: "begin",
    Begun: "begun",
    Heartbeat: "heartbeat",
    Ping: "ping",
    Pong: "pong",
}


def look_at(frame: Frame) -> Seen | None:
    """What leaves; None if it is no frame of membership. Views are told by their counter."""
    kind = KINDS.get(type(frame))
    if kind is None:
        return None
    match frame:
        case ViewIs(view) | Welcome(view) | MergeRequest(view) | Merged(view):
            return Seen(kind, -1, view.counter, view.counter, size=len(view))
        case ViewAck(view_id):
            return Seen(kind, -1, view_id.counter, view_id.counter)
        case Begin(stream, counter, offset):
            return Seen(kind, int(stream), counter, counter, low=offset)
        case Begun(stream, counter):
            return Seen(kind, int(stream), counter, counter)
    return Seen(kind, -1)
