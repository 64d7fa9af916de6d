"""Y-L1–Y-L3: a sync comes to its end, soon and at little cost.

As with all waits, what began before the end of healing counts from there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.rules.bounds import SYNC_TICKS_MAX
from ringcast.rules.findings import rule
from ringcast.rules.liveness import NO_COMMON_CLOCK
from ringcast.rules.replay import (
    Entries,
    Watch,
    arrived,
    conn_of,
    is_gone,
    is_prompt,
    left,
    peer_of,
    side_of,
)
from ringcast.rules.unicast_liveness import Journal, sync_bound_ns
from ringcast.trace.rows import REJECT, RX, SYNC, TICK, TX

if TYPE_CHECKING:
    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.rules.replay import Side, Stream
    from ringcast.trace.rows import Row


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
            until_ns = ended.mono_ns if ended is not None else facts.end_ns
            is_answered = ended is not None and ended.detail == "answered"
            if until_ns < (facts.gst_ns or 0):
                continue
            if not _is_served(journal, stream, since_ns, since_ns + bound_ns):
                continue
            waited_ns = max(0, until_ns - since_ns)
            found.wait(
                waited_ns,
                bound_ns,
                ended if is_answered else None,
                f"{asked.member} asks {asked.peer} where its stream {asked.epoch} stands for "
                f"{waited_ns} ns",
                *(asked, ended),
            )


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
        self.open: dict[tuple[str, int], Row] = {}
        self.times_asked: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        self.unconfirmed: dict[Side, Row] = {}
        self.credit: dict[Side, int] = {}
        """How many answers may go before the next tick."""

    def see(self, rows: list[Row]) -> None:
        may_ask = dict(self.open)
        for row in rows:
            peer = peer_of(row)
            if row.event == SYNC and row.detail == "asked":
                self.open[peer] = may_ask[peer] = row
            elif row.event == SYNC:
                self.open.pop(peer, None)
            elif row.event == TICK:
                self.credit[side_of("S", row)] = self.credit.get(side_of("S", row), 1) + 1
            elif row.event in Entries.EVENTS:
                self.entries.update(row)
        may_answer = dict(self.unconfirmed)
        self._hear(rows, may_answer)
        for row in left(rows, "sync", "sync_ok"):
            if not is_prompt(row, self.facts):
                continue
            self.found.premises += 1
            if row.kind == "sync":
                self._judge_sync_request(row, rows, may_ask.get(peer_of(row)))
            else:
                self._judge_answer(row, is_open=side_of("S", row) in may_answer)
        for side in self.credit:
            self.credit[side] = max(0, min(self.credit[side], 1))

    def _hear(self, rows: list[Row], may_answer: dict[Side, Row]) -> None:
        """Follow which answers the peers may still lack."""
        for row in arrived(rows, "uack", "unack", "sync_ack"):
            entries = self.entries.lately(side_of("S", row), row.mono_ns)
            if any(entry.conn == conn_of(row) for entry in entries):
                self.unconfirmed.pop(side_of("S", row), None)
        for row in arrived(rows, "sync"):
            self.unconfirmed[side_of("S", row)] = may_answer[side_of("S", row)] = row

    def _judge_sync_request(self, row: Row, rows: list[Row], asked: Row | None) -> None:
        if asked is None or asked.seqno != row.seqno:
            self.found.violate(
                f"{row.member} asks {row.peer} with nonce {row.seqno}, which is not open",
                *(asked, row),
            )
        nonce = row.peer, row.peer_inc, row.seqno
        self.times_asked[nonce] += 1
        same = [
            other for other in left(rows, "sync") if (other.peer, other.peer_inc) == peer_of(row)
        ]
        if self.times_asked[nonce] > SYNC_TICKS_MAX or (len(same) > 1 and row is same[-1]):
            self.found.violate(
                f"{row.member} asks {row.peer} {self.times_asked[nonce]} times with nonce "
                f"{row.seqno}, {len(same)} times at once",
                *(asked, row),
            )

    def _judge_answer(self, row: Row, *, is_open: bool) -> None:
        side = side_of("S", row)
        self.credit[side] = self.credit.get(side, 1) - 1
        if self.credit[side] < 0:
            self.found.violate(
                f"{row.member} answers {row.peer} more than once between two ticks", row
            )
        if not is_open:
            self.found.violate(
                f"{row.member} answers {row.peer}, which has asked nothing since it was heard on "
                f"connection {row.epoch}.{row.conn}",
                row,
            )


class SyncEnds(Watch):
    """A sync request is answered or given up after a bounded number of ticks; and a sender goes by
    the acks of its current connection at once, sync or no sync."""

    id = "Y-L3"
    title = "a sync ends, and nobody ignores acknowledgements because of it"
    events = (*Entries.EVENTS, RX, SYNC, REJECT)

    def begin(self) -> None:
        self.open: dict[tuple[str, int], Row] = {}

    def see(self, rows: list[Row]) -> None:
        self.entries.update_all(rows)
        for row in rows:
            if row.event == SYNC:
                self._follow(row)
        # A frame for a predecessor at this address is refused; its row does not tell.
        if not any(row.event == REJECT for row in rows):
            for ack in arrived(rows, "uack"):
                self._judge_ack(ack)

    def close(self) -> None:
        if self.is_live:
            for asked in self.open.values():
                self._judge(asked, self.facts.end_ns, None)

    def _follow(self, row: Row) -> None:
        peer = peer_of(row)
        if row.detail == "asked":
            self.open[peer] = row
        elif peer in self.open:
            asked = self.open.pop(peer)
            self._judge(asked, row.mono_ns, row)

    def _judge(self, asked: Row, now_ns: int, ended: Row | None) -> None:
        gst_ns = self.facts.gst_ns
        if gst_ns is None or now_ns <= gst_ns:
            return
        self.found.premises += ended is not None
        bound_ns = (SYNC_TICKS_MAX + 1) * self.facts.tau_ns
        self.lasted(asked, now_ns, ended, bound_ns, f"{asked.member} asks {asked.peer} for {{}} ns")

    def _judge_ack(self, ack: Row) -> None:
        side = side_of("S", ack)
        before = self.entries.before(side, ack.mono_ns)
        after = self.entries.now(side)
        if before is None or after is None or not before.conn == after.conn == conn_of(ack):
            return
        self.found.premises += ack.conn > 1
        if before.row.low < ack.hd <= before.row.hr and after.row.low < ack.hd:
            self.found.violate(
                f"{ack.member} ignores the ack of {ack.hd} from {ack.peer} on its connection",
                *(before.row, ack, after.row),
            )
