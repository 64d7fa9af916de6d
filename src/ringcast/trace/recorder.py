"""The recorder: what one real member did, as Parquet segments.

The driver of a `Node` calls it with what goes in and what comes out; protocols know nothing of it.
Recording never holds a member back and never breaks it. Rows go into a bounded queue and a thread
writes them. When the queue is full, or the disk refuses, rows are lost and counted: `idx` goes on
counting, so the gap is visible in the trace, and the next segment says how many are gone.

Content is recorded as one hash per block of consecutive messages of one origin, at the sender and
at each receiver: runs may be cut differently on the way, blocks are not.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from ringcast.errors import ConfigError
from ringcast.events import Delivered
from ringcast.model import Origin, Stream
from ringcast.trace.rows import (
    BLOCK,
    DELIVER,
    OPEN,
    SEND,
    START,
    STOP,
    VIEW,
    Row,
    member_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.events import FragmentsTaken
    from ringcast.model import Member, View, ViewId
    from ringcast.trace.segments import Recording, SegmentWriter

BLOCK_MESSAGES = 1024
QUEUE_ROWS_MAX = 65_536
LEVELS = ("deliveries", "full")
_WRITE_ROWS = 1024
"""Rows converted without a pause: few enough not to be felt by the thread that serves the group."""
_POLL_S = 0.05

_length = struct.Struct("<I").pack


class Block(NamedTuple):
    """The content of messages first..last of one origin."""

    index: int
    first: int
    last: int
    hash: int


class BlockHasher:
    """xxh3 over (length as 4 bytes, bytes) of each message, block by block of one origin.

    Only blocks seen from their first message on count: a joiner's first is the one that starts
    after its offset. Fragments add nothing but their seqnos; the whole message counts where its
    last one stands.
    """

    __slots__ = ("_due", "_hash", "_size", "_start")

    def __init__(self, offset: int = 0, block_messages: int = BLOCK_MESSAGES) -> None:
        self._size = block_messages
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
            if self._hash is not None:
                self._hash.update(_framed(part))
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

    def finish(self) -> Block | None:
        """The block that has begun, as far as it came: for a member that stops."""
        if self._hash is None or self._due == self._start:
            return None
        return self._block()

    def _advance(self, count: int, ended: list[Block]) -> None:
        self._due += count
        if (self._due - 1) % self._size == 0:
            if self._hash is not None:
                ended.append(self._block())
            self._resume(self._due)

    def _resume(self, seqno: int) -> None:
        self._due = self._start = seqno
        self._hash = xxhash.xxh3_64() if (seqno - 1) % self._size == 0 else None

    def _block(self) -> Block:
        assert self._hash is not None
        index = (self._start - 1) // self._size
        return Block(index, self._start, self._due - 1, self._hash.intdigest())


def _framed(payloads: Sequence[bytes]) -> bytes:
    """Each payload with its length before it, in one piece: two calls instead of two for each."""
    lengths = list(map(len, payloads))
    if lengths.count(lengths[0]) == len(lengths):
        return _length(lengths[0]).join([b"", *payloads])
    pieces = [b""] * (2 * len(payloads))
    pieces[::2] = map(_length, lengths)
    pieces[1::2] = payloads
    return b"".join(pieces)


class Recorder:
    """Records one member. Its methods are called by one thread, the member's driver.

    `now` is time.monotonic_ns, as the driver hands it to the node.
    """

    def __init__(
        self,
        directory: Path | str,
        run_id: str,
        member: Member,
        *,
        level: str = "deliveries",
        segment_rows: int = 100_000,
        segment_seconds: float = 5.0,
        queue_rows: int = QUEUE_ROWS_MAX,
        block_messages: int = BLOCK_MESSAGES,
    ) -> None:
        if level not in LEVELS:
            raise ConfigError("level", level, " or ".join(map(repr, LEVELS)))
        for name, value in (
            ("segment_rows", segment_rows),
            ("segment_seconds", segment_seconds),
            ("queue_rows", queue_rows),
            ("block_messages", block_messages),
        ):
            if value <= 0:
                raise ConfigError(name, value, "more than 0")
        self.member = member
        self.level = level
        self._node = str(member)
        self._inc = member.incarnation
        self._next_idx = 0
        self._view_ids: dict[ViewId, str] = {}
        self._block_messages = block_messages
        self._sent: dict[Stream, BlockHasher] = {}
        self._delivered: dict[Origin, BlockHasher] = {}
        self._queue: deque[Row] = deque()
        self._queue_rows = queue_rows
        self._is_overrun = False
        self._overrun = 0
        self._is_stopped = False
        self._disk = _Disk(self, Path(directory), run_id, segment_rows, segment_seconds)

    # What the driver reports

    def start(self, now: int) -> None:
        """The member begins. Rows are written from here on."""
        self._disk.start()
        self._record(START, now)

    def view(self, view: View, now: int) -> None:
        """The node installed this view."""
        self._record(
            VIEW,
            now,
            view=view.counter,
            view_creator=member_key(view.id.creator),
            members=tuple(map(member_key, view)),
        )

    def opened(self, origin: Origin, offset: int, now: int) -> None:
        """A receive window opened: what comes after `offset` will be delivered."""
        self._delivered[origin] = BlockHasher(offset, self._block_messages)
        self._record(OPEN, now, *_named(origin), offset)

    def dropped(self, origin: Origin) -> None:
        """The window of a departed member is gone: nothing more is expected of it."""
        self._delivered.pop(origin, None)

    def sent(self, stream: Stream, first: int, payloads: Sequence[bytes], now: int) -> None:
        """The node accepted these messages and numbered them from `first` on."""
        last = first + len(payloads) - 1
        self._record(SEND, now, self._node, self._inc, int(stream), first, last)
        blocks = self._sender(stream).add_run(first, payloads)
        if blocks:
            self._record_blocks(blocks, Origin(self.member, stream), "sent", now)

    def sent_fragments(self, stream: Stream, first: int, last: int, now: int) -> None:
        """Fragments of a large message took these seqnos; `sent` follows with the last one."""
        self._record(SEND, now, self._node, self._inc, int(stream), first, last, kind="fragment")
        blocks = self._sender(stream).skip(first, last)
        self._record_blocks(blocks, Origin(self.member, stream), "sent", now)

    def delivered(self, event: Delivered | FragmentsTaken, now: int) -> None:
        """The application took these messages, or the node took fragments for it."""
        if isinstance(event, Delivered):
            run = event.run
            origin = Origin(event.sender, run.stream)
            self._record(
                *(DELIVER, now, *_named(origin), run.first, run.last),
                view=event.view_id.counter,
                view_creator=self._creator(event.view_id),
            )
            blocks = self._receiver(origin).add_run(run.first, run.payloads)
        else:
            origin = Origin(event.sender, event.stream)
            self._record(
                *(DELIVER, now, *_named(origin), event.first, event.last),
                view=event.view_id.counter,
                view_creator=self._creator(event.view_id),
                kind="fragment",
            )
            blocks = self._receiver(origin).skip(event.first, event.last)
        if blocks:
            self._record_blocks(blocks, origin, "delivered", now)

    def detail(self, event: str, now: int, **columns: object) -> None:
        """Any other row (frames, windows, purges): recorded at level "full" only."""
        if self.level == "full":
            self._record(event, now, **columns)

    def stopped(self, now: int) -> None:
        """The member stops in good order: its trace is whole. Call `close` next."""
        for stream, sent in self._sent.items():
            self._record_tail(sent, Origin(self.member, stream), "sent", now)
        for origin, delivered in self._delivered.items():
            self._record_tail(delivered, origin, "delivered", now)
        self._record(STOP, now)
        self._is_stopped = True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued and end; False if that took longer than allowed."""
        return self._disk.close(timeout_s)

    def stats(self) -> dict[str, object]:
        """What was recorded, what waits, what was lost and why."""
        return {
            "rows": self._next_idx,
            "queued": len(self._queue),
            "lost": self.lost,
            "lost_to_full_queue": self._overrun,
            "lost_to_disk": self._disk.lost,
            "segments": self._disk.segments,
            "last_error": self._disk.last_error,
        }

    @property
    def lost(self) -> int:
        """Rows that will never be in the trace."""
        return self._overrun + self._disk.lost

    # Rows

    def _record(self, event: str, now: int, *values: object, **columns: object) -> None:
        idx = self._next_idx
        self._next_idx = idx + 1
        # After an overrun, nothing is taken until there is room for many: one long gap in the
        # trace says the same as thousands of short ones.
        if self._is_overrun:
            self._is_overrun = len(self._queue) > self._queue_rows // 2
        if self._is_overrun or len(self._queue) >= self._queue_rows:
            self._is_overrun = True
            self._overrun += 1
            return
        self._queue.append(Row(event, self._node, self._inc, idx, -1, now, *values, **columns))

    def _record_blocks(
        self, blocks: Sequence[Block], origin: Origin, kind: str, now: int
    ) -> None:
        for block in blocks:
            self._record(
                *(BLOCK, now, *_named(origin), block.first, block.last),
                kind=kind,
                block=block.index,
                block_hash=block.hash,
            )

    def _record_tail(self, hasher: BlockHasher, origin: Origin, kind: str, now: int) -> None:
        block = hasher.finish()
        if block is not None:
            self._record_blocks([block], origin, kind, now)

    def _sender(self, stream: Stream) -> BlockHasher:
        hasher = self._sent.get(stream)
        if hasher is None:
            hasher = self._sent[stream] = BlockHasher(0, self._block_messages)
        return hasher

    def _receiver(self, origin: Origin) -> BlockHasher:
        hasher = self._delivered.get(origin)
        if hasher is None:
            hasher = self._delivered[origin] = BlockHasher(0, self._block_messages)
        return hasher

    def _creator(self, view_id: ViewId) -> str:
        key = self._view_ids.get(view_id)
        if key is None:
            self._view_ids = {view_id: member_key(view_id.creator)}  # Only the latest is of use.
            key = self._view_ids[view_id]
        return key


def _named(origin: Origin) -> tuple[str, int, int]:
    return str(origin.sender), origin.sender.incarnation, int(origin.stream)
