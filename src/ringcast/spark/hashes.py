"""Hashes that a member must have written down, and has not.

Which blocks it hashes follows from what it sent and delivered: each that it has from its first
message on, of those that its level asks for. Only a trace that is whole tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringcast.spark.summary import ROLES, SPAN_BLOCKS, MemberTrace, Track
from ringcast.trace.content import hashed_every
from ringcast.trace.rows import DELIVER, OPEN, SEND, Row


def missing_hashes(trace: MemberTrace) -> dict[Track, list[int]]:
    """The blocks, by number, of each track that lacks some."""
    found: dict[Track, list[int]] = {}
    if not trace.block_messages or not trace.is_whole:
        return found
    for track, first, last in _stretches(trace):
        spans = trace.content.get(track, {})
        for number in _blocks(trace, first, last):
            at, bit = divmod(number, SPAN_BLOCKS)
            if at not in spans or not spans[at].present >> bit & 1:
                found.setdefault(track, []).append(number)
    return found


def _blocks(trace: MemberTrace, first: int, last: int) -> Iterator[int]:
    """That are all within these seqnos, and hashed."""
    size, every = trace.block_messages, hashed_every(trace.level)
    begin = -(-(first - 1) // size)
    begin += -begin % every
    return (number for number in range(begin, last // size, every))


def _stretches(trace: MemberTrace) -> Iterator[tuple[Track, int, int]]:
    """Seqnos that follow each other, from where hashing may have begun."""
    ends: dict[Track, tuple[int, int]] = {}
    is_beginning: set[Track] = set()  # perhaps in the middle of a large message
    for row in trace.rows:
        if row.event == OPEN:
            track = Track("delivered", *row.origin)
            if track in ends:
                yield track, *ends.pop(track)
            is_beginning.discard(track)
            is_beginning |= {track} if row.seqno else set()
        elif row.event in (SEND, DELIVER):
            track = Track(ROLES[row.event], *row.origin)
            begun = ends.get(track)
            is_next = begun is not None and row.seqno == begun[1] + 1
            if begun is not None and not is_next:
                yield track, *begun
            if row.size < row.seqno2 - row.seqno + 1 and _is_unsure(row, track, is_beginning):
                if begun is not None and is_next:
                    yield track, *begun
                ends.pop(track, None)
                continue
            is_beginning.discard(track)
            ends[track] = (begun[0] if begun is not None and is_next else row.seqno), row.seqno2
    for track, stretch in ends.items():
        yield track, *stretch


def _is_unsure(row: Row, track: Track, is_beginning: set[Track]) -> bool:
    """Some of these are fragments, or what an only member has sent and purged at once: nobody knows
    where hashing went on."""
    return row.event == SEND or track in is_beginning
