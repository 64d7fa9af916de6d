"""V-L5, V-L6: how long view changes hold members up."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ringcast.rules import bounds
from ringcast.rules.findings import Findings
from ringcast.trace.rows import CRASH, FREEZE, PHASE, STOP, TX, VIEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import ClassVar, Self

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, Row


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

    def calm_since(self, begun_ns: int, end_ns: int) -> int | None:
        """From when on something that took so long was not disturbed; None: it was to the end."""
        if self.safety is None or end_ns <= self.safety.mono_ns:
            return begun_ns
        if self.heal is not None and end_ns >= self.heal.mono_ns:
            return max(begun_ns, self.heal.mono_ns)
        return None


class Frozen(NamedTuple):
    """From when to when one member was frozen."""

    promised: tuple[Row, ...]
    """The proposals that held it, at least one."""
    end: Row | None
    """With which it ended; None: it has not."""
    before: Row | None
    """The view that it was in."""

    @property
    def first(self) -> Row:
        return self.promised[0]

    @property
    def last(self) -> Row:
        return self.promised[-1]

    def asked(self, since_ns: int) -> set[str]:
        """The members of the proposals that it has promised since then."""
        return {key for row in self.promised if row.mono_ns >= since_ns for key in row.members}


class Freezes:
    """When members were frozen: senders are held then, and messages wait for the next view."""

    EVENTS = (FREEZE, VIEW, STOP, CRASH)

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        self.rows[row.node, row.inc].append(row)

    def merge(self, other: Freezes) -> None:
        for member, rows in other.rows.items():
            self.rows[member] += rows

    def of(self, member: MemberKey) -> Iterator[Frozen]:
        frozen: Frozen | None = None
        before: Row | None = None
        for row in self.rows.get(member, []):
            if row.event == FREEZE:
                promised = () if frozen is None else frozen.promised
                frozen = Frozen((*promised, row), None, before)
                continue
            if frozen is not None:
                yield frozen._replace(end=row)
                frozen = None
            if row.event == VIEW:
                before = row
        if frozen is not None:
            yield frozen

    def deaths(self, frozen: Frozen, since_ns: int, until_ns: int) -> int:
        """How many members have crashed or left then, or before that while this one was frozen, if
        they were asked all the same: only now they are waited for."""
        asked, first_ns = frozen.asked(since_ns), frozen.first.mono_ns
        return sum(
            (first_ns if row.member in asked else since_ns) <= row.mono_ns <= until_ns
            for rows in self.rows.values()
            for row in rows
            if row.event in (CRASH, STOP)
        )

    def held_ns(self, members: Iterable[MemberKey], since_ns: int, until_ns: int) -> int:
        """For how long some of these were frozen meanwhile."""
        spans = sorted(
            (frozen.first.mono_ns, until_ns if frozen.end is None else frozen.end.mono_ns)
            for member in members
            for frozen in self.of(member)
        )
        held_ns = 0
        for start_ns, end_ns in spans:
            start_ns, end_ns = max(start_ns, since_ns), min(end_ns, until_ns)
            if end_ns > start_ns:
                held_ns += end_ns - start_ns
                since_ns = end_ns
        return held_ns


class _OfFreezes:
    """A rule about how long members are frozen on a network that works."""

    id: ClassVar[str]
    title: ClassVar[str]
    events: ClassVar[tuple[str, ...]] = (PHASE, *Freezes.EVENTS)

    def __init__(self) -> None:
        self.freezes = Freezes()
        self.phases = Phases()

    def feed(self, row: Row) -> None:
        if row.event == PHASE:
            self.phases.feed(row)
        else:
            self.freezes.feed(row)

    def merge(self, other: Self) -> None:
        self.freezes.merge(other.freezes)
        self.phases.merge(other.phases)


class ChangesEnd(_OfFreezes):
    """Nobody is frozen for long: for one change, if nobody refuses or stays silent; else for as
    long as it takes to go on without whoever does. Windows may be full, and readers slow."""

    id = "V-L5"
    title = "a view change ends, in time, whatever applications do"
    events = (TX, *_OfFreezes.events)

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[int] = set()
        """Counters of proposals."""

    def feed(self, row: Row) -> None:
        if row.event != TX:
            super().feed(row)
        elif row.kind == "refuse":
            self.refused.add(row.view)

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.refused |= other.refused

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for member in self.freezes.rows:
            for frozen in self.freezes.of(member):
                self._judge(frozen, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(self, frozen: Frozen, facts: Facts, found: Findings) -> None:
        first, end = frozen.first, frozen.end
        end_ns = facts.end_ns if end is None else end.mono_ns
        since_ns = self.phases.calm_since(first.mono_ns, end_ns)
        if frozen.before is None:
            return  # it looks for its group, and nobody sends there: V-L2
        if since_ns is None or (end is not None and end.event != VIEW):
            return
        bound_ns = bounds.frozen_ns(facts, self.freezes.deaths(frozen, since_ns, end_ns))
        is_single = end is not None and frozen.last is first and first.view_key == end.view_key
        if is_single and since_ns == first.mono_ns and first.view not in self.refused:
            bound_ns = bounds.change_ns(facts)
        waited_ns = end_ns - since_ns
        if end is None and waited_ns <= bound_ns:
            return
        found.premises += 1
        found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            found.violate(
                f"{first.member} is frozen for {waited_ns} ns, the bound is {bound_ns}",
                *(first, frozen.last, end),
            )


class RarelyAtWill(_OfFreezes):
    """Changes that only bring somebody in hold senders up for a tenth of any ten seconds: nine
    times as long passes after each. So of the last one, behind which that time has yet to pass, all
    but a tenth comes on top."""

    id = "V-L6"
    title = "who joins and who comes back holds senders up for a tenth of the time at most"

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for member in self.freezes.rows:
            self._judge(list(self._at_will(member)), found)
        return found.verdict(self.id, self.title)

    def _at_will(self, member: MemberKey) -> Iterator[tuple[Row, Row]]:
        for frozen in self.freezes.of(member):
            first, end, before = frozen.first, frozen.end, frozen.before
            if end is None or end.event != VIEW or before is None:
                continue
            is_calm = self.phases.calm_since(first.mono_ns, end.mono_ns) == first.mono_ns
            if is_calm and set(before.members) < set(end.members):
                yield first, end

    @staticmethod
    def _judge(changes: list[tuple[Row, Row]], found: Findings) -> None:
        first = 0
        for last, (begun, end) in enumerate(changes):
            found.premises += 1
            bound_ns = (bounds.DUTY_NS + 9 * (end.mono_ns - begun.mono_ns)) // 10
            while end.mono_ns - changes[first][0].mono_ns > bounds.DUTY_NS and first < last:
                first += 1
            held_ns = sum(
                after.mono_ns - before.mono_ns for before, after in changes[first : last + 1]
            )
            found.waited(held_ns, bound_ns)
            if held_ns > bound_ns:
                found.violate(
                    f"{end.member} is frozen for {held_ns} ns of ten seconds to let others in",
                    *(changes[first][0], end),
                )
