"""GroupViews: one member finds its group, and goes with it from view to view.

    phase     what happens                                     then
    LOOKING   a view with others begins                        MEMBER
              nobody is there for `discovery_wait`             MEMBER, in a view of its own
              the group that is there has other settings       OUT
              nobody is there, and somebody must be            OUT
    MEMBER    leave                                            LEAVING
    LEAVING   a view without this one begins                   OUT
              `leave_timeout`                                  OUT

Everybody starts in a view of its own, which is not shown while it looks. Joining, healing, leaving
and losing somebody are one thing: a change (change.py) to a view of the members that are to go on
together. The first of a view proposes it: those of its view that it does not suspect, those that
leave, and the parts that it has met (discovery.py). Others ask it: to let them leave, to see to who
seems dead, to exclude who blocks them.
"""

from __future__ import annotations

from dataclasses import replace
from enum import auto
from typing import TYPE_CHECKING, ClassVar, get_args

from ringcast.core.effects import (
    Flushed,
    Layer,
    Left,
    MemberAhead,
    NonMember,
    StartsOver,
    Suspected,
    TooSlow,
    Trusted,
    Unreachable,
)
from ringcast.core.shared import Deadlines, GroupState, Named, Phase, Timers
from ringcast.core.view_change import Begin, Cut, CutReached, Frozen, Part, SawView, StateChanged
from ringcast.model import Address, Member, View, ViewId
from ringcast.protocols.stream import seconds
from ringcast.protocols.views.agreement import Agreement
from ringcast.protocols.views.change import ViewChange
from ringcast.protocols.views.cookies import Cookies
from ringcast.protocols.views.discovery import GATHER_NS, MEMBER_NS, Discovery, Meeting, Met
from ringcast.protocols.views.follower import Follower
from ringcast.protocols.views.follower import Phase as Following
from ringcast.protocols.views.greetings import Greetings
from ringcast.protocols.views.pieces import Pieces
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.protocols.views.requests import Requests
from ringcast.protocols.views.timing import PATIENCE_NS
from ringcast.texts import counted
from ringcast.wire import changes as wire
from ringcast.wire.frames import Frame, Leave
from ringcast.wire.limits import VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.config import MembershipConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.settings import Settings


GOODBYE_SHARE = 4
"""Of the time that leaving may take, one part in so many is kept for the others to let us go."""


class Timer(Named):
    HELLO = auto()
    """Say Hello to who may be there."""
    DECIDE = auto()
    """Nobody is there: begin alone?"""
    ADVANCE = auto()
    """Look whether there is a change to be made."""
    GOODBYE = auto()
    """What is left of a large message finds no room: leave without it."""
    LEAVE = auto()
    """It takes too long to leave."""


class GroupViews(Layer):
    """The state machine of one member."""

    frames: ClassVar[tuple[type[Frame], ...]] = (*get_args(wire.ViewFrame), Leave)
    following: ClassVar[type[Follower]] = Follower
    proposing: ClassVar[type[Proposer]] = Proposer

    def __init__(
        self,
        me: Member,
        config: MembershipConfig,
        *,
        must_exist: bool = False,
        settings: Settings,
        secret: bytes = b"",
    ) -> None:
        """`settings`: what this member would have its group agree on. `secret`: up to 64 random
        bytes of this incarnation, of which cookies are made; none where nobody else may be."""
        self.me = me
        self.config = config
        self.must_exist = must_exist
        self.phase = Phase.IDLE
        self.started_alone = False
        """Nobody was there, and this member is in a view of its own."""
        self.ignored = 0  # frames that came too late or from nobody known
        self.agreement = Agreement(settings)
        self.cookies = Cookies(me, secret)
        alone = View(ViewId(me, 1), (me,))
        follower = self.following(me, alone)
        follower.secret = self.cookies.secret_of(alone.id)
        proposer = self.proposing(self.agreement.is_kept, self.cookies.secret_of)
        self.change = ViewChange(follower, proposer, self.agreement)
        self.discovery = Discovery(me)
        self.meeting = Meeting()
        self.requests = Requests(self.change, self)
        self.greetings = Greetings(self)
        self.pieces = Pieces(self.change.is_known)
        self._since = 0  # when this phase began
        self._gone_by = 0
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner("views")
        self.change.attach(deadlines.owner("view change"))
        self.requests.attach(deadlines.owner("requests"))

    # Inputs

    def start(self, now: int, out: Effects) -> None:
        self.phase, self._since, self.meeting.started_at = Phase.LOOKING, now, now
        self._timers.arm(Timer.DECIDE, now + round(self.config.discovery_wait_s * 1e9))
        self._say_hello(now, out)

    def add_candidates(self, addresses: Iterable[Address], now: int, out: Effects) -> None:
        """Where members may be found."""
        fresh = self.discovery.add(addresses)
        if self.phase is Phase.LOOKING:
            for address in fresh:
                out.datagram(address, self.greetings.hello(address, now, is_asking=True))

    def leave(self, now: int, out: Effects, by: int | None = None) -> None:
        """Go, and in any case `by` then."""
        if self.phase is Phase.MEMBER:
            self.phase, self._since = Phase.LEAVING, now
            self._gone_by = now + round(self.config.leave_timeout_s * 1e9) if by is None else by
            self._timers.arm(Timer.LEAVE, self._gone_by)
            left = max(0, self._gone_by - now)
            self._timers.arm(Timer.GOODBYE, self._gone_by - left // GOODBYE_SHARE)
        elif self.phase is not Phase.LEAVING:
            self._go("left before it was in", out)

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        for each in frames:
            frame = self.pieces.add(source, each, now) if isinstance(each, wire.Piece) else each
            match frame:
                case None:
                    continue
                case _ if self.phase in (Phase.IDLE, Phase.OUT):
                    self.ignored += 1
                case wire.Hello():
                    self.greetings.on_hello(source, frame, now, out)
                case wire.Cookie():
                    self.greetings.on_cookie(source, frame, now, out)
                case wire.Propose() if not self.agreement.may_take(
                    frame.settings, is_looking=self.phase is Phase.LOOKING
                ):
                    self.ignored += 1
                case wire.Complain():
                    self.requests.on_complain(source, frame, now, out)
                case Leave():
                    self.requests.on_leave(source, now, out)
                case _:
                    self.change.receive(source, frame, now, out)
            self.follow(now, out)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        match signal:
            case _ if self.phase is Phase.OUT:
                return
            case Frozen(id, snapshot):
                self.change.on_snapshot(id, snapshot, now, out)
            case CutReached(id):
                self.change.on_flushed(id, now, out)
            case SawView(source, tag):
                self.change.on_tag(source, tag, now, out)
            case Suspected(member, reason):
                self.requests.suspect(member, reason, now, out)
            case Trusted(member):
                self.change.suspects.pop(member, None)
                self.requests.pairs.hear(member)
            case MemberAhead(member, counter) if counter > self.change.view.counter:
                self.requests.ahead((member,), counter, now, out)
            case NonMember(member) if self.change.is_known(member):
                out.datagram(member, self.greetings.hello(member.address, now))
            case StartsOver(is_through):
                self.requests.starts_over(now, out, is_through=is_through)
            case TooSlow(member):
                self.requests.too_slow(member, now, out)
            case Unreachable(member, silence) if silence >= self.config.suspect_after_s * 1e9:
                self.requests.unreachable(member, now, out)
            case StateChanged(standing):
                self.requests.state_changed(standing, now, out)
            case Flushed() if self.phase is Phase.LEAVING and not self.requests.may_go:
                self.requests.go(now, out)
        self.follow(now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.HELLO:
                    self._say_hello(now, out)
                case Timer.DECIDE:
                    self._decide(now, out)
                case Timer.ADVANCE:
                    self.advance(now, out)
                case Timer.GOODBYE if not self.requests.may_go:
                    self.requests.go(now, out)
                case Timer.LEAVE:
                    self._go("left without an answer", out)
        if self.phase is not Phase.OUT:
            self.requests.handle_timeout(now, out)
            self.change.handle_timeout(now, out)
            self.follow(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        self._stop()

    # Outputs

    @property
    def view(self) -> View | None:
        """The one that this member is in, once it is shown."""
        return self.change.view if self.is_member else None

    @property
    def is_member(self) -> bool:
        return self.phase in (Phase.MEMBER, Phase.LEAVING)

    @property
    def is_idle(self) -> bool:
        """No view is being made, nor is there need of one."""
        change = self.change
        return not change.is_frozen and change.proposer.step is Step.IDLE and not change.lost

    @property
    def is_leaving(self) -> bool:
        return self.phase is Phase.LEAVING

    @property
    def coordinator(self) -> Member:
        """Whoever is to propose, as this member sees it."""
        return self.change.coordinator

    def stats(self) -> dict[str, object]:
        change = self.change
        return {
            "phase": self.phase.value,
            "view": str(self.view),
            "following": change.follower.phase.value,
            "proposing": change.proposer.step.value,
            "unanswered_by": sorted(map(str, change.proposer.awaited)),
            "candidates": len(self.discovery.candidates),
            "parts_met": len(self.meeting.parts),
            "frames_in_pieces": len(self.pieces),
            "pieces_refused": self.pieces.refused,
            "suspects": {str(member): reason for member, reason in change.suspects.items()},
            "elsewhere": sorted(map(str, change.elsewhere)),
            "leavers": len(self.requests.leavers),
            "held_ms": [round(held_up / 1e6, 3) for held_up in self.meeting.held],
            "incompatible_peers": self.agreement.incompatible,
            "ignored": self.ignored + self.requests.ignored,
            "challenged": self.greetings.challenged,
            "refused": dict(change.refused),
        }

    def explain(self, now: int) -> list[str]:
        reasons = []
        so_far = seconds(now - self._since)
        if self.phase is Phase.LOOKING:
            left = seconds(self._timers.until(Timer.DECIDE, now))
            asked = counted(len(self.discovery.candidates), "address", "addresses")
            reasons.append(f"looking for the group for {so_far}: {asked} asked; decided in {left}")
        elif self.phase is Phase.LEAVING:
            reasons.append(f"leaving for {so_far}: gone in {seconds(max(0, self._gone_by - now))}")
        reasons += self.agreement.explain(now) + self.meeting.explain(now)
        return reasons + self.change.explain(self.requests.pairs.unheard, now)

    def check_invariants(self) -> None:
        if self.phase in (Phase.IDLE, Phase.OUT):
            return
        is_armed = self._timers.is_armed
        assert self.me in self.change.view
        assert is_armed(Timer.HELLO)
        assert is_armed(Timer.DECIDE) == (self.phase is Phase.LOOKING)
        assert is_armed(Timer.LEAVE) == (self.phase is Phase.LEAVING)
        self.change.check_invariants()

    # Views begin

    def follow(self, now: int, out: Effects) -> None:
        """Views may have begun."""
        change = self.change
        if change.proposals.parts_lost:
            change.proposals.parts_lost = False
            self.meeting.fail(now)
        begun, change.begun = change.begun, []
        for wish in begun:
            if self.phase is Phase.OUT:
                return
            if isinstance(wish, Begin):
                self._begin(wish, now, out)
            else:
                out.signal(wish)

    def _begin(self, begin: Begin, now: int, out: Effects, *, is_decided: bool = False) -> None:
        view = begin.view
        # While it looks for the group nobody sends here.
        held_up = 0 if self.phase is Phase.LOOKING else now - self.change.frozen_since
        self.meeting.changed(view, held_up, now, is_merge=len(begin.cut.parts) > 1)
        if self.change.follower.phase is Following.OUT:
            is_asked = self.phase is Phase.LEAVING
            reason = "left" if is_asked else "excluded: it blocked senders for too long"
            self._go(reason, out, is_flushed=True)
            return
        self.discovery.learn((member.address for member in view), now, MEMBER_NS)
        self.requests.begin(view)
        self.greetings.tell_left_out(view, now, out)
        self._timers.arm(Timer.ADVANCE, now)
        if self.phase is Phase.LOOKING:
            if len(view) == 1 and not is_decided:
                return  # what we were let into has come to nothing: look on
            self.phase, self._since, self.change.is_shown = Phase.MEMBER, now, True
            self._timers.disarm(Timer.DECIDE)
        settings = self.agreement.take(begin.settings)
        if settings is not None:
            self.config = settings.apply_to_membership(self.config)
        out.signal(replace(begin, settings=settings))

    def _decide(self, now: int, out: Effects) -> None:
        """Nobody has come by now."""
        is_met = self.meeting.fresh(now) or self.meeting.has_group(now)
        if self.change.is_frozen or is_met:
            self._timers.arm(Timer.DECIDE, now + PATIENCE_NS)
        elif self.agreement.refusal is not None:
            self._go(self.agreement.refusal, out)
        elif self.agreement.has_rival:
            self.agreement.has_rival = False  # if it is there, it says so again
            self._timers.arm(Timer.DECIDE, now + PATIENCE_NS)
        elif self.meeting.is_answered(now):
            self._timers.arm(Timer.DECIDE, now + PATIENCE_NS)
        elif self.must_exist:
            self._go(f"nobody answered at {len(self.discovery.candidates)} addresses", out)
        else:
            self.started_alone = True
            view = self.change.view
            part = Part(view.id, view.members, {}, {})
            self.change.frozen_since = now
            self._begin(Begin(view, Cut(view.id, (part,), {}, self.me)), now, out, is_decided=True)

    # A change is to be made

    def advance(self, now: int, out: Effects) -> None:
        """Propose, if there is reason to and it is on this member."""
        change = self.change
        if self.coordinator != self.me:
            self.requests.ask(now, out)
            return
        step, proposal = change.proposer.step, change.proposer.proposal
        if change.is_frozen:
            is_lost = proposal is not None and not change.lost.isdisjoint(proposal.members)
            is_orphaned = proposal is None and change.follower.promised.creator in change.lost
            if is_lost or is_orphaned:
                self._propose((), now, out)
        elif self.requests.may_go and len(change.view) == 1:
            self._go("left", out)
        elif change.lost:
            self.meeting.losses.lose(now)
            self._propose((), now, out)
        elif self.requests.are_any and step is Step.IDLE:
            self._propose((), now, out)
        elif self.meeting.fresh(now) and self.phase is not Phase.LEAVING:
            at = self.meeting.not_before(now)
            if at > now or step is not Step.IDLE:
                self._timers.arm(Timer.ADVANCE, max(at, now + GATHER_NS))
                return
            parts = list(self.meeting.take(change.view, VIEW_MEMBERS_MAX, now))
            if parts:
                self._propose(parts, now, out)

    def _propose(self, parts: Sequence[Met], now: int, out: Effects) -> None:
        change = self.change
        members = [member for member in change.view if member not in change.lost]
        leaving = self.requests.leavers.intersection(members)
        if self.requests.may_go:
            leaving.add(self.me)
        views = [part.view for part in parts]
        members += [member for view in views for member in view]
        permits = {part.view.id: part.permit for part in parts}
        change.propose(members, leaving, views, now, out, permits)

    # Others

    def note_part(self, now: int) -> None:
        """Somebody could come in: others may, in a moment more."""
        self._timers.arm_if_idle(Timer.ADVANCE, now + GATHER_NS)

    def decide_soon(self, now: int) -> None:
        """A group refuses this member: if no other takes it in a moment, that is that."""
        if (self._timers.until(Timer.DECIDE, now) or 0) > GATHER_NS:
            self._timers.arm(Timer.DECIDE, now + GATHER_NS)

    def _say_hello(self, now: int, out: Effects) -> None:
        if self.phase is Phase.LOOKING or self.coordinator == self.me:
            self.greetings.say_hello(now, out)
        self.discovery.learn((member.address for member in self.change.view), now, MEMBER_NS)
        self.discovery.forget_old(now)
        self._timers.arm(Timer.HELLO, now + self.discovery.interval)
        self.discovery.slow_down()

    # The end

    def _go(self, reason: str, out: Effects, *, is_flushed: bool = False) -> None:
        self._stop()
        out.signal(Left(reason, is_flushed))

    def _stop(self) -> None:
        self.phase = Phase.OUT
        self.change.close()
        self.requests.close()
        self._timers.disarm_all()
