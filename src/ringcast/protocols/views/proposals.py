"""Proposals: what keeps the proposals of one member going.

Whoever is asked for something repeats nothing; whoever asks repeats it after 40 ms, then every
80 ms, until it is answered or has no meaning any more.

    at the proposer                                    then
    some are silent for PATIENCE                       propose again without them, and without the
                                                       other parts that they belong to
    one refuses, and is in a later view without me     in a moment without all who are there
    one refuses, since its coordinator lives           if it is of another part: at once without
                                                       that; of mine: it verifies that coordinator
                                                       and is given time for it; the coordinator
                                                       itself: stop, it goes first
    one has promised a higher proposal                 stop; if that does not come here in a moment,
                                                       go above it
    it tells, and some are silent                      stop: the new view tells, or misses them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.view_change import order
from ringcast.model import Member, ViewId
from ringcast.protocols.views import frames as machine
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.protocols.views.timing import (
    JITTER_NS,
    PATIENCE_NS,
    REFUSAL_PATIENCE_NS,
    REPEAT_MAX_NS,
    REPEAT_START_NS,
    Timer,
)
from ringcast.wire import changes as wire

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ringcast.core.effects import Effects
    from ringcast.core.shared import Timers
    from ringcast.protocols.views.agreement import Agreement
    from ringcast.protocols.views.change import ViewChange
    from ringcast.protocols.views.translation import Translator

NO_ANSWER = "does not answer a proposal"


class Proposals:
    """Of one member, one after the other."""

    def __init__(
        self, owner: ViewChange, proposer: Proposer, translator: Translator, agreement: Agreement
    ) -> None:
        self.parts_lost = False
        """Somebody of another part did not answer: for the owner to take."""
        self.outdone = 0
        """How many gave way to others, in a row."""
        self._owner = owner
        self._proposer = proposer
        self._translator = translator
        self._agreement = agreement
        self._refusing: set[Member] = set()  # they take another to live
        self._has_waited = False  # for who refuses
        self._interval = REPEAT_START_NS  # until all are asked once more
        self._step: tuple[ViewId, Step] | None = None  # as timers have it

    def attach(self, timers: Timers[Timer]) -> None:
        self._timers = timers

    def follow(self, now: int) -> None:
        """Timers follow the step that the proposer has come to."""
        proposal, before = self._proposer.proposal, self._step
        self._step = None if proposal is None else (proposal.id, self._proposer.step)
        if self._step is None:
            self._timers.disarm(Timer.REPEAT)
            self._timers.disarm(Timer.SILENT)
        elif self._step != before:
            self._interval = REPEAT_START_NS
            self._timers.arm(Timer.REPEAT, now + self._interval)
            self._timers.arm(Timer.SILENT, now + PATIENCE_NS)

    def on_state(self, source: Member, frame: wire.State, wishes: machine.Wishes) -> None:
        """From who was asked, and tells of a view that it is in and of the streams that I have."""
        proposal = self._proposer.proposal
        if proposal is None or frame.id != proposal.id or source not in self._proposer.awaited:
            return
        state = self._translator.hear_state(frame)
        streams = set(self._agreement.settings.streams)
        if state is None or source not in state.view or streams != set(state.snapshot.own):
            return
        if self._translator.note(state.view):
            self._proposer.on_state(source, state, wishes)

    def offer_rest(self, now: int, out: Effects) -> None:
        """Those of my view that are not lost."""
        staying = [member for member in self._owner.view if member not in self._owner.lost]
        self._owner.propose(staying, set(), (), now, out)

    def offer(
        self, members: tuple[Member, ...], leaving: AbstractSet[Member], now: int, out: Effects
    ) -> None:
        assert self._owner.me in members
        if leaving >= set(members):
            leaving = leaving - {self._owner.me}  # a view has at least one member
        self._owner.highest = max(self._owner.highest, self._owner.follower.promised.counter) + 1
        self._refusing.clear()
        self._has_waited = False
        id, wishes = ViewId(self._owner.me, self._owner.highest), machine.Wishes()
        self._translator.offer(self._owner.rank)
        proposal = machine.Propose(id, members, frozenset(leaving), self._agreement.settings)
        self._proposer.propose(proposal, wishes)
        self._owner.do(wishes, now, out)

    def ask_again(self, source: Member, now: int, out: Effects) -> None:
        """It misses somebody. If it has refused to go without that one: at once."""
        if source in self._refusing:
            self._interval = REPEAT_START_NS
            self.repeat(now, out)

    def repeat(self, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        self._proposer.repeat(wishes)
        self._interval = min(2 * self._interval, REPEAT_MAX_NS)
        self._timers.arm(Timer.REPEAT, now + self._interval)
        self._owner.do(wishes, now, out)

    def lose_patience(self, now: int, out: Effects) -> None:
        proposal = self._proposer.proposal
        assert proposal is not None
        silent = self._proposer.awaited.keys() - {self._owner.me}
        if self._proposer.step is Step.TELL:
            wishes = machine.Wishes()
            self._proposer.stop()
            if self._owner.me in proposal.leaving:
                self._owner.follower.on_install(self._owner.me, wire.Install(proposal.id), wishes)
            self._owner.do(wishes, now, out)
        elif silent & self._owner.elsewhere:
            self._go_on_without(silent & self._owner.elsewhere, now, out)
        elif silent <= self._refusing and silent and not self._has_waited:
            self._has_waited = True
            self._timers.arm(Timer.SILENT, now + REFUSAL_PATIENCE_NS)
        else:
            self._go_on_without((silent - self._refusing) or silent, now, out)

    def _go_on_without(self, silent: set[Member], now: int, out: Effects) -> None:
        """Neither with them nor with the other parts that they belong to."""
        proposal = self._proposer.proposal
        assert proposal is not None
        left_out = set(silent)
        for view in self._translator.views.values():
            if view.id != self._owner.view.id and not silent.isdisjoint(view):
                left_out.update(member for member in view if member not in self._owner.view)
        self.parts_lost |= not left_out <= set(self._owner.view)
        mine = [member for member in self._owner.view if member in silent - self._owner.elsewhere]
        self._owner.suspects = {**dict.fromkeys(mine, NO_ANSWER), **self._owner.suspects}
        staying = tuple(member for member in proposal.members if member not in left_out)
        self.offer(staying, proposal.leaving & set(staying), now, out)

    def on_refuse(self, source: Member, refuse: wire.Refuse, now: int, out: Effects) -> None:
        proposal = self._proposer.proposal
        asked = () if proposal is None or refuse.id != proposal.id else proposal.members
        if source not in asked or not self._owner.is_frozen:
            return
        if refuse.promised is None and refuse.coordinator is None:
            assert proposal is not None
            if self._translator.tell_all(source):
                out.datagram(source, self._translator.say(source, proposal))
            return
        if refuse.coordinator is not None and source not in self._owner.view:
            self._go_on_without({source}, now, out)
            return
        if refuse.coordinator is not None and refuse.promised is not None:
            self._on_left(source, refuse.promised, now)
            return
        if refuse.promised is None and refuse.coordinator != source:
            self._refusing.add(source)
            return
        wait, times = PATIENCE_NS, min(self.outdone, 4)
        if refuse.promised is None:
            self._owner.waiting.passed.discard(source)  # it is there, and goes first
            self._proposer.stop()
        elif not self._owner.may_reach(refuse.promised.counter, now):
            return
        else:
            # If I am in that one, it comes before the wait is over. Else I go above it.
            self._owner.reach(refuse.promised.counter, now)
            self._proposer.on_refuse(refuse)
            wait, self._owner.waiting.times = JITTER_NS << times, 1
        self._owner.arm(now)
        jitter = (self._owner.me.incarnation * 2654435761 + self._owner.me.address.port) % JITTER_NS
        self._timers.arm(Timer.STALLED, now + wait + (jitter << times))
        self.outdone += 1

    def _on_left(self, source: Member, view: ViewId, now: int) -> None:
        """It is in a view without me. Others may be there with it, and are about to say so."""
        is_asked = source in self._proposer.awaited and self._proposer.step is Step.COLLECT
        if order(view) < order(self._owner.view.id):
            self._refusing.add(source)  # it is about to come to mine
        elif is_asked and source not in self._owner.elsewhere:
            self._owner.elsewhere.add(source)
            wait = min(self._timers.until(Timer.SILENT, now), REPEAT_START_NS)
            self._timers.arm(Timer.SILENT, now + wait)
