"""Repair: when to ask a sender for what is missing. Used by every protocol with receive windows.

A missing seqno is asked for when it has been missing for one gap-tick, or as soon as three later
datagrams of its sender have arrived: plain reordering asks for nothing, a lost datagram in a
busy stream is asked for within microseconds. The gap-tick starts at about two round trips, which
are measured from requests that were answered at the first asking, and doubles while there is no
answer, up to the retransmission interval τ, on which all delivery bounds rest.

Gaps are kept as ranges in ascending order; there are at most as many as datagrams in a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ringcast.window.windows import ReceiveWindow

LATER_DATAGRAMS = 3
"""So many later datagrams prove a loss; fewer may be reordering."""

GAP_TICK_MIN_NS = 200_000
GAP_TICK_START_NS = 1_000_000
"""The gap-tick before the first round trip was measured."""


@dataclass(slots=True)
class Gap:
    """Seqnos first..last were missing when somebody last looked."""

    first: int
    last: int
    since: int
    ask_at: int
    interval: int
    later: int = 0  # later datagrams that have arrived, counted until they prove the loss
    asked: int = 0
    volatile: ClassVar[frozenset[str]] = frozenset({"since", "ask_at", "interval", "asked"})


class Repair:
    """Which seqnos of one receive window to ask for, and when."""

    __slots__ = (
        "_asked_at",
        "_asked_first",
        "_round_trip",
        "announced",
        "gaps",
        "has_proof",
        "known",
        "tau",
    )
    volatile: ClassVar[frozenset[str]] = frozenset({"_asked_at", "_asked_first", "_round_trip"})

    def __init__(self, offset: int, tau: int) -> None:
        self.tau = tau
        self.gaps: list[Gap] = []
        self.known = offset
        """Gaps up to here have been noted."""
        self.announced = offset
        """The highest seqno that is known to exist. It may lie beyond the window, where the
        sender's is larger; what it hides is noted as the window moves on."""
        self.has_proof = False
        """Later datagrams prove some gap a loss: ask now, not at the gap-tick."""
        self._round_trip = 0
        self._asked_at = -1
        self._asked_first = 0

    @property
    def gap_tick(self) -> int:
        """How long a seqno may be missing before it is asked for."""
        return min(self.tau, max(GAP_TICK_MIN_NS, 2 * self._round_trip or GAP_TICK_START_NS))

    def saw_data(self, window: ReceiveWindow, first: int, last: int, now: int) -> None:
        """first..last have just been offered to the window."""
        if last > self.known:
            for gap in reversed(self.gaps):
                if gap.asked or gap.later >= LATER_DATAGRAMS:
                    break
                gap.later += 1
                self.has_proof |= gap.later >= LATER_DATAGRAMS
            self._note_gaps(window, first - 1, now)
            # Not simply `last`: what the window refused is to be asked for later.
            self.known = max(self.known, min(last, window.high))
            self.announced = max(self.announced, last)
        if self.gaps and window.held >= self.gaps[0].first:
            self._forget_filled(window.held, now)

    def saw_highest(self, window: ReceiveWindow, seqno: int, now: int) -> None:
        """The sender says that it has sent up to seqno."""
        self.announced = max(self.announced, seqno)
        self._note_gaps(window, seqno, now)

    def window_moved(self, window: ReceiveWindow, now: int) -> None:
        """The application has taken something: more of what was announced has a slot now."""
        if self.announced > self.known:
            self._note_gaps(window, self.announced, now)

    def _note_gaps(self, window: ReceiveWindow, seqno: int, now: int) -> None:
        """Everything up to seqno exists; what lies above `known` is missing."""
        seqno = min(seqno, window.low + window.capacity)
        if seqno > self.known:
            tick = self.gap_tick
            self.gaps.append(Gap(self.known + 1, seqno, now, now + tick, tick))
            self.known = seqno

    def _forget_filled(self, held: int, now: int) -> None:
        """Drop the gaps that are closed; an answer tells the round trip."""
        if self._asked_at >= 0 and held >= self._asked_first:
            # From the first asking on: too long if that one was lost, never too short.
            sample = min(now - self._asked_at, self.tau)
            self._round_trip += (sample - self._round_trip) // (4 if self._round_trip else 1)
            self._asked_at = -1
        done = 0
        for gap in self.gaps:
            if gap.last > held:
                gap.first = max(gap.first, held + 1)
                break
            done += 1
        del self.gaps[:done]

    def next_ask(self) -> int | None:
        """When the next gap is due by time."""
        return min((gap.ask_at for gap in self.gaps), default=None)

    def take_due(
        self, window: ReceiveWindow, now: int, ranges_max: int, messages_max: int
    ) -> list[range]:
        """What to ask for now: ascending ranges, at most so many and so many seqnos in all.

        What did not fit waits for its next gap-tick: requests are paced.
        """
        self.has_proof = False
        due: list[range] = []
        open_gaps: list[Gap] = []
        for gap in self.gaps:
            is_proved = not gap.asked and gap.later >= LATER_DATAGRAMS
            if gap.ask_at <= now or is_proved:
                missing = window.missing_within(gap.first, gap.last, ranges_max)
                if not missing:
                    continue
                if len(due) < ranges_max and messages_max > 0:
                    for seqnos in missing[: ranges_max - len(due)]:
                        due.append(seqnos[: max(messages_max, 0)])
                        messages_max -= len(due[-1])
                    if self._asked_at < 0 and not gap.asked:
                        self._asked_at = now
                        self._asked_first = gap.first
                    gap.asked += 1
                    gap.ask_at = now + gap.interval
                    gap.interval = min(2 * gap.interval, self.tau)
                else:
                    gap.ask_at = now + self.gap_tick
            open_gaps.append(gap)
        self.gaps = open_gaps
        return [seqnos for seqnos in due if seqnos]
