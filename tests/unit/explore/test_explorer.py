"""The explorer itself: on systems small enough to count by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from ringcast.explore.explorer import STALL, Interleavings, explore

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence


@dataclass
class Walk:
    """Numbers from 0 to `last`; +1 and +2; some numbers are forbidden, from `trap` one is stuck."""

    last: int
    forbidden: tuple[int, ...] = ()
    trap: int | None = None

    def initial(self) -> int:
        return 0

    def actions(self, state: int) -> Iterator[tuple[str, int]]:
        if state == self.trap:
            return
        for step in (1, 2):
            if state + step <= self.last:
                yield f"+{step}", state + step

    def key(self, state: int) -> int:
        return state

    def violations(self, state: int) -> Iterable[str]:
        return ["forbidden number"] if state in self.forbidden else []


def test_every_state_is_visited_once() -> None:
    report = explore(Walk(10))
    assert (report.states, report.transitions) == (11, 19)
    assert report.complete
    assert report.violations == []
    assert report.states_per_s > 0


def test_a_witness_is_a_shortest_way() -> None:
    report = explore(Walk(10, forbidden=(9, 7)))
    assert [v.kind for v in report.violations] == ["forbidden number"]
    assert sorted(report.violations[0].witness) == ["+1", "+2", "+2", "+2"]


def test_the_initial_state_is_judged_too() -> None:
    assert explore(Walk(3, forbidden=(0,))).violations[0].witness == []


def test_negative_numbers_are_told_apart() -> None:
    class Below(Walk):
        def key(self, state: int) -> int:
            return -state

    assert explore(Below(10)).states == 11  # hash(-1) == hash(-2)


def test_a_goal_that_can_be_missed_is_a_stall() -> None:
    report = explore(Walk(5, trap=3), goal=lambda state: state == 5)
    assert [v.kind for v in report.violations] == [STALL]
    assert sorted(report.violations[0].witness) == ["+1", "+2"]
    assert explore(Walk(5), goal=lambda state: state == 5).violations == []


def test_a_goal_reached_over_a_cycle_is_no_stall() -> None:
    class Clock(Walk):
        def actions(self, state: int) -> Iterator[tuple[str, int]]:
            yield "tick", (state + 1) % 12

    assert explore(Clock(0), goal=lambda state: state == 0).violations == []
    assert explore(Clock(0), goal=lambda state: state == 12).violations[0].witness == []


def test_limits_leave_the_report_incomplete() -> None:
    report = explore(Walk(1000), max_states=10, goal=lambda state: state == 1000)
    assert (report.states, report.complete, report.violations) == (10, False, [])
    report = explore(Walk(1000), max_seconds=-1.0)
    assert (report.states, report.complete) == (1, False)


def test_the_first_violation_may_be_enough() -> None:
    report = explore(Walk(1000, forbidden=(9,)), stop_at_violation=True)
    assert report.states < 20
    assert not report.complete
    assert [v.kind for v in report.violations] == ["forbidden number"]
    assert explore(Walk(25), stop_at_violation=True).complete


@dataclass
class Increments:
    """Two threads add one to a counter: read, then write. The classic lost update."""

    atomic: bool
    counter: int = 0
    operations: dict[str, Generator[str | Event, None, object]] = field(init=False)

    def __post_init__(self) -> None:
        increment = self.at_once if self.atomic else self.read_then_write
        self.operations = {"T0": increment(), "T1": increment()}

    def at_once(self) -> Generator[str | Event, None, None]:
        yield "increment"
        self.counter += 1

    def read_then_write(self) -> Generator[str | Event, None, None]:
        yield "read"
        seen = self.counter
        yield "write"
        self.counter = seen + 1

    def memory(self) -> dict[str, object]:
        return {"counter": self.counter}

    def violations(self, pending: Sequence[str | Event | None]) -> Iterable[str]:
        return ["lost update"] if not any(pending) and self.counter != 2 else []

    def is_goal(self, pending: Sequence[str | Event | None]) -> bool:
        return self.counter == 2


def test_interleavings_find_the_lost_update() -> None:
    system = Interleavings(lambda: Increments(atomic=False))
    report = explore(system, goal=system.goal)
    assert [v.kind for v in report.violations] == ["lost update", STALL]
    assert report.violations[0].witness == [
        "T0: read  [seen=0]",
        "T1: read  [seen=0]",
        "T0: write  [counter=1]",
        "T1: write",
    ]
    assert explore(Interleavings(lambda: Increments(atomic=True))).violations == []


def test_positions_and_locals_tell_states_apart() -> None:
    report = explore(Interleavings(lambda: Increments(atomic=True)))
    assert (report.states, report.transitions) == (4, 4)
    # By hand: none, one (2) or both have read; one is done and the other is fresh, has read 0 or
    # has read 1 (6); both are done with 1 or 2.
    report = explore(Interleavings(lambda: Increments(atomic=False)))
    assert (report.states, report.transitions) == (12, 14)


@dataclass
class Sleepers:
    """One sleeps until the other rings; or both sleep, and nobody does."""

    ringer: bool
    bell: Event = field(default_factory=Event)
    operations: dict[str, Generator[str | Event, None, object]] = field(init=False)

    def __post_init__(self) -> None:
        self.operations = {"T0": self.sleep(), "T1": self.ring() if self.ringer else self.sleep()}

    def sleep(self) -> Generator[str | Event, None, None]:
        yield self.bell

    def ring(self) -> Generator[str | Event, None, None]:
        yield "ring"
        self.bell.set()
        raise KeyError("after ringing")

    def memory(self) -> dict[str, object]:
        return {"rung": self.bell.is_set()}

    def violations(self, pending: Sequence[str | Event | None]) -> Iterable[str]:
        return []

    def is_goal(self, pending: Sequence[str | Event | None]) -> bool:
        return not any(pending)


def test_a_sleeper_moves_only_when_its_event_is_set() -> None:
    system = Interleavings(lambda: Sleepers(ringer=False))
    report = explore(system, goal=system.goal)
    assert (report.states, [v.kind for v in report.violations]) == (1, [STALL])


def test_what_an_operation_raises_is_a_finding() -> None:
    system = Interleavings(lambda: Sleepers(ringer=True))
    report = explore(system, goal=system.goal)
    assert report.states == 3
    kinds = [(v.kind, v.witness) for v in report.violations]
    assert kinds == [("an operation raised KeyError('after ringing')", ["T1: ring  [rung=True]"])]
