"""Y1–Y5, Y-L1–Y-L3: what a sync between a receiver and a sender may do, and that it ends soon."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from ringcast.model import FIRST_CONN_ID
from ringcast.rules.bounds import SYNC_TICKS_MAX
from ringcast.rules.evidence import NOWHERE, Ranges, progress
from ringcast.rules.findings import rule
from ringcast.rules.liveness import NO_COMMON_CLOCK
from ringcast.rules.replay import (
    Entries,
    Waiting,
    Watch,
    arrived,
    delivered_stream,
    is_gone,
    left,
    sent_stream,
    side_stream,
)
from ringcast.rules.unicast_liveness import Journal, sync_bound_ns
from ringcast.trace.rows import (
    CONN,
    REJECT,
    RX,
    SYNC,
    SYNC_CALL,
    TICK,
    TX,
    UNICAST_DELIVER,
    UNICAST_DROP,
)

if TYPE_CHECKING:
    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.rules.replay import ConnKey, Stream
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
        if rows[0].peer_key == rows[0].key:
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
        if row.conn == FIRST_CONN_ID or row.peer_key == row.key:
            continue
        found.premises += 1
        if earlier:
            found.violate(
                f"{row.member} delivers {row.peer}:{row.run} again on connection "
                f"{row.epoch}.{row.conn}",
                *(*earlier, row),
            )


class OneConnectionPerDrop(Watch):
    """A sender moves to a new connection once per sync request, and a receiver that was answered
    asks a new one only if it lost its window, gave the last one up or was told to."""

    id = "Y4"
    title = "one lost window makes at most one new connection"
    events = (*Entries.EVENTS, RX, TX, SYNC, SYNC_CALL, UNICAST_DROP)

    def begin(self) -> None:
        self.nonce = 0
        self.answered: dict[int, Row] = {}
        """By epoch."""
        self.has_cause = False

    def see(self, rows: list[Row]) -> None:
        syncs = arrived(rows, "sync")
        for row in rows:
            if row.event in (SYNC_CALL, UNICAST_DROP):
                self.has_cause = True
            elif row.event == SYNC:
                self._judge_sync_request(row)
            elif row.event in Entries.EVENTS:
                if row.kind == "R" and is_gone(row):
                    self.has_cause = True
                elif row.event == CONN and row.kind == "S":
                    self._judge_conn(row, syncs)
                self.entries.update(row)

    def _judge_sync_request(self, row: Row) -> None:
        if row.detail == "answered":
            self.answered[row.epoch] = row
            self.has_cause = False
        elif row.detail == "given up":
            self.has_cause = True
        elif row.epoch in self.answered:
            self.found.premises += 1
            if not self.has_cause:
                self.found.violate(
                    f"{row.member} asks {row.peer} again where its stream {row.epoch} stands, "
                    f"though it was answered and lost nothing",
                    *(self.answered[row.epoch], row),
                )

    def _judge_conn(self, row: Row, syncs: list[Row]) -> None:
        entry = self.entries.now("S")
        if entry is None or entry.row.epoch != row.epoch or entry.row.conn >= row.conn:
            return  # that connections do not go back is S5
        self.found.premises += 1
        fresh = sorted({sync.seqno for sync in syncs if sync.seqno > self.nonce})
        steps = row.conn - entry.row.conn
        if steps <= len(fresh):
            # Which of them were honoured is not known; a sender may put others off.
            self.nonce = fresh[steps - 1]
        else:
            self.found.violate(
                f"{row.member} moves from connection {entry.row.conn} to {row.conn} to {row.peer} "
                f"for {len(fresh)} new sync_requests",
                *(entry.row, *syncs, row),
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
        self._judge("R", rows, "sync", ("udata", "sync_ok", "close"))
        self._judge("S", rows, "sync_ok", ("uack", "sync"))

    def _judge(self, kind: str, rows: list[Row], cause: str, others: tuple[str, ...]) -> None:
        causes, before, after = (
            arrived(rows, cause),
            self.entries.before(kind),
            self.entries.now(kind),
        )
        is_dropped = any(row.event == UNICAST_DROP for row in rows)
        if not causes or before is None or after is None or is_dropped or arrived(rows, *others):
            return
        self.found.premises += 1
        if _place(kind, before.row) != _place(kind, after.row):
            self.found.violate(
                f"{after.row.member} changes what it has {'of' if kind == 'R' else 'for'} "
                f"{after.row.peer} by a {cause} of the other direction",
                *(before.row, *causes, after.row),
            )


def _place(kind: str, row: Row) -> tuple[ConnKey, int, int]:
    """What only the frames of this direction may change."""
    return (row.conn_key, row.low, 0) if kind == "S" else (row.conn_key, row.received, row.hr)


# How soon, and at what cost. What began before the end of healing counts from there.


@rule("Y-L1", "a receiver without a window gets one in time")
def flows_again(run: Run, found: Findings) -> None:
    """A receiver that asks a live sender where its stream stands has a window in time.

    Owed while the sender still has that stream; a sync request that is given up sooner is asked
    anew with the next message."""
    journal, facts = Journal(run), run.facts
    bound_ns = sync_bound_ns(facts)
    for stream in journal.syncs if facts.gst_ns is not None else ():
        is_live = run.lives.is_live(stream[:2]) and run.lives.is_live(stream[2:4])
        for asked, ended in journal.sync_requests(stream) if is_live else ():
            if asked.run_idx < 0:
                found.unknown.add(NO_COMMON_CLOCK)
                continue
            since_ns = max(asked.mono_ns, facts.gst_ns or 0)
            answered = ended if ended is not None and ended.detail == "answered" else None
            is_over = run.until_ns(ended) < (facts.gst_ns or 0)
            if not is_over and _is_served(journal, stream, since_ns, since_ns + bound_ns):
                text = f"{asked.member} asks {asked.peer} where its stream {asked.epoch} stands"
                waited_ns = run.waited_ns(since_ns, ended)
                found.wait(waited_ns, bound_ns, answered, f"{text} for {{}} ns", asked, ended)


def _is_served(journal: Journal, stream: Stream, since_ns: int, until_ns: int) -> bool:
    """Whether the sender has the stream all that time."""
    is_there = False
    for row in journal.conns.get(("S", stream), ()):
        if row.mono_ns <= since_ns:
            is_there = not is_gone(row)
        elif is_gone(row) and row.mono_ns <= until_ns:
            return False
    return is_there


class SyncIsCheap(Watch):
    """A sync request is repeated once a tick at most and only while it is open; an answer goes once
    between two ticks, and not after the receiver has shown that it has it."""

    id = "Y-L2"
    title = "a sync costs one frame a tick each way, and nothing when it is done"
    events = (*Entries.EVENTS, RX, TX, SYNC, TICK)

    def begin(self) -> None:
        self.open: Row | None = None
        self.times_asked: defaultdict[int, int] = defaultdict(int)
        """By nonce."""
        self.is_unconfirmed = False
        """The peer may still lack an answer."""
        self.credit = 1
        """How many answers may go before the next tick."""

    def see(self, rows: list[Row]) -> None:
        asked = self.open
        for row in rows:
            if row.event == SYNC:
                self.open = row if row.detail == "asked" else None
                asked = self.open or asked
            elif row.event == TICK:
                self.credit += 1
        self.entries.update_all(rows)
        may_answer = self.is_unconfirmed or bool(arrived(rows, "sync"))
        conns = [entry.conn for entry in self.entries.lately("S")]
        if any(row.conn_key in conns for row in arrived(rows, "uack", "unack", "sync_ack")):
            self.is_unconfirmed = False
        self.is_unconfirmed |= bool(arrived(rows, "sync"))
        for row in left(rows, "sync", "sync_ok"):
            if not self.is_prompt(row):
                continue
            self.found.premises += 1
            if row.kind == "sync":
                self._judge_sync_request(row, left(rows, "sync"), asked)
            else:
                self._judge_answer(row, may_answer=may_answer)
        self.credit = max(0, min(self.credit, 1))

    def _judge_sync_request(self, row: Row, same: list[Row], asked: Row | None) -> None:
        if asked is None or asked.seqno != row.seqno:
            self.found.violate(
                f"{row.member} asks {row.peer} with nonce {row.seqno}, which is not open",
                *(asked, row),
            )
        self.times_asked[row.seqno] += 1
        times = self.times_asked[row.seqno]
        if times > SYNC_TICKS_MAX or (len(same) > 1 and row is same[-1]):
            self.found.violate(
                f"{row.member} asks {row.peer} {times} times with nonce {row.seqno}, {len(same)} "
                f"times at once",
                *(asked, row),
            )

    def _judge_answer(self, row: Row, *, may_answer: bool) -> None:
        self.credit -= 1
        if self.credit < 0:
            self.found.violate(
                f"{row.member} answers {row.peer} more than once between two ticks", row
            )
        if not may_answer:
            self.found.violate(
                f"{row.member} answers {row.peer}, which has asked nothing since it was heard on "
                f"connection {row.epoch}.{row.conn}",
                row,
            )


class SyncEnds(Waiting):
    """A sync request is answered or given up after a bounded number of ticks; and a sender goes by
    the acks of its current connection at once, sync or no sync."""

    id = "Y-L3"
    title = "a sync ends, and nobody ignores acknowledgements because of it"
    events = (*Entries.EVENTS, RX, SYNC, REJECT)

    def see(self, rows: list[Row]) -> None:
        self.entries.update_all(rows)
        for row in rows:
            if row.event == SYNC and row.detail == "asked":
                self.since = row
            elif row.event == SYNC and self.since is not None:
                self.judge_wait(self.since, row)
                self.since = None
        # A frame for a predecessor at this address is refused; its row does not tell.
        is_refused = any(row.event == REJECT for row in rows)
        for ack in arrived(rows, "uack") if not is_refused else ():
            self._judge_ack(ack)

    def judge_wait(self, since: Row, end: Row | None) -> None:
        if end is None or self.is_prompt(end):
            bound_ns = (SYNC_TICKS_MAX + 1) * self.facts.tau_ns
            self.lasted(since, end, bound_ns, f"{since.member} asks {since.peer} for {{}} ns")

    def _judge_ack(self, ack: Row) -> None:
        before, after = self.entries.before("S"), self.entries.now("S")
        if before is None or after is None or not before.conn == after.conn == ack.conn_key:
            return
        self.found.premises += ack.conn > 1
        if before.row.low < ack.hd <= before.row.hr and after.row.low < ack.hd:
            self.found.violate(
                f"{ack.member} ignores the ack of {ack.hd} from {ack.peer} on its connection",
                *(before.row, ack, after.row),
            )
