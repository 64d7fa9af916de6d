"""O1–O9, O-L: the one order of total messages.

What a member takes in a view is a stretch of the *log* of that view. Its *history* is a line of
views: before each stands the view that the leading part came from, up to the position at which it
begins. A view's leading part are those of its members who are not said to have come to it.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ringcast.rules.findings import Need, rule
from ringcast.trace.rows import ACCEPT, FREEZE, ORDER, SHOWN, STOP, VIEW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.trace.rows import MemberKey, Row, ViewKey


class Entry(NamedTuple):
    """One message in the log of a view."""

    origin: str
    number: int
    row: Row

    @property
    def name(self) -> str:
        return f"{self.origin}:{self.number}"

    @property
    def is_carried(self) -> bool:
        return "carried" in self.row.detail


class Stay(NamedTuple):
    """One member in one view, as its application is told."""

    shown: Row
    members: tuple[str, ...]
    part: tuple[str, ...]
    """Who came along from its view before."""
    orders: list[Row]
    next: Row | None
    """The view that its application is told of then."""

    @property
    def last(self) -> int:
        """The position that it has come to in it."""
        last = self.orders[-1] if self.orders else None
        return self.shown.low if last is None else _end(last)


class Order:
    """All that a run shows of it."""

    def __init__(self, run: Run) -> None:
        self.logs: defaultdict[ViewKey, dict[int, Entry]] = defaultdict(dict)
        self.conflicts: list[tuple[Row, Row]] = []
        self.agreed = 0
        self.shown: dict[ViewKey, Row] = {}
        self.parents: dict[ViewKey, ViewKey] = {}
        """The view that the leading part came from."""
        self.stays: dict[MemberKey, list[Stay]] = {}
        self.installed: dict[tuple[MemberKey, ViewKey], Row] = {}
        for key, rows in run.by_member(VIEW, SHOWN, ORDER).items():
            self.stays[key] = list(self._stays(key, rows))
        for stays in self.stays.values():
            before: ViewKey | None = None
            for stay in stays:
                view = stay.shown.view_key
                self.shown.setdefault(view, stay.shown)
                if before is not None and stay.shown.member not in stay.shown.members:
                    self.parents.setdefault(view, before)
                before = view
                for row in stay.orders:
                    self._note(row)
        self.history = lru_cache(None)(self._history)

    def _stays(self, key: MemberKey, rows: list[Row]) -> Iterator[Stay]:
        views: dict[ViewKey, Row] = {}
        shown: Row | None = None
        orders: list[Row] = []
        for row in rows:
            if row.event == VIEW:
                views[row.view_key] = row
                self.installed[key, row.view_key] = row
            elif row.event == ORDER:
                orders.append(row)
            else:
                if shown is not None:
                    yield _stay(shown, views, orders, row)
                shown, orders = row, []
        if shown is not None:
            yield _stay(shown, views, orders, None)

    def _note(self, row: Row) -> None:
        log = self.logs[row.view_key]
        for step, number in enumerate(range(row.seqno, row.seqno2 + 1)):
            entry = Entry(row.peer_member, number, row)
            known = log.setdefault(row.low + step, entry)
            self.agreed += known.row.member != row.member
            if known[:2] != entry[:2] or known.is_carried != entry.is_carried:
                self.conflicts.append((known.row, row))

    def _history(self, view: ViewKey) -> list[tuple[ViewKey, int]]:
        """The views of its history, oldest first, each with the position up to which its log is in
        it; the view itself not among them."""
        parent = self.parents.get(view)
        if parent is None:
            return []
        return [*self.history(parent), (parent, self.shown[view].low)]

    def entries(self, view: ViewKey) -> Iterator[tuple[ViewKey, Entry]]:
        """What is known of its history, and of its own log."""
        for each, end in (*self.history(view), (view, 1 << 62)):
            for position in sorted(self.logs[each]):
                if position <= end:
                    yield each, self.logs[each][position]

    def leaves(self) -> list[ViewKey]:
        """Views that are in no other one's history."""
        return [view for view in self.shown if view not in self.parents.values()]


def _stay(shown: Row, views: dict[ViewKey, Row], orders: list[Row], next: Row | None) -> Stay:
    view = views[shown.view_key]
    return Stay(shown, view.members, view.part, orders, next)


def _end(row: Row) -> int:
    return row.low + row.seqno2 - row.seqno


@lru_cache(1)
def order_of(run: Run) -> Order:
    """Several rules ask, of one run after the other."""
    return Order(run)


@rule(
    "O1",
    "at one place of the order all take one message, and who goes on together the same",
    Need.HISTORY,
)
def one_order(run: Run, found: Findings) -> None:
    """What two members take in one view is the same at each position. Those who go from one view to
    the next together have come to the same position, and that is where the next one begins, unless
    they come to it from elsewhere."""
    order = order_of(run)
    found.premises = order.agreed
    for one, other in order.conflicts:
        text = f"{one.member} and {other.member} take different messages near position {other.low}"
        found.violate(f"{text} of view {other.view}", one, other)
    steps: defaultdict[tuple[ViewKey, ViewKey, tuple[str, ...]], list[Stay]] = defaultdict(list)
    for stays in order.stays.values():
        for stay in stays:
            if stay.next is not None:
                part = order.installed[stay.shown.key, stay.next.view_key].part
                steps[stay.shown.view_key, stay.next.view_key, part].append(stay)
    for together in steps.values():
        found.premises += len(together) > 1
        for stay in together[1:]:
            if stay.last != together[0].last:
                text = f"{stay.shown.member} goes on with {stay.last} positions of view"
                more = f"{together[0].shown.member} with {together[0].last}"
                found.violate(f"{text} {stay.shown.view}, {more}", stay.next, together[0].next)


@rule("O2", "no message stands twice in one history", Need.HISTORY)
def once(run: Run, found: Findings) -> None:
    """Nor does a member take one twice, unless it is told that it has seen it."""
    order = order_of(run)
    for view in order.leaves():
        first: dict[tuple[str, int], Row] = {}
        for _, entry in order.entries(view):
            found.premises += 1
            before = first.setdefault(entry[:2], entry.row)
            if before is not entry.row:
                text = f"{entry.name} stands twice in the history of view {view[0]}"
                found.violate(text, before, entry.row)
    for stays in order.stays.values():
        taken: dict[tuple[str, int], Row] = {}
        for row in (row for stay in stays for row in stay.orders):
            for number in range(row.seqno, row.seqno2 + 1):
                before = taken.setdefault((row.peer_member, number), row)
                is_again = before is not row
                if is_again != ("seen" in row.detail) and (is_again or _knows_all(stays)):
                    does = "takes" if is_again else "has not seen, and is told so,"
                    found.violate(f"{row.member} {does} {row.peer}:{number}", before, row)


def _knows_all(stays: list[Stay]) -> bool:
    """It has a mark for no more than it has taken: it came to no history that was there before."""
    return all(stay.shown.member not in stay.shown.members for stay in stays)


@rule("O3", "in a history each sender's messages stand in its own order", Need.HISTORY)
def own_order(run: Run, found: Findings) -> None:
    """One that is missing was taken by its sender in another history, or given to it with one."""
    order = order_of(run)
    apart: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    for stays in order.stays.values():
        for stay in stays:
            apart[stay.shown.member].update(
                entry[:2] for _, entry in order.entries(stay.shown.view_key)
            )
    for view in order.leaves():
        last: dict[str, Entry] = {}
        whole = _is_whole(order, view)
        for _, entry in order.entries(view):
            before = last.get(entry.origin)
            last[entry.origin] = entry
            found.premises += 1
            number = 0 if before is None else before.number
            rows = None if before is None else before.row, entry.row
            if entry.number <= number:
                found.violate(f"{entry.name} stands behind number {number}", *rows)
            elif whole:
                for missing in range(number + 1, entry.number):
                    if (entry.origin, missing) not in apart[entry.origin]:
                        text = f"{entry.name} stands in the order, and {missing} does not"
                        found.violate(text, *rows)


def _is_whole(order: Order, view: ViewKey) -> bool:
    """Every position of its history was taken by somebody whose rows are here."""
    return all(
        set(range(order.shown[each].low + 1, end + 1)) <= order.logs[each].keys()
        for each, end in order.history(view)
        if each in order.shown
    )


@rule("O4", "what a member that goes on has accepted is in the order, or it is told", Need.CALM)
def validity(run: Run, found: Findings) -> None:
    """In the end each message of a member that lives is in the history of the view that it is in,
    or the member has taken it in another one."""
    order, end = order_of(run), run.phases.end
    if end is None or run.facts.stopped_members:
        return  # who does not take blocks the others, and is meant to
    for key, rows in run.by_member(ACCEPT).items():
        stays = order.stays.get(key, [])
        if not run.lives.is_live(key) or not stays:
            continue
        there = {entry[:2] for _, entry in order.entries(stays[-1].shown.view_key)}
        there |= {entry[:2] for stay in stays for entry in order.logs[stay.shown.view_key].values()}
        for row in rows:
            found.premises += 1
            for number in range(row.seqno, row.seqno2 + 1):
                if (row.member, number) not in there:
                    found.violate(f"{row.member}:{number} was accepted, and is in no order", row)
                    break


@rule("O5", "what is taken before a view comes is taken by all who leave that view", Need.HISTORY)
def uniform(run: Run, found: Findings) -> None:
    """What anybody took before it had installed a next view all members of that view held: so
    everybody who ever leaves it takes it."""
    order = order_of(run)
    most: dict[ViewKey, Row] = {}
    for key, stays in order.stays.items():
        installed = [row for (who, _), row in order.installed.items() if who == key]
        for stay in stays:
            view = stay.shown.view_key
            until = min((row.idx for row in installed if row.view > view[0]), default=1 << 62)
            for row in stay.orders:
                if row.idx < until and (view not in most or _end(row) > _end(most[view])):
                    most[view] = row
    for stays in order.stays.values():
        for stay in stays:
            ahead = most.get(stay.shown.view_key)
            if ahead is None or stay.next is None:
                continue
            found.premises += ahead.member != stay.shown.member
            if stay.last < _end(ahead):
                text = f"{stay.shown.member} leaves view {ahead.view} with {stay.last} positions"
                found.violate(f"{text}; {ahead.member} took {_end(ahead)}", ahead, stay.next)


@rule(
    "O6",
    "a message stands only in a view with its sender, who came there with the history",
    Need.HISTORY,
)
def departure(run: Run, found: Findings) -> None:
    """Unless it is carried, its sender has come along in the leading part to each view since it was
    accepted: so nothing that somebody said before it was gone stands behind the view that says so.
    """
    order = order_of(run)
    accepted = {
        (row.member, number): row
        for row in run.rows(ACCEPT)
        for number in range(row.seqno, row.seqno2 + 1)
    }
    members = {key: row.members for (_, key), row in order.installed.items()}
    for view, log in order.logs.items():
        line = [each for each, _ in order.history(view)]
        for entry in log.values():
            found.premises += 1
            if entry.origin not in members[view]:
                text = f"{entry.name} stands in view {view[0]}, without its sender"
                found.violate(text, entry.row)
            row = accepted.get(entry[:2])
            if row is None or entry.is_carried or row.view_key == view:
                continue
            since = [*line, view]
            way = since[since.index(row.view_key) + 1 :] if row.view_key in since else None
            if way is None or any(entry.origin in order.shown[each].members for each in way):
                text = f"{entry.name}, of view {row.view}, stands in view {view[0]}"
                found.violate(
                    f"{text} as if its sender had been there all the time", row, entry.row
                )


@rule(
    "O7",
    "a view stands at one position, and says the same of who is gone and who came",
    Need.HISTORY,
)
def views_in_order(run: Run, found: Findings) -> None:
    """For who comes along in the leading part that is behind what it has taken."""
    order = order_of(run)
    for rows in run.by(attrgetter("view_key"), SHOWN).values():
        found.premises += len(rows) > 1
        for row in rows[1:]:
            if (row.low, row.members, row.part) != (rows[0].low, rows[0].members, rows[0].part):
                text = f"view {row.view} stands elsewhere, or names others, at {row.member}"
                found.violate(f"{text} and {rows[0].member}", rows[0], row)
    for stays in order.stays.values():
        for stay in stays:
            next = stay.next
            if next is None or next.member in next.members:
                continue
            found.premises += 1
            if stay.last != next.low:
                text = f"{next.member} is told of view {next.view} at position {next.low}"
                found.violate(f"{text}, and has come to {stay.last}", stay.shown, next)


@rule(
    "O8", "a frozen member accepts nothing, and what it accepts belongs to its view", Need.HISTORY
)
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


@rule("O9", "positions grow by one, and go on from where the view stands", Need.HISTORY)
def positions(run: Run, found: Findings) -> None:
    for stays in order_of(run).stays.values():
        for stay in stays:
            before, position = stay.shown, stay.shown.low
            for row in stay.orders:
                found.premises += 1
                if row.low != position + 1 or row.view_key != stay.shown.view_key:
                    text = f"{row.member} takes position {row.low} of view {row.view}"
                    found.violate(f"{text} behind {position}", before, row)
                before, position = row, _end(row)


@rule("O-L1", "in the end all who are together have taken the same", Need.CALM)
def same_in_the_end(run: Run, found: Findings) -> None:
    order = order_of(run)
    if run.phases.end is None or run.facts.stopped_members:
        return  # who does not take blocks the others, and is meant to
    last: defaultdict[ViewKey, list[Stay]] = defaultdict(list)
    for key, stays in order.stays.items():
        if stays and run.lives.is_live(key):
            last[stays[-1].shown.view_key].append(stays[-1])
    for together in last.values():
        for stay in together[1:]:
            found.premises += bool(stay.orders)
            if stay.last != together[0].last:
                text = f"{stay.shown.member} has taken {stay.last} positions in the end"
                other = together[0].shown
                found.violate(f"{text}, {other.member} {together[0].last}", stay.shown, other)
