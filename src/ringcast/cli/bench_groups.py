"""ringcast bench multicast, unicast, rtt, join, crash, memory: whole groups of real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from ringcast.cli.bench_tables import (
    as_json,
    print_aims,
    print_table,
    show_with_aims,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.bench.workload import Workload

TRANSPORTS = ("udp", "multicast", "tcp")

runs = click.option("--runs", default=3, show_default=True, help="Medians of so many.")

transports = click.option(
    "--transport",
    "transports",
    type=click.Choice(TRANSPORTS),
    multiple=True,
    default=TRANSPORTS,
    help="How datagrams travel; may be repeated.  [default: every one]",
)


class SizeType(click.ParamType[Any]):
    """`1000`, or `100-mixed`: sizes from 0 to 200."""

    name = "bytes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, bool]:
        number, _, rest = str(value).partition("-")
        if not (number.isascii() and number.isdigit()) or rest not in ("", "mixed"):
            self.fail(f"{value!r} is not a size: write 1000, or 100-mixed", param, ctx)
        return int(number), rest == "mixed"


@click.command()
@click.option("--members", type=int, multiple=True, help="Processes in the group.  [default: 3]")
@click.option(
    "--senders",
    type=click.Choice(["1", "all"]),
    multiple=True,
    help="Who sends.  [default: all]",
)
@click.option(
    "--size",
    "sizes",
    type=SizeType(),
    multiple=True,
    help="Bytes per message; 100-mixed: that on average.  [default: 1000]",
)
@click.option("--loss", default=0.0, show_default=True, help="Share of datagrams to lose.")
@click.option("--seconds", default=1.0, show_default=True, help="Length of a round, about.")
@click.option("--runs", default=3, show_default=True, help="Rounds; medians are reported.")
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
    help="How senders learn what everybody has; stability (reports) is measured beside acks.",
)
@click.option(
    "--retain/--no-retain",
    default=None,
    help="With stability: receivers keep messages until everybody has them.  [default: retain]",
)
@click.option(
    "--transport",
    "transports",
    type=click.Choice(TRANSPORTS),
    multiple=True,
    help="How datagrams travel; the ceiling is that of the same sockets.  [default: udp]",
)
@click.option(
    "--receive-buffer",
    type=int,
    metavar="BYTES",
    help="Ask the kernel for so much, 212992 being what most machines grant; measured beside "
    "groups with the buffer that they get by themselves.",
)
@click.option(
    "--matrix",
    is_flag=True,
    help="Every transport with 1 → 2, 1 → 3, 3, 4 and 8 all, from 0 bytes to 1 MB, some with loss "
    "or a small receive buffer, and the aims; or what of it --transport, --members, --senders and "
    "--size say.",
)
@click.option("--json", "json_file", type=click.File("w"), help="Write JSON here; - is the screen.")
def multicast(
    members: tuple[int, ...],
    senders: tuple[str, ...],
    sizes: tuple[tuple[int, bool], ...],
    transports: tuple[str, ...],
    matrix: bool,
    json_file: TextIO | None,
    **options: Any,
) -> None:
    """Real processes on loopback: messages per second, beside a raw-socket ceiling.

    --members, --senders, --size and --transport may be repeated: all combinations are measured.

    \b
    Examples:
      ringcast bench multicast --members 3 --senders all --size 1000 --json -
      ringcast bench multicast --receive-buffer 212992 --size 1000 --size 10000
      ringcast bench multicast --matrix --transport tcp --size 100 --size 100-mixed
    """
    from ringcast.bench.aims import matrix_aims
    from ringcast.bench.matrix import Size, bench_matrix, matrix_cells
    from ringcast.bench.workload import Workload

    wanted = [Size(*size) for size in sizes]
    if matrix:
        cells = matrix_cells(
            Workload(**options),
            transports=transports,
            members=members,
            senders=senders,
            sizes=wanted,
        )
    else:
        cells = [
            Workload(
                transport=transport,
                members=count,
                senders=who,
                size=size.size,
                mixed=size.is_mixed,
                **options,
            )
            for transport in transports or ("udp",)
            for count in members or (3,)
            for who in senders or ("all",)
            for size in wanted or [Size(1000)]
        ]
    rows: list[dict[str, Any]] = []
    for row in bench_matrix(cells, tell=_progress(len(cells))):
        rows.append(row)
        if row["failed"]:
            click.echo(f"failed: {row['failed']}", err=True)
    aims = matrix_aims(rows) if matrix else []
    if json_file is not None:
        json_file.write(to_json(rows, aims) if matrix else json.dumps(rows, indent=2))
        json_file.write("\n")
    else:
        _print_cells(rows)
        if matrix:
            print_aims(aims)
    failures = [row["failed"] for row in rows if row["failed"]]
    if failures:
        raise click.ClickException(
            f"{len(failures)} of {len(rows)} cells failed, which must never happen; please report "
            f"it: {' | '.join(failures)}"
        )


@click.command()
@click.option(
    "--size",
    "sizes",
    type=int,
    multiple=True,
    default=(100, 1000, 10_000),
    help="Bytes per message; may be repeated.  [default: 100, 1000, 10000]",
)
@click.option("--seconds", default=1.0, show_default=True, help="Length of a round, about.")
@runs
@transports
@as_json
def unicast(
    sizes: tuple[int, ...], seconds: float, runs: int, transports: tuple[str, ...], is_json: bool
) -> None:
    """One process sends to another: messages per second, beside a raw-socket ceiling.

    Example: ringcast bench unicast --transport udp --size 1000
    """
    from ringcast.bench.aims import UNICAST, rate_aims
    from ringcast.bench.unicast import bench_unicast

    rows: list[dict[str, Any]] = []
    for transport in transports:
        click.echo(f"measuring {transport}", err=True)
        rows += bench_unicast(transport, sizes, seconds=seconds, runs=runs)
    show_with_aims(rows, rate_aims(rows, UNICAST), is_json, hidden=("rates", "loss", "mixed"))
    if any(row["lost"] for row in rows):
        raise click.ClickException("messages were lost: this must never happen; please report it")


@click.command()
@click.option("--size", default=100, show_default=True, help="Bytes asked, and replied.")
@click.option("--count", default=1000, show_default=True, help="Round trips of a run.")
@click.option("--runs", default=9, show_default=True, help="Take the medians of so many.")
@transports
@as_json
def rtt(size: int, count: int, runs: int, transports: tuple[str, ...], is_json: bool) -> None:
    """A request and its reply between two processes, beside plain blocking sockets.

    p50 is what half of the round trips take at most, p99 what 99 of 100 do; asyncio is the same
    sockets in event loops, with no protocol. Ratios are taken within a run. Measured as members are
    by themselves, and with spin_s, which keeps them awake between two datagrams; plain sockets
    sleep.

    Example: ringcast bench rtt --transport tcp --runs 5
    """
    from ringcast.bench.aims import rtt_aims
    from ringcast.bench.rtt import SPIN_S, bench_rtt

    rows: list[dict[str, Any]] = []
    for transport in transports:
        for spin_s, how in ((0.0, ""), (SPIN_S, ", spinning")):
            click.echo(f"measuring {transport}{how}", err=True)
            rows.append(bench_rtt(transport, size=size, count=count, runs=runs, spin_s=spin_s))
    show_with_aims(rows, rtt_aims(rows), is_json, hidden=("versions",))


@click.command()
@click.option("--members", default=3, show_default=True, help="Processes in the group before.")
@click.option("--runs", default=5, show_default=True, help="Joins; the median is reported.")
@transports
@as_json
def join(members: int, runs: int, transports: tuple[str, ...], is_json: bool) -> None:
    """From the start of a process until it is in the view, beside what Python itself takes.

    Example: ringcast bench join --runs 9
    """
    from ringcast.bench.aims import JOIN_S, time_aims
    from ringcast.bench.membership import bench_join, bench_python

    rows: list[dict[str, Any]] = []
    for transport in transports:
        click.echo(f"measuring {transport}", err=True)
        rows += bench_join(members, runs, transport)
    rows += bench_python(runs)
    show_with_aims(rows, time_aims(rows, JOIN_S), is_json)


@click.command()
@click.option("--members", default=3, show_default=True, help="Processes in the group.")
@click.option("--runs", default=5, show_default=True, help="Kills of each kind; medians.")
@transports
@as_json
def crash(members: int, runs: int, transports: tuple[str, ...], is_json: bool) -> None:
    """From kill -9 until all survivors have the view without the victim.

    Example: ringcast bench crash --members 4 --json
    """
    from ringcast.bench.aims import CRASH_S, time_aims
    from ringcast.bench.membership import bench_crash

    rows: list[dict[str, Any]] = []
    for transport in transports:
        click.echo(f"measuring {transport}", err=True)
        rows += bench_crash(members, runs, transport)
    show_with_aims(rows, time_aims(rows, CRASH_S), is_json)


@click.command()
@click.option("--members", default=3, show_default=True, help="Processes in the group.")
@click.option("--size", default=1000, show_default=True, help="Bytes per message.")
@click.option("--minutes", default=10.0, show_default=True, help="How long all of them send.")
@click.option("--every", default=5.0, show_default=True, help="Seconds between two samples.")
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default="udp",
    show_default=True,
    help="How datagrams travel.",
)
@as_json
def memory(
    members: int, size: int, minutes: float, every: float, transport: str, is_json: bool
) -> None:
    """Resident memory of a member that is idle, and whether it grows under load.

    Growth is that of the member that grows most: MB per minute, by least squares over the samples
    after the first minute.

    Example: ringcast bench memory --minutes 2
    """
    from ringcast.bench.aims import memory_aims
    from ringcast.bench.memory import bench_memory

    def tell(minute: float, resident_mb: float) -> None:
        click.echo(f"minute {minute:.1f} of {minutes:g}: {resident_mb:.1f} MB", err=True)

    row = bench_memory(
        transport, members=members, size=size, minutes=minutes, every_s=every, tell=tell
    )
    hidden = ("samples", "flat_mb_per_minute")
    show_with_aims([row], memory_aims([row]), is_json, hidden=hidden)
    if not is_json:
        click.echo(f"\nmemory under load is {'flat' if row['is_flat'] else 'not flat: it grows'}")


CELL_COLUMNS = (
    "transport",
    "workload",
    "size",
    "rate_per_member",
    "mb_per_s",
    "cpu_us_per_delivery",
    "retransmitted",
    "reports_per_1000",
    "lost",
    "rss_mb",
    "ceiling_ratio",
)

CELL_RATIOS = ("record_ratio", "uniform_ratio", "stability_ratio", "buffer_ratio")
"""Beside what the workload is measured, if anything."""


def _print_cells(rows: list[dict[str, Any]]) -> None:
    from ringcast.bench.workload import size_label

    columns = [*CELL_COLUMNS]
    ratios = [name for name in CELL_RATIOS if any(row.get(name) is not None for row in rows)]
    columns += ["plain_rate_per_member", *ratios] if ratios else []
    for name in ("receive_buffer", "loss"):
        if any(row[name] for row in rows):
            columns.insert(3, name)
    print_table(
        [
            {column: row.get(column) for column in columns}
            | {"size": size_label(row["size"], row["mixed"])}
            for row in rows
        ]
    )


def _progress(total: int) -> Callable[[Workload], None]:
    begun = 0

    def tell(cell: Workload) -> None:
        nonlocal begun
        begun += 1
        click.echo(f"measuring {begun} of {total}: {cell}", err=True)

    return tell
