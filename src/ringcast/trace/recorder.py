"""The recorder: what one real member did, as Parquet segments.

An observer of the member's `Node` tells it what happens; protocols know nothing of it.
Recording never blocks a member and never breaks it. Rows go into a bounded queue and a thread
writes them. When the queue is full, or the disk refuses, rows are lost and counted: `idx` goes on
counting, so the gap is visible in the trace, and the next segment says how many are gone.

Rows are ranges: runs of one origin that continue each other within 10 ms become one row; total
messages only if they also stand at consecutive places of the order. Content is
recorded as one hash per block of consecutive messages of one origin, at the sender and
at each receiver: runs may be cut differently on the way, blocks are not. Level "full" adds frames
and windows, and hashes every block instead of every fourth.

With `payloads` the messages themselves are kept in the rows of their delivery: that is an archive.
Those with headers have rows of their own, and are kept as they travel, headers first. There none
may be lost to a slow disk, so whoever reads the group waits while there is no room.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.errors import ConfigError
from ringcast.model import Headed, Member, Origin, Stream, ViewId
from ringcast.private import make_private
from ringcast.trace import rows as trace
from ringcast.trace.content import BLOCK_MESSAGES, Block, BlockHasher, hashed_every
from ringcast.trace.footer import Recording
from ringcast.trace.observe.order import said_of
from ringcast.trace.rows import Row, naming, naming_id
from ringcast.trace.scribe import QUEUE_ROWS_MAX, Queue, Scribe
from ringcast.trace.segments import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.events import Delivered, FragmentsDelivered

LEVELS = ("deliveries", "full")
STRETCH_NS = 10_000_000
"""How long consecutive runs are gathered into one row."""

CLOSE_S = 5.0
CLOSE_PAYLOADS_S = 60.0
"""How long a member that goes waits for its disk: for its trace, or for messages in its keeping."""


@dataclass(slots=True)
class _Stretch:
    """Consecutive messages, which will be one row."""

    first: int
    last: int
    alike: tuple[Any, ...]
    """What else they have in common: the view, and more."""
    since: int
    payloads: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Track:
    """One origin's messages, as sent or as delivered here."""

    origin: Origin
    kind: str
    """sent or delivered"""
    hasher: BlockHasher
    growing: _Stretch | None = None


class Recorder:
    """Records one member. Its methods are called by one thread, the member's.

    `now` is time.monotonic_ns, as the driver hands it to the node.
    """

    def __init__(
        self,
        directory: Path | str,
        run_id: str,
        member: Member,
        *,
        level: str = "deliveries",
        payloads: bool = False,
        segment_rows: int = 100_000,
        segment_seconds: float = 2.0,
        queue_rows: int = QUEUE_ROWS_MAX,
        block_messages: int = BLOCK_MESSAGES,
        group: str = "",
        settings: Mapping[str, Any] | None = None,
        mode: int | None = None,
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
        self._messages_kept = 0
        self._block_messages = block_messages
        self._sent: dict[Stream, _Track] = {}
        self._delivered: dict[tuple[Member, Stream], _Track] = {}
        self._accepted: _Stretch | None = None
        self._ordered: list[_Stretch] = []
        self._oldest = 0  # when the oldest row that still grows began; 0: none does
        self._keeps = payloads
        self._queue = Queue(queue_rows)
        recording = Recording(
            run_id=run_id,
            node=self._node,
            inc=self._inc,
            level=level,
            host=platform.node(),
            boot_id=_boot_id(),
            payloads=payloads,
            group=group,
            settings={**(settings or {}), "block_messages": block_messages},
        )
        make_private(Path(directory), mode)
        begin = partial(SegmentWriter, Path(directory), recording, mode=mode)
        self._scribe = Scribe(self._queue, begin, segment_rows, segment_seconds)

    # What the observer reports

    def start(self, now: int) -> None:
        """The member begins. Rows are written from here on."""
        self._scribe.start()
        self.write(trace.START, now)

    def opened(self, origin: Origin, offset: int, view_id: ViewId, now: int) -> None:
        """A receive window opened with this view: what comes after `offset` will be delivered."""
        place = {"seqno": offset, "seqno2": offset, **naming_id(view_id)}
        self.write(trace.OPEN, now, **naming(origin), **place)
        self._delivered[origin] = self._track(origin, offset)

    def dropped(self, origin: Origin, now: int) -> None:
        """The window of a departed member is gone: nothing more is expected of it."""
        if self.level == "full":
            self.write(trace.DROP_WINDOW, now, **naming(origin))
        self._flush()
        self._delivered.pop(origin, None)

    def sent(
        self, stream: Stream, first: int, payloads: Sequence[bytes], view_id: ViewId, now: int
    ) -> None:
        """The node accepted these messages and numbered them from `first` on, in this view."""
        track = self._sender(stream)
        last = first + len(payloads) - 1
        track.growing = self._grown(track.growing, first, last, (view_id,), now)
        blocks = track.hasher.add_run(first, payloads)
        if blocks:
            self._put_blocks(blocks, track, now)

    def sent_fragments(
        self, stream: Stream, first: int, last: int, view_id: ViewId, now: int
    ) -> None:
        """Fragments of a large message took these seqnos; `sent` follows with the last one."""
        track = self._sender(stream)
        place = {"seqno": first, "seqno2": last, "kind": "fragment", **naming_id(view_id)}
        self.write(trace.SEND, now, **naming(track.origin), **place)
        self._put_blocks(track.hasher.skip(first, last), track, now)

    def forget_sent(self, stream: Stream, through: int) -> None:
        """What was sent up to here is gone: nobody knows what was in it."""
        track = self._sender(stream)
        track.hasher = self._track(track.origin, through).hasher

    def delivered(self, event: Delivered, now: int, detail: str = "") -> None:
        """The application was handed these messages; or (`ASIDE`) they were put aside for it."""
        run = event.run
        # A tuple finds what an Origin finds, and is made in a tenth of the time.
        track = self._delivered.get((event.sender, run.stream))
        if track is None:
            track = self._receiver(Origin(event.sender, run.stream))
        alike = event.view_id, detail, self._keeps and type(run.payloads[0]) is Headed
        track.growing = self._grown(track.growing, run.first, run.last, alike, now)
        if self._keeps:
            track.growing.payloads += run.payloads
        blocks = track.hasher.add_run(run.first, run.payloads)
        if blocks:
            self._put_blocks(blocks, track, now)

    def delivered_fragments(self, event: FragmentsDelivered, now: int, detail: str = "") -> None:
        """The node took fragments; `delivered` follows with the message they make."""
        track = self._receiver(Origin(event.sender, event.stream))
        place = {"seqno": event.first, "seqno2": event.last, **naming_id(event.view_id)}
        place |= {"kind": "fragment", "detail": detail}
        self.write(trace.DELIVER, now, **naming(track.origin), **place)
        self._put_blocks(track.hasher.skip(event.first, event.last), track, now)

    def accepted(self, first: int, last: int, view_id: ViewId, now: int) -> None:
        """The node accepted total messages, and gave them these numbers in this view."""
        self._accepted = self._grown(self._accepted, first, last, (view_id,), now)

    def ordered(self, event: Delivered, now: int) -> None:
        """The application was handed total messages. What it was handed before, in a history that
        has ended, is in an archive already."""
        run, kind = event.run, ""
        if self._keeps:
            is_headed = type(run.payloads[0]) is Headed
            kind = trace.SEEN if event.seen else trace.HEADED if is_headed else ""
        ahead = event.position - run.first  # of its numbers
        alike = event.sender, event.view_id, said_of(event), kind, ahead
        last = self._ordered[-1] if self._ordered else None
        if last is not None and last.last + 1 == run.first and last.alike == alike:
            last.last = run.last
        else:
            self._oldest = self._oldest or now
            last = _Stretch(run.first, run.last, alike, now)
            self._ordered.append(last)
        if self._keeps and not event.seen:
            last.payloads += run.payloads

    def tick(self, now: int) -> None:
        """Time passes: what has waited long enough to grow is written as it is."""
        if self._oldest and now - self._oldest > STRETCH_NS:
            self._flush()

    def write(
        self, event: str, now: int, payloads: Sequence[bytes] = (), /, **columns: Any
    ) -> None:
        """Any row. Whose it is and when it was are filled in."""
        self._flush()
        row = Row(event, self._node, self._inc, self._next_idx, -1, now, **columns)
        self._next_idx += 1
        self._queue.put(row, payloads)

    def stopped(self, now: int) -> None:
        """The member stops in good order: its trace is whole. Call `close` next."""
        self._flush()
        for track in (*self._sent.values(), *self._delivered.values()):
            block = track.hasher.finish()
            if block is not None:
                self._put_blocks([block], track, now)
        self.write(trace.STOP, now)

    def close(self, timeout_s: float | None = None) -> bool:
        """Write what is queued and end; False if that takes longer than allowed."""
        if timeout_s is None:
            timeout_s = CLOSE_PAYLOADS_S if self._keeps else CLOSE_S
        return self._scribe.close(timeout_s)

    @property
    def has_room(self) -> bool:
        """Whether more messages may be taken. Without their payloads there always is: rows are
        lost rather than that a member waits."""
        return not self._keeps or self._queue.has_room

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait in a thread of one's own until the disk has taken enough; whether it has."""
        return self._queue.wait_for_room(timeout_s)

    def stats(self) -> dict[str, object]:
        """What was recorded, what waits, what was lost and why."""
        return {
            "rows": self._next_idx,
            "queued": len(self._queue.entries),
            "queued_bytes": self._queue.waiting_bytes,
            "messages_kept": self._messages_kept,
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

    def _grown(
        self, growing: _Stretch | None, first: int, last: int, alike: tuple[Any, ...], now: int
    ) -> _Stretch:
        """Runs that continue each other become one row: what is judged is ranges."""
        if growing is not None:
            if growing.last + 1 == first and growing.alike == alike:
                growing.last = last
                return growing
            self._flush()
        self._oldest = self._oldest or now
        return _Stretch(first, last, alike, now)

    def _flush(self) -> None:
        """Write what has been gathered, sends first: nothing is delivered before it is sent."""
        if not self._oldest:
            return
        self._oldest = 0
        tracks = [*self._sent.values(), *self._delivered.values()]
        growing = [(track, track.growing) for track in tracks if track.growing is not None]
        for track, _ in growing:
            track.growing = None
        accepted, self._accepted = self._accepted, None
        ordered, self._ordered = self._ordered, []
        if accepted is not None:
            columns = {"stream": int(Stream.TOTAL), **naming_id(*accepted.alike)}
            self._write_grown(trace.ACCEPT, accepted, columns)
        for track, each in growing:
            view_id, *more = each.alike
            columns = naming(track.origin) | naming_id(view_id)
            if track.kind == "sent":
                self._write_grown(trace.SEND, each, columns)
            else:
                detail, is_headed = more
                columns |= {"kind": trace.HEADED if is_headed else "", "detail": detail}
                self._write_grown(trace.DELIVER, each, columns)
        for each in ordered:
            sender, view_id, detail, kind, ahead = each.alike
            columns = naming(Origin(sender, Stream.TOTAL)) | naming_id(view_id)
            columns |= {"low": each.first + ahead, "kind": kind, "detail": detail}
            self._write_grown(trace.ORDER, each, columns)

    def _write_grown(self, event: str, grown: _Stretch, columns: dict[str, Any]) -> None:
        self._messages_kept += len(grown.payloads)
        place = {"seqno": grown.first, "seqno2": grown.last}
        self.write(event, grown.since, grown.payloads, **place, **columns)

    def _put_blocks(self, blocks: Sequence[Block], track: _Track, now: int) -> None:
        for block in blocks:
            self.write(trace.BLOCK, now, **naming(track.origin), **block.columns, kind=track.kind)

    def _sender(self, stream: Stream) -> _Track:
        track = self._sent.get(stream)
        if track is None:
            own = Origin(self.member, stream)
            track = self._sent[stream] = self._track(own, kind="sent")
        return track

    def _receiver(self, origin: Origin) -> _Track:
        track = self._delivered.get(origin)
        if track is None:
            track = self._delivered[origin] = self._track(origin)
        return track

    def _track(self, origin: Origin, offset: int = 0, kind: str = "delivered") -> _Track:
        every = hashed_every(self.level)
        return _Track(origin, kind, BlockHasher(offset, self._block_messages, every))


def _boot_id() -> str:
    """Which start of which kernel mono_ns counts from; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
