"""V-L1–V-L4: all that live come to one view, join and leave in time, and come to rest.

That views come in order and are the same everywhere is VS1.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.rules import bounds
from ringcast.rules.algebra import Lives
from ringcast.rules.changes import Phases
from ringcast.rules.findings import Findings
from ringcast.trace.rows import (
    PHASE,
    START,
    STATE_LOST,
    STATE_RECEIVED,
    STATE_WAIT,
    STOP,
    VIEW,
    split_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import ClassVar, Self

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, Row

LEAVE = "leave"
"""The application asks its member to leave; `stop` follows when it is out."""


class OneView:
    """Once the network has healed, all members that live end in one view of exactly them.

    It is judged by the last view of the run: one that comes too late, or changes again, counts.
    But while one of them waits for its state, views of the same members, all together, follow each
    other to find who gives it. They change nothing here; how long it waits is T-L1.
    """

    id = "V-L1"
    title = "all that live come to one view, in time"
    events = (START, PHASE, STATE_WAIT, STATE_RECEIVED, STATE_LOST, *Lives.EVENTS)

    def __init__(self) -> None:
        self.started: dict[MemberKey, Row] = {}
        self.phases = Phases()
        self.lives = Lives()
        self.states: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.event == START:
            self.started[row.node, row.inc] = row
        elif row.event == PHASE:
            self.phases.feed(row)
        elif row.event in Lives.EVENTS:
            self.lives.feed(row)
        else:
            self.states[row.node, row.inc].append(row)

    def merge(self, other: OneView) -> None:
        self.started |= other.started
        self.phases.merge(other.phases)
        self.lives.merge(other.lives)
        for member, rows in other.states.items():
            self.states[member] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        heal = self.phases.heal
        if heal is None:
            return found.verdict(self.id, self.title)
        components: defaultdict[int, list[Row]] = defaultdict(list)
        for member, row in sorted(self.started.items()):
            if self.lives.is_live(member):
                components[facts.component.get(row.member, 0)].append(row)
        for living in components.values():
            self._judge(living, heal, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(self, living: list[Row], heal: Row, facts: Facts, found: Findings) -> None:
        """Those who hear each other."""
        everybody = {row.member for row in living}
        views = [self.lives.last_view((row.node, row.inc)) for row in living]
        late = [
            view or start
            for start, view in zip(living, views, strict=True)
            if view is None or set(view.members) != everybody or not _is_same(view, views[0])
        ]
        bound_ns = bounds.one_view_ns(facts)
        since_ns = heal.mono_ns
        settled = [self._settled((row.node, row.inc)) for row in living]
        settled_ns = max((view.mono_ns for view in settled if view is not None), default=since_ns)
        if late and facts.end_ns <= since_ns + bound_ns:
            found.unknown.add("whether all come to one view: the run ended too early")
            return
        found.premises += 1
        waited_ns = max(0, (facts.end_ns if late else settled_ns) - since_ns)
        found.waited(waited_ns, bound_ns)
        if late:
            found.violate(
                f"{', '.join(sorted(everybody))} live and are not in one view after {waited_ns} "
                f"ns, the bound is {bound_ns}",
                *late,
            )
        elif waited_ns > bound_ns:
            last = max((view for view in settled if view is not None), key=_time)
            found.violate(f"one view took {waited_ns} ns, the bound is {bound_ns}", heal, last)

    def _settled(self, member: MemberKey) -> Row | None:
        """The view that brought its last members together."""
        view: Row | None = None
        for earlier in reversed(self.lives.views.get(member, [])):
            if view is not None and not (_is_repeated(earlier, view) and self._is_for_state(view)):
                break
            view = earlier
        return view

    def _is_for_state(self, view: Row) -> bool:
        """Whether somebody waited for its state when this view came."""
        for member in map(split_key, view.members):
            rows = [row for row in self.states.get(member, []) if row.mono_ns <= view.mono_ns]
            if rows and rows[-1].event == STATE_WAIT:
                return True
        return False


def _is_repeated(before: Row, view: Row) -> bool:
    """Whether all members of the one come to the other together, and nobody else."""
    return set(before.members) == set(view.members) == set(view.part)


def _is_same(view: Row, other: Row | None) -> bool:
    return other is not None and view.view_key == other.view_key


def _time(row: Row) -> int:
    return row.mono_ns


class _Wait:
    """From one event of a member to the next of another kind, while nothing disturbs.

    What began under faults counts from the healing on, if it still lasts.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    events: ClassVar[tuple[str, ...]]
    begins: ClassVar[str]
    ends: ClassVar[str]

    def __init__(self) -> None:
        self.begun: dict[MemberKey, Row] = {}
        self.ended: dict[MemberKey, Row] = {}
        self.phases = Phases()
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == self.begins:
            self.begun.setdefault((row.node, row.inc), row)
        elif row.event == self.ends:
            self.ended.setdefault((row.node, row.inc), row)
        if row.event == PHASE:
            self.phases.feed(row)
        elif row.event in Lives.EVENTS:
            self.lives.feed(row)

    def merge(self, other: Self) -> None:
        self.begun = other.begun | self.begun
        self.ended = other.ended | self.ended
        self.phases.merge(other.phases)
        self.lives.merge(other.lives)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for member, begun in self.begun.items():
            ended = self.ended.get(member)
            if ended is None and not self.lives.is_live(member):
                continue  # it crashed on the way
            end_ns = facts.end_ns if ended is None else ended.mono_ns
            since_ns = self.since(begun, end_ns, facts)
            if since_ns is not None:
                self._judge(begun, ended, end_ns - since_ns, facts, found)
        return found.verdict(self.id, self.title)

    def since(self, begun: Row, end_ns: int, facts: Facts) -> int | None:
        """From when on the time runs; None: it is not judged."""
        return self.phases.calm_since(begun.mono_ns, end_ns)

    def bound_ns(self, begun: Row, facts: Facts) -> int:
        raise NotImplementedError

    def _judge(
        self, begun: Row, ended: Row | None, waited_ns: int, facts: Facts, found: Findings
    ) -> None:
        bound_ns = self.bound_ns(begun, facts)
        if ended is None and waited_ns <= bound_ns:
            return  # the run ended while there was still time
        found.premises += 1
        found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            found.violate(
                f"{begun.member}: {self.begins}, and no {self.ends} for {waited_ns} ns, the bound "
                f"is {bound_ns}",
                *(begun, ended),
            )


class JoinedInTime(_Wait):
    """Whoever starts is in a view soon: in its group's, or in one of its own."""

    id = "V-L2"
    title = "whoever starts is in a view, in time"
    events = (START, PHASE, *Lives.EVENTS)
    begins, ends = START, VIEW

    def bound_ns(self, begun: Row, facts: Facts) -> int:
        return bounds.join_ns(facts)


class LeftInTime(_Wait):
    """Whoever is asked to leave is out soon, also if nobody answers; on a network that works as
    soon as what it has sent has its seqnos."""

    id = "V-L3"
    title = "whoever leaves is out, in time"
    events = (LEAVE, PHASE, *Lives.EVENTS)
    begins, ends = LEAVE, STOP

    def since(self, begun: Row, end_ns: int, facts: Facts) -> int | None:
        if begun.member not in facts.late_members:
            return begun.mono_ns  # its own timer counts, whatever befell the network
        return super().since(begun, end_ns, facts)

    def bound_ns(self, begun: Row, facts: Facts) -> int:
        is_calm = facts.gst_ns is not None and begun.mono_ns >= facts.gst_ns
        return bounds.leave_soon_ns(facts) if is_calm else bounds.leave_ns(facts)


class Restful:
    """However links come and go, views do not follow for ever: in any minute not too many, and
    much fewer that bring somebody back.

    They are counted by name: whoever comes back as another incarnation has had the views before.
    """

    id = "V-L4"
    title = "links that come and go do not make and break the group without end"
    events = (VIEW,)

    def __init__(self) -> None:
        self.views: defaultdict[str, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        self.views[row.node].append(row)

    def merge(self, other: Restful) -> None:
        for node, rows in other.views.items():
            self.views[node] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for views in self.views.values():
            views = sorted(views, key=_time)
            returns = list(_returns(views))
            _judge_rate("views", views, bounds.views_per_minute(facts), found)
            _judge_rate("returns", returns, bounds.merges_per_minute(facts), found)
        return found.verdict(self.id, self.title)


def _returns(views: Iterable[Row]) -> Iterator[Row]:
    """Those that bring somebody back who was there before."""
    seen: set[str] = set()
    for view in views:
        if any(key in seen and key not in view.part for key in view.members):
            yield view
        seen.update(view.members)


def _judge_rate(what: str, rows: list[Row], bound: int, found: Findings) -> None:
    """Whether there are so many in any minute; the first time is reported."""
    found.premises += len(rows)
    first = 0
    is_reported = False
    for last, row in enumerate(rows):
        while row.mono_ns - rows[first].mono_ns > bounds.MINUTE_NS:
            first += 1
        count = last - first + 1
        found.waited(count, bound)
        if count > bound and not is_reported:
            is_reported = True
            found.violate(
                f"{row.node} installs {count} {what} within a minute, the bound is {bound}",
                *(rows[first], row),
            )
