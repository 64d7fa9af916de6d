"""Bursts: datagrams of one length to one place, the last of which may be shorter.

Networks take packets of some 1400 bytes, and systems cut and join them faster than Python handles
one. So a burst is what one system call sends or brings, and as far as its datagrams continue each
other it is one run: they differ in nothing but a seqno, which C compares. What is checked of the
first datagram of a run holds for the others.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import chain, repeat
from operator import eq
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar

from ringcast.errors import DecodeError
from ringcast.model import SEQNO_MAX, Member
from ringcast.wire.codec import run_in
from ringcast.wire.frames import Data, Frame, UnicastData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringcast.wire.codec import Buffer, Codec

Dest = TypeVar("Dest")

BURST_BYTES_MAX: Final = 65_507
BURST_DATAGRAMS_MAX: Final = 64
"""What a system takes at once: as much as one datagram may have, and so many."""

_SEQNO_BYTES: Final = 8
_COUNT_AND_SIZE: Final = 4
_STRUCTS_MAX: Final = 64


def bursts_of(
    datagrams: Sequence[tuple[Dest, bytes]], overhead: int
) -> Iterator[tuple[Dest, list[bytes]]]:
    """Consecutive datagrams that can leave together. To each so many bytes are yet to be added."""
    at, count = 0, len(datagrams)
    while at < count:
        dest, datagram = datagrams[at]
        at += 1
        burst, length = [datagram], len(datagram)
        room = min(BURST_DATAGRAMS_MAX, BURST_BYTES_MAX // (length + overhead))
        while at < count and len(burst) < room:
            to, datagram = datagrams[at]
            if len(datagram) > length or to != dest:
                break
            burst.append(datagram)
            at += 1
            if len(datagram) < length:
                break
        yield dest, burst


def unpack_burst(
    codec: Codec, burst: Sequence[Buffer], reject: Callable[[DecodeError], None]
) -> list[tuple[Member, list[Frame]]]:
    """The senders and frames of what one system call brought, in order."""
    found: list[tuple[Member, list[Frame]]] = []
    at, count = 0, len(burst)
    while at < count:
        first = at
        at += 1
        try:
            source, frames = codec.unpack(burst[first])
        except DecodeError as error:
            reject(error)
            continue
        if at < count:
            at += _join(burst, first, frames)
        found.append((source, frames))
    return found


def _join(burst: Sequence[Buffer], first: int, frames: list[Frame]) -> int:
    """How many datagrams behind the first continue the run that it ends with: they become part of
    that."""
    run, found = frames[-1], run_in(burst[first])
    if found is None or not isinstance(run, Data | UnicastData):
        return 0
    before, size, count = found
    length = len(burst[first])
    others = burst[first + 1 :]
    if len(others[-1]) != length:
        others = others[:-1]
    if set(map(len, others)) != {length} or run.last + count * len(others) > SEQNO_MAX:
        return 0
    head = _head_of(before)
    prefix, seqno, sizes = head.unpack_from(burst[first])
    seqnos = range(seqno + count, seqno + count * (len(others) + 1), count)
    wanted = list(zip(repeat(prefix), seqnos, repeat(sizes), strict=False))
    heads = list(map(head.unpack_from, others))
    if heads != wanted:
        others = others[: list(map(eq, heads, wanted)).index(False)]
    if others:
        joined = [burst[first], *others]
        cut = partial(_cut, joined, before + _SEQNO_BYTES + len(sizes), size, count)
        frames[-1] = run.lengthened(count * len(joined), cut)
    return len(others)


def _cut(burst: Sequence[Buffer], start: int, size: int, count: int) -> Iterator[bytes]:
    return chain.from_iterable(map(_payloads_of(start, size, count).unpack, burst))


@lru_cache(_STRUCTS_MAX)
def _head_of(before: int) -> Struct:
    return Struct(f"<{before}sQ{_COUNT_AND_SIZE}s")


@lru_cache(_STRUCTS_MAX)
def _payloads_of(start: int, size: int, count: int) -> Struct:
    return Struct(f"<{start}x" + f"{size}s" * count)
