"""Y1–Y5: what a sync between a receiver and a sender may and may not do."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from ringcast.model import FIRST_CONN_ID
from ringcast.rules.evidence import NOWHERE, Ranges, progress
from ringcast.rules.findings import rule
from ringcast.rules.replay import (
    Entries,
    Watch,
    arrived,
    conn_of,
    delivered_stream,
    heard_stream,
    is_gone,
    of_peer,
    peer_of,
    sent_stream,
    side_of,
    side_stream,
)
from ringcast.trace.rows import (
    CONN,
    RX,
    SYNC,
    SYNC_CALL,
    TX,
    UNICAST_DELIVER,
    UNICAST_DROP,
)

if TYPE_CHECKING:
    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.rules.replay import ConnKey, Side, Stream
    from ringcast.trace.rows import Row

NO_RUN_ORDER = "whether it was so at each moment: no run order"


@rule("Y1", "nothing is purged before it was delivered, whatever acks are late")
def delivered_before_purged(run: Run, found: Findings) -> None:
    """What a sender purges, its receiver's application has delivered by then."""
    prefixes = run.lives.without_tail()
    windows = [row for row in run.rows(*Entries.EVENTS) if row.kind == "S" and row.low > 0]
    taken_of = progress(run.rows(UNICAST_DELIVER), delivered_stream)
    for stream, purged in progress(windows, sent_stream, value=attrgetter("low")).items():
        delivered = taken_of.get(stream, NOWHERE)
        for mark, through, row in purged:
            found.premises += 1
            if mark < 0:
                found.unknown.add(NO_RUN_ORDER)
            taken = delivered.at(mark)
            if taken < through and not (mark < 0 and stream[2:4] in prefixes):
                found.violate(
                    f"{row.member} purges {through} to {row.peer}, which has delivered {taken}",
                    *(delivered.row_at(mark), row),
                )
                break


@rule("Y2", "on one connection the sender has kept everything that the receiver waits for")
def no_endless_repair(run: Run, found: Findings) -> None:
    """While both sides are on one connection, the sender still has all that the receiver lacks.

    Otherwise the receiver would ask for ever. Needs the order of the run.
    """
    for rows in run.by(side_stream, *Entries.EVENTS).values():
        if peer_of(rows[0]) == (rows[0].node, rows[0].inc):
            continue
        if rows[0].run_idx < 0:
            found.unknown.add(NO_RUN_ORDER)
            continue
        latest: dict[str, Row] = {}
        for row in rows:
            if is_gone(row):
                latest.pop(row.kind, None)
                continue
            latest[row.kind] = row
            sender, receiver = latest.get("S"), latest.get("R")
            if sender is None or receiver is None or sender.conn != receiver.conn:
                continue
            found.premises += 1
            if sender.low > receiver.hd:
                found.violate(
                    f"{sender.member} has purged {sender.low} to {receiver.member}, which waits "
                    f"for {receiver.hd + 1}",
                    *sorted((sender, receiver), key=attrgetter("run_idx")),
                )
                break


@rule("Y3", "a sync repeats no delivery")
def once_across_syncs(run: Run, found: Findings) -> None:
    """After a window was dropped and found its place again, nothing is delivered a second time.

    Judged are deliveries on any but the first connection of a stream.
    """
    delivered: defaultdict[Stream, Ranges] = defaultdict(Ranges)
    for row in run.rows(UNICAST_DELIVER):
        earlier = delivered[delivered_stream(row)].add(row.seqno, row.seqno2, row)
        if row.conn == FIRST_CONN_ID or peer_of(row) == (row.node, row.inc):
            continue
        found.premises += 1
        if earlier:
            found.violate(
                f"{row.member} delivers {row.peer}:{row.seqno}..{row.seqno2} again on "
                f"connection {row.epoch}.{row.conn}",
                *(*earlier, row),
            )


class OneConnectionPerDrop(Watch):
    """A sender moves to a new connection once per sync request, and a receiver that was answered
    asks a new one only if it lost its window, gave the last one up or was told to."""

    id = "Y4"
    title = "one lost window makes at most one new connection"
    events = (*Entries.EVENTS, RX, TX, SYNC, SYNC_CALL, UNICAST_DROP)

    def begin(self) -> None:
        self.nonces: defaultdict[Side, int] = defaultdict(int)
        self.answered: dict[tuple[str, int, int], Row] = {}
        self.has_cause: set[tuple[str, int]] = set()

    def see(self, rows: list[Row]) -> None:
        syncs = arrived(rows, "sync")
        for row in rows:
            peer = peer_of(row)
            if row.event in (SYNC_CALL, UNICAST_DROP):
                self.has_cause.add(peer)
            elif row.event == SYNC:
                self._judge_sync_request(row)
            elif row.event in Entries.EVENTS:
                if row.kind == "R" and is_gone(row):
                    self.has_cause.add(peer)
                elif row.event == CONN and row.kind == "S":
                    self._judge_conn(row, syncs)
                self.entries.update(row)

    def _judge_sync_request(self, row: Row) -> None:
        peer, stream = peer_of(row), heard_stream(row)
        if row.detail == "answered":
            self.answered[stream] = row
            self.has_cause.discard(peer)
        elif row.detail == "given up":
            self.has_cause.add(peer)
        elif stream in self.answered:
            self.found.premises += 1
            if peer not in self.has_cause:
                self.found.violate(
                    f"{row.member} asks {row.peer} again where its stream {row.epoch} stands, "
                    f"though it was answered and lost nothing",
                    *(self.answered[stream], row),
                )

    def _judge_conn(self, row: Row, syncs: list[Row]) -> None:
        side = side_of("S", row)
        entry = self.entries.now(side)
        if entry is None or entry.row.epoch != row.epoch or entry.row.conn >= row.conn:
            return  # that connections do not go back is S5
        self.found.premises += 1
        mine = of_peer(syncs, side[1:])
        fresh = sorted({sync.seqno for sync in mine if sync.seqno > self.nonces[side]})
        steps = row.conn - entry.row.conn
        if steps <= len(fresh):
            # Which of them were honoured is not known; a sender may put others off.
            self.nonces[side] = fresh[steps - 1]
        else:
            self.found.violate(
                f"{row.member} moves from connection {entry.row.conn} to {row.conn} to {row.peer} "
                f"for {len(fresh)} new sync_requests",
                *(entry.row, *mine, row),
            )


class OneDirection(Watch):
    """A sync of what one member sends leaves what it receives from the same peer as it is.

    Judged in instants in which nothing else from that peer could have changed the other direction.
    """

    id = "Y5"
    title = "a sync in one direction leaves the other alone"
    events = (*Entries.EVENTS, RX, UNICAST_DROP)

    def see(self, rows: list[Row]) -> None:
        self.entries.update_all(rows)
        for peer in dict.fromkeys(peer_of(row) for row in arrived(rows, "sync")):
            self._judge(("R", *peer), rows, "sync", ("udata", "sync_ok", "close"))
        for peer in dict.fromkeys(peer_of(row) for row in arrived(rows, "sync_ok")):
            self._judge(("S", *peer), rows, "sync_ok", ("uack", "sync"))

    def _judge(self, side: Side, rows: list[Row], cause: str, others: tuple[str, ...]) -> None:
        mine = of_peer(rows, side[1:])
        before = self.entries.before(side, rows[0].mono_ns)
        after = self.entries.now(side)
        is_dropped = any(row.event == UNICAST_DROP for row in mine)
        if before is None or after is None or is_dropped or arrived(mine, *others):
            return
        self.found.premises += 1
        if _place(side[0], before.row) != _place(side[0], after.row):
            self.found.violate(
                f"{after.row.member} changes what it has {'of' if side[0] == 'R' else 'for'} "
                f"{side[1]} by a {cause} of the other direction",
                *(before.row, *arrived(mine, cause), after.row),
            )


def _place(kind: str, row: Row) -> tuple[ConnKey, int, int]:
    """What only the frames of this direction may change."""
    return (conn_of(row), row.low, 0) if kind == "S" else (conn_of(row), row.received, row.hr)
