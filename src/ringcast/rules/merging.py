"""N18, V2, V-L4: groups that were parted come together. What that brings, leaves alone, and costs.

Two members are *together* at one of them from a view with both in it on, until one without the
other, or one that brings groups together of which they were not in the same.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ringcast.rules.algebra import NOWHERE, Progress, merge_progress
from ringcast.rules.findings import Findings
from ringcast.rules.membership import GroupFacts
from ringcast.trace.rows import OPEN, PART, SEND, VIEW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row

MINUTE_NS = 60_000_000_000
NO_RUN_ORDER = "where senders stood when windows opened: no run order"


class Meeting(NamedTuple):
    """How a receiver and a sender came together, before a window opened."""

    before: Row | None
    """The receiver's view before that; None: it has just joined."""
    mine: Row
    """The receiver's view with which they came together."""
    theirs: list[tuple[Row | None, Row]]
    """The same of the sender, since the receiver last saw it gone: more than once, if it has lost
    sight of the receiver meanwhile."""
    is_new: bool
    """The sender was being let in then."""


class Togetherness:
    """Who was together with whom, by the views that each member installed."""

    EVENTS = (VIEW, PART)

    __slots__ = ("parts", "views")

    def __init__(self) -> None:
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)
        self.parts: defaultdict[tuple[str, int], dict[tuple[str, ...], int]] = defaultdict(dict)
        """Of each view that is a merge: who came together, and the counter of their view."""

    def feed(self, row: Row) -> None:
        if row.event == VIEW:
            self.views[row.node, row.inc].append(row)
        else:
            self.parts[row.view_creator, row.view][row.members] = row.seqno

    def merge(self, other: Togetherness) -> None:
        for member, views in other.views.items():
            self.views[member] += views
        for view, parts in other.parts.items():
            self.parts[view] |= parts

    def parts_of(self, view: Row) -> dict[tuple[str, ...], int]:
        """The groups that came together in this view; none, if it is no merge."""
        return self.parts.get((view.view_creator, view.view), {})

    def meeting(self, opening: Row) -> Meeting | None:
        """How the two members of this window came together; None: the receiver never saw it."""
        peer = f"{opening.peer}#{opening.peer_inc}"
        mine = [
            each
            for each in self._beginnings((opening.node, opening.inc), peer)
            if each[1].idx < opening.idx
        ]
        if not mine:
            return None
        before, view = mine[-1]
        since = self._partitioned_at((opening.node, opening.inc), peer, view)
        theirs = [
            each
            for each in self._beginnings((opening.peer, opening.peer_inc), opening.member)
            if each[1].run_idx < opening.run_idx and each[1].view > since
        ]
        first = next(iter(self.views.get((opening.peer, opening.peer_inc), [])), None)
        is_new = first is None or first.run_idx > opening.run_idx or first.view >= view.view
        return Meeting(before, view, theirs, is_new)

    def _beginnings(self, member: MemberKey, peer: str) -> Iterator[tuple[Row | None, Row]]:
        """Each view with which this member came together with the peer, and the one before."""
        before: Row | None = None
        for view in self.views.get(member, []):
            if peer in view.members and (
                before is None or peer not in before.members or self._brings(before, view, peer)
            ):
                yield before, view
            before = view

    def _partitioned_at(self, member: MemberKey, peer: str, until: Row) -> int:
        """The counter of the last view up to then with which this member saw the peer gone."""
        counter = 0
        for before, view in pairwise(self.views.get(member, [])):
            if view.idx > until.idx:
                break
            if peer in before.members and peer not in view.members:
                counter = view.view
        return counter

    def _brings(self, before: Row, view: Row, peer: str) -> bool:
        """Whether this view brings its member and the peer together from different groups, though
        the member did not know yet that they had parted. A later view may tell of the same parts
        again: that is nothing new to whoever was in the first."""
        return any(
            view.member in part and peer not in part and before.view <= counter
            for part, counter in self.parts_of(view).items()
        )


class BeginsWhereNamed:
    """Of a member of another group, or of one that was away, everybody delivers exactly what it
    sent since it was together with them: its window opens at what it had sent when it installed
    the view with both of them in it.

    A sender may have lost sight of a receiver more than once before the receiver heard of it; then
    any of those places is right. But none from before the receiver itself last saw it gone.
    Joiners are for N9: their windows open where whoever let them in stood.
    """

    id = "V2"
    title = "after a merge, what was sent since is delivered, and nothing from before"
    events = (OPEN, SEND, *Togetherness.EVENTS)

    def __init__(self) -> None:
        self.opened: list[Row] = []
        self.sent: defaultdict[OriginKey, Progress] = defaultdict(Progress)
        self.together = Togetherness()

    def feed(self, row: Row) -> None:
        if row.event == OPEN:
            self.opened.append(row)
        elif row.event == SEND:
            self.sent[row.own_origin].rise(row.run_idx, row.seqno2, row)
        else:
            self.together.feed(row)

    def merge(self, other: BeginsWhereNamed) -> None:
        self.opened += other.opened
        merge_progress(self.sent, other.sent)
        self.together.merge(other.together)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for row in self.opened:
            if row.run_idx < 0:
                found.unknown.add(NO_RUN_ORDER)
                continue
            meeting = self.together.meeting(row)
            if meeting is not None and meeting.before is not None:
                self._judge(row, meeting, found)
        return found.verdict(self.id, self.title)

    def _judge(self, row: Row, meeting: Meeting, found: Findings) -> None:
        found.premises += any(before is not None for before, _ in meeting.theirs)
        sent = self.sent.get(row.origin, NOWHERE)
        places = [sent.at(view.run_idx) for _, view in meeting.theirs] or [0] * meeting.is_new
        if row.seqno not in places:
            found.violate(
                f"{row.member} opens {row.peer} at {row.seqno}; {row.peer} has come together with "
                f"it when it had sent {', '.join(map(str, places)) or 'nothing: never'}",
                *(meeting.mine, *(view for _, view in meeting.theirs), row),
            )


class WindowsStay:
    """A window ends only when its two members have not been together all the time, as one of them
    saw it. So no merge moves the window of a member that was there before.

    Premises are the windows that were open when groups came together.
    """

    id = "N18"
    title = "a merge moves no window that was there before"
    events = (OPEN, *Togetherness.EVENTS)

    def __init__(self) -> None:
        self.opened: defaultdict[PairKey, list[Row]] = defaultdict(list)
        self.together = Togetherness()

    def feed(self, row: Row) -> None:
        if row.event == OPEN:
            self.opened[row.pair].append(row)
        else:
            self.together.feed(row)

    def merge(self, other: WindowsStay) -> None:
        for pair, rows in other.opened.items():
            self.opened[pair] += rows
        self.together.merge(other.together)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for rows in self.opened.values():
            found.premises += self._merges(rows)
            if rows[0].run_idx < 0:
                found.unknown.add(NO_RUN_ORDER)
            else:
                self._judge(rows, found)
        return found.verdict(self.id, self.title)

    def _merges(self, rows: list[Row]) -> int:
        """Views that brought others to the two members of these windows, while one was open."""
        peer = f"{rows[0].peer}#{rows[0].peer_inc}"
        return sum(
            rows[0].idx < view.idx
            and any(view.member in part and peer in part for part in self.together.parts_of(view))
            for view in self.together.views.get((rows[0].node, rows[0].inc), [])
        )

    def _judge(self, rows: list[Row], found: Findings) -> None:
        """Each time they come together, as either of them sees it, is good for one window."""
        since: Row | None = None
        opened: list[Row] = []
        for row in rows:
            meeting = self.together.meeting(row)
            if meeting is None:
                continue  # N8 sees to it
            if meeting.mine is not since:
                since, opened = meeting.mine, []
            opened.append(row)
            if len(opened) > max(1, len(meeting.theirs)):
                found.violate(
                    f"{row.member} opens {row.peer} again, at {row.seqno}, though they have been "
                    f"together since view {meeting.mine.view}",
                    *(meeting.mine, *opened),
                )


class Restful:
    """However links come and go, views do not follow for ever: in any minute not too many, and of
    merges much fewer.

    They are counted by name: whoever comes back as another incarnation has had the views before.
    """

    id = "V-L4"
    title = "links that come and go do not make and break the group without end"
    events = Togetherness.EVENTS

    def __init__(self) -> None:
        self.together = Togetherness()

    def feed(self, row: Row) -> None:
        self.together.feed(row)

    def merge(self, other: Restful) -> None:
        self.together.merge(other.together)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if isinstance(facts, GroupFacts):
            by_name: defaultdict[str, list[Row]] = defaultdict(list)
            for (node, _), views in self.together.views.items():
                by_name[node] += views
            for views in by_name.values():
                views.sort(key=_time)
                merges = [view for view in views if self.together.parts_of(view)]
                _judge_rate("views", views, facts.views_per_minute, found)
                _judge_rate("merges", merges, facts.merges_per_minute, found)
        return found.verdict(self.id, self.title)


def _judge_rate(what: str, rows: list[Row], bound: int, found: Findings) -> None:
    """Whether there are so many in any minute; the first time is reported."""
    found.premises += len(rows)
    first = 0
    is_reported = False
    for last, row in enumerate(rows):
        while row.mono_ns - rows[first].mono_ns > MINUTE_NS:
            first += 1
        count = last - first + 1
        found.waited(count, bound)
        if count > bound and not is_reported:
            is_reported = True
            found.violate(
                f"{row.node} installs {count} {what} within a minute, the bound is {bound}",
                *(rows[first], row),
            )


def _time(row: Row) -> int:
    return row.mono_ns
