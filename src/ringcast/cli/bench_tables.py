"""What the benchmarks print: tables for people, JSON for machines, aims with met or missed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    Table = Sequence[dict[str, Any]]

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON instead of a table.")


def show(rows: Table, is_json: bool) -> None:
    """Rows, all with the same columns."""
    if is_json:
        click.echo(json.dumps(list(rows), indent=2))
    else:
        print_table(rows)


def show_with_aims(
    rows: Table,
    aims: Table,
    is_json: bool,
    hidden: Sequence[str] = (),
    compared_with: str | None = None,
) -> None:
    """Rows, and what they are to reach. `hidden` columns are for machines only."""
    if is_json:
        click.echo(to_json(rows, aims, compared_with))
        return
    print_table([{key: row[key] for key in row if key not in hidden} for row in rows])
    print_aims(aims, compared_with)


def to_json(rows: Table, aims: Table, compared_with: str | None = None) -> str:
    about = {"rows": rows, "aims": aims, "compared_with": compared_with or _usual_source()}
    return json.dumps(about, indent=2)


def print_aims(aims: Table, compared_with: str | None = None) -> None:
    click.echo(f"\naims; compared figures: {compared_with or _usual_source()}")
    print_table(aims)


def _usual_source() -> str:
    from ringcast.bench.aims import SOURCE

    return SOURCE


def print_table(rows: Table) -> None:
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
