"""Benchmark: an entry of the table of benchmarks, and the command that is made of it."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from benchmarks.aims import SOURCE
from benchmarks.printing import print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.printing import Row

Rows: TypeAlias = "Sequence[Row]"

_JSON = click.Option(["--json"], is_flag=True, help="Print JSON instead of a table.")


class Benchmark(NamedTuple):
    """A command of `ringcast bench`. What it does not say is as usual."""

    module: str
    help: str
    options: tuple[click.Option, ...] = ()
    aims: Callable[[Rows], Rows] | None = None
    has_aims: Callable[[dict[str, Any]], bool] = lambda options: True
    """Whether figures with these options are held against the aims."""
    compared_with: Callable[[], str | None] = lambda: SOURCE
    """Where the aims come from; None: they are our own, and stand in their row."""
    layout: Callable[[Rows], Rows] = lambda rows: rows
    """What people see of the rows."""
    remark: Callable[[Rows], str] | None = None
    """A last line for people."""
    failure: Callable[[Rows], str | None] = lambda rows: None
    """Why the command fails, though it has measured."""
    json: Any = None
    """The option, where it is not the usual flag."""


def command(name: str, benchmark: Benchmark) -> click.Command:
    def measure(json: Any, **options: Any) -> None:
        module = import_module(f"benchmarks.{benchmark.module}")
        rows = list(getattr(module, f"bench_{name}")(**options))
        held = benchmark.aims(rows) if benchmark.aims and benchmark.has_aims(options) else None
        if json:
            click.echo(_to_json(benchmark, rows, held), file=None if json is True else json)
        else:
            _print(benchmark, rows, held)
        failure = benchmark.failure(rows)
        if failure:
            raise click.ClickException(failure)

    params = [*benchmark.options, benchmark.json or _JSON]
    return click.Command(name, callback=measure, params=[*params], help=benchmark.help)


def _to_json(benchmark: Benchmark, rows: Rows, held: Rows | None) -> str:
    about: object = rows
    if held is not None:
        about = [row | {"aims": held} for row in rows]
        if compared_with := benchmark.compared_with():
            about = {"rows": rows, "aims": held, "compared_with": compared_with}
    return json.dumps(about, indent=2)


def _print(benchmark: Benchmark, rows: Rows, held: Rows | None) -> None:
    print_table(benchmark.layout(rows))
    if held is not None:
        if compared_with := benchmark.compared_with():
            click.echo(f"\naims; compared figures: {compared_with}")
        print_table(held)
    if benchmark.remark is not None:
        click.echo(benchmark.remark(rows))
