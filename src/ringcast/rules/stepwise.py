"""Rules that keep little of the rows before: a long trace is judged while it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import ClassVar

    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.trace.rows import Facts, Row


class Stepwise:
    """One rule, fed one row after the other."""

    id: ClassVar[str]
    title: ClassVar[str]
    events: ClassVar[tuple[str, ...]]

    def __init__(self, facts: Facts, found: Findings) -> None:
        self.facts = facts
        self.found = found

    def feed(self, row: Row) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Judge what is known at the end only. Most rules have nothing open."""

    @classmethod
    def judge(cls, run: Run, found: Findings) -> None:
        rule = cls(run.facts, found)
        for row in run.rows(*cls.events):
            rule.feed(row)
        rule.close()
