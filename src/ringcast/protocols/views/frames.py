"""What the members of a proposal say to each other, which of its two sides a member's frame is for,
and what a change asks for.

On the wire most of it names places in lists: see `translation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.core.view_change import NO_STATE, Begin, Cut, Flush, Freeze, order
from ringcast.model import Member, View, ViewId
from ringcast.wire.changes import Finish, Flushed, Install, Installed, Refuse

if TYPE_CHECKING:
    from ringcast.core.view_change import Snapshot, StateStanding
    from ringcast.protocols.views.follower import Follower
    from ringcast.protocols.views.proposer import Proposer
    from ringcast.settings import Settings


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
    settings: Settings | None = None
    """Of that view; None: as before."""

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
    standing: StateStanding = NO_STATE

    def may_have_flushed(self, id: ViewId) -> bool:
        if order(self.view.id) >= order(id):
            return True
        if self.unlisted is not None and order(id) <= order(self.unlisted):
            return True
        return any(each.id == id for each in self.flushed)


ChangeFrame: TypeAlias = Propose | State | Refuse | Finish | Cut | Flushed | Install | Installed
Wish: TypeAlias = Freeze | Flush | Begin


@dataclass(slots=True)
class Wishes:
    """What a change wants done, in this order."""

    frames: list[tuple[Member, ChangeFrame]] = field(default_factory=list)
    streams: list[Wish] = field(default_factory=list)

    def send(self, dest: Member, frame: ChangeFrame) -> None:
        self.frames.append((dest, frame))


def receive(
    follower: Follower, proposer: Proposer, source: Member, frame: ChangeFrame, out: Wishes
) -> None:
    match frame:
        case Propose():
            follower.on_propose(source, frame, out)
        case State():
            proposer.on_state(source, frame, out)
        case Refuse():
            proposer.on_refuse(frame)
        case Finish():
            follower.on_finish(source, frame, out)
        case Cut():
            follower.on_cut(source, frame, out)
        case Flushed():
            proposer.on_flushed(source, frame, out)
        case Install():
            follower.on_install(source, frame, out)
        case Installed():
            proposer.on_installed(source, frame)
