"""What a command shows on a terminal, as SVG: a still of its last screen, or a recording.

A command runs on a terminal of its own, so that it shows what people see: colours, bars, screens
drawn in place. `Screen` understands what our commands send, and no more: other control sequences
are an error, so that no picture is wrong in silence.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import termios
import time
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 20, 16
HOLD_S = 6.0
"""How long a recording shows its end before it begins again."""
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n\b])|([^\x1b\r\n\b]+)")
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
  fill: #1b2430; white-space: pre }
.paper { fill: #f6f7f9; stroke: #dfe4ea }
.bold { font-weight: 700 } .dim { fill-opacity: .65 } .inverse { font-weight: 700; fill: #0072b2 }
.red { fill: #b3261e } .green { fill: #0b6e4f } .yellow { fill: #8a5a00 } .blue { fill: #0059b3 }
.magenta { fill: #8e3a76 } .cyan { fill: #00697a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf0 } .paper { fill: #12161c; stroke: #2c3542 } .inverse { fill: #8fd3f7 }
  .red { fill: #ff8a80 } .green { fill: #4cc79a } .yellow { fill: #f0b95a } .blue { fill: #7fb8f0 }
  .magenta { fill: #e08fbd } .cyan { fill: #6fd0dc }
}
"""


class Shown(NamedTuple):
    """A piece of what a command wrote, and when."""

    after_s: float
    text: str


def record(
    command: Sequence[str],
    *,
    columns: int,
    rows: int = 50,
    stop_after_s: float | None = None,
    environment: dict[str, str] | None = None,
) -> list[Shown]:
    """Run it on a terminal of this size, to its end or until it is interrupted."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (rows, columns))
    inherited = {key: os.environ[key] for key in os.environ.keys() - {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=inherited | {"TERM": "xterm-256color"} | (environment or {}),
        start_new_session=True,
    )
    os.close(theirs)
    began = time.monotonic()
    pieces: list[Shown] = []
    try:
        while True:
            left = None if stop_after_s is None else began + stop_after_s - time.monotonic()
            if left is not None and left <= 0:
                break
            if not select.select([ours], [], [], left)[0]:
                continue
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # how a terminal ends
                break
            pieces.append(Shown(time.monotonic() - began, piece.decode()))
    finally:
        process.terminate()
        process.wait()
        os.close(ours)
    return pieces


@dataclass
class Screen:
    """A terminal that grows downwards: rows of cells, each a letter and its classes."""

    columns: int
    rows: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])
    wrapped: set[int] = field(default_factory=set)
    """Rows that went on in the next one because the terminal was too narrow."""
    _row: int = 0
    _column: int = 0
    _classes: tuple[str, ...] = ()

    def write(self, text: str) -> None:
        place = 0
        while place < len(text):
            token = TOKEN.match(text, place)
            if token is None:
                raise ValueError(f"this terminal does not know {text[place : place + 12]!r}")
            place = token.end()
            parameters, command, control, letters = token.groups()
            if command is not None:
                self._obey(command, parameters)
            elif control is not None:
                self._move(control)
            else:
                for letter in letters:
                    self._put(letter)

    def lines(self) -> list[str]:
        return ["".join(letter for letter, _ in row).rstrip() for row in self.rows]

    def _put(self, letter: str) -> None:
        if self._column == self.columns:
            self.wrapped.add(self._row)
            self._move("\r")
            self._move("\n")
        row = self.rows[self._row]
        row += [(" ", "")] * (self._column + 1 - len(row))
        row[self._column] = (letter, " ".join(self._classes))
        self._column += 1

    def _move(self, control: str) -> None:
        if control == "\r":
            self._column = 0
        elif control == "\b":
            self._column = max(0, self._column - 1)
        else:
            self._row += 1
            if self._row == len(self.rows):
                self.rows.append([])

    def _obey(self, command: str, parameters: str) -> None:
        match command, parameters:
            case "H", "" | "1;1":
                self._row = self._column = 0
            case "J", "2":
                self.rows, self._row, self._column = [[]], 0, 0
            case "J", "" | "0":
                del self.rows[self._row][self._column :]
                del self.rows[self._row + 1 :]
            case "K", "" | "0":
                del self.rows[self._row][self._column :]
            case (("h" | "l"), _):
                pass  # the cursor, which no picture shows; the other screen
            case "m", _:
                for number in map(int, (parameters or "0").split(";")):
                    self._classes = _styled(self._classes, number)
            case _:
                raise ValueError(f"this terminal does not know {command!r} of {parameters!r}")


def _styled(classes: tuple[str, ...], number: int) -> tuple[str, ...]:
    if number == 0:
        return ()
    named = {1: "bold", 2: "dim", 7: "inverse"}
    if number in named:
        return (*classes, named[number])
    if 30 <= number < 38:
        return (*(name for name in classes if name not in COLOURS), COLOURS[number - 30])
    raise ValueError(f"this terminal does not know the style {number}")


def broken(pieces: Iterable[Shown], columns: int) -> list[str]:
    """Lines that went on in the next one because the terminal was too narrow."""
    screen = Screen(columns)
    for piece in pieces:
        screen.write(piece.text)
    return [screen.lines()[row] for row in sorted(screen.wrapped)]


def still(pieces: Iterable[Shown], columns: int) -> str:
    """What stands there at the end, as SVG."""
    screen = Screen(columns)
    for piece in pieces:
        screen.write(piece.text)
    return _svg(screen.rows, columns, [None] * len(screen.rows), 0.0)


def recording(pieces: Sequence[Shown], columns: int, prompt: str) -> str:
    """Line for line as it came, over and over, as SVG; where nothing moves, the end of it."""
    screen = Screen(columns)
    screen.write(f"{prompt}\r\n")
    since = [0.0]
    for piece in pieces:
        screen.write(piece.text)
        while len(since) < sum(map(bool, screen.lines())):
            since.append(piece.after_s)
    rows = [row for row in screen.rows if row]
    return _svg(rows, columns, since, since[-1] + HOLD_S)


def _svg(
    rows: Sequence[list[tuple[str, str]]],
    columns: int,
    since: Sequence[float | None],
    length_s: float,
) -> str:
    while rows and not rows[-1]:
        rows = rows[:-1]
    width = round(columns * CELL_WIDTH + 2 * MARGIN)
    height = len(rows) * LINE_HEIGHT + 2 * MARGIN
    lines, moves = [], []
    for number, (row, after_s) in enumerate(zip(rows, since, strict=False)):
        name = ""
        if after_s:
            share = round(100 * after_s / length_s, 2)
            name = f' class="l{number}"'
            moves.append(
                f".l{number} {{ animation: l{number} {length_s:.1f}s infinite }} "
                f"@keyframes l{number} {{ 0%, {share}% {{ opacity: 0 }} "
                f"{share + 0.01:.2f}% {{ opacity: 1 }} }}"
            )
        y = MARGIN + number * LINE_HEIGHT + 15
        lines.append(f"<g{name}>{''.join(_words(row, y))}</g>")
    still = "@media (prefers-reduced-motion: reduce) { g { animation: none !important } }\n"
    style = STYLE + "".join(f"{move}\n" for move in moves) + (still if moves else "")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">',
            f"<style>{style}</style>",
            f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *lines,
            "</svg>\n",
        ]
    )


def _words(row: list[tuple[str, str]], y: int) -> Iterable[str]:
    """Each stretch of one style at its place: letters stand in columns, whatever font there is."""
    at = 0
    while at < len(row):
        classes = row[at][1]
        end = at
        while end < len(row) and row[end][1] == classes:
            end += 1
        letters = "".join(letter for letter, _ in row[at:end])
        for found in re.finditer(r"\S+(?: \S+)*", letters):
            x = MARGIN + (at + found.start()) * CELL_WIDTH
            size = len(found.group()) * CELL_WIDTH
            named = f' class="{classes}"' if classes else ""
            yield (
                f'<text x="{x:.1f}" y="{y}" textLength="{size:.1f}"{named}>'
                f"{escape(found.group())}</text>"
            )
        at = end
