"""MulticastReceiver: the receiving half of reliable multicast, for one stream of one other member.

On Data: buffer what fits the window, drop the rest (N4). A duplicate is acknowledged again: the
    first ack may have been lost. Behind a gap, acknowledge every few datagrams: `received` stands
    still, but the sender learns that they have arrived and that it may go on.
On take: the application pulls, in order and without gaps (N1); only then does `delivered`
    advance. Acknowledge after so many messages or datagrams, when the last gap has closed (the
    sender may have stood still for it), or after `ack_delay_s`.
Where the socket buffer is small, acknowledge after half of the bytes that the sender may have under
    way: it may have fewer datagrams out than would else make an ack due.
On Commit, on a stream that has a gate: what is up to it may be taken. There each datagram that
    advances `received` is acknowledged at once: the sender's next commit waits for it.
On Watermark: everything up to it exists, so a lost last message is missed. Acknowledge at once: the
    sender asks because it stands still, and paces its questions.
Whenever repair.py says so: ask for what is missing, by timer, so that all that is proved in one
    turn shares a request. Where members retain what they have delivered,
    somebody else is asked, too, from the second time on: the sender may be out of reach.

From Freeze to Begin nothing is acknowledged or asked for: the cut alone says what belongs to the
    view, and the flush fetches it. At Begin everything before the view is here. What has been
    delivered is told anew of streams that were used in the last view, and of no others.

An ack tells two watermarks, neither ever ahead of the truth (N6): `received` is contiguously
received, `delivered` is taken. It is cumulative: a lost one is made good by the next. Where members
report (stability.py) nothing is acknowledged here; what was taken may be retained until it is
stable."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ringcast.model import SEQNO_MAX, Member, Origin, Purge, alike
from ringcast.protocols.stream import ReceiveStream, Timer
from ringcast.window.assembler import Assembler
from ringcast.window.receive import BoundedWindow, open_window
from ringcast.window.send import DATAGRAM_OVERHEAD
from ringcast.wire.frames import Ack, Data, Nack, PeerRepairRequest
from ringcast.wire.limits import WINDOW_SIZE_MAX

if TYPE_CHECKING:
    from ringcast.config import MulticastConfig
    from ringcast.core.effects import Effects
    from ringcast.core.shared import Timers


class MulticastReceiver:
    """One stream of another member, until the application has delivered it."""

    def __init__(
        self,
        origin: Origin,
        config: MulticastConfig,
        offset: int,
        timers: Timers[Timer],
        *,
        is_gated: bool = False,
    ) -> None:
        purge = Purge.ACKS if is_gated else config.purge
        self._is_acking = purge in (Purge.ACKS, Purge.ACKS_RETAINED)
        retain = purge.is_retained
        most = config.grown_capacity if self._is_acking else config.capacity_max * (1 + retain)
        self._grows = self._is_acking and config.grows
        self.window = open_window(
            config.capacity,
            config.held_bytes,
            capacity_max=most,
            offset=offset,
            max_bytes=config.grown_bytes if self._grows else config.window_bytes,
            retain=retain,
            gate=offset if is_gated else SEQNO_MAX,
        )
        self.assembler = Assembler(config.max_message_bytes, retain=retain)
        tau = round(config.xmit_interval_s * 1e9)
        self.stream = ReceiveStream(self.window, self.assembler, tau, timers)
        self.repair = self.stream.repair
        self.is_gated = is_gated
        self.helpers: tuple[Member, ...] = ()
        """Who may have what the sender does not send again."""
        self.last_data: int | None = None
        self.acks_sent = 0
        self.origin = origin
        self._ack_every = config.ack_every
        self._ack_delay = round(config.ack_delay_s * 1e9)
        self._ack_datagrams = max(1, config.in_flight_bytes // config.datagram_bytes // 4)
        self._acked_received = offset
        self._acked_delivered = offset
        self._began_at = offset  # the view: the cut has told its sender so
        self._ample = config.in_flight_bytes // 2  # an allowance where datagrams are counted
        self._datagrams = 0  # since the last ack
        self._delivered_bytes = 0  # since then, where the allowance is less than ample
        self._acked_ahead = 0  # bytes beyond a gap, as told in the last ack
        self._is_repaired = False  # the last gap has closed since then
        self._turn = 0  # which helper is next
        self._timers = timers

    # Inputs

    def on_data(
        self, data: Data, now: int, allowance: int, out: Effects, datagram: int | None = None
    ) -> None:
        """A run of this datagram; without a number, it is one of its own."""
        self.last_data = now
        self._datagrams += 1
        had_gaps = Timer.REPAIR in self._timers.by_key
        if self.stream.accept(data, now, datagram) < data.count:
            self._on_duplicate(now)
        has_gaps = self.window.received < self.repair.known
        self._is_repaired |= had_gaps and not has_gaps
        if has_gaps and self._is_much(allowance):
            self._ack(allowance, out)
        elif self.window.received > self._acked_received:
            if self.is_gated:  # the sender waits for it: what all hold may be delivered
                self._ack(allowance, out)
            elif Timer.ACK not in self._timers.by_key:
                self._ack_later(now)

    def on_commit(self, seqno: int, now: int) -> None:
        """All members of the view hold what is up to this."""
        self.window.open_gate(seqno)
        self.stream.saw_watermark(seqno, now)

    def on_watermark(self, seqno: int, now: int, allowance: int, out: Effects) -> None:
        self.stream.saw_watermark(seqno, now)
        self._ack(allowance, out)

    def take_ready(self, limit: int, now: int, allowance: int, out: Effects) -> list[bytes]:
        payloads = self.stream.take(limit, now)
        if payloads and not self.stream.is_frozen:
            if allowance < self._ample:
                self._delivered_bytes += sum(map(len, payloads))
            taken = self.window.delivered - self._acked_delivered
            is_due = taken >= self._ack_every or self._is_much(allowance)
            if is_due or self._is_repaired:
                self._ack(allowance, out)
            elif Timer.ACK not in self._timers.by_key:
                self._ack_later(now)
        return payloads

    def handle_timeout(self, now: int, allowance: int, out: Effects) -> None:
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.ACK:
                    self._ack(allowance, out)
                case Timer.REPAIR:
                    self._ask(now, out)

    def on_stable(self, through: int, now: int) -> None:
        """Everybody has delivered this."""
        if self.window.retain and self.window.stable(through):
            self.assembler.forget(self.window.low)
            self.repair.window_moved(self.window, now)
            self.stream.arm_repair()

    def pieces(self, seqnos: range, limit: int) -> list[Data]:
        """Those of these that are retained here, at most so many."""
        first = max(seqnos.start, self.window.low + 1)
        payloads = self.window.read_run(range(first, min(seqnos.stop, first + limit)))
        stops = range(first, first + len(payloads))
        found: list[Data] = []
        start = first
        for more, run in groupby(stops, self.assembler.is_continued):
            stop = start + len(list(run))
            pieces = alike(start, payloads[start - first : stop - first])
            found += [Data(self.origin.stream, at, piece, more=more) for at, piece in pieces]
            start = stop
        return found

    def configure(self, config: MulticastConfig, slow_member_timeout_s: float) -> None:
        """This is how the group does it from now on."""
        self.repair.tau = round(config.xmit_interval_s * 1e9)
        self._ack_delay = round(config.ack_delay_s * 1e9)
        self.assembler.allow(config.max_message_bytes)

    def freeze(self) -> None:
        if not self.stream.is_frozen and not self.is_gated:
            self.window.gate = self.window.received  # what a flush brings waits for its view
        self._flush(is_flushing=True)
        self._timers.disarm_all()

    def _flush(self, *, is_flushing: bool) -> None:
        self.stream.is_frozen = is_flushing
        if isinstance(self.window, BoundedWindow):
            self.window.is_flushing = is_flushing

    def begin(self, now: int) -> None:
        """A view begins, and everything before it is here."""
        self._flush(is_flushing=False)
        self.repair.window_moved(self.window, now)
        self.stream.arm_repair()
        if self.window.received > self._began_at or self.window.delivered > self._acked_delivered:
            self._ack_later(now)  # what was said while its sender was frozen did not count
        self._began_at = self.window.received
        self.window.gate = self.window.received if self.is_gated else SEQNO_MAX

    def close(self, allowance: int, out: Effects) -> None:
        """The last word: what was taken and not yet acknowledged."""
        if self._timers.is_armed(Timer.ACK):
            self._ack(allowance, out)

    def remove(self) -> None:
        """It is gone: no timer of it fires any more."""
        self._timers.release()

    # Outputs

    def stats(self) -> dict[str, object]:
        return {"low": self.window.low, "acks_sent": self.acks_sent, **self.stream.stats()}

    def explain(self, now: int) -> list[str]:
        return self.stream.explain(str(self.origin), now)

    def check_invariants(self) -> None:
        self.stream.check_invariants()
        assert self._acked_received <= self.window.received
        assert self._acked_delivered <= self.window.delivered
        if not self.stream.is_frozen:
            is_told = self._acked_delivered == self.window.delivered
            assert is_told or not self._is_acking or self._timers.is_armed(Timer.ACK)

    # Acknowledgement and repair

    def _on_duplicate(self, now: int) -> None:
        self._ack_later(now)

    def _ack_later(self, now: int) -> None:
        """One ack per delay, however many causes there are."""
        if self._is_acking:
            self._timers.arm_if_idle(Timer.ACK, now + self._ack_delay)

    def _is_much(self, allowance: int) -> bool:
        """Whether so much has come since the last ack that the sender may soon stand still."""
        if allowance >= self._ample:
            return self._datagrams >= self._ack_datagrams
        size = self._delivered_bytes + self.window.ahead_bytes - self._acked_ahead
        # As the sender is charged for it.
        return max(size, self._datagrams * DATAGRAM_OVERHEAD) >= allowance // 2

    def _ack(self, allowance: int, out: Effects) -> None:
        if not self._is_acking:
            return
        window = self.window
        self._timers.disarm(Timer.ACK)
        self._datagrams = 0
        self._delivered_bytes = 0
        self._acked_ahead = window.ahead_bytes if allowance < self._ample else 0
        self._is_repaired = False
        self._acked_received, self._acked_delivered = window.received, window.delivered
        self.acks_sent += 1
        # What waits behind a gap is out of the socket buffer: there is room for as much again.
        allowance += window.ahead_bytes
        allowance = min(allowance, WINDOW_SIZE_MAX)
        widest = min(window.max_bytes, WINDOW_SIZE_MAX) if self._grows else 0
        ack = Ack(self.origin.stream, window.received, window.delivered, allowance, widest)
        out.datagram(self.origin.sender, ack)

    def _ask(self, now: int, out: Effects) -> None:
        """Ask for what is due, if anything is."""
        for missing in self.stream.take_missing(now):
            out.datagram(self.origin.sender, Nack(self.origin.stream, missing))
            if self.repair.is_repeated and self.helpers:
                self._turn = (self._turn + 1) % len(self.helpers)
                wanted = PeerRepairRequest(self.origin.sender, tuple(missing))
                out.datagram(self.helpers[self._turn], wanted)
