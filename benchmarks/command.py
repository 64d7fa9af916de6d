"""Benchmark: an entry of the table of benchmarks, and the command that is made of it: it prints
tables for people, JSON for machines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path  # noqa: TC003
from typing import Any, NamedTuple, TypeAlias

import click

from benchmarks.aims import SOURCE
from benchmarks.workload import Row, Size
from ringcast.cli.words import is_told, json_file_option, note, print_table

Rows: TypeAlias = Sequence[Row]


class SizeType(click.ParamType[Any]):
    """`1000`, or `100-mixed`: sizes from 0 to 200."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Size:
        number, _, rest = str(value).partition("-")
        if not (number.isascii() and number.isdigit()) or rest not in ("", "mixed"):
            self.fail(f"{value!r} is not a size: write 1000, or 100-mixed", param, ctx)
        return Size(int(number), rest == "mixed")


def option(names: str, help: str, default: Any = None, **more: Any) -> click.Option:
    """One whose help shows the default, if there is one."""
    if default is not None:
        more |= {"default": default, "show_default": True}
    return click.Option(names.split(), help=help, **more)


def word(names: str, help: str, words: Sequence[str]) -> click.Option:
    """One of these; the first by default."""
    return option(names, help, words[0], type=click.Choice(words))


def several(
    names: str, help: str, kind: Any, default: Sequence[Any] = (), told: str = ""
) -> click.Option:
    """One that may be repeated. Its help tells the default, or what stands for it."""
    text = f"{help}  [default: {told or ', '.join(map(str, default))}]"
    return click.Option(names.split(), help=text, type=kind, multiple=True, default=default)


def without(*columns: str) -> Callable[[Rows], Rows]:
    """All columns but those for machines."""
    return lambda rows: [{key: row[key] for key in row if key not in columns} for row in rows]


class Benchmark(NamedTuple):
    """What a command does not say is as usual."""

    module: str
    help: str
    options: Sequence[click.Option]
    aims: Callable[[Rows], Iterable[Row]] | None = None
    has_aims: Callable[[dict[str, Any]], bool] = lambda options: True
    """Whether figures with these options are held against the aims."""
    compared_with: Callable[[Rows], str | None] = lambda rows: SOURCE
    """Where the aims come from; None: they are our own, and stand in their row."""
    layout: Callable[[Rows], Rows] = lambda rows: rows
    """What people see of the rows."""
    remark: Callable[[Rows], str] = lambda rows: ""
    """A last line for people."""
    failure: Callable[[Rows], str] = lambda rows: ""
    """Why the command fails, though it has measured."""

    def command(self, name: str) -> click.Command:
        run = partial(self._run, name)
        short = re.split(r"[:,.]", self.help)[0] + "."
        made = click.Command(
            name, callback=run, params=[*self.options], help=self.help, short_help=short
        )
        return json_file_option(made)

    def _run(self, name: str, /, *, json_file: Path | None, **options: Any) -> None:
        measure = getattr(import_module(f"benchmarks.{self.module}"), f"bench_{name}")
        rows = []
        for row in measure(**options):
            rows.append(row)
            note(f"measured: {', '.join(map(_cell, [*row.values()][:3]))}")
        aims = [*self.aims(rows)] if self.aims and self.has_aims(options) else None
        if not is_told(self._figures(rows, aims), json_file):
            self._print(rows, aims)
        if failure := self.failure(rows):
            raise click.ClickException(failure)

    def _figures(self, rows: Rows, aims: Rows | None) -> object:
        about: object = rows
        if aims is not None:
            about = [row | {"aims": aims} for row in rows]
            if compared_with := self.compared_with(rows):
                about = {"rows": rows, "aims": aims, "compared_with": compared_with}
        return about

    def _print(self, rows: Rows, aims: Rows | None) -> None:
        if rows:
            _print_table(self.layout(rows))
        if aims is not None:
            if compared_with := self.compared_with(rows):
                click.echo(f"\naims; compared figures: {compared_with}")
            _print_table(aims)
        if remark := self.remark(rows):
            click.echo(f"\n{remark}")


def benchmark(module: str, help: str, *options: click.Option, **more: Any) -> Benchmark:
    """The function `bench_NAME` of the module, with these options."""
    return Benchmark(module, help, options, **more)


def _print_table(rows: Rows) -> None:
    """Rows, all with the same columns; figures stand to the right."""
    head = [name.replace("_", " ") for name in rows[0]]
    right = [at for at, name in enumerate(rows[0]) if not isinstance(rows[0][name], str)]
    print_table([head, *(list(map(_cell, row.values())) for row in rows)], right, repeated=3)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{2 if value < 2 else 1}f}" if isinstance(value, float) else str(value)
