"""ViewChange: both sides of a view change at one member, and what keeps it going.

The machines (follower.py, proposer.py) say what is safe. Here is what makes changes end:

My proposals (proposals.py), and for whom a member waits that has promised (timing.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ringcast.core.effects import Effects, VerifyWanted
from ringcast.core.view_change import Begin, Flush, Freeze, Snapshot, order
from ringcast.protocols.stream import seconds
from ringcast.protocols.views import frames as machine
from ringcast.protocols.views.cookies import permit
from ringcast.protocols.views.election import Rank, coordinator, may_answer, rank, verified
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import receive
from ringcast.protocols.views.proposals import NO_ANSWER, Proposals
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.protocols.views.timing import PATIENCE_NS, Timer, Waiting
from ringcast.protocols.views.translation import Translator
from ringcast.wire import changes as wire
from ringcast.wire.changes import tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from ringcast.core.shared import Timers
    from ringcast.model import Member, View, ViewId
    from ringcast.protocols.views.agreement import Agreement
    from ringcast.wire.frames import Frame

COUNTER_LEAP_MAX = 1 << 32
COUNTER_STEP_MAX = 1 << 20
LEAP_NS = 1_000_000_000
"""How far the counter of a view may be above all that were heard of, one must be able to go on;
and how far it may be above them again within a second. So no counter comes near its end."""


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
        self.waiting = Waiting()
        """For who goes on with what this member has promised."""
        self.highest = follower.view.counter
        """The highest counter heard of."""
        self.begun: list[Begin | Freeze | Flush] = []
        """Views that have begun, and what follows on them, for the owner to take."""
        self.is_shown = False
        """This member has found its group, or started it."""
        self.frozen_since = 0
        self.refused: Counter[str] = Counter()
        """What others said and could not mean, by reason."""
        self._leapt_at = -LEAP_NS  # when the highest counter was raised by more than a step
        self._agreement = agreement
        self._translator = Translator(follower, proposer, agreement)
        self.proposals = Proposals(self, proposer, self._translator, agreement)

    def attach(self, timers: Timers[Timer]) -> None:
        self._timers = timers
        self.proposals.attach(timers)

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
        return coordinator(self.view, self.lost | self.waiting.passed, self.me)

    @property
    def rank(self) -> Rank:
        """Of the part that this member is in."""
        size, given = len(self.view) * self.is_shown, bool(self._agreement.settings.given)
        has_state = self.follower.has_state
        return rank(self.coordinator, size, has_state=has_state, is_given=given)

    def explain(self, unheard: Mapping[Member, int], now: int) -> list[str]:
        """One sentence for each member that is missed, and for the step that is under way.
        `unheard`: since when this member does not hear each."""
        first = self.coordinator
        reasons = [
            f"{member} is suspected: {reason}; {first} is to see to it"
            for member, reason in self.suspects.items()
        ]
        reasons += [
            f"nothing comes from {member} to this member for {seconds(now - since)}; if others "
            f"hear it, {first} excludes one of the two"
            for member, since in unheard.items()
            if member in self.view and member not in self.suspects
        ]
        proposal, promised = self.proposer.proposal, self.follower.promised
        if proposal is not None:
            names = ", ".join(sorted(map(str, self.proposer.awaited)))
            reasons.append(f"view {proposal.id} ({self.proposer.step.value}) waits for {names}")
        elif self.is_frozen:
            promise = f"view {promised} was promised {seconds(now - self.frozen_since)} ago"
            reasons.append(f"{promise}; {promised.creator} makes it")
        return reasons

    def check_invariants(self) -> None:
        is_armed = self._timers.is_armed
        is_proposing = self.proposer.step is not Step.IDLE
        assert is_armed(Timer.STALLED) == self.is_frozen
        assert is_armed(Timer.REPEAT) == is_proposing
        assert is_armed(Timer.SILENT) == is_proposing
        assert self.waiting.passed <= {*self.view, self.follower.promised.creator}

    # Inputs

    def receive(self, source: Member, frame: Frame, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        match frame:
            case wire.Propose():
                self._on_propose(source, frame, wishes, now, out)
            case wire.State():
                self.proposals.on_state(source, frame, wishes)
            case wire.Refuse():
                self.proposals.on_refuse(source, frame, now, out)
            case wire.Cut():
                self._on_cut(source, frame, wishes)
            case wire.Finish() | wire.Flushed() | wire.Install() | wire.Installed():
                receive(self.follower, self.proposer, source, frame, wishes)
                self._go_last(wishes)
        self.do(wishes, now, out)

    def is_known(self, member: Member) -> bool:
        """Whether it was in a view with this one lately, or may be in the next."""
        asked = (self.follower.proposal, self.proposer.proposal)
        is_asked = any(each is not None and member in each.members for each in asked)
        return is_asked or self._translator.was_with(member)

    def permit(self, member: Member) -> int:
        """With this that one may propose to the members of my view."""
        return permit(self.follower.secret, member)

    def may_reach(self, counter: int, now: int) -> bool:
        """Whether a view may have this counter. If not, it is counted."""
        leap = counter - self.highest
        is_step = leap <= COUNTER_STEP_MAX
        may = is_step or (leap <= COUNTER_LEAP_MAX and now >= self._leapt_at + LEAP_NS)
        self.refused["counter leaps"] += not may
        return may

    def reach(self, counter: int, now: int) -> None:
        """A view that is not mine has this counter."""
        if counter > self.highest + COUNTER_STEP_MAX:
            self._leapt_at = now
        self.highest = max(self.highest, counter)

    def on_snapshot(self, id: ViewId, snapshot: Snapshot, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        self.follower.on_snapshot(id, snapshot, wishes)
        self.do(wishes, now, out)

    def on_flushed(self, id: ViewId, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        self.follower.on_flushed(id, wishes)
        self.do(wishes, now, out)

    def on_tag(self, source: Member, tag: int, now: int, out: Effects) -> None:
        """Somebody is in the view that was flushed here: so everybody has flushed it."""
        proposal, wishes = self.follower.proposal, machine.Wishes()
        if proposal is not None and tag == tag_of(proposal.id) and source in proposal.members:
            self.follower.on_install(proposal.id.creator, wire.Install(proposal.id), wishes)
        self.do(wishes, now, out)

    def propose(
        self,
        members: Iterable[Member],
        leaving: AbstractSet[Member],
        parts: Iterable[View],
        now: int,
        out: Effects,
        permits: Mapping[ViewId, int] | None = None,
    ) -> None:
        """Let these be the next view. They are in mine, or in these; with these permits members of
        other parts answer."""
        self._translator.know((self.view, *parts), permits or {})
        self.proposals.offer(tuple(members), leaving, now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.REPEAT:
                    self.proposals.repeat(now, out)
                case Timer.SILENT:
                    self.proposals.lose_patience(now, out)
                case Timer.STALLED:
                    self._on_stalled(now, out)

    def close(self) -> None:
        self.proposer.stop()
        self._timers.disarm_all()

    # What the machines want

    def do(self, wishes: machine.Wishes, now: int, out: Effects) -> None:
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
        self.arm(now)

    def _begin(self, begin: Begin) -> None:
        view = begin.view
        self.highest = max(self.highest, view.counter)
        # All members of the view have flushed it: who only did not answer before has done so since.
        self.suspects = {
            who: why for who, why in self.suspects.items() if who in view and why != NO_ANSWER
        }
        self.elsewhere.clear()
        self.waiting.begin()
        self.proposals.outdone = 0
        self._translator.begin(view, begin.cut.secret)
        self.begun.append(begin)

    def _tell_streams(self, wish: Freeze | Flush, now: int, out: Effects) -> None:
        if isinstance(wish, Freeze):
            if not self._timers.is_armed(Timer.STALLED):
                self.frozen_since = now
            self.waiting.begin()
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

    def arm(self, now: int) -> None:
        """Timers follow what the machines wait for."""
        self.proposals.follow(now)
        if not self.is_frozen:
            self._timers.disarm(Timer.STALLED)

    # As follower

    def _on_propose(
        self, source: Member, frame: wire.Propose, wishes: machine.Wishes, now: int, out: Effects
    ) -> None:
        promised = self.follower.promised
        is_same = self.is_frozen and source == promised.creator
        if source != frame.id.creator:
            return
        if not (is_same or source in self.view or self._translator.is_permitted(source, frame)):
            self.refused["propose without a permit"] += 1
            return
        if not self.may_reach(frame.id.counter, now):
            return
        proposal = self._translator.hear_propose(frame)
        if proposal is None:
            wishes.send(source, wire.Refuse(frame.id))  # on what is it based?
            return
        if self.me not in proposal.members or len(proposal.leaving) == len(proposal.members):
            return
        self.reach(proposal.id.counter, now)
        if proposal.id.counter <= self.view.counter and proposal.id != self.view.id:
            wishes.send(source, wire.Refuse(proposal.id, promised))
            return
        gone = self.lost | self.waiting.passed
        given = bool(frame.settings.given)
        theirs = rank(source, frame.size, has_state=frame.has_state, is_given=given)
        is_behind = self._translator.is_behind(source, frame.base)
        is_better = theirs < self.rank and not is_behind
        may = is_same or may_answer(source, proposal, self.view, gone, self.me, is_better=is_better)
        if order(proposal.id) > order(promised) and not may:
            first = self.coordinator
            is_left_out = source not in self.view or (first == self.me and source in self.lost)
            left = self.view.id if is_left_out else None
            wishes.send(source, wire.Refuse(proposal.id, left, first))
            if first != self.me:
                out.signal(VerifyWanted(first))
            elif self.proposer.step in (Step.IDLE, Step.TELL):
                self.proposals.offer_rest(now, out)
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
        self.waiting.lose_patience(proposer, self.view, self.lost, self.me)
        if proposer != self.me:
            for member in (proposer, *verified(self.view, self.lost, self.me)):
                out.signal(VerifyWanted(member))
            is_next = coordinator(self.view, self.lost | {proposer}, self.me) == self.me
            if self.waiting.times == 1 and is_next:
                for member in self.view:  # they are asked to follow me, if it is gone
                    if member not in (self.me, proposer):
                        out.datagram(member, wire.Complain(proposer))
                        out.signal(VerifyWanted(member))
        self._take_over(now, out)

    def on_later_view(self, source: Member, id: ViewId, now: int, out: Effects) -> None:
        """If that one has proposed what I promised: nothing comes of it any more."""
        promised = self.follower.promised
        is_over = source == promised.creator and order(id) > order(promised)
        if self.is_frozen and is_over and source not in self.waiting.passed:
            self.waiting.end(source)
            self._take_over(now, out)

    def _take_over(self, now: int, out: Effects) -> None:
        """If it is on me to go on with the change."""
        self._timers.arm(Timer.STALLED, now + PATIENCE_NS)
        is_on_me = self.proposer.step is Step.IDLE and self.coordinator == self.me
        if is_on_me and self.waiting.times > 1:
            self.proposals.offer_rest(now, out)
