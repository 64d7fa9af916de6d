"""Admission: a joiner has its Welcome and fetches what it needs before it can begin.

Where a window opens in the middle of a large message, the fragments before that place have been
taken by everybody and are kept by nobody but whoever sent the Welcome. They are asked for, a few
at a time, in order; those that overtake others wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcast.model import Digest, Origin

if TYPE_CHECKING:
    from ringcast.wire.frames import Half, Welcome

HALVES_AT_ONCE = 16
"""Fragments sent for one request."""


@dataclass(slots=True)
class Admission:
    """A Welcome of which not all has come yet."""

    welcome: Welcome
    halves: dict[Origin, list[bytes]] = field(default_factory=dict)
    early: dict[int, Half] = field(default_factory=dict)
    """Fragments that have overtaken the one that is wanted, by index."""

    def wanted(self) -> tuple[Origin, int] | None:
        """The first fragment that is missing, if any is."""
        for origin, count in self.welcome.halves.items():
            received = len(self.halves.get(origin, ()))
            if count is not None and received < count:
                return origin, received
        return None

    def add(self, half: Half) -> bool:
        """Whether this completes what was asked for."""
        wanted = self.wanted()
        view = self.welcome.view
        if wanted is None or half.counter != view.counter or half.place >= len(view):
            return False
        origin, first = wanted
        count = self.welcome.halves[origin] or 0
        if origin != Origin(view.members[half.place], half.stream):
            return False
        if not first <= half.index < min(first + HALVES_AT_ONCE, count):
            return False
        self.early[half.index] = half
        received = self.halves.setdefault(origin, [])
        while len(received) in self.early:
            half = self.early.pop(len(received))
            received.append(half.payload)
        if len(received) > first and half.is_last:
            self.early.clear()
            return True
        return False

    def digest(self) -> Digest:
        """Where windows open, and what came before."""
        partials = {
            origin: None if count is None else tuple(self.halves[origin])
            for origin, count in self.welcome.halves.items()
        }
        return Digest(self.welcome.digest.entries, partials)
