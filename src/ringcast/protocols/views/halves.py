"""The sending and the receiving half of one stream, in views that begin and end at a cut.

From Freeze to Begin a sender gives no seqno, and neither half counts what comes: the cut alone says
what belongs to the view. A send that waits gets its seqno in the next view.

At Begin everybody who came along from the last view holds all that was sent in it: for the sender
that is an ack of each of them, and on a uniform stream it commits. Whoever is new begins behind it.
What has been delivered is told anew of streams that were used in that view, and of no others.
A large message that is under way when somebody new comes starts over: it belongs to the view of
its last fragment, and whoever is new needs all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Unreachable
from ringcast.model import SEQNO_MAX
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender, Timer
from ringcast.window.acks import AckTable, AgreedMark
from ringcast.window.bounded import BoundedWindow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ringcast.config import MulticastConfig
    from ringcast.core.effects import Effects
    from ringcast.core.shared import Timers
    from ringcast.model import Member, Origin, View
    from ringcast.protocols.multicast_receiver import Timer as ReceiverTimer
    from ringcast.wire.frames import Data

UNREACHABLE_TAUS = 4
"""For so many probe intervals a member has answered none: its link to this one may be broken."""


class ViewSender(MulticastSender):
    """One stream of my own messages."""

    is_frozen = False
    _probed_since: int | None = None  # some ack is behind

    def room(self) -> tuple[int, int, int]:
        return (0, 0, 0) if self.is_frozen else super().room()

    def send(self, payloads: Sequence[bytes], now: int, out: Effects) -> int:
        if not self.is_frozen:
            return super().send(payloads, now, out)
        if not self.is_blocked:
            self.is_blocked = True
            self.blocked_since = self._stuck_since = now
        return 0

    def handle_timeout(self, now: int, out: Effects) -> None:
        is_due = self._timers.until(Timer.WATERMARK_PROBE, now) == 0
        has_slept = self._timers.lateness(Timer.WATERMARK_PROBE, now) >= 2 * self._tau
        super().handle_timeout(now, out)
        if not self.is_behind:
            self._probed_since = None
        elif self._probed_since is None or has_slept:
            self._probed_since = now
        elif is_due and isinstance(self.acks, AckTable):
            for member in self.acks.slowest():
                silence = now - max(self.heard.get(member, 0), self._probed_since)
                if member != self._me and silence >= UNREACHABLE_TAUS * self._tau:
                    out.signal(Unreachable(member, silence))

    def configure(self, config: MulticastConfig, slow_member_timeout_s: float) -> None:
        """This is how the group does it from now on."""
        self._config = config
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
        self._receipts.depart(staying, self.acks.has_delivered, str(view), out)
        window = self.window
        is_agreed = isinstance(self.acks, AgreedMark)
        self.acks.set_members(staying, window.low)
        self.acks.set_members(view.members, window.low if is_agreed else window.high)
        for member in staying:
            self.acks.update(member, window.high, 0)
        for table in (self._allowances, self.heard, self._quota):
            for member in [member for member in table if member not in view]:
                del table[member]
        if len(staying) < len(view):
            self.fragments.start_over()
        self._limit_bytes()
        if self.is_gated:
            window.gate = max(window.gate, window.high)
        self._purge(now, out)
        self._expect_acks(now)

    def pieces(self, seqnos: range, limit: int) -> list[Data]:
        """Those of these that are still here, at most so many."""
        return self._as_frames(seqnos[:limit])

    def take_ready(self, limit: int, now: int, out: Effects) -> list[bytes]:
        if not self.is_frozen:
            return super().take_ready(limit, now, out)
        payloads = self.window.take_ready(limit)
        self.acks.update(self._me, self.window.high, self.window.delivered)
        return payloads

    def explain(self, now: int) -> list[str]:
        return [] if self.is_frozen else super().explain(now)

    def check_invariants(self, view: View) -> None:
        if self.is_frozen:
            self.window.check_invariants()
            self.fragments.check_invariants()
        else:
            super().check_invariants(view)


class ViewReceiver(MulticastReceiver):
    """One stream of another member."""

    is_frozen = False

    def __init__(
        self,
        origin: Origin,
        config: MulticastConfig,
        offset: int,
        timers: Timers[ReceiverTimer],
        *,
        is_gated: bool = False,
    ) -> None:
        super().__init__(origin, config, offset, timers, is_gated=is_gated)
        self._began_at = offset  # the view: the cut has told its sender so

    def configure(self, config: MulticastConfig, slow_member_timeout_s: float) -> None:
        """This is how the group does it from now on."""
        self.repair.tau = round(config.xmit_interval_s * 1e9)
        self._ack_delay = round(config.ack_delay_s * 1e9)
        self.assembler.allow(config.max_message_bytes)

    def freeze(self) -> None:
        if not self.is_frozen and not self.is_gated:
            self.window.gate = self.window.received  # what a flush brings waits for its view
        self._flush(is_flushing=True)
        self._timers.disarm_all()

    def _flush(self, *, is_flushing: bool) -> None:
        self.is_frozen = is_flushing
        if isinstance(self.window, BoundedWindow):
            self.window.is_flushing = is_flushing

    def begin(self, now: int) -> None:
        """A view begins, and everything before it is here."""
        self._flush(is_flushing=False)
        self.repair.window_moved(self.window, now)
        self._arm_repair()
        if self.window.received > self._began_at or self.window.delivered > self._acked_delivered:
            self._ack_later(now)  # what was said while its sender was frozen did not count
        self._began_at = self.window.received
        self.window.gate = self.window.received if self.is_gated else SEQNO_MAX

    def take_ready(self, limit: int, now: int, allowance: int, out: Effects) -> list[bytes]:
        if self.is_frozen:
            return self.window.take_ready(limit)
        return super().take_ready(limit, now, allowance, out)

    def check_invariants(self) -> None:
        if self.is_frozen:
            self.window.check_invariants()
        else:
            super().check_invariants()

    def _arm_repair(self) -> None:
        """What is missing up to the cut is fetched by the flush."""
        if not self.is_frozen:
            super()._arm_repair()
