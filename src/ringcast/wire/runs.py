"""Frames that carry runs of messages, and how they are read. These are hot, and made by hand.

Payloads are cut out of a datagram in one call into C, and only when somebody reads them. Packing
writes runs (packing.py).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from io import BytesIO
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from ringcast.errors import DecodeError, Reject
from ringcast.model import FIRST_CONN_ID, SEQNO_MAX, Conn, Headed, Stream
from ringcast.wire.limits import MESSAGES_MAX

W = TypeVar("W", Stream, Conn)

STREAM: Final = Struct("<B")
RUN: Final = Struct("<BQH")  # flags, first, count
SIZE: Final = Struct("<H")  # of one payload
RANGE: Final = Struct("<QI")  # first, count
EQUAL, MORE, HEADED = 1, 2, 4  # flags of a run

RANGE_COUNT_MAX: Final = 2**32 - 1
"""Seqnos in one range: what its field holds, and far more than any window."""

_STREAMS: Final = {int(stream): stream for stream in Stream}

_STRUCT_COUNT_MAX: Final = 1024
_STRUCTS_MAX: Final = 64
"""Structs that cut equal payloads take 32 bytes per payload: 2 MB if all are of the longest."""


class Messages(Generic[W]):
    """Payloads with consecutive seqnos, first..last: what the frames that carry messages share.
    `whose` they are is told by a stream or a connection, which is also an attribute of its own.

    `more` says that every payload here is a fragment that the next seqno continues, `headed` that
    every message here begins with its headers; then its payloads are `Headed`. A received run is
    cut into payloads only when somebody asks for them: a duplicate or a forged run costs nothing
    but its header.
    """

    __slots__ = ("_cut", "count", "first", "headed", "made", "more", "whose")

    def __init__(self, whose: W, first: int, payloads: list[bytes], *, more: bool = False) -> None:
        self.whose: W = whose
        self.first = first
        self.count = len(payloads)
        self.more = more
        self.headed = type(payloads[0]) is Headed if payloads else False
        self.made: list[bytes] | None = payloads
        self._cut: Callable[[], Iterable[bytes]] | None = None

    @classmethod
    def uncut(
        cls,
        whose: W,
        first: int,
        count: int,
        cut: Callable[[], Iterable[bytes]],
        *,
        more: bool,
        headed: bool = False,
    ) -> Self:
        """A received run whose payloads are still one piece of the datagram."""
        run = cls.__new__(cls)
        run.whose, run.first, run.count, run.more = whose, first, count, more
        run.headed = headed
        run.made, run._cut = None, cut
        return run

    @property
    def payloads(self) -> list[bytes]:
        if self.made is None:
            assert self._cut is not None
            self.made = list(map(Headed, self._cut()) if self.headed else self._cut())
            self._cut = None  # it holds on to the datagram's buffer
        return self.made

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def lengthened(self, count: int, cut: Callable[[], Iterable[bytes]]) -> Self:
        """A received run that others continue, so many messages in all."""
        how = {"more": self.more, "headed": self.headed}
        return self.uncut(self.whose, self.first, count, cut, **how)

    def kept(self) -> Self:
        """The same, cut now: the datagram's buffer may be used again."""
        return type(self)(self.whose, self.first, self.payloads, more=self.more)

    def is_continued_by(self, other: object) -> bool:
        if type(self) is not type(other) or self.whose != other.whose:
            return False
        is_alike = self.more == other.more and self.headed == other.headed
        return is_alike and self.last + 1 == other.first

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (
            (self.whose, self.first, self.more, self.headed, self.payloads)
            == (other.whose, other.first, other.more, other.headed, other.payloads)
        )

    def __repr__(self) -> str:
        whose = self.whose.name if isinstance(self.whose, Stream) else self.whose
        flags = ", more" * self.more + ", headed" * self.headed
        return f"{type(self).__name__}({whose}, {self.first}..{self.last}{flags})"


class Data(Messages[Stream]):
    """To the group: messages of the datagram's sender on one stream."""

    __slots__ = ()
    if TYPE_CHECKING:
        stream: Stream
    else:
        stream = Messages.whose


class UnicastData(Messages[Conn]):
    """To one member: messages of the datagram's sender on one connection.

    The very first message of a stream, on the connection it started with, opens the receiver's
    window; nothing else does but the answer to a Sync.
    """

    __slots__ = ()
    if TYPE_CHECKING:
        conn: Conn
    else:
        conn = Messages.whose

    @property
    def opens(self) -> bool:
        """Whether it begins its stream."""
        return self.first == 1 and self.conn.id == FIRST_CONN_ID


def decode_data(view: memoryview, start: int, stop: int) -> Data:
    data = Data.__new__(Data)
    decode_run(data, view, start + STREAM.size, stop)
    stream = _STREAMS.get(view[start])
    if stream is None:
        raise DecodeError(Reject.STREAM)
    data.whose = stream
    return data


def decode_run(run: Messages[W], view: memoryview, start: int, stop: int) -> None:
    """Fill in all but whose it is."""
    sizes = start + RUN.size
    if stop - sizes < SIZE.size:  # either form has at least one size
        raise DecodeError(Reject.FRAME_LENGTH)
    flags, first, count = RUN.unpack_from(view, start)
    if flags & ~(EQUAL | MORE | HEADED):
        raise DecodeError(Reject.FLAGS)
    if not 1 <= count <= MESSAGES_MAX:
        raise DecodeError(Reject.COUNT)
    if not 1 <= first <= SEQNO_MAX + 1 - count:
        raise DecodeError(Reject.SEQNO)
    cut: Callable[[], Iterable[bytes]]
    if flags & EQUAL:
        blob = sizes + SIZE.size
        (size,) = SIZE.unpack_from(view, sizes)
        if stop - blob != size * count:
            raise DecodeError(Reject.LENGTHS)
        if count == 1:
            cut = partial(map, bytes, (view[blob:stop],))
        else:
            cut = partial(_cut_equal, view, blob, size, count)
    else:
        blob = sizes + SIZE.size * count
        if blob > stop:
            raise DecodeError(Reject.LENGTHS)
        lengths = decode_lengths(view[sizes:blob])
        if stop - blob != sum(lengths):
            raise DecodeError(Reject.LENGTHS)
        cut = partial(_cut_mixed, view, blob, stop, lengths)
    run.first, run.count = first, count
    run.more, run.headed = flags & MORE != 0, flags & HEADED != 0
    run.made, run._cut = None, cut


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


def decode_lengths(table: bytes | memoryview) -> array[int]:
    """The table in two bytes per entry: a tuple of ints would take twenty times the datagram."""
    lengths = array("H")
    lengths.frombytes(table)
    if sys.byteorder == "big":  # pragma: no cover (little-endian machines test this)
        lengths.byteswap()
    return lengths


def _cut_equal(view: memoryview, start: int, size: int, count: int) -> Iterable[bytes]:
    if count <= _STRUCT_COUNT_MAX:
        return _struct_of(size, count).unpack_from(view, start)
    return map(BytesIO(view[start : start + size * count]).read, repeat(size, count))


def _cut_mixed(view: memoryview, start: int, stop: int, lengths: array[int]) -> Iterable[bytes]:
    # To read a file in memory is to slice by a table of lengths without running bytecode.
    return map(BytesIO(view[start:stop]).read, lengths)


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
