"""One member's side of a view change: it promises, freezes, flushes, installs.

    phase     higher Propose      Cut                Finish               Install
    OPEN      freeze → FREEZING   –                  –                    Installed again
    FREEZING  freeze → FREEZING   –                  –                    –
    FROZEN    freeze → FREEZING   flush → FLUSHING   install that first,  –
                                                     freeze → FREEZING
    FLUSHING  freeze → FREEZING   –                  –                    –
    FLUSHED   freeze → FREEZING   Flushed again      –                    install → OPEN
    OUT       –                   –                  –                    –

    A lower Propose: Refuse, whatever the phase. The same one again in FROZEN: the same State again.
    The streams' Snapshot: FREEZING → FROZEN, State to the proposer.
    The streams have all up to the cut: FLUSHING → FLUSHED, Flushed to the proposer.
    Installed a view that I was leaving: → OUT.

Rules: only what is higher than all that was promised is answered, and of proposals only the one
promised last counts. From FREEZING until a view begins no seqno is given, and nothing of the old
view counts but what a flush brings. What a flush has brought is delivered by Install, not before.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.view_change import NO_STATE, Begin, Cut, Flush, Freeze, Snapshot, order
from ringcast.protocols.views.frames import Flushable, Propose, State, Wishes
from ringcast.wire.changes import Finish, Flushed, Holding, Install, Installed, Refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.model import Member, Origin, View, ViewId

FLUSHED_MAX = 8
"""Proposals that were flushed and are listed in a State. Older ones are told by a mark."""


class Phase(Enum):
    OPEN = "open"
    FREEZING = "freezing"
    FROZEN = "frozen"
    FLUSHING = "flushing"
    FLUSHED = "flushed"
    OUT = "out"


class _Kept(NamedTuple):
    """A proposal that was flushed here, with all it takes to install it."""

    proposal: Propose
    cut: Cut


class Follower:
    def __init__(self, me: Member, view: View) -> None:
        self.me = me
        self.view = view
        self.starts: Mapping[Origin, int] = {}
        """Where the streams of its members were when it began; 0 where nothing is said."""
        self.secret = 0
        """Of that view: what permits are made of."""
        self.is_stated = False
        """Somebody could give the application's state when it began."""
        self.phase = Phase.OPEN
        self.promised: ViewId = view.id
        self.proposal: Propose | None = None
        """The one that was promised last; None: its view has begun."""
        self.standing = NO_STATE
        """What this member has of the application's state."""
        self._state: State | None = None
        self._cut: Cut | None = None
        self._flushed: list[_Kept] = []
        self._unlisted: ViewId | None = None

    @property
    def has_state(self) -> bool:
        """Whether somebody of the view has the application's state, as far as is known."""
        return self.is_stated or self.standing.holding in (Holding.HOLDS, Holding.KEEPS)

    # Frames

    def on_propose(self, source: Member, proposal: Propose, out: Wishes) -> None:
        if self.phase is Phase.OUT or source != proposal.id.creator:
            return
        if self.me not in proposal.members:
            return
        if order(proposal.id) > order(self.promised):
            self.promised = proposal.id
            self.proposal = proposal
            self._freeze(out)
        elif proposal.id != self.promised:
            out.send(source, Refuse(proposal.id, self.promised))
        elif self.phase is Phase.FROZEN:
            assert self._state is not None
            out.send(source, self._state)

    def on_finish(self, source: Member, finish: Finish, out: Wishes) -> None:
        if self.phase is not Phase.FROZEN or not self._counts(source, finish.id):
            return
        if self.view.id == finish.first:
            assert self._state is not None
            out.send(source, self._state)
            return
        kept = next((each for each in self._flushed if each.proposal.id == finish.first), None)
        if kept is not None:
            self._install(kept, out)
            self._freeze(out)

    def on_cut(self, source: Member, cut: Cut, out: Wishes) -> None:
        if not self._counts(source, cut.id):
            return
        if self.phase is Phase.FLUSHED:
            out.send(source, Flushed(cut.id))
        elif self.phase is Phase.FROZEN and self._is_mine(cut):
            self._cut = cut
            self.phase = Phase.FLUSHING
            out.streams.append(Flush(cut.id, cut.part_of(self.me)))

    def on_install(self, source: Member, install: Install, out: Wishes) -> None:
        if self.view.id == install.id and source == install.id.creator:
            out.send(source, Installed(install.id))
        elif self._counts(source, install.id) and self.phase is Phase.FLUSHED:
            self._install(self._flushed[-1], out)
            out.send(source, Installed(install.id))

    # Streams

    def on_snapshot(self, id: ViewId, snapshot: Snapshot, out: Wishes) -> None:
        """They are frozen for this proposal, and have this."""
        if self.phase is not Phase.FREEZING or id != self.promised:
            return
        self.phase = Phase.FROZEN
        listed = tuple(Flushable(kept.proposal.id, kept.proposal.members) for kept in self._flushed)
        self._state = State(
            self.promised, self.view, snapshot, listed, self._unlisted, self.standing
        )
        out.send(self.promised.creator, self._state)

    def on_flushed(self, id: ViewId, out: Wishes) -> None:
        """They hold everything up to the cut of this proposal."""
        if self.phase is not Phase.FLUSHING or id != self.promised:
            return
        assert self.proposal is not None
        assert self._cut is not None
        self.phase = Phase.FLUSHED
        self._flushed.append(_Kept(self.proposal, self._cut))
        if len(self._flushed) > FLUSHED_MAX:
            self._unlisted = self._flushed.pop(0).proposal.id
        out.send(id.creator, Flushed(id))

    # Inside

    def _counts(self, source: Member, id: ViewId) -> bool:
        return id == self.promised and source == id.creator

    def _is_mine(self, cut: Cut) -> bool:
        """Of the view that I am in now: one made of a State that I have replaced is not."""
        return cut.part_of(self.me).view == self.view.id

    def _freeze(self, out: Wishes) -> None:
        self.phase = Phase.FREEZING
        self._state = self._cut = None
        assert self.proposal is not None
        out.streams.append(Freeze(self.promised, self.proposal.members))

    def _install(self, kept: _Kept, out: Wishes) -> None:
        self._flushed.clear()
        self._unlisted = None
        self.view, self.starts = kept.proposal.view, kept.cut.starts
        self.secret = kept.cut.secret
        self.is_stated = kept.cut.provider is not None
        out.streams.append(Begin(self.view, kept.cut, kept.proposal.settings))
        if self.me in kept.proposal.leaving:
            self.phase = Phase.OUT
        elif kept.proposal.id == self.promised:
            self.phase = Phase.OPEN
            self.proposal = self._state = self._cut = None
