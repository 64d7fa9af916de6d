"""Text for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def safe(text: str) -> str:
    """Names and messages come from others: what a terminal would obey is shown, not sent."""
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


def table(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Lines with aligned columns, those numbered in `right` to the right; the last is as long as it
    likes. A row may have fewer cells: its last one then reaches over the others."""
    width = max(map(len, rows), default=0)
    whole = [row for row in rows if len(row) == width]
    widths = [max(len(row[at]) for row in whole) for at in range(width)]
    # The first column is everybody's.
    if width > 1:
        widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        *cells, last = row
        fitted = [
            cell.rjust(widths[at]) if at in right else cell.ljust(widths[at])
            for at, cell in enumerate(cells)
        ]
        lines.append("  ".join([*fitted, last]).rstrip())
    return lines
