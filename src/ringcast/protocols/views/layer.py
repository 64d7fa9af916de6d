"""GroupViews: one member finds its group, and goes with it from view to view.

    phase     what happens                                     then
    LOOKING   a view with others begins                        MEMBER
              nobody is there for `discovery_wait`             MEMBER, in a view of its own
              the group that is there purges otherwise         OUT
              nobody is there, and somebody must be            OUT
    MEMBER    leave                                            LEAVING
    LEAVING   a view without this one begins                   OUT
              `leave_timeout`                                  OUT

Everybody starts in a view of its own, which is not shown while it looks. Joining, healing, leaving
and losing somebody are one thing: a change (change.py) to a view of the members that are to go on
together. The first of a view proposes it: those of its view that it does not suspect, those that
leave, and the parts that it has met (meeting.py). Others ask it: to let them leave, to see to who
seems dead, to leave out who holds them up.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import (
    Flushed,
    Layer,
    Left,
    MemberAhead,
    NonMember,
    Suspected,
    TooSlow,
    Trusted,
    Unreachable,
    VerifyWanted,
)
from ringcast.core.shared import Deadlines, GroupState, Named
from ringcast.core.view_change import (
    Begin,
    Cut,
    CutReached,
    Frozen,
    Part,
    SawView,
    StateChanged,
    order,
)
from ringcast.model import Purge, Stream, View, ViewId
from ringcast.protocols.discovery import Discovery, IncompatiblePeer
from ringcast.protocols.intake import seconds
from ringcast.protocols.views.change import (
    COUNTER_LEAP_MAX,
    PATIENCE_NS,
    REPEAT_MAX_NS,
    REPEAT_START_NS,
    ViewChange,
)
from ringcast.protocols.views.follower import Follower
from ringcast.protocols.views.follower import Phase as Following
from ringcast.protocols.views.meeting import GATHER_NS, Meeting, rank
from ringcast.protocols.views.pairs import PROBE_NS, Pairs
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.protocols.views.streams import is_kept
from ringcast.wire import changes as wire
from ringcast.wire.change_codec import tag_of
from ringcast.wire.changes import Holding
from ringcast.wire.frames import Leave
from ringcast.wire.limits import CHANGE_MEMBERS_MAX, VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.config import MembershipConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.core.shared import Timers
    from ringcast.core.view_change import StateStanding
    from ringcast.model import Address, Member
    from ringcast.wire.frames import Frame


class Phase(Enum):
    IDLE = "not started"
    LOOKING = "looking for the group"
    MEMBER = "in the group"
    LEAVING = "leaving"
    OUT = "out of the group"


class Timer(Named):
    HELLO = auto()
    """Say Hello to who may be there."""
    DECIDE = auto()
    """Nobody is there: begin alone?"""
    ADVANCE = auto()
    """Look whether there is a change to be made."""
    REQUEST = auto()
    """Repeat what was asked of the coordinator: to leave, to see to a suspect."""
    LEAVE = auto()
    """It takes too long to leave."""
    PAIRS = auto()
    """Somebody is not heard: ask it, and complain again."""


class GroupViews(Layer):
    """The state machine of one member."""

    frames: ClassVar[tuple[type[Frame], ...]] = (
        wire.Hello,
        wire.Propose,
        wire.State,
        wire.Refuse,
        wire.Finish,
        wire.Cut,
        wire.Flushed,
        wire.Install,
        wire.Installed,
        wire.Complain,
        Leave,
    )
    following: ClassVar[type[Follower]] = Follower
    proposing: ClassVar[type[Proposer]] = Proposer

    def __init__(
        self,
        me: Member,
        config: MembershipConfig,
        *,
        must_exist: bool = False,
        streams: tuple[Stream, ...] = (Stream.FIFO,),
        purge: Purge = Purge.ACKS,
    ) -> None:
        self.me = me
        self.config = config
        self.must_exist = must_exist
        self.purge = purge
        self.phase = Phase.IDLE
        self.started_alone = False
        """Nobody was there, and this member is in a view of its own."""
        self.refusal: str | None = None
        """Why the group that is there cannot be joined as this member is configured."""
        self.ignored = 0  # frames that came too late or from nobody known
        self.change = ViewChange(
            self.following(me, View(ViewId(me, 1), (me,))),
            self.proposing(lambda stream: is_kept(purge, stream)),
            streams,
        )
        self.discovery = Discovery(me, purge)
        self.meeting = Meeting()
        self.pairs = Pairs()
        self._leavers: set[Member] = set()
        self._may_go = False
        self._wants_state = False  # this member, or another of the view
        self._since = 0  # when this phase began
        self._gone_by = 0
        self._interval = REPEAT_START_NS
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner("views")
        self.change.attach(deadlines.owner("view change"))

    # Inputs

    def start(self, now: int, out: Effects) -> None:
        self.phase, self._since = Phase.LOOKING, now
        self._timers.arm(Timer.DECIDE, now + round(self.config.discovery_wait_s * 1e9))
        self.discovery.restart()
        self._say_hello(now, out)

    def add_candidates(self, addresses: Iterable[Address], now: int, out: Effects) -> None:
        """Where members may be found."""
        fresh = self.discovery.add(addresses)
        if self.phase is Phase.LOOKING:
            for address in fresh:
                out.datagram(address, self._hello(is_asking=True))

    def leave(self, now: int, out: Effects, by: int | None = None) -> None:
        """Go, and in any case `by` then."""
        if self.phase is Phase.MEMBER:
            self.phase, self._since = Phase.LEAVING, now
            self._gone_by = now + round(self.config.leave_timeout_s * 1e9) if by is None else by
            self._timers.arm(Timer.LEAVE, self._gone_by)
        elif self.phase is not Phase.LEAVING:
            self._go("left before it was in", out)

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        for frame in frames:
            match frame:
                case _ if self.phase in (Phase.IDLE, Phase.OUT):
                    self.ignored += 1
                case wire.Hello():
                    self._on_hello(source, frame, now, out)
                case wire.Complain():
                    self._on_complain(source, frame, now, out)
                case Leave():
                    self._on_leave(source, now, out)
                case _:
                    self.change.receive(source, frame, now, out)
            self._follow(now, out)

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
                self._suspect(member, reason, now, out)
            case Trusted(member):
                self.change.suspects.pop(member, None)
                self.pairs.hear(member)
            case MemberAhead(member, counter) if counter > self.change.view.counter:
                self._on_ahead(member, now, out)
            case NonMember(member):
                out.datagram(member, self._hello())
            case TooSlow(member):
                self._complain(member, now, out)
            case Unreachable(member):
                self._miss(member, now, out)
            case StateChanged(standing):
                self._on_state_changed(standing, now, out)
            case Flushed() if self.phase is Phase.LEAVING and not self._may_go:
                self._may_go = True
                self._advance(now, out)
        self._follow(now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.HELLO:
                    self._say_hello(now, out)
                case Timer.DECIDE:
                    self._decide(now, out)
                case Timer.ADVANCE:
                    self._advance(now, out)
                case Timer.REQUEST:
                    self._request(now, out)
                case Timer.LEAVE:
                    self._go("left without an answer", out)
                case Timer.PAIRS:
                    self._complain_of_unheard(now, out)
        if self.phase is not Phase.OUT:
            self.change.handle_timeout(now, out)
            self._follow(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        self.phase = Phase.OUT
        self.change.close()
        self._timers.disarm_all()

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
        return not self.change.is_busy and not self.change.lost

    @property
    def is_leaving(self) -> bool:
        return self.phase is Phase.LEAVING

    @property
    def may_rejoin(self) -> bool:
        """Never: who is left out comes in again as it is."""
        return False

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
            "suspects": {str(member): reason for member, reason in change.suspects.items()},
            "elsewhere": sorted(map(str, change.elsewhere)),
            "leavers": len(self._leavers),
            "ignored": self.ignored,
        }

    def explain(self, now: int) -> list[str]:
        reasons = []
        so_far = seconds(now - self._since)
        if self.phase is Phase.LOOKING:
            left = seconds(self._timers.until(Timer.DECIDE, now))
            count = len(self.discovery.candidates)
            reasons.append(
                f"looking for the group for {so_far}: {count} addresses asked; decided in {left}"
            )
        elif self.phase is Phase.LEAVING:
            left = seconds(max(0, self._gone_by - now))
            reasons.append(f"leaving for {so_far}: gone in {left}")
        for member, reason in self.change.suspects.items():
            reasons.append(f"{member} is suspected: {reason}; {self.coordinator} is to see to it")
        wait = self.meeting.not_before(now) - now
        parts = self.meeting.fresh(now)
        if parts and wait > 0:
            names = ", ".join(map(str, parts))
            reasons.append(f"{names} would come in; not for {seconds(wait)}, to give senders time")
        return reasons + self.change.explain(now)

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

    def _follow(self, now: int, out: Effects) -> None:
        """Views may have begun."""
        change = self.change
        if change.parts_lost:
            change.parts_lost = False
            self.meeting.losses.part(now)
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
            self._go("left", out)
            return
        self.discovery.add(member.address for member in view)
        self._leavers = {who for who in self._leavers if who in view}
        self._wants_state = False
        self._timers.arm(Timer.ADVANCE, now)
        if self.phase is Phase.LOOKING:
            if len(view) == 1 and not is_decided:
                return  # what we were let into has come to nothing: look on
            self.phase, self._since = Phase.MEMBER, now
            self._timers.disarm(Timer.DECIDE)
        out.signal(begin)

    def _decide(self, now: int, out: Effects) -> None:
        """Nobody has come by now."""
        if self.change.is_frozen or self.meeting.fresh(now):
            self._timers.arm(Timer.DECIDE, now + PATIENCE_NS)
        elif self.discovery.incompatible_peer is not None:
            self.refusal = self.discovery.incompatible_peer.against(self.purge)
            self._go(self.refusal, out)
        elif self.must_exist:
            self._go(f"nobody answered at {len(self.discovery.candidates)} addresses", out)
        else:
            self.started_alone = True
            view = self.change.view
            part = Part(view.id, view.members, {}, {})
            self.change.frozen_since = now
            self._begin(Begin(view, Cut(view.id, (part,), {}, self.me)), now, out, is_decided=True)

    # A change is to be made

    def _advance(self, now: int, out: Effects) -> None:
        """Propose, if there is reason to and it is on this member."""
        change = self.change
        if self.coordinator != self.me:
            self._request(now, out)
            return
        step, proposal = change.proposer.step, change.proposer.proposal
        if change.is_frozen:
            is_lost = proposal is not None and not change.lost.isdisjoint(proposal.members)
            is_orphaned = proposal is None and change.follower.promised.creator in change.lost
            if is_lost or is_orphaned:
                self._propose((), now, out)
        elif self._may_go and len(change.view) == 1:
            self._go("left", out)
        elif change.lost:
            self.meeting.losses.part(now)
            self._propose((), now, out)
        elif (self._leavers or self._may_go or self._wants_state) and step is Step.IDLE:
            self._propose((), now, out)
        elif self.meeting.fresh(now) and self.phase is not Phase.LEAVING:
            at = self.meeting.not_before(now)
            if at > now or step is not Step.IDLE:
                self._timers.arm(Timer.ADVANCE, max(at, now + GATHER_NS))
                return
            is_large = self.purge is Purge.ACKS
            room = CHANGE_MEMBERS_MAX if is_large else VIEW_MEMBERS_MAX
            parts = list(self.meeting.take(change.view, room, now))
            if parts:
                self._propose(parts, now, out)

    def _propose(self, parts: Sequence[View], now: int, out: Effects) -> None:
        change = self.change
        members = [member for member in change.view if member not in change.lost]
        leaving = self._leavers.intersection(members)
        if self._may_go:
            leaving.add(self.me)
        members += [member for part in parts for member in part]
        change.propose(members, leaving, parts, now, out)

    # Others

    def _hello(self, *, is_asking: bool = False, with_members: bool = False) -> wire.Hello:
        view = self.change.view
        is_told = with_members or len(view) == 1
        return wire.Hello(
            self.purge,
            is_asking,
            self.change.follower.standing.holding in (Holding.HOLDS, Holding.KEEPS),
            self.change.highest,
            self.coordinator if self.is_member else None,
            view.id,
            len(view),
            view.members if is_told else (),
        )

    def _say_hello(self, now: int, out: Effects) -> None:
        if self.phase is Phase.LOOKING or self.coordinator == self.me:
            with_us = {member.address for member in self.change.view}
            hello = self._hello(is_asking=True)
            for address in self.discovery.candidates:
                if address not in with_us:
                    out.datagram(address, hello)
        self._timers.arm(Timer.HELLO, now + self.discovery.interval)
        self.discovery.slow_down()

    def _on_hello(self, source: Member, hello: wire.Hello, now: int, out: Effects) -> None:
        if hello.highest > self.change.highest + COUNTER_LEAP_MAX:
            self.ignored += 1
            return
        self.discovery.add([source.address])
        self.pairs.hear(source)
        if hello.view_id is not None:
            self.change.on_tag(source, tag_of(hello.view_id), now, out)
            self._follow(now, out)
            if order(hello.view_id) > order(self.change.view.id):
                for member in dict.fromkeys((source, *hello.members)):
                    self._on_ahead(member, now, out)
        view = self.change.view
        if source in view:
            if hello.is_asking:
                out.datagram(source, self._hello())
        elif hello.purge is not self.purge:
            if hello.is_asking:
                out.datagram(source, self._hello())
            if self.phase is Phase.LOOKING and hello.coordinator is not None:
                self.discovery.incompatible_peer = IncompatiblePeer(source, hello.purge)
        else:
            self.change.highest = max(self.change.highest, hello.highest)
            for member in view:
                if member.address == source.address:
                    out.signal(VerifyWanted(member))  # restarted, it seems
            self._meet(source, hello, now, out)

    def _meet(self, source: Member, hello: wire.Hello, now: int, out: Effects) -> None:
        """Somebody who could be in one view with us."""
        is_better = rank(hello, source) < rank(self._hello(), self.me)
        if self.coordinator != self.me or self.phase is Phase.LEAVING:
            if hello.is_asking:
                out.datagram(source, self._hello())
        elif hello.coordinator is not None and hello.coordinator != source:
            if hello.coordinator.address != self.me.address:
                told = self._hello(is_asking=True, with_members=is_better)
                out.datagram(hello.coordinator, told)
        elif is_better:
            out.datagram(source, self._hello(with_members=True))
        elif self.phase is Phase.LOOKING and self.must_exist:
            self.ignored += 1  # this member founds nothing
        elif self.pairs.is_barred(hello.members, self.change.view, now):
            self.ignored += 1  # somebody of the view does not hear it
        elif hello.is_asking or not hello.members:
            out.datagram(source, self._hello(is_asking=True))  # what it answers proves it hears us
        elif self.meeting.note(source, hello, now):
            self._timers.arm_if_idle(Timer.ADVANCE, now + GATHER_NS)
        else:
            self.ignored += 1

    # Suspicion, and leaving

    def _suspect(self, member: Member, reason: str, now: int, out: Effects) -> None:
        if member in self.change.view and member != self.me:
            self.change.suspects[member] = reason
            self._interval = REPEAT_START_NS
            self._miss(member, now, out)
            self._advance(now, out)

    def _miss(self, member: Member, now: int, out: Effects) -> None:
        """This member does not hear that one; others may."""
        self.pairs.miss(member, now)
        if not self._timers.is_armed(Timer.PAIRS):
            self._complain_of_unheard(now, out)

    def _complain_of_unheard(self, now: int, out: Effects) -> None:
        self.pairs.forget_old(now)
        if not self.pairs.unheard:
            return
        hello = self._hello(is_asking=True)
        for member in list(self.pairs.unheard):
            out.datagram(member, hello)
            out.datagram(member, wire.Complain(member))  # it may hear this one
            self._report(member, now, out)
        self._timers.arm(Timer.PAIRS, now + PROBE_NS)

    def _report(self, member: Member, now: int, out: Effects) -> None:
        """This member and that one do not hear each other."""
        if self.coordinator == self.me:
            self._judge(self.me, member, now, out)
        else:
            out.datagram(self.coordinator, wire.Complain(member))

    def _judge(self, source: Member, member: Member, now: int, out: Effects) -> None:
        """As coordinator: if both live and stay deaf to each other, one has to go."""
        view, pairs = self.change.view, self.pairs
        pairs.complain(source, member, now)
        if member in view and member != self.me:
            out.signal(VerifyWanted(member))
            out.datagram(member, self._hello(is_asking=True))  # it may be in another view by now
        loser = pairs.broken(view, now)
        if loser is not None and loser != self.me and self.coordinator == self.me:
            self.change.suspects.setdefault(loser, "it and another member do not hear each other")
            self._advance(now, out)

    def _on_state_changed(self, standing: StateStanding, now: int, out: Effects) -> None:
        self.change.follower.standing = standing
        self._wants_state = standing.holding is Holding.LACKS and standing.provider is None
        if self._wants_state and self.is_member:
            self._interval = REPEAT_START_NS
            self._advance(now, out)

    def _on_ahead(self, member: Member, now: int, out: Effects) -> None:
        """It is in another view by now: this one goes on without it; but whoever has promised
        waits for that change to end first, if both are in it."""
        change, proposal = self.change, self.change.follower.proposal
        is_with_me = proposal is not None and change.is_frozen and member in proposal.members
        if member in change.view and member not in change.elsewhere and not is_with_me:
            change.elsewhere.add(member)
            self._advance(now, out)

    def _complain(self, member: Member, now: int, out: Effects) -> None:
        """A member holds this one up."""
        if member not in self.change.view or member == self.me:
            return
        if self.coordinator == self.me:
            self._leavers.add(member)
            self._advance(now, out)
        else:
            out.datagram(self.coordinator, wire.Complain(member, is_slow=True))

    def _on_complain(self, source: Member, complain: wire.Complain, now: int, out: Effects) -> None:
        view, member = self.change.view, complain.member
        is_unheard = not complain.is_slow and not complain.wants_state
        if source in view and is_unheard:
            self._judge(source, member, now, out)
        elif member == self.me and is_unheard:
            if self.pairs.complain(source, member, now):  # else it may hear what we answer
                self._report(source, now, out)
        elif source not in view or member not in view:
            self.ignored += 1
        elif complain.wants_state:
            self._wants_state = True
            self._advance(now, out)
        elif self.coordinator == self.me and self.config.slow_member_timeout_s:
            self._leavers.add(member)
            self._advance(now, out)

    def _on_leave(self, source: Member, now: int, out: Effects) -> None:
        view = self.change.view
        if source in view:
            self._leavers.add(source)
            self._advance(now, out)
        elif view.id.creator == self.me:
            out.datagram(source, wire.Install(view.id))

    def _request(self, now: int, out: Effects) -> None:
        """Ask the coordinator, and ask again until it has seen to it."""
        to, elsewhere = self.coordinator, self.change.elsewhere
        if to == self.me or not (elsewhere or self._may_go or self._wants_state):
            self._timers.disarm(Timer.REQUEST)
            return
        if self._may_go:
            out.datagram(to, Leave())
        if self._wants_state:
            out.datagram(to, wire.Complain(self.me, wants_state=True))
        if elsewhere:
            out.datagram(to, self._hello(is_asking=True))  # is it there, too?
        for member in elsewhere:
            out.datagram(to, wire.Complain(member))
        if self._interval > REPEAT_START_NS:
            out.signal(VerifyWanted(to))
        self._timers.arm(Timer.REQUEST, now + self._interval)
        self._interval = min(2 * self._interval, REPEAT_MAX_NS)

    def _go(self, reason: str, out: Effects) -> None:
        self.phase = Phase.OUT
        self.change.close()
        self._timers.disarm_all()
        out.signal(Left(reason))
