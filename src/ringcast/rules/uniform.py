"""U3, U5, U7, U-L1: when uniform messages are committed, and how soon they come.

That all who go on deliver the same of them is VS5 and VS6; that they come in order is N1.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules.evidence import NOWHERE, Progress
from ringcast.rules.findings import rule
from ringcast.rules.liveness import Journal, judge_deliveries, judge_drained
from ringcast.trace.rows import DELIVER, FREEZE, OPEN, SEND, STOP, TX, WIN, split_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.trace.rows import OriginKey, PairKey, Row

NO_RUN_ORDER = "who received what when a commit left: no run order"


@rule("U3", "only what every member of the view holds is committed, or delivered before the next")
def received_by_all(run: Run, found: Findings) -> None:
    """A sender commits what every member of its view has received, in that view. While a member has
    not installed the next view it delivers nothing else; but who leaves with it gets what it has
    sent itself."""
    received: defaultdict[PairKey, Progress] = defaultdict(Progress)
    commits: dict[tuple[str, OriginKey, int, str], Row] = {}
    """The first time that this was said, or done: commits are repeated."""
    for row in run.rows(TX, DELIVER, SEND, WIN, OPEN):
        if row.stream != Stream.UNIFORM:
            continue
        if row.event == DELIVER:
            commits.setdefault((row.member, row.origin, row.seqno2, row.event), row)
        elif row.event == TX:
            if row.kind == "commit" and row.seqno:  # 0 is nothing
                commits.setdefault((row.member, row.own_origin, row.seqno, row.event), row)
        elif row.event == SEND:
            received[row.node, row.inc, *row.own_origin].rise(row.run_idx, row.seqno2, row)
        else:
            through = row.seqno if row.event == OPEN else row.received
            received[row.pair].rise(row.run_idx, through, row)
    frozen = {row.key: row for row in run.rows(FREEZE)}
    left = {row.key for row in run.rows(STOP) if row.detail == "left"}
    for (_, origin, through, _), row in commits.items():
        if row.run_idx < 0:
            found.unknown.add(NO_RUN_ORDER)
            continue
        member = row.key
        views = [view for view in run.lives.views.get(member, []) if view.idx < row.idx]
        is_there = bool(views) and views[-1].view == row.view
        is_own = row.event == DELIVER and row.origin == row.own_origin and member in left
        if row.event == TX and not is_there:
            found.violate(f"{row.member} commits in view {row.view}, where it is not", row)
        # Who leaves with a view delivers its own by the cut of that.
        elif is_there and not (is_own and member in frozen and frozen[member].idx < row.idx):
            _judge_commit(received, row, origin, through, views[-1], found)


def _judge_commit(
    held: dict[PairKey, Progress],
    row: Row,
    origin: OriginKey,
    through: int,
    view: Row,
    found: Findings,
) -> None:
    sent = held.get((row.node, row.inc, *origin), NOWHERE)
    if row.event == TX and through <= sent.at(view.run_idx):
        return  # it was sent before the view began: the flush brought it to all who need it
    for member in map(split_key, view.members):
        found.premises += 1
        received = held.get((*member, *origin), NOWHERE)
        if received.at(row.run_idx) < through:
            does = "delivers" if row.event == DELIVER else "commits"
            found.violate(
                f"{row.member} {does} {origin[0]}:{through} in view {view.view}, "
                f"{member[0]} holds {received.at(row.run_idx)}",
                *(view, received.row_at(row.run_idx), row),
            )


@rule("U5", "a uniform message of a live sender is delivered everywhere in time")
def valid(run: Run, found: Findings) -> None:
    """A live sender's message is delivered by all live members of its view.

    All have to hold it first. A member whose application does not read holds one window and no
    more: where the sender's is larger, nothing is owed of what that member has no slot for.
    """
    journal, facts = Journal(run, Stream.UNIFORM), run.facts

    def owed_through(row: Row, taking: Collection[str], since_ns: int) -> int:
        through = row.seqno2
        for member in facts.stopped_members.intersection(taking) - {row.member}:
            low = journal.has((*split_key(member), *row.own_origin), since_ns)
            through = min(through, low + facts.capacity.get(member, 0))
        return through

    judge_deliveries(journal, found, owed_through)


@rule("U7", "in the end uniform windows are empty")
def nothing_left(run: Run, found: Findings) -> None:
    """In the end no live sender keeps any uniform message."""
    judge_drained(Journal(run, Stream.UNIFORM), found)


@rule("U-L1", "without faults a uniform message takes three delays")
def three_delays(run: Run, found: Findings) -> None:
    """Where nothing is amiss a message is delivered everywhere within three delays: it travels, is
    acknowledged, and is committed.

    Nothing is amiss from when all that was sent before the healing is delivered, and all are in
    their last view. Not judged where the sender's window is larger than a receiver's.
    """
    journal, facts = Journal(run, Stream.UNIFORM), run.facts
    bound_ns = 3 * facts.delta_ns
    for origin, sends, views in journal.live_origins(found):
        members, sender = views[-1].members, sends[0].member
        if not all(
            facts.capacity.get(sender, 1) <= facts.capacity.get(member, 0) for member in members
        ) or not journal.are_due(views[-1], sender):
            continue
        pairs = [(*split_key(member), *origin) for member in members]
        since_ns = _calm_since(journal, pairs, sends)
        for row in sends:
            if since_ns is None or not since_ns < row.mono_ns <= facts.end_ns - bound_ns:
                continue
            for pair in pairs:
                arrival = journal.arrival(pair, row.seqno2)
                waited_ns = run.until_ns(arrival) - row.mono_ns
                found.premises += 1
                found.waited(waited_ns, bound_ns)
                if waited_ns > bound_ns:
                    found.violate(
                        f"{row.member}:{row.run} took {waited_ns} ns to {pair[0]}, "
                        f"three delays are {bound_ns}",
                        *(row, arrival),
                    )


def _calm_since(journal: Journal, pairs: list[PairKey], sends: list[Row]) -> int | None:
    """None: something is amiss to the end."""
    since_ns = journal.run.facts.gst_ns or 0
    before = max((row.seqno2 for row in sends if row.mono_ns <= since_ns), default=0)
    for pair in pairs:
        begun = [journal.run.lives.last_view(pair[:2]), journal.opened.get(pair)]
        if journal.offset(pair) < before:
            begun.append(journal.arrival(pair, before))
            if begun[-1] is None:
                return None
        since_ns = max(since_ns, *(row.mono_ns for row in begun if row), 0)
    return since_ns
