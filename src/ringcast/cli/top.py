"""ringcast top: windows, rates, repairs, and who pins whom, while it happens."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ringcast.cli.local import answers
from ringcast.cli.words import SCREEN, is_line_told, json_file_option, safe, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from ringcast.cli.local import Reply

    Rows: TypeAlias = list[tuple[str, ...]]

HEADINGS = (
    *("MEMBER", "SENT/s", "TAKEN/s", "AGAIN/s"),
    *("WINDOW", "UNREAD", "GAPS", "WAITS FOR"),
)
RIGHT = range(1, 7)

# What terminals have understood for forty years.
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR, HIDE_CURSOR, SHOW_CURSOR = "\x1b[2J", "\x1b[?25l", "\x1b[?25h"

DURATION = re.compile(r"\d+(\.\d+)? s\b")


class _Look(NamedTuple):
    """What is seen at once."""

    table: list[str]
    reasons: list[str]
    """What stands as it stood before."""
    figures: list[dict[str, Any]]
    """For programs."""

    def __str__(self) -> str:
        return "\n".join([*self.table, "", *self.reasons] if self.reasons else self.table)


class _Counts(NamedTuple):
    """What only grows, by window, and when it was seen."""

    at_ns: int
    sent: dict[str, int]
    taken: dict[str, int]
    again: dict[str, int]


@click.command()
@click.argument("group")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 3600.0),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look twice, for the rates, print once, and be done.")
@json_file_option
def top(group: str, interval_s: float, once: bool, json_file: Path | None) -> None:
    """Watch the members of a group here: how full their windows are, how fast they send and take,
    what has to be retransmitted, and who holds whom up since when. Ctrl-C ends it.

    WINDOW is how many of a member's messages not everybody has delivered, of how many there may be.
    UNREAD waits for its application, GAPS are missing in what has arrived. Below is what stands as
    it stood at the last look.

    \b
    Examples:
      ringcast top orders
      ringcast top orders --once --json
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_live = sys.stdout.isatty() and not once and json_file != SCREEN
    try:
        if is_live:
            click.echo(HIDE_CURSOR + CLEAR, nl=False)
        for look in _looks(group, interval_s, once=once):
            if not is_line_told(look.figures, json_file):
                click.echo(_in_place(look) if is_live else str(look), nl=not is_live)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        if is_live:
            click.echo(SHOW_CURSOR)


def _looks(group: str, interval_s: float, *, once: bool) -> Iterator[_Look]:
    watch = _Watch()
    is_first = True
    while True:
        began = time.monotonic()
        look = watch.look(answers(group, {"ask": "top"}), began)
        if not (once and is_first):
            yield look
            if once:
                return
        is_first = False
        time.sleep(max(0.0, began + interval_s - time.monotonic()))


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
        rows: Rows = [HEADINGS]
        figures = []
        for reply in replies:
            if reply.answer is None:
                lines, figure = self._silent(reply, now)
            else:
                lines, figure = self._rows(reply.answer)
            rows += lines
            figures.append(figure)
        answering = [reply for reply in replies if reply.answer is not None]
        self._counts = {r.incarnation: _counts(r.answer) for r in answering if r.answer is not None}
        for reply in answering:
            self._silent_since.pop(reply.incarnation, None)
        title = safe(next(r.answer["group"] for r in answering if r.answer is not None))
        shown = [f"{title}, {'; '.join(sorted(views))}", "", *table(rows, RIGHT)]
        return _Look(shown, self._stuck(answering), figures)

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
    taken = {stream: window["delivered"] for stream, window in sent.items()}
    for window in answer["received"]:
        taken[f"{window['sender']['incarnation']}/{window['stream']}"] = window["delivered"]
    return _Counts(
        answer["at_ns"],
        {stream: window["high"] for stream, window in sent.items()},
        taken,
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
        "taken": _growth(before.taken, now.taken) / seconds,
        "again": _growth(before.again, now.again) / seconds,
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


def _in_place(look: _Look) -> str:
    """Over what stood there before, and no more than the terminal has room for: the table is cut
    off at the right, sentences go on in the next line."""
    columns, rows = shutil.get_terminal_size()
    lines = [line if len(line) <= columns else line[: columns - 1] + "…" for line in look.table]
    lines += [""] * bool(look.reasons)
    for reason in look.reasons:
        lines += textwrap.wrap(reason, columns, subsequent_indent="    ")
    if len(lines) >= rows:
        lines[max(0, rows - 2) :] = ["…"]
    return HOME + "\n".join(line + REST_OF_LINE for line in lines) + REST_OF_SCREEN
