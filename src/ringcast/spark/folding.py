"""What rules say where Spark has put them, as text on its way to the driver."""

from __future__ import annotations

import json
from typing import Any

from ringcast.rules.findings import Verdict, Violation
from ringcast.trace.rows import LISTS, Row

VIOLATIONS_SHOWN_MAX = 10
"""With their rows, for each rule; the rest are counted."""


def to_text(verdict: Verdict) -> str:
    return json.dumps(
        [
            *(verdict.id, verdict.title, verdict.premises),
            *(verdict.violations[:VIOLATIONS_SHOWN_MAX], verdict.violation_count),
            *(verdict.undecidable, verdict.worst),
        ]
    )


def from_text(text: str) -> Verdict:
    name, title, premises, violations, count, undecidable, worst = json.loads(text)
    shown = [Violation(text, tuple(map(row_of, rows))) for text, rows in violations]
    return Verdict(name, title, premises, shown, count, undecidable, worst)


def row_of(values: list[object]) -> Row:
    """A row from JSON, which knows no tuples."""
    columns: dict[str, Any] = dict(zip(Row._fields, values, strict=True))
    return Row(**columns | {name: tuple(columns[name]) for name in LISTS})
