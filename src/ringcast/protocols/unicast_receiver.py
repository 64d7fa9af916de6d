"""UnicastReceiver: the receiving half of a unicast connection, from one peer.

On UnicastData of the current connection: buffer what fits the window. New data keep the connection
    open, or open it again if it was closing; a duplicate only makes an ack due: the last one may
    have been lost.
On take: the application pulls, in order and without gaps; only then is a message acknowledged.
On UnicastData of one whole message that is next, where nothing waits and nothing is missing, if who
    reads it takes it at once: admission and take are one step, and the window only counts it.
One ack for what was taken, cumulative, however many causes there are: as soon as it is a quarter of
    the window or of what the sender was allowed, which does not stand still then; and for the tail
    after `ack_interval_s` (below half a tick, or the sender would resend).
Whenever repair.py says so: ask for what is missing, by timer, so that all that is proved in one
    turn shares a request.
On SyncOk, if it answers our sync request: go on after `low` on the new connection, keep what is
    buffered above, acknowledge at once.
When idle: close (connection.py), but not while messages wait for the application. What remains is
    a Tombstone: how far the stream came, so that nothing is delivered twice if it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ringcast.protocols.connection import Input, Side, State
from ringcast.protocols.connection import Timer as Idle
from ringcast.protocols.repair import Repair
from ringcast.protocols.stream import ReceiveStream, Timer
from ringcast.window.assembler import PART_BYTES_MIN, Assembler
from ringcast.window.receive import BoundedWindow, open_window
from ringcast.window.send import DATAGRAM_OVERHEAD
from ringcast.wire.frames import SyncOk, UnicastAck, UnicastData, UnicastNack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.config import UnicastConfig
    from ringcast.core.effects import Effects
    from ringcast.core.shared import Timers
    from ringcast.model import Conn, Member


ACK_MESSAGES_MIN: Final = 64
ACK_BYTES_MIN: Final = 1 << 16
"""An ack is a datagram, and due at once for no less than this, or half of what the sender may have
under way, if that is less."""


# Of these the fast path makes use: to look up a member of an Enum takes Python a while.
_OPEN: Final = State.OPEN
_IDLE: Final = Idle.IDLE
_ACK: Final = Timer.ACK


@dataclass(slots=True)
class Tombstone:
    """How far a stream had come when its window went."""

    conn: Conn
    delivered: int
    parts: tuple[bytes, ...] | None
    """Fragments taken of a message that is not whole; None: they are lost."""
    is_final: bool
    """The sender has closed this connection: what still comes of it is late."""
    size: int = field(default=0, compare=False)
    """What `parts` cost in memory, about. Each counts: even an empty one takes a place."""


class UnicastReceiver(Side):
    """What comes from one peer, until the application has delivered it."""

    def __init__(
        self,
        peer: Member,
        conn: Conn,
        config: UnicastConfig,
        max_message_bytes: int,
        offset: int,
        parts: Iterable[bytes] | None,
        now: int,
        timers: Timers[Any],
    ) -> None:
        super().__init__(peer, conn, config, now, timers)
        size, held = config.window_bytes, config.held_bytes
        self.window = open_window(config.capacity, held, offset=offset, max_bytes=size)
        self.assembler = Assembler(max_message_bytes, parts)
        tau = round(config.xmit_interval_s * 1e9)
        self.stream = ReceiveStream(self.window, self.assembler, tau, timers)
        self.repair = self.stream.repair
        self.last_data = now
        self.acks_sent = 0
        self._ack_interval = round(config.ack_interval_s * 1e9)
        self._acked = offset
        self._ack_every = max(ACK_MESSAGES_MIN, config.capacity // 4)
        self._allowed = config.in_flight_bytes  # bytes, as told in the last ack
        self._delivered_bytes = 0  # since then
        self._datagrams = 0  # since then

    # Inputs

    def on_data(self, data: UnicastData, now: int, datagram: int | None = None) -> None:
        """A run of this datagram; without a number, it is one of its own."""
        self.last_data = now
        self._datagrams += 1
        new = self.stream.accept(data, now, datagram)
        if new:
            self._step(Input.USED)
            self._refresh(now)
        if new < data.count:
            self._on_duplicate(now)

    def take_next(self, seqno: int, now: int) -> bool:
        """Whether a whole message with this seqno could be taken as soon as it is here. Then it is,
        and need not go through the window; else it must."""
        window, assembler = self.window, self.assembler
        is_next = seqno == window.high + 1 and window.delivered == window.high
        is_idle = not (assembler.continued or assembler.begun)
        if not (is_next and is_idle and self.state is _OPEN and self.repair.saw_next(seqno)):
            return False
        window.low = window.delivered = window.received = window.high = seqno
        self.last_data = self.used_at = now
        timers = self._timers
        if self._expiry:
            timers.arm(_IDLE, now + self._expiry)
        if _ACK not in timers.by_key:
            timers.arm(_ACK, now + self._ack_interval)
        return True

    def take_ready(self, limit: int, now: int) -> list[bytes]:
        payloads = self.stream.take(limit, now)
        if payloads:
            self._delivered_bytes += sum(map(len, payloads))
            self._ack_later(now)
            if self.state is State.CLOSING and not self.window.ready:
                self._timers.arm_if_idle(_IDLE, now + self._linger)
        return payloads

    @property
    def is_ack_due(self) -> bool:
        """So much was taken that the sender may soon stand still. Where it is allowed little, small
        datagrams count as it is charged for them."""
        taken = self.window.delivered - self._acked
        charged = max(self._delivered_bytes, self._datagrams * DATAGRAM_OVERHEAD)
        much = min(max(ACK_BYTES_MIN, self._allowed // 4), self._allowed // 2)
        return taken >= self._ack_every or (charged >= much and taken > 0)

    def resume(self, ok: SyncOk, now: int, allowance: int, out: Effects) -> None:
        """The sender goes on after `low` on a new connection."""
        self.conn = ok.conn
        if ok.low > self.window.received:
            self._skip(ok, now)
        self._step(Input.USED)
        self._refresh(now)
        self.stream.saw_watermark(ok.high, now)
        self._ack(allowance, out)

    def handle_timeout(self, now: int, allowance: int, out: Effects) -> None:
        """Afterwards the state may be CLOSED: then it is to be removed."""
        for timer in self._timers.take_due(now):
            match timer:
                case Timer.ACK:
                    self._ack(allowance, out)
                case Timer.REPAIR:
                    self._ask(now, out)
                case Idle.IDLE if self.state is State.OPEN:
                    self.end(now)
                case Idle.IDLE:
                    # Taking the last message that is ready sets the timer again.
                    if not self.window.ready:
                        self.flush_ack(allowance, out)
                        self._step(Input.LINGERED)
                        return

    def flush_ack(self, allowance: int, out: Effects) -> None:
        """The last word: what was taken and not yet acknowledged."""
        if self._timers.is_armed(Timer.ACK):
            self._ack(allowance, out)

    def tombstone(self, *, is_final: bool) -> Tombstone:
        parts = self.assembler.parts
        size = max(self.assembler.size, PART_BYTES_MIN * len(parts)) if parts else 0
        return Tombstone(self.conn, self.window.delivered, parts, is_final, size)

    # Outputs

    def stats(self) -> dict[str, object]:
        return {
            "connection": str(self.conn),
            "state": self.state.name,
            **self.stream.stats(),
            "ack_pending": self._timers.is_armed(Timer.ACK),
            "acks_sent": self.acks_sent,
        }

    def explain(self, now: int) -> list[str]:
        return self.stream.explain(f"{self.peer} to this member", now)

    def check_invariants(self) -> None:
        self.stream.check_invariants()
        self._check_idle(is_needed=bool(self.window.ready))
        assert self._acked <= self.window.delivered
        assert self._acked == self.window.delivered or self._timers.is_armed(Timer.ACK)

    # Helpers

    def _skip(self, ok: SyncOk, now: int) -> None:
        """The sender no longer has what lies between: go on behind it. Only a sender that purged
        what was never acknowledged gets us here; to wait for it would be for ever."""
        stream, window = self.stream, self.window
        if ok.low < window.high:
            window.skip(ok.low)
        else:
            held = window.held_max if isinstance(window, BoundedWindow) else None
            size, capacity = window.max_bytes, window.capacity
            window = open_window(capacity, held, offset=ok.low, max_bytes=size)
            stream.window = self.window = window
        self.assembler.skip(ok.low, is_middle=ok.is_middle)
        stream.repair = self.repair = Repair(window.received, self.repair.tau)
        self.repair.saw_watermark(window, window.high, now)

    def _on_duplicate(self, now: int) -> None:
        self._ack_later(now)

    def _ack_later(self, now: int) -> None:
        self._timers.arm_if_idle(Timer.ACK, now + self._ack_interval)

    def _ack(self, allowance: int, out: Effects) -> None:
        self._timers.disarm(Timer.ACK)
        self._acked = self.window.delivered
        self._allowed = allowance
        self._delivered_bytes = self._datagrams = 0
        self.acks_sent += 1
        # What waits behind a gap is out of the socket buffer: there is room for as much again.
        allowance += self.window.ahead_bytes
        out.datagram(self.peer, UnicastAck(self.conn, self.window.delivered, allowance))

    def _ask(self, now: int, out: Effects) -> None:
        """Ask for what is due, if anything is."""
        for missing in self.stream.take_missing(now):
            out.datagram(self.peer, UnicastNack(self.conn, missing))
