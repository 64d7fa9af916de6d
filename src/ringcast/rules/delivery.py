"""G1–G3, N1, N8, N11: what members deliver, of whom, and in which view. (N2 is G2.)

G6 and G7 are judged by the harness, and G8 is a wait.
"""

from __future__ import annotations

from collections import defaultdict, deque
from operator import attrgetter

from ringcast.rules.evidence import NOWHERE, Ranges, Run, progress
from ringcast.rules.findings import Findings, Need, Steps, rule, stepwise
from ringcast.trace import rows as trace
from ringcast.trace.rows import Facts, MemberKey, PairKey, Row


@rule("G1", "only what was sent is delivered, unchanged")
def integrity(run: Run, found: Findings) -> None:
    """A delivered message was sent before, by the one it names and with these bytes.

    Bytes are compared by the hashes of blocks that end at the same message. A block that one side
    did not finish, or that began before a joiner's window did, has no such row there.
    """
    found.premises = len(run.rows(trace.DELIVER))
    prefixes = run.lives.without_tail()
    sent_by = progress(run.rows(trace.SEND), attrgetter("own_origin"))
    for pair, delivered in progress(run.rows(trace.DELIVER), attrgetter("pair")).items():
        sent = sent_by.get(pair[2:], NOWHERE)
        for mark, through, row in delivered:
            if sent.at(mark) >= through:
                continue
            if mark < 0 and pair[2:4] in prefixes:
                found.unknown.add(f"what {row.peer_member} sent: its tail is lost")
            else:
                text = f"{delivers(row)}; by then {row.peer} has sent up to {sent.at(mark)}"
                found.violate(text, sent.row_at(mark), row)
            break
    blocks = run.rows(trace.BLOCK)
    own = {(row.own_origin, row.block, row.seqno2): row for row in blocks if row.kind == "sent"}
    for row in blocks:
        original = own.get((row.origin, row.block, row.seqno2))
        if row.kind == "sent" or original is None:
            continue
        found.premises += 1
        if original.block_hash != row.block_hash:
            text = f"block {row.block} of {row.peer} has other bytes at {row.member}"
            found.violate(text, original, row)


@rule("G2", "no message is delivered twice")
def at_most_once(run: Run, found: Findings) -> None:
    """One member never delivers a message twice, also across views and re-opened windows (N2).

    Each epoch of a unicast stream numbers its messages anew.
    """
    delivered: defaultdict[tuple[PairKey, int], Ranges] = defaultdict(Ranges)
    for row in run.rows(trace.DELIVER, trace.UNICAST_DELIVER):
        found.premises += 1
        earlier = delivered[row.pair, row.epoch].add(row.seqno, row.seqno2, row)
        if earlier:
            found.violate(f"{delivers(row)}, some of it again", *earlier, row)


@rule("G3", "nothing comes from a member after its crash", Need.DEATHS)
def silent_dead(run: Run, found: Findings) -> None:
    """A crashed incarnation does nothing more."""
    crashes = run.by_member(trace.CRASH)
    found.premises = len(crashes)
    done = (
        *(trace.START, trace.SEND, trace.DELIVER, trace.TX, trace.VIEW, trace.OPEN, trace.PURGE),
        *(trace.UNICAST_SEND, trace.UNICAST_DELIVER, trace.CONN),
    )
    lasts = {row.key: row for row in run.rows(*done)}
    for member, (crash, *_) in crashes.items():
        last = lasts.get(member)
        if last is not None and last.idx > crash.idx:
            found.violate(f"{last.member} crashed, then: {last.event}", crash, last)


@rule("N1", "each sender's messages are delivered in order, without a gap")
def in_order(run: Run, found: Findings) -> None:
    """From its window's offset on, a receiver delivers each next seqno. Fragments count as the
    seqnos they cover. Only what is new is judged: repeats are for G2. A window that opens anew does
    so at or above what was delivered before; what was sent in earlier views may be read behind it.
    """
    openings = run.by(attrgetter("pair"), trace.OPEN)
    delivered: defaultdict[PairKey, list[Row]] = defaultdict(list)
    for row in run.rows(trace.DELIVER):
        found.premises += 1
        if row.seqno2 < row.seqno:
            found.violate(f"{delivers(row)}, which is backwards", row)
        else:
            delivered[row.pair].append(row)
    for pair, rows in delivered.items():
        opened = deque(openings.get(pair, ()))
        low = due = 1  # One's own stream begins at 1, and has no window.
        for row in _runs(rows, openings.get(pair, [])):
            while opened and opened[0].idx < row.idx and opened[0].view <= row.view:
                low = due = _open(opened.popleft(), due, found)
            if row.seqno > due:
                found.violate(f"{delivers(row)}, due was {due}", row)
            elif row.seqno < low:
                found.violate(f"{delivers(row)}, its window begins at {low}", row)
            low = min(low, row.seqno)
            due = max(due, row.seqno2 + 1)
        for opening in opened:
            due = _open(opening, due, found)


def _runs(rows: list[Row], opened: list[Row]) -> list[Row]:
    """Of deliveries that continue each other in one view only the first, through the last."""
    runs: list[Row] = []
    for row in rows:
        if runs and runs[-1].seqno2 + 1 == row.seqno and runs[-1].view_key == row.view_key:
            before = runs[-1]
            if not any(before.idx < opening.idx < row.idx for opening in opened):
                runs[-1] = before._replace(seqno2=row.seqno2)
                continue
        runs.append(row)
    return runs


def _open(row: Row, due: int, found: Findings) -> int:
    """A window opens; or another one does, for a sender that was away meanwhile."""
    if row.seqno + 1 < due:
        text = f"{row.member} opens {row.peer} at {row.seqno} and has delivered {due - 1}"
        found.violate(text, row)
    return row.seqno + 1


@stepwise(
    "N8",
    "nothing of a view comes after the next one, and only its members are asked for repair",
    (trace.VIEW, trace.SHOWN, trace.DELIVER, trace.HANDED, trace.TX),
)
def in_its_view(facts: Facts, found: Findings) -> Steps:
    """Nothing of an earlier view is delivered after the application was told of the next, of
    nobody, and nothing before it was told of one; and repair is asked of members of the view only.

    What is put aside for later may be ahead of the application, but never behind it.
    """
    views: dict[MemberKey, Row] = {}
    """The view that a member is in,"""
    told: dict[MemberKey, Row] = {}
    """and the last that its application was told of."""
    while row := (yield):
        if row.event == trace.VIEW:
            views[row.key] = row
        elif row.event == trace.SHOWN:
            found.premises += 1
            told[row.key] = row
        elif row.event != trace.TX:
            _judge_delivery(row, told.get(row.key), found)
        elif row.kind == "nack":
            _judge_repair(row, views.get(row.key), found)


def _judge_delivery(row: Row, shown: Row | None, found: Findings) -> None:
    is_aside = row.detail == trace.ASIDE
    if shown is None:
        if not is_aside:
            found.violate(f"{delivers(row)} before it was told of any view", row)
        return
    is_other = not is_aside and row.view_key != shown.view_key
    if row.view < shown.view or is_other:
        text = f"{delivers(row)} of view {row.view} after it was told of view {shown.view}"
        found.violate(text, shown, row)


def _judge_repair(row: Row, view: Row | None, found: Findings) -> None:
    if view is None:
        found.unknown.add(f"{row.member}: rows before its first view")
    elif row.peer_member not in view.members:
        text = f"{row.member} asks for repair from {row.peer_member}, not in view {view.view}"
        found.violate(text, view, row)


@rule("N11", "of a crashed sender everyone delivers a prefix")
def prefix_of_the_dead(run: Run, found: Findings) -> None:
    """What survivors delivered of a crashed sender is a prefix of what it sent, of any length."""
    crashed = {member: rows[0] for member, rows in run.by_member(trace.CRASH).items()}
    sent = progress(run.rows(trace.SEND), attrgetter("own_origin"))
    openings = run.by(attrgetter("pair"), trace.OPEN)
    for pair, rows in run.by(attrgetter("pair"), trace.DELIVER).items():
        crash = crashed.get(pair[2:4])
        if crash is None or pair[:2] in crashed:
            continue
        found.premises += 1
        delivered = Ranges()
        for row in rows:
            delivered.add(row.seqno, row.seqno2, row)
        # It begins where a window was opened just before.
        starts = {row.seqno + 1 for row in openings.get(pair, ())} or {1}
        for first, _, row in delivered:
            if first not in starts:
                text = f"{row.member} delivers {row.peer} from {first}: not a prefix"
                found.violate(text, crash, row)
        last, row, known = delivered.lasts[-1], delivered.rows[-1], sent.get(pair[2:], NOWHERE)
        if last <= known.value:
            continue
        if row.run_idx < 0:
            found.unknown.add(f"what {crash.member} sent: its tail is lost")
        else:
            text = f"{row.member} delivers {row.peer} through {last}, sent were {known.value}"
            found.violate(text, known.row, crash, row)


def delivers(row: Row) -> str:
    return f"{row.member} delivers {row.peer}:{row.run}"
