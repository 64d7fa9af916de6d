"""Translator: what one member's view change says to each other member, and what it is told.

As proposer: to whom a proposal goes is told it as a difference to the view that it is in, as far as
is known; who does not know that view says so, and is told all. As follower: the views are kept that
proposals may be based on: the last ones that began or were promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.view_change import Cut
from ringcast.protocols.views import frames as machine
from ringcast.protocols.views import translation
from ringcast.protocols.views.cookies import permit
from ringcast.protocols.views.election import rank
from ringcast.protocols.views.parts import is_kept
from ringcast.protocols.views.translation import Basis

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ringcast.model import Member, Stream, View, ViewId
    from ringcast.protocols.views.agreement import Agreement
    from ringcast.protocols.views.election import Rank
    from ringcast.protocols.views.follower import Follower
    from ringcast.protocols.views.proposer import Proposer
    from ringcast.wire import changes as wire
    from ringcast.wire.frames import Frame

RECENT_MAX = 8
"""Views that are kept: those who propose may be behind, or ahead."""


class Translator:
    """Of one member."""

    def __init__(self, follower: Follower, proposer: Proposer, agreement: Agreement) -> None:
        self.views: dict[ViewId, View] = {}
        """Those that are known of members of my proposal."""
        self._follower = follower
        self._proposer = proposer
        self._agreement = agreement
        self._mine = Basis(follower.view, {})  # when I proposed
        self._rank = rank(follower.me, 0, has_state=False, is_given=False)
        self._places: dict[Member, View] = {}  # who is in which of these views
        self._told_all: set[Member] = set()  # who did not know that view
        self._permits: dict[ViewId, int] = {}  # of these views
        self._parts: dict[Member, ViewId] = {}  # as they have answered
        self._cached: dict[tuple[type, ViewId | None, int], Frame] = {}  # of my proposal
        self._recent = {follower.view.id: follower.view}
        self._began = {follower.view.id: (follower.view, follower.secret)}  # of these
        self._base: ViewId | None = None  # of the proposal that was promised

    # As proposer

    def know(self, views: Iterable[View], permits: Mapping[ViewId, int]) -> None:
        """Members that I am about to ask are in these; with these permits those of other parts."""
        self.views = {view.id: view for view in views}
        self._permits = dict(permits)

    def offer(self, mine: Rank) -> None:
        """I propose; of this rank is the part that I am in."""
        follower, self._rank = self._follower, mine
        self._mine = Basis(follower.view, follower.starts)
        others = [view for view in self.views.values() if view.id != follower.view.id]
        self._places = {member: view for view in (*others, follower.view) for member in view}
        self._told_all.clear()
        self._parts = {}
        self._cached.clear()

    def tell_all(self, member: Member) -> bool:
        """It does not know the view that I took it to be in. Whether that is new."""
        is_new = member in self._places and member not in self._told_all
        self._told_all.add(member)
        return is_new

    def say(self, dest: Member, frame: machine.ChangeFrame) -> Frame:
        match frame:
            case machine.Propose():
                view = self._places.get(dest)
                base = None if dest in self._told_all else view
                permit = 0 if view is None else self._permits.get(view.id, 0)
                key = machine.Propose, None if base is None else base.id, permit
                if key not in self._cached:
                    self._cached[key] = translation.encode_propose(
                        frame, base, mine=self._rank, permit=permit
                    )
                return self._cached[key]
            case machine.State():
                proposal, starts = self._follower.proposal, self._follower.starts
                assert proposal is not None
                return translation.encode_state(frame, proposal, self._base, starts, self._is_kept)
            case Cut():
                if not self._parts:
                    self._parts = {who: part.view for part in frame.parts for who in part.members}
                view = self.views[self._parts[dest]]
                if (Cut, view.id, 0) not in self._cached:
                    assert self._proposer.proposal is not None
                    cut = translation.encode_cut(frame, self._proposer.proposal, view, self._mine)
                    self._cached[Cut, view.id, 0] = cut
                return self._cached[Cut, view.id, 0]
            case _:
                return frame

    def hear_state(self, frame: wire.State) -> machine.State | None:
        """In answer to my proposal."""
        assert self._proposer.proposal is not None
        return translation.decode_state(frame, self._proposer.proposal, self.views, self._mine)

    def note(self, view: View) -> bool:
        """A member of my proposal is in this view. Whether that may be."""
        return self.views.setdefault(view.id, view) == view

    # As follower

    def hear_propose(self, frame: wire.Propose) -> machine.Propose | None:
        """None: I do not know the view that it is based on."""
        base = None if frame.base is None else self._recent.get(frame.base)
        return translation.decode_propose(frame, base)

    def was_with(self, member: Member) -> bool:
        """Whether it was in a view with me lately."""
        return any(member in view for view, _ in self._began.values())

    def is_permitted(self, source: Member, frame: wire.Propose) -> bool:
        """Whether it was in a view with me lately, or who coordinated one of mine lets it."""
        permits = (permit(secret, source) for _, secret in self._began.values())
        return self.was_with(source) or frame.permit in permits

    def begin(self, view: View, secret: int) -> None:
        """This view has begun."""
        self.keep(view)
        self._began[view.id] = view, secret
        while len(self._began) > RECENT_MAX:
            del self._began[next(iter(self._began))]

    def promise(self, proposal: machine.Propose, base: ViewId | None) -> None:
        self._base = base
        self.keep(proposal.view)

    def hear_cut(self, frame: wire.Cut) -> Cut | None:
        """Of the proposal that was promised."""
        proposal, mine = self._follower.proposal, Basis(self._follower.view, self._follower.starts)
        if proposal is None or proposal.id != frame.id:
            return None
        streams = self._agreement.settings.streams
        return translation.decode_cut(frame, proposal, mine, streams)

    def keep(self, view: View) -> None:
        """Proposals may be based on this one."""
        self._recent.pop(view.id, None)
        self._recent[view.id] = view
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]

    def _is_kept(self, stream: Stream) -> bool:
        return is_kept(self._agreement.settings.purge, stream)
