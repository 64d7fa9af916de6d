"""S1–S4: how unicast streams are delivered, acknowledged and repaired.

"S" is the sender's entry for a peer (low is the highest acknowledged seqno HA, hr the highest sent
HS), "R" the receiver's (hd is what its application was handed).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from ringcast.model import FIRST_CONN_ID
from ringcast.rules.evidence import NOWHERE, progress
from ringcast.rules.findings import rule
from ringcast.rules.replay import (
    ROUNDING_NS,
    Entries,
    Watch,
    arrived,
    conn_of,
    delivered_stream,
    heard_stream,
    is_gone,
    is_prompt,
    left,
    of_peer,
    sent_stream,
    side_of,
)
from ringcast.trace.rows import (
    CONN,
    RX,
    TAIL,
    TICK,
    TX,
    UNICAST_DELIVER,
    UNICAST_SEND,
)

if TYPE_CHECKING:
    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.rules.replay import Entry
    from ringcast.trace.rows import Row

PROOF_DATAGRAMS = 3
"""So many datagrams behind a gap prove a loss; with fewer it may still be reordering."""


@rule("S1", "messages to one member arrive in order, each once")
def in_turn(run: Run, found: Findings) -> None:
    """Per stream a receiver delivers 1, 2, 3, …: each once, and each was sent before.

    Closing, dropping a window and syncing do not begin a stream anew; a new epoch does.
    """
    sent_by = progress(run.rows(UNICAST_SEND), sent_stream)
    for stream, rows in run.by(delivered_stream, UNICAST_DELIVER).items():
        found.premises += len(rows)
        for earlier, row in pairwise([None, *rows]):
            due = 1 if earlier is None else earlier.seqno2 + 1
            if row is not None and (row.seqno != due or row.seqno2 < row.seqno):
                found.violate(
                    f"{row.member} delivers {row.run} of {_stream(row)}, due was {due}",
                    *(earlier, row),
                )
        sent = sent_by.get(stream, NOWHERE)
        for mark, through, row in progress(rows, delivered_stream)[stream]:
            if sent.at(mark) < through:
                found.violate(
                    f"{row.member} delivers {row.run} of {_stream(row)}; by then "
                    f"{sent.at(mark)} were sent",
                    *(sent.row_at(mark), row),
                )
                break


class Acknowledged(Watch):
    """HA rises only by an ack of the current connection, never falls and never passes HS; and a
    receiver acknowledges no more than its application was handed."""

    id = "S2"
    title = "a sender purges only what its receiver has delivered"
    events = (*Entries.EVENTS, RX, TX, UNICAST_DELIVER)

    def see(self, rows: list[Row]) -> None:
        acks = arrived(rows, "uack")
        for row in rows:
            if row.event == UNICAST_DELIVER:
                self.take(row, row.seqno2)
            elif row.event == TX:
                if row.kind == "uack":
                    self._judge_ack(row)
            elif row.event != RX:
                if row.kind == "S":
                    self._judge_window(row, acks)
                elif row.event == CONN:
                    self.take(row, row.hd)  # a window may begin after what was delivered before
                self.entries.update(row)

    def _judge_ack(self, row: Row) -> None:
        self.found.premises += 1
        taken = self.taken[heard_stream(row)]
        if row.hd > taken:
            self.found.violate(
                f"{row.member} acks {row.peer} through {row.hd}, taken were {taken}", row
            )

    def _judge_window(self, row: Row, acks: list[Row]) -> None:
        side = side_of("S", row)
        known = self.entries.now(side)
        if known is not None and known.row.epoch != row.epoch:
            known = None
        low = 0 if known is None else known.row.low
        if row.low < low:
            self.found.violate(
                f"{row.member}: what {row.peer} acknowledged falls from {low} to {row.low}",
                *(known and known.row, row),
            )
        if row.low > row.hr:
            self.found.violate(f"{row.member} sent {row.hr}, acknowledged are {row.low}", row)
        if row.low <= low:
            return
        self.found.premises += 1
        # The connection may have changed in this very input, before or after the ack.
        begun = self.entries.before(side, row.mono_ns)
        oldest = begun.conn if begun is not None else (row.epoch, FIRST_CONN_ID)
        valid = [
            ack
            for ack in acks
            if ack.peer_key == side[1:]
            and oldest <= conn_of(ack) <= conn_of(row)
            and ack.epoch == row.epoch
            and ack.hd <= row.hr
        ]
        if row.low > max((ack.hd for ack in valid), default=0):
            self.found.violate(
                f"{row.member} purges {low + 1}..{row.low} to {row.peer}; no ack on connection "
                f"{row.epoch}.{row.conn} allows it",
                *(*acks, row),
            )


class HighestAgain(Watch):
    """A tick sends HS again, and nothing else, exactly if HA < HS and both were the same at the
    tick before.

    The tail timer sends HS again only while HA < HS; while nothing was heard from the peer on that
    stream, message 1 with it. Between two changes of HA or HS each of its pauses is twice the one
    before, and none is longer than the tick's.
    """

    id = "S3"
    title = "a tick without progress sends the highest message again, alone"
    events = (TICK, TAIL, CONN, RX, TX)

    def begin(self) -> None:
        self.ticks: dict[tuple[str, int], Row] = {}
        self.tails: dict[tuple[str, int], list[Row]] = {}
        """The last ones, since HA or HS has changed."""
        self.heard: set[tuple[str, int, int]] = set()
        """Whose receivers have said something, and of which stream."""

    def see(self, rows: list[Row]) -> None:
        said = arrived(rows, "uack", "unack", "sync", "sync_ack")
        now_heard = {heard_stream(row) for row in said}
        for row in rows:
            if row.event == TAIL:
                self._judge_tail(row, left(rows, "udata"), now_heard)
        self.heard |= now_heard
        ticks = [row for row in rows if row.event == TICK]
        if not ticks:
            return
        gone = {row.peer_key for row in rows if is_gone(row) and row.kind == "S"}
        again = [row for row in left(rows, "udata") if row.again]
        for tick in ticks:
            peer = tick.peer_key
            earlier = self.ticks.get(peer)
            self.ticks[peer] = tick
            if peer not in gone:  # given up before the tick came to it
                self._judge(earlier, tick, again)

    def _judge(self, earlier: Row | None, tick: Row, again: list[Row]) -> None:
        is_same = earlier is not None and _pair(earlier) == _pair(tick)
        due = int(is_same and tick.low < tick.hr)
        self.found.premises += due
        if tick.again != due:
            self.found.violate(
                f"{tick.member} sends {tick.again} messages again to {tick.peer}, due was {due}: "
                f"acknowledged {tick.low}, sent {tick.hr}",
                *(earlier, tick),
            )
        elif due and is_prompt(tick, self.facts):
            mine = of_peer(again, tick.peer_key)
            if not any(row.seqno == row.seqno2 == tick.hr for row in mine):
                self.found.violate(
                    f"{tick.member} does not send {tick.hr} again to {tick.peer}, but something "
                    f"else",
                    *(tick, *mine),
                )

    def _judge_tail(self, tail: Row, sent: list[Row], now_heard: set[tuple[str, int, int]]) -> None:
        stream = tail.peer, tail.peer_inc, tail.epoch
        is_opening = tail.hr > 1 and stream not in self.heard
        seqnos = [1, tail.hr] if is_opening else [tail.hr]
        if tail.low >= tail.hr:
            self.found.violate(f"{tail.member} resends what {tail.peer} has acknowledged", tail)
        elif tail.again != len(seqnos) and stream not in now_heard:
            self.found.violate(
                f"{tail.member} resends {tail.again} messages to {tail.peer}, due were {seqnos}",
                tail,
            )
        elif is_prompt(tail, self.facts):
            mine = of_peer(sent, stream[:2])
            if not any(row.seqno <= tail.hr <= row.seqno2 for row in mine):
                self.found.violate(
                    f"{tail.member} does not resend {tail.hr} to {tail.peer}, but something else",
                    *(tail, *mine),
                )
        self._judge_pause(tail)

    def _judge_pause(self, tail: Row) -> None:
        earlier = self.tails.get(tail_key := tail.peer_key, [])
        if not earlier or _pair(earlier[-1]) != _pair(tail):
            self.tails[tail_key] = [tail]
            return
        self.tails[tail_key] = [earlier[-1], tail]
        first = earlier[0]
        if not is_prompt(first, self.facts):
            return
        pause_ns = tail.mono_ns - earlier[-1].mono_ns
        due_ns = 2 * (earlier[-1].mono_ns - first.mono_ns) if len(earlier) > 1 else pause_ns
        if abs(pause_ns - due_ns) > 3 * ROUNDING_NS or pause_ns > self.facts.tau_ns:
            self.found.violate(
                f"{tail.member} resends {tail.hr} to {tail.peer} after {pause_ns} ns, "
                f"due was {min(due_ns, self.facts.tau_ns)}",
                *(*earlier, tail),
            )


def _pair(tick: Row) -> tuple[int, int, int]:
    return tick.epoch, tick.low, tick.hr


class Selective(Watch):
    """A receiver asks only for what it lacks and knows to exist, and not at first sight of a gap
    (N14); a sender sends only what it has and what is not acknowledged."""

    id = "S4"
    title = "only what is missing is asked for and retransmitted"
    events = (*Entries.EVENTS, RX, TX)

    def begin(self) -> None:
        self.announced: defaultdict[tuple[str, int, int], int] = defaultdict(int)

    def see(self, rows: list[Row]) -> None:
        known = dict(self.announced)
        data = arrived(rows, "udata")
        for row in arrived(rows, "udata", "sync_ok"):
            through = row.seqno2 if row.kind == "udata" else row.hr
            self.announced[heard_stream(row)] = max(self.announced[heard_stream(row)], through)
        self.entries.update_all(rows)
        for row in left(rows, "unack", "udata"):
            if row.kind == "udata":
                self._judge_data(row)
            else:
                self._judge_request(row, known, data)

    def _judge_request(
        self, row: Row, known: dict[tuple[str, int, int], int], data: list[Row]
    ) -> None:
        self.found.premises += 1
        stream = heard_stream(row)
        if row.seqno2 > self.announced[stream]:
            self.found.violate(
                f"{row.member} asks {row.peer} for {row.run}, heard of were "
                f"{self.announced[stream]}",
                row,
            )
        later = sum(
            (frame.peer, frame.peer_inc, frame.epoch) == stream and frame.seqno > row.seqno
            for frame in data
        )
        if known.get(stream, 0) < row.seqno and later < PROOF_DATAGRAMS:
            self.found.violate(
                f"{row.member} asks {row.peer} for {row.run} at first sight of the gap",
                *(*data, row),
            )
        shown = self._shown("R", row)
        if not shown:
            return
        received = min(entry.row.received for entry in shown)
        is_highest = all(entry.row.hr == row.seqno2 > entry.row.received for entry in shown)
        if row.seqno <= received or is_highest:
            self.found.violate(
                f"{row.member} asks {row.peer} for {row.run}, some of which it holds",
                *(*(entry.row for entry in shown), row),
            )

    def _judge_data(self, row: Row) -> None:
        self.found.premises += row.again
        shown = self._shown("S", row)
        if not shown:
            return
        low = min(entry.row.low for entry in shown)
        high = max(entry.row.hr for entry in shown)
        if not low < row.seqno <= row.seqno2 <= high:
            self.found.violate(
                f"{row.member} sends {row.run} to {row.peer}, its window holds {low + 1}..{high}",
                *(*(entry.row for entry in shown), row),
            )

    def _shown(self, kind: str, row: Row) -> list[Entry]:
        """The entry that a frame speaks for, where the frame is as new as the entry's rows."""
        if not is_prompt(row, self.facts):
            return []
        entries = self.entries.lately(side_of(kind, row), row.mono_ns)
        return [entry for entry in entries if entry.row.epoch == row.epoch]


def _stream(row: Row) -> str:
    return f"{row.peer_member} epoch {row.epoch}"
