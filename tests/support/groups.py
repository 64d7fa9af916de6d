"""Files of archives in several row groups, of messages that are large and a minute apart."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from ringcast.trace.footer import Recording
from ringcast.trace.rows import DELIVER, Row
from ringcast.trace.segments import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ringcast.trace.rows import OriginKey

BEGIN = datetime(2026, 11, 19, 12, tzinfo=UTC)
SIZE = 2000


def minute(number: float) -> datetime:
    return BEGIN + timedelta(minutes=number)


def content(origin: OriginKey, seqno: int) -> bytes:
    return random.Random(f"{origin} {seqno}").randbytes(SIZE)


def write_groups(
    directory: Path,
    writer: str,
    groups: Sequence[Sequence[tuple[OriginKey, int, int]]],
    *,
    idx: int = 0,
    begin: datetime = BEGIN,
) -> Path:
    """One segment, with row groups of these messages. A message is taken in the minute that has
    its number, an archive's own clock before `begin`."""
    directory.mkdir(parents=True, exist_ok=True)
    segment = SegmentWriter(directory, Recording(run_id="t", node=writer, inc=1, payloads=True))
    begin_ns = int(begin.timestamp()) * 10**9
    for group in groups:
        rows, payloads = [], []
        for origin, first, last in group:
            for seqno in range(first, last + 1):
                place = (*origin, seqno, seqno, 4)
                rows.append(Row(DELIVER, writer, 1, idx, -1, seqno * 60 * 10**9, *place))
                payloads.append([content(origin, seqno)])
                idx += 1
        segment.add(rows, begin_ns, payloads)
        segment._write_group()
    return segment.finish()


def damage_column(path: Path, group: int, name: str) -> None:
    about = pq.read_metadata(path).row_group(group)
    column = next(
        about.column(at)
        for at in range(about.num_columns)
        if about.column(at).path_in_schema.split(".")[0] == name
    )
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + 8] ^= 1
    path.write_bytes(data)
