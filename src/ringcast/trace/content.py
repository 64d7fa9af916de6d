"""Content: what was sent and what was delivered, compared by one hash per block of messages.

Both sides hash the same blocks of consecutive seqnos of one origin. Runs may be cut differently on
the way, blocks are not. Hashing is most of what recording costs, so at level "deliveries" only
every fourth block is hashed; by its number, so both sides agree which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import xxhash

BLOCK_MESSAGES = 1024
HASHED_EVERY = 4
"""At level "deliveries" blocks 0, 4, 8, … are hashed; at level "full" all are."""


def hashed_every(level: str) -> int:
    """How many blocks there are for each one that a recorder of this level hashes."""
    return 1 if level == "full" else HASHED_EVERY


class Block(NamedTuple):
    """The content of messages first..last of one origin."""

    number: int
    first: int
    last: int
    hash: int

    @property
    def columns(self) -> dict[str, int]:
        """What its row tells."""
        place = {"seqno": self.first, "seqno2": self.last}
        return {**place, "block": self.number, "block_hash": self.hash}


class BlockHasher:
    """One hash over the hashes of the messages, block by block of one origin.

    So a message counts with its length, however runs were cut, and needs no call but its own.
    Only blocks seen from their first message on count: a joiner's first is one that starts after
    its offset. Fragments add nothing but their seqnos; the whole message counts where its last
    one stands.
    """

    __slots__ = ("_digests", "_due", "_every", "_is_beginning", "_size", "_start", "_stop")

    def __init__(
        self, offset: int = 0, block_messages: int = BLOCK_MESSAGES, every: int = 1
    ) -> None:
        self._size = block_messages
        self._every = every
        self._is_beginning = offset > 0  # perhaps in a message that is never delivered here
        self._resume(offset + 1)

    def add_run(self, first: int, payloads: Sequence[bytes]) -> list[Block]:
        """Take in a run; return the blocks that end with it."""
        if first > self._due:
            self._resume(first)
        self._is_beginning = False
        start = self._due - first  # what comes again is not hashed again
        count = len(payloads)
        ended: list[Block] = []
        while start < count:
            stop = min(count, self._stop - first)
            if self._digests is not None:
                self._digests.extend(map(xxhash.xxh3_64_digest, payloads[start:stop]))
            self._advance_to(first + stop, ended)
            start = stop
        return ended

    def skip(self, first: int, last: int) -> list[Block]:
        """Pass over the seqnos of fragments; return the blocks that end with them."""
        if first > self._due:
            self._resume(first)
        if self._is_beginning and last >= self._due:
            self._resume(last + 1)
        ended: list[Block] = []
        while self._due <= last:
            self._advance_to(min(last + 1, self._stop), ended)
        return ended

    def skip_to(self, seqno: int) -> list[Block]:
        """Pass over everything before `seqno`: fragments, each of them."""
        return self.skip(self._due, seqno - 1)

    def finish(self) -> Block | None:
        """The block that has begun, as far as it came: for a member that stops."""
        if self._digests is None or self._due == self._start:
            return None
        return self._block(self._digests)

    def _advance_to(self, due: int, ended: list[Block]) -> None:
        self._due = due
        if due == self._stop:
            if self._digests is not None:
                ended.append(self._block(self._digests))
            self._resume(due)

    def _resume(self, seqno: int) -> None:
        number, place = divmod(seqno - 1, self._size)
        is_hashed = place == 0 and number % self._every == 0
        self._due = self._start = seqno
        self._stop = (number + 1) * self._size + 1  # where the next block starts
        self._digests: list[bytes] | None = [] if is_hashed else None

    def _block(self, digests: list[bytes]) -> Block:
        number = (self._start - 1) // self._size
        content = xxhash.xxh3_64_intdigest(b"".join(digests))
        return Block(number, self._start, self._due - 1, content)
