"""Limits: how much a sender may have out, as far as its receivers and the path to them allow it.

On an ack of a member, or the end of a stability round: what it allows counts from now on. Until
    somebody has said it: as much as this member itself would allow each of the others.
On a view: what was said in the one before counts no more of the departed, nor of memory at all. The
    window has its base again.

The base is `capacity` messages and the least allowance. Where nobody has set `capacity` and members
acknowledge, a window grows from there to what all receivers have memory for, if that brings more
through. It does if messages are long under way, and does not if they wait for a link, a receiver or
an application: then twice as much waits twice as long. So each doubling is a trial. A *round* is
what one message takes until all have delivered it, sent while the sender waits for room, or the
rest of a large message does.

    state      a round ends                                                loss
    FIXED      –                                                           –
    RESTING    count it; the last one, and not at the maximum: → WIDENING  halve, RESTING
    WIDENING   the window is twice as large: → FILLING                     halve, RESTING
    FILLING    → JUDGING                                                   halve, RESTING
    JUDGING    at most 1.5 times as long as the quickest before: it has    halve, RESTING
               paid, → RESTING for no round; else as before, → RESTING

FIXED: `capacity` was set, members report what they have, or all are on one machine.
On a purge, while WIDENING: room for as much more as was purged in this round, so that no burst is
    longer than an ack makes it.
On a purge while nothing waits for room: the round does not count, another one begins later.
RESTING lasts one round in a new view, REST_ROUNDS after a loss, and after a trial that has not paid
    twice as long as after the one before. Rounds of less than SHORT_NS need no wider window.
On Nack, for what was sent since the window was halved last: that is a loss. Half of the window, and
    never less than its base: so a TCP connection beside it gets its share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.shared import Named
from ringcast.model import SEQNO_MAX, Member, View
from ringcast.window.send import SendWindow, room_of

if TYPE_CHECKING:
    from ringcast.config import MulticastConfig

REST_ROUNDS = 32
REST_ROUNDS_MAX = 1024

SHORT_NS = 2_000_000
"""In a round of less, windows as they are bring more through than any member can send."""

PAID = 1.5
"""A round with twice the window takes 1 to 2 times as long: half way, it has brought a third more
through."""

NEVER = SEQNO_MAX + 1


class State(Named):
    FIXED = "fixed"
    RESTING = "resting"
    WIDENING = "widening"
    FILLING = "filling"
    JUDGING = "judging"


class Limits:
    """Of one send window."""

    def __init__(
        self,
        me: Member,
        window: SendWindow,
        config: MulticastConfig,
        view: View,
        assumed: int | None,
        *,
        is_acked: bool,
    ) -> None:
        """`assumed` bytes may be under way until somebody has said how many it allows. `is_acked`:
        receivers acknowledge what they have taken, each by itself."""
        self.window = window
        self.config = config
        self.allowances: dict[Member, int] = {}
        self.widest: dict[Member, int] = {}
        """Bytes that the window may come to, as each receiver has said in this view."""
        self.is_timed = False
        """A round is under way; a purge while nothing waits for room takes it back."""
        self.look_at = NEVER
        """A purge is looked at from here on."""
        self._me = me
        self._assumed = config.in_flight_bytes if assumed is None else assumed
        self._state = State.RESTING if is_acked and config.grows else State.FIXED
        self._why = ""
        self._messages = config.capacity
        self._bytes = 0  # should the window come to hold more than the base
        self._before = (0, 0)  # the trial: messages, bytes
        self._rounds = 0  # to rest
        self._patience = REST_ROUNDS
        self._quickest = NEVER
        self._round_began = self._round_low = self._round_end = 0
        self._halved_at = window.high
        self.begin(view)

    # Inputs

    def begin(self, view: View) -> None:
        for member in [member for member in self.allowances if member not in view]:
            del self.allowances[member]
        self.is_timed = False
        self.widest = {member: 0 for member in view if member != self._me}
        if self._state is not State.FIXED:
            self.window.limit = self._messages = self.config.capacity
            self._bytes = 0
            self._patience = REST_ROUNDS
            self._halved_at = self.window.high
            self._rest(1, "no wider: the view has just begun")
        self.apply()

    def apply(self) -> bool:
        """As much in flight as every current member can take; True if that is more now."""
        window, config = self.window, self.config
        before = window.max_bytes, window.limit
        allowed = min(self.allowances.values(), default=self._assumed)
        # Where the configuration is the bound it is one of bytes, not of what these take.
        window.bulk_bytes = config.bulk_bytes if allowed < config.in_flight_bytes // 2 else None
        allowed = max(allowed, room_of(window.datagram_bytes, window.bulk_bytes))
        window.max_bytes = min(allowed, config.window_bytes)
        if self._state is not State.FIXED:
            most = self._most_bytes
            window.max_bytes = max(window.max_bytes, min(self._bytes, most))
            window.limit = self._messages if most else config.capacity
        return window.max_bytes > before[0] or window.limit > before[1]

    def on_purge(self, now: int) -> None:
        """While something waits for room, all have delivered what `look_at` says."""
        window = self.window
        if not self.is_timed:
            self._start_round(now)
        elif window.low >= self._round_end:
            self._end_round(now - self._round_began)
            self._start_round(now)
        elif self._state is State.WIDENING:
            done = (window.low - self._round_low) / (self._round_end - self._round_low)
            self._widen(1 + done)

    def on_loss(self, last: int) -> None:
        """A receiver lacks what was sent up to this."""
        window = self.window
        if self._state is State.FIXED or min(last, window.high) <= self._halved_at:
            return
        self._halved_at = window.high
        self._messages = max(self.config.capacity, window.limit // 2)
        self._bytes = window.max_bytes // 2
        self._rest(REST_ROUNDS, "no wider: messages were lost")
        self.apply()

    # Outputs

    def stats(self) -> dict[str, object]:
        """Of windows that are not fixed. What a window has slots for changes as it is used."""
        if self._state is State.FIXED:
            return {}
        return {"capacity": self.window.limit, "width": self._state.value, "width_why": self._why}

    def explain(self) -> str:
        """Why the window is as large as it is."""
        if self._state is State.FIXED:
            return ""
        silent = ", ".join([str(member) for member, most in self.widest.items() if not most])
        why = f"no wider: {silent} has not told of memory for more" if silent else self._why
        return f"; {why}"

    # Rounds

    @property
    def _most_bytes(self) -> int:
        """What all receivers, and this member, have memory for; 0: one of them has not said it."""
        return min(self.config.grown_bytes, *self.widest.values()) if self.widest else 0

    def _start_round(self, now: int) -> None:
        """With the next message: there is room for it now."""
        window = self.window
        self.is_timed = True
        self._round_began, self._round_low, self._round_end = now, window.low, window.high + 1
        self.look_at = 0 if self._state is State.WIDENING else self._round_end

    def _end_round(self, took: int) -> None:
        match self._state:
            case State.RESTING:
                self._rounds -= 1
                self._quickest = min(self._quickest, took)
            case State.WIDENING:
                self._widen(2)
                self._state = State.FILLING
            case State.FILLING:
                self._state = State.JUDGING
            case State.JUDGING if took <= PAID * self._quickest:
                self._patience = REST_ROUNDS
                self._rest(0, f"widened, for messages take {took / 1e6:.0f} ms")
                self._quickest = took
            case State.JUDGING:
                self._messages, self._bytes = self._before
                self._rest(self._patience, "no wider: more would only wait for longer")
                self._patience = min(2 * self._patience, REST_ROUNDS_MAX)
                self.apply()
        is_rested = self._state is State.RESTING and self._rounds <= 0
        if is_rested and self._quickest >= SHORT_NS and not self._is_widest:
            self._state = State.WIDENING
            self._before = self.window.limit, self.window.max_bytes

    def _rest(self, rounds: int, why: str) -> None:
        self._state, self._why = State.RESTING, why
        self._rounds = rounds
        self._quickest = NEVER
        self.look_at = 0

    def _widen(self, times: float) -> None:
        messages, size = self._before
        self._messages = min(round(times * messages), self.window.capacity_max)
        self._bytes = round(times * size)
        self.apply()

    @property
    def _is_widest(self) -> bool:
        window, most = self.window, self._most_bytes
        return not most or (window.limit >= window.capacity_max and window.max_bytes >= most)
