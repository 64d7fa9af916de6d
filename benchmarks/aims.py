"""Aims: what the figures of a benchmark are to reach, and whether they do.

The compared figures are those of JGroups 5.6, tuned for each cell, on the same kind of machine.
Where it gave a range this is the middle of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks.workload import Row, Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Rows = Sequence[Row]

SOURCE = "JGroups 5.6, tuned, on the same kind of machine"

DEFAULT_TRANSPORT = "udp"


class Compared(NamedTuple):
    """A cell: messages per second delivered per member, and how many times that is wanted."""

    shape: str
    size: int
    rate: int
    factor: float
    cpu_us: float | None = None
    """CPU time per delivery that is not to be exceeded."""


MULTICAST = (
    Compared("3 all", 100, 1_500_000, 1.3, 0.4),
    Compared("3 all", 1000, 565_000, 1.2, 1.1),
    Compared("3 all", 10_000, 83_000, 1.1, 7.5),
    Compared("4 all", 100, 1_000_000, 2.0),
    Compared("4 all", 1000, 300_000, 2.0),
    Compared("4 all", 10_000, 50_000, 1.5),
    Compared("1 → 2", 100, 1_500_000, 1.3),
    Compared("1 → 2", 1000, 725_000, 1.1),
    Compared("1 → 2", 10_000, 95_000, 1.0),
    Compared("1 → 3", 100, 790_000, 2.5),
    Compared("1 → 3", 1000, 220_000, 2.5),
    Compared("1 → 3", 10_000, 38_000, 1.5),
)

UNICAST = (
    Compared("1 → 1", 100, 1_600_000, 1.0),
    Compared("1 → 1", 1000, 880_000, 1.0),
    Compared("1 → 1", 10_000, 170_000, 1.0),
)

GOODPUT = {0.01: 0.7, 0.1: 0.4}
"""By the share of datagrams that is lost: what is to remain of the rate without loss."""

COLLAPSED = {"rate_per_member": 25_000, "mb_per_s": 25.0, "ceiling_ratio": 0.05}
"""A cell has collapsed if each member gets fewer messages and fewer megabytes a second than that,
where untuned groups end up that repair by a slow timer, and a smaller share of what raw sockets
move: a machine that is busy with other things is slow with both."""

CRAMPED = 0.25
"""What is to remain of the rate with the receive buffer that most machines grant."""

NETWORK = {1000: 0.4, 10_000: 0.3}
"""By the size of a message: what is to remain of the rate with an MTU of 1500."""

SEALED = 0.6
"""What sealed groups are to reach of the rate of insecure ones."""

RTT = {
    "p50 to raw sockets": ("p50_to_raw", 2.5),
    "p99 to p50": ("p99_to_p50", 10.0),
    "p50 in µs": ("p50_us", 1.5 * 46),
    "p99 in µs": ("p99_us", 0.5 * 800),
}
MEMORY = {"idle, MB": ("idle_mb", 60.0), "under load, MB": ("most_mb", 0.5 * 435)}
"""Columns and what they are to be at most."""

JOIN_S = 0.4 * 1.1
CRASH_S = 0.4 * 2.0
CUT_S = 1.0
"""Where no refused port tells of it. JGroups took 1.75 to 2.7 s."""

IDLE_PERCENT = 0.5
"""Of a core, for each member."""

HELD_MS = 20.0

SOURCE_ROWS = 2_000_000
"""A second, out of an archive into Spark, on two cores."""
OUTPUT_MS = 1000
"""From the first message of a segment of 0.2 s to a stream's output."""


def at_least(aim: str, wanted: float, measured: float, why: str = "") -> Row:
    return _aim(aim, "≥", wanted, measured, measured >= wanted, why)


def at_most(aim: str, wanted: float, measured: float, why: str = "") -> Row:
    return _aim(aim, "≤", wanted, measured, measured <= wanted, why)


def _aim(aim: str, sign: str, wanted: float, measured: float, is_met: bool, why: str) -> Row:
    return {
        "aim": aim,
        "wanted": f"{sign} {_figure(wanted)}",
        "measured": _figure(measured),
        "verdict": "met" if is_met else "missed",
        "why": why,
    }


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def rate_aims(rows: Rows, compared: Sequence[Compared]) -> Iterator[Row]:
    """Of the cells that were measured: rates and CPU time. The best transport counts, as it does
    in the compared figures; where it is not the default one, that is said too."""
    for cell in compared:
        place = (cell.shape, cell.size, False)
        found = [row for row in _whole(rows) if _place(row)[1:] == place]
        if not found:
            continue
        best = max(found, key=lambda row: float(row["rate_per_member"]))
        name, wanted = f"{cell.shape}, {cell.size} B", cell.rate * cell.factor
        against = f"{name}: messages/s, {cell.factor:g} × {cell.rate:,}"
        why = _circumstances(best, found, wanted)
        yield at_least(against, wanted, best["rate_per_member"], why)
        if cell.cpu_us is not None:
            least = min(found, key=lambda row: float(row["cpu_us_per_delivery"]))
            cost, by = least["cpu_us_per_delivery"], f"by {least['transport']}"
            yield at_most(f"{name}: CPU-µs per delivery", cell.cpu_us, cost, by)


def _circumstances(best: Row, found: Rows, wanted: float) -> str:
    """By which transport, which share of its raw ceiling that is, and what the default gave."""
    rate, ratio = best["rate_per_member"], best["ceiling_ratio"]
    told = f"by {best['transport']} at {ratio:.2f} of raw sockets"
    if rate / ratio < wanted:
        told += ", which moved less than is wanted"
    for row in found:
        if row["transport"] == DEFAULT_TRANSPORT and row is not best:
            told += f"; {DEFAULT_TRANSPORT}: {_figure(row['rate_per_member'])}"
    return told


def matrix_aims(rows: Rows) -> Iterator[Row]:
    """Every aim that these cells have to do with."""
    yield from rate_aims(rows, MULTICAST)
    for row in _whole(rows, lossy=True):
        (whole,) = (other for other in _whole(rows) if _place(other) == _place(row))
        ratio = row["rate_per_member"] / whole["rate_per_member"]
        name = f"{row['workload']}, {row['size']} B: goodput with {row['loss']:.0%} lost"
        yield at_least(name, GOODPUT[row["loss"]], ratio, f"by {row['transport']}")
    for row in rows:
        if row["receive_buffer"] and not row["failed"]:
            of = f"with a receive buffer of {row['receive_buffer']} B"
            name = f"{row['workload']}, {row['size']} B: rate {of}"
            yield at_least(name, CRAMPED, row["buffer_ratio"], f"by {row['transport']}")
    fallen = [
        f"{row['transport']} {row['workload']} {Size(row['size'], row['mixed'])} B"
        for row in rows
        if has_collapsed(row)
    ]
    name = "cells that collapsed, lost messages or did not end"
    yield at_most(name, 0, len(fallen), ", ".join(fallen))


def network_aims(rows: Rows) -> Iterator[Row]:
    """Of groups on hosts of their own: what small packets leave, and what sealing does."""
    for row in rows:
        if not row["network"].startswith("MTU ") or not row["sealed"]:
            continue
        name = f"{row['workload']}, {row['size']} B, {row['network']}"
        by, share = f"by {row['transport']}", NETWORK.get(row["size"])
        if row["network"] == "MTU 1500" and share is not None:
            yield at_least(f"{name}: rate to that at 65535", share, row["rate_share"], by)
        yield at_least(f"{name}: sealed to insecure", SEALED, row["sealed_share"], by)


def multicast_aims(rows: Rows) -> Iterator[Row]:
    return network_aims(rows) if "network" in rows[0] else matrix_aims(rows)


def has_collapsed(row: Row) -> bool:
    return bool(row["failed"]) or all((row[name] or 0) < least for name, least in COLLAPSED.items())


def _whole(rows: Rows, *, lossy: bool = False) -> list[Row]:
    """Those that have figures, with or without datagrams lost on purpose, and usual buffers."""
    found = (row for row in rows if not row.get("failed") and not row.get("receive_buffer"))
    return [row for row in found if bool(row["loss"]) == lossy]


def _place(row: Row) -> tuple[object, ...]:
    return row["transport"], row["workload"], row["size"], row["mixed"]


def rtt_aims(rows: Rows) -> Iterator[Row]:
    for row in rows:
        by = f"by {row['transport']}" + (", spinning" if row["spin_ms"] else "")
        bare = row["asyncio_p50_us"] / row["raw_p50_us"]
        least, most = row["raw_p50_least_us"], row["raw_p50_most_us"]
        first, *others = (at_most(f"{by}: {aim}", w, row[at]) for aim, (at, w) in RTT.items())
        first["why"] = (
            f"the same sockets in event loops, with no protocol: {bare:.1f}; raw ones took "
            f"{least:.0f} to {most:.0f} µs from run to run"
        )
        yield from (first, *others)


def time_aims(rows: Rows, wanted_s: float) -> Iterator[Row]:
    for row in rows:
        if row["transport"] is not None:
            what = f"by {row['transport']}: {row['what']}"
            is_cut = row["what"].startswith("cut")
            yield at_most(f"{what}, s", CUT_S if is_cut else wanted_s, row["median_s"])
            if row["held_p99_ms"] is not None:
                yield at_most(f"{what}, senders held, p99, ms", HELD_MS, row["held_p99_ms"])


def idle_aims(rows: Rows) -> Iterator[Row]:
    for row in rows:
        name = f"by {row['transport']}, {row['members']} members: % of a core each"
        why = (
            f"{row['wakeups_per_s']:.0f} wake-ups, {row['datagrams_per_s']:.0f} datagrams a second"
        )
        yield at_most(name, IDLE_PERCENT, row["cpu_percent"], why)


def memory_aims(rows: Rows) -> list[Row]:
    (row,) = rows
    by = f"by {row['transport']}"
    limits = MEMORY | {"growth, MB per minute": ("mb_per_minute", row["flat_mb_per_minute"])}
    return [at_most(f"{by}: {aim}", most, row[column]) for aim, (column, most) in limits.items()]


def source_aims(rows: Rows) -> list[Row]:
    """Of an archive that Spark reads."""
    (row,) = rows
    why = f"{row['ceiling_ratio']:.2f} of what Spark takes from Python if nothing is read"
    if row["ceiling_rows_per_s"] < SOURCE_ROWS:
        why += ", which is less than is wanted"
    return [
        at_least("rows/s into Spark", SOURCE_ROWS, row["rows_per_s"], why),
        at_most("ms until a message is in a stream's output", OUTPUT_MS, row["output_median_ms"]),
    ]


def audit_aims(lines: Rows) -> Iterator[Row]:
    """Of the audit on Spark: beside DuckDB, and with more rows, more executors, uneven senders."""
    here = [line for line in lines if line["core_ratio"] is not None]
    even = [line for line in here if line["senders"] == "even"]
    for line in even:
        name = f"{line['rows']:,} rows"
        core = f"{name}: order, gaps, repeats, agreement to DuckDB"
        yield at_least(core, 0.4, line["core_ratio"])
        yield at_least(f"{name}: all rules to DuckDB", 0.25, line["all_ratio"])
    least, most = even[0], even[-1]
    if most is not least:
        rows = most["rows"] / least["rows"]
        grown = most["seconds"] / least["seconds"]
        yield at_most(f"time for {rows:.3g} × the rows", 1.1 * rows, grown)
    shuffled = max(line["shuffled_share"] for line in lines)
    yield at_most("shuffled share of the input", 0.01, shuffled)
    for line in here:
        if line["senders"] != "even":
            slower = line["seconds"] / least["seconds"]
            yield at_most("time where one sender has 99 % of the rows", 1.3, slower)
    clustered = [line["seconds"] for line in lines if line["core_ratio"] is None]
    if clustered:
        one, two = clustered
        yield at_least("two executors to one", 1.7, one / two)
