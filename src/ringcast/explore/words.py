"""Frames, events and timers in words: what witnesses are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.events import Delivered, GapSkipped, Undeliverable
from ringcast.wire.frames import (
    Ack,
    Close,
    Commit,
    CommitWanted,
    Data,
    Discover,
    DiscoverReply,
    EstateRun,
    EstateWanted,
    Join,
    Leave,
    Nack,
    Standing,
    Suspect,
    Sync,
    SyncAck,
    SyncOk,
    Takeover,
    UnicastAck,
    UnicastData,
    UnicastNack,
    ViewAck,
    ViewIs,
    Watermark,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from enum import Enum


def frame_in_words(frame: object) -> str:
    name = type(frame).__name__.removeprefix("Unicast")
    match frame:
        case Data():
            return f"{name} {frame.first}..{frame.last}"
        case Ack():
            return f"{name} received={frame.received} delivered={frame.delivered}"
        case Nack():
            return f"{name} {_ranges(frame.missing)}"
        case Watermark():
            return f"{name} {frame.seqno}"
        case UnicastData():
            return f"{name}({frame.conn}) {frame.first}..{frame.last}"
        case UnicastAck():
            return f"{name}({frame.conn}) {frame.delivered}"
        case UnicastNack():
            return f"{name}({frame.conn}) {_ranges(frame.missing)}"
        case Close():
            return f"{name}({frame.conn})"
        case SyncOk():
            return f"{name}({frame.conn}) nonce {frame.nonce}, low {frame.low}"
        case Sync() | SyncAck():
            return f"{name}({frame.conn}) nonce {frame.nonce}"
        case DiscoverReply(coordinator):
            return f"{name} {coordinator}"
        case ViewIs(view):
            return f"{name} {view}"
        case ViewAck(view_id):
            return f"{name} {view_id.counter}"
        case Welcome(view, digest):
            return f"{name} to {view} at {digest}"
        case Suspect(member):
            return f"{name} {member}"
        case Discover() | Join() | Leave():
            return name
        case Commit():
            return f"{name} {frame.seqno} in view {frame.view_id.counter}"
        case CommitWanted():
            return f"{name} in view {frame.view_id.counter}"
        case Takeover():
            claims = [f"{who} {stage.name} {high}" for who, stage, high in frame.claims]
            return f"{name} in view {frame.view_id.counter}: {', '.join(claims) or 'nobody'}"
        case Standing():
            shares = [f"{each.sender} {each.delivered}/{each.received}" for each in frame.shares]
            told = ", ".join(shares) or "nobody" if frame.is_open else "not open"
            return f"{name} in view {frame.view_id.counter}: {told}"
        case EstateWanted():
            return f"{name} {frame.sender}#{frame.first}..{frame.last}"
        case EstateRun():
            return f"{name} {frame.sender}#{frame.first}..{frame.first + len(frame.payloads) - 1}"
    return str(frame)


def event_in_words(event: object) -> str:
    match event:
        case Delivered():
            epoch = f"{event.epoch}:" if event.epoch else ""
            return f"gets {event.sender}#{epoch}{event.run.first}"
        case Undeliverable():
            return f"Undeliverable {event.epoch}:{event.first}..{event.last}: {event.reason}"
        case GapSkipped():
            return f"GapSkipped {event.epoch}:{event.first}..{event.last}"
    return type(event).__name__


def timer_in_words(owner: Hashable, timer: Enum) -> str:
    match owner:
        case ("unicast", "to", peer):
            return f"{timer.name} towards {peer}"
        case ("unicast", "from", peer):
            return f"{timer.name} for what comes from {peer}"
    return timer.name


def _ranges(ranges: Sequence[range]) -> str:
    return ", ".join(f"{seqnos.start}..{seqnos.stop - 1}" for seqnos in ranges)
