"""ringcast top: windows, rates, repairs, and who pins whom, while it happens."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import click

from ringcast.cli.local import Reply, answers
from ringcast.cli.words import (
    SCREEN,
    are_lines_told,
    cells,
    cut,
    json_file_option,
    print_table,
    safe,
    say,
    table,
    wrapped,
)

Rows: TypeAlias = list[tuple[str, ...]]

HEADINGS = (
    *("MEMBER", "SENT/s", "DELIV/s", "REPAIR/s"),
    *("WINDOW", "UNREAD", "GAPS", "WAITS FOR"),
)
RIGHT = range(1, 7)
GOES_FIRST = (6, 5, 3, 2, 1, 4)
"""Which columns a narrow terminal does without: who waits for whom stays to the last."""
NAME_MAX = 24
KEYS = "q quit  w waiting  n name  s sending  +/- interval  space pause"
INTERVAL_S = (0.1, 3600.0)
LOOK_AT_KEYS_S = 0.2
"""How often the terminal is looked at, for its size and its keys."""

# What terminals have understood for forty years.
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR, HIDE_CURSOR, SHOW_CURSOR = "\x1b[2J", "\x1b[?25l", "\x1b[?25h"
STYLES = re.compile(r"\x1b\[[0-9;]*m")

DURATION = re.compile(r"\d+(\.\d+)? s\b")


class _Look(NamedTuple):
    """What is seen at once."""

    title: str
    members: list[_Shown]
    reasons: list[str]  # what stands as it stood before
    figures: list[dict[str, Any]]  # for programs

    def print(self) -> None:
        say(self.title)
        click.echo()
        print_table([HEADINGS, *(row for shown in self.members for row in shown.rows)], RIGHT)
        if self.reasons:
            click.echo()
        for reason in self.reasons:
            say(reason)


class _Shown(NamedTuple):
    """A member's lines, and by what they may be ordered."""

    rows: Rows
    is_silent: bool
    waits_s: float  # for how long it has been blocked; negative: it is not
    sends: float

    @property
    def is_urgent(self) -> bool:
        return self.is_silent or self.waits_s >= 0


class _Counts(NamedTuple):
    """What only grows, by window, and when it was seen."""

    at_ns: int
    sent: dict[str, int]
    delivered: dict[str, int]
    retransmitted: dict[str, int]


@click.command(short_help="Watch the members of a group here, as they go.")
@click.argument("group")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(*INTERVAL_S),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look twice, for the rates, print once, and be done.")
@json_file_option
def top(group: str, interval_s: float, once: bool, json_file: Path | None) -> None:
    """Watch the members of a group here: how full their windows are, how fast they send and
    deliver, what has to be retransmitted, and who blocks whom since when.

    Keys: q ends it, as Ctrl-C does; w, n and s order the members: who waits first, by name, who
    sends most first; + and - change the interval; space stops the picture, and starts it again.

    WINDOW is how many of a member's messages not everybody has delivered, of how many there may be.
    REPAIR/s are retransmitted messages, UNREAD waits for its application, GAPS are missing in what
    has arrived. Below is what stands as it stood at the last look.

    \b
    Examples:
      ringcast top orders
      ringcast top orders --once --json
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    is_live = sys.stdout.isatty() and not once and json_file != SCREEN
    try:
        if is_live:
            with _keys() as keys:
                _Screen(group, interval_s, keys, json_file).run()
            return
        watch = _Watch()
        is_first = True
        while True:
            began = time.monotonic()
            look = watch.look(answers(group, {"ask": "top"}), began)
            is_wanted = not (once and is_first)
            if is_wanted and not are_lines_told(json_file, look.figures):
                look.print()
            if is_wanted and once:
                return
            is_first = False
            time.sleep(max(0.0, began + interval_s - time.monotonic()))
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _keys() -> Iterator[IO[str] | None]:
    """Where keys come from, each as it is pressed; None if that is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios  # on other systems the command says first that there are no members
    import tty

    saved = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield sys.stdin
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)


class _Screen:
    """A terminal that shows the group until somebody ends it."""

    def __init__(
        self, group: str, interval_s: float, keys: IO[str] | None, json_file: Path | None
    ) -> None:
        self._group = group
        self._interval_s = interval_s
        self._keys = keys
        self._json_file = json_file
        self._order = "n"
        self._is_paused = False
        self._is_over = False
        self._size = shutil.get_terminal_size()
        # Colour is a matter of taste; where the cursor goes is not.
        self._has_colour = click.get_current_context().color is not False

    def run(self) -> None:
        self._write(HIDE_CURSOR + CLEAR)
        watch = _Watch()
        try:
            while not self._is_over:
                began = time.monotonic()
                look = watch.look(answers(self._group, {"ask": "top"}), began)
                are_lines_told(self._json_file, look.figures)
                self._draw(look)
                while not self._is_over and (
                    self._is_paused or time.monotonic() < began + self._interval_s
                ):
                    self._wait(look, began)
        finally:
            self._write(SHOW_CURSOR + "\n")

    def _wait(self, look: _Look, began: float) -> None:
        """For a key, another size of the terminal, or the next look."""
        left = max(0.0, began + self._interval_s - time.monotonic())
        pause_s = LOOK_AT_KEYS_S if self._is_paused else min(left, LOOK_AT_KEYS_S)
        if self._keys is None:
            time.sleep(pause_s)
        elif select.select([self._keys], [], [], pause_s)[0]:
            self._obey(os.read(self._keys.fileno(), 1).decode("ascii", "replace"))
            self._draw(look)
        if shutil.get_terminal_size() != self._size:
            self._write(CLEAR)
            self._draw(look)

    def _obey(self, key: str) -> None:
        least, most = INTERVAL_S
        match key:
            case "q" | "":  # the end of its input, too
                self._is_over = True
            case "w" | "n" | "s":
                self._order = key
            case "+":
                self._interval_s = min(most, 2 * self._interval_s)
            case "-":
                self._interval_s = max(least, self._interval_s / 2)
            case " ":
                self._is_paused = not self._is_paused

    def _draw(self, look: _Look) -> None:
        columns, rows = self._size = shutil.get_terminal_size()
        how = "paused" if self._is_paused else f"every {self._interval_s:.1f} s"
        drawn = HOME + _in_place(look, columns, rows, self._order, f"{how}  {KEYS}")
        self._write(drawn if self._has_colour else STYLES.sub("", drawn))

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class _Watch:
    """What was seen at the last look, to compare with."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._silent_since: dict[str, float] = {}
        self._reasons: set[str] = set()

    def look(self, replies: Sequence[Reply], now: float) -> _Look:
        views = {
            f"view {answer['view']}: " + ", ".join(safe(m["name"]) for m in answer["members"])
            for reply in replies
            if (answer := reply.answer) is not None
        }
        members = []
        figures = []
        for reply in replies:
            if reply.answer is None:
                lines, figure = self._silent(reply, now)
                waits_s, sends = -1.0, 0.0
            else:
                lines, figure = self._rows(reply.answer)
                blocked = [window["blocked_s"] for window in reply.answer["sent"]]
                waits_s = max((at for at in blocked if at is not None), default=-1.0)
                sends = (figure["rates_per_s"] or {"sent": 0.0})["sent"]
            members.append(_Shown(lines, reply.answer is None, waits_s, sends))
            figures.append(figure)
        answering = [reply for reply in replies if reply.answer is not None]
        self._counts = {r.incarnation: _counts(r.answer) for r in answering if r.answer is not None}
        for reply in answering:
            self._silent_since.pop(reply.incarnation, None)
        title = safe(next(r.answer["group"] for r in answering if r.answer is not None))
        title = f"{title}, {'; '.join(sorted(views))}"
        return _Look(title, members, self._stuck(answering), figures)

    def _stuck(self, answering: Sequence[Reply]) -> list[str]:
        """What members give as reasons and gave at the last look: where messages flow, the numbers
        are others each time. Who give the same are named together."""
        found: dict[str, tuple[list[str], str]] = {}
        for reply in answering:
            for reason in [] if reply.answer is None else reply.answer["reasons"]:
                found.setdefault(DURATION.sub("", reason), ([], reason))[0].append(reply.who)
        seen, self._reasons = self._reasons, set(found)
        return [
            f"{', '.join(who)}: {safe(reason)}"
            for shape, (who, reason) in found.items()
            if shape in seen
        ]

    def _silent(self, reply: Reply, now: float) -> tuple[Rows, dict[str, Any]]:
        since = self._silent_since.setdefault(reply.incarnation, now)
        why = reply.why_not
        row = (reply.who, f"does not answer for {now - since:.1f} s: {why}")
        return [row], {"member": reply.who, "pid": reply.pid, "answers": False, "why": why}

    def _rows(self, answer: dict[str, Any]) -> tuple[Rows, dict[str, Any]]:
        before = self._counts.get(answer["member"]["incarnation"])
        counts = _counts(answer)
        rates = _rates(before, counts)
        received = answer["received"]
        unread = sum(window["received"] - window["delivered"] for window in received)
        missing = sum(window["gaps"] for window in received)
        shown = ("-",) * 3 if rates is None else tuple(map(_short, rates.values()))
        name = safe(answer["member"]["name"])
        rows: Rows = []
        for window in answer["sent"]:
            if window["stream"] == "fifo":
                first = (name, *shown)
                rest = (str(unread), str(missing))
            elif window["high"]:
                first = (f"{name}, {window['stream']}", "", "", "")
                rest = ("", "")
            else:
                continue
            filled = f"{window['high'] - window['low']}/{window['capacity']}"
            rows.append((*first, filled, *rest, _waits(window)))
        figure = {**answer, "answers": True, "rates_per_s": rates}
        return rows or [(name, answer["phase"])], figure


def _counts(answer: dict[str, Any]) -> _Counts:
    sent = {window["stream"]: window for window in answer["sent"]}
    to = {window["member"]["incarnation"]: window for window in answer["to"]}
    delivered = {stream: window["delivered"] for stream, window in sent.items()}
    for window in answer["received"]:
        delivered[f"{window['sender']['incarnation']}/{window['stream']}"] = window["delivered"]
    return _Counts(
        answer["at_ns"],
        {stream: window["high"] for stream, window in sent.items()},
        delivered,
        {key: window["retransmitted"] for key, window in (sent | to).items()},
    )


def _rates(before: _Counts | None, now: _Counts) -> dict[str, float] | None:
    """Per second; None if there is nothing to compare with. What windows that have opened since
    began with says nothing."""
    if before is None or now.at_ns <= before.at_ns:
        return None
    seconds = (now.at_ns - before.at_ns) / 1e9
    return {
        "sent": _growth(before.sent, now.sent) / seconds,
        "delivered": _growth(before.delivered, now.delivered) / seconds,
        "retransmitted": _growth(before.retransmitted, now.retransmitted) / seconds,
    }


def _growth(before: dict[str, int], now: dict[str, int]) -> int:
    return sum(max(0, count - before[key]) for key, count in now.items() if key in before)


def _waits(window: dict[str, Any]) -> str:
    names = ", ".join(safe(member["name"]) for member in window["waits_for"])
    if window["blocked_s"] is not None:
        return f"{names or 'a report'}: full for {window['blocked_s']:.1f} s"
    acks = [member["last_ack_s"] for member in window["waits_for"]]
    if acks and acks[0] is not None:
        return f"{names}: last ack {acks[0]:.1f} s ago"
    return names


def _short(rate: float) -> str:
    """Four digits, and a unit where there are more."""
    if rate < 9999.5:
        return f"{rate:.0f}"
    return f"{rate / 1e3:.0f}k" if rate < 999_500 else f"{rate / 1e6:.2f}M"


def _in_place(look: _Look, columns: int, rows: int, order: str, keys: str) -> str:
    """Over what stood there before, and no more than the terminal has room for. Who waits for whom
    is there to the last: a narrow terminal does without other columns, a low one without members
    that neither wait nor are silent."""
    reasons = [line for reason in look.reasons for line in wrapped(reason, columns, "    ")]
    room = max(1, rows - 6)  # besides title, headings, keys, and what stands between them
    members = sorted(look.members, key=_ORDERS[order])
    shown = [row for member in members for row in member.rows]
    urgent = [row for member in members if member.is_urgent for row in member.rows]
    for_members = max(min(len(urgent), room), room - len(reasons) - bool(reasons))
    if len(shown) > for_members:
        shown = (urgent + [row for row in shown if row not in urgent])[:for_members]
    lines = [click.style(cut(look.title, columns), bold=True), "", *_columns(shown, columns)]
    left = sum(len(member.rows) for member in members) - len(shown)
    reasons = ["", *reasons][: room - len(shown)] if reasons else []
    more = f"{left} more  " if left else ""
    lines += [*reasons, "", click.style(cut(more + keys, columns), dim=True)]
    return "\n".join(line + REST_OF_LINE for line in lines[: rows - 1]) + REST_OF_SCREEN


_ORDERS: dict[str, Callable[[_Shown], Any]] = {
    "w": lambda shown: (not shown.is_silent, -shown.waits_s),
    "n": lambda shown: shown.rows[0][0],
    "s": lambda shown: -shown.sends,
}


def _columns(rows: Rows, columns: int) -> list[str]:
    """The table, without the columns that there is no room for."""
    last = len(HEADINGS) - 1
    kept = list(range(len(HEADINGS)))
    named = [(cut(row[0], NAME_MAX), *row[1:]) for row in (HEADINGS, *rows)]
    wanted = max(cells(row[last]) for row in named if len(row) > last)
    for at in (None, *GOES_FIRST):
        if at is not None:
            kept.remove(at)
        widths = [max(cells(row[at]) for row in named if len(row) > last) for at in kept[:-1]]
        room = columns - sum(widths) - 2 * len(widths)
        if room >= wanted:
            break
    shown = []
    for number, row in enumerate(named):
        if len(row) <= last:  # one sentence over all columns
            *first, words = row
            room_left = columns - sum(max(widths[0], cells(cell)) + 2 for cell in first)
            colour = "red" if first else None
            shown.append((*first, click.style(cut(words, room_left), colour)))
            continue
        waits = cut(row[last], max(room, 1))
        colour = "red" if ": full " in waits else "yellow" if waits and number else None
        shown.append((*(row[at] for at in kept[:-1]), click.style(waits, colour)))
    lines = table(shown, [place for place, at in enumerate(kept) if at in RIGHT])
    return [click.style(lines[0], bold=True), *lines[1:]]
