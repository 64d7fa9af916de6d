"""A trace as people read it: one line per event, times in virtual milliseconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ringcast.trace import rows as trace
from ringcast.trace.rows import Row

HIDDEN = {
    *(trace.RX, trace.WIN, trace.BLOCK, trace.ACKMAP, trace.DROP_LOW),
    *(trace.UNICAST_WIN, trace.TICK, trace.TAIL),
}
"""Rows that only repeat what others tell."""

_WIRE = (trace.TX, trace.RX, trace.NET_DROP, trace.NET_DUP, trace.NET_CORRUPT)
_VIEW = "{row.view}@{row.view_creator}"
_WINDOW = "window ({row.low}, {top}]"
_TEXTS = {
    (trace.VIEW, trace.FREEZE): f"{_VIEW}: {{members}}",
    (trace.SHOWN,): _VIEW,
    (trace.OPEN,): "{origin} at {row.seqno}",
    (trace.SEND, trace.UNICAST_SEND): f"{{at}}{{range}}   {_WINDOW}",
    (trace.SEND_BLOCK, trace.UNICAST_BLOCK): (
        f"{{at}}after {{row.hr}}: {_WINDOW}, {{row.used}} of {{row.limit}} bytes: "
        "full of {row.detail}"
    ),
    (trace.UNICAST_DELIVER,): "{at}{range}{part}",
    (trace.DELIVER, trace.HANDED): "{origin}:{range}{part}  {row.detail}",
    (trace.STATE_WANTED, trace.STATE_REFUSED, trace.STATE_BEGUN): "{origin} {row.seqno}",
    (trace.STATE_RECEIVED,): "{origin} in {row.seqno} chunks, {row.size} bytes",
    (trace.STATE_ENTRY,): "{origin}: {row.size} messages through {row.seqno}, {row.block_hash:x}",
    (trace.PURGE,): "through {row.seqno}",
    (trace.WIN, trace.UNICAST_WIN): (
        "{whose} {row.kind}: low {row.low}, delivered {row.hd}, received {row.received}, "
        "high {row.hr}"
    ),
    (trace.DROP_HIGH, trace.DROP_LOW): "{origin}: {row.seqno} messages",
    (trace.FAULT_ON, trace.FAULT_OFF): "{row.detail}",
    (trace.ACKMAP,): "{members}",
    (trace.CONN,): "{conn} {row.kind} {row.detail} at ({row.low}, {row.hr}]",
    (trace.TICK, trace.TAIL): "{conn} finds ({row.low}, {row.hr}], sends {row.again}",
    (trace.SYNC,): "{conn} nonce {row.seqno} {row.detail}",
    (trace.UNICAST_UNBLOCK,): "{conn}",
}
_TEXT_OF = {event: text for events, text in _TEXTS.items() for event in events}
_FRAMES = {
    "ack": "received {row.received}, delivered {row.hd}",
    "data": "{range}{again}",
    "udata": "{range}{again}",
    "uack": "delivered {row.hd}",
    "sync_ok": "{row.seqno}: ({row.low}, {row.hr}]",
    "close": "",
}


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
    origin = f"{row.peer}#{row.peer_inc}"
    conn = f"{origin} {row.epoch}.{row.conn}" if row.conn else f"{origin} {row.epoch}"
    if row.epoch:  # one stream or connection with the peer
        at, whose, otherwise = f"{conn} ", conn, "{at}{range}  {row.detail}"
    else:
        at, whose, otherwise = "", origin, "{row.kind} {row.detail}"
        if row.event in (trace.DROP_WINDOW, trace.SYNC_CALL, trace.UNICAST_DROP):
            return origin
    return (
        _TEXT_OF.get(row.event, otherwise)
        .format(
            **{"row": row, "at": at, "conn": conn, "origin": origin, "whose": whose},
            members=" ".join(row.members),
            part="  part of a message" if row.kind == "fragment" else "",
            range=_range(row),
            top=row.low + row.cap,
        )
        .strip()
    )


def _frame(row: Row) -> str:
    arrow = "<-" if row.event == trace.RX else "->"
    peer = f"{row.peer}#{row.peer_inc}" if row.peer_inc else row.peer or "all"
    text = _FRAMES.get(row.kind, "{range}")
    what = text.format(row=row, range=_range(row), again="  again" if row.again else "")
    if row.epoch:
        what = f"{row.epoch}.{row.conn} {what}".rstrip()
    fault = f"  ({row.detail})" if row.detail else ""
    return f"{arrow} {peer:4} {row.kind:7} {what}{fault}"


def _range(row: Row) -> str:
    return f"{row.seqno}" if row.seqno == row.seqno2 else f"{row.seqno}..{row.seqno2}"
