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
    from collections.abc import Hashable
    from enum import Enum


IN_WORDS: dict[type, str] = {
    Data: "Data {0.first}..{0.last}",
    Ack: "Ack received={0.received} delivered={0.delivered}",
    Nack: "Nack {missing}",
    Watermark: "Watermark {0.seqno}",
    UnicastData: "Data({0.conn}) {0.first}..{0.last}",
    UnicastAck: "Ack({0.conn}) {0.delivered}",
    UnicastNack: "Nack({0.conn}) {missing}",
    Close: "Close({0.conn})",
    Sync: "Sync({0.conn}) nonce {0.nonce}",
    SyncOk: "SyncOk({0.conn}) nonce {0.nonce}, low {0.low}",
    SyncAck: "SyncAck({0.conn}) nonce {0.nonce}",
    Discover: "Discover",
    DiscoverReply: "DiscoverReply {0.coordinator}",
    Join: "Join",
    Leave: "Leave",
    ViewIs: "ViewIs {0.view}",
    ViewAck: "ViewAck {0.view_id.counter}",
    Welcome: "Welcome to {0.view} at {0.digest}",
    Suspect: "Suspect {0.member}",
    Commit: "Commit {0.seqno} in view {0.view_id.counter}",
    CommitWanted: "CommitWanted in view {0.view_id.counter}",
    Takeover: "Takeover in view {0.view_id.counter}: {claims}",
    Standing: "Standing in view {0.view_id.counter}: {shares}",
    EstateWanted: "EstateWanted {0.sender}#{0.first}..{0.last}",
    EstateRun: "EstateRun {0.sender}#{0.first}",
    GapSkipped: "GapSkipped {0.epoch}:{0.first}..{0.last}",
    Undeliverable: "Undeliverable {0.epoch}:{0.first}..{0.last}: {0.reason}",
}


def in_words(what: object) -> str:
    """A frame or an event, as witnesses name it."""
    lists: dict[str, list[str]] = {}
    match what:
        case Delivered():
            epoch = f"{what.epoch}:" if what.epoch else ""
            return f"gets {what.sender}#{epoch}{what.run.first}"
        case Nack() | UnicastNack():
            lists["missing"] = [f"{each.start}..{each.stop - 1}" for each in what.missing]
        case Takeover():
            lists["claims"] = [f"{who} {stage.name} {high}" for who, stage, high in what.claims]
        case Standing(is_open=False):
            lists["shares"] = ["not open"]
        case Standing():
            shares = what.shares
            lists["shares"] = [f"{s.sender} {s.delivered}/{s.received}" for s in shares]
    joined = {name: ", ".join(each) or "nobody" for name, each in lists.items()}
    return IN_WORDS.get(type(what), type(what).__name__).format(what, **joined)


def timer_in_words(owner: Hashable, timer: Enum) -> str:
    match owner:
        case ("unicast", "to", peer):
            return f"{timer.name} towards {peer}"
        case ("unicast", "from", peer):
            return f"{timer.name} for what comes from {peer}"
    return timer.name
