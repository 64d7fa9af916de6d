"""The side of whoever makes a view: it collects States, has views completed, cuts, and installs.

    phase     what comes                         then
    COLLECT   State of the last one awaited      somebody is behind: Finish → FINISH; else Cut → CUT
    FINISH    State of the last one awaited      the same
    CUT       Flushed of the last one awaited    Install → TELL
    TELL      Installed of the last one awaited  → IDLE
    any       Refuse of this proposal            → IDLE; the next proposal goes above what it names
    any       its own member promises another    → IDLE
    any       the repeat timer                   what the phase says, again, to those awaited

A view installs only when all members of the proposal have flushed: one that has not may go another
way, and would lack what the others deliver.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from ringcast.core.view_change import Cut, order
from ringcast.protocols.views.parts import make_cut, to_finish
from ringcast.wire.changes import Finish, Flushed, Install, Installed, Refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Member, Stream, ViewId
    from ringcast.protocols.views.frames import ChangeFrame, Propose, State, Wishes


class Step(Enum):
    IDLE = "idle"
    COLLECT = "collect"
    FINISH = "finish"
    CUT = "cut"
    TELL = "tell"


class Proposer:
    def __init__(
        self, is_kept: Callable[[Stream], bool], secret_of: Callable[[ViewId], int] = lambda _: 0
    ) -> None:
        """`secret_of` says what permits for a view are made of."""
        self.step = Step.IDLE
        self.proposal: Propose | None = None
        self.awaited: dict[Member, ChangeFrame] = {}
        """Who has not answered, and what it was asked."""
        self.refused_for: ViewId | None = None
        """The highest proposal that somebody had promised instead."""
        self._states: dict[Member, State] = {}
        self._is_kept = is_kept
        self._secret_of = secret_of

    def propose(self, proposal: Propose, out: Wishes) -> None:
        self.proposal = proposal
        self._states = {}
        self._ask(Step.COLLECT, dict.fromkeys(proposal.members, proposal), out)

    def stop(self) -> None:
        """Its own member has promised another one, or it is over."""
        self.step = Step.IDLE
        self.proposal = None
        self.awaited = {}
        self._states = {}

    def repeat(self, out: Wishes) -> None:
        """To those who have not answered, once more."""
        for member, frame in self.awaited.items():
            out.send(member, frame)

    def on_state(self, source: Member, state: State, out: Wishes) -> None:
        if self.step not in (Step.COLLECT, Step.FINISH) or not self._is_of(state.id):
            return
        if source not in self.awaited:
            return
        asked = self.awaited[source]
        if isinstance(asked, Finish) and state.view.id != asked.first:
            return  # a late copy of what it said before
        self._states[source] = state
        del self.awaited[source]
        if not self.awaited:
            self._conclude(out)

    def on_refuse(self, refuse: Refuse) -> None:
        promised = refuse.promised
        if self._is_of(refuse.id) and promised is not None:
            self.refused_for = max(self.refused_for or promised, promised, key=order)
            self.stop()

    def on_flushed(self, source: Member, flushed: Flushed, out: Wishes) -> None:
        if self.step is Step.CUT and self._is_of(flushed.id):
            self.awaited.pop(source, None)
            if self._all_have_flushed():
                self._tell(out)

    def on_installed(self, source: Member, installed: Installed) -> None:
        if self.step is Step.TELL and self._is_of(installed.id):
            self.awaited.pop(source, None)
            if not self.awaited:
                self.stop()

    # Inside

    def _is_of(self, id: ViewId) -> bool:
        return self.proposal is not None and self.proposal.id == id

    def _conclude(self, out: Wishes) -> None:
        assert self.proposal is not None
        behind = self._behind()
        if behind:
            self._ask(
                Step.FINISH, {m: Finish(self.proposal.id, view) for m, view in behind.items()}, out
            )
        else:
            self._ask(Step.CUT, dict.fromkeys(self.proposal.members, self._make_cut()), out)

    def _behind(self) -> dict[Member, ViewId]:
        return to_finish(self._states)

    def _make_cut(self) -> Cut:
        assert self.proposal is not None
        cut = make_cut(self.proposal, self._states, self._is_kept)
        return replace(cut, secret=self._secret_of(cut.id))

    def _all_have_flushed(self) -> bool:
        return not self.awaited

    def _tell(self, out: Wishes) -> None:
        assert self.proposal is not None
        install = Install(self.proposal.id)
        self._ask(Step.TELL, dict.fromkeys(self.proposal.members, install), out)

    def _ask(self, step: Step, asked: dict[Member, ChangeFrame], out: Wishes) -> None:
        self.step = step
        self.awaited = asked
        self.repeat(out)
