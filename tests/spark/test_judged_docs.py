"""Docs say what is judged of recorded runs as the audit does."""

from __future__ import annotations

from pathlib import Path

from ringcast.rules.table import ORDER
from ringcast.spark.report import NEED_FULL, RECORDED, UNDECIDABLE_IF_RECORDED

PROPERTIES = Path(__file__).parents[2] / "docs" / "properties.md"
NOT_LISTED = "content"
"""That bytes are the same is G1."""


def table() -> str:
    any_level = [id for id in RECORDED if id not in (*NEED_FULL, NOT_LISTED)]
    lines = [
        "| | |",
        "|---|---|",
        f"| at any level | {', '.join(any_level)} |",
        f"| at level `full` | {', '.join(NEED_FULL)} |",
    ]
    whys = dict.fromkeys(UNDECIDABLE_IF_RECORDED.values())
    for why in whys:
        ids = [id for id, each in UNDECIDABLE_IF_RECORDED.items() if each == why]
        lines.append(f"| {why} | {', '.join(ids)} |")
    return "\n".join(lines)


def test_the_table_of_what_recorded_runs_show_is_the_audits() -> None:
    text = PROPERTIES.read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- judged -->\n")
    found, mark, _ = rest.partition("\n<!-- /judged -->")
    assert mark
    assert found == table()


def test_most_is_judged_at_level_full() -> None:
    full = set(RECORDED) - {NOT_LISTED}
    assert len(full) >= 43
    assert len(UNDECIDABLE_IF_RECORDED.keys() - {rule.id for rule in ORDER}) <= 22
