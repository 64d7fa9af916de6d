"""Ranges of seqnos."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.trace.rows import Row

SeqnoRange = tuple[int, int]
"""Both inclusive."""


def ranges(runs: Iterable[Row]) -> list[SeqnoRange]:
    """The seqnos covered, ascending; those that overlap or touch are one range."""
    found: list[SeqnoRange] = []
    for first, last in sorted((run.seqno, run.seqno2) for run in runs if run.seqno <= run.seqno2):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def minus(ascending: list[SeqnoRange], taken: list[SeqnoRange]) -> Iterator[SeqnoRange]:
    """What of the first is not in the second; both ascending."""
    for first, last in ascending:
        at = first
        for low, high in taken:
            if low > last:
                break
            if high >= at:
                if low > at:
                    yield at, low - 1
                at = high + 1
        if at <= last:
            yield at, last
