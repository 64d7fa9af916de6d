"""The table of benchmarks: the commands of `ringcast bench`, their options, help and aims.

A benchmark is a function `bench_NAME` in the module that its entry names; it gets the options by
name and returns rows. What is printed of them, which aims they are held against, and when the
command fails, stands in the entry (command.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from benchmarks import aims
from benchmarks.command import Rows, SizeType, benchmark, option, several, without, word
from benchmarks.peers.compare import PEERS, SHAPES
from benchmarks.workload import RATIOS, TRANSPORTS, Size
from ringcast.cli.words import CONF
from ringcast.config_file import PRESETS
from ringcast.sim.options import PROTOCOLS


def _cells(rows: Rows) -> Rows:
    """Those that people compare, and a ratio or a condition only if some cell has it."""
    if "network" in rows[0]:
        return without("failed")(rows)
    ratios = [name for name in RATIOS if any(row.get(name) is not None for row in rows)]
    columns = [
        *("transport", "workload", "size"),
        *(name for name in ("loss", "receive_buffer") if any(row[name] for row in rows)),
        *("rate_per_member", "mb_per_s", "cpu_us_per_delivery", "retransmitted"),
        *("reports_per_1000", "lost", "rss_mb", "ceiling_ratio"),
    ]
    if ratios:
        columns += ["plain_rate_per_member", *ratios, "plain_cpu_us_per_delivery", "cpu_ratio"]
    labels = [row | {"size": str(Size(row["size"], row["mixed"]))} for row in rows]
    return [{column: row.get(column) for column in columns} for row in labels]


def _failed_cells(rows: Rows) -> str:
    failures = [row["failed"] for row in rows if row["failed"]]
    text = f"{len(failures)} of {len(rows)} cells failed, which must never happen; please report it"
    return f"{text}: {' | '.join(failures)}" if failures else ""


def _duckdb(rows: Rows) -> str:
    from benchmarks.audit_sql import duckdb

    return f"DuckDB {duckdb().__version__} in this run"


_CONF = click.Option(["--conf"], **CONF)
_SPARK = (option("--master", "Where Spark runs.", "local[*]"), _CONF)
_SECONDS = option("--seconds", "Length of a round, about.", 1.0)
_MEMBERS = option("--members", "Processes in the group.", 3)
_SIZES = (100, 1000, 10_000)
_PACE = (
    several("--size sizes", "Bytes per message; may be repeated.", int, _SIZES),
    _SECONDS,
    option("--runs", "Medians of so many.", 3),
)
_transports = partial(several, "--transport transports", kind=click.Choice(TRANSPORTS))


def _any_of(names: str, help: str, words: Iterable[str]) -> click.Option:
    """Some of these; all by default."""
    return several(names, help, click.Choice([*words]), (*words,), "every one")


_EVERY = _any_of("--transport transports", "How datagrams travel; may be repeated.", TRANSPORTS)

BENCHMARKS = {
    "codec": benchmark(
        "parts",
        """Nanoseconds per message to encode and decode runs, beside a per-message format.

        Example: ringcast bench codec --json""",
    ),
    "refuse": benchmark(
        "parts",
        """Microseconds to refuse a datagram of somebody who has not the key, once it is read.

        Example: ringcast bench refuse --json""",
        aims=lambda rows: [  # a stranger's datagram costs less to refuse than to send
            aims.at_most("µs for each", 5.0, max(row["us"] for row in rows if row["is_bounded"]))
        ],
        compared_with=lambda rows: None,
    ),
    "window": benchmark(
        "parts",
        """Nanoseconds per message through the windows, beside a dict-and-loop window.

        Example: ringcast bench window --json""",
    ),
    "ring": benchmark(
        "parts",
        """The concurrent ring buffer under threads, beside a lock and a dict.

        Example: ringcast bench ring --adders 4""",
        option("--elements", "How many to pass through.", 200_000, type=click.IntRange(1)),
        option("--adders", "Threads that add.", 8, type=click.IntRange(1, 256)),
    ),
    "steps": benchmark(
        "steps",
        """Calls of functions: of a message, a request, a datagram, and of idle members.

        From `send` to the `async for` of another member, on loopback; the first quartile of 200.
        `python_calls` are of functions written in Python, the longest of which has so many lines.

        Example: ringcast bench steps --functions""",
        option("--functions", "Every function, most called first.", is_flag=True),
    ),
    "multicast": benchmark(
        "multicast",
        """Real processes on loopback: messages per second, beside a raw-socket ceiling.

        --members, --senders, --size and --transport may be repeated: all combinations are measured.

        \b
        Examples:
          ringcast bench multicast --members 3 --senders all --size 1000 --json
          ringcast bench multicast --mtu 1500 --size 1000 --size 10000
          ringcast bench multicast --receive-buffer 212992 --size 1000 --size 10000
          ringcast bench multicast --insecure --size 100 --size 1000 --size 10000
          ringcast bench multicast --matrix --transport tcp --size 100-mixed""",
        several("--members", "Processes in the group.", int, told="3"),
        several("--senders", "Who sends.", click.Choice(["1", "all"]), told="all"),
        several(
            "--size sizes",
            "Bytes per message; 100-mixed: that on average.",
            SizeType(),
            told="1000",
        ),
        option("--loss", "Share of datagrams to lose.", 0.0),
        _SECONDS,
        option("--runs", "Rounds; medians are reported.", 3),
        option("--seed", "Which datagrams are lost.", 1),
        option(
            "--record",
            "Record the members' traces in this directory, and measure what that costs.",
            type=click.Path(file_okay=False, path_type=Path),
        ),
        word("--record-level", "How much to record.", ["deliveries", "full"]),
        word(
            "--guarantee",
            "What messages are sent with; uniform is measured beside fifo, total beside uniform.",
            ["fifo", "uniform", "total"],
        ),
        word(
            "--purge",
            "How senders learn what everybody has; stability (reports) is measured beside acks.",
            ["acks", "stability"],
        ),
        click.Option(
            ["--retain/--no-retain"],
            default=None,
            help="With stability: receivers keep messages until everybody has them.  "
            "[default: retain]",
        ),
        _transports("How datagrams travel; the ceiling is that of the same sockets.", told="udp"),
        option(
            "--receive-buffer",
            "Ask the kernel for so much, 212992 being what most machines grant; measured beside "
            "groups with the buffer that they get by themselves.",
            type=int,
            metavar="BYTES",
        ),
        option(
            "--mtu",
            "Each member on a host of its own, in a network whose packets have so many bytes: "
            "beside 65535, with interfaces that cut nothing, and with no offload; sealed and not. "
            "Linux, as root or where users may make namespaces.",
            type=click.IntRange(576, 65_535),
            metavar="BYTES",
        ),
        option(
            "--insecure", "Measure beside groups without a key: what sealing costs.", is_flag=True
        ),
        option(
            "--matrix",
            "Every transport with 1 → 2, 1 → 3, 3, 4 and 8 all, from 0 bytes to 1 MB, some with "
            "loss or a small receive buffer, and the aims; or what of it --transport, --members, "
            "--senders and --size say.",
            is_flag=True,
        ),
        aims=aims.multicast_aims,
        has_aims=lambda options: bool(options["matrix"] or options["mtu"]),
        compared_with=lambda rows: None if "network" in rows[0] else aims.SOURCE,
        layout=_cells,
        failure=_failed_cells,
    ),
    "unicast": benchmark(
        "multicast",
        """One process sends to another: messages per second, beside a raw-socket ceiling.

        Example: ringcast bench unicast --transport udp --size 1000""",
        *_PACE,
        _EVERY,
        aims=partial(aims.rate_aims, compared=aims.UNICAST),
        layout=without("rates", "loss", "mixed", "failed"),
        failure=_failed_cells,
    ),
    "api": benchmark(
        "multicast",
        """Messages one at a time, `send` and `async for`, beside `send_many` and `batches`.

        One process sends to two others; both ways take turns in one group.

        Example: ringcast bench api --size 100""",
        *_PACE,
        _transports("How datagrams travel.", default=TRANSPORTS[:1]),
    ),
    "peers": benchmark(
        "peers.compare",
        """The same workloads through pyzmq, nats and redis, each in turn with ours.

        `ratio` is ours to theirs: above 1 we move more messages, or take less time. A peer that is
        not installed is named, with how to have it, and left out.

        Example: ringcast bench peers --peer pyzmq --size 1000""",
        _any_of("--peer peers", "Whose; may be repeated.", PEERS),
        *_PACE,
        _any_of("--workload workloads", "Who sends to whom; may be repeated.", SHAPES),
        option("--count", "Round trips of a run.", 1000),
        remark=lambda rows: "" if rows else "no peer is installed: nothing to compare",
    ),
    "rtt": benchmark(
        "rtt",
        """A request and its reply between two processes, beside plain blocking sockets.

        p50 is what half of the round trips take at most, p99 what 99 of 100 do; asyncio is the same
        sockets in event loops, with no protocol. Ratios are taken within a run. Measured as members
        are by themselves, and with spin_s, which keeps them awake between two datagrams; plain
        sockets sleep.

        Example: ringcast bench rtt --transport tcp --runs 5""",
        option("--size", "Bytes asked, and replied.", 100),
        option("--count", "Round trips of a run.", 1000),
        option("--runs", "Take the medians of so many.", 9),
        _EVERY,
        aims=aims.rtt_aims,
        layout=without("versions"),
    ),
    "dict": benchmark(
        "structures",
        """A replicated dict: writes and reads a second of all members, beside a redis-server's.

        Example: ringcast bench dict --members 3 --size 100""",
        _MEMBERS,
        option("--under-way", "Writes that each member has under way.", 64),
        *_PACE,
        layout=without("versions"),
    ),
    "join": benchmark(
        "groups",
        """From the start of a process until it is in the view, beside what Python itself takes.

        Example: ringcast bench join --runs 9""",
        option("--members", "Processes in the group before.", 3),
        option("--runs", "Joins; the median is reported.", 5),
        _EVERY,
        aims=partial(aims.time_aims, wanted_s=aims.JOIN_S),
    ),
    "crash": benchmark(
        "groups",
        """From kill -9 until all survivors have the view without the victim.

        \b
        Examples:
          ringcast bench crash --members 4 --json
          ringcast bench crash --cut --preset alert --transport udp""",
        _MEMBERS,
        option("--runs", "Kills of each kind; medians.", 5),
        option(
            "--cut",
            "Kill nobody: each member is on a host of its own, whose cable is pulled, so that no "
            "refused port tells of it. Linux, as root or where users may make namespaces.",
            is_flag=True,
        ),
        word("--preset", "Settings of the group, by name.", [*PRESETS]),
        _EVERY,
        aims=partial(aims.time_aims, wanted_s=aims.CRASH_S),
    ),
    "idle": benchmark(
        "groups",
        """What members take of the machine while nobody sends: CPU time, wake-ups, memory.

        Of the median member, and the most of any. Datagrams are those sent and received.

        Example: ringcast bench idle --members 3 --seconds 30""",
        several("--members", "Processes in the group; may be repeated.", int, (3, 50)),
        option("--seconds", "How long they are watched.", 20.0),
        _transports("How datagrams travel; may be repeated.", default=TRANSPORTS[:1]),
        aims=aims.idle_aims,
        compared_with=lambda rows: None,
    ),
    "memory": benchmark(
        "groups",
        """Resident memory of a member that is idle, and whether it grows under load.

        Growth is that of the member that grows most: MB per minute, by least squares over the
        samples after the first minute.

        Example: ringcast bench memory --minutes 2""",
        _MEMBERS,
        option("--size", "Bytes per message.", 1000),
        option("--minutes", "How long all of them send.", 10.0),
        option("--every", "Seconds between two samples.", 5.0),
        word("--transport", "How datagrams travel.", TRANSPORTS),
        aims=aims.memory_aims,
        layout=without("samples", "flat_mb_per_minute"),
        remark=lambda rows: (
            f"memory under load is {'flat' if rows[0]['is_flat'] else 'not flat: it grows'}"
        ),
    ),
    "state": benchmark(
        "groups",
        """A joiner gets its state while the group goes on: how fast, and what the others notice.

        What a sender gets through meanwhile is counted while nobody is blocked: `blocked` is the
        share of the time in which the joiner could keep no more messages, so that senders had to
        wait.

        Example: ringcast bench state --size 100000000 --kill 0.5""",
        option("--size", "Bytes of the state.", 100_000_000),
        option("--kill", "Kill -9 the provider when this share of it has come.", 0.0),
        option(
            "--rate",
            "Messages of 1000 B a second from each of three members; 0: as many as they can.",
            2000,
        ),
    ),
    "source": benchmark(
        "on_spark",
        """An archive read by Spark: rows a second, and how long a micro-batch takes.

        Every column of every row reaches Spark, for `cpu_s` of CPU time of all its processes. The
        best of 3 rounds counts, after 2 to warm up, and of micro-batches the median after 5.
        `ceiling_rows_per_s` is as many rows from a source that reads nothing, `plain_rows_per_s`
        the same files read into Arrow by one process without Spark.

        Example: ringcast bench source --messages 1000000 --json""",
        option("--messages", "How many are archived.", 4_000_000),
        option("--size", "Bytes in each.", 100),
        option("--step", "Messages to a micro-batch.", 20_000),
        *_SPARK,
        aims=aims.source_aims,
        compared_with=lambda rows: None,
    ),
    "sink": benchmark(
        "sink",
        """Rows that Spark stages for a group, beside the same rows as Parquet; and their publisher.
        The best of 3 rounds counts, after 2 to warm up.

        Example: ringcast bench sink --messages 200000 --json""",
        option("--messages", "How many rows.", 1_000_000),
        option("--size", "Bytes in each.", 100),
        *_SPARK,
        compared_with=lambda rows: None,
    ),
    "fleet": benchmark(
        "on_spark",
        """Simulations on Spark over two cores, beside the same seeds in two plain processes.

        Example: ringcast bench fleet --seeds 400""",
        option("--seeds", "How many to simulate.", 400, type=click.IntRange(2)),
        word("--protocol", "Whose.", PROTOCOLS),
        _CONF,
    ),
    "audit": benchmark(
        "audit",
        """Judge large traces on two cores: rows and messages a second, memory, and DuckDB beside
        it.

        A row is a run of messages. `core` are the questions whether messages come in order, without
        a gap, once, and the same everywhere; `all` are those and all others that members' traces
        answer at level "deliveries". `sums` only counts and adds, which shows no order: no audit
        could do with less. Spark judges everything in each case. Its start and first audits do not
        count.

        \b
        Examples:
          ringcast bench audit
          ringcast bench audit --rows 5000000 --rows 50000000 --json
          ringcast bench audit --members 200 --segments 300""",
        several(
            "--rows sizes",
            "Rows of the traces; may be repeated, to see how the time grows.",
            click.IntRange(10_000, 500_000_000),
            (5_000_000,),
        ),
        option("--runs", "The best of so many counts, on both sides.", 3, type=click.IntRange(1)),
        option(
            "--executors/--no-executors",
            "Also on a cluster of processes with one executor, and with two.",
            True,
        ),
        option(
            "--members",
            "Instead: one audit of so many members with small segments, and what the driver gets.",
            type=click.IntRange(2, 1000),
        ),
        option("--segments", "With --members: of each.", 300, type=click.IntRange(1, 100_000)),
        _CONF,
        aims=aims.audit_aims,
        has_aims=lambda options: options["members"] is None,
        compared_with=_duckdb,
        layout=lambda rows: (
            without("shuffled_share", "segments", "cold")(rows) if "cold" in rows[0] else rows
        ),
    ),
}

COMMANDS = {name: entry.command(name) for name, entry in BENCHMARKS.items()}
