"""ringcast replay: one simulated run, event by event; and the smallest that still fails."""

from __future__ import annotations

from pathlib import Path

import click

from ringcast.cli.simulate import TEXT_AT, partitions_option, protocol_option, purge_option
from ringcast.cli.words import note, say
from ringcast.sim.grid import grid_points, parse_setting, place
from ringcast.sim.options import INDENT, from_json
from ringcast.sim.plan import expand
from ringcast.sim.runner import Result, run
from ringcast.sim.shrink import Shrinker
from ringcast.sim.timeline import time_line
from ringcast.texts import counted

FAILURES_SHOWN = 5


@click.command(short_help="Run one seed again, and show what happened.")
@protocol_option
@partitions_option
@purge_option
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Which seed to run.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Its seed at this point of a grid, as `ringcast simulate --grid` had it.",
)
@click.option(
    "--options",
    "options_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run these options (JSON, as --shrink prints them) instead of a seed's.",
)
@click.option("--shrink", is_flag=True, help="Find a smaller run that fails in the same way.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=200,
    help="Lines of the time line to show: those before the violation, or the first ones.",
)
@click.pass_context
def replay(
    ctx: click.Context,
    protocol: str,
    partitions: bool,
    purge: str,
    seed: int | None,
    settings: tuple[str, ...],
    options_file: Path | None,
    shrink: bool,
    limit: int,
) -> None:
    """Run one seed again and show who sent, lost, asked for and delivered what.

    Exits with 1 if a rule is violated.

    \b
    Examples:
      ringcast replay --seed 42
      ringcast replay --protocol unicast --seed 42 --shrink
      ringcast replay --seed 42 --set capacity=16 --set loss=0.05
    """
    if (seed is None) == (options_file is None):
        raise click.UsageError("give either --seed or --options")
    if settings and seed is None:
        raise click.UsageError("--set goes with --seed; options from a file have all they need")
    points = grid_points([parse_setting(text) for text in settings])
    if len(points) > 1:
        raise click.UsageError("--set takes one value for each name")
    node_factory = ctx.obj  # tests put another node there, which must be caught
    if seed is not None:
        drawn = expand(seed, protocol, partitions=partitions, purge=purge)
        options = place(drawn, points[0])
    else:
        options = from_json(Path(options_file or "").read_text())
    note(f"running seed {options.seed} …")
    result = run(options, node_factory)
    if shrink and result.failures:
        shrinker = Shrinker(result, node_factory, lambda text: click.echo(text, err=True))
        result = shrinker.shrink()
        click.echo(result.options.to_json())
    else:
        for line in str(result.options).splitlines():
            say(line, len(INDENT))
    click.echo()
    _show_time_line(result, limit)
    for failure in result.failures[:FAILURES_SHOWN]:
        say(f"{failure.rule} violated: {failure.text}")
    if len(result.failures) > FAILURES_SHOWN:
        click.echo(f"… and {len(result.failures) - FAILURES_SHOWN} more violations")
    summary = result.summary
    click.echo(
        f"seed {options.seed} · {counted(len(result.failures), 'violation')} · "
        f"{summary.deliveries} deliveries · {counted(summary.faults, 'fault')} · "
        f"trace {summary.hash[:16]}"
    )
    ctx.exit(1 if result.failures else 0)


def _show_time_line(result: Result, limit: int) -> None:
    """Up to the first violation, or from the beginning."""
    rows = result.trace.rows
    if not result.failures:
        lines = list(time_line(rows))
        shown = lines[:limit]
    else:
        witnesses = [row.run_idx for row in result.failures[0].rows]
        lines = list(time_line(rows[: max(witnesses, default=len(rows)) + 1], witnesses))
        shown = lines[-limit:] if limit else []
    if len(shown) < len(lines):
        click.echo(f"{len(shown)} of {len(lines)} lines; --limit shows more")
    for line in shown:
        say(line, TEXT_AT)
    click.echo()
