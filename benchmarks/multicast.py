"""ringcast bench multicast and unicast: real processes on loopback, beside the raw ceiling.

What something costs (recording, reports, a small receive buffer, a key) is measured by a second
group without it, which takes turns with the first; what uniform delivery costs, by plain rounds of
the same group. One group is kept for all sizes of a transport and a shape. A cell that loses
messages or does not end is named, and the next one has a new group. With an MTU, members are on
hosts of their own (network.py).
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from benchmarks.network import HostCluster, Network
from benchmarks.workload import (
    RATIOS,
    SIZE,
    TRANSPORTS,
    Rounds,
    Size,
    Workload,
    ceiling_ratio,
    group_name,
    progress,
    raw_ceiling,
    take_turns,
    versions,
)
from ringcast.errors import RingcastError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.workload import Row
    from ringcast.sim.processes import Cluster

SHAPES = ((3, "1"), (4, "1"), (3, "all"), (4, "all"), (8, "all"))
"""Members, and who of them sends."""
SIZES = (Size(0), Size(100), Size(100, is_mixed=True), Size(1000), Size(10_000), Size(1_000_000))

LOSSY = ("udp", "3 all", Size(1000))
LOSSES = (0.01, 0.1)
"""What is lost on purpose, if that workload is among the cells: goodput is compared with it."""

CRAMPED = (LOSSY, ("udp", "3 all", Size(10_000)))
RECEIVE_BUFFER = 212_992
"""What unprivileged processes get on most machines: net.core.rmem_max."""

DEADLINE_S = 30.0

COLUMNS = (
    *("transport", "workload", "size", "mixed", "guarantee", "purge", "loss", "receive_buffer"),
    *("rate_per_member", "deliveries_per_s", "mb_per_s", "cpu_us_per_delivery", "retransmitted"),
    *("reports_per_1000", "lost", "rss_mb", "ceiling_mb_per_s", "ceiling_ratio", "rates"),
    *("messages", "recorded", *RATIOS, "plain_rates", "plain_rate_per_member"),
    *("plain_cpu_us_per_delivery", "cpu_ratio", "plain_reports_per_1000", "versions"),
)
NETWORK_COLUMNS = ("rate_per_member", "cpu_us_per_delivery", "retransmitted", "lost")
UNICAST_COLUMNS = (
    *("transport", "workload", "size", "mixed", "loss", "rate_per_member", "mb_per_s"),
    *("cpu_us_per_delivery", "retransmitted", "lost", "ceiling_mb_per_s", "ceiling_ratio", "rates"),
    "failed",
)


def bench_multicast(
    *,
    transports: Sequence[str],
    members: Sequence[int],
    senders: Sequence[str],
    sizes: Sequence[Size],
    matrix: bool,
    mtu: int | None = None,
    insecure: bool = False,
    **options: Any,
) -> Iterable[Row]:
    """A report of each cell, with `failed` if it has no figures or has lost messages."""
    options["is_beside_insecure"] = insecure
    if matrix:
        workload = Workload(deadline_s=DEADLINE_S, **options)
        cells = matrix_cells(workload, transports, members, senders, sizes)
    else:
        shapes = product(members or (3,), senders or ("all",))
        cells = _cells(Workload(**options), transports or ("udp",), [*shapes], sizes or [SIZE])
    if mtu is not None:
        return chain.from_iterable(measure_network(cell, mtu) for cell in cells)
    return measure_cells(cells)


def bench_unicast(
    *, transports: Sequence[str], sizes: Sequence[int], **options: Any
) -> Iterator[Row]:
    """A report for each transport and size; those of a transport through one group of two."""
    workload = Workload(is_unicast=True, **options)
    for row in measure_cells(_cells(workload, transports, [(2, "1")], [*map(Size, sizes)])):
        yield {column: row.get(column) for column in UNICAST_COLUMNS}


def bench_api(*, transports: Sequence[str], sizes: Sequence[int], **options: Any) -> Iterator[Row]:
    """One sender to two: messages one at a time, and in turn the same by `send_many` and `batches`,
    through one group."""
    for cell in _cells(Workload(**options), transports, [(3, "1")], [*map(Size, sizes)]):
        progress(f"measuring {cell}")
        with cell.cluster() as cluster:
            kinds = [Rounds(cluster, replace(cell, is_single=single)) for single in (True, False)]
            take_turns(kinds, cell.runs)
        single, many = (kind.figures() for kind in kinds)
        rate, cost = "rate_per_member", "cpu_us_per_delivery"
        yield {
            **{"transport": cell.transport, "workload": cell.shape, "size": cell.size.size},
            **{rate: single[rate], cost: single[cost], "many_rate_per_member": many[rate]},
            **{"many_cpu_us_per_delivery": many[cost], "lost": single["lost"] + many["lost"]},
            "rate_share": round(single[rate] / many[rate], 2),
            "cpu_share": round(many[cost] / single[cost], 2),
        }


def _cells(
    workload: Workload,
    transports: Iterable[str],
    shapes: Sequence[tuple[int, str]],
    sizes: Sequence[Size],
) -> list[Workload]:
    """Those of one group follow each other."""
    return [
        replace(workload, transport=transport, members=members, senders=senders, size=size)
        for transport in transports
        for members, senders in shapes
        for size in sizes
    ]


def matrix_cells(
    workload: Workload,
    transports: Sequence[str] = (),
    members: Sequence[int] = (),
    senders: Sequence[str] = (),
    sizes: Sequence[Size] = (),
) -> list[Workload]:
    """The cells that are wanted, all if nothing is said, with whatever else the workload says."""
    shapes = [
        shape
        for shape in SHAPES
        if (not members or shape[0] in members) and (not senders or shape[1] in senders)
    ]
    if not shapes:
        known = ", ".join(f"{count} {who}" for count, who in SHAPES)
        raise UsageError(f"no such cell: the members and senders of the matrix are {known}")
    cells = _cells(workload, transports or TRANSPORTS, shapes, sizes or SIZES)
    lossy = [cell for cell in cells if _place(cell) == LOSSY]
    cramped = []
    if workload.beside is None:  # one thing is compared at a time
        cramped = [cell for cell in cells if _place(cell) in CRAMPED]
    return [
        *cells,
        *(replace(cell, loss=loss) for cell in lossy for loss in LOSSES),
        *(replace(cell, receive_buffer=RECEIVE_BUFFER) for cell in cramped),
    ]


def _place(cell: Workload) -> tuple[str, str, Size]:
    return cell.transport, cell.shape, cell.size


def measure_cells(cells: Sequence[Workload]) -> Iterator[Row]:
    with ExitStack() as stack:
        kept: Cluster | None = None
        group: object = None
        began = time.monotonic()
        for at, cell in enumerate(cells, 1):
            left_s = (time.monotonic() - began) / max(at - 1, 1) * (len(cells) - at + 1)
            left = f", about {left_s:.0f} s left" if at > 1 else ""
            progress(f"measuring {at} of {len(cells)}{left}: {cell}")
            wanted = (cell.transport, cell.shape, cell.loss, cell.receive_buffer)
            if kept is None or wanted != group:
                stack.close()
                kept, group = stack.enter_context(cell.cluster()), wanted
            try:
                row = measure(cell, kept)
                failed = _losses(cell, row)
            except RingcastError as error:
                kept, row, failed = None, _heading(cell), str(error)
            if failed:
                progress(f"failed: {failed}")
            yield row | {"failed": failed}


def measure_network(cell: Workload, mtu: int) -> Iterator[Row]:
    """The same members on hosts of their own: with the largest packets that there are, with those
    of this MTU, without the network's help, and without the system's; each sealed and insecure.
    All take turns."""
    kinds: list[tuple[str, int, Row, Row]] = [
        ("MTU 65535", 65_535, {}, {}),
        (f"MTU {mtu}", mtu, {}, {}),
        ("interfaces cut nothing", mtu, {"is_plain": True}, {}),
        ("no offload", mtu, {}, {"offload": False}),
    ]
    with ExitStack() as stack:
        groups: list[Rounds] = []
        for (name, size, of_network, of_members), key in product(
            kinds, (secrets.token_hex(32), None)
        ):
            progress(f"starting {cell}, {name}, {'sealed' if key else 'insecure'}")
            network = stack.enter_context(Network(cell.members, size, **of_network))
            options = {"transport": cell.transport, "loss": cell.loss, **of_members}
            group = group_name(cell.transport)
            cluster = stack.enter_context(HostCluster(network, key, group=group, **options))
            groups.append(Rounds(cluster, cell))
        progress("measuring them in turn")
        take_turns(groups, cell.runs)
        figures = [rounds.figures() for rounds in groups]
    for at, row in enumerate(figures):
        name, is_sealed = kinds[at // 2][0], at % 2 == 0
        large, insecure = figures[at % 2], figures[at + 1] if is_sealed else None
        rate, cost = row["rate_per_member"], row["cpu_us_per_delivery"]
        yield {
            **{"transport": cell.transport, "workload": cell.shape},
            **{"size": cell.size.size, "sealed": is_sealed, "network": name},
            **{column: row[column] for column in NETWORK_COLUMNS},
            "rate_share": round(rate / large["rate_per_member"], 2),
            "cpu_share": round(large["cpu_us_per_delivery"] / cost, 2),
            "sealed_share": insecure and round(rate / insecure["rate_per_member"], 2),
            "failed": _losses(f"{cell}, {name}", row),
        }


def _losses(what: object, row: Row) -> str | None:
    return f"{what}: {row['lost']} messages were lost" if row["lost"] else None


def _heading(cell: Workload) -> Row:
    return {
        "transport": cell.transport,
        "workload": cell.shape,
        "size": cell.size.size,
        "mixed": cell.size.is_mixed,
        "loss": cell.loss,
        "receive_buffer": cell.receive_buffer,
    }


LESS = {"uniform": "fifo", "total": "uniform"}
"""Beside which guarantee each is measured."""


def measure(workload: Workload, cluster: Cluster) -> Row:
    """Measure one workload in this group; a flat report."""
    ceiling = raw_ceiling(workload)
    with ExitStack() as stack:
        groups = [Rounds(cluster, workload, workload.guarantee)]
        if workload.beside in LESS:
            groups.append(Rounds(cluster, workload, LESS[workload.beside]))
        elif workload.beside is not None:
            without: Row = {"receive_buffer": None}
            if workload.beside == "seal":
                without = {"is_beside_insecure": False, "has_key": False}
            elif workload.beside != "buffer":
                without = {"record": None, "purge": "acks", "retain": None}
            simple = replace(workload, **without)
            groups.append(Rounds(stack.enter_context(simple.cluster()), simple, simple.guarantee))
        take_turns(groups, workload.runs)
    measured, *others = (group.figures() for group in groups)
    row = _heading(workload) | measured
    rate = row["rate_per_member"]
    for plain in others:
        row |= {f"plain_{name}": figure for name, figure in plain.items()}
        row[f"{workload.beside}_ratio"] = round(rate / plain["rate_per_member"], 3)
        cost = row["cpu_us_per_delivery"] / plain["cpu_us_per_delivery"]
        row["cpu_ratio"] = round(cost, 3)
        row["lost"] += plain["lost"]
    row |= {
        "guarantee": workload.guarantee,
        "purge": workload.purge,
        "deliveries_per_s": rate * workload.members,
        "mb_per_s": round(rate * workload.size.size / 1e6, 1),
        "ceiling_mb_per_s": round(ceiling / 1e6, 1),
        "ceiling_ratio": ceiling_ratio(workload, rate, ceiling),
        "recorded": workload.record_level if workload.record is not None else None,
        "versions": versions(),
    }
    return {column: row.get(column) for column in COLUMNS}
