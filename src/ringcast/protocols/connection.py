"""The life of one side of a unicast connection: open, closing, gone.

There is no handshake to open or to end one. An entry that has been idle for `expiry` begins to
close; it then lingers for `close`, during which it serves as before and any use takes it up again.
Only after that is it removed, in the same step in which it becomes CLOSED: nobody ever meets a
CLOSED entry.

The tail: when to resend the end of a stream that its receiver has not acknowledged. A lost last
message leaves no gap, so its receiver cannot miss it. The tick makes good for it, but only after
two retransmission intervals (τ). The tail timer does so after a pause of about two round trips.

The pause after a change is max(2 R, ack interval + R), where R is the time from a message to its
ack, the receiver's ack interval included. Before R is measured it is START_NS, or twice the ack
interval if that is longer. It doubles with each resend; when it reaches τ, the tick alone goes on.
So one standstill costs a handful of resends, also if the receiver's application has stopped.

R is measured from one message at a time, the first after everything was acknowledged: then the
receiver's ack interval begins with it. What was retransmitted measures nothing, because nobody
knows which copy was acknowledged (Karn's rule). Instead the next pause starts at twice the last
one, until a message is acknowledged that was sent once: a path that has become slower is measured
again.
"""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING, Any

from ringcast.core.shared import Named, Timers

if TYPE_CHECKING:
    from ringcast.config import UnicastConfig
    from ringcast.model import Conn, Member


class State(Named):
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Input(Named):
    USED = auto()
    """The sender's application sends; new data reach the receiver."""
    ENDED = auto()
    """Idle for too long, asked to close, or the peer has left the view."""
    LINGERED = auto()
    """Nobody has used it while it was closing."""
    GONE = auto()
    """The other side has closed it, or will never answer."""


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.USED): State.OPEN,
    (State.OPEN, Input.ENDED): State.CLOSING,
    (State.OPEN, Input.GONE): State.CLOSED,
    (State.CLOSING, Input.USED): State.OPEN,
    (State.CLOSING, Input.ENDED): State.CLOSING,
    (State.CLOSING, Input.LINGERED): State.CLOSED,
    (State.CLOSING, Input.GONE): State.CLOSED,
}
"""What is not here cannot happen, and raises."""


class Timer(Named):
    IDLE = auto()
    """Open: begin to close. Closing: be gone."""


class Side:
    """One side of the connection with a peer, as far as both sides are alike."""

    def __init__(
        self, peer: Member, conn: Conn, config: UnicastConfig, now: int, timers: Timers[Any]
    ) -> None:
        self.peer = peer
        self.conn = conn
        self.state = State.OPEN
        self._expiry = round(config.expiry_s * 1e9)
        self._linger = round(config.close_s * 1e9)
        self._timers = timers
        self._refresh(now)

    def end(self, now: int) -> None:
        """Begin to close: what is under way is still brought to its end."""
        if self.state is State.OPEN:
            self._step(Input.ENDED)
            self._timers.arm(Timer.IDLE, now + self._linger)

    def remove(self) -> None:
        """It is gone: no timer of it fires any more."""
        self._timers.release()

    def _step(self, input: Input) -> None:
        self.state = TRANSITIONS[self.state, input]

    def _refresh(self, now: int) -> None:
        """The application or the peer's progress keeps the connection open; our own resends do
        not, or a dead peer would never be noticed."""
        self.used_at = now
        if self._expiry:
            self._timers.arm(Timer.IDLE, now + self._expiry)
        else:
            self._timers.disarm(Timer.IDLE)

    def _check_idle(self, *, is_needed: bool) -> None:
        """`is_needed`: it does not go while it is closing."""
        is_reaped = self._timers.is_armed(Timer.IDLE)
        assert self.state is not State.CLOSED
        assert is_reaped or not self._expiry or self.state is State.CLOSING
        assert is_reaped or self.state is State.OPEN or is_needed


START_NS = 10_000_000
"""The pause before the first round trip was measured."""

PAUSE_MIN_NS = 1_000_000
"""Below this timers are not exact, and a scheduler's delay would look like a loss."""


class Tail:
    """The pause before a resend to one peer, and what it is measured from. It holds no timer."""

    __slots__ = (
        "_ack_interval",
        "_is_retransmitted",
        "_round_trip",
        "_start",
        "_tau",
        "_timed",
        "pause",
    )

    def __init__(self, tau: int, ack_interval: int) -> None:
        self._tau = tau
        self._ack_interval = ack_interval
        self._round_trip = 0
        self._start = max(START_NS, 2 * ack_interval)
        self.pause = self._start
        self._timed: tuple[int, int] | None = None  # a message that was sent once, and when
        self._is_retransmitted = False  # something was, since all was acknowledged

    @property
    def is_due(self) -> bool:
        """Whether a resend is to come after `pause`; else it is left to the tick."""
        return self.pause < self._tau

    def first_sent(self, seqno: int, now: int) -> None:
        """The first message after everything was acknowledged."""
        self._timed = seqno, now
        self._is_retransmitted = False

    def retransmitted(self) -> None:
        """Any message was retransmitted."""
        self._timed = None
        self._is_retransmitted = True

    def acked(self, through: int, now: int, *, is_all: bool) -> None:
        """An ack has raised HA."""
        if self._timed is not None and through >= self._timed[0]:
            self._measure(now - self._timed[1])
            self._timed = None
        elif is_all and self._is_retransmitted:
            self._start = min(2 * self._start, self._tau)

    def start_over(self) -> bool:
        """HA or HS has changed. Whether a resend is to come."""
        self.pause = self._start
        return self.pause < self._tau

    def double(self) -> None:
        """A resend has gone out and nothing has changed since."""
        self.pause = min(2 * self.pause, self._tau)

    def _measure(self, sample: int) -> None:
        """A shorter round trip counts at once, a longer one by half."""
        if not self._round_trip or sample < self._round_trip:
            self._round_trip = sample
        else:
            self._round_trip += (sample - self._round_trip) // 2
        pause = self._round_trip + max(self._round_trip, self._ack_interval)
        self._start = min(max(pause, PAUSE_MIN_NS), self._tau)
