"""What the view change and the streams of one member say to each other.

Proposals are ordered by counter, then by proposer: of two, one is higher, and everybody agrees
which. A proposal's id is the id of the view that it makes: one id has one list of members and one
cut for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from ringcast.wire.changes import Holding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.model import Member, Origin, Stream, View, ViewId
    from ringcast.settings import Settings

OWN: Final = -1
"""In place of a seqno of a cut: each member keeps what it has of this origin."""


def order(id: ViewId) -> tuple[int, Member]:
    """What proposals and views are compared by."""
    return id.counter, id.creator


class OrderStanding(NamedTuple):
    """Of total messages: how far a member has come in the one order."""

    position: int = 0
    marks: Mapping[Member, int] = MappingProxyType({})
    """Of each origin: the highest number that is in the history."""
    has_forgotten: bool = False
    """Marks of some who may come back are not known any more."""


NOTHING_ORDERED: Final = OrderStanding()


class Snapshot(NamedTuple):
    """What a member has at the moment at which it promises: nothing that comes later counts."""

    own: Mapping[Stream, int]
    """The last seqno that it has given, by stream."""
    held: Mapping[Origin, int]
    """How far it holds each origin of its view without a gap; 0 where nothing is said."""
    order: OrderStanding = NOTHING_ORDERED
    """With all that it holds."""


class Part(NamedTuple):
    """Those members of a proposal who are in one view, and up to where each origin of that view is
    delivered in it."""

    view: ViewId
    members: tuple[Member, ...]
    cuts: Mapping[Origin, int]
    """A seqno, or OWN."""
    sources: Mapping[Origin, Member]
    """Who holds an origin up to its cut."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where each part ends its view, and where the streams of all members go on."""

    id: ViewId
    parts: tuple[Part, ...]
    starts: Mapping[Origin, int]
    """Where each member's streams go on: windows of members from other parts open here."""
    provider: Member | None = None
    """Who gives its state, as it is at the cut, to those who take it; None: nobody can."""
    takers: tuple[Member, ...] = ()
    secret: int = 0
    """Of the view: what permits to propose to its members are made of."""
    order: OrderStanding = NOTHING_ORDERED
    """Of the leading part at its cut, where there are several."""
    gone: tuple[Member, ...] = ()
    """Members of that part's view that are not in it; the same."""

    @property
    def lead(self) -> Part:
        """The leading part: whose history of total messages counts. Where a state does, that is the
        part of who gives it."""
        return self.parts[0] if self.provider is None else self.part_of(self.provider)

    def part_of(self, member: Member) -> Part:
        return next(part for part in self.parts if member in part.members)


def cut_between(before: View | None, after: View, me: Member, starts: Mapping[Origin, int]) -> Cut:
    """Of views that come from outside: whoever is in both goes on together, with what it has."""
    staying = tuple(who for who in after if who == me or (before is not None and who in before))
    mine = Part(after.id if before is None else before.id, staying, {}, {})
    others = (Part(after.id, (who,), {}, {}) for who in after if who not in staying)
    return Cut(after.id, (mine, *others), starts)


@dataclass(frozen=True, slots=True)
class Freeze:
    """To the streams: from now on give no seqno, and count nothing that comes. Answer: Frozen."""

    id: ViewId
    members: tuple[Member, ...] = ()
    """Of the proposal."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """From the streams: they are frozen for this proposal, and have this."""

    id: ViewId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Flush:
    """To the streams: get what is lacking up to the cuts of this part and keep it back. Answer:
    CutReached, when it is here."""

    id: ViewId
    part: Part


@dataclass(frozen=True, slots=True)
class CutReached:
    """From the streams: they hold everything up to the cut of this proposal."""

    id: ViewId


@dataclass(frozen=True, slots=True)
class Begin:
    """To all layers: deliver up to the cut, drop what is above it, then this view begins."""

    view: View
    cut: Cut
    settings: Settings | None = None
    """Of the group from here on; None: as before."""


class StateStanding(NamedTuple):
    """What a member has of the application's state."""

    holding: Holding = Holding.NONE
    provider: Member | None = None
    """Who is giving it the state that it lacks."""
    refused: tuple[Member, ...] = ()
    """Who could not: another is to do it, from the next cut on."""


NO_STATE: Final = StateStanding()
"""Of an application that has none."""


@dataclass(frozen=True, slots=True)
class StateChanged:
    """From the state transfer: this is how this member stands."""

    standing: StateStanding


@dataclass(frozen=True, slots=True)
class SawView:
    """From the streams: a member says something in the view with this tag, which is not ours."""

    source: Member
    tag: int
