"""ringcast bench multicast --matrix: every transport, shape and size of message, cell by cell.

One group is kept for all sizes of a transport and a shape. A cell that loses messages or does not
end is named, and the next one has a new group. Beside the cells there are some of three members
whose datagrams are lost on purpose, or that have the receive buffer of most machines.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.bench.multicast import bench_multicast
from ringcast.bench.workload import TRANSPORTS, Workload
from ringcast.errors import RingcastError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringcast.bench.cluster import Cluster


class Shape(NamedTuple):
    members: int
    senders: str


class Size(NamedTuple):
    """Bytes of a message; `is_mixed`: on average."""

    size: int
    is_mixed: bool = False


SHAPES = (Shape(3, "1"), Shape(4, "1"), Shape(3, "all"), Shape(4, "all"), Shape(8, "all"))
SIZES = (Size(0), Size(100), Size(100, is_mixed=True), Size(1000), Size(10_000), Size(1_000_000))

LOSSY = Workload(members=3, senders="all", size=1000, transport="udp")
LOSSES = (0.01, 0.1)
"""What is lost on purpose, if that workload is among the cells: goodput is compared with it."""

CRAMPED = (LOSSY, replace(LOSSY, size=10_000))
RECEIVE_BUFFER = 212_992
"""What unprivileged processes get on most machines: net.core.rmem_max."""

DEADLINE_S = 30.0


def matrix_cells(
    workload: Workload,
    *,
    transports: Sequence[str] = (),
    members: Sequence[int] = (),
    senders: Sequence[str] = (),
    sizes: Sequence[Size] = (),
) -> list[Workload]:
    """The cells that are wanted, all if nothing is said, with whatever else the workload says.
    Those of one group follow each other."""
    cells = [
        replace(
            workload,
            transport=transport,
            members=shape.members,
            senders=shape.senders,
            size=size.size,
            mixed=size.is_mixed,
            deadline_s=DEADLINE_S,
        )
        for transport in transports or TRANSPORTS
        for shape in SHAPES
        if not members or shape.members in members
        if not senders or shape.senders in senders
        for size in sizes or SIZES
    ]
    if not cells:
        shapes = ", ".join(f"{shape.members} {shape.senders}" for shape in SHAPES)
        raise UsageError(f"no such cell: the members and senders of the matrix are {shapes}")
    lossy = [cell for cell in cells if _place(cell) == _place(LOSSY)]
    cramped = []
    if workload.beside is None:  # one thing is compared at a time
        cramped = [cell for cell in cells if _place(cell) in map(_place, CRAMPED)]
    return [
        *cells,
        *(replace(cell, loss=loss) for cell in lossy for loss in LOSSES),
        *(replace(cell, receive_buffer=RECEIVE_BUFFER) for cell in cramped),
    ]


def _place(cell: Workload) -> tuple[object, ...]:
    return cell.transport, cell.shape, cell.bytes_label


def bench_matrix(
    cells: Sequence[Workload], tell: Callable[[Workload], None]
) -> Iterator[dict[str, Any]]:
    """Measure the cells; a report of each, with `failed` if it has no figures. `tell` is called
    with each cell as it begins."""
    with ExitStack() as stack:
        kept: Cluster | None = None
        group: object = None
        for cell in cells:
            tell(cell)
            wanted = (cell.transport, cell.shape, cell.loss, cell.receive_buffer)
            if kept is None or wanted != group:
                stack.close()
                kept, group = stack.enter_context(cell.cluster()), wanted
            try:
                report = bench_multicast(cell, kept)
            except RingcastError as error:
                kept = None
                yield _heading(cell) | {"failed": str(error)}
                continue
            failed = f"{cell}: {report['lost']} messages were lost" if report["lost"] else None
            yield report | _heading(cell) | {"failed": failed}


def _heading(cell: Workload) -> dict[str, Any]:
    return {
        "transport": cell.transport,
        "workload": cell.shape,
        "size": cell.size,
        "mixed": cell.mixed,
        "loss": cell.loss,
        "receive_buffer": cell.receive_buffer,
    }
