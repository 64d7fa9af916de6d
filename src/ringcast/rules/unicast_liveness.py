"""S-L1–S-L6, and G8 for unicast: what must come, and by when.

Waits are judged from the end of healing on, when clocks run true and frames leave at once; what
began before counts from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from ringcast.model import SYSTEM_EPOCH
from ringcast.rules.connections import Uses
from ringcast.rules.evidence import NOWHERE, Progress, Run, progress
from ringcast.rules.findings import Findings, Instants, Need, rule
from ringcast.rules.liveness import NO_COMMON_CLOCK, late, quiet_since
from ringcast.rules.replay import (
    ROUNDING_NS,
    Entries,
    Pair,
    Stream,
    acked_and_sent,
    arrived,
    delivered_stream,
    is_gone,
    of_pairs,
    sent_stream,
    side_stream,
)
from ringcast.trace import rows as trace
from ringcast.trace.rows import Facts, Row


def delivery_bound_ns(facts: Facts, missing: int, *, with_sync: bool) -> int:
    """The longest that `missing` messages may take to be repaired and delivered (S-L1).

    A receiver whose window is smaller than the sender's must take what one request brought before
    it can ask for more: each further request costs a tick and a round trip. Where the receiver
    must first ask where the stream stands: two ticks until something is retransmitted, then Y-L1.
    """
    requests = max(1, -(-missing // facts.nack_messages_max))
    more_ns = (requests - 1) * (facts.tau_ns + 2 * facts.delta_ns)
    if with_sync:
        return 2 * facts.tau_ns + facts.delta_ns + sync_bound_ns(facts) + more_ns
    return 4 * facts.tau_ns + 4 * facts.delta_ns + more_ns


def sync_bound_ns(facts: Facts) -> int:
    """The longest from the first message that finds no window until data flow again (Y-L1)."""
    return 3 * facts.tau_ns + 4 * facts.delta_ns


def ack_bound_ns(facts: Facts) -> int:
    """The longest until a sender knows that all was taken, if acks were lost (S-L2)."""
    return 2 * facts.tau_ns + 2 * facts.delta_ns + facts.ack_interval_ns


def quiet_bound_ns(facts: Facts) -> int:
    """The longest after the last send until nothing is left to be sent (G8): a full window."""
    capacity = max(facts.capacity.values(), default=1)
    return delivery_bound_ns(facts, capacity, with_sync=True) + ack_bound_ns(facts)


class Journal:
    """What was sent, delivered, acknowledged, given up and asked on each stream, and when."""

    def __init__(self, run: Run) -> None:
        clock = attrgetter("mono_ns")
        windows = [row for row in run.rows(*Entries.EVENTS) if row.kind == "S"]
        self.run = run
        self.sent = run.by(sent_stream, trace.UNICAST_SEND)
        self.delivered = progress(run.rows(trace.UNICAST_DELIVER), delivered_stream, clock)
        self.acked = progress(windows, sent_stream, clock, attrgetter("low"))
        self.lost = run.by(sent_stream, trace.UNDELIVERABLE)
        self.syncs = run.by(delivered_stream, trace.SYNC)
        self.conns = run.by(lambda row: (row.kind, side_stream(row)), trace.CONN)

    def owed(self) -> Iterator[tuple[Stream, list[Row]]]:
        """What was sent and not given up on streams of which both sides live to the end, and the
        receiver's application takes."""
        lives, facts = self.run.lives, self.run.facts
        for stream, sends in self.sent.items() if facts.gst_ns is not None else ():
            sender, receiver = stream[:2], stream[2:4]
            is_stopped = f"{receiver[0]}#{receiver[1]}" in facts.stopped_members
            if is_stopped or not lives.is_live(sender) or not lives.is_live(receiver):
                continue
            if receiver in lives.views:
                lost = self.lost.get(stream)
                yield stream, [row for row in sends if not lost or row.seqno2 < lost[0].seqno]

    def sync_requests(self, stream: Stream) -> list[tuple[Row, Row | None]]:
        """From the receiver's side: asked, and how it ended."""
        rows = self.syncs.get(stream, [])
        ends = {row.seqno: row for row in rows if row.detail != "asked"}
        return [(row, ends.get(row.seqno)) for row in rows if row.detail == "asked"]

    def has_sync(self, stream: Stream, since_ns: int, end: Row | None) -> bool:
        """Whether the receiver was asking in that time."""
        return any(
            asked.mono_ns <= self.run.until_ns(end) and (done is None or done.mono_ns >= since_ns)
            for asked, done in self.sync_requests(stream)
        )


@rule("S-L1", "a message to a live member is delivered and acknowledged in time", Need.CLOCK)
def delivered_to_one(run: Run, found: Findings) -> None:
    """Every message to a live member is delivered in time, and its sender soon knows.

    The time runs from the end of healing, from the send or from the receiver's first view,
    whichever is last. Where the receiver has to ask where the stream stands, that is added. What
    its sender has given up and reported is not owed.
    """
    journal, facts = Journal(run), run.facts

    def is_late(stream: Stream, row: Row, reached: Progress, more_ns: int, what: str) -> bool:
        """Judge one send; whether it came too late, or not at all."""
        joined = run.lives.views[stream[2:4]][0]
        since_ns = max(facts.gst_ns or 0, row.mono_ns, joined.mono_ns)
        arrival = reached.reached(row.seqno2)
        with_sync = journal.has_sync(stream, since_ns, arrival)
        missing = max(0, row.seqno2 - journal.delivered.get(stream, NOWHERE).at(since_ns))
        bound_ns = delivery_bound_ns(facts, missing, with_sync=with_sync) + more_ns
        name = f"{row.member} to {row.peer}: {row.run} of epoch {row.epoch}"
        return found.wait(
            *(run.waited_ns(since_ns, arrival), bound_ns, arrival),
            *(f"{name} not {what} for {{}} ns", row, arrival or reached.row),
        )

    for stream, owed in journal.owed():
        if journal.sent[stream][0].run_idx < 0:
            found.unknown.add(NO_COMMON_CLOCK)
            continue
        delivered = journal.delivered.get(stream, NOWHERE)
        if any(is_late(stream, row, delivered, 0, "delivered") for row in owed):
            continue
        if owed and stream[:2] != stream[2:4]:
            more_ns = facts.ack_interval_ns + 2 * facts.tau_ns
            is_late(stream, owed[-1], journal.acked.get(stream, NOWHERE), more_ns, "acknowledged")


@rule("S-L2", "lost acknowledgements are made good in time", Need.CLOCK)
def acked_in_time(run: Run, found: Findings) -> None:
    """Once everything was delivered, the sender knows it in time, however many acks were lost.

    The time runs from the end of healing, from the last delivery or from the last change of the
    connection, whichever is last.
    """
    journal, facts = Journal(run), run.facts
    for stream, owed in journal.owed():
        last = journal.sent[stream][-1]
        delivery = journal.delivered.get(stream, NOWHERE).reached(last.seqno2)
        if delivery is None or stream[:2] == stream[2:4] or last not in owed[-1:]:
            continue
        if delivery.run_idx < 0:
            found.unknown.add(NO_COMMON_CLOCK)
            continue
        acked = journal.acked.get(stream, NOWHERE)
        arrival = acked.reached(last.seqno2)
        moved = [row.mono_ns for kind in "SR" for row in journal.conns.get((kind, stream), ())]
        moved_ns = max((at for at in moved if at < run.until_ns(arrival)), default=0)
        since_ns = max(facts.gst_ns or 0, delivery.mono_ns, moved_ns)
        bound_ns = ack_bound_ns(facts)
        if journal.has_sync(stream, since_ns, arrival):
            bound_ns += sync_bound_ns(facts)
        text = f"{last.member} does not know for {{}} ns that {last.peer} has delivered"
        found.wait(
            *(run.waited_ns(since_ns, arrival), bound_ns, arrival, f"{text} {last.seqno2}"),
            *(last, delivery, arrival or acked.row),
        )


@of_pairs("S-L3", "a message is acknowledged within the ack interval")
def acked_soon(pair: Pair) -> Instants:
    """What was taken, or came again, is acknowledged within the ack interval.

    While the connection stands: when it ends or moves, nothing is owed on it.
    """
    waiting: list[Row] = []  # what an ack must reach
    while rows := (yield):
        for row in rows:
            entry = pair.entries.now("R")
            is_current = entry is not None and entry.conn == row.conn_key
            is_owed = row.event == trace.UNICAST_DELIVER
            if row.event == trace.RX and row.kind == "udata" and entry and is_current:
                is_owed = row.seqno2 <= entry.row.hd
            if is_owed and pair.is_prompt(row):
                waiting.append(row)
            elif row.event == trace.TX and row.kind == "uack":
                for since in waiting:
                    if since.seqno2 <= row.hd:
                        _judge_ack(pair, since, row)
                waiting = [since for since in waiting if since.seqno2 > row.hd]
            elif row.event == trace.CONN and row.kind == "R":
                has_moved = entry is not None and not is_current
                waiting = [] if has_moved or is_gone(row) else waiting
            pair.entries.update(row)
    if waiting and pair.is_live:
        _judge_ack(pair, waiting[0], None)


def _judge_ack(pair: Pair, since: Row, ack: Row | None) -> None:
    text = f"{since.member} does not acknowledge {since.peer}:{since.seqno2} for {{}} ns"
    pair.lasted(since, ack, pair.facts.ack_interval_ns, text, ROUNDING_NS)


@of_pairs("S-L4", "an idle connection is gone in time")
def idle_is_gone(pair: Pair) -> Instants:
    """An idle connection is gone, on either side, after expiry and closing time and two ticks.

    A sender's with unacknowledged messages, and a receiver's with messages that its application
    does not take, stay longer.
    """
    uses = Uses()
    delivered: dict[str, Row] = {}
    while rows := (yield):
        for row in rows:
            if row.event == trace.UNICAST_DELIVER:
                delivered["R"] = row
            elif is_gone(row):
                _judge_end(pair, row.kind, row, uses, delivered)
                delivered.pop(row.kind, None)
            uses.note(row, pair.entries)
    for kind, _ in pair.entries if pair.is_live else ():
        _judge_end(pair, kind, None, uses, delivered)


def _judge_end(
    pair: Pair, kind: str, gone: Row | None, uses: Uses, delivered: dict[str, Row]
) -> None:
    facts, used, entry = pair.facts, uses.get(kind), pair.entries.now(kind)
    if facts.gst_ns is None or not facts.expiry_ns or used is None or entry is None:
        return
    row, now_ns = entry.row, gone.mono_ns if gone else facts.end_ns
    if now_ns <= facts.gst_ns or (row.low < row.hr if kind == "S" else row.hd < row.received):
        return
    ends = used.perhaps, delivered.get(kind, used.perhaps)
    bound_ns = facts.expiry_ns + facts.close_ns + 2 * facts.tau_ns
    text = f"{row.member} still has the idle connection with {row.peer} after {{}} ns"
    pair.lasted(max(ends, key=attrgetter("mono_ns")), gone, bound_ns, text)


@of_pairs("S-L5", "a member that never answers is given up in time")
def given_up_in_time(pair: Pair) -> Instants:
    """A member that answers nothing is given up after the retransmission time, within a tick, and
    not before, unless it is by who leaves, whose layers end what they say to each other at once.
    The time runs since something is unacknowledged and nothing was heard."""
    since: Row | None = None
    while rows := (yield):
        is_told = any(row.event in (trace.VIEW, trace.STOP) for row in rows)
        said = arrived(rows, "uack", "unack", "sync", "sync_ack")
        if since is not None and said:
            since = said[-1]
        for row in rows:
            if row.event not in Entries.EVENTS or row.kind != "S":
                continue
            if row.low < row.hr and not is_gone(row):
                since = since or row
                continue
            is_told |= row.epoch >= SYSTEM_EPOCH
            if is_gone(row) and since is not None and not is_told and pair.is_prompt(row):
                _judge_silence(pair, since, row)
            since = None
    if since is not None and pair.is_owed():
        _judge_silence(pair, since, None)


def _judge_silence(pair: Pair, since: Row, end: Row | None) -> None:
    patience_ns = pair.facts.max_retransmit_ns
    text = f"{since.member} has heard nothing from {since.peer} for {{}} ns"
    if pair.lasted(since, end, patience_ns + pair.facts.tau_ns, text) or end is None:
        return
    waited_ns = end.mono_ns - since.mono_ns
    if pair.is_prompt(since) and waited_ns < patience_ns - ROUNDING_NS:
        text = f"{since.member} gives {since.peer} up after {waited_ns} ns"
        pair.found.violate(f"{text}, it may be silent for {patience_ns}", since, end)


@of_pairs("S-L6", "the last message is repeated in time while it is not acknowledged")
def highest_soon_again(pair: Pair) -> Instants:
    """While something is unacknowledged, the highest message is retransmitted two ticks after the
    last progress at the latest: what counts is the first time after healing."""
    since: Row | None = None
    while rows := (yield):
        for row in rows:
            if row.event in Entries.EVENTS and row.kind == "S":
                entry = pair.entries.now("S")
                pair.entries.update(row)
                has_stood = entry is not None and acked_and_sent(entry.row) == acked_and_sent(row)
                if not has_stood or is_gone(row):
                    if since is not None:
                        _judge_repeat(pair, since, None, row.mono_ns)
                    is_waiting = row.low < row.hr and not is_gone(row)
                    since = row if is_waiting and pair.facts.gst_ns is not None else None
            is_again = (
                row.event == trace.TX and row.kind == "udata" and row.again and pair.is_prompt(row)
            )
            if since is not None and is_again and row.seqno2 >= since.hr:
                _judge_repeat(pair, since, row)
                since = None
    if since is not None and pair.is_owed():
        _judge_repeat(pair, since, None)


def _judge_repeat(pair: Pair, since: Row, end: Row | None, now_ns: int | None = None) -> None:
    """Something has ended the wait: the repeat, progress, or the end of the run."""
    text = f"{since.member} does not send {since.hr} to {since.peer} again for {{}} ns"
    pair.lasted(since, end, 2 * pair.facts.tau_ns, text, ROUNDING_NS, now_ns)


QUIET_KINDS = frozenset({"udata", "unack", "sync", "sync_ok"})


@rule("G8", "idle connections are silent", Need.CALM)
def quiet_pairs(run: Run, found: Findings) -> None:
    """Once everything is delivered and known to be, nothing is sent but acks and goodbyes.

    Judged for frames to members that live and take. What goes to others ends when they are given
    up (S-L5).
    """
    quiet_ns = quiet_since(run, run.rows(trace.UNICAST_SEND), quiet_bound_ns(run.facts), found)
    if quiet_ns is None:
        return
    said = [row for row in run.rows(trace.TX) if row.kind in QUIET_KINDS]
    for noise in late(said, lambda row: (row.key, row.peer_key), quiet_ns):
        last, is_reading = noise[-1], noise[-1].peer_member not in run.facts.stopped_members
        if run.lives.is_live(last.peer_key) and is_reading:
            text = f"{last.member} still sends {last.kind} to {last.peer}"
            found.violate(text, run.phases.end, *noise)
