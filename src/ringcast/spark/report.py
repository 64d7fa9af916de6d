"""What an audit says: a verdict for each guarantee, its witnesses, and one sentence for all."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcast.model import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.trace.rows import MemberKey, OriginKey, Row

OK = "ok"
VIOLATED = "violated"
INCOMPLETE = "incomplete"
INCONCLUSIVE = "inconclusive"
UNKNOWN_TAIL = "unknown tail"

TITLES = {
    "G1": "only what was sent is delivered",
    "G2 N2": "no message is delivered twice",
    "G4": "views come in order and are the same everywhere",
    "N1": "each sender's messages are delivered in order, without a gap",
    "N3": "each send takes the next number",
    "content": "what is delivered has the bytes that were sent",
}
"""N2 is G2 for multicast, and there is nothing else to deliver yet."""


class Names:
    """What to call members: by name alone, unless the run has two incarnations of that name."""

    def __init__(self, members: Iterable[MemberKey]) -> None:
        counts = Counter(name for name, _ in set(members))
        self._shared = {name for name, count in counts.items() if count > 1}

    def of(self, member: MemberKey) -> str:
        name, incarnation = member
        return f"{name}#{incarnation}" if name in self._shared else name

    def of_key(self, key: str) -> str:
        """The same for a member key, `name#incarnation`."""
        name = key.rpartition("#")[0]
        return key if name in self._shared else name

    def of_origin(self, origin: OriginKey) -> str:
        name, incarnation, stream = origin
        name = self.of((name, incarnation))
        if stream == Stream.FIFO:
            return name
        return f"{name} ({'uniform' if stream == Stream.UNIFORM else f'stream {stream}'})"


@dataclass(slots=True)
class Violation:
    """One way in which a predicate failed, and the rows that show it."""

    text: str
    rows: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What one predicate says of the run."""

    id: str
    premises: int = 0
    violations: list[Violation] = field(default_factory=list)
    violation_count: int = 0
    incomplete: list[str] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """Members whose missing end it hangs on."""

    @property
    def title(self) -> str:
        return TITLES[self.id]

    @property
    def status(self) -> str:
        if self.violation_count:
            return VIOLATED
        if self.incomplete:
            return INCOMPLETE
        if self.inconclusive:
            return INCONCLUSIVE
        return UNKNOWN_TAIL if self.unknown else OK

    @property
    def detail(self) -> str:
        """The reason for the status, in one line."""
        match self.status:
            case "violated":
                return f"{self.violation_count} found"
            case "incomplete":
                return "; ".join(self.incomplete)
            case "inconclusive":
                return "; ".join(self.inconclusive)
            case "unknown tail" if len(self.unknown) == 1:
                return f"ok as far as {_listed(self.unknown)}'s trace goes (killed)"
            case "unknown tail":
                return f"ok as far as the traces of {_listed(self.unknown)} go (killed)"
            case _:
                return ""


@dataclass(slots=True)
class Report:
    """The audit of one run."""

    run_id: str
    members: int
    segments: int
    rows: int
    verdicts: list[Verdict]
    notes: list[str]
    """What was odd and changed nothing."""
    names: Names

    @property
    def exit_status(self) -> int:
        found = {verdict.status for verdict in self.verdicts}
        if VIOLATED in found:
            return 1
        return 3 if found & {INCOMPLETE, INCONCLUSIVE} else 0

    @property
    def summary(self) -> str:
        """The whole in one sentence."""
        found = Counter(verdict.status for verdict in self.verdicts)
        if found[VIOLATED]:
            return f"{found[VIOLATED]} guarantee{'s' * (found[VIOLATED] > 1)} violated."
        if found[INCOMPLETE]:
            return "No violation was found, but rows are missing from the traces."
        if found[INCONCLUSIVE]:
            return "No violation was found, but not everything could be judged."
        killed = set[str]().union(*(verdict.unknown for verdict in self.verdicts))
        if not killed:
            return "All guarantees held."
        if len(killed) == 1:
            tail = f"the end of {_listed(killed)}'s trace is unknown because it was killed"
        else:
            tail = f"the traces of {_listed(killed)} have unknown ends because they were killed"
        return f"All guarantees held; {tail}."

    def to_json(self) -> str:
        verdicts = [
            {
                "id": verdict.id,
                "title": verdict.title,
                "verdict": verdict.status,
                "premises": verdict.premises,
                "detail": verdict.detail,
                "violations": verdict.violation_count,
                "witnesses": [
                    {"text": found.text, "rows": [row._asdict() for row in found.rows]}
                    for found in verdict.violations
                ],
            }
            for verdict in self.verdicts
        ]
        values = {
            "run_id": self.run_id,
            "members": self.members,
            "segments": self.segments,
            "rows": self.rows,
            "verdicts": verdicts,
            "notes": self.notes,
            "summary": self.summary,
            "exit_status": self.exit_status,
        }
        return json.dumps(values, indent=2)


def _listed(names: Iterable[str]) -> str:
    """Names as a sentence has them: a; a and b; a, b and c."""
    *first, last = sorted(names)
    return f"{', '.join(first)} and {last}" if first else last
