"""Membership: who is in the group. Members find it, are let in, leave, and are missed.

What holds: views have counters that only grow at each member, the same view id means the same
members in the same order, and a member is in every view that it installs (G4). A joiner delivers
from each sender exactly what comes after the place where its window opened (N9). Once the network
works, live members that hear each other end in one view.

The first member of a view coordinates: it alone makes the next one. If it is suspected, the first
that is not suspected acts in its place. All frames are repeated by their owner's timer until they
are answered, and none waits for a window (N-L4).

Looking (discovery.py)  until somebody names a coordinator, or it is on us to start alone.
Joining                 Join to the coordinator, again and again. Its Welcome says where windows
                        open: then we are in. Silence for too long: look again.
On Discover or DiscoverReply of somebody who purges otherwise (Purge): let it know how we do.
    Groups that do not agree on that never come together, so who finds one while it is looking
    gives up.
On Join, as coordinator: note it, and make a view as soon as none is being made: several joiners
    may share one. A joiner with the address of a member is that one, restarted: the old one goes.
Making a view: install it; send ViewIs to its old members and to those it leaves out; wait until
    all old members have acknowledged. From then on nobody purges anything without the joiners
    (the freeze), so only now is a digest taken, and sent to them as Welcome. Where it stands in the
    middle of a large message, they fetch the part that was taken already. They acknowledge too.
    One join at a time; but who leaves or is missed meanwhile is left out by yet another view, and
    the waiting starts over with that. Who does not acknowledge for too long is left out as well.
On ViewIs from a member, if newer and made by one: install it and acknowledge. If older, or of
    another maker: say what mine is. A coordinator that hears of a view that it does not know (its
    predecessor died making it) makes another above it, of those who are in both.
    With somebody in it who has departed from here, and whom no merge brings back: it does not
    follow on my view, two members have made one each. Neither of us has a window for the other any
    more, so it is not installed: those of mine who are there have parted from us.
    Without me in it: if most of my others are there, it is I who am out; whoever did not ask for
    that may come back as another incarnation. If not, they have parted from us: the coordinator
    goes on without them. Both sides have excluded each other then, and may come together again.
On Suspected: leave that member out, or tell whoever acts as coordinator. On Suspect from a member:
    see for oneself first. On signs of life from an outsider, or from a member that is behind: say
    what the view is. On TooSlow, if that was agreed: as on Leave of that member. A coordinator that
    is too slow itself goes, and may come back.
On leave: once everything sent is taken, Leave to the coordinator until a view leaves us out. A
    coordinator makes that view itself. After `leave_timeout` we are gone all the same.
A coordinator keeps looking, slowly (reunion.py). On DiscoverReply of another group: the lesser of
    the two coordinators asks the other with MergeRequest, as long as it makes no view itself.
On MergeRequest, as coordinator, when no view is being made: make one of both groups, above both,
    and tell everybody in it with Merged. The parts must have nobody in common: of whoever is in
    both, the older view gives way first. If the asker's group changes meanwhile, so does the merged
    view; but one of my own part who asks has parted from us, and is left out as who does not
    acknowledge.
On Merged, if it was made from the view that I am in: install it and acknowledge. Each member keeps
    the windows it has; for those that are new to it but not new, each sender itself says where
    they begin (multicast.py). So nothing depends on who dies in between: the next coordinator
    tells of the parts as well, until all have acknowledged.
"""

from __future__ import annotations

from collections import deque
from enum import auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import (
    Admitted,
    DigestAgreed,
    DigestTaken,
    DigestWanted,
    Flushed,
    Layer,
    Left,
    LetIn,
    NewerView,
    NonMember,
    Reunited,
    Settled,
    Suspected,
    TooSlow,
    Trusted,
    VerifyWanted,
    ViewAgreed,
)
from ringcast.core.shared import DEPARTED_MAX, Deadlines, GroupState, Named, Phase
from ringcast.model import Digest, Origin, Purge, Stream, View, ViewId
from ringcast.protocols.admission import Admission
from ringcast.protocols.change import REPEAT_MAX_NS, REPEAT_START_NS, Change, announcement
from ringcast.protocols.discovery import GATHER_NS, Discovery, IncompatiblePeer, rank
from ringcast.protocols.intake import seconds
from ringcast.protocols.reunion import Reunion
from ringcast.wire.frames import (
    Discover,
    DiscoverReply,
    Half,
    HalfWanted,
    Join,
    Leave,
    Merged,
    MergeRequest,
    Suspect,
    ViewAck,
    ViewIs,
    Welcome,
)
from ringcast.wire.limits import VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.config import MembershipConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.core.shared import Timers
    from ringcast.model import Address, Member
    from ringcast.wire.frames import Frame

JOIN_PATIENCE_NS = 2_000_000_000
"""How long a joiner waits for a sign of its coordinator before it looks for another."""

GOODBYE_SHARE = 4
"""Of the time that leaving may take, one part in so many is kept for the others to let us go."""

INCOMPATIBLE_RECENTLY_NS = 60_000_000_000
"""How long somebody who purges otherwise is worth mentioning: it may have been put right since."""

COUNTER_LEAP_MAX = 1 << 32
"""How far the counter of a view may be above all that were heard of. No groups are parted for so
many views; and whoever makes the next one must be able to count on."""


class Timer(Named):
    ASK = auto()
    """Looking: ask candidates again. A coordinator: look whether there is another group."""
    DECIDE = auto()
    """Nobody has answered: start alone?"""
    REQUEST = auto()
    """Repeat what was asked of the coordinator: to join, to leave, to see to a suspect."""
    PATIENCE = auto()
    """Joining: the coordinator is silent. Leaving: it takes too long."""
    CHANGE = auto()
    """A view that I made is not acknowledged by all: repeat it."""
    OVERDUE = auto()
    """Nor will it be."""
    MERGE = auto()
    """Another group has not answered: ask it again."""


class Membership(Layer):
    """The state machine of one member."""

    frames: ClassVar[tuple[type[Frame], ...]] = (
        Discover,
        DiscoverReply,
        Join,
        ViewIs,
        ViewAck,
        Welcome,
        HalfWanted,
        Half,
        Leave,
        Suspect,
        MergeRequest,
        Merged,
    )

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
        self.view: View | None = None
        self.started_alone = False
        """Nobody was there, and this member has made the first view."""
        self.may_rejoin = False
        """Out of the group without having asked for it: come back as another incarnation."""
        self.refusal: str | None = None
        """Why the group that is there cannot be joined as this member is configured."""
        self.suspects: dict[Member, str] = {}
        """Members of the view that seem dead, and why."""
        self.change: Change | None = None
        self.ignored = 0  # frames that came too late or from nobody known
        self.incompatible_peers = 0  # frames of members that purge otherwise
        self._incompatible_peer: IncompatiblePeer | None = None  # the last of them
        self._incompatible_at = 0
        self.discovery = Discovery(me, purge)
        self.reunion = Reunion()
        self._coordinator: Member | None = None  # whom a joiner asks
        self._admission: Admission | None = None
        self._joiners: dict[Member, None] = {}  # waiting for the next view
        self._leavers: set[Member] = set()
        self._diverged: dict[Member, View] = {}  # of my view, but gone on to this one without me
        self._departed: deque[Member] = deque(maxlen=DEPARTED_MAX)
        self._highest = 0  # the highest counter heard of
        self._is_flushed = False
        self._is_settled = True  # nothing of the departed is left to be done
        self._parts: tuple[View, ...] = ()  # of which the view was made, if it was a merge
        self._since = 0  # when this phase began
        self._gone_by = 0  # until when leaving may take
        self._interval = REPEAT_START_NS
        self._overdue = round((2 * config.suspect_after_s + config.verify_s) * 1e9)
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner("membership")

    # Inputs

    def start(self, now: int, out: Effects) -> None:
        self._look(now, out)

    def add_candidates(self, addresses: Iterable[Address], now: int, out: Effects) -> None:
        """Where members may be found."""
        fresh = self.discovery.add(addresses)
        if self.phase is Phase.LOOKING:
            self.discovery.ask(fresh, out)

    def leave(self, now: int, out: Effects, by: int | None = None) -> None:
        """Go, once everything that was sent is taken, and in any case `by` then: some of the time
        that leaving may take may have passed before this call."""
        if self.phase is Phase.MEMBER:
            self._enter(Phase.LEAVING, now)
            self._timers.disarm(Timer.ASK)
            timeout = round(self.config.leave_timeout_s * 1e9)
            self._gone_by = now + timeout if by is None else by
            patience = self._gone_by - timeout // GOODBYE_SHARE
            self._timers.arm(Timer.PATIENCE, max(now, patience))
        elif self.phase is not Phase.LEAVING:
            if self._coordinator is not None:
                out.datagram(self._coordinator, Leave())
            self._go("left before it was in", out)

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        if self.phase in (Phase.IDLE, Phase.OUT):
            self.ignored += len(frames)
            return
        for frame in frames:
            match frame:
                case ViewIs(view) | Merged(view) | MergeRequest(view) | Welcome(view) if (
                    view.counter > self._highest + COUNTER_LEAP_MAX
                ):
                    self.ignored += 1
                case Discover():
                    self._on_discover(source, frame, now, out)
                case DiscoverReply():
                    self._on_discover_reply(source, frame, now, out)
                case Join():
                    self._on_join(source, now, out)
                case ViewIs(view):
                    self._on_view(source, view, (), now, out)
                case Merged(view, parts):
                    self._on_view(source, view, parts, now, out)
                case MergeRequest(view):
                    self._on_merge_request(source, view, now, out)
                case ViewAck(view_id):
                    self._on_view_ack(source, view_id, now, out)
                case Welcome():
                    self._on_welcome(source, frame, now, out)
                case HalfWanted():
                    self._on_half_wanted(source, frame, now, out)
                case Half():
                    self._on_half(source, frame, now, out)
                case Leave():
                    self._on_leave(source, now, out)
                case Suspect(member, is_slow):
                    self._on_suspect(source, member, is_slow, now, out)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        match signal:
            case DigestTaken(digest, taken):
                self._on_digest(digest, taken or digest, now, out)
            case Suspected(member, reason):
                self._suspect(member, reason, now, out)
            case TooSlow(member):
                self._complain(member, now, out)
            case NewerView(view_id) if not self.is_member:
                if view_id.counter <= self._highest + COUNTER_LEAP_MAX:
                    self._expect(view_id)
            case Settled(is_settled):
                self._is_settled = is_settled
                if self.change is None:  # groups may be waiting to come together
                    self._advance(now, out)
            case Trusted(member):
                self.suspects.pop(member, None)
            case NonMember(member):
                self._tell_non_member(member, out)
            case Flushed() if self.phase is Phase.LEAVING and not self._is_flushed:
                self._set_out(now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.ASK:
                    self._search(now, out)
                case Timer.DECIDE:
                    self._decide(now, out)
                case Timer.REQUEST:
                    self._request(now, out)
                case Timer.PATIENCE:
                    self._lose_patience(now, out)
                case Timer.CHANGE:
                    self._repeat_change(now, out)
                case Timer.OVERDUE:
                    self._leave_out_the_silent(now, out)
                case Timer.MERGE:
                    self._ask_to_merge(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        self.phase = Phase.OUT
        self.change = None
        self.reunion.end()
        self._timers.disarm_all()

    # Outputs

    @property
    def is_member(self) -> bool:
        return self.phase in (Phase.MEMBER, Phase.LEAVING)

    @property
    def is_idle(self) -> bool:
        """No view is being made, nor is there need of one."""
        return self.change is None and not self.suspects

    @property
    def is_leaving(self) -> bool:
        """Nothing more is to be sent; it waits for others to take what was."""
        return self.phase is Phase.LEAVING

    @property
    def coordinator(self) -> Member | None:
        """Whoever acts as one: the first of the view that is not suspected, nor gone astray."""
        if self.view is None:
            return None
        gone = self.suspects.keys() | self._diverged.keys()
        return next((member for member in self.view if member not in gone), self.me)

    @property
    def _host(self) -> Member | None:
        """Whom joiners are to ask."""
        if self.view is None or not self.is_member:
            return None
        staying = (who for who in self.view if who not in self.suspects and who != self.me)
        return next(staying, None) if self._is_flushed else self.coordinator

    def stats(self) -> dict[str, object]:
        change = self.change
        return {
            "phase": self.phase.value,
            "view": str(self.view),
            "candidates": len(self.discovery.candidates),
            "rivals": len(self.discovery.rivals),
            "groups_that_would_merge": len(self.reunion.requests),
            "suspects": {str(member): reason for member, reason in self.suspects.items()},
            "joiners_waiting": len(self._joiners),
            "leavers": len(self._leavers),
            "view_not_acked_by": [] if change is None else sorted(map(str, change.awaiting)),
            "joiners_not_in": [] if change is None else list(map(str, change.joiners)),
            "ignored": self.ignored,
            "incompatible_peers": self.incompatible_peers,
        }

    def explain(self, now: int) -> list[str]:
        reasons = []
        so_far = seconds(now - self._since)
        if self.phase is Phase.LOOKING:
            count = len(self.discovery.candidates)
            left = self._timers.until(Timer.DECIDE, now)
            reasons.append(
                f"looking for the group for {so_far}: {count} addresses asked; "
                f"decided in {seconds(left)}"
            )
        elif self.phase is Phase.JOINING:
            left = self._timers.until(Timer.PATIENCE, now)
            reasons.append(
                f"join pending: {self._coordinator} has not let us in for {so_far}; "
                f"if it is silent for {seconds(left)} more, look for another"
            )
        elif self.phase is Phase.LEAVING:
            left = max(0, self._gone_by - now)
            waits = "the others' goodbye" if self._is_flushed else "others to take what was sent"
            reasons.append(f"leaving for {so_far}: waits for {waits}; gone in {seconds(left)}")
        for member, reason in self.suspects.items():
            reasons.append(
                f"{member} is suspected: {reason}; {self.coordinator} is to leave it out"
            )
        change = self.change
        if change is not None and change.awaiting:
            names = ", ".join(sorted(map(str, change.awaiting)))
            left = self._timers.until(Timer.OVERDUE, now)
            reasons.append(
                f"{change.view} is not acknowledged by {names} for "
                f"{seconds(now - change.since)}; left out in {seconds(left)}"
            )
        elif change is not None and change.welcome is not None:
            names = ", ".join(map(str, change.joiners))
            left = self._timers.until(Timer.OVERDUE, now)
            reasons.append(
                f"{names} let in {seconds(now - change.since)} ago, no answer yet; "
                f"left out in {seconds(left)}"
            )
        wait = self.reunion.waits(now)
        if self.reunion.leader is not None:
            reasons.append(
                f"{self.reunion.leader} is asked to make one group of its own and this one; "
                f"given up in {seconds(max(0, self.reunion.until - now))}"
            )
        elif self.reunion.requests and wait:
            names = ", ".join(map(str, self.reunion.requests))
            reasons.append(
                f"the group of {names} would come back; not for {seconds(wait)}, since the link "
                "to it has failed of late"
            )
        if self._joiners:
            names = ", ".join(map(str, self._joiners))
            reasons.append(f"{names} to be let in, once no other view is being made")
        if (
            self._incompatible_peer is not None
            and now - self._incompatible_at < INCOMPATIBLE_RECENTLY_NS
        ):
            so_long = seconds(now - self._incompatible_at)
            reasons.append(
                f"{self._incompatible_peer.against(self.purge)}; left alone, heard {so_long} ago"
            )
        return reasons

    def check_invariants(self) -> None:
        view = self.view
        assert (view is not None) or not self.is_member
        if view is not None and self.is_member:
            assert self.me in view
            assert all(member in view for member in self.suspects)
        if self.change is not None and self.phase is not Phase.OUT:
            self.change.check_invariants()
        assert len(self._joiners) <= VIEW_MEMBERS_MAX
        self._check_timers()

    def _check_timers(self) -> None:
        """Whatever is waited for has a timer, and no other timer is armed."""
        phase, change, is_armed = self.phase, self.change, self._timers.is_armed
        assert is_armed(Timer.ASK) == (phase in (Phase.LOOKING, Phase.MEMBER))
        assert is_armed(Timer.DECIDE) == (phase is Phase.LOOKING)
        assert is_armed(Timer.REQUEST) or phase is not Phase.JOINING
        assert is_armed(Timer.PATIENCE) == (phase in (Phase.JOINING, Phase.LEAVING))
        is_changing = change is not None and phase is not Phase.OUT
        assert is_armed(Timer.CHANGE) == is_changing
        is_waited_for = change is not None and bool(change.awaiting or change.welcome)
        assert is_armed(Timer.OVERDUE) == (is_changing and is_waited_for)
        assert self.reunion.leader is None or is_armed(Timer.MERGE)

    # Looking and joining

    def _enter(self, phase: Phase, now: int) -> None:
        self.phase = phase
        self._since = now
        self._interval = REPEAT_START_NS

    def _look(self, now: int, out: Effects) -> None:
        self._enter(Phase.LOOKING, now)
        self._highest = 0  # another group counts anew
        self._coordinator = None
        self._admission = None
        self._timers.disarm(Timer.REQUEST)
        self._timers.disarm(Timer.PATIENCE)
        self._ask_around(now, out)

    def _ask_around(self, now: int, out: Effects) -> None:
        self._timers.arm(Timer.DECIDE, now + round(self.config.discovery_wait_s * 1e9))
        self.discovery.restart()
        self._search(now, out)

    def _search(self, now: int, out: Effects) -> None:
        if self.phase is Phase.LOOKING or self.coordinator == self.me:
            self.discovery.ask_again(self.view or (), out)
        self._timers.arm(Timer.ASK, now + self.discovery.interval)

    def _on_discover(self, source: Member, discover: Discover, now: int, out: Effects) -> None:
        self.discovery.add([source.address])
        if discover.purge is not self.purge:
            self._note_incompatible_peer(IncompatiblePeer(source, discover.purge), now)
        if self.phase is Phase.LOOKING:
            self.discovery.note_rival(source)
        view = self.view if self.is_member else None
        for member in view or ():
            if member.address == source.address and member != source:
                out.signal(VerifyWanted(member))  # restarted, it seems
        out.datagram(
            source, DiscoverReply(self._host, 0 if view is None else len(view), self.purge)
        )

    def _note_incompatible_peer(self, incompatible_peer: IncompatiblePeer, now: int) -> None:
        self.incompatible_peers += 1
        self._incompatible_peer, self._incompatible_at = incompatible_peer, now

    def _on_discover_reply(
        self, source: Member, present: DiscoverReply, now: int, out: Effects
    ) -> None:
        coordinator = present.coordinator
        incompatible_peer = (
            None if present.purge is self.purge else IncompatiblePeer(source, present.purge)
        )
        if incompatible_peer is not None:
            self._note_incompatible_peer(incompatible_peer, now)
        if coordinator is None:
            if self.phase is Phase.LOOKING:
                self.discovery.note_rival(source)
        elif incompatible_peer is not None:
            if self.phase is Phase.LOOKING:
                self._gather(now)
                self.discovery.incompatible_peer = incompatible_peer
        elif self.phase is Phase.LOOKING and coordinator.address == self.me.address:
            self.discovery.is_expected_back = True
        elif self.phase is Phase.LOOKING:
            self._gather(now)
            self.discovery.note_offer(coordinator, present.size)
        elif self.phase is Phase.JOINING and source == self._coordinator:
            self._timers.arm(Timer.PATIENCE, now + JOIN_PATIENCE_NS)
            if coordinator not in (self._coordinator, self.me):
                self._ask_to_join(coordinator, now, out)
        else:
            self._meet(coordinator, present.size, now, out)

    def _gather(self, now: int) -> None:
        """A group has answered: others may, in a few moments more."""
        if not self.discovery.has_heard_of_a_group:
            self._timers.arm(Timer.DECIDE, now + GATHER_NS)

    def _ask_to_join(self, coordinator: Member, now: int, out: Effects) -> None:
        self._coordinator = coordinator
        self._timers.arm(Timer.PATIENCE, now + JOIN_PATIENCE_NS)
        self._request(now, out)

    def _decide(self, now: int, out: Effects) -> None:
        """Join the best group that has answered; or start one, if it is on us."""
        coordinator = self.discovery.best_offer()
        if coordinator is not None:
            self._enter(Phase.JOINING, now)
            self._timers.disarm(Timer.ASK)
            self._ask_to_join(coordinator, now, out)
        elif self.discovery.incompatible_peer is not None:
            self.refusal = self.discovery.incompatible_peer.against(self.purge)
            self._go(self.refusal, out)
        elif not self.discovery.may_start():
            self._ask_around(now, out)
        elif self.must_exist:
            self._go(f"nobody answered at {len(self.discovery.candidates)} addresses", out)
        else:
            self.started_alone = True
            self._install(View(ViewId(self.me, self._highest + 1), (self.me,)), now, out)

    def _on_welcome(self, source: Member, welcome: Welcome, now: int, out: Effects) -> None:
        view = welcome.view
        is_current = view.counter >= self._highest
        if self.phase is Phase.JOINING and is_current and self.me in view and source in view:
            if self._admission is None or self._admission.welcome.view.id != view.id:
                self._admission = Admission(welcome)
                self._coordinator = source
                self._fetch(now, out)
        elif self.is_member:
            self._on_view(source, view, (), now, out)  # whoever is in needs no more of it
        else:
            self.ignored += 1

    def _on_half(self, source: Member, half: Half, now: int, out: Effects) -> None:
        if self._admission is None or source != self._coordinator:
            self.ignored += 1
            return
        before = self._admission.wanted()
        is_complete = self._admission.add(half)
        if self._admission.wanted() != before:
            self._timers.arm(Timer.PATIENCE, now + JOIN_PATIENCE_NS)
        if is_complete:
            self._fetch(now, out)

    def _fetch(self, now: int, out: Effects) -> None:
        """Ask for what is missing of a Welcome; if nothing is, we are in."""
        admission = self._admission
        assert admission is not None
        wanted = admission.wanted()
        if wanted is not None:
            self._interval = REPEAT_START_NS
            self._request(now, out)
            return
        welcome = admission.welcome
        self._admission = None
        self._timers.disarm(Timer.PATIENCE)
        self._timers.disarm(Timer.REQUEST)
        self._install(welcome.view, now, out)
        digest = admission.digest()
        out.signal(DigestAgreed(digest))
        assert self._coordinator is not None
        out.signal(LetIn(self._coordinator, digest))
        out.datagram(self._coordinator, ViewAck(welcome.view.id))

    # Views

    def _install(self, view: View, now: int, out: Effects, parts: tuple[View, ...] = ()) -> None:
        """This is the view now. Windows for joiners open at their beginning: nobody of them sends
        before everybody has acknowledged it. Those who come from another part have sent before."""
        previous = self.view
        self.view = view
        self._parts = parts
        self._highest = max(self._highest, view.counter)
        if not self.is_member:
            self._enter(Phase.MEMBER, now)
            self._timers.arm(Timer.ASK, now + self.discovery.interval)
            self._timers.disarm(Timer.DECIDE)
        if self.change is not None and self.change.view.id != view.id:
            self._drop_change()
        departed = [who for who in (*self._departed, *(previous or ())) if who not in view]
        self._departed = deque(dict.fromkeys(departed), maxlen=DEPARTED_MAX)
        self.suspects = {who: why for who, why in self.suspects.items() if who in view}
        self._leavers = {who for who in self._leavers if who in view}
        self._diverged = {}
        self._joiners = {who: None for who in self._joiners if who not in view}
        if self.coordinator != self.me:
            self._stop_merging()
        new = [member for member in view if previous is not None and member not in previous]
        far = self._far(parts)
        reunited = tuple(member for member in new if member in far)
        if reunited:
            self.reunion.merge()
            out.signal(Reunited(reunited))
        out.signal(ViewAgreed(view, parts if reunited else ()))
        joined = [member for member in new if member not in far]
        if joined:
            entries = {Origin(member, stream): 0 for member in joined for stream in self.streams}
            out.signal(DigestAgreed(Digest(entries)))

    def _on_view(
        self, source: Member, view: View, parts: tuple[View, ...], now: int, out: Effects
    ) -> None:
        mine = self.view
        if mine is None or not self.is_member:
            self._on_view_too_early(source, view, parts, now, out)
            return
        self.discovery.add(member.address for member in view)
        is_newer = view.counter > mine.counter
        is_next = source in mine and view.id.creator in mine
        is_merge = any(part.id == mine.id for part in parts)
        has_returned = not self._far(parts).issuperset(who for who in self._departed if who in view)
        if view.id == mine.id:
            out.datagram(source, ViewAck(view.id))
        elif is_newer and self.me in view and (is_next or is_merge) and not has_returned:
            self._install(view, now, out, parts)
            out.datagram(source, ViewAck(view.id))
            self._advance(now, out)  # it may be on us now: to see ourselves out, for one
        elif source not in mine:
            self._on_foreign_view(source, view, now, out)
        elif is_newer and self.me not in view:
            self._on_view_without_me(view, now, out)
        elif self.coordinator == self.me:
            self._reconcile(source, view, now, out)
        elif is_newer and is_next:  # but with somebody in it who has departed from here
            self._note_diverged(view, now, out)
        elif view.counter < mine.counter or (
            # If equal, the maker must hear of it, or it waits for us; but it is told by no other
            # maker: that one would be answered likewise.
            view.counter == mine.counter
            and source == view.id.creator
            and mine.id.creator != self.me
        ):
            out.datagram(source, self._my_view())
        else:
            self.ignored += 1

    def _far(self, parts: tuple[View, ...]) -> set[Member]:
        """Who comes from another part than mine."""
        return {member for part in parts if self.me not in part for member in part}

    def _my_view(self) -> ViewIs | Merged:
        assert self.view is not None
        return announcement(self.view, self._parts)

    def _on_view_too_early(
        self, source: Member, view: View, parts: tuple[View, ...], now: int, out: Effects
    ) -> None:
        """A view, but not yet where windows open."""
        if self.me in view and source == view.id.creator:
            # Who let us in has died on it, and the next one takes us for a member. It need not wait
            # for us: there is nothing here to hold on to, and from now on no older Welcome counts.
            # But in a merge the other parts would wait for us to say where we begin (multicast.py),
            # as members do: there we are not one, and ask to be left out.
            self._expect(view.id)
            out.datagram(source, Leave() if parts else ViewAck(view.id))
            if source != self._coordinator:
                self._enter(Phase.JOINING, now)
                self._timers.disarm(Timer.ASK)
                self._timers.disarm(Timer.DECIDE)
                self._ask_to_join(source, now, out)
        elif source == self._coordinator and self.me not in view:
            self._left_out(view, out)  # we were let in and left out again before we knew
        else:
            self.ignored += 1

    def _expect(self, view_id: ViewId) -> None:
        """Nothing older opens windows here any more."""
        self._highest = max(self._highest, view_id.counter)
        if self._admission is not None and self._admission.welcome.view.counter < self._highest:
            self._admission = None

    def _on_view_without_me(self, view: View, now: int, out: Effects) -> None:
        """From a member of mine, and newer: which of us is out?"""
        assert self.view is not None
        others = [member for member in self.view if member != self.me]
        there = {member for member in others if member in view}
        if self.phase is Phase.LEAVING or 2 * len(there) > len(others):
            self._left_out(view, out)
        elif self.coordinator == self.me:
            self._highest = max(self._highest, view.counter)
            self.reunion.part(now)
            self._make_view(there, now, out)
        else:
            self._note_diverged(view, now, out)

    def _note_diverged(self, view: View, now: int, out: Effects) -> None:
        """For the coordinator to see to; or the next one, if that is where it is."""
        there = {member for member in self.view or () if member in view and member != self.me}
        if not there <= self._diverged.keys():
            self._highest = max(self._highest, view.counter)
            self._diverged.update(dict.fromkeys(there, view))
            self._act_on_suspects(now, out)

    def _left_out(self, view: View, out: Effects) -> None:
        if self.phase is Phase.LEAVING:
            self._go("left", out)
        else:
            self.may_rejoin = True
            self._go(f"{view} goes on without this member", out)

    def _reconcile(self, source: Member, view: View, now: int, out: Effects) -> None:
        """A member of mine is in a view that I do not know. Make one above both, of those who are
        in both: who was left out somewhere has lost its windows there."""
        assert self.view is not None
        if view.counter < self.view.counter:
            out.datagram(source, self._my_view())
            return
        if view.id.creator == self.reunion.leader:
            self._ask_anew(now, out)
            return
        self._highest = max(self._highest, view.counter)
        if self.me in view:
            gone = {member for member in self.view if member not in view}
        else:
            gone = {source}
        self._make_view(gone, now, out)

    def _tell_non_member(self, member: Member, out: Effects) -> None:
        if self.is_member and self.view is not None:
            out.datagram(member, self._my_view())

    # What a coordinator does

    def _advance(self, now: int, out: Effects) -> None:
        """Make the next view, if there is reason to and this member is the one to make it."""
        view = self.view
        if not self.is_member or view is None or self.coordinator != self.me:
            return
        lost = self.suspects.keys() | self._diverged.keys()
        if self.change is not None and self.me not in self.change.view:
            silent = self.change.awaiting & lost
            if silent:
                self._make_view({self.me, *silent}, now, out)
            return  # the others see to the rest
        gone = {member for member in view if member in lost or member in self._leavers}
        if self._is_flushed:
            gone.add(self.me)
        taken = {joiner.address for joiner in self._joiners}
        gone |= {member for member in view if member.address in taken}
        new = list(self._joiners) if self.change is None else []
        if gone & lost:
            self.reunion.part(now)
        if gone or new:
            self._make_view(gone, now, out, new)
        elif self._may_merge(now):
            others = self.reunion.take(view, now)
            if others:
                self._highest = max(self._highest, *(other.counter for other in others))
                self._make_view(set(), now, out, parts=(view, *others))

    def _make_view(
        self,
        gone: set[Member],
        now: int,
        out: Effects,
        new: Sequence[Member] = (),
        parts: tuple[View, ...] | None = None,
    ) -> None:
        """The next view: without some, with joiners, or of several parts. Where these are not
        given they stay what they were for as long as somebody may not have heard of them."""
        old = self.view
        assert old is not None
        if parts is None:
            parts = self._parts if self.change is not None or old.id.creator != self.me else ()
        far = dict.fromkeys(member for part in parts for member in part)
        is_farewell = self.change is not None and self.me not in self.change.view
        current = self.change.view if self.change is not None and is_farewell else old
        members = tuple(who for who in dict.fromkeys((*current, *new, *far)) if who not in gone)
        if not members:
            self._go("left", out)
            return
        parts = _within(members, parts)
        unopened = {} if self.change is None else self.change.joiners
        joiners = {who: None for who in (*unopened, *new) if who in members}
        view = View(ViewId(self.me, self._highest + 1), members)
        self._highest = view.counter
        self._drop_change()
        if self.me in view:
            self._install(view, now, out, parts)
        self._spread(view, parts, old, joiners, now, out)

    def _spread(
        self,
        view: View,
        parts: tuple[View, ...],
        old: View,
        joiners: dict[Member, None],
        now: int,
        out: Effects,
    ) -> None:
        """Tell all but joiners, also those who are left out, and wait for acks of who is in."""
        awaiting = {who for who in view if who != self.me and who not in joiners}
        change = Change(view, parts, awaiting, joiners, now)
        everybody = dict.fromkeys((*old, *view))
        change.tell((who for who in everybody if who != self.me and who not in joiners), out)
        if awaiting or joiners:
            self.change = change
            self._timers.arm(Timer.CHANGE, now + REPEAT_START_NS)
            self._timers.arm(Timer.OVERDUE, now + self._overdue)
        self._progress(now, out)

    def _drop_change(self) -> None:
        self.change = None
        self._timers.disarm(Timer.CHANGE)
        self._timers.disarm(Timer.OVERDUE)

    def _on_view_ack(self, source: Member, view_id: ViewId, now: int, out: Effects) -> None:
        change = self.change
        if change is None or change.view.id != view_id:
            self.ignored += 1
            return
        change.acked(source)
        self._progress(now, out)

    def _progress(self, now: int, out: Effects) -> None:
        """The next step of the change, if it was only waiting for acknowledgements."""
        change = self.change
        if change is not None and not change.awaiting:
            if self.me not in change.view:
                self._go("left", out)
                return
            if change.joiners:
                if change.welcome is None:
                    self._timers.disarm(Timer.OVERDUE)
                    out.signal(DigestWanted(tuple(change.joiners)))
                return
            self._drop_change()
        if self.change is None:
            self._advance(now, out)

    def _on_half_wanted(self, source: Member, wanted: HalfWanted, now: int, out: Effects) -> None:
        change = self.change
        if change is None or not change.knows(source, wanted):
            self.ignored += 1
        elif change.fetch(source, wanted, out):
            self._timers.arm(Timer.OVERDUE, now + self._overdue)

    def _on_digest(self, digest: Digest, taken: Digest, now: int, out: Effects) -> None:
        """Everybody holds on to what the joiners will need: tell them where to begin."""
        change = self.change
        if change is None or change.awaiting or not change.joiners:
            return
        change.open(digest, self.streams)
        assert change.welcome is not None
        reached = Digest({**change.welcome.digest.entries, **taken.entries})
        out.signal(Admitted(tuple(change.joiners), reached))
        self._timers.arm(Timer.OVERDUE, now + self._overdue)
        change.let_in(out)

    def _repeat_change(self, now: int, out: Effects) -> None:
        change = self.change
        assert change is not None
        change.repeat(out)
        self._timers.arm(Timer.CHANGE, now + change.interval)

    def _leave_out_the_silent(self, now: int, out: Effects) -> None:
        change = self.change
        assert change is not None
        silent = change.awaiting or set(change.joiners)
        if change.parts:
            self.reunion.part(now)
        self._make_view(silent if self.me in change.view else {self.me, *silent}, now, out)

    def _on_join(self, source: Member, now: int, out: Effects) -> None:
        view = self.view
        host = self._host
        if view is None or host is None:
            self.ignored += 1
            return
        if source in self._departed:
            out.datagram(source, self._my_view())
            return
        out.datagram(source, DiscoverReply(host, len(view), self.purge))
        if host != self.me:
            return
        change = self.change
        if source in view:
            # Its Welcome was lost with the coordinator that made it, or is still on its way. While
            # its ack is awaited it may just as well be a member, and this an old copy of its Join.
            if change is None:
                self._spread(view, self._parts, view, {source: None}, now, out)
        elif len(view) + len(self._joiners) < VIEW_MEMBERS_MAX:
            others = (who for who in self._joiners if who.address != source.address)
            self._joiners = dict.fromkeys((*others, source))
            self._advance(now, out)

    def _on_leave(self, source: Member, now: int, out: Effects) -> None:
        view = self.view
        if view is None:
            return
        if source not in view:
            self._joiners.pop(source, None)
            out.datagram(source, self._my_view())
        elif self.change is not None and self.me not in self.change.view:
            self.change.tell([source], out)  # I am going, too
        elif self.coordinator == self.me:
            self._leavers.add(source)
            self._advance(now, out)

    # Groups come together

    def _meet(self, other: Member, size: int, now: int, out: Effects) -> None:
        """Another group of the same name has been heard of."""
        view = self.view
        if view is None or other in view or self.phase is not Phase.MEMBER:
            return
        if self.coordinator != self.me:
            return
        if rank(self.me, len(view)) < rank(other, size):
            out.datagram(other, DiscoverReply(self.me, len(view), self.purge))
        elif self.reunion.leader is None and not self.reunion.waits(now):
            self.reunion.ask(other, now)
            self._ask_to_merge(now, out)

    def _ask_to_merge(self, now: int, out: Effects) -> None:
        view, leader, reunion = self.view, self.reunion.leader, self.reunion
        is_over = now >= reunion.until or self.phase is not Phase.MEMBER
        if view is None or leader is None or leader in view or is_over:
            self._stop_merging()
            return
        if self.change is None and self._is_settled:
            out.datagram(leader, MergeRequest(view))
            reunion.asked_with = view.id
        self._timers.arm(Timer.MERGE, now + reunion.interval)
        reunion.interval = min(2 * reunion.interval, REPEAT_MAX_NS)

    def _ask_anew(self, now: int, out: Effects) -> None:
        """The leader has merged with what my group was before: it is told at once what it is now.
        If it has been told, that is repeated in good time: answering each answer has no end."""
        if self.view is not None and self.view.id != self.reunion.asked_with:
            self._ask_to_merge(now, out)

    def _may_merge(self, now: int) -> bool:
        """Neither is a view being made, nor is anything left to do for who departed: whoever comes
        to lead may know nothing of them."""
        is_idle = self.change is None and self.phase is Phase.MEMBER
        return is_idle and self._is_settled and not self.reunion.waits(now)

    def _stop_merging(self) -> None:
        self.reunion.end()
        self._timers.disarm(Timer.MERGE)

    def _on_merge_request(self, source: Member, theirs: View, now: int, out: Effects) -> None:
        view, host = self.view, self._host
        is_apart = source in theirs and self.me not in theirs
        if view is None or host is None or not is_apart or self.phase is Phase.LEAVING:
            self.ignored += 1
            return
        both = {member for member in theirs if member in view}
        if host != self.me or rank(source, len(theirs)) < rank(host, len(view)):
            out.datagram(source, DiscoverReply(host, len(view), self.purge))
        elif source in view:
            self._on_late_merge(source, theirs, now, out)
        elif not both:
            self.reunion.note(source, theirs, now)
            self._advance(now, out)
        elif theirs.counter > view.counter:
            self._highest = max(self._highest, theirs.counter)
            self._make_view(both, now, out)
        else:
            out.datagram(source, self._my_view())

    def _on_late_merge(self, source: Member, theirs: View, now: int, out: Effects) -> None:
        """It is in my view already. It may not have heard; or its group has changed since. If that
        was mine, there is nothing to put in its place: in time it is overdue, unless all had
        acknowledged my view. Who was to be let in and has a group of its own does not wait for us
        any more, and nobody waits for it."""
        assert self.view is not None
        if self.change is None and theirs.counter > self.view.counter:
            self._on_view_without_me(theirs, now, out)
            return
        if self.change is not None and source in self.change.joiners:
            self._make_view({source}, now, out)
            return
        apart = (part for part in self._parts if self.me not in part)
        before = next((part for part in apart if source in part), None)
        if self.change is None or before is None or theirs.counter <= before.counter:
            out.datagram(source, self._my_view())
            return
        parts = tuple(theirs if part == before else part for part in self._parts)
        gone = {member for member in before if member not in theirs}
        others = {member for member in self.view if member not in before}
        if len(others) + len(theirs) > VIEW_MEMBERS_MAX or not others.isdisjoint(theirs):
            gone = {*before, *theirs}  # too many, or in two parts at once: go on without them
        self._highest = max(self._highest, theirs.counter)
        self._make_view(gone, now, out, parts=parts)

    def _on_foreign_view(self, source: Member, view: View, now: int, out: Effects) -> None:
        """Of a group that is not mine."""
        mine = self.view
        assert mine is not None
        both = {member for member in mine if member in view}
        if source == self.reunion.leader and self.me in view:
            self._ask_anew(now, out)
        elif source == self.reunion.leader and both and view.counter >= mine.counter:
            self._highest = max(self._highest, view.counter)
            self._make_view(both, now, out)  # they are there: exclude them, then merge
        elif view.counter < mine.counter and self.me in view:
            out.datagram(source, self._my_view())  # it does not know yet that we have parted
        else:
            self._meet(view.coordinator, len(view), now, out)

    # Suspicion

    def _suspect(self, member: Member, reason: str, now: int, out: Effects) -> None:
        if self.view is None or member not in self.view or member == self.me:
            return
        self.suspects[member] = reason
        self._act_on_suspects(now, out)

    def _act_on_suspects(self, now: int, out: Effects) -> None:
        if self.coordinator == self.me:
            self._advance(now, out)
        else:
            self._interval = REPEAT_START_NS
            self._request(now, out)

    def _complain(self, member: Member, now: int, out: Effects) -> None:
        """A member holds this one up."""
        coordinator = self.coordinator
        if self.view is None or member not in self.view or member == self.me:
            return
        if coordinator == self.me:
            self._leavers.add(member)
            self._advance(now, out)
        else:
            out.datagram(coordinator, Suspect(member, is_slow=True))

    def _on_suspect(
        self, source: Member, member: Member, is_slow: bool, now: int, out: Effects
    ) -> None:
        view = self.view
        is_known = view is not None and (source in view or source in self._departed)
        if view is None or not is_known or (member == self.me and not is_slow):
            self.ignored += 1
        elif source not in view or member not in view:
            out.datagram(source, self._my_view())  # it has not heard yet
        elif not is_slow:
            out.signal(VerifyWanted(member))
        elif self.coordinator == self.me and self.config.slow_member_timeout_s:
            self._leavers.add(member)
            self._advance(now, out)

    # Requests to the coordinator

    def _request(self, now: int, out: Effects) -> None:
        """Ask, and ask again until it is answered."""
        coordinator = self._coordinator if self.phase is Phase.JOINING else self.coordinator
        if coordinator is None or coordinator == self.me:
            return
        wanted = None if self._admission is None else self._admission.wanted()
        if self._admission is not None and wanted is not None:
            view = self._admission.welcome.view
            (member, stream), first = wanted
            place = view.members.index(member)
            out.datagram(coordinator, HalfWanted(view.counter, place, stream, first))
        elif self.phase is Phase.JOINING:
            out.datagram(coordinator, Join())
        elif self._is_flushed:
            out.datagram(coordinator, Leave())
        for member in self.suspects:
            out.datagram(coordinator, Suspect(member, is_slow=False))
        if self.view is not None and coordinator != self.view.coordinator:
            for elsewhere in dict.fromkeys(self._diverged.values()):
                out.datagram(coordinator, ViewIs(elsewhere))  # so it is on it to act
        if self._diverged or (self.suspects and self._interval > REPEAT_START_NS):
            out.signal(VerifyWanted(coordinator))  # is it there? not everybody watches it
        if self.phase is Phase.JOINING or self._is_flushed or self.suspects or self._diverged:
            self._timers.arm(Timer.REQUEST, now + self._interval)
            self._interval = min(2 * self._interval, REPEAT_MAX_NS)

    # The end

    def _set_out(self, now: int, out: Effects) -> None:
        """Everything is taken, or it takes too long: go."""
        self._is_flushed = True
        self._timers.arm(Timer.PATIENCE, self._gone_by)
        if self.coordinator == self.me:
            self._advance(now, out)
        else:
            self._request(now, out)

    def _lose_patience(self, now: int, out: Effects) -> None:
        if self.phase is Phase.JOINING:
            self._look(now, out)
        elif not self._is_flushed:
            self._set_out(now, out)
        else:
            self._go("left without an answer", out)

    def _go(self, reason: str, out: Effects) -> None:
        if self.me in self._leavers:
            self.may_rejoin = True
            reason = "held the others up"
        self.phase = Phase.OUT
        self._timers.disarm_all()  # others may be due as well: nobody makes views who is out
        out.signal(Left(reason))


def _within(members: tuple[Member, ...], parts: tuple[View, ...]) -> tuple[View, ...]:
    """The parts as far as their members are among these."""
    left = [(part.id, tuple(who for who in part if who in members)) for part in parts]
    return tuple(View(view_id, staying) for view_id, staying in left if staying)
