"""The recorder: what one real member did, as Parquet segments.

The driver of a `Node` calls it with what goes in and what comes out; protocols know nothing of it.
Recording never holds a member back and never breaks it. Rows go into a bounded queue and a thread
writes them. When the queue is full, or the disk refuses, rows are lost and counted: `idx` goes on
counting, so the gap is visible in the trace, and the next segment says how many are gone.

Rows are ranges: runs of one origin that continue each other within 10 ms become one row. Content is
recorded as one hash per block of consecutive messages of one origin, at the sender and
at each receiver: runs may be cut differently on the way, blocks are not. Level "full" adds frames
and windows, and hashes every block instead of every fourth.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.errors import ConfigError
from ringcast.model import Origin
from ringcast.trace.content import BLOCK_MESSAGES, BlockHasher, hashed_every
from ringcast.trace.rows import (
    BLOCK,
    DELIVER,
    DROP_WINDOW,
    ESTATE,
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

    from ringcast.events import Delivered, FragmentsTaken
    from ringcast.model import Member, Stream, View, ViewId
    from ringcast.trace.content import Block
    from ringcast.trace.segments import Recording, SegmentWriter

QUEUE_ROWS_MAX = 65_536
LEVELS = ("deliveries", "full")
STRETCH_NS = 10_000_000
"""How long consecutive runs are gathered into one row."""

_WRITE_ROWS = 1024
"""Rows converted without a pause: few enough not to be felt by the thread that serves the group."""
_POLL_S = 0.25


@dataclass(slots=True)
class _Track:
    """One origin's messages, as sent or as delivered here: their content, and the consecutive
    ones that will be one row."""

    origin: Origin
    is_sent: bool
    hasher: BlockHasher
    first: int = 0
    last: int = 0
    view_id: ViewId | None = None
    since: int = 0
    is_growing: bool = False

    @property
    def kind(self) -> str:
        return "sent" if self.is_sent else "delivered"


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
        segment_seconds: float = 2.0,
        queue_rows: int = QUEUE_ROWS_MAX,
        block_messages: int = BLOCK_MESSAGES,
        group: str = "",
    ) -> None:
        from ringcast.trace.segments import Recording  # Members that do not record need no pyarrow.

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
        self._block_messages = block_messages
        self._sent: dict[Stream, _Track] = {}
        self._delivered: dict[tuple[Member, Stream], _Track] = {}
        self._oldest = 0  # when the oldest row that still grows began; 0: none does
        self._queue = _Queue(queue_rows)
        recording = Recording(
            run_id=run_id,
            node=self._node,
            inc=self._inc,
            level=level,
            host=platform.node(),
            boot_id=_boot_id(),
            group=group,
        )
        self._scribe = _Scribe(
            self._queue, Path(directory), recording, segment_rows, segment_seconds
        )

    # What the driver reports

    def start(self, now: int) -> None:
        """The member begins. Rows are written from here on."""
        self._scribe.start()
        self._put(START, now)

    def view(self, view: View, now: int) -> None:
        """The node installed this view."""
        members = tuple(map(member_key, view))
        self._put(
            VIEW, now, view=view.counter, creator=member_key(view.id.creator), members=members
        )

    def opened(self, origin: Origin, offset: int, now: int) -> None:
        """A receive window opened: what comes after `offset` will be delivered."""
        self._put(OPEN, now, origin, offset, offset)
        self._delivered[origin] = self._track(origin, offset)

    def dropped(self, origin: Origin, now: int) -> None:
        """The window of a departed member is gone: nothing more is expected of it."""
        self.detail(DROP_WINDOW, now, **naming(origin))
        self._flush()
        self._delivered.pop(origin, None)

    def estate(self, origin: Origin, now: int, **columns: Any) -> None:
        """What departed senders left has come this far: kept at any level, there is little."""
        self._write(ESTATE, now, **naming(origin), **columns)

    def sent(self, stream: Stream, first: int, payloads: Sequence[bytes], now: int) -> None:
        """The node accepted these messages and numbered them from `first` on."""
        track = self._sender(stream)
        self._extend(track, first, first + len(payloads) - 1, None, now)
        blocks = track.hasher.add_run(first, payloads)
        if blocks:
            self._put_blocks(blocks, track, now)

    def sent_fragments(self, stream: Stream, first: int, last: int, now: int) -> None:
        """Fragments of a large message took these seqnos; `sent` follows with the last one."""
        track = self._sender(stream)
        self._put(SEND, now, track.origin, first, last, kind="fragment")
        self._put_blocks(track.hasher.skip(first, last), track, now)

    def delivered(self, event: Delivered, now: int) -> None:
        """The application took these messages."""
        run = event.run
        # A tuple finds what an Origin finds, and is made in a tenth of the time.
        track = self._delivered.get((event.sender, run.stream))
        if track is None:
            track = self._receiver(Origin(event.sender, run.stream))
        self._extend(track, run.first, run.last, event.view_id, now)
        blocks = track.hasher.add_run(run.first, run.payloads)
        if blocks:
            self._put_blocks(blocks, track, now)

    def delivered_fragments(self, event: FragmentsTaken, now: int) -> None:
        """The node took fragments; `delivered` follows with the message they make."""
        track = self._receiver(Origin(event.sender, event.stream))
        view, creator = event.view_id.counter, member_key(event.view_id.creator)
        place = (track.origin, event.first, event.last)
        self._put(DELIVER, now, *place, view, creator, kind="fragment")
        self._put_blocks(track.hasher.skip(event.first, event.last), track, now)

    def tick(self, now: int) -> None:
        """Time passes: what has waited long enough to grow is written as it is."""
        if self._oldest and now - self._oldest > STRETCH_NS:
            self._flush()

    def detail(self, event: str, now: int, **columns: Any) -> None:
        """Any other row (frames, windows, purges), kept at level "full" only. Whose it is and
        when it was are filled in."""
        if self.level == "full":
            self._write(event, now, **columns)

    def stopped(self, now: int) -> None:
        """The member stops in good order: its trace is whole. Call `close` next."""
        self._flush()
        for track in (*self._sent.values(), *self._delivered.values()):
            block = track.hasher.finish()
            if block is not None:
                self._put_blocks([block], track, now)
        self._put(STOP, now)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued and end; False if that takes longer than allowed."""
        return self._scribe.close(timeout_s)

    def stats(self) -> dict[str, object]:
        """What was recorded, what waits, what was lost and why."""
        return {
            "rows": self._next_idx,
            "queued": len(self._queue.rows),
            "lost": self.lost,
            "lost_to_full_queue": self._queue.lost,
            "lost_to_disk": self._scribe.lost,
            "segments": self._scribe.segments,
            "last_error": self._scribe.last_error,
        }

    @property
    def lost(self) -> int:
        """Rows that will never be in the trace."""
        return self._queue.lost + self._scribe.lost

    # Rows

    def _extend(
        self, track: _Track, first: int, last: int, view_id: ViewId | None, now: int
    ) -> None:
        """Runs that continue each other become one row: what is judged is ranges."""
        if track.is_growing:
            if track.last + 1 == first and track.view_id == view_id:
                track.last = last
                return
            self._flush()
        self._oldest = self._oldest or now
        track.first, track.last, track.view_id, track.since = first, last, view_id, now
        track.is_growing = True

    def _flush(self) -> None:
        """Write what has been gathered, sends first: nothing is delivered before it is sent."""
        if not self._oldest:
            return
        self._oldest = 0
        growing = [
            track for track in (*self._sent.values(), *self._delivered.values()) if track.is_growing
        ]
        for track in growing:
            track.is_growing = False
        for track in growing:
            place = (track.since, track.origin, track.first, track.last)
            if track.view_id is None:
                self._put(SEND, *place)
            else:
                view_id = track.view_id
                self._put(DELIVER, *place, view_id.counter, member_key(view_id.creator))

    def _write(self, event: str, now: int, **columns: Any) -> None:
        self._flush()
        self._queue.put(Row(event, self._node, self._inc, self._next_idx, -1, now, **columns))
        self._next_idx += 1

    def _put(
        self,
        event: str,
        now: int,
        origin: Origin | None = None,
        first: int = 0,
        last: int = 0,
        view: int = 0,
        creator: str = "",
        *,
        members: tuple[str, ...] = (),
        kind: str = "",
        block: int = -1,
        block_hash: int = 0,
    ) -> None:
        self._flush()
        peer, peer_inc, stream = "", 0, -1
        if origin is not None:
            sender, stream = origin
            peer, peer_inc = str(sender), sender.incarnation
        row = Row(
            *(event, self._node, self._inc, self._next_idx, -1, now, peer, peer_inc, int(stream)),
            *(first, last, view, creator, members),
            kind=kind,
            block=block,
            block_hash=block_hash,
        )
        self._next_idx += 1
        self._queue.put(row)

    def _put_blocks(self, blocks: Sequence[Block], track: _Track, now: int) -> None:
        for block in blocks:
            self._put(
                *(BLOCK, now, track.origin, block.first, block.last),
                kind=track.kind,
                block=block.number,
                block_hash=block.hash,
            )

    def _sender(self, stream: Stream) -> _Track:
        track = self._sent.get(stream)
        if track is None:
            own = Origin(self.member, stream)
            track = self._sent[stream] = self._track(own, is_sent=True)
        return track

    def _receiver(self, origin: Origin) -> _Track:
        track = self._delivered.get(origin)
        if track is None:
            track = self._delivered[origin] = self._track(origin)
        return track

    def _track(self, origin: Origin, offset: int = 0, *, is_sent: bool = False) -> _Track:
        every = hashed_every(self.level)
        return _Track(origin, is_sent, BlockHasher(offset, self._block_messages, every))


class _Queue:
    """Rows on their way from the member's thread to the scribe's; full, it refuses and counts.

    One thread puts, another takes; both ends of a deque are safe for that without a lock.
    """

    __slots__ = ("_is_overrun", "_rows_max", "lost", "rows")

    def __init__(self, rows_max: int) -> None:
        self.rows: deque[Row] = deque()
        self.lost = 0
        self._rows_max = rows_max
        self._is_overrun = False

    def put(self, row: Row) -> None:
        waiting = len(self.rows)
        # After an overrun nothing is taken until there is room for many: one long gap in a trace
        # costs its readers less than thousands of short ones.
        if waiting >= (self._rows_max // 2 + 1 if self._is_overrun else self._rows_max):
            self._is_overrun = True
            self.lost += 1
        else:
            self._is_overrun = False
            self.rows.append(row)

    def take(self, limit: int) -> list[Row]:
        return [self.rows.popleft() for _ in range(min(limit, len(self.rows)))]


class _Scribe:
    """The thread that writes segments. A disk that refuses costs rows, never the member."""

    def __init__(
        self,
        queue: _Queue,
        directory: Path,
        recording: Recording,
        segment_rows: int,
        segment_seconds: float,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.lost = 0
        self.segments = 0
        self.last_error = ""
        self._queue = queue
        self._directory = directory
        self._recording = recording
        self._segment_rows = segment_rows
        self._segment_seconds = segment_seconds
        self._segment: SegmentWriter | None = None
        self._has_stop = False
        self._closing = threading.Event()
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="ringcast-recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due_s = time.monotonic() + self._segment_seconds
        while not self._closing.wait(_POLL_S):
            is_due = time.monotonic() >= due_s
            # Converting a few rows costs as much as converting hundreds: they may wait.
            if is_due or len(self._queue.rows) >= _WRITE_ROWS:
                self._write_queued()
            if is_due:
                self._finish()
                due_s = time.monotonic() + self._segment_seconds
        self._write_queued()
        self._finish()

    def _write_queued(self) -> None:
        while rows := self._queue.take(_WRITE_ROWS):
            self._add(rows)
            time.sleep(0)  # Gives the interpreter to the member's thread between two pieces.

    def _add(self, rows: list[Row]) -> None:
        from ringcast.trace.segments import STORAGE_ERRORS, SegmentWriter

        self._has_stop = rows[-1].event == STOP  # nothing comes after it
        if self._segment is None:
            self._segment = SegmentWriter(self._directory, self._recording)
        try:
            self._segment.add(rows, time.time_ns() - time.monotonic_ns())
        except STORAGE_ERRORS as error:
            self._give_up(error)
            return
        if self._segment.rows >= self._segment_rows:
            self._finish()

    def _finish(self) -> None:
        from ringcast.trace.segments import STORAGE_ERRORS

        if self._segment is None:
            return
        try:
            self._segment.finish(lost=self._queue.lost + self.lost, is_last=self._has_stop)
        except STORAGE_ERRORS as error:
            self._give_up(error)
            return
        self._segment = None
        self.segments += 1

    def _give_up(self, error: Exception) -> None:
        """This segment is lost; the next one is tried all the same, and says so."""
        assert self._segment is not None
        self.lost += self._segment.rows
        self.last_error = f"{type(error).__name__}: {error}"
        self._segment.abandon()
        self._segment = None


def naming(origin: Origin) -> dict[str, Any]:
    """The columns that say whose messages a row speaks of."""
    sender, stream = origin
    return {"peer": str(sender), "peer_inc": sender.incarnation, "stream": int(stream)}


def _boot_id() -> str:
    """Which start of which kernel mono_ns counts from; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
