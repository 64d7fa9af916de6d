"""`ringcast audit --follow`: what changes in the verdicts, a line each, while the run goes on."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from ringcast.cli.words import safe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ringcast.spark.follow import Step
    from ringcast.spark.report import Report, Verdict

NOTHING_TO_JUDGE = 3
_COLOURS = {"ok": "green", "violated": "red"}


def follow_audit(
    spark: SparkSession,
    directory: Path,
    *,
    state: Path | None,
    run_id: str | None,
    every_s: float | None,
    json_file: Path | None,
) -> int:
    """Print the changes until interrupted, or until all is read; the last report's exit status."""
    from ringcast.spark.follow import follow

    status = NOTHING_TO_JUDGE
    with ExitStack() as stack:
        stop = stack.enter_context(_asked_to_stop())
        lines = stack.enter_context(click.open_file(str(json_file), "a")) if json_file else None
        said = Changes()
        steps = follow(spark, directory, state=state, run_id=run_id, every_s=every_s, stop=stop)
        for step in steps:
            if lines is not None:
                lines.write(_as_json(step) + "\n")
                lines.flush()
            about = f"{step.new} new segments, {step.segments} in all"
            click.echo(f"batch {step.batch}: {about}" if step.batch >= 0 else about, err=True)
            for line in said.lines(step.report):
                click.echo(line, err=str(json_file) == "-")
            status = step.report.exit_status
    return status


class Changes:
    """What a report says that the one before it did not."""

    def __init__(self) -> None:
        self._verdicts: dict[str, tuple[object, ...]] = {}
        self._statuses: dict[str, str] = {}
        self._notes: set[str] = set()

    def lines(self, report: Report) -> Iterator[str]:
        is_changed = False
        for verdict in report.verdicts:
            now = _essence(verdict)
            if _is_idle(verdict) or self._verdicts.get(verdict.id) == now:
                continue
            is_changed = True
            self._verdicts[verdict.id] = now
            before = self._statuses.get(verdict.id, verdict.status)
            self._statuses[verdict.id] = verdict.status
            status = click.style(verdict.status, _COLOURS.get(verdict.status, "yellow"))
            turn = status if before == verdict.status else f"{before} → {status}"
            reason = _reason(verdict)
            yield f"{verdict.id}: {turn}: {verdict.title}{safe(f' ({reason})' if reason else '')}"
        yield from (f"note: {safe(note)}" for note in report.notes if note not in self._notes)
        self._notes = set(report.notes)
        if is_changed:
            yield safe(report.summary)


def _essence(verdict: Verdict) -> tuple[object, ...]:
    """What a change is told of: not that more was judged."""
    reasons = (*verdict.incomplete, *verdict.inconclusive, *sorted(verdict.unknown))
    return verdict.status, verdict.violation_count, reasons


def _is_idle(verdict: Verdict) -> bool:
    """There was nothing to judge it by, and nothing is missing."""
    return not verdict.premises and verdict.status in ("inconclusive", "undecidable")


def _reason(verdict: Verdict) -> str:
    """Its detail; of a violation what shows it first."""
    if not verdict.violations:
        return verdict.detail
    return f"{verdict.violations[0].text}; {verdict.violation_count} in all"


def _as_json(step: Step) -> str:
    counts = {"batch": step.batch, "new_segments": step.new}
    return json.dumps(counts | json.loads(step.report.to_json()))


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM. Spark's own handler would cut off a batch."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
