"""What the benchmarks print: tables for people, JSON for machines, and what they are doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

Row: TypeAlias = dict[str, Any]


def tell(text: str) -> None:
    """Progress goes to the screen beside what is printed."""
    click.echo(text, err=True)


def print_table(rows: Sequence[Row]) -> None:
    """Rows, all with the same columns."""
    columns = list(rows[0])
    table = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.{2 if value < 2 else 1}f}" if isinstance(value, float) else str(value)
