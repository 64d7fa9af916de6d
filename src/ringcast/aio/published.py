"""Published: how far what each publisher sends has been delivered to this member.

A publisher is a process that may die and be started again (publisher.py), and must then know which
of its messages its group has. Each message says in a header whose it is, and its offset. A member
keeps the last offset of each stream of each publisher.

On a run of a publisher, as it is taken from the node: what is not behind the last offset this
    member has had, from the publisher before or when it was in another part of the group; it goes
    no further. The last offset rises.
On an inquiry that names a view: it is answered with all offsets once this member has taken that
    view, or a later one, and has its state. So whatever was delivered before the view is in the
    answer. Offsets that come with the inquiry count from then on, if they are higher and that is
    its last view: this member came when the publisher was there, or a batch is over.
On StateWanted: the offsets as they are then go in front of the application's state, and whoever
    takes the state takes them instead of its own, though these be higher: they are about what
    is in it. Who joins without a state has none: to it nothing was delivered.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ringcast.model import Run, Stream
from ringcast.wire.headers import PUBLISHED, split_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ringcast.aio.requests import Request
    from ringcast.events import Delivered

PUBLISHERS_MAX: Final = 256
"""Publishers that are remembered: those heard last."""

PUBLISHER_BYTES_MAX: Final = 64

TO_ONE: Final = "to"
"""The stream of what was sent to this member alone."""

GROUP_STREAMS: Final = tuple(stream.name.lower() for stream in Stream)

END: Final = 2**63
"""Behind all partitions of a batch."""

log = logging.getLogger("ringcast")


class Offset(NamedTuple):
    """Of a message among those of its publisher. On each stream they are sent in this order."""

    batch: int
    partition: int
    number: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Offset:
        """ValueError: it is none."""
        batch, partition, number = (int(digits) for digits in text.split("."))
        return cls(batch, partition, number)

    @property
    def next_batch(self) -> int:
        """The first batch that is not over here."""
        return self.batch + (self.partition == END)


def end_of(batch: int) -> Offset:
    return Offset(batch, END, 0)


def header_of(publisher: str, offset: Offset) -> str:
    """What a message says of itself."""
    return f"{offset} {publisher}"


class Published:
    """The offsets that one member knows."""

    def __init__(self, is_behind: Callable[[], bool] = lambda: False) -> None:
        """`is_behind`: this member has yet to take its state."""
        self.offsets: dict[str, dict[str, Offset]] = {}
        """By publisher, and by stream."""
        self.repeated = 0
        """Messages that this member had had."""
        self._is_behind = is_behind
        self._view = 0  # the counter of the last that was taken
        self._waiting: list[tuple[int, bytes, Request]] = []  # for which, and what comes with it

    def take(self, delivered: Delivered) -> Delivered | None:
        """What the application gets of this run, which is headed. A run is of one sender, and that
        of one publisher."""
        run = delivered.run
        stream = TO_ONE if delivered.epoch else run.stream.name.lower()
        try:
            publisher, last = _said_by(run.payloads[-1])
            if not publisher:
                return delivered
            known = self.offsets.get(publisher, {}).get(stream)
            had = 0
            if known is not None and _said_by(run.payloads[0])[1] <= known:
                had = bisect_right(run.payloads, known, key=lambda message: _said_by(message)[1])
        except ValueError:  # it is counted where it is read
            return delivered
        self._note(publisher, {stream: last})
        if not had:
            return delivered
        self.repeated += had
        if had == len(run.payloads):
            return None
        rest = Run(run.stream, run.first + had, run.payloads[had:])
        return replace(
            delivered, run=rest, position=delivered.position and delivered.position + had
        )

    def _note(self, publisher: str, offsets: Mapping[str, Offset]) -> None:
        known = self.offsets.pop(publisher, {})
        self.offsets[publisher] = known
        for stream, offset in offsets.items():
            known[stream] = max(offset, known.get(stream, offset))
        while len(self.offsets) > PUBLISHERS_MAX:
            gone = next(iter(self.offsets))
            del self.offsets[gone]
            log.warning(
                "%d publishers are remembered: %s is not one any more", PUBLISHERS_MAX, gone
            )

    def load(self, text: bytes) -> None:
        """What another member has said, in its state, of what is in that."""
        self.offsets.clear()
        for publisher, offsets in parse(text).items():
            self._note(publisher, offsets)

    def on_view(self, counter: int) -> None:
        """All that was delivered before it has been taken."""
        self._view = max(self._view, counter)
        self.settle()

    def settle(self) -> None:
        """Answer the inquiries that waited for what has happened."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for inquiry in waiting:
                self._answer(*inquiry)

    def asked(self, request: Request) -> None:
        view, _, offsets = request.payload.partition(b"\n")
        try:
            self._answer(int(view), offsets, request)
        except ValueError:
            request.refuse("an inquiry names a view")

    def _answer(self, view: int, offsets: bytes, request: Request) -> None:
        if view > self._view or self._is_behind():
            self._waiting.append((view, offsets, request))
            return
        for publisher, noted in parse(offsets).items() if view == self._view else ():
            self._note(publisher, noted)  # else they may not be about the state that it has now
        request.reply(dump(self.offsets))


def _said_by(message: bytes) -> tuple[str, Offset]:
    """Whose it is, "" if it is no publisher's, and its offset; ValueError: it cannot be read."""
    said = split_headers(message)[0].get(PUBLISHED)
    if said is None:
        return "", end_of(-1)
    offset, _, publisher = said.partition(" ")
    return publisher, Offset.parse(offset)


def dump(offsets: Mapping[str, Mapping[str, Offset]]) -> bytes:
    return "".join(
        f"{offset} {stream} {publisher}\n"
        for publisher, of_streams in offsets.items()
        for stream, offset in of_streams.items()
    ).encode()


def parse(text: bytes) -> dict[str, dict[str, Offset]]:
    """What `dump` has written. What is none of it is passed over: a peer's word raises nothing."""
    found: dict[str, dict[str, Offset]] = {}
    for line in text.decode(errors="replace").splitlines():
        offset, _, rest = line.partition(" ")
        stream, _, publisher = rest.partition(" ")
        try:
            parsed = Offset.parse(offset)
        except ValueError:
            continue
        if stream in (TO_ONE, *GROUP_STREAMS):
            found.setdefault(publisher, {})[stream] = parsed
    return found
