"""Frames, events and timers in words: what witnesses are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.events import Delivered, GapSkipped, Undeliverable
from ringcast.wire.changes import Complain, Finish, Forwarded, Hello, Want
from ringcast.wire.frames import (
    Ack,
    Close,
    Commit,
    Data,
    Leave,
    Nack,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
    Watermark,
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
    Commit: "Commit {0.seqno}",
    Hello: "Hello of view {0.view_id}",
    Leave: "Leave",
    Complain: "Complain of {0.member}",
    Finish: "Finish {0.id}: {0.first} first",
    Want: "Want {0.id}: {0.sender} {missing}",
    Forwarded: "Forwarded {0.id}: {0.sender} {0.data.first}..{0.data.last}",
    GapSkipped: "GapSkipped {0.epoch}:{0.first}..{0.last}",
    Undeliverable: "Undeliverable {0.epoch}:{0.first}..{0.last}: {0.reason}",
}


def in_words(what: object) -> str:
    """A frame or an event, as witnesses name it."""
    if isinstance(what, Delivered):
        epoch = f"{what.epoch}:" if what.epoch else ""
        return f"gets {what.sender}#{epoch}{what.run.first}"
    ranges = what.missing if isinstance(what, Nack | UnicastNack | Want) else ()
    missing = ", ".join(f"{each.start}..{each.stop - 1}" for each in ranges)
    usual = type(what).__name__ + " {0.id}" * hasattr(what, "id")
    return IN_WORDS.get(type(what), usual).format(what, missing=missing)


def timer_in_words(owner: Hashable, timer: Enum) -> str:
    match owner:
        case ("unicast", "to", peer):
            return f"{timer.name} towards {peer}"
        case ("unicast", "from", peer):
            return f"{timer.name} for what comes from {peer}"
    return timer.name
