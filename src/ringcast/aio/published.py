"""Published: how far what each publisher sends has been delivered to this member.

A publisher is a process that may die and be started again (publisher.py), and must then know which
of its messages its group has. Each message says in a header whose it is, and its place. A member
keeps the last place of each stream of each publisher.

On a run of a publisher, as it is taken from the node: what is not behind the last place this member
    has had, from the publisher before or when it was in another part of the group; it goes no
    further. The last place rises.
On an inquiry that names a view: it is answered with all places once this member has taken that
    view, or a later one, and has its state. So whatever was delivered before the view is in the
    answer. Places that come with the inquiry count from then on, if they are higher and that is its
    last view: this member came when the publisher was there, or a batch is over.
On StateWanted: the places as they are then go in front of the application's state, and whoever
    takes the state takes them in the place of its own, though these be higher: they are about what
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


class Place(NamedTuple):
    """Of a message among those of its publisher. On each stream they are sent in this order."""

    batch: int
    partition: int
    number: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Place:
        """ValueError: it is none."""
        batch, partition, number = (int(digits) for digits in text.split("."))
        return cls(batch, partition, number)

    @property
    def next_batch(self) -> int:
        """The first batch that is not over here."""
        return self.batch + (self.partition == END)


def end_of(batch: int) -> Place:
    return Place(batch, END, 0)


def header_of(publisher: str, place: Place) -> str:
    """What a message says of itself."""
    return f"{place} {publisher}"


class Published:
    """The places that one member knows."""

    def __init__(self, is_behind: Callable[[], bool] = lambda: False) -> None:
        """`is_behind`: this member has yet to take its state."""
        self.places: dict[str, dict[str, Place]] = {}
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
            known = self.places.get(publisher, {}).get(stream)
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

    def _note(self, publisher: str, places: Mapping[str, Place]) -> None:
        known = self.places.pop(publisher, {})
        self.places[publisher] = known
        for stream, place in places.items():
            known[stream] = max(place, known.get(stream, place))
        while len(self.places) > PUBLISHERS_MAX:
            gone = next(iter(self.places))
            del self.places[gone]
            log.warning(
                "%d publishers are remembered: %s is not one any more", PUBLISHERS_MAX, gone
            )

    def load(self, text: bytes) -> None:
        """What another member has said, in its state, of what is in that."""
        self.places.clear()
        for publisher, places in parse(text).items():
            self._note(publisher, places)

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
        view, _, places = request.payload.partition(b"\n")
        try:
            self._answer(int(view), places, request)
        except ValueError:
            request.refuse("an inquiry names a view")

    def _answer(self, view: int, places: bytes, request: Request) -> None:
        if view > self._view or self._is_behind():
            self._waiting.append((view, places, request))
            return
        for publisher, noted in parse(places).items() if view == self._view else ():
            self._note(publisher, noted)  # else they may not be about the state that it has now
        request.reply(dump(self.places))


def _said_by(message: bytes) -> tuple[str, Place]:
    """Whose it is, "" if it is no publisher's, and its place; ValueError: it cannot be read."""
    said = split_headers(message)[0].get(PUBLISHED)
    if said is None:
        return "", end_of(-1)
    place, _, publisher = said.partition(" ")
    return publisher, Place.parse(place)


def dump(places: Mapping[str, Mapping[str, Place]]) -> bytes:
    return "".join(
        f"{place} {stream} {publisher}\n"
        for publisher, of_streams in places.items()
        for stream, place in of_streams.items()
    ).encode()


def parse(text: bytes) -> dict[str, dict[str, Place]]:
    """What `dump` has written. What is none of it is passed over: a peer's word raises nothing."""
    found: dict[str, dict[str, Place]] = {}
    for line in text.decode(errors="replace").splitlines():
        place, _, rest = line.partition(" ")
        stream, _, publisher = rest.partition(" ")
        try:
            parsed = Place.parse(place)
        except ValueError:
            continue
        if stream in (TO_ONE, *GROUP_STREAMS):
            found.setdefault(publisher, {})[stream] = parsed
    return found
