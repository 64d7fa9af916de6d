"""VS1–VS7, VS9: virtual synchrony. What is sent in a view is delivered in it, by all who go on."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules.findings import Findings
from ringcast.rules.history import Condensed, History
from ringcast.trace.rows import VIEW, split_key

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import ClassVar, Self

    from ringcast.rules.findings import Verdict
    from ringcast.rules.history import Life, Span, Stay, Step
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, Row, ViewKey


class ViewOrder:
    """Counters grow at each member, which is itself in its views. One id is one list of members;
    those who come together are the same to all of them, and so is where they end the view before.
    """

    id = "VS1"
    title = "views come in order and are the same everywhere, with one cut"
    events = (VIEW,)

    def __init__(self) -> None:
        self.first: dict[MemberKey, Row] = {}
        self.last: dict[MemberKey, Row] = {}
        self.told: defaultdict[ViewKey, dict[MemberKey, Row]] = defaultdict(dict)
        self.found = Findings()

    def feed(self, row: Row) -> None:
        self.found.premises += 1
        member = row.node, row.inc
        self._follow(self.last.get(member), row)
        self.first.setdefault(member, row)
        self.last[member] = row
        self.told[row.view_key].setdefault(member, row)
        if row.member not in row.members:
            self.found.violate(f"{row.member} installs view {row.view} without itself", row)

    def merge(self, other: ViewOrder) -> None:
        self.found.merge(other.found)
        for member, row in other.first.items():
            self._follow(self.last.get(member), row)
        self.first = other.first | self.first
        self.last |= other.last
        for view, rows in other.told.items():
            self.told[view] = rows | self.told[view]

    def finish(self, facts: Facts) -> Verdict:
        found = self.found.copy()
        for (counter, creator), told in self.told.items():
            rows = sorted(told.values(), key=_own_place)
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
        return found.verdict(self.id, self.title)

    def _follow(self, earlier: Row | None, row: Row) -> None:
        if earlier is not None and row.view <= earlier.view:
            self.found.violate(
                f"{row.member} installs view {row.view} after view {earlier.view}", earlier, row
            )


class _OfViews:
    """A rule that judges what all members did, view by view."""

    id: ClassVar[str]
    title: ClassVar[str]
    events = Condensed.EVENTS

    def __init__(self) -> None:
        self.condensed = Condensed()

    def feed(self, row: Row) -> None:
        self.condensed.feed(row)

    def merge(self, other: Self) -> None:
        self.condensed.merge(other.condensed)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        self.judge(History(self.condensed), facts, found)
        return found.verdict(self.id, self.title)

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        raise NotImplementedError


class SentInItsView(_OfViews):
    """What is delivered in a view was sent in it. A large message counts fragment by fragment: it
    is delivered in the view of the last."""

    id = "VS2"
    title = "what is delivered in a view was sent in it"

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        for life in history.lives.values():
            for row in life.unplaced:
                found.premises += 1
                found.violate(f"{_delivers(row)} in view {row.view}, where it never was", row)
            for stay in life.stays.values():
                for origin, span in stay.delivered.items():
                    found.premises += 1
                    self._judge(history, stay, origin, span, found)

    @staticmethod
    def _judge(
        history: History, stay: Stay, origin: OriginKey, span: Span, found: Findings
    ) -> None:
        sender = history.lives.get(origin[:2])
        there = None if sender is None else sender.stays.get(stay.key)
        sent = None if there is None else there.sent.get(origin[2])
        if sent is not None and sent.first <= span.first and span.last <= sent.last:
            return
        has_all = sender is not None and sender.has_all_of(stay.key)
        if not has_all and (sent is None or sent.first <= span.first):
            found.unknown.add(f"what {origin[0]}#{origin[1]} sent: its tail is lost")
            return
        was = "nothing" if sent is None else f"{sent.first}..{sent.last}"
        found.violate(
            f"{_delivers(span.row)} in view {stay.view.view}; sent in it was {was}",
            *(stay.view, None if sent is None else sent.row, span.row),
        )


class PrefixOfTheView(_OfViews):
    """Of each origin a member delivers in a view a prefix of what that one sent in it: in order,
    once, without a gap. A window that opens with a view does so at what its sender had sent."""

    id = "VS3"
    title = "in each view a prefix of what a sender sent in it is delivered, from its beginning on"

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        for life in history.lives.values():
            for stay in life.stays.values():
                for origin, opening in stay.opened.items():
                    self._judge_opening(history, origin, opening, found)
                for origin, span in stay.delivered.items():
                    self._judge(history, stay, origin, span, found)

    @staticmethod
    def _judge_opening(history: History, origin: OriginKey, opening: Row, found: Findings) -> None:
        sender = history.lives.get(origin[:2])
        had_sent = None if sender is None else sender.last_sent(origin, opening.view_key)
        if had_sent is None:
            return  # The sender never was in that view: nothing of it is delivered there (VS2).
        found.premises += 1
        if opening.seqno != had_sent:
            found.violate(
                f"{opening.member} opens {opening.peer} at {opening.seqno} with view "
                f"{opening.view}, when that one had sent {had_sent}",
                opening,
            )

    @staticmethod
    def _judge(
        history: History, stay: Stay, origin: OriginKey, span: Span, found: Findings
    ) -> None:
        found.premises += 1
        if span.torn is not None:
            found.violate(f"{_delivers(span.torn)}, out of order", stay.view, span.torn)
        sender = history.lives.get(origin[:2])
        there = None if sender is None else sender.stays.get(stay.key)
        sent = None if there is None else there.sent.get(origin[2])
        if sent is not None and sent.first < span.first:
            found.violate(
                f"{span.row.member} delivers {span.row.peer} in view {stay.view.view} from "
                f"{span.first}; that one sent from {sent.first} on",
                *(stay.view, sent.row, span.row),
            )


class AllOfWhoGoesAlong(_OfViews):
    """Whoever goes from one view to the next has delivered all that was sent in it by those who go
    along: they are together with it, also if they leave with the change."""

    id = "VS4"
    title = "all that members who go along sent in a view is delivered in it"

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        for step in history.steps():
            for key in step.together:
                sender = history.life(key)
                there = None if sender is None else sender.stays.get(step.stay.key)
                if there is not None:
                    for stream, sent in there.sent.items():
                        self._judge(step, (*split_key(key), stream), sent, found)

    @staticmethod
    def _judge(step: Step, origin: OriginKey, sent: Span, found: Findings) -> None:
        found.premises += (step.stay.view.node, step.stay.view.inc) != origin[:2]
        through = step.stay.through(origin)
        if through < sent.last:
            found.violate(
                f"{_goes(step)} with {origin[0]}, who sent {sent.first}..{sent.last}, and has "
                f"delivered {_upto(through)}",
                *(sent.row, step.stay.row_of(origin), step.next.view, step.next.shown),
            )


class SameTogether(_OfViews):
    """Two who go from one view to the next together have delivered the same in it: of everybody on
    uniform streams and where messages are retained, else of those who come along."""

    id = "VS5"
    title = "who goes from view to view together has delivered the same"

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        for steps in history.going().values():
            origins = {origin: None for step in steps for origin in step.stay.delivered}
            for origin in origins:
                is_kept = facts.is_retained or origin[2] == Stream.UNIFORM
                key = f"{origin[0]}#{origin[1]}"
                if is_kept or key in steps[0].together:
                    found.premises += len(steps) > 1
                    self._judge(steps, origin, found)

    @staticmethod
    def _judge(steps: list[Step], origin: OriginKey, found: Findings) -> None:
        most = max(steps, key=lambda step: step.stay.through(origin))
        for step in steps:
            if step.stay.through(origin) < most.stay.through(origin):
                found.violate(
                    f"{_goes(step)} with {_upto(step.stay.through(origin))} of {origin[0]}, "
                    f"{most.stay.view.member} with {most.stay.through(origin)}",
                    *(step.stay.row_of(origin), most.stay.row_of(origin)),
                    *(step.next.view, most.next.view),
                )


class UniformInAll(_OfViews):
    """A uniform message that anybody has delivered in a view because all members of it held it is
    delivered by everybody who leaves that view. What comes with the cut of the next view, by
    everybody together with it who leaves the view, for whichever next."""

    id = "VS6"
    title = "what anybody delivers of uniform messages all who leave the view have delivered in it"

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        leaving = history.leaving()
        for life in history.lives.values():
            for stay in life.stays.values():
                for origin, span in stay.delivered.items():
                    if origin[2] == Stream.UNIFORM and span.by_commit is not None:
                        others = leaving.get(stay.key, [])
                        self._judge(origin, span.by_commit, others, "by commit", found)
            for step in life.steps:
                together = [
                    other
                    for other in leaving[step.stay.key]
                    if other.stay.view.member in step.together
                ]
                for origin, span in step.stay.delivered.items():
                    if origin[2] == Stream.UNIFORM:
                        by = f"by the cut of view {step.next.view.view}"
                        self._judge(origin, span.row, together, by, found)

    @staticmethod
    def _judge(
        origin: OriginKey, row: Row, others: Iterable[Step], by: str, found: Findings
    ) -> None:
        for other in others:
            found.premises += other.stay.view.member != row.member
            through = other.stay.through(origin)
            if through < row.seqno2:
                found.violate(
                    f"{_goes(other)} with {_upto(through)} of {origin[0]}; {row.member} has "
                    f"delivered {row.seqno2} {by}",
                    *(row, other.stay.row_of(origin), other.next.view),
                )


class NoNeedlessLoss(_OfViews):
    """Who misses a view that another one of it was in, and goes on with that one, was parted from
    it: some proposal since had one of the two and not the other. Else it installs that view first,
    though it has promised a later one."""

    id = "VS7"
    title = "nobody misses a view of members that it was never parted from"

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        proposals = {
            row.view_key: frozenset(row.members)
            for life in history.lives.values()
            for row in life.freezes
        }
        is_known = all(life.is_whole for life in history.lives.values())
        for life in history.lives.values():
            found.premises += life.finished
            for stay, after in pairwise(life.stays.values()):
                for key in after.view.members:
                    peer = history.life(key)
                    if peer is not None and after.key in peer.stays:
                        for missed in _between(stay, after, peer):
                            if life.stays.get(missed.key) is None:
                                self._judge(stay, after, missed, proposals, found, is_known)

    @staticmethod
    def _judge(
        stay: Stay,
        after: Stay,
        missed: Stay,
        proposals: dict[ViewKey, frozenset[str]],
        found: Findings,
        is_known: bool,
    ) -> None:
        pair = {stay.view.member, missed.view.member}
        if not pair <= set(missed.view.members):
            return
        found.premises += 1
        parted = (
            len(pair & members) == 1
            for id, members in proposals.items()
            if id[0] >= stay.key[0] and id != stay.key
        )
        if any(parted):
            return
        if not is_known:
            found.unknown.add("who was proposed a view: the tails of some are lost")
        else:
            found.violate(
                f"{stay.view.member} misses view {missed.view.view} of {missed.view.member}, and "
                f"nobody has parted them since view {stay.view.view}",
                *(stay.view, missed.view, after.view),
            )


class SilentWhileFrozen(_OfViews):
    """Whoever has promised a proposal gives no seqno until its next view; and then in that."""

    id = "VS9"
    title = "a frozen member gives no number, and a send belongs to the view where it gets one"

    def judge(self, history: History, facts: Facts, found: Findings) -> None:
        for life in history.lives.values():
            found.premises += len(life.freezes) if life.stays else 0
            for row, change in life.astray:
                what = "is frozen for" if change and change.event != VIEW else "is in"
                view = "no view" if change is None else f"view {change.view}"
                found.violate(
                    f"{row.member} {what} {view} and sends {row.seqno}..{row.seqno2} in view "
                    f"{row.view}",
                    *(change, row),
                )


def _between(stay: Stay, after: Stay, peer: Life) -> list[Stay]:
    """The views that this one was in after the one and before the other."""
    return [each for key, each in peer.stays.items() if stay.key[0] < key[0] < after.key[0]]


def _delivers(row: Row) -> str:
    return f"{row.member} delivers {row.peer}:{row.seqno}..{row.seqno2}"


def _goes(step: Step) -> str:
    stay, after = step.stay.view, step.next.view
    return f"{stay.member} goes from view {stay.view} to {after.view}"


def _upto(seqno: int) -> str:
    return str(seqno) if seqno else "nothing"


def _own_place(row: Row) -> tuple[str, int, int]:
    return row.node, row.inc, row.idx
