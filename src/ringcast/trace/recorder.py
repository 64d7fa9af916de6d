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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.errors import ConfigError
from ringcast.model import Headed, Member, Origin, Stream, ViewId
from ringcast.trace import rows as trace
from ringcast.trace.content import BLOCK_MESSAGES, Block, BlockHasher, hashed_every
from ringcast.trace.footer import Recording
from ringcast.trace.observe.order import said_of
from ringcast.trace.rows import Row, naming, naming_id
from ringcast.trace.scribe import QUEUE_ROWS_MAX, Queue, Scribe

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
class _Track:
    """One origin's messages, as sent or as delivered here: their content, and the consecutive
    ones that will be one row."""

    origin: Origin
    kind: str
    """sent or delivered"""
    hasher: BlockHasher
    first: int = 0
    last: int = 0
    view_id: ViewId | None = None
    detail: str = ""
    is_headed: bool = False
    since: int = 0
    is_growing: bool = False
    payloads: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Ordered:
    """Total messages of one member at consecutive places, which will be one row."""

    sender: Member
    first: int
    last: int
    position: int
    view_id: ViewId
    detail: str
    kind: str
    since: int
    payloads: list[bytes]


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
        self._accepted: tuple[int, int, ViewId, int] | None = None  # first, last, where, since when
        self._ordered: list[_Ordered] = []
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
        self._scribe = Scribe(
            self._queue, Path(directory), recording, segment_rows, segment_seconds, mode
        )

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
        self._extend(track, first, first + len(payloads) - 1, view_id, now)
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
        is_headed = self._keeps and type(run.payloads[0]) is Headed
        self._extend(track, run.first, run.last, event.view_id, now, detail, is_headed=is_headed)
        if self._keeps:
            track.payloads.extend(run.payloads)
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
        if self._accepted is not None:
            begun, through, view, since = self._accepted
            if through + 1 == first and view == view_id:
                self._accepted = begun, last, view, since
                return
            self._flush()
        self._oldest = self._oldest or now
        self._accepted = first, last, view_id, now

    def ordered(self, event: Delivered, now: int) -> None:
        """The application was handed total messages. What it was handed before, in a history that
        has ended, is in an archive already."""
        run, position = event.run, event.position
        detail = said_of(event)
        kind, kept = "", run.payloads if self._keeps and not event.seen else []
        if self._keeps:
            is_headed = type(run.payloads[0]) is Headed
            kind = trace.SEEN if event.seen else trace.HEADED if is_headed else ""
        last = self._ordered[-1] if self._ordered else None
        if (
            last is not None
            and last.last + 1 == run.first
            and last.position + run.first - last.first == position
            and last.sender == event.sender
            and last.view_id == event.view_id
            and (last.detail, last.kind) == (detail, kind)
        ):
            last.last = run.last
            last.payloads += kept
            return
        self._oldest = self._oldest or now
        place = run.first, run.last, position, event.view_id
        self._ordered.append(_Ordered(event.sender, *place, detail, kind, now, [*kept]))

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

    def _extend(
        self,
        track: _Track,
        first: int,
        last: int,
        view_id: ViewId,
        now: int,
        detail: str = "",
        *,
        is_headed: bool = False,
    ) -> None:
        """Runs that continue each other become one row: what is judged is ranges."""
        if track.is_growing:
            is_alike = track.view_id == view_id and track.detail == detail
            is_alike &= track.is_headed == is_headed
            if track.last + 1 == first and is_alike:
                track.last = last
                return
            self._flush()
        self._oldest = self._oldest or now
        track.first, track.last, track.view_id, track.since = first, last, view_id, now
        track.detail, track.is_headed = detail, is_headed
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
        accepted, self._accepted = self._accepted, None
        ordered, self._ordered = self._ordered, []
        if accepted is not None:
            first, last, view_id, since = accepted
            numbers = {"seqno": first, "seqno2": last, "stream": int(Stream.TOTAL)}
            self.write(trace.ACCEPT, since, **numbers, **naming_id(view_id))
        for track in growing:
            assert track.view_id is not None
            columns = naming(track.origin) | naming_id(track.view_id)
            columns |= {"seqno": track.first, "seqno2": track.last}
            if track.kind == "sent":
                self.write(trace.SEND, track.since, **columns)
            else:
                kept, track.payloads = track.payloads, []
                self._messages_kept += len(kept)
                columns |= {"kind": trace.HEADED} if track.is_headed else {}
                self.write(trace.DELIVER, track.since, kept, **columns, detail=track.detail)
        for each in ordered:
            self._messages_kept += len(each.payloads)
            columns = naming(Origin(each.sender, Stream.TOTAL)) | naming_id(each.view_id)
            columns |= {"seqno": each.first, "seqno2": each.last, "low": each.position}
            columns |= {"kind": each.kind, "detail": each.detail}
            self.write(trace.ORDER, each.since, each.payloads, **columns)

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
