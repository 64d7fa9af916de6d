"""Benchmark: an entry of the table of benchmarks, and the command that is made of it: it prints
tables for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence  # noqa: TC003 (of a NamedTuple's fields)
from functools import partial
from importlib import import_module
from json import dumps
from typing import Any, NamedTuple, TypeAlias

import click

from benchmarks.aims import SOURCE
from benchmarks.workload import Row

Rows: TypeAlias = Sequence[Row]


class Benchmark(NamedTuple):
    """What a command does not say is as usual."""

    module: str
    help: str
    options: Sequence[click.Option]
    aims: Callable[[Rows], Rows] | None = None
    has_aims: Callable[[dict[str, Any]], bool] = lambda options: True
    """Whether figures with these options are held against the aims."""
    compared_with: Callable[[], str | None] = lambda: SOURCE
    """Where the aims come from; None: they are our own, and stand in their row."""
    layout: Callable[[Rows], Rows] = lambda rows: rows
    """What people see of the rows."""
    remark: Callable[[Rows], str] = lambda rows: ""
    """A last line for people."""
    failure: Callable[[Rows], str] = lambda rows: ""
    """Why the command fails, though it has measured."""

    def command(self, name: str) -> click.Command:
        return click.Command(
            name, callback=partial(self._run, name), params=[*self.options], help=self.help
        )

    def _run(self, name: str, /, *, json: Any, **options: Any) -> None:
        measure = getattr(import_module(f"benchmarks.{self.module}"), f"bench_{name}")
        rows = list(measure(**options))
        aims = self.aims(rows) if self.aims and self.has_aims(options) else None
        if json:
            click.echo(self._to_json(rows, aims), file=None if json is True else json)
        else:
            self._print(rows, aims)
        if failure := self.failure(rows):
            raise click.ClickException(failure)

    def _to_json(self, rows: Rows, aims: Rows | None) -> str:
        about: object = rows
        if aims is not None:
            about = [row | {"aims": aims} for row in rows]
            if compared_with := self.compared_with():
                about = {"rows": rows, "aims": aims, "compared_with": compared_with}
        return dumps(about, indent=2)

    def _print(self, rows: Rows, aims: Rows | None) -> None:
        _print_table(self.layout(rows))
        if aims is not None:
            if compared_with := self.compared_with():
                click.echo(f"\naims; compared figures: {compared_with}")
            _print_table(aims)
        if remark := self.remark(rows):
            click.echo(f"\n{remark}")


JSON = click.Option(["--json"], is_flag=True, help="Print JSON instead of a table.")


def benchmark(
    module: str, help: str, *options: click.Option, json: click.Option = JSON, **more: Any
) -> Benchmark:
    """The function `bench_NAME` of the module, with these options."""
    return Benchmark(module, help, [*options, json], **more)


def _print_table(rows: Rows) -> None:
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
