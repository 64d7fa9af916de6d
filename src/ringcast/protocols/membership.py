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
On Join, as coordinator: note it, and make a view as soon as none is being made: several joiners
    may share one. A joiner with the address of a member is that one, restarted: the old one goes.
Making a view: install it; send ViewIs to its old members and to those it leaves out; wait until
    all old members have acknowledged. From then on nobody lets go of anything without the joiners
    (the freeze), so only now is a digest taken, and sent to them as Welcome. Where it stands in the
    middle of a large message, they fetch the part that was taken already. They acknowledge too.
    One join at a time; but who leaves or is missed meanwhile is left out by yet another view, and
    the waiting starts over with that. Who does not acknowledge for too long is left out as well.
On ViewIs from a member, if newer and made by one: install it and acknowledge. Without me in it: I
    am out; whoever did not ask for that may come back as another incarnation.
    If older, or of another maker: say what mine is. A coordinator that hears of a view that it does
    not know (its predecessor died making it) makes another above it, of those who are in both.
On Suspected: leave that member out, or tell whoever acts as coordinator. On Suspect from a member:
    see for oneself first. On signs of life from an outsider, or from a member that is behind: say
    what the view is. On TooSlow, if that was agreed: as on Leave of that member. A coordinator that
    is too slow itself goes, and may come back.
On leave: once everything sent is taken, Leave to the coordinator until a view leaves us out. A
    coordinator makes that view itself. After `leave_timeout` we are gone all the same.
A coordinator keeps looking, slowly. If it finds another group that is larger (or as large, with a
    lower coordinator), it leaves its own to join that one; so do its successors. (Groups that were
    parted by the network come together again that way too, one member at a time.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import (
    DigestAgreed,
    DigestTaken,
    DigestWanted,
    Flushed,
    Left,
    Outsider,
    Suspected,
    TooSlow,
    Trusted,
    VerifyWanted,
    ViewAgreed,
)
from ringcast.core.timers import Timers
from ringcast.model import Digest, Origin, Stream, View, ViewId
from ringcast.protocols.discovery import GATHER_NS, Discovery, rank
from ringcast.protocols.intake import seconds
from ringcast.wire.codec import VIEW_MEMBERS_MAX
from ringcast.wire.frames import (
    Discover,
    Half,
    HalfWanted,
    Join,
    Leave,
    Present,
    Suspect,
    ViewAck,
    ViewIs,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ringcast.config import MembershipConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.events import Event
    from ringcast.model import Address, Member
    from ringcast.wire.frames import Frame

REPEAT_START_NS = 40_000_000
REPEAT_MAX_NS = 500_000_000
"""How soon a request is repeated: at first, and in the long run."""

JOIN_PATIENCE_NS = 2_000_000_000
"""How long a joiner waits for a sign of its coordinator before it looks for another."""


HALVES_AT_ONCE = 16
"""Fragments sent for one request."""

DEPARTED_MAX = 256
"""Members that left and are remembered: what they still ask for is late."""


class Phase(Enum):
    IDLE = "not started"
    LOOKING = "looking for the group"
    JOINING = "asking for admission"
    MEMBER = "in the group"
    LEAVING = "leaving"
    OUT = "out of the group"


class Timer(Enum):
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


@dataclass(slots=True)
class Change:
    """A view that I made, until everybody has it."""

    view: View
    awaiting: set[Member]
    """Old members that have not acknowledged it."""
    joiners: dict[Member, None]
    """New ones that have not."""
    since: int
    welcome: Welcome | None = None
    halves: Mapping[Origin, tuple[bytes, ...] | None] = field(default_factory=dict)
    """What was taken of messages that are not whole: for the joiners to fetch."""
    fetched: dict[Member, tuple[int, Stream, int]] = field(default_factory=dict)
    """How far each joiner has come with that."""
    interval: int = field(default=REPEAT_START_NS)
    volatile: ClassVar[frozenset[str]] = frozenset({"since", "interval"})


@dataclass(slots=True)
class Arrival:
    """A Welcome of which not all has come yet."""

    welcome: Welcome
    halves: dict[Origin, list[bytes]] = field(default_factory=dict)
    early: dict[int, Half] = field(default_factory=dict)
    """Fragments that have overtaken the one that is wanted, by index."""

    def wanted(self) -> tuple[Origin, int] | None:
        """The first fragment that is missing, if any is."""
        for origin, count in self.welcome.halves.items():
            held = len(self.halves.get(origin, ()))
            if count is not None and held < count:
                return origin, held
        return None

    def add(self, half: Half) -> bool:
        """Whether this completes what was asked for."""
        wanted = self.wanted()
        view = self.welcome.view
        if wanted is None or half.counter != view.counter or half.place >= len(view):
            return False
        origin, first = wanted
        count = self.welcome.halves[origin] or 0
        if origin != Origin(view.members[half.place], half.stream):
            return False
        if not first <= half.index < min(first + HALVES_AT_ONCE, count):
            return False
        self.early[half.index] = half
        held = self.halves.setdefault(origin, [])
        while len(held) in self.early:
            half = self.early.pop(len(held))
            held.append(half.payload)
        if len(held) > first and half.is_last:
            self.early.clear()
            return True
        return False

    def digest(self) -> Digest:
        """Where windows open, and what came before."""
        partials = {
            origin: None if count is None else tuple(self.halves[origin])
            for origin, count in self.welcome.halves.items()
        }
        return Digest(self.welcome.digest.entries, partials)


class Membership:
    """The state machine of one member."""

    frames: ClassVar[tuple[type[Frame], ...]] = (
        Discover,
        Present,
        Join,
        ViewIs,
        ViewAck,
        Welcome,
        HalfWanted,
        Half,
        Leave,
        Suspect,
    )
    volatile: ClassVar[frozenset[str]] = frozenset(
        {
            "me",
            "config",
            "streams",
            "must_exist",
            "started_alone",
            "_since",
            "_interval",
            "_overdue",
            "ignored",
        }
    )

    def __init__(
        self,
        me: Member,
        config: MembershipConfig,
        *,
        must_exist: bool = False,
        streams: tuple[Stream, ...] = (Stream.FIFO,),
    ) -> None:
        self.me = me
        self.config = config
        self.must_exist = must_exist
        self.streams = streams
        self.phase = Phase.IDLE
        self.view: View | None = None
        self.started_alone = False
        """Nobody was there, and this member has made the first view."""
        self.may_rejoin = False
        """Out of the group without having asked for it: come back as another incarnation."""
        self.suspects: dict[Member, str] = {}
        """Members of the view that seem dead, and why."""
        self.change: Change | None = None
        self.ignored = 0  # frames that came too late or from nobody known
        self.discovery = Discovery(me)
        self._coordinator: Member | None = None  # whom a joiner asks
        self._arrival: Arrival | None = None
        self._joiners: dict[Member, None] = {}  # waiting for the next view
        self._leavers: set[Member] = set()
        self._departed: deque[Member] = deque(maxlen=DEPARTED_MAX)
        self._highest = 0  # the highest counter heard of
        self._is_flushed = False
        self._is_moving = False  # leaving for a better group
        self._since = 0  # when this phase began
        self._interval = REPEAT_START_NS
        self._overdue = round((2 * config.suspect_after_s + config.verify_s) * 1e9)
        self._timers: Timers[Timer] = Timers()

    # Inputs

    def start(self, now: int, out: Effects) -> None:
        self._look(now, out)

    def add_candidates(self, addresses: Iterable[Address], now: int, out: Effects) -> None:
        """Where members may be found."""
        fresh = self.discovery.add(addresses)
        if self.phase is Phase.LOOKING:
            self.discovery.ask(fresh, out)

    def leave(self, now: int, out: Effects) -> None:
        """Go, once everything that was sent is taken."""
        if self.phase is Phase.MEMBER:
            self._enter(Phase.LEAVING, now)
            self._timers.disarm(Timer.ASK)
            self._timers.arm(Timer.PATIENCE, now + round(self.config.leave_timeout_s * 1e9))
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
                case Discover():
                    self._on_discover(source, out)
                case Present():
                    self._on_present(source, frame, now, out)
                case Join():
                    self._on_join(source, now, out)
                case ViewIs(view):
                    self._on_view_is(source, view, now, out)
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
            case DigestTaken(digest):
                self._on_digest(digest, now, out)
            case Suspected(member, reason):
                self._suspect(member, reason, now, out)
            case TooSlow(member):
                self._complain(member, now, out)
            case Trusted(member):
                self.suspects.pop(member, None)
            case Outsider(member):
                self._tell_outsider(member, out)
            case Flushed() if self.phase is Phase.LEAVING and not self._is_flushed:
                self._set_out(now, out)

    def install_view(self, view: View, now: int, out: Effects) -> None:
        """Views come from here."""

    def install_digest(self, digest: Digest, now: int, out: Effects) -> None:
        """So do digests."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return []

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

    def next_timeout(self) -> int | None:
        return self._timers.next_timeout()

    def close(self, reason: str, now: int, out: Effects) -> None:
        self.phase = Phase.OUT
        self.change = None
        for timer in Timer:
            self._timers.disarm(timer)

    # Outputs

    @property
    def is_member(self) -> bool:
        return self.phase in (Phase.MEMBER, Phase.LEAVING)

    @property
    def is_leaving(self) -> bool:
        """Nothing more is to be sent; it waits for others to take what was."""
        return self.phase is Phase.LEAVING

    @property
    def coordinator(self) -> Member | None:
        """Whoever acts as one: the first of the view that is not suspected."""
        if self.view is None:
            return None
        trusted = (member for member in self.view if member not in self.suspects)
        return next(trusted, self.me)

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
            "suspects": {str(member): reason for member, reason in self.suspects.items()},
            "joiners_waiting": len(self._joiners),
            "leavers": len(self._leavers),
            "view_not_acked_by": [] if change is None else sorted(map(str, change.awaiting)),
            "joiners_not_in": [] if change is None else list(map(str, change.joiners)),
            "ignored": self.ignored,
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
            left = self._timers.until(Timer.PATIENCE, now)
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
        elif change is not None:
            names = ", ".join(map(str, change.joiners))
            left = self._timers.until(Timer.OVERDUE, now)
            reasons.append(
                f"{names} let in {seconds(now - change.since)} ago, no answer yet; "
                f"left out in {seconds(left)}"
            )
        if self._joiners:
            names = ", ".join(map(str, self._joiners))
            reasons.append(f"{names} to be let in, once no other view is being made")
        return reasons

    def check_invariants(self) -> None:
        view = self.view
        assert (view is not None) or not self.is_member
        if view is not None and self.is_member:
            assert self.me in view
            assert all(member in view for member in self.suspects)
        change = self.change
        if change is not None and self.phase is not Phase.OUT:
            assert change.awaiting or change.joiners
            assert self._timers.is_armed(Timer.CHANGE)
            assert not change.awaiting & set(change.joiners)
        assert len(self._joiners) <= VIEW_MEMBERS_MAX

    # Looking and joining

    def _enter(self, phase: Phase, now: int) -> None:
        self.phase = phase
        self._since = now
        self._interval = REPEAT_START_NS

    def _look(self, now: int, out: Effects) -> None:
        self._enter(Phase.LOOKING, now)
        self._highest = 0  # another group counts anew
        self._coordinator = None
        self._arrival = None
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

    def _on_discover(self, source: Member, out: Effects) -> None:
        self.discovery.add([source.address])
        if self.phase is Phase.LOOKING:
            self.discovery.note_rival(source)
        view = self.view if self.is_member else None
        for member in view or ():
            if member.address == source.address and member != source:
                out.signal(VerifyWanted(member))  # restarted, it seems
        out.datagram(source, Present(self._host, 0 if view is None else len(view)))

    def _on_present(self, source: Member, present: Present, now: int, out: Effects) -> None:
        coordinator = present.coordinator
        if coordinator is None:
            if self.phase is Phase.LOOKING:
                self.discovery.note_rival(source)
            return
        if self.phase is Phase.LOOKING and coordinator.address == self.me.address:
            self.discovery.is_expected_back = True
        elif self.phase is Phase.LOOKING:
            if not self.discovery.offers:
                self._timers.arm(Timer.DECIDE, now + GATHER_NS)
            self.discovery.note_offer(coordinator, present.size)
        elif self.phase is Phase.JOINING and source == self._coordinator:
            self._timers.arm(Timer.PATIENCE, now + JOIN_PATIENCE_NS)
            if coordinator not in (self._coordinator, self.me):
                self._ask_to_join(coordinator, now, out)
        elif self.phase is Phase.MEMBER and self.coordinator == self.me:
            self._compare_groups(coordinator, present.size, now, out)

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
            if self._arrival is None or self._arrival.welcome.view.id != view.id:
                self._arrival = Arrival(welcome)
                self._coordinator = source
                self._fetch(now, out)
        elif self.is_member:
            self._on_view_is(source, view, now, out)  # whoever is in needs no more of it
        else:
            self.ignored += 1

    def _on_half(self, source: Member, half: Half, now: int, out: Effects) -> None:
        if self._arrival is None or source != self._coordinator:
            self.ignored += 1
            return
        before = self._arrival.wanted()
        is_complete = self._arrival.add(half)
        if self._arrival.wanted() != before:
            self._timers.arm(Timer.PATIENCE, now + JOIN_PATIENCE_NS)
        if is_complete:
            self._fetch(now, out)

    def _fetch(self, now: int, out: Effects) -> None:
        """Ask for what is missing of a Welcome; if nothing is, we are in."""
        arrival = self._arrival
        assert arrival is not None
        wanted = arrival.wanted()
        if wanted is not None:
            self._interval = REPEAT_START_NS
            self._request(now, out)
            return
        welcome = arrival.welcome
        self._arrival = None
        self._timers.disarm(Timer.PATIENCE)
        self._timers.disarm(Timer.REQUEST)
        self._install(welcome.view, now, out)
        out.signal(DigestAgreed(arrival.digest()))
        assert self._coordinator is not None
        out.datagram(self._coordinator, ViewAck(welcome.view.id))

    def _compare_groups(self, coordinator: Member, size: int, now: int, out: Effects) -> None:
        """Another group of the same name: the smaller one dissolves into the larger."""
        assert self.view is not None
        if coordinator in self.view:
            return
        if rank(coordinator, size) < rank(self.me, len(self.view)):
            self._is_moving = True
            self.leave(now, out)

    # Views

    def _install(self, view: View, now: int, out: Effects) -> None:
        """This is the view now. Windows for members that are new to us open at their beginning:
        nobody sends before everybody has acknowledged it."""
        previous = self.view
        self.view = view
        self._highest = max(self._highest, view.counter)
        if not self.is_member:
            self._enter(Phase.MEMBER, now)
            self._timers.arm(Timer.ASK, now + self.discovery.interval)
            self._timers.disarm(Timer.DECIDE)
        if self.change is not None and self.change.view.id != view.id:
            self._drop_change()
        self._departed.extend(who for who in previous or () if who not in view)
        self.suspects = {who: why for who, why in self.suspects.items() if who in view}
        self._leavers = {who for who in self._leavers if who in view}
        self._joiners = {who: None for who in self._joiners if who not in view}
        out.signal(ViewAgreed(view))
        new = [member for member in view if previous is not None and member not in previous]
        if new:
            entries = {Origin(member, stream): 0 for member in new for stream in self.streams}
            out.signal(DigestAgreed(Digest(entries)))

    def _on_view_is(self, source: Member, view: View, now: int, out: Effects) -> None:
        mine = self.view
        if mine is None or not self.is_member:
            self._on_view_too_early(source, view, now, out)
            return
        self.discovery.add(member.address for member in view)
        is_newer = view.counter > mine.counter
        if view.id == mine.id:
            out.datagram(source, ViewAck(view.id))
        elif is_newer and source in mine and self.me not in view:
            self._left_out(view, out)
        elif is_newer and source in mine and view.id.creator in mine:
            self._install(view, now, out)
            out.datagram(source, ViewAck(view.id))
            self._advance(now, out)  # it may be on us now: to see ourselves out, for one
        elif source in mine and self.coordinator == self.me:
            self._reconcile(source, view, now, out)
        elif view.counter < mine.counter:  # not if they are equal: it would answer likewise
            out.datagram(source, ViewIs(mine))
        else:
            self.ignored += 1

    def _on_view_too_early(self, source: Member, view: View, now: int, out: Effects) -> None:
        """A view, but not yet where windows open."""
        if self.me in view and source == view.id.creator:
            # Who let us in has died on it, and the next one takes us for a member. It need not wait
            # for us: there is nothing here to hold on to, and from now on no older Welcome counts.
            self._highest = max(self._highest, view.counter)
            self._arrival = None
            out.datagram(source, ViewAck(view.id))
            if source != self._coordinator:
                self._enter(Phase.JOINING, now)
                self._timers.disarm(Timer.ASK)
                self._timers.disarm(Timer.DECIDE)
                self._ask_to_join(source, now, out)
        elif source == self._coordinator and self.me not in view:
            self._left_out(view, out)  # we were let in and left out again before we knew
        else:
            self.ignored += 1

    def _left_out(self, view: View, out: Effects) -> None:
        if self.phase is Phase.LEAVING and not self._is_moving:
            self._go("left", out)
        else:
            self.may_rejoin = True
            self._go(f"{view} goes on without this member", out)

    def _reconcile(self, source: Member, view: View, now: int, out: Effects) -> None:
        """A member of mine is in a view that I do not know. Make one above both, of those who are
        in both: who was left out somewhere has lost its windows there."""
        assert self.view is not None
        if view.counter < self.view.counter:
            out.datagram(source, ViewIs(self.view))
            return
        self._highest = max(self._highest, view.counter)
        if self.me in view:
            gone = {member for member in self.view if member not in view}
        else:
            gone = {source}
        self._make_view(gone, now, out)

    def _tell_outsider(self, member: Member, out: Effects) -> None:
        if self.is_member and self.view is not None:
            out.datagram(member, ViewIs(self.view))

    # What a coordinator does

    def _advance(self, now: int, out: Effects) -> None:
        """Make the next view, if there is reason to and this member is the one to make it."""
        view = self.view
        if not self.is_member or view is None or self.coordinator != self.me:
            return
        gone = {member for member in view if member in self.suspects or member in self._leavers}
        if self._is_flushed:
            gone.add(self.me)
        taken = {joiner.address for joiner in self._joiners}
        gone |= {member for member in view if member.address in taken}
        new = list(self._joiners) if self.change is None else []
        if gone or new:
            self._make_view(gone, now, out, new)

    def _make_view(
        self, gone: set[Member], now: int, out: Effects, new: Sequence[Member] = ()
    ) -> None:
        old = self.view
        assert old is not None
        members = (*(member for member in old if member not in gone), *new)
        if not members:
            self._go("left", out)
            return
        unopened = {} if self.change is None else self.change.joiners
        joiners = {who: None for who in (*unopened, *new) if who in members}
        view = View(ViewId(self.me, self._highest + 1), members)
        self._highest = view.counter
        self._drop_change()
        if self.me in view:
            self._install(view, now, out)
        self._spread(view, old, joiners, now, out)

    def _spread(
        self, view: View, old: View, joiners: dict[Member, None], now: int, out: Effects
    ) -> None:
        """Tell the old members, also those who are left out, and wait for the others' acks."""
        awaiting = {who for who in view if who != self.me and who not in joiners}
        if awaiting or joiners:
            self.change = Change(view, awaiting, joiners, now)
            self._timers.arm(Timer.CHANGE, now + REPEAT_START_NS)
            self._timers.arm(Timer.OVERDUE, now + self._overdue)
        for member in old:
            if member != self.me and member not in joiners:
                out.datagram(member, ViewIs(view))
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
        change.awaiting.discard(source)
        if change.welcome is not None:
            change.joiners.pop(source, None)
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
                    out.signal(DigestWanted())
                return
            self._drop_change()
        if self.change is None:
            self._advance(now, out)

    def _on_half_wanted(self, source: Member, wanted: HalfWanted, now: int, out: Effects) -> None:
        change = self.change
        if (
            change is None
            or source not in change.joiners
            or change.view.counter != wanted.counter
            or wanted.place >= len(change.view)
        ):
            self.ignored += 1
            return
        place = (wanted.place, wanted.stream, wanted.first)
        if source not in change.fetched or place > change.fetched[source]:
            change.fetched[source] = place
            self._timers.arm(Timer.OVERDUE, now + self._overdue)  # it gets on
        origin = Origin(change.view.members[wanted.place], wanted.stream)
        parts = change.halves.get(origin) or ()
        first, stop = wanted.first, min(wanted.first + HALVES_AT_ONCE, len(parts))
        for index in range(first, stop):
            half = Half(
                wanted.counter, wanted.place, wanted.stream, index, parts[index], index == stop - 1
            )
            out.datagram(source, half)

    def _on_digest(self, digest: Digest, now: int, out: Effects) -> None:
        """Everybody holds on to what the joiners will need: tell them where to begin."""
        change = self.change
        if change is None or change.awaiting or not change.joiners:
            return
        origins = [Origin(member, stream) for member in change.view for stream in self.streams]
        change.halves = {
            origin: parts for origin, parts in digest.partials.items() if origin in origins
        }
        change.welcome = Welcome(
            change.view,
            Digest({origin: digest.entries.get(origin, 0) for origin in origins}),
            {
                origin: None if parts is None else len(parts)
                for origin, parts in change.halves.items()
            },
        )
        self._timers.arm(Timer.OVERDUE, now + self._overdue)
        for joiner in change.joiners:
            out.datagram(joiner, change.welcome)

    def _repeat_change(self, now: int, out: Effects) -> None:
        change = self.change
        assert change is not None
        for member in (who for who in change.view if who in change.awaiting):
            out.datagram(member, ViewIs(change.view))
        if change.welcome is not None:
            for joiner in change.joiners:
                out.datagram(joiner, change.welcome)
        change.interval = min(2 * change.interval, REPEAT_MAX_NS)
        self._timers.arm(Timer.CHANGE, now + change.interval)

    def _leave_out_the_silent(self, now: int, out: Effects) -> None:
        change = self.change
        assert change is not None
        silent = change.awaiting or set(change.joiners)
        self._make_view(silent if self.me in change.view else {self.me, *silent}, now, out)

    def _on_join(self, source: Member, now: int, out: Effects) -> None:
        view = self.view
        host = self._host
        if view is None or host is None:
            self.ignored += 1
            return
        if source in self._departed:
            out.datagram(source, ViewIs(view))
            return
        out.datagram(source, Present(host, len(view)))
        if host != self.me:
            return
        change = self.change
        if source in view:
            # Its Welcome was lost with the coordinator that made it, or is still on its way. While
            # its ack is awaited it may just as well be a member, and this an old copy of its Join.
            if change is None:
                self._spread(view, view, {source: None}, now, out)
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
            out.datagram(source, ViewIs(view))
        elif self.coordinator == self.me:
            self._leavers.add(source)
            self._advance(now, out)

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
        if view is None or source not in view or (member == self.me and not is_slow):
            self.ignored += 1
        elif member not in view:
            out.datagram(source, ViewIs(view))  # it has not heard yet
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
        wanted = None if self._arrival is None else self._arrival.wanted()
        if self._arrival is not None and wanted is not None:
            view = self._arrival.welcome.view
            (member, stream), first = wanted
            place = view.members.index(member)
            out.datagram(coordinator, HalfWanted(view.counter, place, stream, first))
        elif self.phase is Phase.JOINING:
            out.datagram(coordinator, Join())
        elif self._is_flushed:
            out.datagram(coordinator, Leave())
        for member in self.suspects:
            out.datagram(coordinator, Suspect(member, is_slow=False))
        if self.phase is Phase.JOINING or self._is_flushed or self.suspects:
            self._timers.arm(Timer.REQUEST, now + self._interval)
            self._interval = min(2 * self._interval, REPEAT_MAX_NS)

    # The end

    def _set_out(self, now: int, out: Effects) -> None:
        """Everything is taken, or it takes too long: go."""
        self._is_flushed = True
        self._timers.arm(Timer.PATIENCE, now + round(self.config.leave_timeout_s * 1e9))
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
        if self._is_moving:
            self.may_rejoin = True
            reason = "found a larger group of the same name"
        elif self.me in self._leavers:
            self.may_rejoin = True
            reason = "held the others up"
        self.phase = Phase.OUT
        out.signal(Left(reason))
