"""G5, N3–N7, N10: how senders number, block, purge and repeat; what receivers keep and tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

from ringcast.model import Stream
from ringcast.rules.evidence import NOWHERE, Progress, Run
from ringcast.rules.findings import Findings, Steps, rule, stepwise
from ringcast.trace import rows as trace
from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row

NO_RUN_ORDER = "whether members had delivered when senders purged: no run order"


@stepwise("G5", "every window stays within its bounds", (trace.WIN, trace.UNICAST_WIN, trace.CONN))
def bounded_memory(facts: Facts, found: Findings) -> Steps:
    """Every window keeps its own bounds, in messages and in bytes, and a member has at most one
    connection each way with each peer; so their sum is bounded."""
    peers: defaultdict[tuple[MemberKey, str], set[MemberKey]] = defaultdict(set)
    most: dict[tuple[MemberKey, str], Row] = {}
    """The row with the most connections, for each member and direction."""
    while row := (yield):
        found.premises += 1
        if row.event == trace.CONN:
            table = row.key, row.kind
            peers[table].add(row.peer_key)
            most[table] = max(most.get(table, row), row, key=attrgetter("size"))
            continue
        if row.hr - row.low > row.cap:
            spans = f"spans {row.hr - row.low} messages, its capacity is {row.cap}"
            found.violate(f"a {row.kind} window of {row.member} {spans}", row)
        if 0 <= row.limit < row.size:
            has = f"has {row.size} bytes, its bound is {row.limit}"
            found.violate(f"a {row.kind} window of {row.member} {has}", row)
    for table, row in most.items():
        if row.size > len(peers[table]):
            text = f"{row.member} has {row.size} connections with {len(peers[table])} peers"
            found.violate(text, row)


@stepwise(
    "N3",
    "a send is blocked exactly when the window is full, and then takes no number",
    (trace.SEND, trace.SEND_BLOCK),
)
def flow_control(facts: Facts, found: Findings) -> Steps:
    """A send takes the next seqnos and fits the window; it is blocked exactly when it would not.

    A send that waits behind the rest of a large message (detail "rest") is blocked for that
    message's sake; only its seqnos are judged. Where sends of several inputs are one row, it does
    not tell of the window.
    """
    assigned: defaultdict[OriginKey, int] = defaultdict(int)
    while row := (yield):
        found.premises += 1
        last = assigned[row.own_origin]
        if row.hr < 0:
            row = row._replace(hr=last, low=row.seqno2 - row.cap)
        if row.hr != last:
            found.violate(f"{row.member} has assigned {last}, its window says {row.hr}", row)
        if row.event == trace.SEND_BLOCK:
            _judge_block(row, found)
            assigned[row.own_origin] = row.hr
            continue
        if row.seqno != row.hr + 1 or row.seqno2 < row.seqno:
            found.violate(f"{row.member} sends {row.run} after {row.hr}", row)
        if row.seqno2 - row.low > row.cap:
            found.violate(f"{row.member} sends {row.seqno2} beyond {row.low} + {row.cap}", row)
        assigned[row.own_origin] = row.seqno2


def _judge_block(row: Row, found: Findings) -> None:
    match row.detail:
        case "messages":
            is_full = row.hr - row.low >= row.cap
        case "bytes" if row.used < 0 or row.limit < 0:
            found.unknown.add(f"{row.member}: a send blocked for bytes without their count")
            return
        case "bytes":
            is_full = row.hr > row.low and row.used + row.size > row.limit
        case _:
            is_full = True
    if not is_full:
        found.violate(f"{row.member} blocks a send for {row.detail}; the window has room", row)


def judge_drops(rows: Iterable[Row], facts: Facts, found: Findings) -> None:
    """Messages that a receiver had no slot for: the first for each receiver and sender. A sender
    whose window is no larger than the receiver's is never that far ahead of it."""
    for row in rows:
        sender = row.peer_member
        if row.member not in facts.capacity or sender not in facts.capacity:
            found.unknown.add(f"{row.member} drops from {sender}: capacities unknown")
        elif facts.capacity[sender] <= facts.capacity[row.member]:
            found.violate(f"{row.member} has no slot for a message of {sender}", row)


@stepwise(
    "N4",
    "receivers buffer only what has a slot, and with equal windows everything has",
    (trace.WIN, trace.DROP_HIGH),
)
def window_honoured(facts: Facts, found: Findings) -> Steps:
    """A receiver holds nothing outside (low, low + capacity], and equal windows drop nothing.

    Where windows grow, the capacity is what they may grow to, and no window is larger; but a change
    makes room for all that a sender with a larger one has under way, behind what is retained.
    """
    drops: dict[PairKey, Row] = {}
    widest: dict[tuple[str, str, str], Row] = {}
    while row := (yield):
        if row.event == trace.DROP_HIGH:
            drops.setdefault((*row.pair[:4], 0), row)
            continue
        window = row.member, row.kind, row.peer_member
        widest[window] = max(widest.get(window, row), row, key=attrgetter("cap"))
        if row.kind == "receive":
            found.premises += 1
            if not row.low <= row.hd <= row.hr <= row.low + row.cap:
                has = f"{row.member} has low {row.low}, delivered {row.hd}, high {row.hr}"
                found.violate(f"{has} of {row.peer} in a window of {row.cap}", row)
    judge_drops(drops.values(), facts, found)
    capacity = facts.capacity
    for (member, kind, sender), row in widest.items() if facts.has_stability else ():
        if not {member, sender} <= capacity.keys() or row.stream != Stream.FIFO:
            continue
        slots = max(map(facts.window_max, (member, sender)))
        most = slots if kind == "receive" else capacity[member]
        if row.cap > most:
            text = f"a {kind} window of {member} admits {row.cap} messages, {most} is the most"
            found.violate(text, row)


@rule("N5", "a message is kept until every member of the view has delivered it")
def purged_by_all(run: Run, found: Findings) -> None:
    """A sender purges only what every member of its view has delivered, itself included. So
    does a receiver that retains messages.

    A member whose window opens at an offset has its messages up to there from elsewhere. One that
    comes from another part opens it at what the sender had sent when the view began.
    """
    delivered: defaultdict[PairKey, Progress] = defaultdict(Progress)
    for row in run.rows(trace.DELIVER, trace.OPEN):
        through = row.seqno2 if row.event == trace.DELIVER else row.seqno
        delivered[row.pair].rise(row.run_idx, through, row)
    prefixes = run.lives.without_tail()
    for keeper, purges in run.by_member(trace.PURGE, trace.RELEASE).items():
        views = run.lives.views.get(keeper, [])
        at = -1  # the view in force; views and purges of a member are both in its own order
        low: dict[OriginKey, Row] = {}
        for row in purges:
            while at + 1 < len(views) and views[at + 1].idx < row.idx:
                at += 1
            origin = row.own_origin if row.event == trace.PURGE else row.origin
            earlier = low.get(origin)
            if earlier is not None and row.seqno < earlier.seqno:
                text = f"{row.member} purges to {row.seqno} after {earlier.seqno}"
                found.violate(text, earlier, row)
            low[origin] = row
            if at < 0:
                found.unknown.add(f"{row.member} purges before its first view row")
                continue
            found.premises += 1
            if row.seqno > row.hd:
                found.violate(f"{row.member} purges to {row.seqno}, itself delivered {row.hd}", row)
            for key in views[at].members:
                member = trace.split_key(key)
                took = delivered.get((*member, *origin), NOWHERE)
                through = took.at(row.run_idx)
                if key not in views[at].part:
                    sender = run.history.lives.get(origin[:2])
                    before = sender and sender.last_sent(origin, views[at].view_key)
                    through = max(through, before or 0)
                if through < row.seqno and not (row.run_idx < 0 and member in prefixes):
                    text = f"{row.member} purges to {row.seqno} while {member[0]} has delivered"
                    found.violate(f"{text} {through}", views[at], took.row_at(row.run_idx), row)
                elif row.run_idx < 0 and member != keeper:
                    found.unknown.add(NO_RUN_ORDER)


@stepwise(
    "N6",
    "an acknowledgement says what was really delivered",
    (trace.OPEN, trace.DELIVER, trace.TX, trace.STABILITY_REPORT),
)
def ack_honesty(facts: Facts, found: Findings) -> Steps:
    """An ack claims no more delivered than the application was handed, and marks never go back. A
    report is an ack for every member of the view, and goes back on nothing that was said in the
    same one."""
    delivered: defaultdict[PairKey, int] = defaultdict(int)
    acks: dict[PairKey, Row] = {}
    while row := (yield):
        if row.event == trace.OPEN:
            delivered[row.pair] = row.seqno
            acks.pop(row.pair, None)
        elif row.event == trace.DELIVER:
            delivered[row.pair] = max(delivered[row.pair], row.seqno2)
        elif row.event != trace.TX or row.kind == "ack":
            _judge_ack(row, delivered[row.pair], acks.get(row.pair), found)
            acks[row.pair] = row


def _judge_ack(row: Row, delivered: int, before: Row | None, found: Findings) -> None:
    found.premises += 1
    if row.hd > delivered and row.stream != Stream.TOTAL:  # of that no row tells by seqnos
        found.violate(f"{row.member} acks {row.peer} through {row.hd}, delivered {delivered}", row)
    if row.received < row.hd:
        found.violate(f"{row.member} acks {row.hd} delivered but {row.received} received", row)
    if before is None or before.view != row.view:
        return
    if row.hd < before.hd or row.received < before.received:
        found.violate(f"{row.member} takes an ack of {row.peer} back", before, row)


@stepwise("N7", "senders wait for exactly the members of their view", (trace.VIEW, trace.ACKMAP))
def ackers_are_members(facts: Facts, found: Findings) -> Steps:
    """Acknowledgements are counted of the members of the view: of all of them and nobody else.

    Judged from `ackmap` rows, which show the table after a view or an ack.
    """
    views: dict[MemberKey, Row] = {}
    while row := (yield):
        if row.event == trace.VIEW:
            views[row.key] = row
            continue
        found.premises += 1
        view = views.get(row.key)
        if view is None:
            found.unknown.add(f"{row.member}: acks counted before its first view row")
        elif set(row.members) != set(view.members):
            text = f"{row.member} waits for {', '.join(row.members)} in view {view.view}"
            found.violate(text, view, row)


@stepwise("N10", "a repaired message is the original one", (trace.TX, trace.XMIT_MISMATCH))
def same_bytes_again(facts: Facts, found: Findings) -> Steps:
    """A retransmission carries the original's bytes. The observer compares them: it has both."""
    while row := (yield):
        if row.epoch:
            continue  # to one member: S4
        if row.event == trace.XMIT_MISMATCH:
            found.violate(f"{row.member} repeats {row.run} with other bytes", row)
        elif row.again and row.kind in ("data", "peer_repair"):
            found.premises += 1
