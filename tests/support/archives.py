"""Files of archives, made without a group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq

from ringcast.trace.footer import Before, Recording
from ringcast.trace.rows import DELIVER, HEADED, ORDER, VIEW, Row
from ringcast.trace.segments import Segment, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.trace.rows import OriginKey

WEB: OriginKey = ("web", 2**64 - 1, 0)
WEB_UNIFORM: OriginKey = ("web", 2**64 - 1, 1)
WEB_TOTAL: OriginKey = ("web", 2**64 - 1, 2)
APP: OriginKey = ("app/1#2", 7, 0)
RUN = 3
"""Messages to a row."""


class Kept(NamedTuple):
    """Messages of one origin, as an archive took them; fragments bear none. `blocks`: of what they
    begin with, in turn, if they have headers. `position`: of the first, of total messages."""

    origin: OriginKey
    first: int
    last: int
    is_fragment: bool = False
    blocks: tuple[bytes, ...] = ()
    position: int = 0


def payload(origin: OriginKey, seqno: int) -> bytes:
    return f"{origin[0]} {origin[2]} {seqno}".encode()


def write_file(
    directory: Path,
    writer: str,
    idx: int,
    kept: Sequence[Kept],
    *,
    incarnation: int = 1,
    before: Path | Before | None = None,
    is_last: bool = False,
) -> Path:
    """One segment of the archive `writer`, whose first row is number `idx`, and which comes after
    the segment `before`."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [Row(VIEW, writer, incarnation, idx, members=("a#1",))]
    payloads: list[list[bytes]] = [[]]
    for origin, first, last, is_fragment, blocks, position in kept:
        for start in range(first, last + 1, RUN):
            stop = min(start + RUN - 1, last)
            kind = "fragment" if is_fragment else HEADED if blocks else ""
            at = idx + len(rows)
            event, low = (ORDER, position + start - first) if position else (DELIVER, -1)
            place = incarnation, at, -1, at, *origin, start, stop, 4
            rows.append(Row(event, writer, *place, kind=kind, low=low))
            each = blocks or (b"",)
            seqnos = range(start, stop + 1)
            messages = [each[seqno % len(each)] + payload(origin, seqno) for seqno in seqnos]
            payloads.append([] if is_fragment else messages)
    recording = Recording(run_id="test", node=writer, inc=incarnation, payloads=True)
    segment = SegmentWriter(
        directory, recording, told(before) if isinstance(before, Path) else before
    )
    segment.add(rows, 10**18, payloads)
    return segment.finish(is_last=is_last)


def told(path: Path) -> Before:
    """What the next segment tells of this one."""
    with Segment(path) as segment:
        return Before(path.name, segment.holdings)


def damage(path: Path) -> None:
    """Its footer stays, and nothing else."""
    whole = path.read_bytes()
    pages = pq.read_metadata(path).row_group(0).total_byte_size // 2
    path.write_bytes(b"PAR1" + bytes(pages) + whole[4 + pages :])


def tear(path: Path) -> None:
    """Its end is missing."""
    path.write_bytes(path.read_bytes()[:-9])
