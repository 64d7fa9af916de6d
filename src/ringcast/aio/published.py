"""Published: how far what each publisher sends has been delivered to this member.

A publisher is a process that may die and be started again (publisher.py), and must then know which
of its messages its group has. They are uniform, one after the other, and each says in a header
whose it is, and its place. A member keeps one place for each publisher, the last; it filters
nothing.

On a message of a publisher, as it is taken from the node: its place, if it is higher, counts.
On an inquiry that names a view: it is answered with all places once this member has taken that
    view, or a later one. So whatever was delivered before the view is in the answer.
On StateWanted: the places as they are then go in front of the application's state, and whoever
    takes the state takes them; they are about what is in it. Who joins without a state has none:
    to it nothing was delivered.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from ringcast.wire.headers import PUBLISHED, split_headers

if TYPE_CHECKING:
    from ringcast.aio.requests import Request

PUBLISHERS_MAX: Final = 256
"""Publishers that are remembered: those heard last."""

PUBLISHER_BYTES_MAX: Final = 64

log = logging.getLogger("ringcast")


class Place(NamedTuple):
    """Of a message among those of its publisher. They are sent in this order."""

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


NOWHERE: Final = Place(-1, 0, 0)


def header_of(publisher: str, place: Place) -> str:
    """What a message says of itself."""
    return f"{place} {publisher}"


class Published:
    """The places that one member knows."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self._view = 0  # the counter of the last that was taken
        self._waiting: list[tuple[int, Request]] = []  # for which

    def delivered(self, message: bytes) -> None:
        """This is the last of a run. A run is of one sender, and that of one publisher."""
        try:
            said = split_headers(message)[0].get(PUBLISHED)
            if said is not None:
                place, _, publisher = said.partition(" ")
                self._note(publisher, Place.parse(place))
        except ValueError:
            pass  # it is counted where it is read

    def _note(self, publisher: str, place: Place) -> None:
        place = max(place, self.places.pop(publisher, NOWHERE))
        self.places[publisher] = place
        while len(self.places) > PUBLISHERS_MAX:
            gone = next(iter(self.places))
            del self.places[gone]
            log.warning(
                "%d publishers are remembered: %s is not one any more", PUBLISHERS_MAX, gone
            )

    def dump(self) -> bytes:
        return "".join(f"{header_of(*item)}\n" for item in self.places.items()).encode()

    def load(self, text: bytes) -> None:
        """What another member has said, in its state."""
        for publisher, place in parse(text).items():
            self._note(publisher, place)

    def on_view(self, counter: int) -> None:
        """All that was delivered before it has been taken."""
        self._view = max(self._view, counter)
        waiting, self._waiting = self._waiting, []
        for view, request in waiting:
            self._answer(view, request)

    def asked(self, request: Request) -> None:
        try:
            view = int(request.payload)
        except ValueError:
            request.refuse("an inquiry names a view")
            return
        self._answer(view, request)

    def _answer(self, view: int, request: Request) -> None:
        if view <= self._view:
            request.reply(self.dump())
        else:
            self._waiting.append((view, request))


def parse(text: bytes) -> dict[str, Place]:
    """What `dump` has written. What is none of it is passed over: a peer's word raises nothing."""
    found = {}
    for line in text.decode(errors="replace").splitlines():
        place, _, publisher = line.partition(" ")
        try:
            found[publisher] = Place.parse(place)
        except ValueError:
            continue
    return found
