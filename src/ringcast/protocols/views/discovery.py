"""Who else is there: where members of the group may be, who looks for it, and other parts of it.

Addresses come from member files, a list, a shared directory, and from who is heard. Some lead
nowhere; who is really there shows by answering. Candidates are asked often at first, and less and
less often: a group keeps looking for other parts of itself.

Everybody says Hello to addresses where members may be: often while it looks for the group, then
now and again if it coordinates. Who is asked answers, and names its coordinator. Coordinators so
hear of each other. Of two parts the better leads (election.py), and its settings are those of all.
The lesser tells the better who is in it; that one gathers for a moment, so that many come in one
change, and proposes a view of all.

After a loss no part is met for a while: a second, and twice as long each time if parts had come
together since, up to 16 seconds; in quiet times that is forgotten. So a link that comes and goes
makes and breaks views less and less often. Who looks for the group is not put off by that, nor does
its coming in count: it was in no view that could break. Nor does a change that nobody needs follow
at once on another: after one that blocked senders for so long, nine times as long passes, 50 ms at
the least and nine seconds at the most. That counts for a part, too, that was asked and did not
answer: who says Hello and nothing else blocks senders no more than others do. Whoever looks and
hears of a group waits for it, and begins none of its own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Address, Member, View
from ringcast.protocols.stream import seconds
from ringcast.protocols.views.election import Rank, rank
from ringcast.protocols.views.timing import PATIENCE_NS, BackOff
from ringcast.wire.limits import VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.wire.changes import Hello

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
        """Until candidates are asked once more."""

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
            each: until for each, until in self.candidates.items() if until is None or until > now
        }
        self._learned = sum(until is not None for until in self.candidates.values())

    def slow_down(self) -> None:
        """Ask less often from now on."""
        self.interval = min(2 * self.interval, ASK_MAX_NS)


GATHER_NS = 10_000_000
"""How long others are waited for, once somebody is there to be met."""

START_NS = 300_000_000
"""For so long who looks leaves it to a better one, though that has not shown yet that it hears."""

FRESH_NS = 1_500_000_000
"""How long a part may be counted on after it has said who is in it."""

PAUSE_MIN_NS = 50_000_000
PAUSE_SHARE = 9
PAUSE_MAX_NS = 9_000_000_000
"""How long no change is made that nobody needs: so much, and so many times as long as senders were
blocked; but if that took longer than any change does, it was this member that slept."""

SPARE_NS = 30_000_000_000
"""For how long nobody comes in, at most, while a large message starts over again and again."""

YIELD_NS = 500_000_000
"""How long whoever has told a better part of itself leaves it to that one to make one view."""

GREET_NS = 500_000_000
"""How often somebody who is met makes one say Hello to all: who else is there may come along."""

PARTS_MAX = VIEW_MEMBERS_MAX

HELD_MAX = 64
"""Changes of which it is known how long they blocked senders."""


class Met(NamedTuple):
    view: View
    at: int
    is_looking: bool
    """For the group: it has been in no view with others."""
    permit: int
    """To propose to its members."""


def rank_of(hello: Hello, source: Member) -> Rank:
    """Of the part that its sender is in."""
    size = hello.size if hello.coordinator is not None else 0
    is_given = bool(hello.settings.given)
    return rank(hello.coordinator or source, size, has_state=hello.has_state, is_given=is_given)


class Meeting:
    """What one coordinator knows of others."""

    def __init__(self) -> None:
        self.parts: dict[Member, Met] = {}
        """By their coordinators."""
        self.invited: list[Member] = []
        """Whom the last proposal was to let in."""
        self.losses = BackOff()
        self.started_at = 0
        """When this member began to look for its group."""
        self.held: deque[int] = deque(maxlen=HELD_MAX)
        """For how long the last changes blocked senders."""
        self.group_at = -FRESH_NS
        """When somebody was heard who is in a view that this member could come into."""
        self.answered_at = -FRESH_NS
        """When somebody gave this member a cookie: it hears this one, and has not said yet in which
        view it is."""
        self._spared: dict[Member, int] = {}  # until when nobody comes in for the sake of each
        self._are_looking = False  # all who come into the view that this member makes
        self._pause_until = 0
        self._has_failed = False  # parts were asked and did not come in
        self._greeted_at = -GREET_NS

    def note(self, source: Member, hello: Hello, now: int) -> bool:
        """Whether it is a part that could come in."""
        if source not in hello.members or hello.view_id is None:
            return False
        for other in [who for who in self.parts if who.address == source.address]:
            del self.parts[other]  # an address is one member's
        if len(self.fresh(now)) >= PARTS_MAX:
            return False
        view, is_looking = View(hello.view_id, hello.members), hello.coordinator is None
        self.parts[source] = Met(view, now, is_looking, hello.permit)
        return True

    def has_group(self, now: int) -> bool:
        """Whether there is a group to come into: then nobody needs to begin one."""
        return now - self.group_at < FRESH_NS

    def is_answered(self, now: int) -> bool:
        """Whether somebody is about to say in which view it is."""
        return now - self.answered_at < PATIENCE_NS

    def fresh(self, now: int) -> dict[Member, Met]:
        """Parts that can be counted on; the others are forgotten."""
        horizon = now - FRESH_NS
        self.parts = {who: met for who, met in self.parts.items() if met.at > horizon}
        return self.parts

    def fail(self, now: int) -> None:
        """Parts that were asked do not answer: the view that comes is without them."""
        self.losses.lose(now)
        self._has_failed = True

    def changed(self, view: View, held_up: int, now: int, *, is_merge: bool) -> None:
        """A view has begun, for which senders were blocked so long."""
        if held_up:
            self.held.append(held_up)
        is_voluntary, self._has_failed = is_merge or self._has_failed, False
        pause = PAUSE_SHARE * held_up if is_voluntary else 0  # what was needed does not count
        self._pause_until = now + min(max(PAUSE_MIN_NS, pause), PAUSE_MAX_NS)
        self.parts = {
            who: met for who, met in self.parts.items() if not set(view).intersection(met.view)
        }
        self._spared = {who: until for who, until in self._spared.items() if who in view}
        if is_merge and not self._are_looking:
            self.losses.merge()
        self._are_looking = False

    def spare(self, member: Member, now: int, *, is_through: bool) -> None:
        """A large message of this member starts over whenever somebody comes in, or is through."""
        if is_through:
            self._spared.pop(member, None)
        else:
            self._spared[member] = now + SPARE_NS

    def give_way(self, now: int) -> None:
        """A better part knows of mine."""
        self._pause_until = max(self._pause_until, now + YIELD_NS)

    def has_just_started(self, now: int) -> bool:
        """Others may be starting, too, and one that was not met yet may be to lead."""
        return now - self.started_at < START_NS

    def may_greet(self, now: int) -> bool:
        """Whether others are to be asked now, so that they come in by the same change."""
        if now < self._greeted_at + GREET_NS:
            return False
        self._greeted_at = now
        return True

    def not_before(self, now: int) -> int:
        """When somebody may come in again; `now` or earlier: they may."""
        is_any_looking = any(met.is_looking for met in self.fresh(now).values())
        waits = 0 if is_any_looking else self.losses.waits(now)
        return max(self._pause_until, now + waits, *self._spared.values())

    def explain(self, now: int) -> list[str]:
        wait, parts = self.not_before(now) - now, self.fresh(now)
        names = ", ".join(map(str, parts))
        why = f"{names} would come in; not for {seconds(wait)}, to give senders time"
        return [why] if parts and wait > 0 else []

    def take(self, mine: Iterable[Member], room: int, now: int) -> Iterator[Met]:
        """Parts that can come in, apart from mine and from each other: nobody, and no address,
        twice."""
        taken = set(mine)
        self.invited.clear()
        addresses = {member.address for member in taken}
        self._are_looking = True
        for met in self.fresh(now).values():
            view = met.view
            places = {member.address for member in view}
            may_come = met.is_looking or not self.losses.waits(now)
            has_room = len(view) <= room - len(taken)
            if may_come and has_room and addresses.isdisjoint(places):
                taken.update(view)
                self.invited += view
                addresses |= places
                self._are_looking &= met.is_looking
                yield met
        self.parts.clear()
