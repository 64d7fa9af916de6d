"""Exhaustive exploration: every reachable state of a system, breadth first.

A `System` says what can happen next in a state and what is wrong with a state. `explore` visits
every state once and reports each kind of violation with a shortest way to reach it. States are
told apart by a 64-bit hash of their key: among a million states, two are confused with a
probability of 3 in 10^8. What is kept per state is that hash and the way back; states themselves
live only until their successors are known.

`Interleavings` makes a System of concurrent operations written as generators of steps.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import attrgetter
from threading import Event
from time import perf_counter
from typing import Protocol, TypeAlias, TypeVar

from xxhash import xxh3_64_intdigest

OnProgress: TypeAlias = Callable[[int, int], object]
"""Told how many states (or runs) are done with, and how many are known and to come."""

S = TypeVar("S")

STALL = "stall: from here the goal can no longer be reached"
MAX_STATES = 5_000_000
"""Where memory would end before patience does."""


class System(Protocol[S]):
    """What is explored. All methods are functions of the state alone, in a fixed order."""

    def initial(self) -> S: ...

    def actions(self, state: S) -> Iterable[tuple[str | Callable[[], str], S]]:
        """Everything that can happen next: what, in words or as a function that finds them (called
        only when a witness is written), and the state after. Leaves `state` as it is."""
        ...

    def key(self, state: S) -> object:
        """A value with a `repr` that is the same exactly for states that behave alike."""
        ...

    def violations(self, state: S) -> Iterable[str]:
        """What is wrong with this state: one sentence per kind."""
        ...


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    witness: list[str]  # A shortest sequence of actions from the initial state to the violation


@dataclass(frozen=True, slots=True)
class Report:
    states: int
    transitions: int
    seconds: float
    violations: list[Violation]
    complete: bool  # False if a limit ended the exploration: then silence proves nothing
    premises: Mapping[str, int] = field(default_factory=dict)  # how often each rule had a case
    runs: int = 0  # schedules that were run one by one; states are then the steps of all

    @property
    def states_per_s(self) -> float:
        return self.states / max(self.seconds, 1e-9)


def explore(
    system: System[S],
    *,
    goal: Callable[[S], bool] | None = None,
    max_states: int = MAX_STATES,
    max_seconds: float = math.inf,
    stop_at_violation: bool = False,
    on_progress: OnProgress | None = None,
) -> Report:
    """Visit every state; with a goal, also report a state from which it cannot be reached.

    `stop_at_violation`: the first is enough, be it of several kinds.
    """
    started = perf_counter()
    state = system.initial()
    index_of = {_fingerprint(system.key(state)): 0}
    tree = _Tree()
    tree.grow(-1, 0)
    reaches_goal = bytearray([goal is not None and goal(state)])
    sources, targets = array("q"), array("q")  # every way that may lead to the goal
    first_with = dict.fromkeys(system.violations(state), 0)
    frontier = deque([(0, state)])
    transitions = 0
    complete = True

    while frontier:
        if perf_counter() - started > max_seconds or (stop_at_violation and first_with):
            complete = False
            break
        if on_progress:
            on_progress(len(index_of) - len(frontier), len(frontier))
        source, state = frontier.popleft()
        for number, (_, successor) in enumerate(system.actions(state)):
            transitions += 1
            fingerprint = _fingerprint(system.key(successor))
            target = index_of.get(fingerprint)
            if target is None:
                if len(index_of) >= max_states:
                    complete = False
                    continue
                target = index_of[fingerprint] = len(index_of)
                tree.grow(source, number)
                frontier.append((target, successor))
                for kind in system.violations(successor):
                    first_with.setdefault(kind, target)
                if goal is not None:
                    reaches_goal.append(goal(successor))
            if goal is not None:
                sources.append(source)
                targets.append(target)

    if goal is not None and complete:
        _spread_backwards(reaches_goal, sources, targets)
        stalled = reaches_goal.find(0)
        if stalled >= 0:
            first_with[STALL] = stalled
    return Report(
        states=len(index_of),
        transitions=transitions,
        seconds=perf_counter() - started,
        violations=[Violation(kind, tree.path(system, i)) for kind, i in first_with.items()],
        complete=complete,
        premises=getattr(system, "premises", {}),
    )


class _Tree:
    """How each state was first reached: from which state, by which of its actions.

    Labels are not kept: a path is told by walking it again.
    """

    def __init__(self) -> None:
        self._parents = array("q")
        self._choices = array("l")

    def grow(self, parent: int, choice: int) -> None:
        self._parents.append(parent)
        self._choices.append(choice)

    def path(self, system: System[S], state_index: int) -> list[str]:
        choices = []
        while state_index:
            choices.append(self._choices[state_index])
            state_index = self._parents[state_index]
        labels = []
        state = system.initial()
        for choice in reversed(choices):
            label, state = next(islice(system.actions(state), choice, None))
            labels.append(label if isinstance(label, str) else label())
        return labels


def _fingerprint(key: object) -> int:
    return xxh3_64_intdigest(repr(key).encode())


def _spread_backwards(marked: bytearray, sources: array[int], targets: array[int]) -> None:
    """Mark every state from which a marked one can be reached.

    Breadth-first numbers mostly grow along transitions, so few passes from the end suffice.
    """
    changed = True
    while changed:
        changed = False
        for source, target in zip(reversed(sources), reversed(targets), strict=True):
            if marked[target] and not marked[source]:
                marked[source] = 1
                changed = True


class Programs(Protocol):
    """Shared memory and the operations on it, made anew for every replay.

    An operation yields a name before each atomic step, and an Event to sleep until it is set. It
    keeps its state in local variables of plain types (no hidden loop iterators: `while`, not
    `for`, around a step); every other object it uses must show in `memory`.
    """

    @property
    def operations(self) -> Mapping[str, Generator[str | Event, None, object]]: ...

    def memory(self) -> Mapping[str, object]: ...

    def violations(self, pending: Sequence[str | Event | None]) -> Iterable[str]:
        """What is wrong now; `pending` is each operation's next step, None where it has ended."""
        ...

    def is_goal(self, pending: Sequence[str | Event | None]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of interleaved operations: the schedule that leads to it, and what it looks like."""

    schedule: bytes
    key: object
    enabled: tuple[int, ...]
    violations: tuple[str, ...]
    is_goal: bool


class Interleavings:
    """All schedules of some step-wise operations, one step of one operation at a time.

    A running generator cannot be copied, so a state is reached by replaying its schedule.
    """

    def __init__(self, fresh: Callable[[], Programs]) -> None:
        self._fresh = fresh

    def initial(self) -> Moment:
        return self._moment(b"")

    def actions(self, state: Moment) -> Iterator[tuple[Callable[[], str], Moment]]:
        for number in state.enabled:
            schedule = state.schedule + bytes([number])
            yield partial(self._tell, schedule), self._moment(schedule)

    def _moment(self, schedule: bytes) -> Moment:
        replay = _Replay(self._fresh(), schedule)
        programs, pending = replay.programs, replay.pending
        return Moment(
            schedule=schedule,
            key=(programs.memory(), [_frames(each) for each in replay.operations]),
            enabled=tuple(number for number, step in enumerate(pending) if _is_enabled(step)),
            violations=(*replay.raised, *programs.violations(pending)),
            is_goal=programs.is_goal(pending),
        )

    def _tell(self, schedule: bytes) -> str:
        """What the last step was, what it changed and what its operation learned."""
        *before, number = schedule
        replay = _Replay(self._fresh(), before)
        step, operation = replay.pending[number], replay.operations[number]
        memory, variables = dict(replay.programs.memory()), _variables(operation)
        replay.advance(number)
        changes = _changes(memory, replay.programs.memory())
        learned = _changes(variables, _variables(operation), mention_gone=False)
        name = list(replay.programs.operations)[number]
        what = getattr(step, "label", "wake up") if isinstance(step, Event) else step
        facts = ", ".join(changes + learned)
        return f"{name}: {what}" + (f"  [{facts}]" if facts else "")

    key = staticmethod(attrgetter("key"))
    violations = staticmethod(attrgetter("violations"))
    goal = staticmethod(attrgetter("is_goal"))


class _Replay:
    def __init__(self, programs: Programs, schedule: Iterable[int]) -> None:
        self.programs = programs
        self.operations = list(programs.operations.values())
        self.raised: list[str] = []
        # Up to its first step an operation touches nothing that is shared.
        self.pending = [next(operation, None) for operation in self.operations]
        for number in schedule:
            self.advance(number)

    def advance(self, number: int) -> None:
        try:
            self.pending[number] = next(self.operations[number], None)
        except Exception as error:  # whatever a broken operation raises is a finding
            self.pending[number] = None
            self.raised.append(f"an operation raised {error!r}")


def _is_enabled(step: str | Event | None) -> bool:
    return step.is_set() if isinstance(step, Event) else step is not None


_PLAIN = (int, bool, str, bytes, float, tuple, list, range, type(None))


def _frames(operation: object) -> list[tuple[int, dict[str, object]]]:
    """Position and plain local variables of a generator, then of the one it delegates to; where it
    drives another one by hand, that one counts as a variable."""
    found = []
    while (frame := getattr(operation, "gi_frame", None)) is not None:
        delegate = getattr(operation, "gi_yieldfrom", None)
        plain: dict[str, object] = {}
        for name, value in frame.f_locals.items():
            if type(value) in _PLAIN:
                plain[name] = value
            elif isinstance(value, Event):
                plain[name] = "rung" if value.is_set() else "silent"
            elif isinstance(value, Generator) and value is not delegate:
                plain[name] = _frames(value)
        found.append((frame.f_lasti, plain))
        operation = delegate
    return found


def _variables(operation: object) -> dict[str, object]:
    return {name: value for _, plain in _frames(operation) for name, value in plain.items()}


def _changes(
    before: Mapping[str, object], after: Mapping[str, object], *, mention_gone: bool = True
) -> list[str]:
    changed = [f"{name}={v!r}" for name, v in after.items() if before.get(name, _GONE) != v]
    if mention_gone:
        changed += [f"{name} gone" for name in before if name not in after]
    return changed


_GONE = object()
