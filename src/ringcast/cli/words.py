"""Text for terminals, and what options may hold beyond what click knows: mistakes are told before
any work begins."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from ringcast.private import open_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SCREEN = Path("-")
INDENT = "    "
FILLER = "\0"
"""Beside a letter that is two cells wide. `safe` lets none of it through."""
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MASTERS = re.compile(r"local(\[[^]]+\])?|local-cluster\[[^]]+\]|(spark|k8s)://.+|yarn")


def safe(text: str) -> str:
    """Names and messages come from others: what a terminal would obey is shown, not sent."""
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


def cells(text: str) -> int:
    """How much room it takes on a terminal, where some letters are two cells wide."""
    plain = click.unstyle(text)
    return len(plain) if plain.isascii() else sum(map(_cells_of, plain))


def _cells_of(mark: str) -> int:
    if unicodedata.combining(mark):
        return 0
    return 2 if unicodedata.east_asian_width(mark) in "WF" else 1


def cut(text: str, room: int) -> str:
    """As much of it as there is room for."""
    if cells(text) <= room:
        return text
    while text and cells(text) > room - 1:
        text = text[:-1]
    return text + "…"


def table(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Lines with aligned columns, those numbered in `right` to the right; the last is as long as it
    likes. A row may have fewer cells: its last one then reaches over the others."""
    width = max(map(len, rows), default=0)
    widths = [0] * width
    for row in rows:
        for at, cell in enumerate(row):
            # The first column is everybody's.
            if len(row) == width or (at == 0 and width > 1):
                widths[at] = max(widths[at], cells(cell))
    return ["  ".join(_fitted(row, widths, right)).rstrip() for row in rows]


def _fitted(row: Sequence[str], widths: list[int], right: Container[int]) -> Iterator[str]:
    for at, cell in enumerate(row):
        padding = " " * (widths[at] - cells(cell))
        is_over = at + 1 == len(row) < len(widths)
        yield padding + cell if at in right and not is_over else cell + padding


def print_table(
    rows: Sequence[Sequence[str]],
    right: Container[int] = (),
    *,
    indent: str = "",
    repeated: int = 1,
    is_headed: bool = True,
) -> None:
    """A table, its first row headings unless told otherwise, no wider than the terminal; in a pipe
    each row is one line. Too wide, headings break between words; then sentences in the last column
    do; then the columns stand in several tables, each with the first `repeated` ones. Where these
    alone leave no room each row goes on below."""
    lines = table(rows, right)
    room = shutil.get_terminal_size().columns - len(indent)
    if sys.stdout.isatty() and _width(lines) > room:
        headings = list(rows[:1]) if is_headed else []
        lines = _fit(headings, rows[len(headings) :], right, room, repeated)
    click.echo("\n".join(indent + line for line in lines))


def _fit(
    head: Sequence[Sequence[str]],
    body: Sequence[Sequence[str]],
    right: Container[int],
    room: int,
    repeated: int,
) -> list[str]:
    head = _stacked(head[0]) if len(head) == 1 else head
    lines = table([*head, *body], right)
    last = max(map(len, body), default=1) - 1
    before = _width(table([row[:last] for row in (*head, *body)], right)) + 2
    if _width(lines) <= room:
        return lines
    if last not in right and 3 * before <= 2 * room:
        folded = [piece for row in body for piece in _wrapped(row, last, room - before)]
        return table([*head, *folded], right)
    count = last
    while count > repeated and _width(table([row[:count] for row in (*head, *body)], right)) > room:
        count -= 1
    if count <= repeated:
        rows = [" ".join(filter(None, row)) for row in (*head, *body)]
        return [piece for row in rows for piece in wrapped(row, room, INDENT)]
    first = table([row[:count] for row in (*head, *body)], right)
    moved = [at for at in range(last + 1) if at < repeated or at >= count]
    rest = [[[row[at] for at in moved if at < len(row)] for row in part] for part in (head, body)]
    to_right = {place for place, at in enumerate(moved) if at in right}
    head = [row for row in rest[0] if any(row)]
    return [*first, "", *_fit(head, rest[1], to_right, room, repeated)]


def _stacked(headings: Sequence[str]) -> list[list[str]]:
    """Headings in as many rows as the longest has words, the last word at the bottom."""
    height = max((len(heading.split()) for heading in headings), default=0)
    padded = [["", *[""] * height, *heading.split()][-height:] for heading in headings]
    return [[words[at] for words in padded] for at in range(height)]


def _wrapped(row: Sequence[str], last: int, room: int) -> Iterator[Sequence[str]]:
    """The row, with what its last cell has no room for in rows below."""
    first, *more = wrapped("".join(row[last:]), room) or [""]
    yield [*row[:last], first] if len(row) > last else row
    yield from ([*[""] * last, piece] for piece in more)


def say(text: str, indent: int = len(INDENT)) -> None:
    """A sentence; on a terminal it goes on below, indented, and no word is broken."""
    if sys.stdout.isatty():
        text = "\n".join(wrapped(text, shutil.get_terminal_size().columns, " " * indent))
    click.echo(text)


def wrapped(text: str, room: int, indent: str = "") -> list[str]:
    """Lines of no more than so many cells: words, and ids such as N-L1, stay whole."""
    wide = "".join(mark + FILLER * (_cells_of(mark) - 1) for mark in text)
    lines = textwrap.wrap(
        wide, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(FILLER, "") for line in lines]


def _width(lines: Sequence[str]) -> int:
    return max(map(cells, lines), default=0)


def note(text: str) -> None:
    """How far a command is that takes more than a moment: where somebody watches."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


@contextmanager
def spark_session(app: str, master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Until the block ends; starting it takes seconds."""
    from ringcast.spark.session import session

    click.echo("starting Spark …", err=True)
    with session(app, master, conf=conf) as spark:
        yield spark


# Options


class Checked(click.ParamType[T]):
    """What `read` makes of a text. Its ValueError says what is wrong with that."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def duration(*, may_be_zero: bool = False) -> Checked[float]:
    """Seconds, from a length of time as people write it: 5s, 90m, 12h, 30d."""

    def read(text: str) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
        if found is None or not (float(found[1]) or may_be_zero):
            raise ValueError(f"{text!r} is no length of time: write 5s, 90m, 12h or 30d")
        return float(found[1]) * UNITS[found[2]]

    return Checked("duration", read)


def _output_file(text: str) -> Path:
    """A file that can be written; - is the screen."""
    path = Path(text)
    if path != SCREEN and path.is_dir():
        raise ValueError(f"{path} is a directory")
    if path != SCREEN and path.suffix not in (".json", ".jsonl"):  # it may be meant for a group
        raise ValueError(f"{path} is no JSON file: end it in .json, or write --json last")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a directory")
    return path


def _master(text: str) -> str:
    """Where Spark runs."""
    if not MASTERS.fullmatch(text):
        raise ValueError(f"{text!r}: write local[*], or such as spark://host:7077")
    return text


OUTPUT_FILE = Checked("FILE", _output_file)
SPARK_MASTER = Checked("URL", _master)


def _pairs(_: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    found = {}
    for value in values:
        name, is_pair, said = value.partition("=")
        if not is_pair or not name.startswith("spark."):
            raise click.BadParameter(f"{value!r}: write spark.executor.memory=4g", param=param)
        found[name] = said
    return found


CONF: dict[str, Any] = {
    "multiple": True,
    "callback": _pairs,
    "metavar": "spark.NAME=VALUE",
    "help": "What Spark is to be configured with; may be repeated.",
}
conf_option = click.option("--conf", **CONF)
"""In all commands that start Spark."""
json_file_option = click.option(
    *("--json", "json_file"),
    is_flag=False,
    flag_value=str(SCREEN),
    type=OUTPUT_FILE,
    metavar="[FILE]",
    help="Print JSON instead; with a FILE, write it there as well.",
)
"""`--json` at the end of a command, or with a file; - is the screen. The same everywhere."""
file_mode_option = click.option(
    "--file-mode", metavar="MODE", help="Of files: 640 is for a group too.  [default: 600]"
)


def is_told(content: object, path: Path | None) -> bool:
    """Write it as JSON if that is wanted; whether the screen has it, and people get nothing."""
    if path is not None:
        _write(json.dumps(content, indent=2), path, "wb")
    return path == SCREEN


def are_lines_told(path: Path | None, *contents: object) -> bool:
    """The same, of something that goes on: a line for each."""
    if path is not None:
        _write("\n".join(map(json.dumps, contents)), path, "ab")
    return path == SCREEN


def _write(text: str, path: Path, old: Literal["ab", "wb"]) -> None:
    if path == SCREEN:
        click.echo(text)
    else:
        with open_private(path, old=old) as file:
            file.write(f"{text}\n".encode())
