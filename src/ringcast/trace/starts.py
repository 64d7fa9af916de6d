"""Where a reader of an archive begins that does not want all of it: positions by time.

Archives take a message at times of their own. A reader that begins at a time reads every message
that any archive took at that time or later, and behind it all that its sender sent. So it may read
some that another archive took a little earlier, and misses none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ringcast.trace.columns import is_among
from ringcast.trace.held import ALL, KEPT, Range
from ringcast.trace.rows import SEEN, OriginKey
from ringcast.trace.sealed import Unreadable
from ringcast.trace.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.trace.archive import File, Index

_COLUMNS = ("event", "peer", "peer_inc", "stream", "seqno", "kind", "wall_ns")


def latest(index: Index) -> dict[OriginKey, int]:
    """Behind all that is there."""
    return {origin: index.last(origin) for origin in index.origins}


def taken_before(index: Index, at_ns: int) -> dict[OriginKey, int]:
    """Behind what all archives took before this time. What is lost may have come later."""
    ends = latest(index)
    for origin in ends:
        lost = index.lost_from(origin)
        ends[origin] = ends[origin] if lost is None else min(ends[origin], lost - 1)
    held: dict[str, list[tuple[OriginKey, int]]] = {}
    for origin in ends:
        for _, holdings in index.holdings(origin):
            for holding in holdings:
                held.setdefault(holding.file.path, []).append((origin, holding.first))
    for path, file in index.files.items():
        for origin, first in _taken_since(index, file, at_ns, held.get(path, [])):
            ends[origin] = min(ends[origin], first - 1)
    return {origin: end for origin, end in ends.items() if end}


def _taken_since(
    index: Index, file: File, at_ns: int, held: list[tuple[OriginKey, int]]
) -> Iterator[tuple[OriginKey, int]]:
    """Messages of the file behind which all are that were taken at this time or later; of each
    origin one or more."""
    if file.times is not None and file.times.last < at_ns:
        return
    if file.times is not None and file.times.first >= at_ns:
        yield from held
        return
    try:
        with Segment(file.path, index.disk) as segment:
            for group in segment.groups:
                if segment.may_have(group, Range(at_ns, ALL.last), "wall_ns", "wall_ns"):
                    rows = segment.group(group, _COLUMNS)
                    is_late = pc.greater_equal(rows["wall_ns"], at_ns)
                    is_new = pc.invert(is_among(rows["kind"], (SEEN,)))
                    is_kept = pc.and_(is_among(rows["event"], KEPT), is_new)
                    late = rows.filter(pc.and_(is_late, is_kept))
                    columns = (late[name].to_pylist() for name in _COLUMNS[1:5])
                    for *origin, first in zip(*columns, strict=True):
                        sender, incarnation, stream = origin
                        yield (sender, incarnation, stream), first
    except Unreadable:  # who reads it finds others that stand in, or says so
        yield from held
