"""Discovery: is my group there, and whom do I ask for admission? If it is not, who starts it?

Where to look is an input: addresses come from member files, a list, a shared directory. Some lead
nowhere; who is really there shows by answering.

On start, and at growing intervals: ask every candidate that has not answered. On DiscoverReply with
a coordinator: that is whom to ask. Answers of a few moments more are waited for:
    of several groups the largest is the one to join.
On DiscoverReply of a group that purges otherwise (Purge): it cannot be joined. If no other is heard
of in
    those moments, this member gives up: two groups of one name would never come together.
On DiscoverReply without one, and on Discover: a rival that is looking too.
After `discovery_wait`: nobody is there, so start the group; but of several rivals only the lowest
    (address, incarnation) does. The others ask and wait once more: by then it has started, or is
    gone. So does whoever hears that its predecessor at the same address is still believed in. A
    rival that would have the group purge otherwise is a rival all the same: if it starts the group,
    we give up then; if it gives up itself, or is gone, it was not worth giving up for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Purge
from ringcast.wire.frames import Discover

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.core.effects import Effects
    from ringcast.model import Address, Member

ASK_START_NS = 40_000_000
ASK_MAX_NS = 1_000_000_000
"""How often candidates are asked: at first, and at the least."""

GATHER_NS = 10_000_000
"""How long further answers are waited for after the first."""

CANDIDATES_MAX = 4096
ANSWERS_MAX = 256
"""Rivals and offers kept from one search. Any that is left out will answer again."""


PURGES = {
    Purge.ACKS: "acks",
    Purge.STABILITY: "stability",
    Purge.RETAINED: "stability with retained messages",
}
"""In words."""


def rank(coordinator: Member, size: int) -> tuple[int, Address, int]:
    """Groups in order, the best first: the largest, then the lowest coordinator."""
    return -size, coordinator.address, coordinator.incarnation


class IncompatiblePeer(NamedTuple):
    """Somebody who purges otherwise than this member: they cannot be in one group."""

    who: Member
    purge: Purge

    def against(self, ours: Purge) -> str:
        """What does not fit, and what to do about it."""
        name, address = self.who.name, self.who.address
        return (
            f"{f'{name} at {address}' if name else address} purges by {PURGES[self.purge]}, and "
            f"this member by {PURGES[ours]}: give all members the same `stability`"
        )


class Discovery:
    """One search. `candidates` outlive it: a group keeps looking, slowly."""

    def __init__(self, me: Member, purge: Purge = Purge.ACKS) -> None:
        self._me = me
        self._purge = purge
        self.candidates: dict[Address, None] = {}
        self.rivals: set[Member] = set()
        """Who else is looking, as heard since the last decision."""
        self.offers: dict[Member, int] = {}
        """Coordinators that were named, and the size of their groups."""
        self.incompatible_peer: IncompatiblePeer | None = None
        """Somebody in a group that this member cannot join."""
        self.is_expected_back = False
        """Somebody takes my predecessor at this address for the coordinator: they will notice."""
        self.interval = ASK_START_NS
        """Until candidates are requested again."""

    def restart(self) -> None:
        self.rivals.clear()
        self.offers.clear()
        self.incompatible_peer = None
        self.is_expected_back = False
        self.interval = ASK_START_NS

    def add(self, addresses: Iterable[Address]) -> list[Address]:
        """Those that are new."""
        fresh = [address for address in addresses if address not in self.candidates]
        fresh = [address for address in dict.fromkeys(fresh) if address != self._me.address]
        fresh = fresh[: CANDIDATES_MAX - len(self.candidates)]
        self.candidates.update(dict.fromkeys(fresh))
        return fresh

    def note_rival(self, rival: Member) -> None:
        if len(self.rivals) < ANSWERS_MAX:
            self.rivals.add(rival)

    @property
    def has_heard_of_a_group(self) -> bool:
        return bool(self.offers) or self.incompatible_peer is not None

    def note_offer(self, coordinator: Member, size: int) -> None:
        if len(self.offers) < ANSWERS_MAX:
            self.offers[coordinator] = size

    def ask(self, addresses: Iterable[Address], out: Effects) -> None:
        for address in addresses:
            out.datagram(address, Discover(self._purge))

    def ask_again(self, known: Iterable[Member], out: Effects) -> None:
        """Ask whoever is not known to be with us, and less often from now on."""
        with_us = {member.address for member in known}
        self.ask((address for address in self.candidates if address not in with_us), out)
        self.slow_down()

    def slow_down(self) -> None:
        """Ask less often from now on."""
        self.interval = min(2 * self.interval, ASK_MAX_NS)

    def may_start(self) -> bool:
        """Time is up: whether it is this member that starts the group."""
        is_lowest = all(rank(self._me, 0) < rank(rival, 0) for rival in self.rivals)
        may_start = is_lowest and not self.is_expected_back
        self.rivals.clear()
        self.is_expected_back = False
        return may_start

    def best_offer(self) -> Member | None:
        """Whom to ask for admission, if anybody is there."""
        return min(self.offers, key=lambda who: rank(who, self.offers[who]), default=None)
