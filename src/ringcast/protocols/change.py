"""Change: a view that this member has made, until everybody in it has it.

Old members are told first, and all must have acknowledged before joiners are let in: from then on
nobody purges anything without the joiners (the freeze), and a digest is safe to begin at. Where
groups have come together nobody is let in: all are old members, of one group or another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcast.model import Digest, Origin
from ringcast.protocols.admission import HALVES_AT_ONCE
from ringcast.wire.frames import Half, Merged, ViewIs, Welcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ringcast.core.effects import Effects
    from ringcast.model import Member, Stream, View
    from ringcast.wire.frames import HalfWanted

REPEAT_START_NS = 40_000_000
REPEAT_MAX_NS = 500_000_000
"""How soon what was not answered is repeated: at first, and in the long run."""


def announcement(view: View, parts: tuple[View, ...]) -> ViewIs | Merged:
    """The frame that tells of a view."""
    return Merged(view, parts) if parts else ViewIs(view)


@dataclass(slots=True)
class Change:
    """Who does not have it yet, and what they are told."""

    view: View
    parts: tuple[View, ...]
    """The groups that come together in it; or none."""
    awaiting: set[Member]
    """Old members that have not acknowledged it."""
    joiners: dict[Member, None]
    """New ones that have not."""
    since: int
    welcome: Welcome | None = None
    halves: Mapping[Origin, tuple[bytes, ...] | None] = field(default_factory=dict)
    """What was taken of messages that are not whole: for the joiners to fetch."""
    fetched: dict[Member, tuple[int, Stream, int]] = field(default_factory=dict)
    """How far each joiner has come with that."""
    interval: int = field(default=REPEAT_START_NS)

    def tell(self, members: Iterable[Member], out: Effects) -> None:
        frame = announcement(self.view, self.parts)
        for member in members:
            out.datagram(member, frame)

    def repeat(self, out: Effects) -> None:
        """Tell whoever has not answered, and less often from now on."""
        self.tell((who for who in self.view if who in self.awaiting), out)
        self.let_in(out)
        self.interval = min(2 * self.interval, REPEAT_MAX_NS)

    def acked(self, member: Member) -> None:
        self.awaiting.discard(member)
        if self.welcome is not None:
            self.joiners.pop(member, None)

    def open(self, digest: Digest, streams: Iterable[Stream]) -> None:
        """Everybody holds on to what the joiners will need: this is where they begin."""
        origins = [Origin(member, stream) for member in self.view for stream in streams]
        self.halves = {
            origin: parts for origin, parts in digest.partials.items() if origin in origins
        }
        self.welcome = Welcome(
            self.view,
            Digest({origin: digest.entries.get(origin, 0) for origin in origins}),
            {
                origin: None if parts is None else len(parts)
                for origin, parts in self.halves.items()
            },
        )

    def let_in(self, out: Effects) -> None:
        if self.welcome is not None:
            for joiner in self.joiners:
                out.datagram(joiner, self.welcome)

    def knows(self, joiner: Member, wanted: HalfWanted) -> bool:
        """Whether this is about this view."""
        return (
            joiner in self.joiners
            and self.view.counter == wanted.counter
            and wanted.place < len(self.view)
        )

    def fetch(self, joiner: Member, wanted: HalfWanted, out: Effects) -> bool:
        """Give a joiner what it asks for; True: it gets on."""
        place = (wanted.place, wanted.stream, wanted.first)
        gets_on = joiner not in self.fetched or place > self.fetched[joiner]
        if gets_on:
            self.fetched[joiner] = place
        origin = Origin(self.view.members[wanted.place], wanted.stream)
        parts = self.halves.get(origin) or ()
        stop = min(wanted.first + HALVES_AT_ONCE, len(parts))
        for index in range(wanted.first, stop):
            half = Half(
                wanted.counter, wanted.place, wanted.stream, index, parts[index], index == stop - 1
            )
            out.datagram(joiner, half)
        return gets_on

    def check_invariants(self) -> None:
        assert self.awaiting or self.joiners
        assert not self.awaiting & set(self.joiners)
