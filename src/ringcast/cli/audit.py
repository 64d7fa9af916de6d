"""`ringcast audit`: did each guarantee hold in a recorded run, and which rows show it if not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringcast.cli.durations import Duration
from ringcast.cli.words import safe

if TYPE_CHECKING:
    from ringcast.spark.report import Names, Report, Verdict
    from ringcast.trace.rows import Row

_COLOURS = {"ok": "green", "violated": "red"}
"""What is neither is yellow."""


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option("--run", "run_id", help="Which run, where the directory has more than one.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write JSON here.")
@click.option("--follow", is_flag=True, help="Judge again whenever segments come, until Ctrl-C.")
@click.option("--once", is_flag=True, help="With --follow: take what is new, and end.")
@click.option("--every", type=Duration(), default="5s", show_default=True, help="With --follow.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --follow: what was read is kept here.  [default: DIRECTORY/.audit]",
)
def audit(
    directory: Path,
    master: str,
    run_id: str | None,
    json_file: Path | None,
    follow: bool,
    once: bool,
    every: float,
    state: Path | None,
) -> None:
    """Judge the guarantees from the segments that members recorded.

    Exits with 0 if all held (as far as the traces of killed members go), 1 if one was violated,
    3 if rows are missing or there was nothing to judge.

    With --follow each segment is read once, also by later calls; what changes is printed, a line
    each, and to the JSON file an object for each batch. Ends with the status of the last verdicts.

    \b
    Examples:
      ringcast audit traces/
      ringcast audit traces/ --master spark://host:7077 --json verdicts.json
      ringcast audit traces/ --follow --every 30s
      ringcast audit traces/ --follow --once
    """
    if (once or state) and not follow:
        raise click.UsageError("--once and --state go with --follow")
    from ringcast.spark.audit import audit as audit_run
    from ringcast.spark.session import session

    click.echo("starting Spark …", err=True)
    spark = session("ringcast audit", master)
    try:
        click.echo("reading the traces …", err=True)
        if follow:
            from ringcast.cli.following import follow_audit

            every_s = None if once else every
            sys.exit(
                follow_audit(
                    *(spark, directory),
                    state=state,
                    run_id=run_id,
                    every_s=every_s,
                    json_file=json_file,
                )
            )
        report = audit_run(spark, directory, run_id)
        if json_file is not None:
            json_file.write_text(report.to_json() + "\n")
        print_report(report)
    finally:
        spark.stop()
    sys.exit(report.exit_status)


def print_report(report: Report) -> None:
    """The verdicts as a table, what shows each violation, and the sum of it in a sentence."""
    click.echo(
        f"run {safe(report.run_id)}: {report.members} members, {report.segments} segments, "
        f"{report.rows} rows"
    )
    _print_table(report)
    for verdict in report.verdicts:
        for violation in verdict.violations:
            click.echo(f"\n{verdict.id}: {safe(violation.text)}")
            for row in violation.rows:
                click.echo(f"    {safe(_readable(row, report.names))}")
    for note in report.notes:
        click.echo(f"note: {safe(note)}")
    unseen = [verdict.id for verdict in report.verdicts if _is_unseen(verdict)]
    if unseen:
        click.echo(f'note: {", ".join(unseen)} need members that record at level "full"')
    click.echo(f"\n{safe(report.summary)}")


def _print_table(report: Report) -> None:
    table = [("", "guarantee", "verdict", "checks", "detail")]
    for verdict in report.verdicts:
        if _is_unseen(verdict):
            continue
        cells = (verdict.id, verdict.title, verdict.status, str(verdict.premises), verdict.detail)
        table.append(cells)
    widths = [max(len(line[at]) for line in table) for at in range(4)]
    for at, (name, title, status, checks, detail) in enumerate(table):
        padded = status.ljust(widths[2])
        cells = (
            *(name.ljust(widths[0]), title.ljust(widths[1])),
            click.style(padded, _COLOURS.get(status, "yellow")) if at else padded,
            *(checks.rjust(widths[3]), safe(detail)),
        )
        click.echo("  ".join(cells).rstrip())


def _is_unseen(verdict: Verdict) -> bool:
    """No member recorded what it needs: one line says so of all such."""
    return verdict.is_beyond_level and not verdict.premises


def _readable(row: Row, names: Names) -> str:
    words = [f"{names.of((row.node, row.inc))} row {row.idx}:", row.event]
    if row.peer:
        words.append(f"{names.of_origin(row.origin)} {row.seqno}..{row.seqno2}")
    if row.view:
        words.append(f"view {row.view}")
    if row.members:
        words.append("[" + ", ".join(map(names.of_key, row.members)) + "]")
    if row.block >= 0:
        words.append(f"block {row.block} {row.kind} {row.block_hash:016x}")
    return " ".join(words)
