"""ringcast bench audit: the audit on Spark, beside DuckDB on the same files."""

from __future__ import annotations

from functools import partial

import click

from ringcast.cli.bench_tables import as_json, show, show_with_aims

HIDDEN = ("shuffled_share", "segments", "cold")


@click.command()
@click.option(
    "--rows",
    "sizes",
    type=click.IntRange(10_000, 500_000_000),
    multiple=True,
    default=(5_000_000,),
    help="Rows of the traces; may be repeated, to see how the time grows.  [default: 5000000]",
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="The best of so many counts, on both sides.",
)
@click.option(
    "--executors/--no-executors",
    default=True,
    show_default=True,
    help="Also on a cluster of processes with one executor, and with two.",
)
@click.option(
    "--members",
    type=click.IntRange(2, 1000),
    help="Instead: one audit of so many members with small segments, and what the driver gets.",
)
@click.option(
    "--segments",
    type=click.IntRange(1, 100_000),
    default=300,
    show_default=True,
    help="With --members: of each.",
)
@as_json
def audit(
    sizes: tuple[int, ...],
    runs: int,
    executors: bool,
    members: int | None,
    segments: int,
    is_json: bool,
) -> None:
    """Judge large traces on two cores: rows and messages a second, memory, and DuckDB beside it.

    A row is a run of messages. `core` are the questions whether messages come in order, without
    a gap, once, and the same everywhere; `all` are those and all others that members' traces
    answer at level "deliveries". `sums` only counts and adds, which shows no order: no audit could
    do with less. Spark judges everything in each case. Its start and first audits do not count.

    \b
    Examples:
      ringcast bench audit
      ringcast bench audit --rows 5000000 --rows 50000000 --json
      ringcast bench audit --members 200 --segments 300
    """
    tell = partial(click.echo, err=True)
    if members is not None:
        from ringcast.bench.audit_members import bench_members

        show([bench_members(members, segments, tell=tell)], is_json)
        return
    from ringcast.bench.aims import audit_aims
    from ringcast.bench.audit import bench_audit
    from ringcast.bench.audit_sql import ENGINE

    lines = bench_audit(sizes, runs=runs, with_executors=executors, tell=tell)
    show_with_aims(
        lines, audit_aims(lines), is_json, hidden=HIDDEN, compared_with=f"{ENGINE} in this run"
    )
