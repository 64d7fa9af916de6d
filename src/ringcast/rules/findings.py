"""What a rule reports: premises counted, violations with the rows that show them, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from ringcast.rules.evidence import Run
from ringcast.trace.rows import Facts, Row

if TYPE_CHECKING:
    from ringcast.rules.replay import Pair

WITNESS_ROWS_MAX = 20
VIOLATIONS_KEPT_MAX = 100
"""A broken run breaks everywhere: these are listed, the rest are counted."""


class Violation(NamedTuple):
    """One way in which a rule failed, and the rows that show it."""

    text: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of one trace."""

    id: str
    title: str
    premises: int
    """How often it was evaluated with its premise true; 0: it said nothing."""
    violations: list[Violation]
    violation_count: int
    """All of them, also those beyond the ones listed."""
    undecidable: str | None = None
    """Why part of it could not be judged."""
    worst: float | None = None
    """Liveness: the longest wait seen as a share of its bound."""

    @property
    def status(self) -> str:
        """violated, undecidable, vacuous (its premise never came true) or held."""
        if self.violation_count:
            return "violated"
        if self.undecidable:
            return "undecidable"
        return "held" if self.premises else "vacuous"


class Need(Enum):
    """What a trace must show beyond what members record for themselves: why theirs do not."""

    NOTHING = ""
    DEATHS = "a member that is killed writes nothing down any more"
    ORDER = "needs the order of the whole run, which only a simulation has"
    CALM = "counts from the end of the faults, which only a simulation knows"
    CLOCK = "needs a clock that both sides go by, which only a simulation has"
    STATE = "members do not record what is in their application's state"


Steps: TypeAlias = "Generator[None, Row | None, None]"
"""Takes one row after the other, then None."""
Instants: TypeAlias = "Generator[None, list[Row] | None, None]"
"""Takes the rows of one instant after the other, then None."""
T = TypeVar("T")


class Rule(NamedTuple):
    """One statement of one guarantee."""

    id: str
    title: str
    judge: Callable[[Run, Findings], None]
    """Counts premises and violations of a run."""
    needs: Need = Need.NOTHING
    events: tuple[str, ...] = ()
    steps: Callable[[Facts, Findings], Steps] | None = None
    """The same over rows of these events that come one by one. It keeps little of them: a long
    trace is judged while it is read."""
    of_pair: Callable[[Pair], Instants] | None = None
    """The same over what one member did with one peer, instant by instant."""


def rule(
    id: str, title: str, needs: Need = Need.NOTHING
) -> Callable[[Callable[[Run, Findings], None]], Rule]:
    """Make a function a rule."""
    return lambda judge: Rule(id, title, judge, needs)


def stepwise(
    id: str, title: str, events: tuple[str, ...]
) -> Callable[[Callable[[Facts, Findings], Steps]], Rule]:
    """Make a function a rule that takes rows of these events one by one."""

    def make(steps: Callable[[Facts, Findings], Steps]) -> Rule:
        def judge(run: Run, found: Findings) -> None:
            feed = begin(steps(run.facts, found))
            for row in run.rows(*events):
                feed(row)
            end(feed)

        return Rule(id, title, judge, events=events, steps=steps)

    return make


def begin(steps: Generator[None, T, None]) -> Callable[[T], None]:
    """What takes the rows."""
    next(steps)
    return steps.send


def end(feed: Callable[[None], None]) -> None:
    """Judge what is known at the end only. Most rules have nothing open."""
    with suppress(StopIteration):
        feed(None)


def verdict_of(rule: Rule, run: Run) -> Verdict:
    """What this rule says of this run."""
    found = Findings()
    rule.judge(run, found)
    return found.verdict(rule.id, rule.title)


@dataclass(slots=True)
class Findings:
    """Premises and violations while they are being counted."""

    premises: int = 0
    violations: list[Violation] = field(default_factory=list)
    violation_count: int = 0
    unknown: set[str] = field(default_factory=set)
    """Reasons why something could not be judged."""
    worst: float | None = None

    def violate(self, text: str, *rows: Row | None) -> None:
        """Record a violation. Rows that are not known are left out; one always is known."""
        self.violation_count += 1
        if len(self.violations) < VIOLATIONS_KEPT_MAX:
            known = tuple(row for row in rows if row is not None)
            self.violations.append(Violation(text, known[:WITNESS_ROWS_MAX]))

    def waited(self, observed_ns: int, bound_ns: int) -> None:
        """Record a wait and its bound; the worst share is reported."""
        share = observed_ns / max(1, bound_ns)
        self.worst = share if self.worst is None else max(self.worst, share)

    def wait(
        self,
        waited_ns: int,
        bound_ns: int,
        end: Row | None,
        text: str,
        *rows: Row | None,
        is_told: bool = False,
        slack_ns: int = 0,
    ) -> bool:
        """Judge a wait: whether it was too long, and is to be told. One that lasts to the end of
        the run (`end` is None) says nothing while there is still time. "{}" in the text stands for
        how long it was."""
        is_long = waited_ns > bound_ns + slack_ns
        if end is not None or is_long:
            self.premises += 1
            self.waited(waited_ns, bound_ns)
        if is_long and not is_told:
            told = text.replace("{}", str(waited_ns))
            self.violate(f"{told}, the bound is {bound_ns}", *rows)
        return is_long

    def verdict(self, id: str, title: str) -> Verdict:
        """In the order of the run."""
        ordered = sorted(self.violations, key=lambda found: (_place(found), found.text))
        why = "; ".join(sorted(self.unknown)) or None
        return Verdict(id, title, self.premises, ordered, self.violation_count, why, self.worst)


def _place(found: Violation) -> tuple[int, str, int, int]:
    row = found.rows[-1]
    return row.run_idx, row.node, row.inc, row.idx
