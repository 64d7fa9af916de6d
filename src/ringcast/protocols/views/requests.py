"""Requests: what a member wants of its coordinator, and what the coordinator makes of that.

To leave; to see to who is silent, or in another view by now; to exclude who blocks it; to have
somebody else give it the state. Whoever wants something asks again after 40 ms, doubled up to half
a second, until a view has settled it. Who coordinates asks nobody, and proposes.

And to let nobody in while a large message starts over again and again: that is said at each start
from the third on, and counts until it is through, 30 s at most.

Members may live and not hear each other (Pairs). One that is not heard is complained of to the
coordinator, again and again for as long as that is so. The coordinator verifies it: if it is gone,
it is suspected anyway. If it lives, and the complaint goes on for so long that the coordinator
would have noticed, the link between the two is broken, and one of them has to go: whoever stands in
more complaints, its own or of others; of two as bad the later one in the view. So it is the same
one, whoever decides. It may not come in again while somebody of the view still complains of it.
Whoever is not heard is told, too: it may hear the other one itself, and complains of it then.
"""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.effects import Effects, VerifyWanted
from ringcast.core.shared import Named, Timers
from ringcast.protocols.views.election import verified
from ringcast.protocols.views.timing import REPEAT_START_NS, REQUEST_MAX_NS
from ringcast.wire import changes as wire
from ringcast.wire.changes import Holding
from ringcast.wire.frames import Leave

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.core.view_change import StateStanding
    from ringcast.model import Member, View
    from ringcast.protocols.views.change import ViewChange
    from ringcast.protocols.views.layer import GroupViews


class Timer(Named):
    REQUEST = auto()
    """Repeat what was asked of the coordinator."""
    PAIRS = auto()
    """Somebody is not heard: ask it, and complain again."""


class Requests:
    """Those of one member, and those of others if it coordinates."""

    def __init__(self, change: ViewChange, owner: GroupViews) -> None:
        self.me = change.me
        self.leavers: set[Member] = set()
        """Who is to be excluded from the next view, and asked for all it has."""
        self.may_go = False
        """This member wants to leave, and nothing keeps it."""
        self.wants_state = False
        """Somebody lacks the state, and nobody gives it."""
        self.pairs = Pairs()
        self.ignored = 0
        self._change = change
        self._owner = owner
        self._interval = REPEAT_START_NS

    def attach(self, timers: Timers[Timer]) -> None:
        self._timers = timers

    @property
    def are_any(self) -> bool:
        """A view is needed to settle them."""
        return bool(self.leavers) or self.may_go or self.wants_state

    def begin(self, view: View) -> None:
        """This view settles what was asked for."""
        self.pairs.begin(view)
        self.leavers = {who for who in self.leavers if who in view}
        self.wants_state = False

    def close(self) -> None:
        self._timers.disarm_all()

    # Of this member

    def go(self, now: int, out: Effects) -> None:
        self.may_go = True
        self._owner.advance(now, out)

    def suspect(self, member: Member, reason: str, now: int, out: Effects) -> None:
        if member in self._change.view and member != self.me:
            self._change.suspects[member] = reason
            self._interval = REPEAT_START_NS
            self.miss(member, now, out)
            self._owner.advance(now, out)

    def ahead(self, members: Iterable[Member], counter: int, now: int, out: Effects) -> None:
        """They are in another view by now, with this counter: this one goes on without them; but
        a member that has promised waits for that change to end first, if both are in it. Who is in
        a later view than that does not come to it any more."""
        change = self._change
        proposal = change.follower.proposal if change.is_frozen else None
        is_under_way = proposal is not None and counter <= proposal.id.counter
        with_me = proposal.members if proposal is not None and is_under_way else ()
        gone = {who for who in members if who in change.view and who not in with_me}
        if not gone <= change.elsewhere:
            change.elsewhere |= gone
            self._owner.advance(now, out)

    def too_slow(self, member: Member, now: int, out: Effects) -> None:
        """It holds this one up."""
        change = self._change
        if member not in change.view or member == self.me:
            return
        if change.coordinator == self.me:
            self.leavers.add(member)
            self._owner.advance(now, out)
        else:
            out.datagram(change.coordinator, wire.Complain(member, is_slow=True))

    def starts_over(self, now: int, out: Effects, *, is_through: bool) -> None:
        """A large message of this member does, or has got through."""
        change, meeting = self._change, self._owner.meeting
        if change.coordinator == self.me:
            meeting.spare(self.me, now, is_through=is_through)
            self._owner.advance(now, out)
        else:
            complain = wire.Complain(self.me, starts_over=not is_through, is_through=is_through)
            out.datagram(change.coordinator, complain)

    def state_changed(self, standing: StateStanding, now: int, out: Effects) -> None:
        self._change.follower.standing = standing
        self.wants_state = standing.holding is Holding.LACKS and standing.provider is None
        if self.wants_state and self._owner.is_member:
            self._interval = REPEAT_START_NS
            self._owner.advance(now, out)

    def miss(self, member: Member, now: int, out: Effects) -> None:
        """This member does not hear that one; others may."""
        self.pairs.miss(member, now)
        if not self._timers.is_armed(Timer.PAIRS):
            self._complain_of_unheard(now, out)

    def unreachable(self, member: Member, now: int, out: Effects) -> None:
        """It does not hear this one, which coordinates or else complains of it."""
        if self._change.coordinator == self.me:
            self.suspect(member, "it acknowledges nothing", now, out)
        else:
            self.miss(member, now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.REQUEST:
                    self.ask(now, out)
                case Timer.PAIRS:
                    to = self._change.coordinator
                    if self.pairs.unheard and to != self.me:  # is it in my view at all?
                        hello = self._owner.greetings.hello(to.address, now, is_asking=True)
                        out.datagram(to, hello)
                    self._complain_of_unheard(now, out)

    def ask(self, now: int, out: Effects) -> None:
        """Ask the coordinator, and ask again until it has seen to it."""
        to, elsewhere = self._change.coordinator, self._change.elsewhere
        if to == self.me or not (elsewhere or self.may_go or self.wants_state):
            self._timers.disarm(Timer.REQUEST)
            return
        if self.may_go:
            out.datagram(to, Leave())
        if self.wants_state:
            out.datagram(to, wire.Complain(self.me, wants_state=True))
        if elsewhere:
            hello = self._owner.greetings.hello(to.address, now, is_asking=True)
            out.datagram(to, hello)  # is it there, too?
        for member in self._change.view:  # in one order everywhere
            if member in elsewhere:
                out.datagram(to, wire.Complain(member))
        if self._interval > REPEAT_START_NS:
            out.signal(VerifyWanted(to))
        self._timers.arm(Timer.REQUEST, now + self._interval)
        self._interval = min(2 * self._interval, REQUEST_MAX_NS)

    def _complain_of_unheard(self, now: int, out: Effects) -> None:
        self.pairs.forget_old(now)
        if not self.pairs.unheard:
            return
        to = self._change.coordinator
        for member in self.pairs.unheard:
            out.datagram(member, self._owner.greetings.hello(member.address, now, is_asking=True))
            out.datagram(member, wire.Complain(member))  # it may hear this one
            if to != self.me:
                out.datagram(to, wire.Complain(member))
        for member in verified(self._change.view, self._change.lost, self.me):
            out.signal(VerifyWanted(member))  # is any of them there to see to it?
        self._timers.arm(Timer.PAIRS, now + PROBE_NS)

    # Of others

    def on_complain(self, source: Member, complain: wire.Complain, now: int, out: Effects) -> None:
        view, member, to = self._change.view, complain.member, self._change.coordinator
        is_unheard = complain == wire.Complain(member)
        if not self._change.is_known(source):
            self.ignored += 1
            return
        if member == self.me and is_unheard and (source not in view or to != self.me):
            # Who is elsewhere may hear what is answered, and not say so again.
            if self.pairs.complain(source, member, now) or source in view:
                if to == self.me:
                    self._judge(self.me, source, now, out)
                else:
                    out.datagram(to, wire.Complain(source))
        elif source in view and is_unheard:
            self._change.proposals.ask_again(source, now, out)
            self._judge(source, member, now, out)
        elif source not in view or member not in view:
            self.ignored += 1
        elif complain.starts_over or complain.is_through:
            self._owner.meeting.spare(source, now, is_through=complain.is_through)
            self._owner.advance(now, out)
        elif complain.wants_state:
            self.wants_state = True
            self._owner.advance(now, out)
        elif self._change.coordinator == self.me and self._owner.config.slow_member_timeout_s:
            self.leavers.add(member)
            self._owner.advance(now, out)

    def on_leave(self, source: Member, now: int, out: Effects) -> None:
        view = self._change.view
        if source in view:
            self.leavers.add(source)
            self._owner.advance(now, out)
        elif view.id.creator == self.me and self._change.is_known(source):
            out.datagram(source, wire.Install(view.id))
        else:
            self.ignored += 1

    def _judge(self, source: Member, member: Member, now: int, out: Effects) -> None:
        """As coordinator: if both live and stay deaf to each other, one has to go."""
        change, view = self._change, self._change.view
        self.pairs.complain(source, member, now)
        if member in view and member != self.me:
            out.signal(VerifyWanted(member))
            hello = self._owner.greetings.hello(member.address, now, is_asking=True)
            out.datagram(member, hello)  # it may be in another view
        loser = self.pairs.broken(view, now)
        if loser is not None and loser != self.me and change.coordinator == self.me:
            change.suspects.setdefault(loser, "it and another member do not hear each other")
            self._owner.advance(now, out)


BROKEN_AFTER_NS = 900_000_000
"""How long a complaint goes on before the link is taken to be broken."""

FRESH_NS = 3_000_000_000
"""How long a complaint counts after it was last repeated."""

PROBE_NS = 1_000_000_000
"""How often whoever is not heard is asked, and complained of."""

FORGET_NS = 60_000_000_000
"""After so long whoever is not heard is forgotten."""

COMPLAINTS_MAX = 1024


class Complaint(NamedTuple):
    since: int
    last: int


class Pairs:
    """Whom this member does not hear; and what others complain of, if it coordinates."""

    def __init__(self) -> None:
        self.unheard: dict[Member, int] = {}
        """Since when each is not heard."""
        self._complaints: dict[tuple[Member, Member], Complaint] = {}

    def miss(self, member: Member, now: int) -> None:
        """It is not a pair's affair if the coordinator does not hear it either."""
        self.unheard.setdefault(member, now)
        self._complaints = {pair: c for pair, c in self._complaints.items() if member not in pair}

    def hear(self, member: Member) -> None:
        self.unheard.pop(member, None)

    def forget_old(self, now: int) -> None:
        self.unheard = {
            who: since for who, since in self.unheard.items() if now - since < FORGET_NS
        }

    def begin(self, view: View) -> None:
        """What its members complained of before they were in it together does not count."""
        together = set(view)
        self._complaints = {
            pair: c for pair, c in self._complaints.items() if not together.issuperset(pair)
        }

    def complain(self, source: Member, member: Member, now: int) -> bool:
        """Whether it has done so before, lately."""
        if member in self.unheard:
            return False
        before = self._complaints.get((source, member))
        is_fresh = before is not None and now - before.last < FRESH_NS
        since = before.since if before is not None and is_fresh else now
        if before is None and len(self._complaints) >= COMPLAINTS_MAX:
            self._complaints = {
                pair: c for pair, c in self._complaints.items() if now - c.last < FRESH_NS
            }
        if before is not None or len(self._complaints) < COMPLAINTS_MAX:
            self._complaints[source, member] = Complaint(since, now)
        return is_fresh

    def broken(self, view: View, now: int) -> Member | None:
        """Who has to go, if two members of this view cannot hear each other."""
        fresh = [
            pair
            for pair, complaint in self._complaints.items()
            if now - complaint.last < FRESH_NS and pair[0] in view and pair[1] in view
        ]
        lasting = [pair for pair in fresh if self._is_lasting(self._complaints[pair], now)]
        if not lasting:
            return None
        involved = [who for pair in fresh for who in pair]
        return max(lasting[0], key=lambda who: (involved.count(who), view.members.index(who)))

    def is_barred(self, members: Iterable[Member], view: View, now: int) -> bool:
        """Whether somebody of this view does not hear one of these, though others do."""
        return any(
            self._is_lasting(complaint, now) and source in view and member in members
            for (source, member), complaint in self._complaints.items()
        )

    def _is_lasting(self, complaint: Complaint, now: int) -> bool:
        is_fresh = now - complaint.last < FRESH_NS
        return is_fresh and complaint.last - complaint.since >= BROKEN_AFTER_NS
