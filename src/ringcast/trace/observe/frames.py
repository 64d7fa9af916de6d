"""What rows tell of a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.model import SYSTEM_EPOCH, Stream
from ringcast.trace.rows import member_key
from ringcast.wire import frames as wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Conn
    from ringcast.wire.frames import Frame

DATA_KINDS = ("data", "udata")

FIFO = int(Stream.FIFO)
UNIFORM = int(Stream.UNIFORM)

MEMBERSHIP_KINDS: dict[type, str] = {
    wire.Discover: "discover",
    wire.Present: "present",
    wire.Join: "join",
    wire.ViewIs: "view_is",
    wire.ViewAck: "view_ack",
    wire.Welcome: "welcome",
    wire.HalfWanted: "half_wanted",
    wire.Half: "half",
    wire.Leave: "leave",
    wire.Suspect: "suspect",
    wire.Merge: "merge",
    wire.Merged: "merged",
    wire.Begin: "begin",
    wire.Begun: "begun",
    wire.Beat: "beat",
    wire.Probe: "probe",
    wire.Alive: "alive",
}


class Seen(NamedTuple):
    """What a trace tells of one frame."""

    kind: str
    stream: int = -1
    first: int = 0
    last: int = 0
    held: int = -1
    delivered: int = -1
    size: int = 0
    again: int = 0
    epoch: int = 0
    conn: int = 0
    low: int = -1
    high: int = -1
    view: int = 0

    @property
    def is_new_data(self) -> bool:
        return self.kind in DATA_KINDS and not self.again

    @property
    def columns(self) -> dict[str, Any]:
        """What rows tell of it, whatever happens to it."""
        return {
            "kind": self.kind,
            "stream": self.stream,
            "seqno": self.first,
            "seqno2": self.last,
            "held": self.held,
            "hd": self.delivered,
            "size": self.size,
            "epoch": self.epoch,
            "conn": self.conn,
            "low": self.low,
            "hr": self.high,
            "view": self.view,
        }


def describe(frame: Frame) -> Seen:
    """What a simulated run tells of it. Views are told by their counter."""
    return (
        _of_multicast(frame)
        or _of_membership(frame)
        or _of_orphans(frame)
        or _of_unicast(frame)
        or Seen(type(frame).__name__.lower())
    )


def recorded_columns(frame: Frame) -> dict[str, Any]:
    """What a recorded member tells of it: of most frames no more than their kind."""
    if isinstance(frame, wire.Data | wire.Ack | wire.Nack | wire.Highest):
        seen = _of_multicast(frame)
        assert seen is not None
        return seen.columns
    columns: dict[str, Any] = {"kind": type(frame).__name__.lower()}
    if isinstance(frame, wire.Suspect):
        columns["members"] = (member_key(frame.member),)
        columns["detail"] = "slow" if frame.is_slow else "silent"
    return columns


def _of_multicast(frame: Frame) -> Seen | None:
    match frame:
        case wire.Data():
            size = sum(map(len, frame.payloads))
            return Seen("data", int(frame.stream), frame.first, frame.last, size=size)
        case wire.Ack():
            return Seen("ack", int(frame.stream), held=frame.held, delivered=frame.delivered)
        case wire.Nack():
            return Seen("nack", int(frame.stream), *_bounds(frame.missing))
        case wire.Highest():
            return Seen("highest", int(frame.stream), frame.seqno, frame.seqno)
        case wire.RepairWanted(_, missing):
            return Seen("repair_wanted", FIFO, *_bounds(missing))
        case wire.Relayed():
            data = frame.data
            size = sum(map(len, data.payloads))
            return Seen("relayed", int(data.stream), data.first, data.last, size=size, again=1)
        case wire.Vote(view_id, number):
            return Seen("vote", FIFO, number, number, view=view_id.counter)
        case wire.VoteWanted(view_id):
            return Seen("vote_wanted", FIFO, view=view_id.counter)
        case wire.Stable(view_id, number):
            return Seen("stable", FIFO, number, number, view=view_id.counter)
    return None


def _of_membership(frame: Frame) -> Seen | None:
    kind = MEMBERSHIP_KINDS.get(type(frame))
    if kind is None:
        return None
    match frame:
        case wire.ViewIs(view) | wire.Welcome(view) | wire.Merge(view) | wire.Merged(view):
            return Seen(kind, -1, view.counter, view.counter, size=len(view))
        case wire.ViewAck(view_id):
            return Seen(kind, -1, view_id.counter, view_id.counter)
        case wire.Begin(stream, counter, offset):
            return Seen(kind, int(stream), counter, counter, low=offset)
        case wire.Begun(stream, counter):
            return Seen(kind, int(stream), counter, counter)
    return Seen(kind)


def _of_orphans(frame: Frame) -> Seen | None:
    match frame:
        case wire.Commit(seqno, view_id):
            return Seen("commit", UNIFORM, seqno, seqno, view=view_id.counter)
        case wire.CommitWanted(view_id):
            return Seen("commit_wanted", UNIFORM, view=view_id.counter)
        case wire.Takeover(view_id):
            return Seen("takeover", int(frame.stream), view=view_id.counter)
        case wire.Standing(view_id):
            return Seen("standing", int(frame.stream), view=view_id.counter)
    return None


def _of_unicast(frame: Frame) -> Seen | None:
    seen = None
    match frame:
        case wire.UnicastData():
            conn = frame.conn
            seen = Seen("udata", -1, frame.first, frame.last, size=sum(map(len, frame.payloads)))
        case wire.UnicastAck(conn, delivered):
            seen = Seen("uack", delivered=delivered)
        case wire.UnicastNack(conn, missing):
            seen = Seen("unack", -1, *_bounds(missing))
        case wire.Close(conn):
            seen = Seen("close")
        case wire.Sync(conn, nonce):
            seen = Seen("sync", -1, nonce, nonce)
        case wire.SyncOk(conn, nonce, low, high):
            seen = Seen("sync_ok", -1, nonce, nonce, low=low, high=high)
        case wire.SyncAck(conn, nonce):
            seen = Seen("sync_ack", -1, nonce, nonce)
    return None if seen is None else _on(conn, seen)


def _on(conn: Conn, seen: Seen) -> Seen:
    """Of the connections between layers no application knows."""
    if conn.epoch >= SYSTEM_EPOCH:
        return Seen("system")
    return seen._replace(epoch=conn.epoch, conn=conn.id)


def _bounds(missing: Sequence[range]) -> tuple[int, int]:
    return missing[0].start, missing[-1].stop - 1
