"""Uniform: what a sender that is gone has left behind is delivered by all survivors, or by none.

JGroups' UNIFORM note designed this and nobody has built it. There a message is prepared, committed
and acknowledged one by one, with four tables at each member. Streams are FIFO, so here the tables
are ranges of one window per sender, and the note's messages are watermarks:

    PREPARE(M)                  Data on the uniform stream
    PREPARE-ACK                 `received` in the Ack
    preparing-table             (commit, sent] at the sender: not received by all of its view
    prepared-table              (delivered, received] at a member
    COMMIT(M)                   Commit(k): all have received up to k; it opens the commit gates
    COMMIT-ACK, its two tables  `delivered` in the Ack; (low, delivered]
    ACK(M)                      the sender's purge; nothing else depends on it
    COLLECT, COLLECT-ACK        Takeover, Standing
    re-driving L1 and L2        the stages of a Takeover

While a sender lives, its MulticastSender commits and MulticastReceivers have commit gates. What is
here begins when a view comes without it:

On view: the windows of departed senders stay, as estates, deaf to the departed; what lies beyond a
    gap is dropped. The first member of the view is the taker: it begins anew, for all senders that
    it has not resolved (C3). Everybody else who has an estate tells it so.
As taker, for each of them:
    COLLECT  ask all members of this view what they have. Who has not installed it does not answer
             (they still might hear of the departed); who is not open yet says that, and does not
             count.
    HOLD     what anybody has, fetch it oneself (C5); then all the others fetch it from here. But
             a window that opened late holds nothing of what came before: that goes only so far as
             somebody can give all that anybody lacks.
    COMMIT   all hold it: all deliver it, the taker too.
    Then, when all have delivered it, it is resolved: the estate goes, and all are told (C2).
On Takeover of the first member of my view, about this view: drop what it calls resolved;
    fetch or deliver as it says; answer with a Standing. Who is in no view yet answers that it is
    not open; and no older Welcome counts for it any more.
On Standing, as taker: note it; go on. If it names somebody that I have resolved, say so.
Who hears of a departed sender for the first time has an estate of it from then on, without a
    window. It may have resolved that one in an earlier view: then whoever has a window has
    delivered all there is, and it is soon resolved again. Or it never was in a view with it, since
    groups came together just when that one died: then only the others know what is to be done.
On EstateWanted: hand over what is here. These travel as messages to one member, in order and once;
    but their connection may break.
Every interval until all is resolved: Takeover again, or Standing again; and what was asked for, if
    nothing of it has come for τ.

A merge may bring somebody a sender whose messages it never began with (multicast.py). If that one
dies it has no window of it, and delivers nothing of it; but it is no proof of anything either, and
as taker it gets a window only to pass messages on. So does a taker whose window opened too late to
pass on what others lack: of what it has beyond that, nobody delivers anything.

Where receivers retain plain messages until they are stable (stability.py) the same is done for what
a departed sender left of those: what was contiguous at anybody who goes on is delivered by all who
do. They have no gates, so each goes on with what it has; nothing else is delivered before all hold
it.

Bounded by the windows that were there before. Guarantees are for those who go on together: in each
component of a partition by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import auto
from typing import TYPE_CHECKING

from ringcast.config import CAPACITY_LIMIT
from ringcast.core.effects import NewerView
from ringcast.core.shared import Deadlines, GroupState, Named
from ringcast.model import Stream
from ringcast.protocols.intake import deliver, seconds
from ringcast.window.assembler import Assembler
from ringcast.window.windows import ReceiveWindow
from ringcast.wire.frames import (
    EstateRun,
    EstateWanted,
    ReceivedRange,
    RecoveryTarget,
    Stage,
    Standing,
    Takeover,
)
from ringcast.wire.limits import ESTATES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.config import MulticastConfig
    from ringcast.core.effects import Effects
    from ringcast.core.shared import Timers
    from ringcast.events import Event
    from ringcast.model import Member, View
    from ringcast.protocols.multicast_receiver import MulticastReceiver

REPEAT_START_NS = 20_000_000

RUN_BYTES = 1 << 20
"""Payloads of an estate are handed over in messages of about this size."""

RESOLVED_MAX = ESTATES_MAX // 2
"""Senders that a taker calls resolved. Whoever asks for one that it has forgotten makes it resolve
that one once more."""

PAYLOAD_OVERHEAD = 5
"""What each takes in such a message besides its bytes: empty ones are not for nothing."""


class Timer(Named):
    REPEAT = auto()
    """Something is not resolved: say so again."""


@dataclass(slots=True)
class Estate:
    """What this member has of one departed sender."""

    window: ReceiveWindow | None
    """None: that sender never said where this member begins."""
    assembler: Assembler
    is_forwarder: bool = False
    """The window is there for others: nothing of it is delivered here."""
    goal: int | None = None
    """What to fetch up to, in this view."""
    stage: Stage = Stage.COLLECT
    """As taker: how far it has come; else how far the taker said it has."""
    source: Member | None = None
    """Whom it is fetched from."""
    received_before: int = -1
    """What was received when it was last looked at, while it is fetched."""
    since: int = 0

    @property
    def is_mine(self) -> bool:
        return self.window is not None and not self.is_forwarder

    @property
    def received(self) -> int:
        return 0 if self.window is None else self.window.received

    @property
    def low(self) -> int:
        return 0 if self.window is None else self.window.low

    @property
    def delivered(self) -> int:
        """A forwarder has no application to wait for."""
        if self.window is None:
            return 0
        return self.window.received if self.is_forwarder else self.window.delivered

    def make_room(self, through: int) -> None:
        """Others may have larger windows for this sender, and hold more than has a slot here."""
        window = self.window
        if window is None or through <= window.low + window.capacity_max:
            return
        self.window = ReceiveWindow(
            min(through - window.low, CAPACITY_LIMIT),
            offset=window.low,
            max_bytes=window.max_bytes,
            retain=window.retain,
            gate=window.gate,
        )
        received = window.read_run(range(window.low + 1, window.received + 1))
        self.window.add_run(window.low + 1, received)
        self.window.delivered = window.delivered

    def share(self, sender: Member) -> ReceivedRange:
        return ReceivedRange(sender, self.delivered, self.received, self.is_mine, self.low)


@dataclass(slots=True)
class Round:
    """What a taker has been told in this view."""

    standings: dict[Member, dict[Member, ReceivedRange]] = field(default_factory=dict)
    """By member: what it has of each sender that is not resolved there."""
    not_open: set[Member] = field(default_factory=set)
    resolved: dict[Member, None] = field(default_factory=dict)
    """Senders that this taker has resolved in this view: not everybody may have heard."""


class Uniform:
    """The estates of departed senders at one member."""

    def __init__(
        self, me: Member, config: MulticastConfig, stream: Stream = Stream.UNIFORM
    ) -> None:
        self.me = me
        self.stream = stream
        self.estates: dict[Member, Estate] = {}
        self._config = config
        self._tau = round(config.xmit_interval_s * 1e9)
        self._round = Round()
        self._interval = REPEAT_START_NS
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        """As layers are."""
        self.group = group
        self._timers: Timers[Timer] = deadlines.owner(("left", self.stream))

    # Inputs

    def take_over(self, sender: Member, receiver: MulticastReceiver | None, now: int) -> None:
        """That sender is not in the next view."""
        if receiver is None:
            estate = Estate(None, Assembler(self._config.max_message_bytes), since=now)
        else:
            estate = Estate(receiver.window, receiver.assembler, since=now)
            receiver.window.drop_ahead()
            if not receiver.is_gated:
                receiver.window.gate = receiver.window.received
        self.estates[sender] = estate

    def install_view(self, view: View, now: int, out: Effects) -> None:
        for sender in [sender for sender in self.estates if sender in view]:
            del self.estates[sender]  # it is back: what it sends now is another matter
        self._begin_anew()
        self._interval = REPEAT_START_NS
        self._timers.disarm(Timer.REPEAT)
        if self.estates:
            self._say(now, out)
            self._progress(now, out)

    def on_takeover(self, source: Member, told: Takeover, now: int, out: Effects) -> None:
        view = self.group.view
        if view is None:
            out.signal(NewerView(told.view_id))
            out.datagram(source, Standing(told.view_id, False, (), self.stream))
            return
        if told.view_id != view.id or source != view.coordinator or source == self.me:
            return
        for claim in told.claims:
            if claim.stage is Stage.RESOLVED:
                self._release(claim.sender)
            elif self._knows(claim.sender, now):
                self._follow(claim, source, out)
        self._stand(out)
        if self.estates:
            self._timers.arm_if_idle(Timer.REPEAT, now + self._interval)

    def on_standing(self, source: Member, told: Standing, now: int, out: Effects) -> None:
        view = self.group.view
        if view is None or told.view_id != view.id or view.coordinator != self.me:
            return
        if source not in view:
            return
        if told.is_open:
            shares = {share.sender: share for share in told.shares}
            self._round.standings[source] = shares
            self._round.not_open.discard(source)
            if any(sender in self._round.resolved for sender in shares):
                out.datagram(source, self._takeover())
            new = [who for who in shares if who not in (*self.estates, *self._round.resolved)]
            known = [self._knows(sender, now) for sender in new]
            if any(known):
                self._say(now, out)
        else:
            self._round.not_open.add(source)
        self._progress(now, out)

    def on_wanted(self, source: Member, wanted: EstateWanted, out: Effects) -> None:
        estate = self.estates.get(wanted.sender)
        view = self.group.view
        if estate is None or estate.window is None or view is None or wanted.view_id != view.id:
            return
        first = max(wanted.first, estate.window.low + 1)
        payloads = estate.window.read_run(range(first, wanted.last + 1))
        start = size = 0
        for stop, payload in enumerate(payloads, 1):
            size += len(payload) + PAYLOAD_OVERHEAD
            if size >= RUN_BYTES or stop == len(payloads):
                seqnos = range(first + start, first + stop)
                more = tuple(estate.assembler.is_continued(seqno) for seqno in seqnos)
                some = tuple(payloads[start:stop])
                out.message(
                    source, EstateRun(wanted.sender, first + start, some, more, self.stream)
                )
                start, size = stop, 0

    def on_run(self, source: Member, run: EstateRun, now: int, out: Effects) -> None:
        estate = self.estates.get(run.sender)
        view = self.group.view
        if estate is None or estate.window is None or view is None or source not in view:
            return
        if estate.goal is None:
            return  # nobody asked, in this view
        window = estate.window
        continued = [run.first + at for at, more in enumerate(run.more) if more]
        for seqno in continued:
            if window.received < seqno <= window.low + window.capacity_max:
                estate.assembler.mark(range(seqno, seqno + 1))
        window.add_run(run.first, run.payloads)
        self._advance(now, out)

    def take_ready(self, limit: int, now: int, events: list[Event], out: Effects) -> int:
        """Deliver what the departed left to be delivered; how many of the limit are left."""
        has_taken = False
        for sender, estate in list(self.estates.items()):
            if limit <= 0:
                break
            if not estate.is_mine:
                continue
            assert estate.window is not None
            assert self.group.view is not None
            first = estate.window.delivered + 1
            payloads = estate.window.take_ready(limit)
            if payloads:
                has_taken = True
                limit -= len(payloads)
                view_id = self.group.view.id
                assembler = estate.assembler
                deliver(sender, self.stream, assembler, first, payloads, view_id, events)
        if has_taken:
            self._advance(now, out)
        return limit

    def handle_timeout(self, now: int, out: Effects) -> None:
        if self._timers.take(Timer.REPEAT, now) and self.estates:
            if self._interval == self._tau:
                self._fetch_again(out)
            self._interval = min(2 * self._interval, self._tau)
            self._say(now, out)

    def close(self) -> None:
        self.estates.clear()
        self._timers.disarm(Timer.REPEAT)

    # Outputs

    @property
    def has_ready(self) -> bool:
        return bool(self.estates) and any(
            estate.is_mine and estate.window is not None and estate.window.ready
            for estate in self.estates.values()
        )

    @property
    def not_open(self) -> set[Member]:
        """As taker: who has said that it is not in this view yet."""
        return self._round.not_open

    @property
    def is_settled(self) -> bool:
        """Nobody who departed is unresolved here."""
        return not self.estates

    def stats(self) -> dict[str, object]:
        return {
            "estates": {
                str(sender): [estate.delivered, estate.received, estate.stage.name.lower()]
                for sender, estate in self.estates.items()
            },
            "standings": len(self._round.standings),
        }

    def explain(self, now: int) -> list[str]:
        return [
            f"{sender} has departed and its {self.stream.name.lower()} messages after "
            f"{estate.delivered} are not resolved for {seconds(now - estate.since)}: "
            f"{self._waits_for(sender, estate)}"
            for sender, estate in self.estates.items()
        ]

    def check_invariants(self) -> None:
        assert not self.estates or self._timers.is_armed(Timer.REPEAT)
        for estate in self.estates.values():
            if estate.window is not None:
                estate.window.check_invariants()

    # As taker

    @property
    def _is_taker(self) -> bool:
        return self.group.view is not None and self.group.view.coordinator == self.me

    def _takeover(self) -> Takeover:
        assert self.group.view is not None
        resolved = [RecoveryTarget(sender, Stage.RESOLVED, 0) for sender in self._round.resolved]
        claims = [
            RecoveryTarget(sender, estate.stage, estate.goal or 0)
            for sender, estate in self.estates.items()
        ]
        # Of too many the first come first: once they are resolved the others are named.
        told = (*claims[: ESTATES_MAX - len(resolved)], *resolved)
        return Takeover(self.group.view.id, told, self.stream)

    def _responders(self) -> list[Member]:
        view, absent = self.group.view, self._round.not_open
        assert view is not None
        return [who for who in view if who != self.me and who not in absent]

    def _progress(self, now: int, out: Effects) -> None:
        """Take each estate as far as the answers allow, and tell if any has got further."""
        if not self._is_taker:
            return
        before = self._takeover()
        for sender in list(self.estates):
            while sender in self.estates and self._step(sender, out):
                pass
        if self._takeover() != before:
            self._interval = REPEAT_START_NS
            self._say(now, out)

    def _step(self, sender: Member, out: Effects) -> bool:
        """Whether this estate has got on by one stage."""
        estate = self.estates[sender]
        responders = self._responders()
        told = [self._round.standings.get(who) for who in responders]
        if None in told:
            return False
        shares = {who: self._round.standings[who].get(sender) for who in responders}
        if None in shares.values():  # it has yet to hear of that sender
            return False
        known = {who: share for who, share in shares.items() if share and share.has_window}
        if estate.stage is Stage.COLLECT:
            return self._collect(sender, estate, known, out)
        assert estate.goal is not None
        goal = estate.goal
        if estate.stage is Stage.HOLD:
            if all(share.received >= goal for share in known.values()):
                estate.stage = Stage.COMMIT
                if estate.window is not None:
                    estate.window.open_gate(goal)
                return True
            return False
        is_done = estate.delivered >= goal or not estate.is_mine
        if is_done and all(share.delivered >= goal for share in known.values()):
            self._resolve(sender)
            return True
        return False

    def _collect(
        self, sender: Member, estate: Estate, known: dict[Member, ReceivedRange], out: Effects
    ) -> bool:
        if estate.goal is None:
            shares = dict(known)
            if estate.is_mine:
                shares[self.me] = estate.share(sender)
            least = min((share.received for share in shares.values()), default=0)
            is_forwarder = not estate.is_mine or estate.low > least
            if is_forwarder:  # all that somebody may have yet to deliver
                least = min(least, max((share.delivered for share in known.values()), default=0))
                self._make_forwarder(estate, least)
            givers = {
                who: share.received
                for who, share in shares.items()
                if share.low <= least and not (is_forwarder and who == self.me)
            }
            estate.goal = max(givers.values(), default=0)
            if estate.received < estate.goal:
                holder = next(who for who, received in givers.items() if received == estate.goal)
                self._fetch(sender, estate, holder, out)
        if estate.received < estate.goal:
            return False
        estate.stage = Stage.HOLD
        return True

    def _make_forwarder(self, estate: Estate, offset: int) -> None:
        config = self._config
        estate.window = ReceiveWindow(
            config.capacity, offset=offset, max_bytes=config.window_bytes, gate=offset
        )
        estate.assembler = Assembler(config.max_message_bytes)
        estate.is_forwarder = True

    # As anybody

    def _begin_anew(self) -> None:
        """What was said in an earlier view was said with others (C3)."""
        self._round = Round()
        for estate in self.estates.values():
            estate.goal = estate.source = None
            estate.stage = Stage.COLLECT

    def _knows(self, sender: Member, now: int) -> bool:
        """Whether there is an estate of this sender: from now on, since somebody else has one."""
        assert self.group.view is not None
        if sender not in self.estates:
            if sender in self.group.view or len(self.estates) >= ESTATES_MAX:
                return False
            self.take_over(sender, None, now)
        return True

    def _follow(self, told: RecoveryTarget, taker: Member, out: Effects) -> None:
        """Do what the taker says of this estate."""
        estate = self.estates[told.sender]
        if told.stage is Stage.COLLECT or not estate.is_mine:
            return
        assert estate.window is not None
        if estate.goal is None:
            estate.goal = told.high
            if estate.received < told.high:
                self._fetch(told.sender, estate, taker, out)
        estate.stage = max(estate.stage, told.stage)
        if told.stage is Stage.COMMIT:
            estate.window.open_gate(told.high)

    def _fetch(self, sender: Member, estate: Estate, source: Member, out: Effects) -> None:
        assert self.group.view is not None
        assert estate.goal is not None
        estate.make_room(estate.goal)
        estate.source, estate.received_before = source, estate.received
        wanted = EstateWanted(
            self.group.view.id, sender, estate.received + 1, estate.goal, self.stream
        )
        out.message(source, wanted)

    def _fetch_again(self, out: Effects) -> None:
        for sender, estate in self.estates.items():
            if estate.source is None or estate.goal is None or estate.received >= estate.goal:
                continue
            if estate.received == estate.received_before:
                self._fetch(sender, estate, estate.source, out)
            estate.received_before = estate.received

    def _resolve(self, sender: Member) -> None:
        """As taker: there is nothing left to do."""
        resolved = self._round.resolved
        resolved[sender] = None
        if len(resolved) > RESOLVED_MAX:
            del resolved[next(iter(resolved))]
        self._release(sender)

    def _release(self, sender: Member) -> None:
        self.estates.pop(sender, None)
        if not self.estates:
            self._timers.disarm(Timer.REPEAT)

    def _stand(self, out: Effects) -> None:
        assert self.group.view is not None
        shares = [estate.share(sender) for sender, estate in self.estates.items()]
        told = Standing(self.group.view.id, True, tuple(shares[:ESTATES_MAX]), self.stream)
        out.datagram(self.group.view.coordinator, told)

    def _advance(self, now: int, out: Effects) -> None:
        """This member has got further with some estate."""
        if self._is_taker:
            self._progress(now, out)
        else:
            self._stand(out)

    def _say(self, now: int, out: Effects) -> None:
        if self._is_taker:
            takeover = self._takeover()
            for member in self._responders():
                out.datagram(member, takeover)
        else:
            self._stand(out)
        if self.estates:
            self._timers.arm(Timer.REPEAT, now + self._interval)

    def _waits_for(self, sender: Member, estate: Estate) -> str:
        assert self.group.view is not None
        if not self._is_taker:
            return f"{self.group.view.coordinator} sees to it"
        silent = [who for who in self._responders() if who not in self._round.standings]
        if silent:
            return f"no answer from {_names(silent)}"
        goal = estate.goal or 0
        shares = {who: self._round.standings[who].get(sender) for who in self._responders()}
        if estate.stage is Stage.COMMIT:
            late = [who for who, share in shares.items() if share and share.delivered < goal]
            return f"{_names(late) or 'this member'} has not taken {goal}"
        late = [who for who, share in shares.items() if share and share.received < goal]
        return f"{_names(late) or 'this member'} fetches what is up to {goal}"


def _names(members: Iterable[Member]) -> str:
    return ", ".join(map(str, members))
