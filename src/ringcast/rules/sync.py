"""Y1–Y5: what a sync between a receiver and a sender may and may not do."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import FIRST_CONN_ID
from ringcast.rules.algebra import NOWHERE, Lives, Progress, Ranges, merge_progress
from ringcast.rules.findings import Findings
from ringcast.rules.replay import (
    NONE,
    Entries,
    Watch,
    arrived,
    conn_of,
    delivered_stream,
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
    UNICAST_WIN,
)

if TYPE_CHECKING:
    from ringcast.rules.findings import Verdict
    from ringcast.rules.replay import ConnKey, Side, Stream
    from ringcast.trace.rows import Facts, Row

NO_RUN_ORDER = "whether it was so at each moment: no run order"


class DeliveredBeforePurged:
    """What a sender purges, its receiver's application has delivered by then."""

    id = "Y1"
    title = "nothing is purged before it was delivered, whatever acks are late"
    events = (CONN, UNICAST_WIN, UNICAST_DELIVER, *Lives.EVENTS)

    def __init__(self) -> None:
        self.purged: defaultdict[Stream, Progress] = defaultdict(Progress)
        self.delivered: defaultdict[Stream, Progress] = defaultdict(Progress)
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == UNICAST_DELIVER:
            self.delivered[delivered_stream(row)].rise(row.run_idx, row.seqno2, row)
        elif row.event not in (CONN, UNICAST_WIN):
            self.lives.feed(row)
        elif row.kind == "S" and row.low > 0:
            self.purged[sent_stream(row)].rise(row.run_idx, row.low, row)

    def merge(self, other: DeliveredBeforePurged) -> None:
        merge_progress(self.purged, other.purged)
        merge_progress(self.delivered, other.delivered)
        self.lives.merge(other.lives)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        prefixes = self.lives.without_tail()
        for stream, purged in self.purged.items():
            delivered = self.delivered.get(stream, NOWHERE)
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
        return found.verdict(self.id, self.title)


class NoEndlessRepair:
    """While both sides are on one connection, the sender still has all that the receiver lacks.

    Otherwise the receiver would ask for ever. Needs the order of the run.
    """

    id = "Y2"
    title = "on one connection the sender has kept everything that the receiver waits for"
    events = (CONN, UNICAST_WIN)

    def __init__(self) -> None:
        self.rows: defaultdict[Stream, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if (row.peer, row.peer_inc) != (row.node, row.inc):
            self.rows[side_stream(row)].append(row)

    def merge(self, other: NoEndlessRepair) -> None:
        for stream, rows in other.rows.items():
            self.rows[stream] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for rows in self.rows.values():
            if rows[0].run_idx < 0:
                found.unknown.add(NO_RUN_ORDER)
            else:
                self._judge(sorted(rows, key=lambda row: row.run_idx), found)
        return found.verdict(self.id, self.title)

    @staticmethod
    def _judge(rows: list[Row], found: Findings) -> None:
        latest: dict[str, Row] = {}
        for row in rows:
            if row.event == CONN and row.detail.endswith(NONE):
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
                    *sorted((sender, receiver), key=lambda row: row.run_idx),
                )
                return


class OnceAcrossSyncs(Watch):
    """After a window was dropped and found its place again, nothing is delivered a second time.

    Judged are deliveries on any but the first connection of a stream.
    """

    id = "Y3"
    title = "a sync repeats no delivery"
    events = (UNICAST_DELIVER,)

    def __init__(self, found: Findings, facts: Facts) -> None:
        self.found = found
        self.delivered: defaultdict[Stream, Ranges] = defaultdict(Ranges)

    def see(self, rows: list[Row]) -> None:
        for row in rows:
            earlier = self.delivered[delivered_stream(row)].add(row.seqno, row.seqno2, row)
            if row.conn == FIRST_CONN_ID:
                continue
            self.found.premises += 1
            if earlier:
                self.found.violate(
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

    def __init__(self, found: Findings, facts: Facts) -> None:
        self.found = found
        self.entries = Entries()
        self.nonces: defaultdict[Side, int] = defaultdict(int)
        self.answered: dict[tuple[str, int, int], Row] = {}
        self.has_cause: set[tuple[str, int]] = set()

    def see(self, rows: list[Row]) -> None:
        syncs = arrived(rows, "sync")
        for row in rows:
            peer = row.peer, row.peer_inc
            if row.event in (SYNC_CALL, UNICAST_DROP):
                self.has_cause.add(peer)
            elif row.event == SYNC:
                self._judge_sync_request(row)
            elif row.event in Entries.EVENTS:
                if row.event == CONN and row.kind == "R" and row.detail.endswith(NONE):
                    self.has_cause.add(peer)
                elif row.event == CONN and row.kind == "S":
                    self._judge_conn(row, syncs)
                self.entries.update(row)

    def _judge_sync_request(self, row: Row) -> None:
        peer, stream = (row.peer, row.peer_inc), (row.peer, row.peer_inc, row.epoch)
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
        mine = [sync for sync in syncs if (sync.peer, sync.peer_inc) == side[1:]]
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

    def __init__(self, found: Findings, facts: Facts) -> None:
        self.found = found
        self.entries = Entries()

    def see(self, rows: list[Row]) -> None:
        for row in rows:
            if row.event in Entries.EVENTS:
                self.entries.update(row)
        for peer in dict.fromkeys((row.peer, row.peer_inc) for row in arrived(rows, "sync")):
            self._judge(("R", *peer), rows, "sync", ("udata", "sync_ok", "close"))
        for peer in dict.fromkeys((row.peer, row.peer_inc) for row in arrived(rows, "sync_ok")):
            self._judge(("S", *peer), rows, "sync_ok", ("uack", "sync"))

    def _judge(self, side: Side, rows: list[Row], cause: str, others: tuple[str, ...]) -> None:
        mine = [row for row in rows if (row.peer, row.peer_inc) == side[1:]]
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
