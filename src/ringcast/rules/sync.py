"""Y1–Y5, Y-L1–Y-L3: what a sync between a receiver and a sender may do, and that it ends soon."""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import attrgetter

from ringcast.model import FIRST_CONN_ID
from ringcast.rules.bounds import SYNC_TICKS_MAX
from ringcast.rules.evidence import NOWHERE, Ranges, Run, progress
from ringcast.rules.findings import Findings, Instants, Need, rule
from ringcast.rules.liveness import NO_COMMON_CLOCK
from ringcast.rules.replay import (
    Entries,
    Pair,
    Stream,
    arrived,
    delivered_stream,
    is_gone,
    left,
    of_pairs,
    sent_stream,
    side_stream,
)
from ringcast.rules.unicast_liveness import Journal, sync_bound_ns
from ringcast.trace import rows as trace
from ringcast.trace.rows import Row

NO_RUN_ORDER = "whether it was so at each moment: no run order"


@rule("Y1", "nothing is purged before it was delivered, whatever acks are late")
def delivered_before_purged(run: Run, found: Findings) -> None:
    """What a sender purges, its receiver's application has delivered by then."""
    prefixes = run.lives.without_tail()
    windows = [row for row in run.rows(*Entries.EVENTS) if row.kind == "S" and row.low > 0]
    taken_of = progress(run.rows(trace.UNICAST_DELIVER), delivered_stream)
    for stream, purged in progress(windows, sent_stream, value=attrgetter("low")).items():
        if f"{stream[2]}#{stream[3]}" in run.unrecorded:
            continue
        delivered = taken_of.get(stream, NOWHERE)
        for mark, through, row in purged:
            found.premises += 1
            if mark < 0:
                found.unknown.add(NO_RUN_ORDER)
            taken = delivered.at(mark)
            if taken < through and not (mark < 0 and stream[2:4] in prefixes):
                text = f"{row.member} purges {through} to {row.peer}, which has delivered {taken}"
                found.violate(text, delivered.row_at(mark), row)
                break


@rule(
    "Y2", "on one connection the sender has kept everything that the receiver waits for", Need.ORDER
)
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
                purged = f"{sender.member} has purged {sender.low} to {receiver.member}"
                both = sorted((sender, receiver), key=attrgetter("run_idx"))
                found.violate(f"{purged}, which waits for {receiver.hd + 1}", *both)
                break


@rule("Y3", "a sync repeats no delivery")
def once_across_syncs(run: Run, found: Findings) -> None:
    """After a window was dropped and found its place again, nothing is delivered a second time.

    Judged are deliveries on any but the first connection of a stream.
    """
    delivered: defaultdict[Stream, Ranges] = defaultdict(Ranges)
    for row in run.rows(trace.UNICAST_DELIVER):
        earlier = delivered[delivered_stream(row)].add(row.seqno, row.seqno2, row)
        if row.conn == FIRST_CONN_ID or row.peer_key == row.key:
            continue
        found.premises += 1
        if earlier:
            text = f"{row.member} delivers {row.peer}:{row.run} again on connection"
            found.violate(f"{text} {row.epoch}.{row.conn}", *earlier, row)


@of_pairs("Y4", "one lost window makes at most one new connection")
def one_connection_per_drop(pair: Pair) -> Instants:
    """A sender moves to a new connection once per sync request, and a receiver that was answered
    asks a new one only if it lost its window, gave the last one up or was told to."""
    nonce = 0
    answered: dict[int, Row] = {}  # by epoch
    has_cause = False
    while rows := (yield):
        syncs = arrived(rows, "sync")
        for row in rows:
            is_answer = row.event == trace.SYNC and row.detail == "answered"
            if is_answer:
                answered[row.epoch] = row
            elif row.event == trace.SYNC and row.detail != "given up" and row.epoch in answered:
                pair.found.premises += 1
                if not has_cause:
                    text = f"{row.member} asks {row.peer} again where its stream {row.epoch} stands"
                    why = "though it was answered and lost nothing"
                    pair.found.violate(f"{text}, {why}", answered[row.epoch], row)
            elif row.event == trace.CONN and row.kind == "S":
                nonce = _judge_conn(pair, row, syncs, nonce)
            is_lost = row.event in (trace.SYNC_CALL, trace.UNICAST_DROP) or (
                is_gone(row) and row.kind == "R"
            )
            has_cause |= is_lost or (row.event == trace.SYNC and row.detail == "given up")
            has_cause &= not is_answer
            pair.entries.update(row)


def _judge_conn(pair: Pair, row: Row, syncs: list[Row], nonce: int) -> int:
    """Return the last nonce that was honoured."""
    entry = pair.entries.now("S")
    if entry is None or entry.row.epoch != row.epoch or entry.row.conn >= row.conn:
        return nonce  # that connections do not go back is S5
    pair.found.premises += 1
    fresh = sorted({sync.seqno for sync in syncs if sync.seqno > nonce})
    steps = row.conn - entry.row.conn
    if steps <= len(fresh):
        # Which of them were honoured is not known; a sender may put others off.
        return fresh[steps - 1]
    text = f"{row.member} moves from connection {entry.row.conn} to {row.conn} to {row.peer}"
    pair.found.violate(f"{text} for {len(fresh)} new sync_requests", entry.row, *syncs, row)
    return nonce


@of_pairs("Y5", "a sync in one direction leaves the other alone")
def one_direction(pair: Pair) -> Instants:
    """A sync of what one member sends leaves what it receives from the same peer as it is.

    Judged in instants in which nothing else from that peer could have changed the other direction.
    """
    while rows := (yield):
        pair.entries.update_all(rows)
        if any(row.event == trace.UNICAST_DROP for row in rows):
            continue
        if not arrived(rows, "udata", "sync_ok", "close"):
            _judge_other(pair, "R", arrived(rows, "sync"))
        if not arrived(rows, "uack", "sync"):
            _judge_other(pair, "S", arrived(rows, "sync_ok"))


def _judge_other(pair: Pair, kind: str, causes: list[Row]) -> None:
    before, after = pair.entries.before(kind), pair.entries.now(kind)
    if not causes or before is None or after is None:
        return
    pair.found.premises += 1
    if before.place != after.place:
        changed = f"what it has {'of' if kind == 'R' else 'for'} {after.row.peer}"
        text = f"{after.row.member} changes {changed} by a {causes[0].kind} of the other direction"
        pair.found.violate(text, before.row, *causes, after.row)


# How soon, and at what cost. What began before the end of healing counts from there.


@rule("Y-L1", "a receiver without a window gets one in time", Need.CLOCK)
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


@of_pairs("Y-L2", "a sync costs one frame a tick each way, and nothing when it is done")
def sync_is_cheap(pair: Pair) -> Instants:
    """A sync request is repeated once a tick at most and only while it is open; an answer goes once
    between two ticks, and not after the receiver has shown that it has it."""
    is_open: Row | None = None
    times_asked: Counter[int] = Counter()  # by nonce
    is_unconfirmed = False  # the peer may still lack an answer
    credit = 1  # how many answers may go before the next tick
    while rows := (yield):
        asked = is_open
        for row in rows:
            if row.event == trace.SYNC:
                is_open = row if row.detail == "asked" else None
                asked = is_open or asked
            elif row.event == trace.TICK:
                credit += 1
        pair.entries.update_all(rows)
        is_asked = bool(arrived(rows, "sync"))
        may_answer = is_unconfirmed or is_asked
        conns = [entry.conn for entry in pair.entries.lately("S")]
        if any(row.conn_key in conns for row in arrived(rows, "uack", "unack", "sync_ack")):
            is_unconfirmed = False
        is_unconfirmed |= is_asked
        same = left(rows, "sync")
        for row in filter(pair.is_prompt, left(rows, "sync", "sync_ok")):
            pair.found.premises += 1
            if row.kind == "sync":
                times_asked[row.seqno] += 1
                _judge_repeat(pair, row, same, asked, times_asked[row.seqno])
            else:
                credit -= 1
                _judge_answer(pair, row, is_soon=credit < 0, may_answer=may_answer)
        credit = max(0, min(credit, 1))


def _judge_repeat(pair: Pair, row: Row, same: list[Row], asked: Row | None, times: int) -> None:
    asks = f"{row.member} asks {row.peer}"
    if asked is None or asked.seqno != row.seqno:
        pair.found.violate(f"{asks} with nonce {row.seqno}, which is not open", asked, row)
    if times > SYNC_TICKS_MAX or (len(same) > 1 and row is same[-1]):
        text = f"{asks} {times} times with nonce {row.seqno}, {len(same)} times at once"
        pair.found.violate(text, asked, row)


def _judge_answer(pair: Pair, row: Row, *, is_soon: bool, may_answer: bool) -> None:
    answers = f"{row.member} answers {row.peer}"
    if is_soon:
        pair.found.violate(f"{answers} more than once between two ticks", row)
    if not may_answer:
        text = f"{answers}, which has asked nothing since it was heard on connection"
        pair.found.violate(f"{text} {row.epoch}.{row.conn}", row)


@of_pairs("Y-L3", "a sync ends, and nobody ignores acknowledgements because of it")
def sync_ends(pair: Pair) -> Instants:
    """A sync request is answered or given up after a bounded number of ticks; and a sender goes by
    the acks of its current connection at once, sync or no sync."""
    bound_ns = (SYNC_TICKS_MAX + 1) * pair.facts.tau_ns
    since: Row | None = None
    while rows := (yield):
        pair.entries.update_all(rows)
        for row in rows:
            if row.event == trace.SYNC and row.detail == "asked":
                since = row
            elif row.event == trace.SYNC and since is not None:
                if pair.is_prompt(row):
                    pair.lasted(since, row, bound_ns, _asks(since))
                since = None
        # A frame for a predecessor at this address is refused; its row does not tell.
        is_refused = any(row.event == trace.REJECT for row in rows)
        for ack in arrived(rows, "uack") if not is_refused else ():
            _judge_ack(pair, ack)
    if since is not None and pair.is_owed():
        pair.lasted(since, None, bound_ns, _asks(since))


def _asks(row: Row) -> str:
    return f"{row.member} asks {row.peer} for {{}} ns"


def _judge_ack(pair: Pair, ack: Row) -> None:
    before, after = pair.entries.before("S"), pair.entries.now("S")
    if before is None or after is None or not before.conn == after.conn == ack.conn_key:
        return
    pair.found.premises += ack.conn > 1
    if before.row.low < ack.hd <= before.row.hr and after.row.low < ack.hd:
        text = f"{ack.member} ignores the ack of {ack.hd} from {ack.peer} on its connection"
        pair.found.violate(text, before.row, ack, after.row)
