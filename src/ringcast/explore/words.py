"""Frames, events and timers in words: what witnesses are written in."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum

from ringcast.events import Delivered, GapSkipped, Undeliverable
from ringcast.wire import changes
from ringcast.wire import frames as wire

IN_WORDS: dict[type, str] = {
    wire.Data: "Data {0.first}..{0.last}",
    wire.Ack: "Ack received={0.received} delivered={0.delivered}",
    wire.Nack: "Nack {missing}",
    wire.Watermark: "Watermark {0.seqno}",
    wire.UnicastData: "Data({0.conn}) {0.first}..{0.last}",
    wire.UnicastAck: "Ack({0.conn}) {0.delivered}",
    wire.UnicastNack: "Nack({0.conn}) {missing}",
    wire.Close: "Close({0.conn})",
    wire.Sync: "Sync({0.conn}) nonce {0.nonce}",
    wire.SyncOk: "SyncOk({0.conn}) nonce {0.nonce}, low {0.low}",
    wire.SyncAck: "SyncAck({0.conn}) nonce {0.nonce}",
    wire.Commit: "Commit {0.seqno}",
    changes.Hello: "Hello of view {0.view_id}",
    wire.Leave: "Leave",
    changes.Complain: "Complain of {0.member}",
    changes.Finish: "Finish {0.id}: {0.first} first",
    changes.Want: "Want {0.id}: {0.sender} {missing}",
    changes.Forwarded: "Forwarded {0.id}: {0.sender} {0.data.first}..{0.data.last}",
    GapSkipped: "GapSkipped {0.epoch}:{0.first}..{0.last}",
    Undeliverable: "Undeliverable {0.epoch}:{0.first}..{0.last}: {0.reason}",
}


def in_words(what: object) -> str:
    """A frame or an event, as witnesses name it."""
    if isinstance(what, Delivered):
        epoch = f"{what.epoch}:" if what.epoch else ""
        return f"gets {what.sender}#{epoch}{what.run.first}"
    ranges = what.missing if isinstance(what, wire.Nack | wire.UnicastNack | changes.Want) else ()
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
