"""ringcast bench: measure the parts, each beside a plain way of doing the same in the same run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Table = Sequence[dict[str, object]]

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON instead of a table.")


@click.group()
def bench() -> None:
    """Measure parts and whole groups. Figures move with the machine; ratios in one run count.

    Example: ringcast bench codec
    """


@bench.command()
@as_json
def codec(is_json: bool) -> None:
    """Nanoseconds per message to encode and decode runs, beside a per-message format.

    Example: ringcast bench codec --json
    """
    from ringcast.bench.codec import bench_codec

    _print(bench_codec(), is_json)


@bench.command()
@as_json
def window(is_json: bool) -> None:
    """Nanoseconds per message through the windows, beside a dict-and-loop window.

    Example: ringcast bench window --json
    """
    from ringcast.bench.window import bench_window

    _print(bench_window(), is_json)


@bench.command()
@click.option("--elements", default=200_000, show_default=True, help="How many to pass through.")
@click.option("--adders", default=8, show_default=True, help="Threads that add.")
@as_json
def ring(elements: int, adders: int, is_json: bool) -> None:
    """The concurrent ring buffer under threads, beside a lock and a dict.

    Example: ringcast bench ring --adders 4
    """
    from ringcast.bench.ring import bench_ring

    _print([bench_ring(elements, adders)], is_json)


@bench.command()
@click.option("--members", default=3, show_default=True, help="Processes in the group.")
@click.option(
    "--senders",
    type=click.Choice(["1", "all"]),
    default="all",
    show_default=True,
    help="Who sends.",
)
@click.option("--size", default=1000, show_default=True, help="Bytes per message.")
@click.option("--loss", default=0.0, show_default=True, help="Share of datagrams to lose.")
@click.option("--seconds", default=1.0, show_default=True, help="Length of a round, about.")
@click.option("--repeat", default=3, show_default=True, help="Rounds; medians are reported.")
@click.option("--seed", default=1, show_default=True, help="Which datagrams are lost.")
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="Record the members' traces in this directory, and measure what that costs.",
)
@click.option(
    "--record-level",
    type=click.Choice(["deliveries", "full"]),
    default="deliveries",
    show_default=True,
    help="How much to record.",
)
@click.option(
    "--guarantee",
    type=click.Choice(["fifo", "uniform"]),
    default="fifo",
    show_default=True,
    help="What messages are sent with; uniform is measured beside fifo.",
)
@click.option(
    "--purge",
    type=click.Choice(["acks", "stability"]),
    default="acks",
    show_default=True,
    help="How senders learn what everybody has; stability (votes) is measured beside acks.",
)
@click.option(
    "--retain/--no-retain",
    default=None,
    help="With stability: receivers keep messages until everybody has them.  [default: retain]",
)
@click.option(
    "--matrix", is_flag=True, help="1 → 2, 1 → 3, 3 all and 4 all at 100, 1000 and 10000 bytes."
)
@click.option("--json", "json_file", type=click.File("w"), help="Write JSON here; - is the screen.")
def multicast(
    members: int,
    senders: str,
    size: int,
    loss: float,
    seconds: float,
    repeat: int,
    seed: int,
    record: Path | None,
    record_level: str,
    guarantee: str,
    purge: str,
    retain: bool | None,
    matrix: bool,
    json_file: TextIO | None,
) -> None:
    """Real processes on loopback: messages per second, beside a raw-socket ceiling.

    Example: ringcast bench multicast --members 3 --senders all --size 1000 --json -
    """
    from ringcast.bench.multicast import Workload, bench_multicast

    groups = [(3, "1"), (4, "1"), (3, "all"), (4, "all")] if matrix else [(members, senders)]
    sizes = [100, 1000, 10_000] if matrix else [size]
    workloads = [
        Workload(
            members=count,
            senders=who,
            size=length,
            loss=loss,
            seconds=seconds,
            repeat=repeat,
            seed=seed,
            record=record,
            record_level=record_level,
            guarantee=guarantee,
            purge=purge,
            retain=retain,
        )
        for count, who in groups
        for length in sizes
    ]
    with click.progressbar(workloads, label="measuring", file=sys.stderr) as bar:
        rows = [bench_multicast(workload) for workload in bar]
    if json_file is not None:
        json.dump(rows, json_file, indent=2)
        json_file.write("\n")
    else:
        columns = [*MULTICAST_COLUMNS]
        columns += [name for name in MULTICAST_RATIOS if rows[0][name] is not None]
        _print([{column: row[column] for column in columns} for row in rows], False)
    if any(row["lost"] for row in rows):
        raise click.ClickException("messages were lost: this must never happen; please report it")


@bench.command()
@click.option("--members", default=3, show_default=True, help="Processes in the group before.")
@click.option("--repeat", default=5, show_default=True, help="Joins; the median is reported.")
@as_json
def join(members: int, repeat: int, is_json: bool) -> None:
    """From the start of a process until it is in the view, beside what Python itself takes.

    Example: ringcast bench join --repeat 9
    """
    from ringcast.bench.membership import bench_join

    _print(bench_join(members, repeat), is_json)


@bench.command()
@click.option("--members", default=3, show_default=True, help="Processes in the group.")
@click.option("--repeat", default=5, show_default=True, help="Kills of each kind; medians.")
@as_json
def crash(members: int, repeat: int, is_json: bool) -> None:
    """From kill -9 until all survivors have the view without the victim.

    Example: ringcast bench crash --members 4 --json
    """
    from ringcast.bench.membership import bench_crash

    _print(bench_crash(members, repeat), is_json)


@bench.command()
@click.option("--size", default=100_000_000, show_default=True, help="Bytes of the state.")
@click.option(
    "--kill",
    default=0.0,
    show_default=True,
    help="Kill -9 the provider when this share of it has come.",
)
@click.option(
    "--rate",
    default=2000,
    show_default=True,
    help="Messages of 1000 B a second from each of three members; 0: as many as they can.",
)
@as_json
def state(size: int, kill: float, rate: int, is_json: bool) -> None:
    """A joiner gets its state while the group goes on: how fast, and what the others notice.

    What a sender gets through meanwhile is counted while nobody is held up: `held_up` is the share
    of the time in which the joiner could keep no more messages, so that senders had to wait.

    Example: ringcast bench state --size 100000000 --kill 0.5
    """
    from ringcast.bench.state import bench_state

    _print([bench_state(size, kill=kill, rate=rate)], is_json)


@bench.command()
@click.option("--messages", default=4_000_000, show_default=True, help="How many are archived.")
@click.option("--size", default=100, show_default=True, help="Bytes in each.")
@click.option("--step", default=20_000, show_default=True, help="Messages to a micro-batch.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@as_json
def source(messages: int, size: int, step: int, master: str, is_json: bool) -> None:
    """An archive read by Spark: rows a second, and how long a micro-batch takes.

    `plain_rows_per_s` is the same files read into Arrow by one process without Spark.

    Example: ringcast bench source --messages 1000000 --json
    """
    from ringcast.bench.source import bench_source

    if min(messages, size, step) < 1:
        raise UsageError("--messages, --size and --step are at least 1")
    click.echo("writing an archive, starting Spark …", err=True)
    _print([bench_source(messages, size, step, master)], is_json)


MULTICAST_COLUMNS = (
    "workload",
    "size",
    "rate_per_member",
    "mb_per_s",
    "cpu_s_per_million",
    "retransmitted",
    "reports_per_1000",
    "lost",
    "rss_mb",
    "ceiling_ratio",
)

MULTICAST_RATIOS = ("record_ratio", "uniform_ratio", "stability_ratio")
"""Beside what the workload is measured, if anything."""


def _print(rows: Table, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(list(rows), indent=2))
        return
    columns = list(rows[0])
    table = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: object) -> str:
    return f"{value:.{2 if value < 2 else 1}f}" if isinstance(value, float) else str(value)
