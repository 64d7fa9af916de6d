"""MulticastSender: the sending half of reliable multicast, for one stream of one's own messages.

On send: what finds room gets the next seqnos and goes out; the rest is not accepted and takes no
    seqno (N3). A message larger than a datagram is cut into fragments, admitted as room appears.
    Until somebody has said what it allows, as much may be under way as this member itself, with its
    own receive buffer, would allow each of the others.
On Ack: raise that member's marks. What all current members have delivered is purged (N5);
    the task that waited for room is told (N-L3).
On Nack: send again what is still here, at most one window per member until something is purged
    or the next probe.
Every probe interval: while some current member's ack is behind, tell the group the highest seqno,
    so that a lost last message is missed and a lost last ack repeated (N-L1, N-L2). The first
    probe comes after about two ack times, each further one after twice as long, up to τ.
    A member that has kept a blocked sender from getting on for `slow_member_timeout` is reported as
    too slow, and again after as long; but not while this member's own application is no faster. By
    so much as a probe is late, it was we who slept: that time does not count.
On acks and on new members: receipts that are due (stream.py).
On Stable, where members report instead of acknowledging (stability.py): what everybody has
    delivered is purged. Receivers that retain messages may have missed the last Stable of an
    earlier view, so the window has room for no more than two windows above what all are known to
    have heard.
On a uniform stream, whenever what all current members hold has risen: that is committed. Nobody
    delivers more of it than that, the sender included. Commit tells the group, and is told again
    with every probe.
From Freeze to Begin no seqno is given, and nothing counts that comes: the cut alone says what
    belongs to the view. A send that waits gets its seqno in the next view.
At Begin everybody who came along from the last view holds all that was sent in it: that is an ack
    of each of them, and on a uniform stream it commits. A new member begins behind it. A large
    message that is under way when somebody new comes starts over: it belongs to the view of its
    last fragment, and a new member needs all of it. From the third time on StartsOver tells that,
    and then that it is through: nobody is let in meanwhile, for a while.
"""

from __future__ import annotations

from enum import auto
from functools import partial
from typing import TYPE_CHECKING

from ringcast.core.effects import Effects, StartsOver, TooSlow, Unreachable
from ringcast.core.shared import Named, Timers
from ringcast.model import SEQNO_MAX, Member, Origin, Purge, Stream, View
from ringcast.protocols.limits import Limits
from ringcast.protocols.stream import SendStream, seconds
from ringcast.texts import counted
from ringcast.window.acks import AckTable, AgreedMark
from ringcast.window.assembler import Assembler
from ringcast.window.send import SendWindow
from ringcast.wire.frames import Ack, Commit, Data, LogCommit, Mark, Nack, Stable, Watermark

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ringcast.config import MulticastConfig

WATERMARK_PROBE_START_NS = 5_000_000
"""The first probe interval before an ack time has been measured."""

WATERMARK_PROBE_MIN_NS = 1_000_000

UNREACHABLE_TAUS = 4
"""For so many probe intervals a member has answered none: its link to this one may be broken."""


class Timer(Named):
    WATERMARK_PROBE = auto()
    """Some member's ack is behind: tell the highest seqno."""


class MulticastSender:
    """One stream of my own messages, until everybody has delivered them."""

    def __init__(
        self,
        me: Member,
        stream: Stream,
        config: MulticastConfig,
        view: View,
        fragment_bytes: int,
        timers: Timers[Timer],
        slow_member_timeout_s: float = 0.0,
        assumed_bytes: int | None = None,
    ) -> None:
        """`assumed_bytes` may be under way until somebody has said how many it allows."""
        self.is_gated = stream is not Stream.FIFO
        stability = None if self.is_gated else config.stability
        window = SendWindow(
            config.capacity,
            capacity_max=config.grown_capacity if stability is None else config.capacity_max,
            max_bytes=config.in_flight_bytes,
            datagram_bytes=config.datagram_bytes,
            gate=0 if self.is_gated else SEQNO_MAX,
        )
        self.origin = Origin(me, stream)
        self.window = window
        self.assembler = Assembler(config.max_message_bytes)  # for one's own application
        frame = partial(Data, stream)
        self.stream = SendStream(window, fragment_bytes, None, frame, self.assembler)
        self.stream.emits_writable = stream is not Stream.TOTAL
        self.fragments = self.stream.fragments
        self.acks: AckTable | AgreedMark
        if stability is None:
            self.acks = AckTable(view.members, window.low)
        else:
            self.acks = AgreedMark(view.members, window.low)
        self._heard_by_all = self._agreed = 0  # by reports: how far, as all know; as I know
        self._delivered_by_others = 0  # in views before this one: joiners are not asked for these
        self.is_frozen = False
        self.heard: dict[Member, int] = {}
        """When each member last acknowledged anything."""
        self._me, self._stream = me, stream
        self._commits = LogCommit if stream is Stream.TOTAL else Commit
        self._config = config
        self._tau = round(config.xmit_interval_s * 1e9)
        self.limits = Limits(*(me, window, config, view, assumed_bytes), is_acked=stability is None)
        self._quota: dict[Member, int] = {}  # messages retransmitted to each since then
        self._timers = timers
        self._probe_interval = WATERMARK_PROBE_START_NS
        self._ack_time = 0  # from sending to the first ack, as measured
        if stability is not None:
            self._ack_time = round(stability.interval_s * 1e9)
        self._timed: tuple[int, int] | None = None  # the (seqno, when) being measured
        self._slow_after = round(slow_member_timeout_s * 1e9)  # 0: bear with everybody
        self._stuck_since = 0  # while blocked: when something was purged last
        self._probed_since: int | None = None  # some ack is behind
        self._limit_messages()

    # Inputs

    def send(self, payloads: Sequence[bytes], now: int, out: Effects) -> int:
        """How many messages were accepted, from the first on."""
        stream, first = self.stream, self.window.high + 1
        was_blocked, accepted = stream.is_blocked, 0
        if self.is_frozen:
            stream.block(now)
        else:
            accepted = stream.send(payloads, now, out)
        if stream.is_blocked and not was_blocked:
            self._stuck_since = now
        if accepted:
            if self.is_gated:
                self._hold(out)
            if self._timed is None:
                self._timed = (first, now)
            if Timer.WATERMARK_PROBE not in self._timers.by_key:
                self._expect_acks(now)
        return accepted

    def on_ack(self, source: Member, ack: Ack, now: int, out: Effects) -> None:
        """An ack of a current member, for nothing that was never sent."""
        self.heard[source] = now
        self._measure(ack.received, now)
        has_room = False
        limits, widest = self.limits, ack.widest
        if limits.allowances.get(source) != ack.allowance or limits.widest.get(source) != widest:
            limits.allowances[source] = ack.allowance
            limits.widest[source] = widest
            has_room = limits.apply()
        if self.acks.update(source, ack.received, ack.delivered):
            self._commit(out)
            self._purge(now, out)
        elif has_room:
            self._use_room(now, out)
        if self.stream.receipts:
            self.stream.receipts.look(self.acks.has_delivered, out)

    def on_nack(self, source: Member, nack: Nack, out: Effects) -> None:
        self.limits.on_loss(nack.missing[-1][-1])
        given = self._quota.get(source, 0)
        quota = self.window.capacity_max - given
        dest = None if self._config.repair_to_all else source
        self._quota[source] = given + self.stream.retransmit(nack.missing, quota, dest, out)

    def on_stable(
        self, stable: Stable, mark: Mark, slowest: Member, now: int, out: Effects
    ) -> None:
        """A stability round has ended; `mark` is about this stream."""
        assert isinstance(self.acks, AgreedMark)
        if stable.number > 1:  # who reported in this round had heard the end of the last
            self._heard_by_all = max(self._heard_by_all, self._agreed)
        self._agreed = mark.by_all
        self.limits.allowances = {self._me: stable.allowance}
        has_room = self.limits.apply()
        limited_by = slowest if mark.by_all < self.window.high else None
        if self.acks.agree(mark.by_all, mark.by_others, limited_by):
            self._purge(now, out)
        has_room |= self._limit_messages()
        if has_room:
            self._use_room(now, out)
        self.stream.receipts.look(self.acks.has_delivered, out)

    def ask_receipt(self, number: int, *, is_flush: bool) -> int | None:
        """Confirmed follows, under the number that is returned, when all other members of the view
        have delivered what was accepted so far. None: they have."""
        others = (who for who in self.acks.members if who != self._me)
        return self.stream.ask_receipt(number, others, self.acks.has_delivered, is_flush=is_flush)

    def take_ready(self, limit: int, now: int, out: Effects) -> list[bytes]:
        """One's own messages, for one's own application."""
        payloads = self.window.take_ready(limit)
        mine = self._me, self.window.high, self.window.delivered
        if payloads and self.acks.update(*mine) and not self.is_frozen:
            self._purge(now, out)
        return payloads

    def take_last(self, end: int, *, is_handed_over: bool) -> list[bytes]:
        """Those up to `end` that every other member has taken, now or in an earlier view, or all if
        they were handed over; for an application that gets no more after them: nothing is purged,
        so no room appears and nothing is sent."""
        window = self.window
        last = max(self._delivered_by_others, self.acked_by_others)
        if is_handed_over:
            last = window.gate = window.high
        return window.take_ready(min(last, end) - window.delivered)

    def handle_timeout(self, now: int, out: Effects) -> None:
        late = self._timers.lateness(Timer.WATERMARK_PROBE, now)
        is_due = self._timers.take(Timer.WATERMARK_PROBE, now)
        if is_due:
            self._stuck_since = min(now, self._stuck_since + late)
            self._quota.clear()
            if self.is_behind:
                out.datagram(None, Watermark(self._stream, self.window.high))
                if self.is_gated:
                    out.datagram(None, self._commits(self.window.gate))
                self._complain(now, out)
                self._probe_interval = min(2 * self._probe_interval, self._tau)
                self._timers.arm(Timer.WATERMARK_PROBE, now + self._probe_interval)
        if not self.is_behind:
            self._probed_since = None
        elif self._probed_since is None or late >= 2 * self._tau:
            self._probed_since = now
        elif is_due and isinstance(self.acks, AckTable):
            for member in self.acks.slowest():
                silence = now - max(self.heard.get(member, 0), self._probed_since)
                if member != self._me and silence >= UNREACHABLE_TAUS * self._tau:
                    out.signal(Unreachable(member, silence))

    def configure(self, config: MulticastConfig, slow_member_timeout_s: float) -> None:
        """This is how the group does it from now on."""
        self._config = self.limits.config = config
        self._tau = round(config.xmit_interval_s * 1e9)
        self._slow_after = round(slow_member_timeout_s * 1e9)
        self.assembler.allow(config.max_message_bytes)

    def freeze(self) -> None:
        self.is_frozen = True
        self._timers.disarm_all()

    def begin(self, view: View, together: Collection[Member], now: int, out: Effects) -> None:
        """This view begins; these members come along with this one from the view before."""
        self.is_frozen = False
        self._probed_since = None
        self._delivered_by_others = max(self._delivered_by_others, self.acked_by_others)
        staying = [who for who in view if who in together]
        self.stream.receipts.depart(staying, self.acks.has_delivered, str(view), out)
        window = self.window
        is_agreed = isinstance(self.acks, AgreedMark)
        self.acks.set_members(staying, window.low)
        self.acks.set_members(view.members, window.low if is_agreed else window.high)
        for member in staying:
            self.acks.update(member, window.high, 0)
        for table in (self.heard, self._quota):
            for member in [member for member in table if member not in view]:
                del table[member]
        if self._stream is Stream.TOTAL:
            self.fragments.abandon()  # its origin submits it anew
        elif len(staying) < len(view):
            self.fragments.start_over()
            if self.fragments.starts_often:
                out.signal(StartsOver())
        self.limits.begin(view)
        if self.is_gated:
            window.gate = max(window.gate, window.high)
        self._purge(now, out)
        self._expect_acks(now)

    def bound(self, config: MulticastConfig) -> None:
        """So many bytes may be in the window from now on."""
        self._config = self.limits.config = config
        self.limits.apply()

    def remove(self) -> None:
        """It is gone: no timer of it fires any more."""
        self._timers.release()

    # Outputs

    def sent_since(self, first: int) -> list[Data]:
        """What was sent from seqno `first` on and is still here."""
        return self.pieces(range(first, self.window.high + 1), self.window.high)

    def pieces(self, seqnos: range, limit: int) -> list[Data]:
        """Those of these that are still here, at most so many: one frame, or several where
        fragments and whole messages alternate."""
        pieces = self.fragments.pieces(seqnos[:limit])
        return [Data(self._stream, first, payloads, more=more) for first, payloads, more in pieces]

    @property
    def is_behind(self) -> bool:
        """Some current member has not delivered everything that was sent."""
        return self.acks.min_delivered < self.window.high

    @property
    def is_flushed(self) -> bool:
        """Every other member has delivered everything, whether or not the own application has."""
        return not self.fragments.rest and self.acked_by_others == self.window.high

    @property
    def acked_by_others(self) -> int:
        """How far every other member has come."""
        return min(self.acks.delivered_by_others(self._me), self.window.high)

    def stats(self) -> dict[str, object]:
        return {
            **{name: getattr(self.window, name) for name in ("low", "delivered", "high")},
            **self.stream.stats(),
            **self.limits.stats(),
            "receipts": len(self.stream.receipts),
            "acks": {str(who): [received, taken] for who, received, taken in self.acks.entries()},
        }

    def explain(self, now: int) -> list[str]:
        name, window, taken = self._stream.name.lower(), self.window, self.acks.min_delivered
        if self.is_frozen or not self.is_behind:
            return []
        if self.stream.is_blocked:
            block = self.stream.explain_block(now)
            what = f"send on {name} {block}{self.limits.explain()}, limited by"
        else:
            started = self.fragments.explain()
            sent = counted(window.high - taken, "message")
            what = f"{sent} sent on {name}{started}, not yet delivered by"
        if not self.acks.slowest():
            return [f"{what} somebody: the next stability round will tell"]
        return [
            f"{what} {member}, which has delivered {taken} of {window.high}; "
            f"{self._last_sign(member, now)}{self._outlook(member, now)}"
            for member in self.acks.slowest()
        ]

    def _last_sign(self, member: Member, now: int) -> str:
        if member == self._me:
            return "that is this member's own application"
        if isinstance(self.acks, AgreedMark):
            return "so they have reported"
        heard = self.heard.get(member)
        return "no ack from it yet" if heard is None else f"last ack {seconds(now - heard)} ago"

    def _outlook(self, member: Member, now: int) -> str:
        """What comes of it, where nobody is borne with for ever."""
        if not self.stream.is_blocked or not self._slow_after or member == self._me:
            return ""
        left = max(0, self._stuck_since + self._slow_after - now)
        return f"; excluded if it takes nothing for {seconds(left)} more"

    def check_invariants(self, view: View) -> None:
        self.stream.check_invariants()
        if self.is_frozen:
            return
        entries = self.acks.entries()
        assert self.acks.members == view.members
        assert all(delivered <= received <= self.window.high for _, received, delivered in entries)
        assert self.window.low <= self.acks.min_delivered <= self.window.high
        assert self._timers.is_armed(Timer.WATERMARK_PROBE) or not self.is_behind
        assert self.is_behind or not self.fragments.rest or not self.window.room

    # Admission

    def _use_room(self, now: int, out: Effects) -> None:
        if self.stream.use_room(out):
            if self.is_gated:
                self._hold(out)
            self._expect_acks(now)

    def _limit_messages(self) -> bool:
        """Where receivers retain: no more than they have slots for; True if that is more now."""
        if self.is_gated or self._config.purge is not Purge.RETAINED:
            return False
        before = self.window.ceiling
        self.window.ceiling = self._heard_by_all + 2 * self._config.capacity_max
        return self.window.ceiling > before

    # Acknowledgement

    def _hold(self, out: Effects) -> None:
        """What I send I hold."""
        if self.acks.update(self._me, self.window.high, self.window.delivered):
            self._commit(out)

    def _commit(self, out: Effects) -> None:
        before, held = self.window.gate, self.acks.min_received
        if self.is_gated and held > before:
            self.window.gate = held
            out.datagram(None, self._commits(held))

    def _purge(self, now: int, out: Effects) -> None:
        """Let go of what every current member has delivered."""
        low = self.window.low
        self.window.purge(self.acks.min_delivered)
        if self.window.low > low:
            self.fragments.purged(low)
            self._quota.clear()
            self._stuck_since = now
            if not (self.stream.is_blocked or self.fragments.rest):
                self.limits.is_timed = False
            elif self.window.low >= self.limits.look_at:
                self.limits.on_purge(now)
            # Acks are coming in; should they stop, start over with short intervals.
            self._timers.disarm(Timer.WATERMARK_PROBE)
            self._expect_acks(now)
        self._use_room(now, out)

    def _measure(self, received: int, now: int) -> None:
        """Learn how long an ack takes. Repairs make samples long and nothing makes them short, so
        the estimate falls at once and rises slowly."""
        if self._timed is not None and received >= self._timed[0]:
            sample = now - self._timed[1]
            slow_rise = self._ack_time + (sample - self._ack_time) // 8
            self._ack_time = min(sample, slow_rise) if self._ack_time else sample
            self._timed = None

    def _complain(self, now: int, out: Effects) -> None:
        """Nobody need be blocked for ever, if that was agreed."""
        if not self.stream.is_blocked or not 0 < self._slow_after <= now - self._stuck_since:
            return
        if self.window.delivered > self.acks.min_delivered:
            self._stuck_since = now
            for member in self.acks.slowest():
                out.signal(TooSlow(member))

    def _expect_acks(self, now: int) -> None:
        """Somebody may be behind: probe unless acks come."""
        if self.is_behind and Timer.WATERMARK_PROBE not in self._timers.by_key:
            interval = max(WATERMARK_PROBE_MIN_NS, 2 * self._ack_time or WATERMARK_PROBE_START_NS)
            self._probe_interval = min(interval, self._tau)
            self._timers.arm(Timer.WATERMARK_PROBE, now + self._probe_interval)
