"""S1–S4: how unicast streams are delivered, acknowledged and repaired.

"S" is the sender's entry for a peer (low is the highest acknowledged seqno HA, hr the highest sent
HS), "R" the receiver's (hd is what its application was handed).
"""

from __future__ import annotations

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
    delivered_stream,
    is_gone,
    left,
    sent_stream,
)
from ringcast.trace.rows import CONN, RX, TAIL, TICK, TX, UNICAST_DELIVER, UNICAST_SEND

if TYPE_CHECKING:
    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
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
        for row in rows:
            if row.event == UNICAST_DELIVER:
                self.take(row, row.seqno2)
            elif row.event == TX:
                if row.kind == "uack":
                    self._judge_ack(row)
            elif row.event != RX:
                if row.kind == "S":
                    self._judge_window(row, arrived(rows, "uack"))
                elif row.event == CONN:
                    self.take(row, row.hd)  # a window may begin after what was delivered before
                self.entries.update(row)

    def _judge_ack(self, row: Row) -> None:
        self.found.premises += 1
        taken = self.taken[row.epoch]
        if row.hd > taken:
            self.found.violate(
                f"{row.member} acks {row.peer} through {row.hd}, taken were {taken}", row
            )

    def _judge_window(self, row: Row, acks: list[Row]) -> None:
        known = self.entries.now("S")
        earlier = known.row if known is not None and known.row.epoch == row.epoch else None
        low = 0 if earlier is None else earlier.low
        if row.low < low:
            self.found.violate(
                f"{row.member}: what {row.peer} acknowledged falls from {low} to {row.low}",
                *(earlier, row),
            )
        if row.low > row.hr:
            self.found.violate(f"{row.member} sent {row.hr}, acknowledged are {row.low}", row)
        if row.low <= low:
            return
        self.found.premises += 1
        # The connection may have changed in this very input, before or after the ack.
        begun = self.entries.before("S")
        oldest = begun.conn if begun is not None else (row.epoch, FIRST_CONN_ID)
        valid = [
            ack.hd
            for ack in acks
            if oldest <= ack.conn_key <= row.conn_key
            and ack.epoch == row.epoch
            and ack.hd <= row.hr
        ]
        if row.low > max(valid, default=0):
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
        self.tick: Row | None = None
        self.tails: list[Row] = []
        """The last ones, since HA or HS has changed."""
        self.heard: set[int] = set()
        """The streams, by epoch, of which the receiver has said something."""

    def see(self, rows: list[Row]) -> None:
        said = arrived(rows, "uack", "unack", "sync", "sync_ack")
        now_heard = {row.epoch for row in said}
        sent = left(rows, "udata")
        for row in rows:
            if row.event == TAIL:
                self._judge_tail(row, sent, now_heard)
        self.heard |= now_heard
        is_removed = any(is_gone(row) and row.kind == "S" for row in rows)
        for row in rows:
            if row.event == TICK:
                earlier, self.tick = self.tick, row
                if not is_removed:  # given up before the tick came to it
                    self._judge(earlier, row, [row for row in sent if row.again])

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
        elif (
            due
            and self.is_prompt(tick)
            and not any(row.seqno == row.seqno2 == tick.hr for row in again)
        ):
            text = f"{tick.member} does not send {tick.hr} again to {tick.peer}, but something else"
            self.found.violate(text, tick, *again)

    def _judge_tail(self, tail: Row, sent: list[Row], now_heard: set[int]) -> None:
        is_opening = tail.hr > 1 and tail.epoch not in self.heard
        seqnos = [1, tail.hr] if is_opening else [tail.hr]
        if tail.low >= tail.hr:
            self.found.violate(f"{tail.member} resends what {tail.peer} has acknowledged", tail)
        elif tail.again != len(seqnos) and tail.epoch not in now_heard:
            self.found.violate(
                f"{tail.member} resends {tail.again} messages to {tail.peer}, due were {seqnos}",
                tail,
            )
        elif self.is_prompt(tail) and all(_lacks(row, tail.hr) for row in sent):
            text = f"{tail.member} does not resend {tail.hr} to {tail.peer}, but something else"
            self.found.violate(text, tail, *sent)
        self._judge_pause(tail)

    def _judge_pause(self, tail: Row) -> None:
        earlier = self.tails
        if not earlier or _pair(earlier[-1]) != _pair(tail):
            self.tails = [tail]
            return
        self.tails = [earlier[-1], tail]
        first = earlier[0]
        if not self.is_prompt(first):
            return
        pause_ns = tail.mono_ns - earlier[-1].mono_ns
        due_ns = 2 * (earlier[-1].mono_ns - first.mono_ns) if len(earlier) > 1 else pause_ns
        if abs(pause_ns - due_ns) > 3 * ROUNDING_NS or pause_ns > self.facts.tau_ns:
            self.found.violate(
                f"{tail.member} resends {tail.hr} to {tail.peer} after {pause_ns} ns, "
                f"due was {min(due_ns, self.facts.tau_ns)}",
                *(*earlier, tail),
            )


def _lacks(row: Row, seqno: int) -> bool:
    return not row.seqno <= seqno <= row.seqno2


def _pair(tick: Row) -> tuple[int, int, int]:
    return tick.epoch, tick.low, tick.hr


class Selective(Watch):
    """A receiver asks only for what it lacks and knows to exist, and not at first sight of a gap
    (N14); a sender sends only what it has and what is not acknowledged."""

    id = "S4"
    title = "only what is missing is asked for and retransmitted"
    events = (*Entries.EVENTS, RX, TX)

    def begin(self) -> None:
        self.announced: dict[int, int] = {}
        """By epoch, how far the stream is known to go."""

    def see(self, rows: list[Row]) -> None:
        known = dict(self.announced)
        for row in arrived(rows, "udata", "sync_ok"):
            through = row.seqno2 if row.kind == "udata" else row.hr
            self.announced[row.epoch] = max(self.announced.get(row.epoch, 0), through)
        self.entries.update_all(rows)
        for row in left(rows, "unack", "udata"):
            if row.kind == "udata":
                self._judge_data(row)
            else:
                self._judge_request(row, known.get(row.epoch, 0), arrived(rows, "udata"))

    def _judge_request(self, row: Row, known: int, data: list[Row]) -> None:
        self.found.premises += 1
        asks, announced = f"{row.member} asks {row.peer} for", self.announced.get(row.epoch, 0)
        if row.seqno2 > announced:
            self.found.violate(f"{asks} {row.run}, heard of were {announced}", row)
        later = sum(frame.epoch == row.epoch and frame.seqno > row.seqno for frame in data)
        if known < row.seqno and later < PROOF_DATAGRAMS:
            self.found.violate(f"{asks} {row.run} at first sight of the gap", *data, row)
        shown = self._shown("R", row)
        received = min((each.received for each in shown), default=-1)
        is_highest = all(each.hr == row.seqno2 > each.received for each in shown)
        if shown and (row.seqno <= received or is_highest):
            self.found.violate(f"{asks} {row.run}, some of which it holds", *shown, row)

    def _judge_data(self, row: Row) -> None:
        self.found.premises += row.again
        shown = self._shown("S", row)
        low = min((each.low for each in shown), default=0)
        high = max((each.hr for each in shown), default=0)
        if shown and not low < row.seqno <= row.seqno2 <= high:
            self.found.violate(
                f"{row.member} sends {row.run} to {row.peer}, its window holds {low + 1}..{high}",
                *(*shown, row),
            )

    def _shown(self, kind: str, row: Row) -> list[Row]:
        """The entry that a frame speaks for, where the frame is as new as the entry's rows."""
        shown = [entry.row for entry in self.entries.lately(kind)]
        return [each for each in shown if each.epoch == row.epoch and self.is_prompt(row)]


def _stream(row: Row) -> str:
    return f"{row.peer_member} epoch {row.epoch}"
