"""The documents name every event, column and rule."""

from __future__ import annotations

from pathlib import Path

from ringcast.rules.table import BY_PROTOCOL
from ringcast.trace.rows import Row
from support.events import EVENTS

DOCS = Path(__file__).parents[3] / "docs"


def test_every_event_and_column_is_documented() -> None:
    text = (DOCS / "trace.md").read_text(encoding="utf-8")
    assert [name for name in (*EVENTS, *Row._fields) if f"`{name}`" not in text] == []


def test_every_predicate_is_documented() -> None:
    text = (DOCS / "properties.md").read_text(encoding="utf-8")
    rules = [rule for rules in BY_PROTOCOL.values() for rule in rules]
    assert [rule.id for rule in rules if f"| {rule.id} |" not in text] == []
