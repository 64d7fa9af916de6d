"""A trace as people read it: one line per event, times in virtual milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ringcast.trace.rows import Row

HIDDEN = frozenset(
    {
        *(trace.RX, trace.WIN, trace.BLOCK, trace.ACKMAP, trace.DROP_LOW),
        *(trace.UNICAST_WIN, trace.TICK, trace.TAIL),
    }
)
"""Rows that only repeat what others tell."""


_WIRE = (trace.TX, trace.RX, trace.NET_DROP, trace.NET_DUP, trace.NET_CORRUPT)


def time_line(rows: Iterable[Row], witnesses: Collection[int] = ()) -> Iterator[str]:
    """The lines of a trace. Rows whose run_idx is in `witnesses` are marked, and always shown."""
    for row in rows:
        is_witness = row.run_idx in witnesses
        if is_witness or row.event not in HIDDEN:
            mark = ">" if is_witness else " "
            name = row.member if row.node else ""
            event = row.event.removeprefix("unicast_")
            yield f"{mark}{row.mono_ns / 1e6:11.3f}  {name:5} {event:12} {_text(row)}".rstrip()


def _text(row: Row) -> str:
    if row.event in _WIRE:
        return _frame(row)
    whose = _origin(row)
    conn = f"{whose} {row.epoch}.{row.conn}" if row.conn else f"{whose} {row.epoch}"
    at = f"{conn} " if row.epoch else ""  # one stream or connection with the peer
    part = "  part of a message" if row.kind == "fragment" else ""
    match row.event:
        case trace.VIEW | trace.FREEZE:
            return f"{row.view}@{row.view_creator}: {' '.join(row.members)}"
        case trace.SHOWN:
            return f"{row.view}@{row.view_creator}"
        case trace.OPEN:
            return f"{whose} at {row.seqno}"
        case trace.DROP_WINDOW | trace.SYNC_CALL | trace.UNICAST_DROP if not at:
            return whose
        case trace.SEND | trace.UNICAST_SEND:
            return f"{at}{_range(row)}   window ({row.low}, {row.low + row.cap}]"
        case trace.SEND_BLOCK | trace.UNICAST_BLOCK:
            return (
                f"{at}after {row.hr}: window ({row.low}, {row.low + row.cap}], {row.used} of "
                f"{row.limit} bytes: full of {row.detail}"
            )
        case trace.UNICAST_DELIVER:
            return f"{at}{_range(row)}{part}"
        case trace.DELIVER | trace.HANDED:
            return f"{whose}:{_range(row)}{part}  {row.detail}".rstrip()
        case trace.STATE_WANTED | trace.STATE_REFUSED | trace.STATE_BEGUN:
            return f"{whose} {row.seqno}"
        case trace.STATE_RECEIVED:
            return f"{whose} in {row.seqno} chunks, {row.size} bytes"
        case trace.STATE_ENTRY:
            return f"{whose}: {row.size} messages through {row.seqno}, {row.block_hash:x}"
        case trace.PURGE:
            return f"through {row.seqno}"
        case trace.WIN | trace.UNICAST_WIN:
            return (
                f"{conn if at else whose} {row.kind}: low {row.low}, delivered {row.hd}, "
                f"received {row.received}, high {row.hr}"
            )
        case trace.DROP_HIGH | trace.DROP_LOW:
            return f"{whose}: {row.seqno} messages"
        case trace.FAULT_ON | trace.FAULT_OFF:
            return row.detail
        case trace.ACKMAP:
            return " ".join(row.members)
        case trace.CONN:
            return f"{conn} {row.kind} {row.detail} at ({row.low}, {row.hr}]"
        case trace.TICK | trace.TAIL:
            return f"{conn} finds ({row.low}, {row.hr}], sends {row.again}"
        case trace.SYNC:
            return f"{conn} nonce {row.seqno} {row.detail}"
        case trace.UNICAST_UNBLOCK:
            return conn
        case _:
            return f"{at}{_range(row) if at else row.kind} {' ' * bool(at)}{row.detail}".strip()


def _frame(row: Row) -> str:
    arrow = "<-" if row.event == trace.RX else "->"
    peer = f"{row.peer}#{row.peer_inc}" if row.peer_inc else row.peer or "all"
    match row.kind:
        case "ack":
            what = f"received {row.received}, delivered {row.hd}"
        case "data" | "udata":
            what = _range(row) + ("  again" if row.again else "")
        case "uack":
            what = f"delivered {row.hd}"
        case "sync_ok":
            what = f"{row.seqno}: ({row.low}, {row.hr}]"
        case "close":
            what = ""
        case _:
            what = _range(row)
    if row.epoch:
        what = f"{row.epoch}.{row.conn} {what}".rstrip()
    fault = f"  ({row.detail})" if row.detail else ""
    return f"{arrow} {peer:4} {row.kind:7} {what}{fault}"


def _origin(row: Row) -> str:
    return f"{row.peer}#{row.peer_inc}"


def _range(row: Row) -> str:
    return f"{row.seqno}" if row.seqno == row.seqno2 else f"{row.seqno}..{row.seqno2}"
