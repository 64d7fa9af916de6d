"""V1, V-L1–V-L3: who is in the group. Members agree, come to one view, join and leave in time.

That views come in order and are the same everywhere is G4.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from ringcast.protocols.change import REPEAT_MAX_NS
from ringcast.protocols.discovery import ASK_MAX_NS, GATHER_NS
from ringcast.protocols.membership import JOIN_PATIENCE_NS
from ringcast.protocols.reunion import PATIENCE_NS, WAIT_MAX_NS
from ringcast.rules.algebra import Lives
from ringcast.rules.delivery import JoinerServed
from ringcast.rules.findings import Findings
from ringcast.trace.rows import PART, PHASE, START, STOP, VIEW, Facts, split_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringcast.config import MembershipConfig
    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import MemberKey, Row

LEAVE = "leave"
"""The application asks its member to leave; `stop` follows when it is out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts(Facts):
    """What is known of a run whose members make their own views."""

    nodes: int = 1
    """How many members there may be at one time."""
    discovery_ns: int = 0
    heartbeat_ns: int = 0
    suspect_ns: int = 0
    verify_ns: int = 0
    leave_ns: int = 0
    late_members: frozenset[str] = frozenset()
    """Member keys of those that slept, or whose clocks or timers were wrong, at some time."""
    component: Mapping[str, int] = field(default_factory=dict)
    """Who hears whom in the end, by member key: those with the same number. All do, by default."""
    state_ns: int = 0
    """How long it takes to give the largest state of the run, once it has begun."""

    @classmethod
    def of(
        cls,
        facts: Facts,
        config: MembershipConfig,
        *,
        nodes: int,
        late_members: frozenset[str],
        component: Mapping[str, int],
        state_ns: int = 0,
    ) -> GroupFacts:
        return cls(
            **{item.name: getattr(facts, item.name) for item in fields(Facts)},
            nodes=nodes,
            discovery_ns=round(config.discovery_wait_s * 1e9),
            heartbeat_ns=round(config.heartbeat_s * 1e9),
            suspect_ns=round(config.suspect_after_s * 1e9),
            verify_ns=round(config.verify_s * 1e9),
            leave_ns=round(config.leave_timeout_s * 1e9),
            late_members=late_members,
            component=component,
            state_ns=state_ns,
        )

    @property
    def missed_bound_ns(self) -> int:
        """Until the dead are left out.

        They are suspected, the coordinator is told and sees for itself; twice, because the first
        view may be what makes some of them watched. Then who answers nothing is overdue.
        """
        noticed = self.suspect_ns + self.heartbeat_ns + 2 * self.verify_ns
        overdue = 2 * self.suspect_ns + self.verify_ns
        return 2 * (noticed + REPEAT_MAX_NS) + overdue + self._rounds_ns(1)

    @property
    def join_bound_ns(self) -> int:
        """Until whoever starts is in a view.

        The dead are missed first, perhaps a predecessor at the same address. Of n that look at one
        time the lowest starts; others wait once more for each that was lower and has gone. A
        coordinator that fell silent costs one more search.
        """
        looking = self.nodes * self.discovery_ns + GATHER_NS
        return self.missed_bound_ns + 2 * looking + JOIN_PATIENCE_NS + self._rounds_ns(3)

    @property
    def leave_bound_ns(self) -> int:
        """Until whoever leaves is out: others take what it sent, then say goodbye."""
        return self.leave_ns + 2 * self.delta_ns

    @property
    def one_view_bound_ns(self) -> int:
        """Until all that live and hear each other are in one view, whatever was the case before.

        Who was left out joins again. Whoever last had to leave somebody out waits; then groups find
        out about each other, and come together two by two at the worst: each time one hears of the
        other, asks it, and all members of both are told.
        """
        reunion = ASK_MAX_NS + PATIENCE_NS + self._rounds_ns(3)
        return self.join_bound_ns + WAIT_MAX_NS + (self.nodes - 1) * reunion

    @property
    def merges_per_minute(self) -> int:
        """In how many merges a member may take part in a minute, whatever befalls the network.

        After each parting the next merge waits for twice as long: 1 + 2 + 4 + 8 + 16 + 16 seconds.
        So two members come together seven times at most.
        """
        return 7 * (self.nodes - 1)

    @property
    def views_per_minute(self) -> int:
        """How many views it may install then.

        Parting and coming together are two. Who is out and joins again does not wait, but a link
        that comes and goes must be down for long enough to be noticed, and up for as long.
        """
        rejoins = 30_000_000_000 // (self.suspect_ns + self.verify_ns)
        return 2 * (self.merges_per_minute + rejoins * (self.nodes - 1))

    def _rounds_ns(self, rounds: int) -> int:
        """So many in a row."""
        return rounds * self.round_ns

    @property
    def round_ns(self) -> int:
        """A request that is repeated less and less often, and its answer."""
        return REPEAT_MAX_NS + 2 * self.delta_ns


class Agreement:
    """Every view follows from its maker's last one, and reaches members who know the maker.

    A view lists those who stay, in the order in which they stood, and then those who are new. It
    is made by a member of the view before, or it is a first view: the maker alone. A member that
    has a view installs only what was made by a member of that; or what brings that very view
    together with others. Of which ones, all say the same, and nobody was in two of them. Whoever
    has departed comes back only as one of those others.
    """

    id = "V1"
    title = "every view follows from one that its maker was in"
    events = (VIEW, PART)

    def __init__(self) -> None:
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)
        self.parts: defaultdict[tuple[str, int], dict[MemberKey, list[Row]]] = defaultdict(dict)

    def feed(self, row: Row) -> None:
        if row.event == VIEW:
            self.views[row.node, row.inc].append(row)
        else:
            by_member = self.parts[row.view_creator, row.view]
            by_member.setdefault((row.node, row.inc), []).append(row)

    def merge(self, other: Agreement) -> None:
        for member, views in other.views.items():
            self.views[member] += views
        for view, by_member in other.parts.items():
            for member, rows in by_member.items():
                self.parts[view].setdefault(member, []).extend(rows)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for views in self.views.values():
            before: Row | None = None
            departed: set[str] = set()
            for row in views:
                found.premises += 1
                self._judge_maker(before, row, found)
                self._judge_order(row, found)
                self._judge_returns(departed, before, row, found)
                departed.update(() if before is None else before.members)
                departed.difference_update(row.members)
                before = row
        for by_member in self.parts.values():
            self._judge_parts(list(by_member.values()), found)
        return found.verdict(self.id, self.title)

    def _judge_maker(self, before: Row | None, row: Row, found: Findings) -> None:
        if before is None or row.view_creator in before.members:
            return
        parts = self._parts_told(row)
        if not any(_part_id(part) == (before.view_creator, before.view) for part in parts):
            found.violate(
                f"{row.member} installs view {row.view} of {row.view_creator}, who is not in its "
                f"view {before.view}, nor is that a part of it",
                *(before, row, *parts),
            )

    def _judge_returns(
        self, departed: set[str], before: Row | None, row: Row, found: Findings
    ) -> None:
        others = [part for part in self._parts_told(row) if row.member not in part.members]
        far = {key for part in others for key in part.members}
        for key in row.members:
            if key in departed and key not in far:
                found.violate(
                    f"{row.member} installs view {row.view} with {key} in it, who had departed, "
                    f"and no merge brings it back",
                    *(before, row, *others),
                )

    def _parts_told(self, row: Row) -> list[Row]:
        """The parts of this view, as its member was told of them."""
        return self.parts.get((row.view_creator, row.view), {}).get((row.node, row.inc), [])

    @staticmethod
    def _judge_parts(told: list[list[Row]], found: Findings) -> None:
        found.premises += 1
        first = told[0]
        everybody = [key for part in first for key in part.members]
        if len(set(everybody)) < len(everybody):
            found.violate(f"somebody was in two parts of view {first[0].view}", *first)
        for parts in told[1:]:
            if [(*_part_id(part), part.members) for part in parts] != [
                (*_part_id(part), part.members) for part in first
            ]:
                found.violate(
                    f"{first[0].member} and {parts[0].member} were told of different parts of "
                    f"view {first[0].view}",
                    *(*first, *parts),
                )

    def _judge_order(self, row: Row, found: Findings) -> None:
        maker = self.views.get(split_key(row.view_creator), [])
        base = next((view for view in reversed(maker) if view.view < row.view), None)
        if base is None:
            if row.members != (row.view_creator,):
                found.violate(
                    f"{row.member} installs view {row.view}, which {row.view_creator} made before "
                    f"it was in any",
                    row,
                )
            return
        stay = [key for key in base.members if key in row.members]
        new = [key for key in row.members if key not in base.members]
        if [*stay, *new] != [*row.members]:
            found.violate(
                f"view {row.view} of {row.view_creator} changes the order of its view {base.view}",
                *(base, row),
            )


class ServedByItsView(JoinerServed):
    """N9 where members make their own views: what a sender keeps, it keeps for its view.

    A member that was left out and has not heard of it may still open windows: nobody waits for it.
    Where such a window opens, delivery may start: the survivors may yet recover the stream.
    """

    events = (*JoinerServed.events, VIEW)

    def __init__(self) -> None:
        super().__init__()
        self.views: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        if row.event == VIEW:
            self.views[row.node, row.inc].append(row)
        else:
            super().feed(row)

    def merge(self, other: JoinerServed) -> None:
        super().merge(other)
        assert isinstance(other, ServedByItsView)
        for member, views in other.views.items():
            self.views[member] += views

    def must_serve(self, opening: Row) -> bool:
        """Unless the sender has gone on to a view without the member when the window opens."""
        mine = self._view_at((opening.node, opening.inc), opening.run_idx)
        theirs = self._view_at((opening.peer, opening.peer_inc), opening.run_idx)
        if mine is None or theirs is None:
            return True
        return theirs.view <= mine.view or opening.member in theirs.members

    def _view_at(self, member: MemberKey, run_idx: int) -> Row | None:
        views = self.views.get(member, [])
        return next((view for view in reversed(views) if view.run_idx < run_idx), None)


class Phases:
    """When the network was calm: before the faults, and from the healing on."""

    __slots__ = ("heal", "safety")

    def __init__(self) -> None:
        self.safety: Row | None = None
        self.heal: Row | None = None

    def feed(self, row: Row) -> None:
        if row.kind == "safety":
            self.safety = row
        elif row.kind == "heal":
            self.heal = row

    def merge(self, other: Phases) -> None:
        self.safety = self.safety or other.safety
        self.heal = self.heal or other.heal


class OneView:
    """Once the network has healed, all members that live end in one view of exactly them.

    It is judged by the last view of the run: one that comes too late, or changes again, counts.
    """

    id = "V-L1"
    title = "all that live come to one view, in time"
    events = (START, PHASE, *Lives.EVENTS)

    def __init__(self) -> None:
        self.started: dict[MemberKey, Row] = {}
        self.phases = Phases()
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == START:
            self.started[row.node, row.inc] = row
        elif row.event == PHASE:
            self.phases.feed(row)
        else:
            self.lives.feed(row)

    def merge(self, other: OneView) -> None:
        self.started |= other.started
        self.phases.merge(other.phases)
        self.lives.merge(other.lives)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        heal = self.phases.heal
        if not isinstance(facts, GroupFacts) or heal is None:
            return found.verdict(self.id, self.title)
        components: defaultdict[int, list[Row]] = defaultdict(list)
        for member, row in self.started.items():
            if self.lives.is_live(member):
                components[facts.component.get(row.member, 0)].append(row)
        for living in components.values():
            self._judge(living, heal, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(self, living: list[Row], heal: Row, facts: GroupFacts, found: Findings) -> None:
        """Those who hear each other."""
        everybody = {row.member for row in living}
        views = [self.lives.last_view((row.node, row.inc)) for row in living]
        late = [
            view or start
            for start, view in zip(living, views, strict=True)
            if view is None or set(view.members) != everybody or not _is_same(view, views[0])
        ]
        bound_ns = facts.one_view_bound_ns
        since_ns = heal.mono_ns
        settled_ns = max((view.mono_ns for view in views if view is not None), default=since_ns)
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
            last = max((view for view in views if view is not None), key=_time)
            found.violate(f"one view took {waited_ns} ns, the bound is {bound_ns}", heal, last)


def _part_id(part: Row) -> tuple[str, int]:
    return f"{part.peer}#{part.peer_inc}", part.seqno


def _is_same(view: Row, other: Row | None) -> bool:
    return other is not None and (view.view, view.view_creator) == (other.view, other.view_creator)


def _time(row: Row) -> int:
    return row.mono_ns


class _Wait:
    """From one event of a member to the next of another kind, while nothing disturbs.

    What began under faults counts from the healing on, if it still lasts. If only timers matter,
    what befell the network does not.
    """

    def __init__(self) -> None:
        self.begun: dict[MemberKey, Row] = {}
        self.ended: dict[MemberKey, Row] = {}
        self.phases = Phases()
        self.lives = Lives()

    def begin(self, row: Row) -> None:
        self.begun.setdefault((row.node, row.inc), row)

    def end(self, row: Row) -> None:
        self.ended.setdefault((row.node, row.inc), row)

    def merge(self, other: _Wait) -> None:
        self.begun = other.begun | self.begun
        self.ended = other.ended | self.ended
        self.phases.merge(other.phases)
        self.lives.merge(other.lives)

    def waits(
        self, facts: GroupFacts, *, needs_network: bool
    ) -> Iterator[tuple[Row, Row | None, int]]:
        """Each beginning, its end, and how long it took."""
        safety, heal = self.phases.safety, self.phases.heal
        for member, begun in self.begun.items():
            ended = self.ended.get(member)
            end_ns = facts.end_ns if ended is None else ended.mono_ns
            if ended is None and not self.lives.is_live(member):
                continue  # it crashed on the way
            is_calm = safety is None or end_ns <= safety.mono_ns
            if is_calm or not (needs_network or begun.member in facts.late_members):
                yield begun, ended, end_ns - begun.mono_ns
            elif heal is not None and end_ns >= heal.mono_ns:
                yield begun, ended, end_ns - max(begun.mono_ns, heal.mono_ns)


class JoinedInTime:
    """Whoever starts is in a view soon: in its group's, or in one of its own."""

    id = "V-L2"
    title = "whoever starts is in a view, in time"
    events = (START, PHASE, *Lives.EVENTS)

    def __init__(self) -> None:
        self.wait = _Wait()

    def feed(self, row: Row) -> None:
        if row.event == START:
            self.wait.begin(row)
        elif row.event == PHASE:
            self.wait.phases.feed(row)
        elif row.event == VIEW:
            self.wait.end(row)
        if row.event in Lives.EVENTS:
            self.wait.lives.feed(row)

    def merge(self, other: JoinedInTime) -> None:
        self.wait.merge(other.wait)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if isinstance(facts, GroupFacts):
            bound_ns = facts.join_bound_ns
            for begun, ended, waited_ns in self.wait.waits(facts, needs_network=True):
                if ended is None and waited_ns <= bound_ns:
                    continue  # the run ended while there was still time
                found.premises += 1
                found.waited(waited_ns, bound_ns)
                if waited_ns > bound_ns:
                    found.violate(
                        f"{begun.member} is in no view for {waited_ns} ns, the bound is {bound_ns}",
                        *(begun, ended),
                    )
        return found.verdict(self.id, self.title)


class LeftInTime:
    """Whoever is asked to leave is out soon, also if nobody answers."""

    id = "V-L3"
    title = "whoever leaves is out, in time"
    events = (LEAVE, PHASE, *Lives.EVENTS)

    def __init__(self) -> None:
        self.wait = _Wait()

    def feed(self, row: Row) -> None:
        if row.event == LEAVE:
            self.wait.begin(row)
        elif row.event == PHASE:
            self.wait.phases.feed(row)
        elif row.event == STOP:
            self.wait.end(row)
        if row.event in Lives.EVENTS:
            self.wait.lives.feed(row)

    def merge(self, other: LeftInTime) -> None:
        self.wait.merge(other.wait)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if isinstance(facts, GroupFacts):
            bound_ns = facts.leave_bound_ns
            for begun, ended, waited_ns in self.wait.waits(facts, needs_network=False):
                if ended is None and waited_ns <= bound_ns:
                    continue
                found.premises += 1
                found.waited(waited_ns, bound_ns)
                if waited_ns > bound_ns:
                    found.violate(
                        f"{begun.member} has not left after {waited_ns} ns, the bound is "
                        f"{bound_ns}",
                        *(begun, ended),
                    )
        return found.verdict(self.id, self.title)
