"""ringcast top: windows, rates, repairs, and who pins whom, while it happens."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ringcast.cli.local import ask_group, refusals
from ringcast.cli.words import safe, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ringcast.cli.local import Reply

HEADINGS = (
    *("MEMBER", "SENT/s", "TAKEN/s", "AGAIN/s"),
    *("LOW", "HIGH", "ROOM", "UNREAD", "MISSING", "WAITS FOR"),
)
RIGHT = frozenset(range(1, 9))

# What terminals have understood for forty years.
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR, HIDE_CURSOR, SHOW_CURSOR = "\x1b[2J", "\x1b[?25l", "\x1b[?25h"


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
@click.option("--json", "as_json", is_flag=True, help="For programs: one line for each look.")
def top(group: str, interval_s: float, once: bool, as_json: bool) -> None:
    """Watch the members of a group here: how full their windows are, how fast they send and take,
    what has to be sent again, and who holds whom up since when. Ctrl-C ends it.

    LOW is what everybody has taken of a member's messages, HIGH what it has sent; they are at most
    ROOM apart. UNREAD waits for its application, MISSING are gaps in what has arrived.

    \b
    Examples:
      ringcast top orders
      ringcast top orders --once --json
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    is_live = sys.stdout.isatty() and not once and not as_json
    try:
        if is_live:
            click.echo(HIDE_CURSOR + CLEAR, nl=False)
        for screen in _looks(group, interval_s, once=once, as_json=as_json):
            if is_live:
                screen = _in_place(screen)
            click.echo(screen, nl=not is_live)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        if is_live:
            click.echo(SHOW_CURSOR)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _looks(group: str, interval_s: float, *, once: bool, as_json: bool) -> Iterator[str]:
    watch = _Watch()
    is_first = True
    while True:
        began = time.monotonic()
        replies = ask_group(group, {"ask": "top"})
        refusals(replies)
        screen = watch.look(replies, began)
        if not (once and is_first):
            yield json.dumps(watch.figures) if as_json else screen
            if once:
                return
        is_first = False
        time.sleep(max(0.0, began + interval_s - time.monotonic()))


class _Watch:
    """What was seen at the last look, to compare with."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []
        """The last look, for programs."""
        self._counts: dict[str, _Counts] = {}
        self._silent_since: dict[str, float] = {}
        self._names: dict[str, str] = {}

    def look(self, replies: Sequence[Reply], now: float) -> str:
        views = {
            f"view {answer['view']}: " + ", ".join(safe(m["name"]) for m in answer["members"])
            for reply in replies
            if (answer := reply.answer) is not None
        }
        rows: list[tuple[str, ...]] = [HEADINGS]
        self.figures = []
        for reply in replies:
            rows += self._silent(reply, now) if reply.answer is None else self._rows(reply.answer)
        answering = [reply for reply in replies if reply.answer is not None]
        self._counts = {r.incarnation: _counts(r.answer) for r in answering if r.answer is not None}
        for reply in answering:
            self._silent_since.pop(reply.incarnation, None)
        title = safe(next(r.answer["group"] for r in answering if r.answer is not None))
        return "\n".join([f"{title}, {'; '.join(sorted(views))}", "", *table(rows, RIGHT)])

    def _silent(self, reply: Reply, now: float) -> list[tuple[str, ...]]:
        since = self._silent_since.setdefault(reply.incarnation, now)
        why = reply.error or reply.silence
        self.figures.append({"member": reply.who, "pid": reply.pid, "answers": False, "why": why})
        return [(reply.who, f"does not answer for {now - since:.1f} s: {why}")]

    def _rows(self, answer: dict[str, Any]) -> list[tuple[str, ...]]:
        before = self._counts.get(answer["member"]["incarnation"])
        counts = _counts(answer)
        rates = _rates(before, counts)
        self.figures.append({**answer, "answers": True, "rates_per_s": rates})
        received = answer["received"]
        unread = sum(window["held"] - window["delivered"] for window in received)
        missing = sum(window["gaps"] for window in received)
        shown = ("-",) * 3 if rates is None else tuple(f"{rate:.0f}" for rate in rates.values())
        name = safe(answer["member"]["name"])
        rows = []
        for window in answer["sent"]:
            if window["stream"] == "fifo":
                first = (name, *shown)
                rest = (str(unread), str(missing))
            elif window["high"]:
                first = (f"{name}, {window['stream']}", "", "", "")
                rest = ("", "")
            else:
                continue
            place = (str(window["low"]), str(window["high"]), str(window["capacity"]))
            rows.append((*first, *place, *rest, _waits(window)))
        return rows or [(name, answer["phase"])]


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
        {key: window["resent"] for key, window in (sent | to).items()},
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
        return f"{names or 'a vote'}: full for {window['blocked_s']:.1f} s"
    acks = [member["last_ack_s"] for member in window["waits_for"]]
    if acks and acks[0] is not None:
        return f"{names}: last ack {acks[0]:.1f} s ago"
    return names


def _in_place(screen: str) -> str:
    """Over what stood there before, and no more than the terminal has room for."""
    columns, rows = shutil.get_terminal_size()
    lines = [line[:columns] + REST_OF_LINE for line in screen.splitlines()[: rows - 1]]
    return HOME + "\r\n".join(lines) + REST_OF_SCREEN
