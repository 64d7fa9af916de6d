"""Content: what was sent and what was delivered, compared by one hash per block of messages.

Both sides hash the same blocks of consecutive seqnos of one origin. Runs may be cut differently on
the way, blocks are not.
"""

from __future__ import annotations

import struct
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_MESSAGES = 1024
JOIN_BELOW_BYTES = 512

_pair = struct.Struct("<QQ").pack


class Block(NamedTuple):
    """The content of messages first..last of one origin."""

    number: int
    first: int
    last: int
    hash: int


class BlockHasher:
    """xxh3 over the bytes and over the lengths of the messages, block by block of one origin.

    Lengths go in as (length, how many in a row): a block of equal ones, the common case, costs
    one pair, however its runs were cut. Only blocks seen from their first message on count: a
    joiner's first is the one that starts after its offset. Fragments add nothing but their
    seqnos; the whole message counts where its last one stands.
    """

    __slots__ = ("_bytes", "_due", "_in_a_row", "_length", "_lengths", "_size", "_start")

    def __init__(self, offset: int = 0, block_messages: int = BLOCK_MESSAGES) -> None:
        self._size = block_messages
        self._length = 0
        self._in_a_row = 0
        self._resume(offset + 1)

    def add_run(self, first: int, payloads: Sequence[bytes]) -> list[Block]:
        """Take in a run; return the blocks that end with it."""
        if first > self._due:
            self._resume(first)
        elif first < self._due:
            payloads = payloads[self._due - first :]
        ended: list[Block] = []
        at = 0
        while at < len(payloads):
            part = payloads[at : at + self._size - (self._due - 1) % self._size]
            if self._bytes is not None:
                _update(self._bytes, part)
                self._add_lengths(part)
            at += len(part)
            self._advance(len(part), ended)
        return ended

    def skip(self, first: int, last: int) -> list[Block]:
        """Pass over the seqnos of fragments; return the blocks that end with them."""
        if first > self._due:
            self._resume(first)
        ended: list[Block] = []
        while self._due <= last:
            room = self._size - (self._due - 1) % self._size
            self._advance(min(room, last - self._due + 1), ended)
        return ended

    def skip_to(self, seqno: int) -> list[Block]:
        """Pass over everything before `seqno`: fragments, each of them."""
        return self.skip(self._due, seqno - 1)

    def finish(self) -> Block | None:
        """The block that has begun, as far as it came: for a member that stops."""
        if self._bytes is None or self._due == self._start:
            return None
        return self._block()

    def _add_lengths(self, part: Sequence[bytes]) -> None:
        lengths = set(map(len, part))
        if len(lengths) == 1:
            self._add_length(lengths.pop(), len(part))
            return
        for length, group in groupby(map(len, part)):
            self._add_length(length, sum(1 for _ in group))

    def _add_length(self, length: int, count: int) -> None:
        if length != self._length:
            self._lengths.update(_pair(self._length, self._in_a_row))
            self._length, self._in_a_row = length, 0
        self._in_a_row += count

    def _advance(self, count: int, ended: list[Block]) -> None:
        self._due += count
        if (self._due - 1) % self._size == 0:
            if self._bytes is not None:
                ended.append(self._block())
            self._resume(self._due)

    def _resume(self, seqno: int) -> None:
        self._due = self._start = seqno
        self._bytes = xxhash.xxh3_64() if (seqno - 1) % self._size == 0 else None
        self._lengths = xxhash.xxh3_64()
        self._length = 0
        self._in_a_row = 0

    def _block(self) -> Block:
        assert self._bytes is not None
        number = (self._start - 1) // self._size
        lengths = self._lengths.copy()
        lengths.update(_pair(self._length, self._in_a_row))
        both = xxhash.xxh3_64_intdigest(self._bytes.digest() + lengths.digest())
        return Block(number, self._start, self._due - 1, both)


def _update(hasher: xxhash.xxh3_64, payloads: Sequence[bytes]) -> None:
    """Small payloads are joined first; a copy of large ones costs more than a call for each."""
    if len(payloads[0]) < JOIN_BELOW_BYTES:
        hasher.update(b"".join(payloads))
    else:
        deque(map(hasher.update, payloads), maxlen=0)  # a loop that runs in C
