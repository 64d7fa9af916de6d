"""Agreement: the settings of the group at one member, and who cannot be in one group with it.

    who meets whom                     then
    one that looks, a group            it takes the settings of the group; if it asked for others,
                                       it is refused
    two that look                      the same: the better of them starts the group
    two groups                         the settings of the better one count in both; but if they
                                       purge otherwise, or have other streams, they stay apart

A view begins with the settings of who proposed it: that is the better part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Member, Stream
from ringcast.protocols.stream import seconds
from ringcast.settings import NAMES, PURGES, Settings

if TYPE_CHECKING:
    from ringcast.wire.changes import Hello

RECENTLY_NS = 60_000_000_000
"""How long somebody with other settings is worth mentioning: they may have been put right since."""


class Taken(NamedTuple):
    """A setting of the group in place of one that this member had."""

    name: str
    before: object
    now: object
    was_given: bool
    """This member asked for what it had. The group that it came together with has this."""


class Agreement:
    """Of one member."""

    def __init__(self, wanted: Settings) -> None:
        self.settings = wanted
        """Of the group; at first, what this member would have."""
        self.taken: list[Taken] = []
        """What this member has taken from the group, for the driver to tell."""
        self.refusal: str | None = None
        """Why the group that is there cannot be joined with what this member asked for."""
        self.has_rival = False
        """Somebody who asked for other settings looks, too, and is to start the group first."""
        self.incompatible = 0  # Hellos of those who cannot be in one group with this member
        self._last: tuple[str, int] | None = None  # why the last one cannot, and when it was

    def may_take(self, settings: Settings, *, is_looking: bool) -> bool:
        """Whether this member can be in a group with these."""
        if is_looking:
            return not self.settings.against(settings, "", "")
        return self.settings.fits(settings)

    def is_kept(self, stream: Stream) -> bool:
        """Whether a survivor holds what a departed sender has sent on this stream."""
        return stream is not Stream.FIFO or self.settings.purge.is_retained

    def take(self, settings: Settings | None) -> Settings | None:
        """Those of the view that begins; None: they are as before."""
        before = self.settings
        self.settings = settings = settings or before
        if before.is_like(settings):
            return None
        self.taken += [
            Taken(name, *values, name in before.given)
            for name, values in before.differences(settings).items()
        ]
        if before.purge is not settings.purge:
            purges = PURGES[before.purge], PURGES[settings.purge]
            self.taken.append(Taken("purge", *purges, was_given=False))
        return settings

    def is_compatible(
        self, source: Member, hello: Hello, now: int, *, is_looking: bool, is_better: bool
    ) -> bool:
        """Whether whoever says Hello could be in one group with this member. `is_better`: of the
        two parts, or of two that look, that one leads."""
        theirs = hello.settings
        if self.settings.is_like(theirs):
            return True
        who = f"{source.name} at {source.address}" if source.name else str(source.address)
        ours = "this member" if is_looking else "this group"
        if is_looking and is_better:
            reasons = self.settings.against(theirs, ours, who)
        elif is_looking or hello.coordinator is None:
            reasons = theirs.against(self.settings, who, ours)
        elif not self.settings.fits(theirs):
            reasons = theirs._replace(given=frozenset(NAMES)).against(self.settings, who, ours)[:1]
        else:
            reasons = []
        if reasons:
            self._note("; ".join(reasons), now)
            if is_looking and hello.coordinator is not None:
                self.refusal = "; ".join(reasons)
            elif is_looking and is_better:
                self.has_rival = True
        return not reasons

    def explain(self, now: int) -> list[str]:
        if self._last is None or now - self._last[1] >= RECENTLY_NS:
            return []
        why, at = self._last
        return [f"{why}; left alone, heard {seconds(now - at)} ago"]

    def _note(self, why: str, now: int) -> None:
        self.incompatible += 1
        self._last = why, now
