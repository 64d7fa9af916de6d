"""`ringcast audit`: did each guarantee hold in a recorded run, and which rows show it if not. With
--follow what changes in the verdicts, a line each, while the run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringcast.cli.words import (
    SCREEN,
    SPARK_MASTER,
    are_lines_told,
    conf_option,
    duration,
    is_told,
    json_file_option,
    print_table,
    safe,
    say,
)
from ringcast.texts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringcast.spark.report import Names, Report, Verdict
    from ringcast.trace.rows import Row

_COLOURS = {"ok": "green", "violated": "red"}
"""What is neither is yellow."""
NOTHING_TO_JUDGE = 3
ENVIRONMENT = ("RINGCAST_RUN", *(f"RINGCAST_VIOLATION_{name}" for name in ("ID", "TITLE", "TEXT")))
"""Of commands that --on-violation runs."""


@click.command(short_help="Judge the guarantees on what members have recorded.")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--master", type=SPARK_MASTER, default="local[*]", show_default=True, help="Where Spark runs."
)
@conf_option
@click.option("--run", "run_id", help="Which run, where the directory has more than one.")
@click.option("--all", "is_all", is_flag=True, help="Every run in the directory: a line for each.")
@json_file_option
@click.option(
    "--report",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a page with charts here, one HTML file.",
)
@click.option("--follow", is_flag=True, help="Judge again whenever segments come, until Ctrl-C.")
@click.option("--once", is_flag=True, help="With --follow: take what is new, and end.")
@click.option("--every", type=duration(), default="5s", show_default=True, help="With --follow.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --follow: what was read is kept here.  [default: DIRECTORY/.audit]",
)
@click.option(
    "--on-violation",
    "command",
    metavar="CMD",
    help="With --follow: have the shell run this for each violation that is new.",
)
def audit(
    directory: Path,
    master: str,
    conf: dict[str, str],
    run_id: str | None,
    is_all: bool,
    json_file: Path | None,
    page: Path | None,
    follow: bool,
    once: bool,
    every: float,
    state: Path | None,
    command: str | None,
) -> None:
    """Judge the guarantees from the segments that members, or a simulation, recorded.

    Exits with 0 if all held (as far as the traces of killed members go), 1 if one was violated,
    3 if rows are missing or there was nothing to judge.

    With --follow each segment is read once, also by later calls; what changes is printed, a line
    each, and to the JSON file an object for each batch. Ends with the status of the last verdicts.
    --on-violation runs its command once for each violation, also across calls, with
    RINGCAST_VIOLATION_ID, _TITLE and _TEXT and RINGCAST_RUN in its environment.

    \b
    Examples:
      ringcast audit traces/
      ringcast audit traces/ --json
      ringcast audit traces/ --report run.html
      ringcast simulate --seeds 0:20 --record runs && ringcast audit runs --all
      ringcast audit traces/ --master spark://host:7077 --json verdicts.json
      ringcast audit traces/ --follow --every 30s
      ringcast audit traces/ --follow --once
      ringcast audit traces/ --follow --on-violation 'mail -s broken ops'
    """
    if is_all and (run_id is not None or page is not None or follow):
        raise click.UsageError("--all is for every run; --run, --report and --follow for one")
    if (once or state or command) and not follow:
        raise click.UsageError("--once, --state and --on-violation go with --follow")
    if follow and page is not None:
        raise click.UsageError("--report is for a run that is over: not with --follow")
    if page is not None and not os.access(page.absolute().parent, os.W_OK):
        raise click.BadParameter(
            f"nothing can be written in {page.absolute().parent}", param_hint="--report"
        )

    from ringcast.spark.audit import audit as audit_run
    from ringcast.spark.audit import audit_all, find_segments
    from ringcast.spark.page import write_page
    from ringcast.spark.session import context, session

    if not follow:
        find_segments(directory)  # what is not there is told before Spark takes its time
    click.echo("starting Spark …", err=True)
    spark = context("ringcast audit", master, conf)
    try:
        click.echo("reading the traces …", err=True)
        if follow:
            sys.exit(
                follow_audit(
                    *(session("ringcast audit", master, conf=conf), directory),
                    state=state,
                    command=command,
                    run_id=run_id,
                    every_s=None if once else every,
                    json_file=json_file,
                )
            )
        if is_all:
            reports = audit_all(spark, directory)
        else:
            reports = [audit_run(spark, directory, run_id)]
        told = [json.loads(report.to_json()) for report in reports]
        if not is_told(told if is_all else told[0], json_file):
            print_reports(reports) if is_all else print_report(reports[0])
        if page is not None:
            click.echo("drawing the report …", err=True)
            write_page(session("ringcast audit", master, conf=conf), reports[0], page)
            click.echo(f"report: {page}", err=json_file == SCREEN)
    finally:
        spark.stop()
    statuses = {report.exit_status for report in reports}
    sys.exit(1 if 1 in statuses else max(statuses))


def print_reports(reports: Sequence[Report]) -> None:
    """What each run comes to, in a line; in full, where that is not that all held."""
    for report in reports:
        if report.exit_status:
            print_report(report)
            click.echo()
    for report in reports:
        click.echo(f"{_named(report)}: {safe(report.summary)}")


def print_report(report: Report) -> None:
    """The verdicts as a table, what shows each violation, and the sum of it in a sentence."""
    print_verdicts(report)
    for note in report.notes:
        say(f"note: {safe(note)}")
    for why, names in report.unseen().items():
        say(f"note: not judged: {', '.join(names)}: {safe(why)}")
    click.echo()
    say(safe(report.summary))


def print_verdicts(report: Report) -> None:
    """The table, and what shows each violation."""
    click.echo(
        f"run {_named(report)}: {counted(report.members, 'member')}, "
        f"{counted(report.segments, 'segment')}, {counted(report.rows, 'row')}"
    )
    _print_table(report)
    for remark, names in report.shared().items():
        say(f"{', '.join(names)}: {safe(remark)}")
    for verdict in report.verdicts:
        for violation in verdict.violations:
            click.echo(f"\n{verdict.id}: {safe(violation.text)}")
            for line in _lines(violation.rows, report.names):
                click.echo(f"    {safe(line)}")


def _named(report: Report) -> str:
    return safe(report.run_id) or "(unknown)"


def _print_table(report: Report) -> None:
    judged = [verdict for verdict in report.verdicts if not verdict.is_unseen]
    rows = [("", "verdict", "checks", "guarantee")]
    for verdict in judged:
        own = report.own(verdict)
        title = f"{verdict.title}: {safe(own)}" if own else verdict.title
        rows.append((verdict.id, _styled(verdict.status), str(verdict.premises), title))
    print_table(rows, right={2})


def _styled(status: str) -> str:
    return click.style(status, _COLOURS.get(status, "yellow"))


def _lines(rows: Sequence[Row], names: Names) -> Iterator[str]:
    """Of a simulation on its one time line; of real members each by its own."""
    if all(row.run_idx >= 0 for row in rows):
        from ringcast.sim.timeline import time_line

        ordered = sorted(rows, key=lambda row: row.run_idx)
        yield from time_line(ordered, [row.run_idx for row in ordered])
    else:
        from ringcast.spark.report import readable

        yield from (readable(row, names) for row in rows)


# While the run goes on


def follow_audit(
    spark: SparkSession,
    directory: Path,
    *,
    state: Path | None,
    command: str | None = None,
    run_id: str | None,
    every_s: float | None,
    json_file: Path | None,
) -> int:
    """Print the changes until interrupted, or until all is read; the last report's exit status."""
    from ringcast.spark.follow import STATE, follow

    alarm = None if command is None else Alarm(command, state or directory / STATE)
    status = NOTHING_TO_JUDGE
    with _asked_to_stop() as stop:
        said = Changes()
        steps = follow(spark, directory, state=state, run_id=run_id, every_s=every_s, stop=stop)
        for step in steps:
            counts = {"batch": step.batch, "new_segments": step.new}
            are_lines_told(json_file, counts | json.loads(step.report.to_json()))
            about = f"{counted(step.new, 'new segment')}, {step.segments} in all"
            click.echo(f"batch {step.batch}: {about}" if step.batch >= 0 else about, err=True)
            for line in said.lines(step.report):
                click.echo(line, err=json_file == SCREEN)
            if alarm is not None:
                alarm.tell(step.report)
            status = step.report.exit_status
    if stop.is_interrupt:
        raise KeyboardInterrupt
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
            status = _styled(verdict.status)
            turn = status if before == verdict.status else f"{before} → {status}"
            reason = _reason(verdict)
            yield f"{verdict.id}: {turn}: {verdict.title}{safe(f' ({reason})' if reason else '')}"
        yield from (f"note: {safe(note)}" for note in report.notes if note not in self._notes)
        self._notes = set(report.notes)
        if is_changed:
            yield safe(report.summary)


class Alarm:
    """A command for each violation that is new. Which ones it has run for stands beside the state:
    if this is killed in between, it runs for one once more."""

    def __init__(self, command: str, state: Path) -> None:
        self._command = command
        self._file = state / "alarms.json"
        told = "[]"
        with suppress(FileNotFoundError):
            told = self._file.read_text()
        self._told: set[tuple[str, ...]] = set(map(tuple, json.loads(told)))

    def tell(self, report: Report) -> None:
        from ringcast.trace.whole import write_whole

        for verdict in report.verdicts:
            for violation in verdict.violations:
                said = report.run_id, verdict.id, verdict.title, violation.text
                if said in self._told:
                    continue
                words = dict(zip(ENVIRONMENT, said, strict=True))
                done = subprocess.run(
                    self._command, shell=True, check=False, env={**os.environ, **words}
                )
                if done.returncode:
                    click.echo(
                        f"--on-violation: the command ended with status {done.returncode} "
                        f"for {verdict.id}",
                        err=True,
                    )
                self._told.add(said)
                write_whole(self._file, json.dumps(sorted(self._told)))


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


class Stop(threading.Event):
    is_interrupt = False

    def heed(self, number: int, _: object) -> None:
        self.is_interrupt |= number == signal.SIGINT
        self.set()


@contextmanager
def _asked_to_stop() -> Iterator[Stop]:
    """Set by the first Ctrl-C or SIGTERM. Spark's own handler would cut off a batch."""
    stop = Stop()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop.heed) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
