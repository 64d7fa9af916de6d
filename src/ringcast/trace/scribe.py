"""From a recorder to its disk: a bounded queue, and the thread that writes segments from it.

A disk that refuses costs rows, never the member: they are counted, and the next segment says so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ringcast.trace.columns import load_pandas
from ringcast.trace.footer import Before
from ringcast.trace.rows import STOP, Row
from ringcast.trace.segments import STORAGE_ERRORS, SegmentWriter

QUEUE_ROWS_MAX = 65_536
ROOM_BYTES = 32 << 20
"""Payloads that may wait for the disk before no more messages are taken. What one take brings comes
on top of it; that is bounded by the windows it takes from."""
SEGMENT_BYTES = 64 << 20
"""Payloads in one segment, about: what one task of a reader has in hand."""

_WRITE_ROWS = 1024
_WRITE_BYTES = 4 << 20
"""Converted without a pause: few enough not to be felt by the thread that serves the group."""
_POLL_S = 0.25


class Entry(NamedTuple):
    """A row, and the messages whose delivery it tells of where those are kept."""

    row: Row
    payloads: Sequence[bytes]
    size: int


class Queue:
    """Rows on their way from the member's thread to the scribe's; full, it refuses and counts.

    One thread puts, another takes; both ends of a deque are safe for that without a lock. Each
    counter has one writer.
    """

    def __init__(self, rows_max: int) -> None:
        self.entries: deque[Entry] = deque()
        self.lost = 0
        self.is_due = threading.Event()
        """There is enough to be worth writing, or an end to be made."""
        self._rows_max = rows_max
        self._is_overrun = False
        self._bytes_put = 0
        self._bytes_taken = 0
        self._has_drained = threading.Event()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes_put - self._bytes_taken

    @property
    def has_room(self) -> bool:
        return self.waiting_bytes < ROOM_BYTES and len(self.entries) <= self._rows_max // 2

    def wait_for_room(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self.has_room:
            self._has_drained.clear()
            left_s = max(0.0, deadline - time.monotonic())
            # Looked at again: it may have drained before the event was cleared.
            if not self.has_room and not self._has_drained.wait(left_s):
                return False
        return True

    def put(self, row: Row, payloads: Sequence[bytes] = ()) -> None:
        waiting = len(self.entries)
        # After an overrun nothing is taken until there is room for many: one long gap in a trace
        # costs its readers less than thousands of short ones.
        if waiting >= (self._rows_max // 2 + 1 if self._is_overrun else self._rows_max):
            self._is_overrun = True
            self.lost += 1
            return
        self._is_overrun = False
        size = sum(map(len, payloads))
        self._bytes_put += size
        self.entries.append(Entry(row, payloads, size))
        if self.waiting_bytes >= _WRITE_BYTES:
            self.is_due.set()

    def take(self) -> list[Entry]:
        """As many as are to be converted at once."""
        taken: list[Entry] = []
        size = 0
        while self.entries and len(taken) < _WRITE_ROWS and size < _WRITE_BYTES:
            taken.append(self.entries.popleft())
            size += taken[-1].size
        self._bytes_taken += size
        self._has_drained.set()
        return taken


class Scribe:
    """The thread that writes segments."""

    def __init__(
        self,
        queue: Queue,
        begin: Callable[[Before | None], SegmentWriter],
        segment_rows: int,
        segment_seconds: float,
    ) -> None:
        """`begin`: a segment, behind the one before it."""
        load_pandas()
        self.lost = 0
        self.segments = 0
        self.last_error = ""
        self._queue = queue
        self._begin = begin
        self._segment_rows = segment_rows
        self._segment_seconds = segment_seconds
        self._segment: SegmentWriter | None = None
        self._before: Before | None = None
        self._has_stop = False
        self._is_closing = False
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="ringcast-recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        self._is_closing = True
        self._queue.is_due.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due_s = time.monotonic() + self._segment_seconds
        while not self._is_closing:
            left_s = max(due_s - time.monotonic(), 0.0)
            is_asked = self._queue.is_due.wait(min(left_s, _POLL_S))
            self._queue.is_due.clear()
            is_due = time.monotonic() >= due_s
            # Converting a few rows costs as much as converting hundreds: they may wait.
            if is_due or is_asked or len(self._queue.entries) >= _WRITE_ROWS:
                self._write_queued()
            if is_due:
                self._finish()
                due_s = time.monotonic() + self._segment_seconds
        self._write_queued()
        self._finish()

    def _write_queued(self) -> None:
        while entries := self._queue.take():
            self._add(entries)
            time.sleep(0)  # Gives the interpreter to the member's thread between two pieces.

    def _add(self, entries: list[Entry]) -> None:
        rows = [entry.row for entry in entries]
        self._has_stop = rows[-1].event == STOP  # nothing comes after it
        if self._segment is None:
            self._segment = self._begin(self._before)
        is_archive = self._segment.recording.payloads
        payloads = [entry.payloads for entry in entries] if is_archive else None
        try:
            self._segment.add(rows, time.time_ns() - time.monotonic_ns(), payloads)
        except STORAGE_ERRORS as error:
            self._give_up(error)
            return
        is_large = self._segment.payload_bytes >= SEGMENT_BYTES
        if is_large or self._segment.rows >= self._segment_rows:
            self._finish()

    def _finish(self) -> None:
        if self._segment is None:
            return
        try:
            lost = self._queue.lost + self.lost
            path = self._segment.finish(lost=lost, is_last=self._has_stop)
        except STORAGE_ERRORS as error:
            self._give_up(error)
            return
        self._before = Before(path.name, self._segment.holdings)
        self._segment = None
        self.segments += 1

    def _give_up(self, error: Exception) -> None:
        """This segment is lost; the next one is tried all the same, and says so."""
        assert self._segment is not None
        self.lost += self._segment.rows
        self.last_error = f"{type(error).__name__}: {error}"
        self._segment.abandon()
        self._segment = None
