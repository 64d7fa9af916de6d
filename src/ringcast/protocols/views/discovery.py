"""Discovery: where members of the group may be.

Addresses come from member files, a list, a shared directory, and from who is heard. Some lead
nowhere; who is really there shows by answering. Candidates are asked often at first, and less and
less often: a group keeps looking for other parts of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.model import Address, Member

ASK_START_NS = 40_000_000
ASK_MAX_NS = 1_000_000_000
"""How often candidates are asked: at first, and at the least."""

CANDIDATES_MAX = 4096
LEARNED_MAX = 1024
"""Addresses in all; and of those, how many are known from others alone."""

STRANGER_NS = 60_000_000_000
MEMBER_NS = 3600_000_000_000
"""How long somebody is asked that was heard, or was in the view, and is silent since. Addresses
that this member was given are asked for ever."""


class Discovery:
    """The candidates of one member."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self._learned = 0
        self.candidates: dict[Address, int | None] = {}
        """Until when each is asked; None: for ever."""
        self.interval = ASK_START_NS
        """Until candidates are asked again."""

    def add(self, addresses: Iterable[Address]) -> list[Address]:
        """What this member is given; those that are new."""
        addresses = [each for each in dict.fromkeys(addresses) if each != self._me.address]
        fresh = [address for address in addresses if address not in self.candidates]
        fresh = fresh[: CANDIDATES_MAX - len(self.candidates)]
        known = [address for address in addresses if address in self.candidates]
        self.candidates.update(dict.fromkeys((*known, *fresh)))
        return fresh

    def learn(self, addresses: Iterable[Address], now: int, keep: int) -> None:
        """Somebody was there: it is asked for so long."""
        for address in addresses:
            until = self.candidates.get(address, 0)
            if until is None or address == self._me.address:
                continue
            if address in self.candidates or self._learned < LEARNED_MAX:
                self._learned += address not in self.candidates
                self.candidates[address] = max(until, now + keep)

    def forget_old(self, now: int) -> None:
        """Those that have been silent for too long."""
        self.candidates = {
            address: until
            for address, until in self.candidates.items()
            if until is None or until > now
        }
        self._learned = sum(until is not None for until in self.candidates.values())

    def slow_down(self) -> None:
        """Ask less often from now on."""
        self.interval = min(2 * self.interval, ASK_MAX_NS)
