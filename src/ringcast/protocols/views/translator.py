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
from ringcast.protocols.views.election import rank
from ringcast.protocols.views.parts import is_kept
from ringcast.protocols.views.translation import Basis

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        self._parts: dict[Member, ViewId] = {}  # as they have answered
        self._cached: dict[tuple[type, ViewId | None], Frame] = {}  # of my proposal
        self._recent = {follower.view.id: follower.view}
        self._base: ViewId | None = None  # of the proposal that was promised

    # As proposer

    def know(self, views: Iterable[View]) -> None:
        """Members that I am about to ask are in these."""
        self.views = {view.id: view for view in views}

    def offer(self, mine: Rank) -> None:
        """I propose; of this rank is the part that I am in."""
        follower, self._rank = self._follower, mine
        self._mine = Basis(follower.view, follower.starts)
        others = [view for view in self.views.values() if view.id != follower.view.id]
        self._places = {member: view for view in (*others, follower.view) for member in view}
        self._parts = {}
        self._cached.clear()

    def tell_all(self, member: Member) -> bool:
        """It does not know the view that I took it to be in. Whether that is new."""
        return self._places.pop(member, None) is not None

    def say(self, dest: Member, frame: machine.ChangeFrame) -> Frame:
        match frame:
            case machine.Propose():
                base = self._places.get(dest)
                key = machine.Propose, None if base is None else base.id
                if key not in self._cached:
                    self._cached[key] = translation.encode_propose(frame, base, mine=self._rank)
                return self._cached[key]
            case machine.State():
                proposal, starts = self._follower.proposal, self._follower.starts
                assert proposal is not None
                return translation.encode_state(frame, proposal, self._base, starts, self._is_kept)
            case Cut():
                if not self._parts:
                    self._parts = {who: part.view for part in frame.parts for who in part.members}
                view = self.views[self._parts[dest]]
                if (Cut, view.id) not in self._cached:
                    assert self._proposer.proposal is not None
                    cut = translation.encode_cut(frame, self._proposer.proposal, view, self._mine)
                    self._cached[Cut, view.id] = cut
                return self._cached[Cut, view.id]
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
