"""What rows tell of a frame, and of a view change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.core.view_change import Begin, Freeze
from ringcast.model import SYSTEM_EPOCH, Conn, Member, Stream
from ringcast.trace.rows import cut_text, member_key, naming_id, naming_view
from ringcast.wire import changes
from ringcast.wire import frames as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ringcast.wire.frames import Data, Frame, UnicastData

CHANGE_FRAMES = (
    *(changes.Propose, changes.State, changes.Refuse, changes.Finish, changes.Cut),
    *(changes.Flushed, changes.Install, changes.Installed),
)

DATA_KINDS = ("data", "udata")

FIFO = int(Stream.FIFO)


class Seen(NamedTuple):
    """What a trace tells of one frame: columns of a row."""

    kind: str
    stream: int = -1
    seqno: int = 0
    seqno2: int = 0
    received: int = -1
    hd: int = -1
    size: int = 0
    again: int = 0
    epoch: int = 0
    conn: int = 0
    low: int = -1
    hr: int = -1
    view: int = 0

    @property
    def is_new_data(self) -> bool:
        return self.kind in DATA_KINDS and not self.again

    @property
    def columns(self) -> dict[str, Any]:
        """What rows tell of it, whatever happens to it."""
        columns = self._asdict()
        del columns["again"]
        return columns


def _data(kind: str, stream: int, data: Data | UnicastData) -> Seen:
    return Seen(kind, stream, data.first, data.last, size=sum(map(len, data.payloads)))


def _at(kind: str, stream: int, number: int, **columns: int) -> Seen:
    return Seen(kind, stream, number, number, **columns)


def _missing(kind: str, stream: int, missing: Sequence[range]) -> Seen:
    return Seen(kind, stream, missing[0].start, missing[-1].stop - 1)


def _of_change(frame: type) -> Callable[[Any], Seen]:
    kind = frame.__name__.lower()
    return lambda f: Seen(kind, view=f.id.counter)


DESCRIBED: dict[type, Callable[[Any], Seen]] = {
    wire.Data: lambda f: _data("data", int(f.stream), f),
    wire.Ack: lambda f: Seen("ack", int(f.stream), received=f.received, hd=f.delivered),
    wire.Nack: lambda f: _missing("nack", int(f.stream), f.missing),
    wire.Watermark: lambda f: _at("watermark", int(f.stream), f.seqno),
    wire.PeerRepairRequest: lambda f: _missing("peer_repair_request", FIFO, f.missing),
    wire.PeerRepair: lambda f: _data("peer_repair", int(f.data.stream), f.data)._replace(again=1),
    wire.StabilityReport: lambda f: _at("stability_report", FIFO, f.number, view=f.view_id.counter),
    wire.StabilityQuery: lambda f: Seen("stability_query", FIFO, view=f.view_id.counter),
    wire.Stable: lambda f: _at("stable", FIFO, f.number, view=f.view_id.counter),
    wire.Commit: lambda f: _at("commit", int(Stream.UNIFORM), f.seqno),
    wire.LogCommit: lambda f: _at("commit", int(Stream.TOTAL), f.seqno),
    changes.Want: lambda f: _missing("want", int(f.stream), f.missing)._replace(view=f.id.counter),
    changes.Forwarded: lambda f: _data("forwarded", int(f.data.stream), f.data)._replace(
        again=1, view=f.id.counter
    ),
    **{frame: _of_change(frame) for frame in CHANGE_FRAMES},
}
"""Views and proposals are told by their counter; of all other frames no more than their kind."""

UNICAST: dict[type, Callable[[Any], Seen]] = {
    wire.UnicastData: lambda f: _data("udata", -1, f),
    wire.UnicastAck: lambda f: Seen("uack", hd=f.delivered),
    wire.UnicastNack: lambda f: _missing("unack", -1, f.missing),
    wire.Close: lambda _: Seen("close"),
    wire.Sync: lambda f: _at("sync", -1, f.nonce),
    wire.SyncOk: lambda f: _at("sync_ok", -1, f.nonce, low=f.low, hr=f.high),
    wire.SyncAck: lambda f: _at("sync_ack", -1, f.nonce),
}


def told(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Those that rows tell of: all but the tag of the view that the rest is said in."""
    return (frame for frame in frames if not isinstance(frame, changes.InView))


def describe(frame: Any) -> Seen:
    """Its kind, and what a trace tells of it."""
    kind = type(frame)
    if kind in DESCRIBED:
        return DESCRIBED[kind](frame)
    if kind not in UNICAST:
        return Seen(kind.__name__.lower())
    if is_system(frame.conn):
        return Seen("system")  # between layers; no application knows of it
    return _of_unicast(frame)


def is_system(conn: Conn) -> bool:
    """Whether it is one of the system's own connections."""
    return conn.epoch >= SYSTEM_EPOCH


def _of_unicast(frame: Any) -> Seen:
    return UNICAST[type(frame)](frame)._replace(epoch=frame.conn.epoch, conn=frame.conn.id)


def recorded_columns(frame: Frame) -> dict[str, Any]:
    """What a recorded member tells of it: also of whom it complains, and why; and what is on the
    system's own connections, as on any other."""
    seen = _of_unicast(frame) if type(frame) in UNICAST else describe(frame)
    columns = seen.columns
    if isinstance(frame, changes.Complain):
        columns["members"] = (member_key(frame.member),)
        is_silent = not (frame.is_slow or frame.wants_state)
        columns["detail"] = "silent" if is_silent else "slow" if frame.is_slow else "gives no state"
    return columns


def columns_of(change: Freeze | Begin, me: Member) -> dict[str, Any]:
    """Of a proposal that this member promises, or of a view that it installs."""
    if isinstance(change, Freeze):
        return {**naming_id(change.id), "members": tuple(map(member_key, change.members))}
    part = change.cut.part_of(me)
    together = tuple(map(member_key, part.members))
    cuts = tuple(sorted(cut_text(*each) for each in part.cuts.items()))
    return {**naming_view(change.view), "part": together, "cut": cuts}


def brings_others(begin: Begin, me: Member) -> bool:
    """Whether the view has members that do not come with this one from the view before."""
    together = begin.cut.part_of(me).members
    return any(member not in together for member in begin.view)
