"""O1–O9, O-L: the one order of total messages (`ringcast.rules.order`).

Only who took what at which position (the first half of O1) is judged from rows as they were
written: the rest from condensed ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter

from ringcast.rules import bounds
from ringcast.rules.evidence import Ranges, Run, by
from ringcast.rules.findings import Findings, Need, rule
from ringcast.rules.order import Log, Order, Stay, order_of
from ringcast.trace.rows import ACCEPT, FREEZE, ORDER, SHOWN, STOP, VIEW, MemberKey, Row, ViewKey


def _named(row: Row) -> tuple[str, int, bool]:
    """The same for two rows that have the same message at each position."""
    return row.peer_member, row.seqno - row.low, "carried" in row.detail


@rule("O1", "at one place of the order all take one message, and who goes on together the same")
def one_order(run: Run, found: Findings) -> None:
    """What two members take in one view is the same at each position. Those who go from one view to
    the next together have come to the same position, and that is where the next one begins, unless
    they come to it from elsewhere."""
    logs: defaultdict[ViewKey, Log] = defaultdict(Log)
    for rows in run.by_member(ORDER).values():
        for row in rows:
            for count, known in logs[row.view_key].add(row):
                found.premises += count * (known.member != row.member)
                if _named(known) != _named(row):
                    text = f"{known.member} and {row.member} take different messages near position"
                    found.violate(f"{text} {row.low} of view {row.view}", known, row)
    steps: defaultdict[tuple[ViewKey, ViewKey, tuple[str, ...]], list[Stay]] = defaultdict(list)
    for stay in _all(order_of(run)):
        if stay.next is not None and stay.then is not None:
            steps[stay.key, stay.next.view_key, stay.then.part].append(stay)
    for together in steps.values():
        found.premises += len(together) > 1
        for stay in together[1:]:
            if stay.last != together[0].last:
                text = f"{stay.shown.member} goes on with {stay.last} positions of view"
                more = f"{together[0].shown.member} with {together[0].last}"
                found.violate(f"{text} {stay.shown.view}, {more}", stay.next, together[0].next)


def _all(order: Order) -> Iterator[Stay]:
    for stays in order.stays.values():
        yield from stays


@rule("O2", "no message stands twice in one history")
def once(run: Run, found: Findings) -> None:
    """Nor does a member take one twice, unless it is told that it has seen it."""
    order = order_of(run)
    for view in order.leaves():
        stands: defaultdict[MemberKey, Ranges] = defaultdict(Ranges)
        for row in _taken(order.history(view)):
            found.premises += 1
            for before in stands[row.peer_key].add(row.seqno, row.seqno2, row):
                text = f"{row.peer_member}:{row.run} stands twice in the history of view {view[0]}"
                found.violate(text, before, row)
    for stays in order.stays.values():
        took: defaultdict[MemberKey, Ranges] = defaultdict(Ranges)
        for row in _taken(stays):
            is_seen, known = "seen" in row.detail, took[row.peer_key]
            has_all = known.covers(row.seqno, row.seqno2)
            again = known.add(row.seqno, row.seqno2, row)
            what = f"{row.peer_member}:{row.run}"
            if again and not is_seen:
                found.violate(f"{row.member} takes {what} again", again[0], row)
            elif is_seen and not has_all and _knows_all(stays):
                found.violate(f"{row.member} has not seen, and is told so, {what}", row)


def _taken(stays: Iterable[Stay]) -> Iterator[Row]:
    for stay in stays:
        yield from stay.taken


def _knows_all(stays: list[Stay]) -> bool:
    """It has a mark for no more than it has taken: it came to no history that was there before."""
    return all(stay.is_led or not stay.shown.low for stay in stays)


@rule("O3", "in a history each sender's messages stand in its own order")
def own_order(run: Run, found: Findings) -> None:
    """One that is missing was taken by its sender in another history, or given to it with one; or
    the sender came back when so many others had gone that nobody knew what it had sent."""
    order = order_of(run)
    apart: dict[MemberKey, Ranges] = {}
    for view in order.leaves():
        last: dict[MemberKey, Row] = {}
        history = order.history(view)
        is_whole = history[0].shown.low == 0 and all(stay.is_whole for stay in history)
        for row in _taken(history):
            origin, before = row.peer_key, last.get(row.peer_key)
            last[origin] = row
            found.premises += 1
            number = 0 if before is None else before.seqno2
            name = f"{row.peer_member}:{row.seqno}"
            if row.seqno <= number:
                found.violate(f"{name} stands behind number {number}", before, row)
            elif row.seqno > number + 1 and is_whole:
                if origin not in apart:
                    apart[origin] = order.own(origin)
                missing = f"{number + 1}..{row.seqno - 1}"
                if apart[origin].covers(number + 1, row.seqno - 1):
                    continue
                if order.is_reading_behind(origin):
                    found.unknown.add(f"{row.peer_member} has yet to read what it took elsewhere")
                elif len(order.stays) > bounds.MARKS_MAX:
                    found.unknown.add(f"nobody may know any more what became of {missing}")
                elif row.peer_member in run.unrecorded:
                    found.unknown.add(f"{row.peer_member} may have taken {missing} elsewhere")
                else:
                    text = f"{name} stands in the order, and {missing} does not"
                    found.violate(text, before, row)


@rule("O4", "what a member that goes on has accepted is in the order, or it is told", Need.CALM)
def validity(run: Run, found: Findings) -> None:
    """In the end each message of a member that lives is in the history of the view that it is in,
    or the member has taken it in another one."""
    order, end = order_of(run), run.phases.end
    if end is None or run.facts.stopped_members:
        return  # who does not take blocks the others, and is meant to
    for key, rows in order.accepted.items():
        stays = order.stays.get(key, [])
        if not run.lives.is_live(key) or not stays:
            continue
        there = order.own(key)
        for row in _taken([order.furthest[stays[-1].key]]):
            if row.peer_key == key:
                there.add(row.seqno, row.seqno2, row)
        for row in rows:
            found.premises += 1
            if not there.covers(row.seqno, row.seqno2):
                found.violate(f"{row.member}:{row.run} was accepted, and is in no order", row)


@rule("O5", "what is taken before a view comes is taken by all who leave that view")
def uniform(run: Run, found: Findings) -> None:
    """What anybody took before it had installed a next view all members of that view held: so
    everybody who ever leaves it takes it."""
    order = order_of(run)
    most: dict[ViewKey, Row] = {}
    for stay in _all(order):
        for row in stay.placed:
            is_before = stay.left is None or row.idx < stay.left.idx
            if is_before and (stay.key not in most or row.seqno2 > most[stay.key].seqno2):
                most[stay.key] = row
    for stay in _all(order):
        ahead = most.get(stay.key)
        if ahead is None or stay.next is None:
            continue
        found.premises += ahead.member != stay.shown.member
        if stay.last < ahead.seqno2:
            text = f"{stay.shown.member} leaves view {ahead.view} with {stay.last} positions"
            found.violate(f"{text}; {ahead.member} took {ahead.seqno2}", ahead, stay.next)


@rule("O6", "a message stands only in a view with its sender, who came there with the history")
def departure(run: Run, found: Findings) -> None:
    """Unless it is carried, its sender has come along in the leading part to each view since it was
    accepted: so nothing that somebody said before it was gone stands behind the view that says so.
    """
    order = order_of(run)
    for stay in _all(order):
        since: list[ViewKey] | None = None
        for row in stay.taken:
            found.premises += 1
            if row.peer_member not in stay.view.members:
                text = f"{row.peer_member}:{row.run} stands in view {row.view}, without its sender"
                found.violate(text, stay.shown, row)
            if "carried" in row.detail:
                continue
            for accepted in order.accepts(row):
                if accepted.view_key == stay.key:
                    continue
                if since is None:
                    since = [*(each.key for each in order.line(stay.key)), stay.key]
                text = f"{row.peer_member}:{row.run}, of view {accepted.view}, stands in view"
                text += f" {row.view} as if its sender had been there all the time"
                if accepted.view_key not in since and run.unrecorded:
                    found.unknown.add(f"the line of views before {row.view} is not known")
                elif _came_since(order, row.peer_member, accepted.view_key, since):
                    found.violate(text, accepted, row)


def _came_since(order: Order, origin: str, view: ViewKey, line: list[ViewKey]) -> bool:
    """Whether it has come to one of these from elsewhere, since it was in this view."""
    if view not in line:
        return True
    return any(origin in order.shown[each].members for each in line[line.index(view) + 1 :])


@rule("O7", "a view stands at one position, and says the same of who is gone and who came")
def views_in_order(run: Run, found: Findings) -> None:
    """For who comes along in the leading part that is behind what it has taken."""
    for rows in by((row for row in run.rows(SHOWN) if row.low >= 0), _view_key).values():
        found.premises += len(rows) > 1
        for row in rows[1:]:
            if (row.low, row.members, row.part) != (rows[0].low, rows[0].members, rows[0].part):
                text = f"view {row.view} stands elsewhere, or names others, at {row.member}"
                found.violate(f"{text} and {rows[0].member}", rows[0], row)
    for stay in _all(order_of(run)):
        next = stay.next
        if next is None or next.member in next.members:
            continue
        found.premises += 1
        if stay.last != next.low:
            text = f"{next.member} is told of view {next.view} at position {next.low}"
            found.violate(f"{text}, and has come to {stay.last}", stay.shown, next)


_view_key = attrgetter("view_key")


@rule("O8", "a frozen member accepts nothing, and what it accepts belongs to its view")
def not_while_frozen(run: Run, found: Findings) -> None:
    for rows in run.by_member(ACCEPT, FREEZE, VIEW, STOP).values():
        change: Row | None = None
        for row in rows:
            if row.event != ACCEPT:
                change = row
                continue
            found.premises += 1
            if change is None or change.event != VIEW or change.view_key != row.view_key:
                found.violate(f"{row.member} accepts {row.run} in view {row.view}", change, row)


@rule("O9", "positions grow by one, and go on from where the view stands")
def positions(run: Run, found: Findings) -> None:
    order = order_of(run)
    for row in order.astray:
        text = f"{row.member} takes position {row.seqno} of view {row.view}, and is not told of it"
        found.violate(text, row)
    for stay in _all(order):
        before, position = stay.shown, stay.shown.low
        for row in stay.placed:
            found.premises += 1
            if row.seqno != position + 1:
                text = f"{row.member} takes position {row.seqno} of view {row.view}"
                found.violate(f"{text} behind {position}", before, row)
            before, position = row, row.seqno2


@rule("O-L1", "in the end all who are together have taken the same", Need.CALM)
def same_in_the_end(run: Run, found: Findings) -> None:
    order = order_of(run)
    if run.phases.end is None or run.facts.stopped_members:
        return  # who does not take blocks the others, and is meant to
    last: defaultdict[ViewKey, list[Stay]] = defaultdict(list)
    for key, stays in order.stays.items():
        if stays and run.lives.is_live(key):
            last[stays[-1].key].append(stays[-1])
    for together in last.values():
        for stay in together[1:]:
            found.premises += bool(stay.placed)
            if stay.last != together[0].last:
                text = f"{stay.shown.member} has taken {stay.last} positions in the end"
                other = together[0].shown
                found.violate(f"{text}, {other.member} {together[0].last}", stay.shown, other)
