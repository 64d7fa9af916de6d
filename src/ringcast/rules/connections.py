"""S5–S9: how unicast connections begin, change and end.

Entries are followed by their rows: "S" at the sender (low is the highest acknowledged seqno HA, hr
the highest sent HS), "R" at the receiver (hd is what its application was handed).
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ringcast.model import FIRST_CONN_ID, SYSTEM_EPOCH
from ringcast.rules.bounds import STRANGER_NS
from ringcast.rules.findings import Instants
from ringcast.rules.replay import (
    CLOSING,
    NONE,
    OPEN,
    ROUNDING_NS,
    ConnKey,
    Entries,
    Entry,
    Pair,
    arrived,
    is_gone,
    left,
    of_pairs,
)
from ringcast.trace import rows as trace
from ringcast.trace.rows import Row

LEGAL = {"NONE>OPEN", "OPEN>OPEN", "OPEN>CLOSING", "OPEN>NONE"}
LEGAL |= {f"CLOSING>{state}" for state in (OPEN, CLOSING, NONE)}
"""To the same state: on the next connection. OPEN>NONE: the other side is known to be gone."""


@of_pairs("S5", "connections open, close and end only as they may")
def as_they_may(pair: Pair) -> Instants:
    """Entries go from open to closing and back, and from closing away; an open one is removed only
    where the other side is gone. Nothing is sent or delivered without an entry."""
    newest: dict[str, ConnKey] = {}
    unexplained: list[Row] = []
    while rows := (yield):
        for row in rows:
            if row.event == trace.CONN:
                _judge_transition(pair, row, newest)
                if row.detail == "OPEN>NONE" and not _is_explained(row, rows):
                    unexplained.append(row)
            pair.entries.update(row)
        for row in rows:
            is_frame = row.event == trace.TX and pair.is_prompt(row)
            if row.event == trace.UNICAST_DELIVER or (is_frame and row.kind in ("uack", "unack")):
                _judge_use(pair, row, "R")
            elif is_frame and row.kind == "udata":
                _judge_use(pair, row, "S")
            elif row.event == trace.STOP:
                unexplained.clear()  # a member that leaves removes everything
    for row in unexplained:
        pair.found.violate(f"{row.member} removes {_name(row)}, which was open", row)


def _judge_transition(pair: Pair, row: Row, newest: dict[str, ConnKey]) -> None:
    pair.found.premises += 1
    entry = pair.entries.now(row.kind)
    shown = entry and entry.row
    old, _, new = row.detail.partition(">")
    state = NONE if entry is None else entry.state
    if row.detail not in LEGAL or old != state:
        text = f"{row.member}: {_name(row)} is {state} and goes {row.detail}"
        pair.found.violate(text, shown, row)
    before = newest.get(row.kind, (0, 0))
    newest[row.kind] = max(before, row.conn_key)
    if old == NONE:
        is_fit = row.conn_key > before and (row.kind == "R" or row.conn == FIRST_CONN_ID)
    else:
        is_fit = row.epoch == before[0] and row.conn_key >= before
    if not is_fit or (old == new and row.conn_key == before):
        text = f"{row.member}: {_name(row)} goes {row.detail} on connection {row.epoch}.{row.conn}"
        pair.found.violate(f"{text} after {before[0]}.{before[1]}", shown, row)


def _is_explained(row: Row, rows: list[Row]) -> bool:
    """Whether something in this instant takes an open entry away."""
    if row.kind == "S" and row.low < row.hr:
        return True  # given up, and to be reported: S8
    if any(_is_gone(other, row) for other in rows if other.event == trace.VIEW):
        return True
    return row.kind == "R" and (
        any(close.conn_key == row.conn_key for close in arrived(rows, "close"))
        or any(other.event == trace.UNICAST_DROP for other in rows)
        or any(
            other.event == trace.CONN and other.kind == "R" and other.epoch > row.epoch
            for other in rows
        )
    )


def _judge_use(pair: Pair, row: Row, kind: str) -> None:
    entries = pair.entries.lately(kind)
    if not any(entry.conn == row.conn_key for entry in entries):
        what = row.kind if row.event == trace.TX else "a delivery"
        text = f"{row.member}: {what} on connection {row.epoch}.{row.conn} with {row.peer}"
        pair.found.violate(f"{text}, which is not there", *(entry.row for entry in entries), row)


def _is_gone(view: Row, row: Row) -> bool:
    """Whether the view has another incarnation of the row's peer. Layers talk to members of their
    view alone: it is enough that the peer is not in it."""
    members = [trace.split_key(key) for key in view.members]
    is_replaced = row.epoch >= SYSTEM_EPOCH or any(node == row.peer for node, _ in members)
    return row.peer_key not in members and is_replaced


@of_pairs("S6", "a receive window opens only where its stream stands")
def opens_right(pair: Pair) -> Instants:
    """A receive window opens, or moves to another connection, only with the first message of a
    stream newer than all before, which may have waited for a view with its sender, or with the
    answer to the sync request asked; and at its place."""
    newest: ConnKey = (0, 0)
    began: dict[ConnKey, int] = {}  # when its first message came
    taken: defaultdict[int, int] = defaultdict(int)  # up to where, by epoch
    asked: tuple[int, int] | None = None
    while rows := (yield):
        awaited = asked
        for row in rows:
            if row.event == trace.RX and row.kind == "udata" and row.seqno == 1:
                began[row.conn_key] = row.mono_ns
            elif row.event == trace.SYNC and row.detail == "asked":
                asked = awaited = row.seqno, row.epoch
            elif row.event == trace.SYNC and asked == (row.seqno, row.epoch):
                asked = None
        for row in rows:
            if row.event == trace.UNICAST_DELIVER:
                taken[row.epoch] = max(taken[row.epoch], row.seqno2)
            elif row.event in Entries.EVENTS and row.kind == "R":
                entry = pair.entries.now("R")
                is_open = row.event == trace.CONN and not is_gone(row)
                if is_open and (entry is None or entry.conn != row.conn_key):
                    offsets = [
                        max(ok.low, taken[row.epoch])
                        for ok in arrived(rows, "sync_ok")
                        if ok.conn_key == row.conn_key and (ok.seqno, ok.epoch) == awaited
                    ]
                    if row.conn == FIRST_CONN_ID and row.conn_key > newest:
                        offsets += [0] * _is_just_begun(row, rows, began)
                    _judge_opening(pair, row, rows, newest, offsets)
                    newest = max(newest, row.conn_key)
                pair.entries.update(row)
                taken[row.epoch] = max(taken[row.epoch], row.hd)


def _is_just_begun(row: Row, rows: list[Row], began: dict[ConnKey, int]) -> bool:
    """Whether its first message has come now, or waited for the view that comes now."""
    patience = STRANGER_NS if any(each.event == trace.VIEW for each in rows) else 0
    return row.mono_ns - began.get(row.conn_key, -STRANGER_NS - 1) <= patience


def _judge_opening(
    pair: Pair, row: Row, rows: list[Row], newest: ConnKey, offsets: list[int]
) -> None:
    pair.found.premises += 1
    what = f"{row.member} opens {row.epoch}.{row.conn} of {row.peer}"
    came = arrived(rows, "udata", "sync_ok")
    if not offsets:
        text = f"{what} after {newest[0]}.{newest[1]}; nothing that came allows it"
        pair.found.violate(text, *came, row)
    elif row.hd not in offsets:
        pair.found.violate(f"{what} at {row.hd}, its stream stands at {offsets[0]}", *came, row)


@of_pairs("S7", "what comes of an earlier connection has no effect")
def late_is_nothing(pair: Pair) -> Instants:
    """What comes of an earlier connection changes nothing, nor does a close of any other one."""
    while rows := (yield):
        pair.entries.update_all(rows)
        _judge_late_data(pair, rows)
        _judge_late_acks(pair, rows)


def _judge_late_data(pair: Pair, rows: list[Row]) -> None:
    frames = arrived(rows, "udata", "close", "sync_ok")
    before, after = pair.entries.before("R"), pair.entries.now("R")
    if before is None or not all(_is_late(row, before) for row in frames):
        return
    pair.found.premises += len(frames)
    events = {row.event for row in rows}
    if not frames or events.intersection((trace.UNICAST_DROP, trace.VIEW)):
        return
    if after is None:
        is_kept = before.state == CLOSING  # its time was up
    else:
        is_kept = before.place == after.place
        is_kept &= not (before.state == CLOSING and after.state == OPEN)
    asked = [row for row in rows if row.event == trace.SYNC and row.detail == "asked"]
    if not is_kept or (asked and trace.SYNC_CALL not in events):
        changes = [row for row in rows if row.event in (*Entries.EVENTS, trace.SYNC)]
        _report_late(pair, frames, before, *changes)


def _judge_late_acks(pair: Pair, rows: list[Row]) -> None:
    frames = arrived(rows, "uack", "unack")
    before, after = pair.entries.before("S"), pair.entries.now("S")
    if before is None or after is None or arrived(rows, "sync"):
        return
    if not frames or any(row.conn_key == before.conn for row in frames):
        return
    pair.found.premises += len(frames)
    again = [row for row in left(rows, "udata") if row.again and pair.is_prompt(row)]
    is_due = any(row.event in (trace.TICK, trace.TAIL) for row in rows)
    if after.row.low != before.row.low or after.conn != before.conn or (again and not is_due):
        _report_late(pair, frames, before, after.row, *again)


def _report_late(pair: Pair, frames: list[Row], before: Entry, *changes: Row) -> None:
    last = frames[-1]
    text = f"{last.member} acts on {last.kind} of {last.epoch}.{last.conn} from {last.peer}"
    where = f"it is on {before.conn[0]}.{before.conn[1]}"
    pair.found.violate(f"{text}, {where}", before.row, *frames, *changes)


def _is_late(row: Row, entry: Entry) -> bool:
    if row.kind == "close":
        return row.conn_key != entry.conn
    if row.kind == "sync_ok":
        return row.conn_key <= entry.conn
    return row.conn_key < entry.conn


@of_pairs("S8", "messages that are given up are reported")
def nothing_lost_in_silence(pair: Pair) -> Instants:
    """Whoever ends a connection with unacknowledged messages tells its application which; and
    tells nothing else. A member that crashed, or whose application takes nothing, cannot tell. What
    layers say to each other is not the application's."""
    found = pair.found
    owed: dict[int, Row] = {}  # by epoch, as what was told
    told: dict[int, Row] = {}
    has_crashed = False
    while rows := (yield):
        for row in rows:
            if row.event == trace.UNDELIVERABLE:
                earlier = told.setdefault(row.epoch, row)
                if earlier is not row:
                    found.violate(f"{row.member} reports {row.run} a second time", earlier, row)
            has_crashed |= row.event == trace.CRASH
            entry = pair.entries.now("S")
            is_over = row.event == trace.STOP or (is_gone(row) and row.kind == "S")
            is_over &= entry is not None and entry.row.epoch < SYSTEM_EPOCH
            if is_over and entry is not None and entry.row.low < entry.row.hr:
                found.premises += 1
                owed[entry.row.epoch] = entry.row
            pair.entries.update(row)
    for epoch, row in owed.items():
        is_silent = row.member in pair.facts.stopped_members or has_crashed or not pair.is_whole
        if epoch not in told and not is_silent:
            given_up = f"{row.member} gives up {row.low + 1}..{row.hr} to {row.peer}"
            found.violate(f"{given_up} and tells nobody", row)
    for epoch, row in told.items():
        due = owed.get(epoch)
        if due is None:
            text = f"{row.member} reports {row.run} to {row.peer}, which it has not given up"
            found.violate(text, row)
        elif (row.seqno, row.seqno2) != (due.low + 1, due.hr):
            given_up = f"{row.member} gives up {due.low + 1}..{due.hr} to {row.peer}"
            found.violate(f"{given_up} and reports {row.run}", due, row)


class Used(NamedTuple):
    """When an entry was last used: certainly, and at the latest."""

    surely: Row
    perhaps: Row


class Uses(dict[str, Used]):
    """When each entry of a pair was last used: by a send, by new data, by an ack that raises HA.

    Own repeats and duplicates are no use. Data above what is received may be a duplicate, so they
    are only perhaps a use, as is a sync."""

    def note(self, row: Row, entries: Entries) -> None:
        """And follow the entries."""
        entry = entries.now("R" if row.event == trace.RX else row.kind)
        entries.update(row)
        if row.event == trace.UNICAST_SEND:
            self._use("S", row, is_sure=True)
        elif row.event == trace.RX:
            if row.kind == "udata" and entry is not None and row.seqno2 > entry.row.received:
                self._use("R", row, is_sure=False)
        elif row.event not in Entries.EVENTS:
            return
        elif is_gone(row):
            self.pop(row.kind, None)
        elif row.event == trace.CONN and row.detail.endswith(OPEN):
            self._use(row.kind, row, is_sure=not row.detail.startswith(OPEN))
        elif entry is not None and _has_moved(row, entry.row):
            self._use(row.kind, row, is_sure=True)

    def _use(self, kind: str, row: Row, *, is_sure: bool) -> None:
        used = self.get(kind)
        self[kind] = Used(row if is_sure or used is None else used.surely, row)


def _has_moved(row: Row, earlier: Row) -> bool:
    if row.kind == "S":
        return row.low > earlier.low
    return row.received > earlier.received or row.hr > earlier.hr


@of_pairs("S9", "an idle connection begins to close in time, whatever is repeated on it")
def expires_in_time(pair: Pair) -> Instants:
    """An idle entry begins to close after the expiry time, a tick later at most, and not before.

    Clocks may be wrong while there are faults: judged from the end of healing on. That a sender's
    entry does not close too early is not judged: it may be asked to.
    """
    facts, uses = pair.facts, Uses()
    while rows := (yield):
        is_viewed = any(row.event == trace.VIEW for row in rows)
        for row in rows:
            if row.event == trace.CONN and row.detail == "OPEN>CLOSING" and not is_viewed:
                _judge_closing(pair, row, uses.get(row.kind))
            uses.note(row, pair.entries)
    if facts.gst_ns is not None and facts.expiry_ns and pair.is_live:
        for kind, entry in pair.entries:
            if kind in uses and entry.state == OPEN:
                _judge_idle(pair, uses[kind].perhaps, None)


def _judge_closing(pair: Pair, row: Row, used: Used | None) -> None:
    gst_ns, expiry_ns = pair.facts.gst_ns, pair.facts.expiry_ns
    if gst_ns is None or row.mono_ns <= gst_ns or used is None:
        return
    idle_ns = row.mono_ns - used.surely.mono_ns
    is_early = not expiry_ns or idle_ns < expiry_ns - ROUNDING_NS
    if row.kind == "R" and used.surely.mono_ns >= gst_ns and is_early:
        pair.found.premises += 1
        text = f"{row.member} begins to close {_name(row)} after {idle_ns} ns"
        pair.found.violate(f"{text}, it may be idle for {expiry_ns}", used.surely, row)
    elif expiry_ns:
        _judge_idle(pair, used.perhaps, row)


def _judge_idle(pair: Pair, used: Row, end: Row | None) -> None:
    text = f"{used.member}: the connection with {used.peer} is idle for {{}} ns and open"
    pair.lasted(used, end, pair.facts.expiry_ns + pair.facts.tau_ns, text)


def _name(row: Row) -> str:
    return f"{'to' if row.kind == 'S' else 'from'} {row.peer_member}"
