"""Runs of messages and ranges of seqnos on the wire, as several frames write them.

Payloads are cut out of a datagram in one call into C, and only when somebody reads them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from functools import lru_cache, partial
from io import BytesIO
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final

from ringcast.errors import DecodeError, Reject
from ringcast.model import SEQNO_MAX
from ringcast.wire.frames import Data
from ringcast.wire.limits import MESSAGES_MAX, NACK_RANGES_MAX
from ringcast.wire.members import decode_stream

if TYPE_CHECKING:
    from collections.abc import Callable

STREAM: Final = Struct("<B")
RUN: Final = Struct("<BQH")  # flags, first, count
SIZE: Final = Struct("<H")  # of one payload
RANGE: Final = Struct("<QI")  # first, count
EQUAL, MORE = 1, 2  # flags of a run

RANGE_COUNT_MAX: Final = 2**32 - 1
"""Seqnos in one range: what its field holds, and far more than any window."""

_STRUCT_COUNT_MAX: Final = 1024
_STRUCTS_MAX: Final = 64
"""Structs that cut equal payloads take 32 bytes per payload: 2 MB if all are of the longest."""


def decode_data(view: memoryview, start: int, stop: int) -> Data:
    first, count, cut, more = decode_run(view, start + STREAM.size, stop)
    return Data.uncut(decode_stream(view[start]), first, count, cut, more=more)


def decode_run(
    view: memoryview, start: int, stop: int
) -> tuple[int, int, Callable[[], list[bytes]], bool]:
    """The first seqno, the count, what cuts the payloads, and whether more follows."""
    sizes = start + RUN.size
    if stop - sizes < SIZE.size:  # either form has at least one size
        raise DecodeError(Reject.FRAME_LENGTH)
    flags, first, count = RUN.unpack_from(view, start)
    if flags & ~(EQUAL | MORE):
        raise DecodeError(Reject.FLAGS)
    if not 1 <= count <= MESSAGES_MAX:
        raise DecodeError(Reject.COUNT)
    if not 1 <= first <= SEQNO_MAX + 1 - count:
        raise DecodeError(Reject.SEQNO)
    cut: Callable[[], list[bytes]]
    if flags & EQUAL:
        blob = sizes + SIZE.size
        (size,) = SIZE.unpack_from(view, sizes)
        if stop - blob != size * count:
            raise DecodeError(Reject.LENGTHS)
        cut = partial(_cut_equal, view, blob, size, count)
    else:
        blob = sizes + SIZE.size * count
        if blob > stop:
            raise DecodeError(Reject.LENGTHS)
        lengths = _decode_lengths(view[sizes:blob])
        if stop - blob != sum(lengths):
            raise DecodeError(Reject.LENGTHS)
        cut = partial(_cut_mixed, view, blob, stop, lengths)
    return first, count, cut, bool(flags & MORE)


def fill_datagrams(
    before: bytes, first: int, after: bytes, payloads: list[bytes], per_datagram: int
) -> list[bytes]:
    """Datagrams of so many equal payloads each, which differ in their seqno only; it stands between
    `before` and `after`."""
    seqnos = range(first, first + len(payloads), per_datagram)
    if per_datagram > 1:
        stops = range(per_datagram, len(payloads) + 1, per_datagram)
        payloads = [b"".join(payloads[stop - per_datagram : stop]) for stop in stops]
    form = _datagram_of(len(before), len(after), len(payloads[0]))
    return list(map(form.pack, repeat(before), seqnos, repeat(after), payloads))


@lru_cache(_STRUCTS_MAX)
def _datagram_of(before: int, after: int, size: int) -> Struct:
    return Struct(f"<{before}sQ{after}s{size}s")


def decode_ranges(view: memoryview, pairs: int, stop: int) -> list[range]:
    if pairs > stop or (stop - pairs) % RANGE.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    if not 1 <= (stop - pairs) // RANGE.size <= NACK_RANGES_MAX:
        raise DecodeError(Reject.COUNT)
    missing = []
    lowest = 1
    for first, count in RANGE.iter_unpack(view[pairs:stop]):
        if not count:
            raise DecodeError(Reject.COUNT)
        if first > SEQNO_MAX + 1 - count or not first:
            raise DecodeError(Reject.SEQNO)
        if first < lowest:
            raise DecodeError(Reject.RANGES)
        lowest = first + count
        missing.append(range(first, lowest))
    return missing


def _decode_lengths(table: memoryview) -> array[int]:
    """The table in two bytes per entry: a tuple of ints would take twenty times the datagram."""
    lengths = array("H")
    lengths.frombytes(table)
    if sys.byteorder == "big":  # pragma: no cover (little-endian machines test this)
        lengths.byteswap()
    return lengths


def _cut_equal(view: memoryview, start: int, size: int, count: int) -> list[bytes]:
    if count <= _STRUCT_COUNT_MAX:
        return list(_struct_of(size, count).unpack_from(view, start))
    return list(map(BytesIO(view[start : start + size * count]).read, repeat(size, count)))


def _cut_mixed(view: memoryview, start: int, stop: int, lengths: array[int]) -> list[bytes]:
    # To read a file in memory is to slice by a table of lengths without running bytecode.
    return list(map(BytesIO(view[start:stop]).read, lengths))


@lru_cache(_STRUCTS_MAX)
def _struct_of(size: int, count: int) -> Struct:
    return Struct("<" + f"{size}s" * count)


def is_equal(lengths: list[int], before: list[int], start: int, stop: int) -> bool:
    """Whether messages from `start` to `stop` are as long as each other."""
    count = stop - start
    size = lengths[start]
    # The sum settles nearly every case without looking at each length.
    return before[stop] - before[start] == size * count == size * lengths[start:stop].count(size)


def fitting_stop(before: list[int], start: int, room: int) -> int:
    """Where a mixed run from `start` on must end to fit the room with its table of lengths.

    `before[i]` is how many payload bytes stand before message i.
    """

    def bytes_through(stop: int) -> int:
        return before[stop] - before[start] + SIZE.size * (stop - start)

    return bisect_right(range(len(before)), room, lo=start, key=bytes_through) - 1
