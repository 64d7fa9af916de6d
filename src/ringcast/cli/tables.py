"""`ringcast tables`: traces as Parquet tables, built, kept small and shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringcast.cli.words import (
    conf_option,
    duration,
    is_told,
    json_file_option,
    print_table,
    safe,
    spark_session,
)
from ringcast.texts import counted

if TYPE_CHECKING:
    from ringcast.spark.tables import Built, Warehouse

_MASTER = click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
_WAREHOUSE = click.argument("warehouse", type=click.Path(path_type=Path, file_okay=False))
_LAYERS = ("bronze", "silver", "gold")


@click.group(short_help="Make tables of traces, for SQL.")
def tables() -> None:
    """Make tables of traces for SQL: bronze, silver and gold, by group, date and run.

    Example: ringcast tables build traces/ warehouse/
    """


@tables.command()
@click.argument("traces", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_WAREHOUSE
@click.option(
    "--date",
    "only",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Build this day (UTC) again, whatever has changed. Otherwise what has changed is built.",
)
@_MASTER
@conf_option
def build(
    traces: Path, warehouse: Path, only: datetime | None, master: str, conf: dict[str, str]
) -> None:
    """Build the days whose segments are new or have changed. Each is replaced whole.

    Exits with 0, or 3 if segments are in quarantine: they could not be read, or contradict others.

    \b
    Examples:
      ringcast tables build traces/ warehouse/
      ringcast tables build traces/ warehouse/ --date 2026-11-15
    """
    from ringcast.spark.tables import Warehouse
    from ringcast.spark.tables import build as build_tables

    with spark_session("ringcast tables", master, conf) as spark:
        day = None if only is None else only.date()
        built = build_tables(spark, traces, Warehouse(warehouse), only=day, tell=_tell)
    _print_built(built)
    if built.quarantined:
        raise click.exceptions.Exit(3)


@tables.command()
@_WAREHOUSE
@_MASTER
@conf_option
def compact(warehouse: Path, master: str, conf: dict[str, str]) -> None:
    """Put the small files of a partition together. What tables say does not change.

    Example: ringcast tables compact warehouse/
    """
    from ringcast.spark.tables import compact as compact_tables

    found = _existing(warehouse)
    with spark_session("ringcast tables", master, conf) as spark:
        gone = compact_tables(spark, found, tell=_tell)
    click.echo(f"{counted(gone, 'file')} less")


@tables.command()
@_WAREHOUSE
@click.option("--older-than", type=duration(), required=True, help="Such as 30d.")
@click.option(
    "--layer",
    "layers",
    type=click.Choice(_LAYERS),
    multiple=True,
    help="Only these layers; may be repeated.  [default: all]",
)
def prune(warehouse: Path, older_than: float, layers: tuple[str, ...]) -> None:
    """Remove days that lie further back than this. They are not built again by themselves.

    \b
    Examples:
      ringcast tables prune warehouse/ --older-than 90d
      ringcast tables prune warehouse/ --older-than 7d --layer bronze
    """
    from ringcast.spark.tables import prune as prune_tables

    before = (datetime.now(UTC) - timedelta(seconds=older_than)).date()
    days = prune_tables(_existing(warehouse), before, layers or _LAYERS)
    what = ", ".join(layers) if layers else "all tables"
    span = (
        f"{counted(len(days), 'day')}, {days[0]} to {days[-1]}"
        if days
        else f"no day: none is before {before}"
    )
    click.echo(f"removed {what} of {span}")


@tables.command(short_help="Which tables there are, of which days, and how large.")
@_WAREHOUSE
@json_file_option
def show(warehouse: Path, json_file: Path | None) -> None:
    """Say which tables there are, of which days, and how large they are.

    Example: ringcast tables show warehouse/
    """
    found = _existing(warehouse)
    rows = list(_summary(found))
    if is_told(rows, json_file):
        return
    columns = ("table", "days", "partitions", "files", "rows", "bytes")
    lines = [[*columns, ""]]
    lines += [
        [*(str(row[name]) for name in columns), f"{row['first']} to {row['last']}"] for row in rows
    ]
    print_table([list(map(safe, line)) for line in lines], right=range(1, 6))


def _summary(warehouse: Warehouse) -> Iterator[dict[str, object]]:
    from ringcast.spark.tables import TABLES

    partitions = warehouse.partitions()
    for name in TABLES:
        having = [found for found in partitions if found.tables.get(name)]
        parts = [part for found in having for part in found.tables[name]]
        days = sorted({found.key.date for found in having})
        if days:
            yield {
                "table": name,
                "days": len(days),
                "first": days[0].isoformat(),
                "last": days[-1].isoformat(),
                "partitions": len(having),
                "files": len(parts),
                "rows": sum(part.rows for part in parts),
                "bytes": sum(part.bytes for part in parts),
            }


def _print_built(built: Built) -> None:
    for key in built.partitions:
        click.echo(safe(f"built group={key.group} date={key.date} run={key.run}"))
    for found in built.quarantined:
        click.echo(safe(f"quarantined {found.file}: {found.reason}"))
    click.echo(
        f"{counted(len(built.partitions), 'partition')} built, {built.unchanged} unchanged, "
        f"{counted(len(built.quarantined), 'segment')} in quarantine"
    )


def _existing(path: Path) -> Warehouse:
    from ringcast.spark.tables import Warehouse

    return Warehouse.existing(path)


def _tell(line: str) -> None:
    click.echo(safe(line), err=True)
