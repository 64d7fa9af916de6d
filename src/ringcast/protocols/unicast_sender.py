"""UnicastSender: the sending half of a unicast connection, to one peer.

HA is the highest acknowledged seqno (`window.low`), HS the highest sent (`window.high`).

On send: what finds room gets the next seqnos and goes out; the rest is not accepted. Closing turns
    back to open.
On UnicastAck of the current connection: purged everything up to it; HA never falls. Whoever
    waited for room is told, and receipts that are due are given (stream.py).
On UnicastNack: send again what is still here, at most one window between two ticks.
On Sync with a new nonce: move to the next connection, so that whatever the receiver said before
    no longer counts, and answer where the window stands. A repeated nonce gets the same answer.
    At most one answer between two ticks.
On anything of the current connection: the peer is there, and has heard the answer to its Sync.
Every tick: if HA < HS and neither has changed since the tick before, send HS once more, alone: the
    receiver then sees what it lacks. Repeat an answer to a Sync that nothing has confirmed.
When neither HA nor HS has changed for the pause of its tail (connection.py), and HA < HS: send HS
    once more, without waiting for the tick; after it, twice the pause. While nothing was heard from
    the peer on this stream, the first message goes before it: the peer may have no window, and only
    the first message opens one.
When idle: close (connection.py), but not while something is unacknowledged. A peer that answers
    nothing for `max_retransmit_s` is given up, and the application is told what it may have missed.
"""

from __future__ import annotations

from enum import auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ringcast.core.shared import Named, Timers
from ringcast.events import Undeliverable
from ringcast.model import Conn, Member
from ringcast.protocols.connection import Input, Side, State, Tail
from ringcast.protocols.connection import Timer as Idle
from ringcast.protocols.stream import SendStream, seconds
from ringcast.texts import counted
from ringcast.window.send import SendWindow
from ringcast.wire.frames import Close, Sync, SyncOk, UnicastAck, UnicastData, UnicastNack

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ringcast.config import UnicastConfig
    from ringcast.core.effects import Effects

SYNC_TICKS_MAX = 10
"""So many ticks a sync may take; then it has failed, and new data start another."""


class Timer(Named):
    GIVE_UP = auto()
    """The peer has answered nothing for too long."""
    TAIL = auto()
    """The end of the stream may be lost. Sends do not move it: it looks when it is due."""


# Of these two the fast path makes use: to look up a member of an Enum takes Python a while.
_OPEN: Final = State.OPEN
_IDLE: Final = Idle.IDLE


class UnicastSender(Side):
    """What goes to one peer, until it has taken it."""

    def __init__(
        self,
        peer: Member,
        conn: Conn,
        config: UnicastConfig,
        fragment_bytes: int,
        datagram_bytes: int,
        now: int,
        timers: Timers[Any],
    ) -> None:
        super().__init__(peer, conn, config, now, timers)
        window = SendWindow(
            config.capacity, max_bytes=config.in_flight_bytes, datagram_bytes=datagram_bytes
        )
        self.window = window
        self.stream = SendStream(window, fragment_bytes, peer, partial(UnicastData, conn))
        self.fragments = self.stream.fragments
        self.heard_at: int | None = None
        self.marked: tuple[int, int] | None = None
        """(HA, HS) as the last tick found them, if something was unacknowledged."""
        self.nonce = 0
        """The last sync request that was answered."""
        self.tail_retransmitted = 0  # by the tail timer
        self._tail = Tail(round(config.xmit_interval_s * 1e9), round(config.ack_interval_s * 1e9))
        self._tail_high = 0  # HS when the tail timer was set
        self._is_tail_off = True  # it is not set, or backs off: the next send sets it anew
        self._is_heard = False  # the peer has said something on this stream
        self._answer: SyncOk | None = None
        self._is_confirmed = True  # the peer is known to have the answer
        self._answer_ticks = 0  # since the sync request came
        self._is_answer_fresh = False  # one was sent since the last tick
        self._is_answer_owed = False  # it was asked for since it was sent
        self._has_moved = False  # to another connection since the last tick
        self._quota = 0  # messages retransmitted since the last tick
        self.config = config
        self._datagram_bytes = datagram_bytes
        self._give_up_after = round(config.max_retransmit_s * 1e9)

    @property
    def is_acked(self) -> bool:
        """The peer has taken everything (HA = HS)."""
        window = self.window
        return window.low == window.high

    @property
    def is_busy(self) -> bool:
        """A tick has something to do here."""
        is_answering = self._is_answer_fresh or self._is_answer_owed or self._has_moved
        return is_answering or not self.is_acked or not self._is_confirmed

    # Inputs

    def send(self, payloads: Sequence[bytes], now: int, out: Effects) -> int:
        """How many messages were accepted, from the first on."""
        was_acked = self.is_acked
        accepted = self.stream.send(payloads, now, out)
        if accepted:
            self._step(Input.USED)
            self._refresh(now)
            if was_acked or self._is_tail_off:
                self._expect_ack(now, was_acked=was_acked)
        return accepted

    def send_next(self, payload: bytes, now: int, out: Effects) -> bool:
        """Whether this message was accepted as it is and goes out at once; if not, `send` it."""
        window, fragments = self.window, self.fragments
        was_acked = window.low == window.high
        is_whole = len(payload) <= fragments.largest and not fragments.rest
        if self.state is not _OPEN or not is_whole or not window.append(payload):
            return False
        if out.frames or out.lone is not None:  # it shares a datagram with what waits
            out.datagram(self.peer, UnicastData(self.conn, window.high, [payload]))
        else:
            out.lone = self.peer, self.conn, window.high, payload
        self.used_at = now
        if self._expiry:
            self._timers.arm(_IDLE, now + self._expiry)
        if was_acked or self._is_tail_off:
            self._expect_ack(now, was_acked=was_acked)
        return True

    def ask_receipt(self, number: int, *, is_flush: bool) -> int | None:
        """Confirmed follows, under the number that is returned, when the peer has delivered what
        was accepted so far, or is given up. None: it has."""
        return self.stream.ask_receipt(number, (self.peer,), self._has_delivered, is_flush=is_flush)

    def depart(self, staying: Container[Member], reason: str, out: Effects) -> None:
        """If the peer is not `staying` nobody waits for its receipts any more."""
        self.stream.receipts.depart(staying, self._has_delivered, reason, out)

    def is_current(self, conn: Conn) -> bool:
        """Whether what the peer says of this connection counts."""
        return conn == self.conn

    def heard(self, now: int) -> None:
        """The peer said something on the current connection."""
        self.heard_at = now
        self._is_heard = True
        self._is_confirmed = True
        self._is_answer_owed = False
        self._wait_on(now)

    def on_ack(self, ack: UnicastAck, now: int, out: Effects) -> None:
        """An ack of the current connection, for nothing that was never sent."""
        window = self.window
        low, high, bytes_max = window.low, window.high, window.max_bytes
        allowed = max(ack.allowance, self._datagram_bytes)
        window.max_bytes = min(allowed, self.config.window_bytes)
        if window.purge(ack.delivered, forced=True):
            self.fragments.purged(low)
            self._tail.acked(ack.delivered, now, is_all=self.is_acked)
            self._quota = 0
            if self.state is State.OPEN:
                self._refresh(now)
            self.stream.use_room(out)
            if self.stream.receipts:
                self.stream.receipts.look(self._has_delivered, out)
        elif window.max_bytes > bytes_max:
            self.stream.use_room(out)
        if self.is_acked or (window.low, window.high) != (low, high):
            self._arm_tail(now)
        if self.is_acked:
            self._timers.disarm(Timer.GIVE_UP)
            if self.state is State.CLOSING:
                self._timers.arm_if_idle(_IDLE, now + self._linger)

    def on_nack(self, nack: UnicastNack, out: Effects) -> None:
        self._quota += self._retransmit(nack.missing, self.window.capacity - self._quota, out)

    def on_sync(self, sync: Sync, now: int, out: Effects) -> None:
        """A sync request about this stream."""
        self.heard_at = now
        self._is_heard = True
        self._wait_on(now)
        if sync.nonce > self.nonce and not self._has_moved:
            # Not more often than once a tick: a flood of sync requests must not wear out
            # connections.
            self._has_moved = True
            self.conn = self._next_conn()
            self.stream.frame = partial(UnicastData, self.conn)
            self.nonce = sync.nonce
            window = self.window
            self._answer = SyncOk(
                self.conn, self.nonce, window.low, window.high, self.fragments.is_middle
            )
            self._is_confirmed = False
            self._answer_ticks = 0
            self._tail.retransmitted()  # an ack of the new connection measures nothing
        if sync.nonce == self.nonce:
            self._is_answer_owed = True
            if not self._is_answer_fresh:
                self._give_answer(out)

    def tick(self, out: Effects) -> None:
        window = self.window
        pair = (window.low, window.high)
        if self.is_acked:
            self.marked = None
        elif pair == self.marked:
            self._resend(window.high, out)
        else:
            self.marked = pair
        self._quota = 0
        self._tick_answer(out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        """Afterwards the state may be CLOSED: then it is to be removed."""
        for timer in self._timers.take_due(now):
            if timer is Timer.GIVE_UP:
                patience = seconds(self._give_up_after)
                self.give_up(f"{self.peer} has answered nothing for {patience}", out)
                out.datagram(self.peer, Close(self.conn))
                return
            if timer is Timer.TAIL:
                self._on_tail(now, out)
            elif self.state is State.OPEN:
                self.end(now)
            elif self.is_acked:
                self._step(Input.LINGERED)
                out.datagram(self.peer, Close(self.conn))
                return
            # Closing, but something is unacknowledged: the ack that settles it sets the timer.

    def give_up(self, reason: str, out: Effects) -> None:
        """The peer is gone, or we are: tell what it may not have got."""
        self._step(Input.GONE)
        self.depart((), reason, out)
        if not self.is_acked:
            out.event(self.undeliverable(reason))
        self.stream.release(out)  # the next send begins anew

    def undeliverable(self, reason: str) -> Undeliverable:
        """What the peer may not have got."""
        window, epoch = self.window, self.conn.epoch
        rest_bytes = self.fragments.rest_bytes
        return Undeliverable(self.peer, epoch, window.low + 1, window.high, reason, rest_bytes)

    # Outputs

    @property
    def backlog(self) -> str:
        """What is unacknowledged, for people."""
        unacked = counted(self.window.high - self.window.low, "message")
        return f"{unacked} from {self.window.low + 1} on"

    def stats(self) -> dict[str, object]:
        window = self.window
        return {
            "connection": str(self.conn),
            "state": self.state.name,
            "acked": window.low,
            "sent": window.high,
            **self.stream.stats(),
            "tail_retransmitted": self.tail_retransmitted,
            "tail_pause_ms": self._tail.pause / 1e6,
            "sync_nonce": self.nonce,
            "sync_confirmed": self._is_confirmed,
        }

    def explain(self, now: int) -> list[str]:
        if self.is_acked:
            return []
        heard = self.heard_at
        sign = "nothing heard from it yet" if heard is None else f"heard {seconds(now - heard)} ago"
        if self.stream.is_blocked:
            block = self.stream.explain_block(now)
            return [f"send to {self.peer} {block}; not yet delivered: {self.backlog}; {sign}"]
        return [f"sent to {self.peer} and not yet delivered: {self.backlog}; {sign}"]

    def check_invariants(self) -> None:
        self.stream.check_invariants()
        self._check_idle(is_needed=not self.is_acked)
        assert self._timers.is_armed(Timer.GIVE_UP) == (not self.is_acked)
        assert self.window.delivered == self.window.low
        has_tail = self._timers.is_armed(Timer.TAIL)
        assert not has_tail or not self.is_acked
        assert has_tail or self._is_tail_off

    # Helpers

    def _wait_on(self, now: int) -> None:
        """The peer lives: be patient anew."""
        if not self.is_acked:
            self._timers.arm(Timer.GIVE_UP, now + self._give_up_after)

    # The tail

    def _expect_ack(self, now: int, *, was_acked: bool) -> None:
        """Messages were sent. `was_acked`: nothing was unacknowledged before them."""
        if was_acked:
            self._timers.arm(Timer.GIVE_UP, now + self._give_up_after)
            self._tail.first_sent(self.window.low + 1, now)
        self._arm_tail(now)

    def _arm_tail(self, now: int) -> None:
        """HA or HS has changed."""
        window, is_due = self.window, self._tail.start_over()
        self._is_tail_off = window.low == window.high or not is_due
        if not self._is_tail_off:
            self._tail_high = window.high
            self._timers.arm(Timer.TAIL, now + self._tail.pause)
        elif Timer.TAIL in self._timers.by_key:
            self._timers.disarm(Timer.TAIL)

    def _on_tail(self, now: int, out: Effects) -> None:
        high = self.window.high
        if high != self._tail_high:
            self._arm_tail(self.used_at)  # something was sent since: the pause begins there
            return
        before = self.stream.retransmitted
        if not self._is_heard and high > 1:
            self._resend(1, out)  # nothing is acknowledged either
        self._resend(high, out)
        self.tail_retransmitted += self.stream.retransmitted - before
        self._is_tail_off = True
        self._tail.double()
        if self._tail.is_due:
            self._timers.arm(Timer.TAIL, now + self._tail.pause)

    def _resend(self, seqno: int, out: Effects) -> None:
        self._retransmit([range(seqno, seqno + 1)], 1, out)

    def _retransmit(self, missing: list[range], quota: int, out: Effects) -> int:
        count = self.stream.retransmit(missing, quota, self.peer, out)
        if count:
            self._tail.retransmitted()
        return count

    def _has_delivered(self, peer: Member, seqno: int) -> bool:
        return seqno <= self.window.low

    def _next_conn(self) -> Conn:
        return Conn(self.conn.epoch, self.conn.id + 1)

    def _give_answer(self, out: Effects) -> None:
        assert self._answer is not None
        self._is_answer_fresh = True
        self._is_answer_owed = False
        out.datagram(self.peer, self._answer)

    def _tick_answer(self, out: Effects) -> None:
        """Give the answer that is owed. Repeat one that may be lost, a whole tick after it went,
        and not for ever."""
        was_fresh = self._is_answer_fresh
        self._is_answer_fresh = self._has_moved = False
        if self._is_answer_owed or not (was_fresh or self._is_confirmed):
            self._give_answer(out)
        self._answer_ticks += not self._is_confirmed
        if self._answer_ticks > SYNC_TICKS_MAX:
            self._is_confirmed = True  # whoever still wants to know asks again
