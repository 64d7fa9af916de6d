"""S5–S9: how unicast connections begin, change and end.

Entries are followed by their rows: "S" at the sender (low is the highest acknowledged seqno HA, hr
the highest sent HS), "R" at the receiver (hd is what its application was handed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import FIRST_CONN_ID
from ringcast.rules.bounds import STRANGER_NS
from ringcast.rules.replay import (
    CLOSING,
    NONE,
    OPEN,
    ROUNDING_NS,
    Entries,
    Watch,
    arrived,
    is_gone,
    left,
)
from ringcast.trace.rows import (
    CONN,
    CRASH,
    RX,
    STOP,
    SYNC,
    SYNC_CALL,
    TAIL,
    TICK,
    TX,
    UNDELIVERABLE,
    UNICAST_DELIVER,
    UNICAST_DROP,
    UNICAST_SEND,
    VIEW,
    split_key,
)

if TYPE_CHECKING:
    from ringcast.rules.replay import ConnKey, Entry
    from ringcast.trace.rows import Row

LEGAL = {"NONE>OPEN", "OPEN>OPEN", "OPEN>CLOSING", "OPEN>NONE"}
LEGAL |= {f"CLOSING>{state}" for state in (OPEN, CLOSING, NONE)}
"""To the same state: on the next connection. OPEN>NONE: the other side is known to be gone."""


class StateMachine(Watch):
    """Entries go from open to closing and back, and from closing away; an open one is removed only
    where the other side is gone. Nothing is sent or delivered without an entry."""

    id = "S5"
    title = "connections open, close and end only as they may"
    events = (*Entries.EVENTS, RX, TX, UNICAST_DELIVER, UNICAST_DROP, VIEW, STOP)

    def begin(self) -> None:
        self.newest: dict[str, ConnKey] = {}
        self.unexplained: list[tuple[str, Row]] = []

    def see(self, rows: list[Row]) -> None:
        for row in rows:
            if row.event == CONN:
                self._judge(row, rows)
            if row.event in Entries.EVENTS:
                self.entries.update(row)
        for row in rows:
            if row.event == UNICAST_DELIVER:
                self._judge_use(row, "R")
            elif row.event == TX and self.is_prompt(row):
                if row.kind == "udata":
                    self._judge_use(row, "S")
                elif row.kind in ("uack", "unack"):
                    self._judge_use(row, "R")
            elif row.event == STOP:
                self.unexplained.clear()  # a member that leaves removes everything

    def close(self) -> None:
        for text, row in self.unexplained:
            self.found.violate(text, row)

    def _judge(self, row: Row, rows: list[Row]) -> None:
        self.found.premises += 1
        entry = self.entries.now(row.kind)
        old, _, new = row.detail.partition(">")
        state = NONE if entry is None else entry.state
        if row.detail not in LEGAL or old != state:
            self.found.violate(
                f"{row.member}: {_name(row)} is {state} and goes {row.detail}",
                *(entry and entry.row, row),
            )
        newest = self.newest.get(row.kind, (0, 0))
        self.newest[row.kind] = max(newest, row.conn_key)
        if old == NONE:
            is_fit = row.conn_key > newest and (row.kind == "R" or row.conn == FIRST_CONN_ID)
        else:
            is_fit = row.epoch == newest[0] and row.conn_key >= newest
        if not is_fit or (old == new and row.conn_key == newest):
            self.found.violate(
                f"{row.member}: {_name(row)} goes {row.detail} on connection "
                f"{row.epoch}.{row.conn} after {newest[0]}.{newest[1]}",
                *(entry and entry.row, row),
            )
        if row.detail == "OPEN>NONE" and not self._is_explained(row, rows):
            text = f"{row.member} removes {_name(row)}, which was open"
            self.unexplained.append((text, row))

    def _is_explained(self, row: Row, rows: list[Row]) -> bool:
        """Whether something in this instant takes an open entry away."""
        if row.kind == "S" and row.low < row.hr:
            return True  # given up, and to be reported: S8
        if any(_is_replaced(other, row) for other in rows if other.event == VIEW):
            return True
        return row.kind == "R" and (
            any(close.conn_key == row.conn_key for close in arrived(rows, "close"))
            or any(other.event == UNICAST_DROP for other in rows)
            or any(
                other.event == CONN and other.kind == "R" and other.epoch > row.epoch
                for other in rows
            )
        )

    def _judge_use(self, row: Row, kind: str) -> None:
        entries = self.entries.lately(kind)
        if not any(entry.conn == row.conn_key for entry in entries):
            what = row.kind if row.event == TX else "a delivery"
            self.found.violate(
                f"{row.member}: {what} on connection {row.epoch}.{row.conn} with {row.peer}, "
                f"which is not there",
                *(*(entry.row for entry in entries), row),
            )


def _is_replaced(view: Row, row: Row) -> bool:
    """Whether the view has another incarnation of the row's peer."""
    members = [split_key(key) for key in view.members]
    return row.peer_key not in members and any(node == row.peer for node, _ in members)


class WindowsOpenRight(Watch):
    """A receive window opens, or moves to another connection, only with the first message of a
    stream newer than all before, which may have waited for a view with its sender, or with the
    answer to the sync request asked; and at its place."""

    id = "S6"
    title = "a receive window opens only where its stream stands"
    events = (*Entries.EVENTS, RX, SYNC, UNICAST_DELIVER, VIEW)

    def begin(self) -> None:
        self.newest: ConnKey = (0, 0)
        self.began: dict[ConnKey, int] = {}  # when its first message came
        self.asked: tuple[int, int] | None = None

    def see(self, rows: list[Row]) -> None:
        awaited = self.asked
        for row in rows:
            if row.event == RX and row.kind == "udata" and row.seqno == 1:
                self.began[row.conn_key] = row.mono_ns
            elif row.event == SYNC and row.detail == "asked":
                self.asked = awaited = row.seqno, row.epoch
            elif row.event == SYNC and self.asked == (row.seqno, row.epoch):
                self.asked = None
        for row in rows:
            if row.event == UNICAST_DELIVER:
                self.take(row, row.seqno2)
            elif row.event in Entries.EVENTS and row.kind == "R":
                entry = self.entries.now("R")
                is_open = row.event == CONN and not row.detail.endswith(NONE)
                if is_open and (entry is None or entry.conn != row.conn_key):
                    self._judge(row, rows, awaited)
                self.entries.update(row)
                self.take(row, row.hd)

    def _judge(self, row: Row, rows: list[Row], awaited: tuple[int, int] | None) -> None:
        self.found.premises += 1
        newest = self.newest
        self.newest = max(newest, row.conn_key)
        offsets = [
            max(ok.low, self.taken[row.epoch])
            for ok in arrived(rows, "sync_ok")
            if ok.conn_key == row.conn_key and (ok.seqno, ok.epoch) == awaited
        ]
        if row.conn == FIRST_CONN_ID and row.conn_key > newest:
            patience = STRANGER_NS if any(each.event == VIEW for each in rows) else 0
            since = self.began.get(row.conn_key, -STRANGER_NS - 1)
            offsets += [0] * (row.mono_ns - since <= patience)
        what = f"{row.member} opens {row.epoch}.{row.conn} of {row.peer}"
        came = arrived(rows, "udata", "sync_ok")
        if not offsets:
            text = f"{what} after {newest[0]}.{newest[1]}; nothing that came allows it"
            self.found.violate(text, *came, row)
        elif row.hd not in offsets:
            text = f"{what} at {row.hd}, its stream stands at {offsets[0]}"
            self.found.violate(text, *came, row)


class LateIsNothing(Watch):
    """What comes of an earlier connection changes nothing, nor does a close of any other one."""

    id = "S7"
    title = "what comes of an earlier connection has no effect"
    events = (*Entries.EVENTS, RX, TX, TICK, TAIL, SYNC, SYNC_CALL, UNICAST_DROP, VIEW)

    def see(self, rows: list[Row]) -> None:
        self.entries.update_all(rows)
        self._judge_receiver(rows)
        self._judge_sender(rows)

    def _judge_receiver(self, rows: list[Row]) -> None:
        frames = arrived(rows, "udata", "close", "sync_ok")
        before, after = self.entries.before("R"), self.entries.now("R")
        if before is None or not all(_is_late(row, before) for row in frames):
            return
        self.found.premises += len(frames)
        events = {row.event for row in rows}
        if not frames or events.intersection((UNICAST_DROP, VIEW)):
            return
        if after is None:
            is_kept = before.state == CLOSING  # its time was up
        else:
            is_kept = _received(before) == _received(after)
            is_kept &= not (before.state == CLOSING and after.state == OPEN)
        asked = [row for row in rows if row.event == SYNC and row.detail == "asked"]
        if not is_kept or (asked and SYNC_CALL not in events):
            changes = [row for row in rows if row.event in (*Entries.EVENTS, SYNC)]
            self._report(frames, before, *changes)

    def _judge_sender(self, rows: list[Row]) -> None:
        frames = arrived(rows, "uack", "unack")
        before, after = self.entries.before("S"), self.entries.now("S")
        if before is None or after is None or arrived(rows, "sync"):
            return
        if not frames or any(row.conn_key == before.conn for row in frames):
            return
        self.found.premises += len(frames)
        again = [row for row in left(rows, "udata") if row.again and self.is_prompt(row)]
        is_due = any(row.event in (TICK, TAIL) for row in rows)
        if after.row.low != before.row.low or after.conn != before.conn or (again and not is_due):
            self._report(frames, before, after.row, *again)

    def _report(self, frames: list[Row], before: Entry, *changes: Row) -> None:
        last = frames[-1]
        self.found.violate(
            f"{last.member} acts on {last.kind} of {last.epoch}.{last.conn} from {last.peer}, it "
            f"is on {before.conn[0]}.{before.conn[1]}",
            *(before.row, *frames, *changes),
        )


def _is_late(row: Row, entry: Entry) -> bool:
    if row.kind == "close":
        return row.conn_key != entry.conn
    if row.kind == "sync_ok":
        return row.conn_key <= entry.conn
    return row.conn_key < entry.conn


def _received(entry: Entry) -> tuple[ConnKey, int, int]:
    return entry.conn, entry.row.received, entry.row.hr


class NothingLostInSilence(Watch):
    """Whoever ends a connection with unacknowledged messages tells its application which; and
    tells nothing else. A member that crashed, or whose application takes nothing, cannot tell."""

    id = "S8"
    title = "messages that are given up are reported"
    events = (*Entries.EVENTS, UNDELIVERABLE, CRASH, STOP)

    def begin(self) -> None:
        self.owed: dict[int, Row] = {}
        """By epoch, as what was told."""
        self.told: dict[int, Row] = {}
        self.has_crashed = False

    def see(self, rows: list[Row]) -> None:
        for row in rows:
            if row.event == UNDELIVERABLE:
                self._judge(row)
            elif row.event == CRASH:
                self.has_crashed = True
            elif row.event == STOP:
                self._remove()
            elif row.event in Entries.EVENTS:
                if is_gone(row) and row.kind == "S":
                    self._remove()
                self.entries.update(row)

    def close(self) -> None:
        for epoch, row in self.owed.items():
            is_silent = row.member in self.facts.stopped_members or self.has_crashed
            if epoch not in self.told and not is_silent:
                self.found.violate(
                    f"{row.member} gives up {row.low + 1}..{row.hr} to {row.peer} and tells nobody",
                    row,
                )
        for epoch, row in self.told.items():
            owed = self.owed.get(epoch)
            if owed is None:
                self.found.violate(
                    f"{row.member} reports {row.run} to {row.peer}, which it has not given up", row
                )
            elif (row.seqno, row.seqno2) != (owed.low + 1, owed.hr):
                self.found.violate(
                    f"{row.member} gives up {owed.low + 1}..{owed.hr} to {row.peer} and reports "
                    f"{row.run}",
                    *(owed, row),
                )

    def _remove(self) -> None:
        entry = self.entries.now("S")
        if entry is not None and entry.row.low < entry.row.hr:
            self.found.premises += 1
            self.owed[entry.row.epoch] = entry.row

    def _judge(self, row: Row) -> None:
        earlier = self.told.setdefault(row.epoch, row)
        if earlier is not row:
            self.found.violate(f"{row.member} reports {row.run} a second time", earlier, row)


class Used(NamedTuple):
    """When an entry was last used: certainly, and at the latest."""

    surely: Row
    perhaps: Row


class Using(Watch):
    """When each entry was last used: by a send, by new data, by an ack that raises HA.

    Own repeats and duplicates are no use. Data above what is received may be a duplicate, so they
    are only perhaps a use, as is a sync."""

    USES = (*Entries.EVENTS, RX, UNICAST_SEND)

    def begin(self) -> None:
        self.used: dict[str, Used] = {}

    def note(self, row: Row) -> None:
        if row.event == UNICAST_SEND:
            self._use("S", row, is_sure=True)
        elif row.event == RX:
            entry = self.entries.now("R")
            if row.kind == "udata" and entry is not None and row.seqno2 > entry.row.received:
                self._use("R", row, is_sure=False)
        elif row.event in Entries.EVENTS:
            self._follow(row)

    def _follow(self, row: Row) -> None:
        entry = self.entries.now(row.kind)
        self.entries.update(row)
        if is_gone(row):
            self.used.pop(row.kind, None)
        elif row.event == CONN and row.detail.endswith(OPEN):
            self._use(row.kind, row, is_sure=not row.detail.startswith(OPEN))
        elif entry is not None and _has_moved(row, entry.row):
            self._use(row.kind, row, is_sure=True)

    def _use(self, kind: str, row: Row, *, is_sure: bool) -> None:
        used = self.used.get(kind)
        self.used[kind] = Used(row if is_sure or used is None else used.surely, row)


def _has_moved(row: Row, earlier: Row) -> bool:
    if row.kind == "S":
        return row.low > earlier.low
    return row.received > earlier.received or row.hr > earlier.hr


class ExpiresInTime(Using):
    """An idle entry begins to close after the expiry time, a tick later at most, and not before.

    Clocks may be wrong while there are faults: judged from the end of healing on. That a sender's
    entry does not close too early is not judged: it may be asked to.
    """

    id = "S9"
    title = "an idle connection begins to close in time, whatever is repeated on it"
    events = (*Using.USES, VIEW)

    def see(self, rows: list[Row]) -> None:
        is_viewed = any(row.event == VIEW for row in rows)
        for row in rows:
            if row.event == CONN and row.detail == "OPEN>CLOSING":
                self._judge(row, is_viewed=is_viewed)
            self.note(row)

    def close(self) -> None:
        if self.facts.gst_ns is None or not self.facts.expiry_ns or not self.is_live:
            return
        for kind, entry in self.entries:
            used = self.used.get(kind)
            if used is not None and entry.state == OPEN:
                self._judge_wait(used.perhaps, None)

    def _judge(self, row: Row, *, is_viewed: bool) -> None:
        gst_ns, used = self.facts.gst_ns, self.used.get(row.kind)
        if gst_ns is None or row.mono_ns <= gst_ns or used is None or is_viewed:
            return
        idle_ns = row.mono_ns - used.surely.mono_ns
        is_early = not self.facts.expiry_ns or idle_ns < self.facts.expiry_ns - ROUNDING_NS
        if row.kind == "R" and used.surely.mono_ns >= gst_ns and is_early:
            self.found.premises += 1
            self.found.violate(
                f"{row.member} begins to close {_name(row)} after {idle_ns} ns, it may be idle for "
                f"{self.facts.expiry_ns}",
                *(used.surely, row),
            )
        elif self.facts.expiry_ns:
            self._judge_wait(used.perhaps, row)

    def _judge_wait(self, used: Row, end: Row | None) -> None:
        text = f"{used.member}: the connection with {used.peer} is idle for {{}} ns and open"
        self.lasted(used, end, self.facts.expiry_ns + self.facts.tau_ns, text)


def _name(row: Row) -> str:
    return f"{'to' if row.kind == 'S' else 'from'} {row.peer_member}"
