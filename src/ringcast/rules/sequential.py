"""Rules over rows in order, made mergeable.

A rule looks at the rows of one key (a member, or a receiver and an origin) one after the other.
A segment from the middle of a run does not know the state it starts in. It keeps its first rows,
its *head*, until one of them settles the state, and judges none of them. Merged behind an earlier
segment, the head is judged from that one's last state; at the end of all, from the initial state.
Most rules settle with the first row of a key, so heads are short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ringcast.rules.findings import Findings

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, Row

S = TypeVar("S")


class Rule(Protocol[S]):
    """What one sequential rule is. States are values: `step` returns the next one."""

    id: str
    title: str
    events: tuple[str, ...]
    initial: S
    """The state before the first row of a run."""

    def key(self, row: Row) -> Hashable:
        """Rows of one key are judged in sequence, keys apart from each other; None: not judged."""
        ...

    def settle(self, head: list[Row]) -> S | None:
        """The state after these rows whatever came before; None if that makes a difference.
        RequestReceived after each row until there is an answer, so it looks at the ends of `head`
        only."""
        ...

    def step(self, state: S, row: Row, found: Findings) -> S:
        """Judge one row and return the state after it."""
        ...

    def close(self, state: S, facts: Facts, found: Findings) -> None:
        """Judge what is still open when the run ends. Most rules have nothing open."""
        return


class _Sequence(Generic[S]):
    __slots__ = ("head", "state")

    def __init__(self) -> None:
        self.head: list[Row] = []
        self.state: S | None = None


class Sequential(Generic[S]):
    """A sequential rule, fed row by row."""

    def __init__(self, rule: Rule[S]) -> None:
        self.id = rule.id
        self.title = rule.title
        self.events = rule.events
        self._rule = rule
        self._sequences: dict[Hashable, _Sequence[S]] = {}
        self._found = Findings()

    def feed(self, row: Row) -> None:
        key = self._rule.key(row)
        if key is None:
            return
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = self._sequences[key] = _Sequence()
        if sequence.state is None:
            sequence.head.append(row)
            sequence.state = self._rule.settle(sequence.head)
        else:
            sequence.state = self._rule.step(sequence.state, row, self._found)

    def merge(self, other: Sequential[S]) -> None:
        self._found.merge(other._found)
        for key, later in other._sequences.items():
            mine = self._sequences.setdefault(key, later)
            if mine is later:
                continue
            for row in later.head:
                self.feed(row)
            if later.state is not None:
                mine.state = later.state

    def finish(self, facts: Facts) -> Verdict:
        return self.findings(facts).verdict(self.id, self.title)

    def findings(self, facts: Facts) -> Findings:
        """What it has found by the end."""
        found = self._found.copy()
        for sequence in self._sequences.values():
            state = self._rule.initial
            for row in sequence.head:
                state = self._rule.step(state, row, found)
            if sequence.state is not None:
                state = sequence.state
            self._rule.close(state, facts, found)
        return found
