"""VS1–VS7, VS9: virtual synchrony. What is sent in a view is delivered in it, by all who go on.
U3: when uniform messages are committed; that all who go on deliver the same of them is VS5 and VS6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from operator import attrgetter

from ringcast.model import Stream
from ringcast.rules.delivery import delivers
from ringcast.rules.evidence import NOWHERE, Progress, Run, by
from ringcast.rules.findings import Findings, Need, rule
from ringcast.rules.history import History, Life, Stay, Step
from ringcast.trace import rows as trace
from ringcast.trace.rows import OriginKey, PairKey, Row, split_key

NO_RUN_ORDER = "who received what when a commit left: no run order"


@rule("VS1", "views come in order and are the same everywhere, with one cut")
def view_order(run: Run, found: Findings) -> None:
    """Counters grow at each member, which is itself in its views, and what it promises never goes
    back. One id is one list of members; those who come together are the same to all of them, and so
    is where they end the view before.
    """
    found.premises = len(run.rows(trace.VIEW))
    for event, does, least in ((trace.VIEW, "installs", 1), (trace.FREEZE, "promises", 0)):
        for rows in run.by_member(event).values():
            for earlier, row in pairwise(rows):
                if row.view < earlier.view + least:
                    text = f"{row.member} {does} view {row.view} after view {earlier.view}"
                    found.violate(text, earlier, row)
    for row in run.rows(trace.VIEW):
        if row.member not in row.members:
            found.violate(f"{row.member} installs view {row.view} without itself", row)
    for (counter, creator), told in run.by(attrgetter("view_key"), trace.VIEW).items():
        first = {row.key: row for row in reversed(told)}
        rows = sorted(first.values(), key=attrgetter("node", "inc", "idx"))
        name = f"view {counter} of {creator}"
        lists = {row.members: row for row in reversed(rows)}
        if len(lists) > 1:
            found.violate(f"{name} has {len(lists)} member lists", *reversed(lists.values()))
        parts = list({row.part: row for row in reversed(rows)}.values())
        for one, other in combinations(reversed(parts), 2):
            if not set(one.part).isdisjoint(other.part):
                found.violate(f"in {name} parts have members in common", one, other)
        for part in {row.part for row in rows}:
            cuts = {row.cut: row for row in reversed(rows) if row.part == part}
            if len(cuts) > 1:
                who = ", ".join(part)
                found.violate(f"{who} come to {name} by {len(cuts)} cuts", *cuts.values())


@rule("VS2", "what is delivered in a view was sent in it")
def sent_in_its_view(run: Run, found: Findings) -> None:
    """What is delivered in a view was sent in it, by a member of it. A large message counts
    fragment by fragment: it is delivered in the view of the last."""
    for life in run.history.lives.values():
        for row in life.unplaced:
            found.premises += 1
            found.violate(f"{delivers(row)} in view {row.view}, where it was not", row)
    for stay, origin, span in run.history.delivered():
        found.premises += 1
        if span.row.peer_member not in stay.view.members:
            text = f"{delivers(span.row)} in view {stay.view.view}, which {span.row.peer_member}"
            found.violate(f"{text} is not in", stay.view, span.row)
            continue
        sender, sent = run.history.sent(stay, origin)
        if sent is not None and sent.first <= span.first and span.last <= sent.last:
            continue
        has_all = sender is not None and sender.has_all_of(stay.key)
        if not has_all and (sent is None or sent.first <= span.first):
            found.unknown.add(f"what {origin[0]}#{origin[1]} sent: its tail is lost")
            continue
        was = "nothing" if sent is None else f"{sent.first}..{sent.last}"
        text = f"{delivers(span.row)} in view {stay.view.view}; sent in it was {was}"
        found.violate(text, stay.view, None if sent is None else sent.row, span.row)


@rule(
    "VS3", "in each view a prefix of what a sender sent in it is delivered, from its beginning on"
)
def prefix_of_the_view(run: Run, found: Findings) -> None:
    """Of each origin a member delivers in a view a prefix of what that one sent in it: in order,
    once, without a gap. A window that opens with a view does so once, for a member of it, and at
    what that one had sent."""
    for life in run.history.lives.values():
        for row in life.unopened:
            found.premises += 1
            text = f"{row.member} opens {row.peer_member} with view {row.view}"
            found.violate(f"{text}, where the two are not together", row)
        for earlier, row in life.reopened:
            found.premises += 1
            text = f"{row.member} opens {row.peer} at {row.seqno} with view {row.view}"
            found.violate(f"{text} once more", earlier, row)
    stays = (stay for life in run.history.lives.values() for stay in life.stays.values())
    for origin, row in (opened for stay in stays for opened in stay.opened.items()):
        sender = run.history.lives.get(origin[:2])
        had_sent = None if sender is None else sender.last_sent(origin, row.view_key)
        if had_sent is None:
            continue  # It never was in that view: nothing of it is delivered there (VS2).
        found.premises += 1
        if row.seqno != had_sent:
            text = f"{row.member} opens {row.peer} at {row.seqno} with view {row.view}"
            found.violate(f"{text}, when that one had sent {had_sent}", row)
    for stay, origin, span in run.history.delivered():
        found.premises += 1
        if span.torn is not None:
            found.violate(f"{delivers(span.torn)}, out of order", stay.view, span.torn)
        _, sent = run.history.sent(stay, origin)
        if sent is not None and sent.first < span.first:
            does = f"{span.row.member} delivers {span.row.peer} in view {stay.view.view}"
            text = f"{does} from {span.first}; that one sent from {sent.first} on"
            found.violate(text, stay.view, sent.row, span.row)


@rule("VS4", "all that members who go along sent in a view is delivered in it")
def all_of_who_goes_along(run: Run, found: Findings) -> None:
    """Whoever goes from one view to the next has delivered all that was sent in it by those who go
    along: they are together with it, also if they leave with the change."""
    for step in run.history.steps():
        for key in step.together:
            sender = run.history.life(key)
            there = None if sender is None else sender.stays.get(step.stay.key)
            for stream, sent in there.sent.items() if there is not None else ():
                origin = (*split_key(key), stream)
                found.premises += step.stay.view.member != key
                through = step.stay.through(origin)
                if through < sent.last:
                    was = f"{origin[0]}, who sent {sent.first}..{sent.last}"
                    text = f"{_goes(step)} with {was}, and has delivered {_upto(through)}"
                    shown = sent.row, step.stay.row_of(origin), step.next.view, step.next.shown
                    found.violate(text, *shown)


@rule("VS5", "who goes from view to view together has delivered the same")
def same_together(run: Run, found: Findings) -> None:
    """Two who go from one view to the next together have delivered the same in it: of everybody on
    uniform streams and where messages are retained, else of those who come along."""
    for origin, steps in together(run):
        is_kept = run.facts.is_retained or origin[2] == Stream.UNIFORM
        if not is_kept and f"{origin[0]}#{origin[1]}" not in steps[0].together:
            continue
        found.premises += len(steps) > 1
        most = max(steps, key=lambda step: step.stay.through(origin))
        for step in steps:
            if step.stay.through(origin) < most.stay.through(origin):
                less = f"{_goes(step)} with {_upto(step.stay.through(origin))} of {origin[0]}"
                more = f"{most.stay.view.member} with {most.stay.through(origin)}"
                rows = step.stay.row_of(origin), most.stay.row_of(origin)
                found.violate(f"{less}, {more}", *rows, step.next.view, most.next.view)


def together(run: Run) -> Iterator[tuple[OriginKey, list[Step]]]:
    """Each origin of which something was delivered in a view, with those who then went from there
    to one next view."""
    for steps in by(run.history.steps(), lambda step: (step.stay.key, step.next.key)).values():
        for origin in {origin: None for step in steps for origin in step.stay.delivered}:
            yield origin, steps


@rule(
    "VS6", "what anybody delivers of uniform messages all who leave the view have delivered in it"
)
def uniform_in_all(run: Run, found: Findings) -> None:
    """A uniform message that anybody has delivered in a view because all members of it held it is
    delivered by everybody who leaves that view. What comes with the cut of the next view, by
    everybody together with it who leaves the view, for whichever next."""
    leaving = by(run.history.steps(), lambda step: step.stay.key)
    for stay, origin, span in run.history.delivered():
        if origin[2] == Stream.UNIFORM and span.by_commit is not None:
            _judge_uniform(origin, span.by_commit, leaving.get(stay.key, []), "by commit", found)
    for step in run.history.steps():
        together = [
            other for other in leaving[step.stay.key] if other.stay.view.member in step.together
        ]
        for origin, span in step.stay.delivered.items():
            if origin[2] == Stream.UNIFORM:
                how = f"by the cut of view {step.next.view.view}"
                _judge_uniform(origin, span.row, together, how, found)


def _judge_uniform(
    origin: OriginKey, row: Row, others: Iterable[Step], how: str, found: Findings
) -> None:
    for other in others:
        found.premises += other.stay.view.member != row.member
        through = other.stay.through(origin)
        if through < row.seqno2:
            less = f"{_goes(other)} with {_upto(through)} of {origin[0]}"
            text = f"{less}; {row.member} has delivered {row.seqno2} {how}"
            found.violate(text, row, other.stay.row_of(origin), other.next.view)


@rule("VS7", "nobody misses a view of members that it was never parted from")
def no_needless_loss(run: Run, found: Findings) -> None:
    """Who misses a view that another one of it was in, and goes on with that one, was parted from
    it: some proposal since had one of the two and not the other. Else it installs that view first,
    though it has promised a later one."""
    history = run.history
    freezes = (row for life in history.lives.values() for row in life.freezes)
    proposals = {row.view_key: frozenset(row.members) for row in freezes}
    is_known = all(life.is_whole for life in history.lives.values())
    for life in history.lives.values():
        found.premises += life.finished
        for stay, missed, after in _missed(life, history):
            found.premises += 1
            pair = {stay.view.member, missed.view.member}
            since = (each for each in proposals if stay.key[0] <= each[0] <= after.key[0])
            if any(len(pair & proposals[id]) == 1 for id in since if id != stay.key):
                continue
            if not is_known:
                found.unknown.add("who was proposed a view: the tails of some are lost")
                continue
            misses = f"{stay.view.member} misses view {missed.view.view} of {missed.view.member}"
            text = f"{misses}, and nobody has parted them since view {stay.view.view}"
            found.violate(text, stay.view, missed.view, after.view)


def _missed(life: Life, history: History) -> Iterator[tuple[Stay, Stay, Stay]]:
    """Each view that it was a member of and never installed, though somebody else did with whom it
    goes on; between the two views that it was in before and after."""
    for stay, after in pairwise(life.stays.values()):
        for peer in filter(None, map(history.life, after.view.members)):
            for missed in peer.stays.values() if after.key in peer.stays else ():
                is_between = stay.key[0] < missed.key[0] < after.key[0]
                pair = {stay.view.member, missed.view.member}
                if is_between and missed.key not in life.stays and pair <= set(missed.view.members):
                    yield stay, missed, after


@rule("VS9", "a frozen member gives no number, and a send belongs to the view where it gets one")
def silent_while_frozen(run: Run, found: Findings) -> None:
    """Whoever has promised a proposal gives no seqno until its next view; and then in that."""
    for life in run.history.lives.values():
        found.premises += len(life.freezes) if life.stays else 0
        for row, change in life.astray:
            what = "is frozen for" if change and change.event != trace.VIEW else "is in"
            view = "no view" if change is None else f"view {change.view}"
            text = f"{row.member} {what} {view} and sends {row.run} in view {row.view}"
            found.violate(text, change, row)


@rule(
    "U3",
    "only what every member of the view holds is committed, or delivered before the next",
    Need.ORDER,
)
def received_by_all(run: Run, found: Findings) -> None:
    """A sender commits what every member of its view has received, in that view. While a member has
    not installed the next view it delivers nothing else; but who leaves with it gets what it has
    sent itself."""
    received: defaultdict[PairKey, Progress] = defaultdict(Progress)
    commits: dict[tuple[str, OriginKey, int, str], Row] = {}
    """The first time that this was said, or done: commits are repeated."""
    for row in run.rows(trace.TX, trace.DELIVER, trace.SEND, trace.WIN, trace.OPEN):
        if row.stream != Stream.UNIFORM:
            continue
        if row.event == trace.DELIVER:
            commits.setdefault((row.member, row.origin, row.seqno2, row.event), row)
        elif row.event == trace.TX:
            if row.kind == "commit" and row.seqno:  # 0 is nothing
                commits.setdefault((row.member, row.own_origin, row.seqno, row.event), row)
        elif row.event == trace.SEND:
            received[row.node, row.inc, *row.own_origin].rise(row.run_idx, row.seqno2, row)
        else:
            through = row.seqno if row.event == trace.OPEN else row.received
            received[row.pair].rise(row.run_idx, through, row)
    frozen = {row.key: row for row in run.rows(trace.FREEZE)}
    left = {row.key for row in run.rows(trace.STOP) if row.detail == "left"}
    for (_, origin, through, _), row in commits.items():
        if row.run_idx < 0:
            found.unknown.add(NO_RUN_ORDER)
            continue
        member = row.key
        views = [view for view in run.lives.views.get(member, []) if view.idx < row.idx]
        is_there = bool(views) and views[-1].view == row.view
        is_own = row.event == trace.DELIVER and row.origin == row.own_origin and member in left
        if row.event == trace.TX and not is_there:
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
    if row.event == trace.TX and through <= sent.at(view.run_idx):
        return  # it was sent before the view began: the flush brought it to all who need it
    for member in map(split_key, view.members):
        found.premises += 1
        received = held.get((*member, *origin), NOWHERE)
        if received.at(row.run_idx) < through:
            does = f"{row.member} {'delivers' if row.event == trace.DELIVER else 'commits'}"
            text = f"{does} {origin[0]}:{through} in view {view.view}"
            holds = f"{member[0]} holds {received.at(row.run_idx)}"
            found.violate(f"{text}, {holds}", view, received.row_at(row.run_idx), row)


def _goes(step: Step) -> str:
    stay, after = step.stay.view, step.next.view
    return f"{stay.member} goes from view {stay.view} to {after.view}"


def _upto(seqno: int) -> str:
    return str(seqno) if seqno else "nothing"
