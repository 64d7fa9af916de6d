"""ringcast bench: measure the parts, each beside a plain way of doing the same in the same run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    Table = Sequence[dict[str, object]]

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON instead of a table.")


@click.group()
def bench() -> None:
    """Measure. Figures move with the machine; ratios within one run are what counts.

    Example: ringcast bench codec
    """


@bench.command()
@as_json
def codec(is_json: bool) -> None:
    """Nanoseconds per message to encode and decode runs, beside a per-message format.

    Example: ringcast bench codec --json
    """
    from ringcast.bench.codec import bench_codec

    _print(bench_codec(), is_json)


@bench.command()
@as_json
def window(is_json: bool) -> None:
    """Nanoseconds per message through the windows, beside a dict-and-loop window.

    Example: ringcast bench window --json
    """
    from ringcast.bench.window import bench_window

    _print(bench_window(), is_json)


@bench.command()
@click.option("--elements", default=200_000, show_default=True, help="How many to pass through.")
@click.option("--adders", default=8, show_default=True, help="Threads that add.")
@as_json
def ring(elements: int, adders: int, is_json: bool) -> None:
    """The concurrent ring buffer under threads, beside a lock and a dict.

    Example: ringcast bench ring --adders 4
    """
    from ringcast.bench.ring import bench_ring

    _print([bench_ring(elements, adders)], is_json)


def _print(rows: Table, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(list(rows), indent=2))
        return
    columns = list(rows[0])
    table = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
