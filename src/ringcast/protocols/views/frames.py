"""What members say to each other in a view change, and what a change asks of its member's streams.

Proposals are ordered by counter, then by proposer: of two, one is higher, and everybody agrees
which. A proposal's id is the id of the view that it makes: one id has one list of members and one
cut for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ringcast.model import View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.model import Member, Origin, Stream, ViewId

OWN: Final = -1
"""In place of a seqno of a cut: each member keeps what it has of this origin."""


def order(id: ViewId) -> tuple[int, Member]:
    """What proposals and views are compared by."""
    return id.counter, id.creator


class Snapshot(NamedTuple):
    """What a member has at the moment at which it promises: nothing that comes later counts."""

    own: Mapping[Stream, int]
    """The last seqno that it has given, by stream."""
    held: Mapping[Origin, int]
    """How far it holds each origin of its view without a gap; 0 where nothing is said."""


class Flushable(NamedTuple):
    """A proposal whose cut a member holds: somebody may have installed it."""

    id: ViewId
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Let these members be the next view, in this order, without those who are leaving."""

    id: ViewId
    members: tuple[Member, ...]
    leaving: frozenset[Member] = frozenset()

    @property
    def view(self) -> View:
        return View(self.id, tuple(m for m in self.members if m not in self.leaving))


@dataclass(frozen=True, slots=True)
class State:
    """I promise this proposal: the view that I am in, and what I have."""

    id: ViewId
    view: View
    snapshot: Snapshot
    flushed: tuple[Flushable, ...] = ()
    """Since that view, in the order of their ids."""
    unlisted: ViewId | None = None
    """Those up to this one are not listed any more; each may be flushed."""

    def may_have_flushed(self, id: ViewId) -> bool:
        if order(self.view.id) >= order(id):
            return True
        if self.unlisted is not None and order(id) <= order(self.unlisted):
            return True
        return any(each.id == id for each in self.flushed)


@dataclass(frozen=True, slots=True)
class Refuse:
    """I have promised a higher one."""

    id: ViewId
    promised: ViewId


@dataclass(frozen=True, slots=True)
class Finish:
    """Install that one first, which another member has installed, and say State again."""

    id: ViewId
    first: ViewId


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
    """Get what you lack up to the cut of your part."""

    id: ViewId
    parts: tuple[Part, ...]
    starts: Mapping[Origin, int]
    """Where each member's streams go on: windows of members from other parts open here."""

    def part_of(self, member: Member) -> Part:
        return next(part for part in self.parts if member in part.members)


@dataclass(frozen=True, slots=True)
class Flushed:
    """I hold everything up to the cut."""

    id: ViewId


@dataclass(frozen=True, slots=True)
class Install:
    """All have flushed: the view begins."""

    id: ViewId


@dataclass(frozen=True, slots=True)
class Installed:
    """It has begun here."""

    id: ViewId


ChangeFrame: TypeAlias = Propose | State | Refuse | Finish | Cut | Flushed | Install | Installed


# For the streams of this member


@dataclass(frozen=True, slots=True)
class Freeze:
    """From now on give no seqno, and count nothing that comes; answer with a Snapshot."""

    id: ViewId


@dataclass(frozen=True, slots=True)
class Flush:
    """Get what is lacking up to the cuts of this part and keep it back; say so when it is here."""

    id: ViewId
    part: Part


@dataclass(frozen=True, slots=True)
class Begin:
    """Deliver up to the cut, drop what is above it, then this view begins."""

    view: View
    cut: Cut


Wish: TypeAlias = Freeze | Flush | Begin


@dataclass(slots=True)
class Wishes:
    """What a change wants done, in this order."""

    frames: list[tuple[Member, ChangeFrame]] = field(default_factory=list)
    streams: list[Wish] = field(default_factory=list)

    def send(self, dest: Member, frame: ChangeFrame) -> None:
        self.frames.append((dest, frame))
