"""What a rule reports: premises counted, violations with the rows that show them, a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Self

    from ringcast.trace.rows import Facts, Row

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
        """violated, undecidable, vacuous (its premise never came true) or received."""
        if self.violation_count:
            return "violated"
        if self.undecidable:
            return "undecidable"
        return "held" if self.premises else "vacuous"


class Rule(Protocol):
    """One rule over a trace, as a state that grows row by row.

    `feed` sees the rows of one (node, inc) in the order of `idx`. `merge` takes in the state of
    other members, or of a later segment of the same ones, and uses it up. `finish` judges what
    needs the whole trace or its facts, and changes nothing.
    """

    @property
    def id(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def events(self) -> tuple[str, ...]:
        """Which rows to feed it: the cost of an audit is that of the rows that matter."""
        ...

    def feed(self, row: Row) -> None: ...

    def merge(self, other: Self) -> None: ...

    def finish(self, facts: Facts) -> Verdict: ...


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

    def merge(self, other: Findings) -> None:
        self.premises += other.premises
        self.violation_count += other.violation_count
        self.violations += other.violations
        del self.violations[VIOLATIONS_KEPT_MAX:]
        self.unknown |= other.unknown
        shares = [share for share in (self.worst, other.worst) if share is not None]
        self.worst = max(shares, default=None)

    def copy(self) -> Findings:
        copy = Findings()
        copy.merge(self)
        return copy

    def verdict(self, id: str, title: str) -> Verdict:
        """In an order that does not depend on how the trace was split."""
        ordered = sorted(self.violations, key=lambda found: (_place(found), found.text))
        return Verdict(
            id,
            title,
            self.premises,
            ordered,
            self.violation_count,
            "; ".join(sorted(self.unknown)) or None,
            self.worst,
        )


def _place(found: Violation) -> tuple[int, str, int, int]:
    row = found.rows[-1]
    return row.run_idx, row.node, row.inc, row.idx
