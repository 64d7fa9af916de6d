"""GroupViews: one member finds its group, and goes with it from view to view.

    phase     what happens                                     then
    LOOKING   Begin of a view with others                      MEMBER
              nobody is there for `discovery_wait`             MEMBER, in a view of its own
    MEMBER    leave                                            LEAVING
    LEAVING   Begin of a view without this one                 OUT
              `leave_timeout`                                  OUT
    any       this purges otherwise than the group that it
              found; nobody is there, and somebody must be     OUT

Everybody starts in a view of its own, which is not shown while it looks. Joining, healing, leaving
and losing somebody are one thing: a proposal (follower.py, proposer.py) of the members that are to
go on together. The first of a view proposes (election.py): those of its view that it does not
suspect, those that leave, and the parts that it has met (meeting.py).

Whoever is asked for something repeats nothing; whoever asks repeats it after 40 ms, doubled up to
half a second, until it is answered or has no meaning any more. A member that answers nothing for
PATIENCE is left out of the next proposal; so is the whole part that it belongs to, if that is not
the proposer's. One that refuses is given longer: it verifies first whom it takes to live.

A member that has promised hears from the proposer within PATIENCE, or asks the failure detector;
after twice that the next in order proposes.
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
    VerifyWanted,
)
from ringcast.core.shared import Deadlines, GroupState, Named
from ringcast.core.view_change import (
    Begin,
    Cut,
    CutReached,
    Freeze,
    Frozen,
    Part,
    SawView,
    order,
)
from ringcast.model import Purge, Stream, View, ViewId
from ringcast.protocols.discovery import Discovery, IncompatiblePeer
from ringcast.protocols.intake import seconds
from ringcast.protocols.views import frames as machine
from ringcast.protocols.views import translation
from ringcast.protocols.views.election import coordinator, may_answer
from ringcast.protocols.views.follower import Follower
from ringcast.protocols.views.follower import Phase as Following
from ringcast.protocols.views.meeting import GATHER_NS, Meeting, rank
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.protocols.views.streams import is_kept
from ringcast.wire import changes as wire
from ringcast.wire.change_codec import tag_of
from ringcast.wire.frames import Leave
from ringcast.wire.limits import CHANGE_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.config import MembershipConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.core.shared import Timers
    from ringcast.core.view_change import Flush
    from ringcast.model import Address, Member
    from ringcast.wire.frames import Frame

REPEAT_START_NS = 40_000_000
REPEAT_MAX_NS = 500_000_000
PATIENCE_NS = 500_000_000
"""How long a member may leave a proposal unanswered, or a proposer those who have promised."""

REFUSAL_PATIENCE_NS = PATIENCE_NS // 2
"""How much longer who refuses is waited for: it verifies first whom it takes to live."""

COUNTER_LEAP_MAX = 1 << 32
"""How far the counter of a view may be above all that were heard of."""

JITTER_NS = 20_000_000
"""Proposers that were in each other's way try again after up to so long, and twice as long each
time."""


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
    REPEAT = auto()
    """Ask those again who have not answered my proposal."""
    SILENT = auto()
    """They will not."""
    FROZEN = auto()
    """A proposal that was promised gets nowhere."""
    REQUEST = auto()
    """Repeat what was asked of the coordinator: to leave, to see to a suspect."""
    LEAVE = auto()
    """It takes too long to leave."""


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
        self.streams = streams
        self.purge = purge
        self.phase = Phase.IDLE
        self.started_alone = False
        """Nobody was there, and this member is in a view of its own."""
        self.refusal: str | None = None
        """Why the group that is there cannot be joined as this member is configured."""
        self.suspects: dict[Member, str] = {}
        """Members of the view that seem dead, and why."""
        self.ignored = 0  # frames that came too late or from nobody known
        self.follower = self.following(me, View(ViewId(me, 1), (me,)))
        self.proposer = self.proposing(lambda stream: is_kept(purge, stream))
        self.discovery = Discovery(me, purge)
        self.meeting = Meeting()
        self._views: dict[ViewId, View] = {}  # of the parts of my proposal
        self._told: tuple[ViewId, ...] = ()  # views that the proposer knows, as it said
        self._elsewhere: set[Member] = set()  # of my view, but in another by now
        self._passed: set[Member] = set()  # waited for in vain, since I have promised
        self._stalled = 0  # how often it was waited for in vain
        self._leavers: set[Member] = set()
        self._refusing: set[Member] = set()  # my proposal: they take another to live
        self._highest = 1  # the highest counter heard of
        self._step: tuple[ViewId, Step] | None = None  # of my proposal, as timers have it
        self._waited = 0  # how often those who are silent have been given more time
        self._lost = 0  # proposals that gave way to others, in a row
        self._may_go = False
        self._since = 0  # when this phase began
        self._frozen_since = 0
        self._gone_by = 0
        self._interval = REPEAT_START_NS
        self._request_interval = REPEAT_START_NS
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner("views")

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
        if self.phase in (Phase.IDLE, Phase.OUT):
            self.ignored += len(frames)
            return
        for frame in frames:
            self._receive(source, frame, now, out)

    def _receive(self, source: Member, frame: Frame, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        match frame:
            case wire.Hello():
                self._on_hello(source, frame, now, out)
            case wire.Propose():
                self._on_propose(source, translation.decode_propose(frame), frame.known, wishes)
                self._refuse(wishes, now, out)
            case wire.State():
                state = translation.decode_state(frame, self._views)
                if state is not None:
                    self._views[state.view.id] = state.view
                    self.proposer.on_state(source, state, wishes)
            case wire.Refuse():
                self._on_refuse(source, frame, now, out)
            case wire.Finish():
                self.follower.on_finish(source, frame, wishes)
            case wire.Cut():
                self._on_cut(source, frame, wishes)
            case wire.Flushed():
                self.proposer.on_flushed(source, frame, wishes)
            case wire.Install():
                self.follower.on_install(source, frame, wishes)
            case wire.Installed():
                self.proposer.on_installed(source, frame)
                self._go_last(wishes)
            case wire.Complain():
                self._on_complain(source, frame, now, out)
            case Leave():
                self._on_leave(source, now, out)
        self._do(wishes, now, out)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        match signal:
            case _ if self.phase is Phase.OUT:
                return
            case Frozen(id, snapshot):
                self.follower.on_snapshot(id, snapshot, wishes)
            case CutReached(id):
                self.follower.on_flushed(id, wishes)
            case SawView(source, tag):
                self._on_tag(source, tag, wishes)
            case Suspected(member, reason):
                self._suspect(member, reason, now, out)
            case Trusted(member):
                self.suspects.pop(member, None)
            case MemberAhead(member):
                self._on_ahead(member, now, out)
            case NonMember(member):
                out.datagram(member, self._hello())
            case TooSlow(member):
                self._complain(member, now, out)
            case Flushed() if self.phase is Phase.LEAVING and not self._may_go:
                self._may_go = True
                self._request(now, out)
                self._advance(now, out)
        self._do(wishes, now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.HELLO:
                    self._say_hello(now, out)
                case Timer.DECIDE:
                    self._decide(now, out)
                case Timer.ADVANCE:
                    self._advance(now, out)
                case Timer.REPEAT:
                    self._repeat(now, out)
                case Timer.SILENT:
                    self._lose_patience(now, out)
                case Timer.FROZEN:
                    self._on_stalled(now, out)
                case Timer.REQUEST:
                    self._request(now, out)
                case Timer.LEAVE:
                    self._go("left without an answer", out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        self.phase = Phase.OUT
        self.proposer.stop()
        self._timers.disarm_all()

    # Outputs

    @property
    def view(self) -> View | None:
        """The one that this member is in, once it is shown."""
        return self.follower.view if self.is_member else None

    @property
    def is_member(self) -> bool:
        return self.phase in (Phase.MEMBER, Phase.LEAVING)

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
        return coordinator(self.follower.view, self._gone, self.me)

    def stats(self) -> dict[str, object]:
        return {
            "phase": self.phase.value,
            "view": str(self.view),
            "following": self.follower.phase.value,
            "proposing": self.proposer.step.value,
            "unanswered_by": sorted(map(str, self.proposer.awaited)),
            "candidates": len(self.discovery.candidates),
            "parts_met": len(self.meeting.parts),
            "suspects": {str(member): reason for member, reason in self.suspects.items()},
            "elsewhere": sorted(map(str, self._elsewhere)),
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
        for member, reason in self.suspects.items():
            reasons.append(f"{member} is suspected: {reason}; {self.coordinator} is to see to it")
        if self.proposer.awaited:
            names = ", ".join(sorted(map(str, self.proposer.awaited)))
            assert self.proposer.proposal is not None
            left = seconds(self._timers.until(Timer.SILENT, now))
            reasons.append(
                f"view {self.proposer.proposal.id} ({self.proposer.step.value}) waits for "
                f"{names}; given up in {left}"
            )
        elif self._is_frozen:
            reasons.append(
                f"view {self.follower.promised} was promised "
                f"{seconds(now - self._frozen_since)} ago: {self.follower.promised.creator} "
                "is to go on with it"
            )
        return reasons

    def check_invariants(self) -> None:
        if self.phase in (Phase.IDLE, Phase.OUT):
            return
        is_armed = self._timers.is_armed
        assert self.me in self.follower.view
        assert is_armed(Timer.HELLO)
        assert is_armed(Timer.DECIDE) == (self.phase is Phase.LOOKING)
        assert is_armed(Timer.FROZEN) == self._is_frozen
        assert is_armed(Timer.REPEAT) == (self.proposer.step is not Step.IDLE)
        assert is_armed(Timer.SILENT) == (self.proposer.step is not Step.IDLE)

    # What machines want

    @property
    def _is_frozen(self) -> bool:
        return self.follower.phase not in (Following.OPEN, Following.OUT)

    @property
    def _gone(self) -> set[Member]:
        return {*self.suspects, *self._elsewhere, *self._passed}

    def _do(self, wishes: machine.Wishes, now: int, out: Effects) -> None:
        """Frames to this member itself are received at once."""
        while wishes.frames or wishes.streams:
            for wish in wishes.streams:
                if isinstance(wish, Begin):
                    self._begin(wish, now, out)
                else:
                    self._freeze_or_flush(wish, now, out)
            wishes.streams.clear()
            frames, wishes.frames = wishes.frames, []
            for dest, frame in frames:
                if dest == self.me:
                    self._receive_own(frame, wishes)
                else:
                    out.datagram(dest, self._as_said(frame))
            if self.phase is Phase.OUT:
                return
        self._watch(now)

    def _freeze_or_flush(self, wish: Freeze | Flush, now: int, out: Effects) -> None:
        if isinstance(wish, Freeze):
            if not self._timers.is_armed(Timer.FROZEN):
                self._frozen_since = now
            self._passed.clear()
            self._stalled = 0
            mine = self.proposer.proposal
            if mine is not None and mine.id != wish.id:
                self.proposer.stop()
        self._timers.arm(Timer.FROZEN, now + PATIENCE_NS)
        out.signal(wish)

    def _receive_own(self, frame: machine.ChangeFrame, wishes: machine.Wishes) -> None:
        match frame:
            case machine.Propose():
                self.follower.on_propose(self.me, frame, wishes)
            case machine.State():
                self._views[frame.view.id] = frame.view
                self.proposer.on_state(self.me, frame, wishes)
            case wire.Finish():
                self.follower.on_finish(self.me, frame, wishes)
            case Cut():
                self.follower.on_cut(self.me, frame, wishes)
            case wire.Flushed():
                self.proposer.on_flushed(self.me, frame, wishes)
            case wire.Install():
                if not self._has_to_tell():
                    self.follower.on_install(self.me, frame, wishes)
            case wire.Installed():
                self.proposer.on_installed(self.me, frame)

    def _has_to_tell(self) -> bool:
        """This member leaves with the view that it makes: the others hear of it first."""
        proposal = self.proposer.proposal
        others = self.proposer.awaited.keys() - {self.me}
        return proposal is not None and self.me in proposal.leaving and bool(others)

    def _go_last(self, wishes: machine.Wishes) -> None:
        proposal = self.proposer.proposal
        is_last = self.proposer.step is Step.TELL and self.proposer.awaited.keys() == {self.me}
        if proposal is not None and is_last:
            self.follower.on_install(self.me, wire.Install(proposal.id), wishes)

    def _as_said(self, frame: machine.ChangeFrame) -> Frame:
        match frame:
            case machine.Propose():
                return translation.encode_propose(frame, tuple(self._views))
            case machine.State():
                return translation.encode_state(frame, self._told)
            case Cut():
                assert self.proposer.proposal is not None
                return translation.encode_cut(frame, self.proposer.proposal, self._views)
            case _:
                return frame

    def _watch(self, now: int) -> None:
        """Timers follow what the machines wait for."""
        proposal = self.proposer.proposal
        step = None if proposal is None else (proposal.id, self.proposer.step)
        if step is None:
            self._timers.disarm(Timer.REPEAT)
            self._timers.disarm(Timer.SILENT)
        elif step != self._step:
            self._interval = REPEAT_START_NS
            self._timers.arm(Timer.REPEAT, now + self._interval)
            self._timers.arm(Timer.SILENT, now + PATIENCE_NS)
        self._step = step
        if not self._is_frozen:
            self._timers.disarm(Timer.FROZEN)

    # As follower

    def _on_propose(
        self,
        source: Member,
        proposal: machine.Propose,
        known: tuple[ViewId, ...],
        wishes: machine.Wishes,
    ) -> None:
        if proposal.id.counter > self._highest + COUNTER_LEAP_MAX:
            self.ignored += 1
            return
        self._highest = max(self._highest, proposal.id.counter)
        is_higher = order(proposal.id) > order(self.follower.promised)
        view = self.follower.view
        if proposal.id.counter <= view.counter and proposal.id != view.id:
            wishes.send(source, wire.Refuse(proposal.id, self.follower.promised))
            return
        is_same = self._is_frozen and source == self.follower.promised.creator
        may = is_same or may_answer(source, proposal, view, self._gone, self.me)
        if is_higher and not may:
            wishes.send(source, wire.Refuse(proposal.id, None, self.coordinator))
            return
        self._told = known
        self.follower.on_propose(source, proposal, wishes)

    def _refuse(self, wishes: machine.Wishes, now: int, out: Effects) -> None:
        """Whom we take to live is verified before we refuse the next time; if it is on us, we
        propose."""
        for _, frame in wishes.frames:
            if isinstance(frame, wire.Refuse) and frame.coordinator is not None:
                if frame.coordinator != self.me:
                    out.signal(VerifyWanted(frame.coordinator))
                elif self.proposer.step in (Step.IDLE, Step.TELL):
                    self._propose(now, out)

    def _on_cut(self, source: Member, frame: wire.Cut, wishes: machine.Wishes) -> None:
        proposal = self.follower.proposal
        if proposal is not None and proposal.id == frame.id:
            cut = translation.decode_cut(frame, proposal, self.follower.view, self.streams)
            if cut is not None and any(self.me in part.members for part in cut.parts):
                self.follower.on_cut(source, cut, wishes)

    def _on_tag(self, source: Member, tag: int, wishes: machine.Wishes) -> None:
        """Somebody is in the view that was flushed here: everybody has flushed it."""
        proposal = self.follower.proposal
        if proposal is not None and tag == tag_of(proposal.id) and source in proposal.members:
            self.follower.on_install(proposal.id.creator, wire.Install(proposal.id), wishes)

    def _begin(self, begin: Begin, now: int, out: Effects, *, is_decided: bool = False) -> None:
        view = begin.view
        self._highest = max(self._highest, view.counter)
        held_up = now - self._frozen_since if self._timers.is_armed(Timer.FROZEN) else 0
        is_merge = len(begin.cut.parts) > 1
        self.meeting.changed(held_up, now, is_merge=is_merge)
        if self.follower.phase is Following.OUT:
            self._go("left", out)
            return
        for member in view:
            self.discovery.add([member.address])
        self.suspects = {who: why for who, why in self.suspects.items() if who in view}
        self._leavers = {who for who in self._leavers if who in view}
        self._elsewhere.clear()
        self._passed.clear()
        self._lost = 0
        self._views = {view.id: view}
        self._timers.arm(Timer.ADVANCE, now)
        if self.phase is Phase.LOOKING:
            if len(view) == 1 and not is_decided:
                return  # what we were let into has come to nothing: look on
            self.phase, self._since = Phase.MEMBER, now
            self._timers.disarm(Timer.DECIDE)
        out.signal(begin)

    def _on_stalled(self, now: int, out: Effects) -> None:
        """Who is to go on with the change does not: in the end somebody else has to."""
        proposer = self.follower.promised.creator
        self._stalled += 1
        if self._stalled == 1 and proposer != self.me:
            out.signal(VerifyWanted(proposer))
        elif self._stalled == 2 and proposer != self.me:
            self._passed.add(proposer)
        elif self.coordinator != self.me:
            self._passed.add(self.coordinator)
        self._timers.arm(Timer.FROZEN, now + PATIENCE_NS)
        if self.proposer.step is Step.IDLE and self.coordinator == self.me and self._stalled > 1:
            self._propose(now, out)

    # As proposer

    def _advance(self, now: int, out: Effects) -> None:
        """Make the next view, if there is reason to and it is on this member to make it."""
        if self.phase is Phase.OUT or self.coordinator != self.me:
            self._request(now, out)
            return
        view, lost = self.follower.view, {*self.suspects, *self._elsewhere}
        mine = self.proposer.proposal
        if self._is_frozen or self.proposer.step not in (Step.IDLE, Step.TELL):
            is_needed = mine is not None and not lost.isdisjoint(mine.members)
            is_orphaned = mine is None and self.follower.promised.creator in lost
            if is_needed or is_orphaned:
                self._propose(now, out)
            return
        if self._may_go and len(view) == 1:
            self._go("left", out)
        elif lost & set(view):
            self.meeting.losses.part(now)
            self._propose(now, out)
        elif (self._leavers or self._may_go) and self.proposer.step is Step.IDLE:
            self._propose(now, out)
        elif self.meeting.parts and self.phase is not Phase.LEAVING:
            at = self.meeting.not_before(now)
            if at > now:
                self._timers.arm(Timer.ADVANCE, at)
            elif self.proposer.step is Step.IDLE:
                self._propose(now, out, with_parts=True)
            else:
                self._timers.arm(Timer.ADVANCE, now + GATHER_NS)

    def _propose(self, now: int, out: Effects, *, with_parts: bool = False) -> None:
        view, lost = self.follower.view, {*self.suspects, *self._elsewhere}
        staying = [member for member in view if member not in lost]
        self._views = {view.id: view}
        members = staying
        if with_parts:
            for part in self.meeting.take(view, CHANGE_MEMBERS_MAX, now):
                self._views[part.id] = part
                members = [*members, *part]
            if len(members) == len(view):
                return
        leaving = {who for who in staying if who in self._leavers}
        if self._may_go:
            leaving.add(self.me)
        if leaving >= set(members):
            leaving.discard(self.me)
        self._offer(members, leaving, now, out)

    def _offer(
        self, members: Sequence[Member], leaving: set[Member], now: int, out: Effects
    ) -> None:
        self._highest = max(self._highest, self.follower.promised.counter) + 1
        self._refusing.clear()
        self._waited = 0
        proposal = machine.Propose(
            ViewId(self.me, self._highest), tuple(members), frozenset(leaving)
        )
        wishes = machine.Wishes()
        self.proposer.propose(proposal, wishes)
        self._do(wishes, now, out)

    def _repeat(self, now: int, out: Effects) -> None:
        wishes = machine.Wishes()
        self.proposer.repeat(wishes)
        self._interval = min(2 * self._interval, REPEAT_MAX_NS)
        self._timers.arm(Timer.REPEAT, now + self._interval)
        self._do(wishes, now, out)

    def _lose_patience(self, now: int, out: Effects) -> None:
        """Go on without those who do not answer, and without the parts that they belong to."""
        proposal, step = self.proposer.proposal, self.proposer.step
        assert proposal is not None
        silent = set(self.proposer.awaited) - {self.me}
        if step is Step.TELL:
            wishes = machine.Wishes()
            self.proposer.stop()
            if self.me in proposal.leaving:
                self.follower.on_install(self.me, wire.Install(proposal.id), wishes)
            self._do(wishes, now, out)
            return
        self._waited += 1
        if silent and silent <= self._refusing and self._waited == 1:
            self._timers.arm(Timer.SILENT, now + REFUSAL_PATIENCE_NS)
            return
        self._go_on_without(silent, now, out)

    def _go_on_without(self, silent: set[Member], now: int, out: Effects) -> None:
        proposal = self.proposer.proposal
        assert proposal is not None
        mine = self.follower.view
        lost = set(silent)
        for view in self._views.values():
            if view.id != mine.id and not silent.isdisjoint(view):
                lost.update(view)
        if lost - set(mine):
            self.meeting.losses.part(now)
        for member in silent & set(mine):
            self.suspects.setdefault(member, "does not answer a proposal")
            out.signal(VerifyWanted(member))
        staying = [member for member in proposal.members if member not in lost]
        self._offer(staying, set(proposal.leaving) & set(staying), now, out)

    def _on_refuse(self, source: Member, refuse: wire.Refuse, now: int, out: Effects) -> None:
        proposal = self.proposer.proposal
        if proposal is None or refuse.id != proposal.id:
            self.ignored += 1
            return
        if refuse.promised is None and source not in self.follower.view:
            self._go_on_without({source}, now, out)
            return
        if refuse.promised is None and refuse.coordinator != source:
            self._refusing.add(source)
            return
        if refuse.promised is None:
            self._passed.discard(source)  # it is there, and goes first
            self.proposer.stop()
        else:
            self._highest = max(self._highest, refuse.promised.counter)
            self.proposer.on_refuse(refuse)
        self._watch(now)
        jitter = (self.me.incarnation * 2654435761 + self.me.address.port) % JITTER_NS
        wait = PATIENCE_NS + (jitter << min(self._lost, 4))
        self._lost += 1
        self._timers.arm(Timer.FROZEN, now + wait)

    # Others

    def _hello(self, *, is_asking: bool = False, with_members: bool = False) -> wire.Hello:
        view = self.follower.view
        is_told = with_members or len(view) == 1
        return wire.Hello(
            self.purge,
            is_asking,
            False,
            self._highest,
            self.coordinator if self.is_member else None,
            view.id,
            len(view),
            view.members if is_told else (),
        )

    def _say_hello(self, now: int, out: Effects) -> None:
        if self.phase is Phase.LOOKING or self.coordinator == self.me:
            with_us = {member.address for member in self.follower.view}
            hello = self._hello(is_asking=True)
            for address in self.discovery.candidates:
                if address not in with_us:
                    out.datagram(address, hello)
        self._timers.arm(Timer.HELLO, now + self.discovery.interval)
        self.discovery.slow_down()

    def _on_hello(self, source: Member, hello: wire.Hello, now: int, out: Effects) -> None:
        self.discovery.add([source.address])
        view = self.follower.view
        if hello.highest > self._highest + COUNTER_LEAP_MAX:
            self.ignored += 1
            return
        if source in view:
            if hello.view_id is not None and order(hello.view_id) > order(view.id):
                self._on_ahead(source, now, out)
            return
        for member in view:
            if member.address == source.address:
                out.signal(VerifyWanted(member))  # restarted, it seems
        if hello.purge is not self.purge:
            if hello.is_asking:
                out.datagram(source, self._hello())
            if self.phase is Phase.LOOKING and hello.coordinator is not None:
                self.discovery.incompatible_peer = IncompatiblePeer(source, hello.purge)
            return
        self._highest = max(self._highest, hello.highest)
        is_better = rank(hello, source) < rank(self._hello(), self.me)
        is_coordinator = self.coordinator == self.me
        if not is_coordinator or self.phase is Phase.LEAVING:
            if hello.is_asking:
                out.datagram(source, self._hello())
        elif hello.coordinator not in (None, source):
            assert hello.coordinator is not None
            if hello.coordinator.address != self.me.address:
                out.datagram(hello.coordinator, self._hello(is_asking=True, with_members=is_better))
        elif is_better:
            out.datagram(source, self._hello(with_members=True))
        elif self.phase is Phase.LOOKING and self.must_exist:
            pass
        elif self.meeting.note(source, hello, now):
            self._timers.arm_if_idle(Timer.ADVANCE, now + GATHER_NS)
            if hello.is_asking:
                out.datagram(source, self._hello())
        else:
            out.datagram(source, self._hello(is_asking=True))

    def _decide(self, now: int, out: Effects) -> None:
        """Nobody has come by now."""
        if self._is_frozen or self.meeting.parts:
            self._timers.arm(Timer.DECIDE, now + PATIENCE_NS)
        elif self.discovery.incompatible_peer is not None:
            self.refusal = self.discovery.incompatible_peer.against(self.purge)
            self._go(self.refusal, out)
        elif self.must_exist:
            self._go(f"nobody answered at {len(self.discovery.candidates)} addresses", out)
        else:
            self.started_alone = True
            view = self.follower.view
            part = Part(view.id, view.members, {}, {})
            self._begin(Begin(view, Cut(view.id, (part,), {})), now, out, is_decided=True)

    # Suspicion, and leaving

    def _suspect(self, member: Member, reason: str, now: int, out: Effects) -> None:
        if member in self.follower.view and member != self.me:
            self.suspects[member] = reason
            self._request_interval = REPEAT_START_NS
            self._advance(now, out)

    def _on_ahead(self, member: Member, now: int, out: Effects) -> None:
        """It is in another view by now: this one goes on without it."""
        if member in self.follower.view and member not in self._elsewhere:
            self._elsewhere.add(member)
            self._advance(now, out)

    def _complain(self, member: Member, now: int, out: Effects) -> None:
        """A member holds this one up."""
        if member not in self.follower.view or member == self.me:
            return
        if self.coordinator == self.me:
            self._leavers.add(member)
            self._advance(now, out)
        else:
            out.datagram(self.coordinator, wire.Complain(member, is_slow=True))

    def _on_complain(self, source: Member, complain: wire.Complain, now: int, out: Effects) -> None:
        view = self.follower.view
        if source not in view or complain.member not in view or complain.member == self.me:
            self.ignored += 1
        elif not complain.is_slow:
            out.signal(VerifyWanted(complain.member))
        elif self.coordinator == self.me and self.config.slow_member_timeout_s:
            self._leavers.add(complain.member)
            self._advance(now, out)

    def _on_leave(self, source: Member, now: int, out: Effects) -> None:
        view = self.follower.view
        if source in view:
            self._leavers.add(source)
            self._advance(now, out)
        elif view.id.creator == self.me:
            out.datagram(source, wire.Install(view.id))

    def _request(self, now: int, out: Effects) -> None:
        """Ask the coordinator, and ask again until it has seen to it."""
        to = self.coordinator
        if self.phase is Phase.OUT or to == self.me or not (self.suspects or self._may_go):
            self._timers.disarm(Timer.REQUEST)
            return
        if self._may_go:
            out.datagram(to, Leave())
        for member in self.suspects:
            out.datagram(to, wire.Complain(member))
        if self._request_interval > REPEAT_START_NS:
            out.signal(VerifyWanted(to))
        self._timers.arm(Timer.REQUEST, now + self._request_interval)
        self._request_interval = min(2 * self._request_interval, REPEAT_MAX_NS)

    def _go(self, reason: str, out: Effects) -> None:
        self.phase = Phase.OUT
        self.proposer.stop()
        self._timers.disarm_all()
        out.signal(Left(reason))
