"""ViewChange: both sides of a view change at one member, and what keeps it going.

The machines (follower.py, proposer.py) say what is safe. Here is what makes changes end:

Whoever is asked for something repeats nothing; whoever asks repeats it after 40 ms, doubled up to
half a second, until it is answered or has no meaning any more.

    at the proposer                                    then
    some are silent for PATIENCE                       propose again without them, and without the
                                                       other parts that they belong to
    one refuses, since its coordinator lives           if it is of another part: at once without
                                                       that; of mine: it verifies that coordinator
                                                       and is given time for it; the coordinator
                                                       itself: stop, it goes first
    one has promised a higher proposal                 stop; if that does not come here in a moment,
                                                       go above it
    it tells, and some are silent                      stop: the new view tells, or misses them

    at a member that has promised                      then
    nothing for PATIENCE                               verify the proposer, and who stands before
                                                       me; who is next verifies all, and so do all
    nothing for twice that                             wait no more (`passed`): the next proposes
    nothing again                                      nor for that one; then for two more, for four
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import VerifyWanted
from ringcast.core.view_change import Begin, Freeze, order
from ringcast.model import ViewId
from ringcast.protocols.views import frames as machine
from ringcast.protocols.views.election import coordinator, may_answer, rank, verified
from ringcast.protocols.views.follower import Phase
from ringcast.protocols.views.machines import receive
from ringcast.protocols.views.proposer import Step
from ringcast.protocols.views.repeating import Repeating, Timer
from ringcast.protocols.views.timing import (
    JITTER_NS,
    PATIENCE_NS,
    REFUSAL_PATIENCE_NS,
    REPEAT_START_NS,
)
from ringcast.protocols.views.translator import Translator
from ringcast.wire import changes as wire
from ringcast.wire.change_codec import tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from ringcast.core.effects import Effects
    from ringcast.core.shared import Timers
    from ringcast.core.view_change import Flush, Snapshot
    from ringcast.model import Member, View
    from ringcast.protocols.views.agreement import Agreement
    from ringcast.protocols.views.election import Rank
    from ringcast.protocols.views.follower import Follower
    from ringcast.protocols.views.proposer import Proposer
    from ringcast.wire.frames import Frame

COUNTER_LEAP_MAX = 1 << 32
"""How far the counter of a view may be above all that were heard of: one must be able to go on."""
NO_ANSWER = "does not answer a proposal"


class ViewChange:
    """The changes that one member takes part in, one after the other."""

    def __init__(self, follower: Follower, proposer: Proposer, agreement: Agreement) -> None:
        self.me = follower.me
        self.follower = follower
        self.proposer = proposer
        self.suspects: dict[Member, str] = {}
        """Members of the view that seem dead, and why."""
        self.elsewhere: set[Member] = set()
        """Members of the view that are in another by now."""
        self.passed: set[Member] = set()
        """Who was waited for in vain, since this member has promised."""
        self.highest = follower.view.counter
        """The highest counter heard of."""
        self.begun: list[Begin | Freeze | Flush] = []
        """Views that have begun, and what follows on them, for the owner to take."""
        self.parts_lost = False
        """Somebody of another part did not answer: for the owner to take."""
        self.is_shown = False
        """This member has found its group, or started it."""
        self.frozen_since = 0
        self._agreement = agreement
        self._translator = Translator(follower, proposer, agreement)
        self._refusing: set[Member] = set()  # my proposal: they take another to live
        self._stalled = 0  # how often it was waited for in vain
        self._outdone = 0  # proposals of mine that gave way to others, in a row
        self._has_waited = False  # for who refuses
        self._repeating = Repeating()

    def attach(self, timers: Timers[Timer]) -> None:
        self._timers = timers

    # Outputs

    @property
    def view(self) -> View:
        return self.follower.view

    @property
    def is_frozen(self) -> bool:
        return self.follower.phase not in (Phase.OPEN, Phase.OUT)

    @property
    def lost(self) -> set[Member]:
        """Members of the view who are not to be in the next."""
        return {*self.suspects, *self.elsewhere}

    @property
    def coordinator(self) -> Member:
        """Whoever is to propose, as this member sees it."""
        return coordinator(self.view, self.lost | self.passed, self.me)

    @property
    def rank(self) -> Rank:
        """Of the part that this member is in."""
        size, given = len(self.view) * self.is_shown, bool(self._agreement.settings.given)
        has_state = self.follower.has_state
        return rank(self.coordinator, size, has_state=has_state, is_given=given)

    def check_invariants(self) -> None:
        is_armed = self._timers.is_armed
        is_proposing = self.proposer.step is not Step.IDLE
        assert is_armed(Timer.STALLED) == self.is_frozen
        assert is_armed(Timer.REPEAT) == is_proposing
        assert is_armed(Timer.SILENT) == is_proposing
        assert self.passed <= {*self.view, self.follower.promised.creator}

    # Inputs

    def receive(self, source: Member, frame: Frame, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        match frame:
            case wire.Propose():
                self._on_propose(source, frame, wishes, now, out)
            case wire.State():
                self._on_state(source, frame, wishes)
            case wire.Refuse():
                self._on_refuse(source, frame, now, out)
            case wire.Cut():
                self._on_cut(source, frame, wishes)
            case wire.Finish() | wire.Flushed() | wire.Install() | wire.Installed():
                receive(self.follower, self.proposer, source, frame, wishes)
                self._go_last(wishes)
        self._do(wishes, now, out)

    def on_snapshot(self, id: ViewId, snapshot: Snapshot, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        self.follower.on_snapshot(id, snapshot, wishes)
        self._do(wishes, now, out)

    def on_flushed(self, id: ViewId, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        self.follower.on_flushed(id, wishes)
        self._do(wishes, now, out)

    def on_tag(self, source: Member, tag: int, now: int, out: Effects) -> None:
        """Somebody is in the view that was flushed here: so everybody has flushed it."""
        proposal, wishes = self.follower.proposal, machine.Wishes()
        if proposal is not None and tag == tag_of(proposal.id) and source in proposal.members:
            self.follower.on_install(proposal.id.creator, wire.Install(proposal.id), wishes)
        self._do(wishes, now, out)

    def propose(
        self,
        members: Iterable[Member],
        leaving: AbstractSet[Member],
        parts: Iterable[View],
        now: int,
        out: Effects,
    ) -> None:
        """Let these be the next view. They are in mine, or in these."""
        self._translator.know((self.view, *parts))
        self._offer(tuple(members), leaving, now, out)

    def on_complain(self, source: Member, now: int, out: Effects) -> None:
        """It misses somebody. If it has refused to go without that one: ask it again at once."""
        if source in self._refusing:
            self._repeating.interval = REPEAT_START_NS
            self._repeat(now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.REPEAT:
                    self._repeat(now, out)
                case Timer.SILENT:
                    self._lose_patience(now, out)
                case Timer.STALLED:
                    self._on_stalled(now, out)

    def close(self) -> None:
        self.proposer.stop()
        self._timers.disarm_all()

    # What the machines want

    def _do(self, wishes: machine.Wishes, now: int, out: Effects) -> None:
        """Frames to this member itself are received at once."""
        while wishes.frames or wishes.streams:
            for wish in wishes.streams:
                if isinstance(wish, Begin):
                    self._begin(wish)
                else:
                    self._tell_streams(wish, now, out)
            wishes.streams.clear()
            frames, wishes.frames = wishes.frames, []
            for dest, frame in frames:
                if dest == self.me:
                    self._receive_own(frame, wishes)
                else:
                    out.datagram(dest, self._translator.say(dest, frame))
        self._arm(now)

    def _begin(self, begin: Begin) -> None:
        view = begin.view
        self.highest = max(self.highest, view.counter)
        # All members of the view have flushed it: who only did not answer before has done so since.
        self.suspects = {
            who: why for who, why in self.suspects.items() if who in view and why != NO_ANSWER
        }
        self.elsewhere.clear()
        self.passed.clear()
        self._outdone = 0
        self._translator.keep(view)
        self.begun.append(begin)

    def _tell_streams(self, wish: Freeze | Flush, now: int, out: Effects) -> None:
        if isinstance(wish, Freeze):
            if not self._timers.is_armed(Timer.STALLED):
                self.frozen_since = now
            self.passed.clear()
            self._stalled = 0
            mine = self.proposer.proposal
            if mine is not None and mine.id != wish.id:
                self.proposer.stop()
        self._timers.arm(Timer.STALLED, now + PATIENCE_NS)
        if self.begun:
            self.begun.append(wish)  # the streams are to be in that view first
        else:
            out.signal(wish)

    def _receive_own(self, frame: machine.ChangeFrame, wishes: machine.Wishes) -> None:
        if isinstance(frame, machine.State):
            self._translator.note(frame.view)
        if not isinstance(frame, wire.Install) or not self._has_to_tell():
            receive(self.follower, self.proposer, self.me, frame, wishes)

    def _has_to_tell(self) -> bool:
        """This member leaves with the view that it makes: the others hear of it first."""
        proposal = self.proposer.proposal
        others = self.proposer.awaited.keys() - {self.me}
        return proposal is not None and self.me in proposal.leaving and bool(others)

    def _go_last(self, wishes: machine.Wishes) -> None:
        proposal, awaited = self.proposer.proposal, self.proposer.awaited.keys()
        if proposal is not None and self.proposer.step is Step.TELL and awaited == {self.me}:
            self.follower.on_install(self.me, wire.Install(proposal.id), wishes)

    def _arm(self, now: int) -> None:
        """Timers follow what the machines wait for."""
        self._repeating.follow(self.proposer, self._timers, now)
        if not self.is_frozen:
            self._timers.disarm(Timer.STALLED)

    # As follower

    def _on_propose(
        self,
        source: Member,
        frame: wire.Propose,
        wishes: machine.Wishes,
        now: int,
        out: Effects,
    ) -> None:
        promised, counter = self.follower.promised, frame.id.counter
        if source != frame.id.creator or counter > self.highest + COUNTER_LEAP_MAX:
            return
        proposal = self._translator.hear_propose(frame)
        if proposal is None:
            wishes.send(source, wire.Refuse(frame.id))  # on what is it based?
            return
        if self.me not in proposal.members or len(proposal.leaving) == len(proposal.members):
            return
        self.highest = max(self.highest, proposal.id.counter)
        if proposal.id.counter <= self.view.counter and proposal.id != self.view.id:
            wishes.send(source, wire.Refuse(proposal.id, promised))
            return
        gone, is_same = self.lost | self.passed, self.is_frozen and source == promised.creator
        given = bool(frame.settings.given)
        theirs = rank(source, frame.size, has_state=frame.has_state, is_given=given)
        is_better = theirs < self.rank
        may = is_same or may_answer(source, proposal, self.view, gone, self.me, is_better=is_better)
        if order(proposal.id) > order(promised) and not may:
            first = self.coordinator
            wishes.send(source, wire.Refuse(proposal.id, None, first))
            if first != self.me:
                out.signal(VerifyWanted(first))
            elif self.proposer.step in (Step.IDLE, Step.TELL):
                self._propose_rest(now, out)
            return
        if order(proposal.id) >= order(promised):
            self._translator.promise(proposal, frame.base)
        self.follower.on_propose(source, proposal, wishes)

    def _on_cut(self, source: Member, frame: wire.Cut, wishes: machine.Wishes) -> None:
        cut = self._translator.hear_cut(frame)
        if cut is not None and any(self.me in part.members for part in cut.parts):
            self.follower.on_cut(source, cut, wishes)

    def _on_stalled(self, now: int, out: Effects) -> None:
        """Who is to go on with the change does not: in the end somebody else has to."""
        proposer = self.follower.promised.creator
        self._stalled += 1
        if proposer != self.me:
            for member in (proposer, *verified(self.view, self.lost, self.me)):
                out.signal(VerifyWanted(member))
        if self._stalled == 1 and proposer != self.me:
            if coordinator(self.view, self.lost | {proposer}, self.me) == self.me:
                for member in self.view:  # they are asked to follow me, if it is gone
                    if member not in (self.me, proposer):
                        out.datagram(member, wire.Complain(proposer))
                        out.signal(VerifyWanted(member))
        elif self._stalled == 2 and proposer != self.me:
            self.passed.add(proposer)
        else:
            for _ in range(1 << max(0, min(self._stalled - 3, 9))):
                if self.coordinator != self.me:
                    self.passed.add(self.coordinator)
        self._timers.arm(Timer.STALLED, now + PATIENCE_NS)
        is_on_me = self.proposer.step is Step.IDLE and self.coordinator == self.me
        if is_on_me and self._stalled > 1:
            self._propose_rest(now, out)

    # As proposer

    def _on_state(self, source: Member, frame: wire.State, wishes: machine.Wishes) -> None:
        """From who was asked, and tells of a view that it is in and of the streams that I have."""
        proposal = self.proposer.proposal
        if proposal is None or frame.id != proposal.id or source not in self.proposer.awaited:
            return
        state = self._translator.hear_state(frame)
        streams = set(self._agreement.settings.streams)
        if state is None or source not in state.view or streams != set(state.snapshot.own):
            return
        if self._translator.note(state.view):
            self.proposer.on_state(source, state, wishes)

    def _propose_rest(self, now: int, out: Effects) -> None:
        """Those of my view that are not lost."""
        staying = [member for member in self.view if member not in self.lost]
        self.propose(staying, set(), (), now, out)

    def _offer(
        self, members: tuple[Member, ...], leaving: AbstractSet[Member], now: int, out: Effects
    ) -> None:
        assert self.me in members
        if leaving >= set(members):
            leaving = leaving - {self.me}  # a view has at least one member
        self.highest = max(self.highest, self.follower.promised.counter) + 1
        self._refusing.clear()
        self._has_waited = False
        id, wishes = ViewId(self.me, self.highest), machine.Wishes()
        self._translator.offer(self.rank)
        proposal = machine.Propose(id, members, frozenset(leaving), self._agreement.settings)
        self.proposer.propose(proposal, wishes)
        self._do(wishes, now, out)

    def _repeat(self, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        self.proposer.repeat(wishes)
        self._repeating.slow_down(self._timers, now)
        self._do(wishes, now, out)

    def _lose_patience(self, now: int, out: Effects) -> None:
        proposal = self.proposer.proposal
        assert proposal is not None
        silent = self.proposer.awaited.keys() - {self.me}
        if self.proposer.step is Step.TELL:
            wishes = machine.Wishes()
            self.proposer.stop()
            if self.me in proposal.leaving:
                self.follower.on_install(self.me, wire.Install(proposal.id), wishes)
            self._do(wishes, now, out)
        elif silent <= self._refusing and silent and not self._has_waited:
            self._has_waited = True
            self._timers.arm(Timer.SILENT, now + REFUSAL_PATIENCE_NS)
        else:
            self._go_on_without((silent - self._refusing) or silent, now, out)

    def _go_on_without(self, silent: set[Member], now: int, out: Effects) -> None:
        """Neither with them nor with the other parts that they belong to."""
        proposal = self.proposer.proposal
        assert proposal is not None
        left_out = set(silent)
        for view in self._translator.views.values():
            if view.id != self.view.id and not silent.isdisjoint(view):
                left_out.update(member for member in view if member not in self.view)
        self.parts_lost |= not left_out <= set(self.view)
        mine = [member for member in self.view if member in silent]
        self.suspects = {**dict.fromkeys(mine, NO_ANSWER), **self.suspects}
        staying = tuple(member for member in proposal.members if member not in left_out)
        self._offer(staying, proposal.leaving & set(staying), now, out)

    def _on_refuse(self, source: Member, refuse: wire.Refuse, now: int, out: Effects) -> None:
        proposal = self.proposer.proposal
        asked = () if proposal is None or refuse.id != proposal.id else proposal.members
        if source not in asked or not self.is_frozen:
            return
        if refuse.promised is None and refuse.coordinator is None:
            assert proposal is not None
            if self._translator.tell_all(source):
                out.datagram(source, self._translator.say(source, proposal))
            return
        if refuse.promised is None and source not in self.view:
            self._go_on_without({source}, now, out)
            return
        if refuse.promised is None and refuse.coordinator != source:
            self._refusing.add(source)
            return
        wait, times = PATIENCE_NS, min(self._outdone, 4)
        if refuse.promised is None:
            self.passed.discard(source)  # it is there, and goes first
            self.proposer.stop()
        else:
            # If I am in that one, it comes before the wait is over. Else I go above it.
            self.highest = max(self.highest, refuse.promised.counter)
            self.proposer.on_refuse(refuse)
            wait, self._stalled = JITTER_NS << times, 1
        self._arm(now)
        jitter = (self.me.incarnation * 2654435761 + self.me.address.port) % JITTER_NS
        self._timers.arm(Timer.STALLED, now + wait + (jitter << times))
        self._outdone += 1
