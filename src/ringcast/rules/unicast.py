"""S1–S4: how unicast streams are delivered, acknowledged and repaired.

"S" is the sender's entry for a peer (low is the highest acknowledged seqno HA, hr the highest sent
HS), "R" the receiver's (hd is what its application was handed).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ringcast.model import FIRST_CONN_ID
from ringcast.rules.evidence import NOWHERE, Run, progress
from ringcast.rules.findings import Findings, Instants, rule
from ringcast.rules.replay import (
    ROUNDING_NS,
    Entries,
    Pair,
    acked_and_sent,
    arrived,
    delivered_stream,
    is_gone,
    left,
    of_pairs,
    sent_stream,
)
from ringcast.trace import rows as trace
from ringcast.trace.rows import Row

PROOF_DATAGRAMS = 3
"""So many datagrams behind a gap prove a loss; with fewer it may still be reordering."""


@rule("S1", "messages to one member arrive in order, each once")
def in_turn(run: Run, found: Findings) -> None:
    """Per stream a receiver delivers 1, 2, 3, …: each once, and each was sent before.

    Closing, dropping a window and syncing do not begin a stream anew; a new epoch does.
    """
    sent_by = progress(run.rows(trace.UNICAST_SEND), sent_stream)
    for stream, rows in run.by(delivered_stream, trace.UNICAST_DELIVER).items():
        found.premises += len(rows)
        for earlier, row in pairwise([None, *rows]):
            due = 1 if earlier is None else earlier.seqno2 + 1
            if row is not None and (row.seqno != due or row.seqno2 < row.seqno):
                text = f"{row.member} delivers {row.run} of {_stream(row)}, due was {due}"
                found.violate(text, earlier, row)
        if rows[0].peer_member in run.unrecorded:
            continue
        sent = sent_by.get(stream, NOWHERE)
        for mark, through, row in progress(rows, delivered_stream)[stream]:
            if sent.at(mark) < through:
                text = f"{row.member} delivers {row.run} of {_stream(row)}"
                were = f"by then {sent.at(mark)} were sent"
                found.violate(f"{text}; {were}", sent.row_at(mark), row)
                break


@of_pairs("S2", "a sender purges only what its receiver has delivered")
def acknowledged(pair: Pair) -> Instants:
    """HA rises only by an ack of the current connection, never falls and never passes HS; and a
    receiver acknowledges no more than its application was handed."""
    taken: defaultdict[int, int] = defaultdict(int)  # up to where, by epoch
    while rows := (yield):
        for row in rows:
            if row.event == trace.UNICAST_DELIVER:
                taken[row.epoch] = max(taken[row.epoch], row.seqno2)
            elif row.event == trace.TX and row.kind == "uack":
                pair.found.premises += 1
                if row.hd > taken[row.epoch]:
                    text = f"{row.member} acks {row.peer} through {row.hd}"
                    pair.found.violate(f"{text}, taken were {taken[row.epoch]}", row)
            elif row.event in Entries.EVENTS and row.kind == "S":
                _judge_window(pair, row, arrived(rows, "uack"))
            elif row.event == trace.CONN:  # a window may begin after what was delivered before
                taken[row.epoch] = max(taken[row.epoch], row.hd)
            pair.entries.update(row)


def _judge_window(pair: Pair, row: Row, acks: list[Row]) -> None:
    found, known = pair.found, pair.entries.now("S")
    earlier = known.row if known is not None and known.row.epoch == row.epoch else None
    low = 0 if earlier is None else earlier.low
    if row.low < low:
        text = f"{row.member}: what {row.peer} acknowledged falls from {low} to {row.low}"
        found.violate(text, earlier, row)
    if row.low > row.hr:
        found.violate(f"{row.member} sent {row.hr}, acknowledged are {row.low}", row)
    if row.low <= low:
        return
    found.premises += 1
    # The connection may have changed in this very input, before or after the ack.
    begun = pair.entries.before("S")
    oldest = begun.conn if begun is not None else (row.epoch, FIRST_CONN_ID)
    valid = [
        ack.hd
        for ack in acks
        if oldest <= ack.conn_key <= row.conn_key and ack.epoch == row.epoch and ack.hd <= row.hr
    ]
    if row.low > max(valid, default=0):
        text = f"{row.member} purges {low + 1}..{row.low} to {row.peer}; no ack on connection"
        found.violate(f"{text} {row.epoch}.{row.conn} allows it", *acks, row)


@of_pairs("S3", "a tick without progress sends the highest message again, alone")
def highest_again(pair: Pair) -> Instants:
    """A tick sends HS again, and nothing else, exactly if HA < HS and both were the same at the
    tick before.

    The tail timer sends HS again only while HA < HS; while nothing was heard from the peer on that
    stream, message 1 with it. Between two changes of HA or HS each of its pauses is twice the one
    before, and none is longer than the tick's.
    """
    tick: Row | None = None
    tails: list[Row] = []  # the last ones, since HA or HS has changed
    heard: set[int] = set()  # the streams, by epoch, of which the receiver has said something
    while rows := (yield):
        now_heard = {row.epoch for row in arrived(rows, "uack", "unack", "sync", "sync_ack")}
        sent = left(rows, "udata")
        for row in rows:
            if row.event == trace.TAIL:
                is_opening = row.hr > 1 and row.epoch not in heard
                _judge_tail(pair, row, sent, now_heard, [1, row.hr] if is_opening else [row.hr])
                tails = _judge_pause(pair, row, tails)
        heard |= now_heard
        is_removed = any(is_gone(row) and row.kind == "S" for row in rows)
        for row in rows:
            if row.event == trace.TICK:
                earlier, tick = tick, row
                if not is_removed:  # given up before the tick came to it
                    _judge_tick(pair, earlier, row, [row for row in sent if row.again])


def _judge_tick(pair: Pair, earlier: Row | None, tick: Row, again: list[Row]) -> None:
    is_same = earlier is not None and acked_and_sent(earlier) == acked_and_sent(tick)
    due = int(is_same and tick.low < tick.hr)
    is_there = any(row.seqno == tick.hr for row in again)  # behind it may be what is new
    pair.found.premises += due
    if tick.again != due:
        text = f"{tick.member} sends {tick.again} messages again to {tick.peer}, due was {due}"
        where = f"acknowledged {tick.low}, sent {tick.hr}"
        pair.found.violate(f"{text}: {where}", earlier, tick)
    elif due and not is_there and pair.is_prompt(tick):
        text = f"{tick.member} does not send {tick.hr} again to {tick.peer}, but something else"
        pair.found.violate(text, tick, *again)


def _judge_tail(
    pair: Pair, tail: Row, sent: list[Row], now_heard: set[int], seqnos: list[int]
) -> None:
    if tail.low >= tail.hr:
        pair.found.violate(f"{tail.member} resends what {tail.peer} has acknowledged", tail)
    elif tail.again != len(seqnos) and tail.epoch not in now_heard:
        text = f"{tail.member} resends {tail.again} messages to {tail.peer}, due were {seqnos}"
        pair.found.violate(text, tail)
    elif pair.is_prompt(tail) and not any(row.seqno <= tail.hr <= row.seqno2 for row in sent):
        text = f"{tail.member} does not resend {tail.hr} to {tail.peer}, but something else"
        pair.found.violate(text, tail, *sent)


def _judge_pause(pair: Pair, tail: Row, earlier: list[Row]) -> list[Row]:
    """Return the tails that the next pause is judged by."""
    if not earlier or acked_and_sent(earlier[-1]) != acked_and_sent(tail):
        return [tail]
    first, last = earlier[0], earlier[-1]
    pause_ns, tau_ns = tail.mono_ns - last.mono_ns, pair.facts.tau_ns
    due_ns = 2 * (last.mono_ns - first.mono_ns) if len(earlier) > 1 else pause_ns
    slack_ns = 2 * pair.slack_ns(first.mono_ns, tail.mono_ns)
    is_wrong = abs(pause_ns - due_ns) > 3 * ROUNDING_NS + slack_ns or pause_ns > tau_ns + slack_ns
    if pair.is_prompt(first) and is_wrong:
        text = f"{tail.member} resends {tail.hr} to {tail.peer} after {pause_ns} ns"
        pair.found.violate(f"{text}, due was {min(due_ns, tau_ns)}", *earlier, tail)
    return [last, tail]


@of_pairs("S4", "only what is missing is asked for and retransmitted")
def selective(pair: Pair) -> Instants:
    """A receiver asks only for what it lacks and knows to exist, and not at first sight of a gap
    (N14); a sender sends only what it has and what is not acknowledged, and it sends that with the
    same bytes as before, which its observer compares."""
    announced: dict[int, int] = {}  # by epoch, how far the stream is known to go
    while rows := (yield):
        known = dict(announced)
        for row in arrived(rows, "udata", "sync_ok"):
            through = row.seqno2 if row.kind == "udata" else row.hr
            announced[row.epoch] = max(announced.get(row.epoch, 0), through)
        pair.entries.update_all(rows)
        for row in rows:
            if row.event == trace.XMIT_MISMATCH:
                text = f"{row.member} sends {row.peer} {row.run} again with other bytes"
                pair.found.violate(text, row)
        for row in left(rows, "unack", "udata"):
            if row.kind == "udata":
                _judge_data(pair, row)
            else:
                heard_of = known.get(row.epoch, 0), announced.get(row.epoch, 0)
                _judge_request(pair, row, *heard_of, arrived(rows, "udata"))


def _judge_request(pair: Pair, row: Row, known: int, announced: int, data: list[Row]) -> None:
    pair.found.premises += 1
    asks = f"{row.member} asks {row.peer} for {row.run}"
    if row.seqno2 > announced:
        pair.found.violate(f"{asks}, heard of were {announced}", row)
    later = sum(frame.epoch == row.epoch and frame.seqno > row.seqno for frame in data)
    if known < row.seqno and later < PROOF_DATAGRAMS:
        pair.found.violate(f"{asks} at first sight of the gap", *data, row)
    shown = _shown(pair, "R", row)
    received = min((each.received for each in shown), default=-1)
    is_highest = all(each.hr == row.seqno2 > each.received for each in shown)
    if shown and (row.seqno <= received or is_highest):
        pair.found.violate(f"{asks}, some of which it holds", *shown, row)


def _judge_data(pair: Pair, row: Row) -> None:
    pair.found.premises += row.again
    shown = _shown(pair, "S", row)
    low = min((each.low for each in shown), default=0)
    high = max((each.hr for each in shown), default=0)
    if shown and not low < row.seqno <= row.seqno2 <= high:
        text = f"{row.member} sends {row.run} to {row.peer}, its window holds {low + 1}..{high}"
        pair.found.violate(text, *shown, row)


def _shown(pair: Pair, kind: str, row: Row) -> list[Row]:
    """The entry that a frame speaks for, where the frame is as new as the entry's rows."""
    shown = [entry.row for entry in pair.entries.lately(kind)]
    return [each for each in shown if each.epoch == row.epoch and pair.is_prompt(row)]


def _stream(row: Row) -> str:
    return f"{row.peer_member} epoch {row.epoch}"
