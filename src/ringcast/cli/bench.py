"""ringcast bench: measure the parts, each beside a plain way of doing the same in the same run."""

from __future__ import annotations

import click

from ringcast.cli.bench_audit import audit
from ringcast.cli.bench_groups import crash, join, memory, multicast, rtt, unicast
from ringcast.cli.bench_tables import as_json, print_table, show
from ringcast.errors import UsageError
from ringcast.sim.options import PROTOCOLS


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

    show(bench_codec(), is_json)


@bench.command()
@as_json
def window(is_json: bool) -> None:
    """Nanoseconds per message through the windows, beside a dict-and-loop window.

    Example: ringcast bench window --json
    """
    from ringcast.bench.window import bench_window

    show(bench_window(), is_json)


@bench.command()
@click.option(
    "--elements",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="How many to pass through.",
)
@click.option(
    "--adders", type=click.IntRange(1, 256), default=8, show_default=True, help="Threads that add."
)
@as_json
def ring(elements: int, adders: int, is_json: bool) -> None:
    """The concurrent ring buffer under threads, beside a lock and a dict.

    Example: ringcast bench ring --adders 4
    """
    from ringcast.bench.ring import bench_ring

    show([bench_ring(elements, adders)], is_json)


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

    What a sender gets through meanwhile is counted while nobody is held up: `blocked` is the share
    of the time in which the joiner could keep no more messages, so that senders had to wait.

    Example: ringcast bench state --size 100000000 --kill 0.5
    """
    from ringcast.bench.state import bench_state

    show([bench_state(size, kill=kill, rate=rate)], is_json)


@bench.command()
@click.option("--messages", default=4_000_000, show_default=True, help="How many are archived.")
@click.option("--size", default=100, show_default=True, help="Bytes in each.")
@click.option("--step", default=20_000, show_default=True, help="Messages to a micro-batch.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@as_json
def source(messages: int, size: int, step: int, master: str, is_json: bool) -> None:
    """An archive read by Spark: rows a second, and how long a micro-batch takes.

    Every column of every row reaches Spark, for `cpu_s` of CPU time of all its processes. The best
    of 3 rounds counts, after 2 to warm up, and of micro-batches the median after 5.
    `ceiling_rows_per_s` is as many rows from a source that reads nothing, `plain_rows_per_s` the
    same files read into Arrow by one process without Spark.

    Example: ringcast bench source --messages 1000000 --json
    """
    from ringcast.bench.aims import source_aims
    from ringcast.bench.source import bench_source

    if min(messages, size, step) < 1:
        raise UsageError("--messages, --size and --step are at least 1")
    click.echo("writing an archive, starting Spark …", err=True)
    row = bench_source(messages, size, step, master)
    aims = source_aims(row)
    if is_json:
        show([row | {"aims": aims}], is_json)
    else:
        print_table([row])
        print_table(aims)


@bench.command()
@click.option(
    "--seeds", type=click.IntRange(2), default=400, show_default=True, help="How many to simulate."
)
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default="multicast",
    show_default=True,
    help="Whose.",
)
@as_json
def fleet(seeds: int, protocol: str, is_json: bool) -> None:
    """Simulations on Spark over two cores, beside the same seeds in two plain processes.

    Example: ringcast bench fleet --seeds 400
    """
    from ringcast.bench.fleet import bench_fleet

    click.echo(f"{seeds} seeds in plain processes, then on Spark …", err=True)
    show([bench_fleet(seeds, protocol)], is_json)


for command in (multicast, unicast, rtt, join, crash, memory, audit):
    bench.add_command(command)
