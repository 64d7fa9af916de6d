"""U1–U4, U6: a uniform message is delivered by all who go on together, or by none of them.

Its *targets* are those whose windows for its sender have opened below it, and have not ended: those
who were parted from the sender since then get what it says that they begin with, or nothing. A
window that opens anew, after a merge, counts instead of the one before.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ringcast.model import Stream
from ringcast.rules.algebra import NOWHERE, Lives, Progress, merge_progress
from ringcast.rules.everywhere import AtMostOnce
from ringcast.rules.findings import Findings, Rule
from ringcast.trace.rows import (
    BACK,
    DELIVER,
    ESTATE,
    OPEN,
    PHASE,
    RESOLVED,
    TX,
    VIEW,
    WIN,
    split_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row

F = TypeVar("F", bound=Rule)

TOO_EARLY = "whether all deliver it: the run ended before it had to be so"
NO_RUN_ORDER = "who received what when a commit left: no run order"


class OnStream(Generic[F]):
    """A rule that sees the rows of one stream, and those of none."""

    def __init__(
        self, make: Callable[[], F], stream: Stream, *, id: str = "", title: str = ""
    ) -> None:
        self.rule = make()
        self.id = id or self.rule.id
        self.title = title or self.rule.title
        self.events = self.rule.events
        self._stream = stream

    def feed(self, row: Row) -> None:
        if row.stream in (self._stream, -1):
            self.rule.feed(row)

    def merge(self, other: OnStream[F]) -> None:
        self.rule.merge(other.rule)

    def finish(self, facts: Facts) -> Verdict:
        return replace(self.rule.finish(facts), id=self.id, title=self.title)


class Deliveries:
    """Who opened and delivered what of one stream, saw which views, and lived to the end of a run
    that was long enough."""

    EVENTS = (OPEN, DELIVER, ESTATE, PHASE, *Lives.EVENTS)

    __slots__ = ("_stream", "delivered", "estates", "is_over", "lives", "opened")

    def __init__(self, stream: Stream = Stream.UNIFORM) -> None:
        self._stream = stream
        self.opened: dict[PairKey, Row] = {}
        """The last opening."""
        self.delivered: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.estates: defaultdict[PairKey, list[Row]] = defaultdict(list)
        self.lives = Lives()
        self.is_over = False

    def feed(self, row: Row) -> None:
        if row.event == PHASE:
            self.is_over |= row.kind == "end"
        elif row.event in Lives.EVENTS:
            self.lives.feed(row)
        elif row.stream != self._stream:
            return
        elif row.event == DELIVER:
            self.delivered[row.pair].rise(row.idx, row.seqno2, row)
        elif row.event == OPEN:
            self.opened[row.pair] = row
        else:
            self.estates[row.pair].append(row)

    def merge(self, other: Deliveries) -> None:
        self.opened |= other.opened
        merge_progress(self.delivered, other.delivered)
        for pair, rows in other.estates.items():
            self.estates[pair] += rows
        self.lives.merge(other.lives)
        self.is_over |= other.is_over

    def is_due(self, member: MemberKey, facts: Facts) -> bool:
        """Whether this one lives, and takes."""
        key = f"{member[0]}#{member[1]}"
        return self.lives.is_live(member) and key not in facts.stopped_members

    def is_target(self, pair: PairKey, seqno: int, view: Row) -> bool:
        """Whether this message is for this member of that view. One's own are."""
        if pair[:2] == pair[2:4]:
            return True
        opening = self.opened.get(pair)
        if opening is None or opening.seqno >= seqno:
            return False
        return not has_ended(opening, view, self.lives.views)


class Agreed:
    """What anybody delivers, all who go on with it deliver.

    They are the targets among the members of the sender's view; if the sender has departed, of the
    view of whoever delivers. A sender's view may be ahead of the one in which a member hears of a
    commit, and says whom the commit counts on.
    """

    id = "U1"
    title = "what anybody delivers, also right before its death, all survivors deliver"
    events = Deliveries.EVENTS

    def __init__(self) -> None:
        self.all = Deliveries()

    def feed(self, row: Row) -> None:
        self.all.feed(row)

    def merge(self, other: Agreed) -> None:
        self.all.merge(other.all)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if not self.all.is_over:
            found.unknown.add(TOO_EARLY)
            return found.verdict(self.id, self.title)
        for pair, delivered in self.all.delivered.items():
            missed: set[MemberKey] = set()
            for _, through, row in delivered:
                view = counted_on(row, self.all.lives.views)
                if view is None:
                    found.unknown.add(f"{row.member} delivers before its first view row")
                    continue
                for member in map(split_key, view.members):
                    other = (*member, *pair[2:])
                    if member in missed or not self._is_owed(other, through, view, facts):
                        continue
                    found.premises += 1
                    reached = self.all.delivered.get(other, NOWHERE)
                    if reached.value < through:
                        missed.add(member)
                        found.violate(
                            f"{row.member} delivers {row.peer}:{through}, {member[0]} only "
                            f"{reached.value}",
                            *(view, row, reached.row),
                        )
        return found.verdict(self.id, self.title)

    def _is_owed(self, pair: PairKey, seqno: int, view: Row, facts: Facts) -> bool:
        return self.all.is_due(pair[:2], facts) and self.all.is_target(pair, seqno, view)


def counted_on(delivery: Row, views: Mapping[MemberKey, list[Row]]) -> Row | None:
    """The view whose members must all have what is delivered: the sender's, as long as it is in the
    view of whoever delivers; then that one's own."""
    own = views.get((delivery.node, delivery.inc), [])
    mine = next((view for view in reversed(own) if view.idx < delivery.idx), None)
    sender = delivery.peer, delivery.peer_inc
    if mine is None or f"{sender[0]}#{sender[1]}" not in mine.members or delivery.run_idx < 0:
        return mine
    theirs = reversed(views.get(sender, []))
    return next((view for view in theirs if view.run_idx < delivery.run_idx), mine)


def has_ended(opening: Row, view: Row, views: Mapping[MemberKey, list[Row]]) -> bool:
    """Whether a window of a member of this view was none any more by then.

    While the sender is in the group: if it has been in a view without the member. When it has
    departed: if the member has been in one without it and without whoever's view this is, for what
    it left is resolved in each part by itself. And if the member has lost it and has it back: it
    says anew where to begin.
    """
    member, sender = opening.member, f"{opening.peer}#{opening.peer_inc}"
    own = views.get((opening.node, opening.inc), [])
    since = [each for each in own if each.idx > opening.idx and each.view <= view.view]
    apart = [each for each in since if sender not in each.members]
    if apart and any(each.view > apart[0].view for each in since if sender in each.members):
        return True
    if sender not in view.members:
        return any(view.member not in each.members for each in apart)
    opened_in = max((each.view for each in own if each.idx < opening.idx), default=view.view)
    theirs = views.get(split_key(sender), [])
    return any(opened_in < each.view <= view.view and member not in each.members for each in theirs)


class OnlyTargets:
    """A member delivers a message once, and only if its window for the sender opened below it."""

    id = "U2"
    title = "a uniform message is delivered once, and only to those it was for"
    events = (OPEN, DELIVER)

    def __init__(self) -> None:
        self.once = AtMostOnce()
        self.opened: defaultdict[PairKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.stream != Stream.UNIFORM:
            return
        if row.event == OPEN:
            self.opened[row.pair].append(row)
        else:
            self.once.feed(row)

    def merge(self, other: OnlyTargets) -> None:
        self.once.merge(other.once)
        for pair, rows in other.opened.items():
            self.opened[pair] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = self.once.found.copy()
        for (pair, _), delivered in self.once.delivered.items():
            opened = self.opened.get(pair, [])
            starts = {row.seqno + 1 for row in opened}
            if pair[:2] == pair[2:4]:
                starts = {1}
            for first, _, row in delivered:
                if first not in starts:
                    found.violate(
                        f"{row.member} delivers {row.peer} from {first}; its windows opened at "
                        f"{', '.join(str(opening.seqno) for opening in opened) or 'no place'}",
                        *(*opened, row),
                    )
        return found.verdict(self.id, self.title)


class _Commitment(NamedTuple):
    """Somebody says, or shows by delivering, that all hold what is up to `through`."""

    row: Row
    origin: OriginKey
    through: int


class ReceivedByAll:
    """A sender commits what every member of its view holds; so does the taker of a departed one.
    Nobody delivers more.

    A member that is being let in when a commit leaves has no window yet: it opens where all that is
    committed lies below. Of a departed sender, those count who have a window that has not ended.
    """

    id = "U3"
    title = "only what every member of the view holds is committed, or delivered"
    events = (TX, ESTATE, DELIVER, WIN, OPEN, VIEW)

    def __init__(self) -> None:
        self.commits: dict[tuple[str, OriginKey, int, int, str], _Commitment] = {}
        self.received: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.opened: defaultdict[PairKey, list[Row]] = defaultdict(list)
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.event == VIEW:
            self.views[row.node, row.inc].append(row)
        elif row.stream != Stream.UNIFORM:
            return
        elif row.event == TX:
            if row.kind == "commit" and row.seqno:  # 0 is nothing, and said by joiners too
                self._note(_Commitment(row, row.own_origin, row.seqno))
        elif row.event == DELIVER:
            self._note(_Commitment(row, row.origin, row.seqno2))
        elif row.event == OPEN:
            self.opened[row.pair].append(row)
            self.received[row.pair].rise(row.run_idx, row.seqno, row)
        elif row.event == WIN:
            self.received[row.pair].rise(row.run_idx, row.received, row)
        else:
            if not row.detail:
                self.received[row.pair].rise(row.run_idx, row.received, row)
            if row.kind == "commit":
                self._note(_Commitment(row, row.origin, row.seqno))

    def merge(self, other: ReceivedByAll) -> None:
        self.commits = other.commits | self.commits
        merge_progress(self.received, other.received)
        for pair, rows in other.opened.items():
            self.opened[pair] += rows
        for member, views in other.views.items():
            self.views[member] += views

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for commit in self.commits.values():
            row = commit.row
            if row.run_idx < 0:
                found.unknown.add(NO_RUN_ORDER)
                continue
            views = self.views.get((row.node, row.inc), [])
            if row.event == DELIVER:
                view = counted_on(row, self.views)
            else:
                view = next((view for view in views if view.view == row.view), None)
            if view is None:
                found.violate(f"{row.member} commits in view {row.view}, where it never was", row)
            elif row.event != ESTATE or view.members[0] == row.member:
                self._judge(commit, view, found)
        return found.verdict(self.id, self.title)

    def _note(self, commit: _Commitment) -> None:
        """The first time that this was said: it is repeated."""
        row = commit.row
        key = row.member, commit.origin, commit.through, row.view, row.event
        self.commits.setdefault(key, commit)

    def _judge(self, commit: _Commitment, view: Row, found: Findings) -> None:
        row, through = commit.row, commit.through
        for member in map(split_key, view.members):
            pair = (*member, *commit.origin)
            found.premises += 1
            received = self.received.get(pair, NOWHERE)
            if received.at(row.run_idx) < through and not self._is_excused(commit, pair, view):
                does = "delivers" if row.event == DELIVER else "commits"
                found.violate(
                    f"{row.member} {does} {commit.origin[0]}:{through} in view {row.view}, "
                    f"{member[0]} holds {received.at(row.run_idx)}",
                    *(view, received.row_at(row.run_idx), row),
                )

    def _is_excused(self, commit: _Commitment, pair: PairKey, view: Row) -> bool:
        if pair[:2] == pair[2:4]:
            return False
        opened = self.opened.get(pair, [])
        later = next((row for row in opened if row.run_idx > commit.row.run_idx), None)
        if later is not None:
            return later.seqno >= commit.through
        return not opened or has_ended(opened[-1], view, self.views)


class AllOrNone:
    """Survivors that go on together have delivered the same of a departed sender, and everything
    that any of them received when it installed the view without it."""

    id = "U6"
    title = "of a departed sender all survivors deliver the same, and all that any of them received"
    events = Deliveries.EVENTS

    def __init__(self, stream: Stream = Stream.UNIFORM) -> None:
        self.all = Deliveries(stream)

    def feed(self, row: Row) -> None:
        self.all.feed(row)

    def merge(self, other: AllOrNone) -> None:
        self.all.merge(other.all)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if not self.all.is_over:
            found.unknown.add(TOO_EARLY)
            return found.verdict(self.id, self.title)
        heirs: defaultdict[OriginKey, list[PairKey]] = defaultdict(list)
        for pair, rows in self.all.estates.items():
            if rows[-1].kind == BACK or not self.all.is_due(pair[:2], facts):
                continue
            if _first_of_last(rows).detail == "no window":
                continue
            heirs[pair[2:]].append(pair)
            self._judge_received(pair, found)
        for pairs in heirs.values():
            for one, other in combinations(sorted(pairs), 2):
                self._compare(one, other, found)
        return found.verdict(self.id, self.title)

    def _judge_received(self, pair: PairKey, found: Findings) -> None:
        found.premises += 1
        departure = _first_of_last(self.all.estates[pair])
        delivered = self.all.delivered.get(pair, NOWHERE)
        through = max(delivered.value, self._offset(pair))
        if through < departure.received:
            found.violate(
                f"{departure.member} received {departure.peer}:{departure.received} when that departed, "
                f"and has delivered {through}",
                *(departure, delivered.row),
            )

    def _compare(self, one: PairKey, other: PairKey, found: Findings) -> None:
        if not (self._goes_on_with(one, other) and self._goes_on_with(other, one)):
            return
        found.premises += 1
        ones = self.all.delivered.get(one, NOWHERE)
        others = self.all.delivered.get(other, NOWHERE)
        # One that began later, at what the other had delivered by then, need not deliver any.
        first = max(ones.value, self._offset(one))
        second = max(others.value, self._offset(other))
        if first != second:
            found.violate(
                f"of {one[2]}, who has departed, {one[0]} has delivered {first} and {other[0]} "
                f"{second}",
                *(self.all.estates[one][-1], self.all.estates[other][-1], ones.row, others.row),
            )

    def _goes_on_with(self, one: PairKey, other: PairKey) -> bool:
        """Whether the second is in all views of the first since the sender departed."""
        departure = _first_of_last(self.all.estates[one])
        views = self.all.lives.views.get(one[:2], [])
        key = f"{other[0]}#{other[1]}"
        return all(key in view.members for view in views if view.view >= departure.view)

    def _offset(self, pair: PairKey) -> int:
        opening = self.all.opened.get(pair)
        return 0 if opening is None else opening.seqno


def _first_of_last(rows: list[Row]) -> Row:
    """Where the last departure of a sender begins: it may have been back in between."""
    first = rows[0]
    for before, row in pairwise(rows):
        if before.kind in (RESOLVED, BACK):
            first = row
    return first
