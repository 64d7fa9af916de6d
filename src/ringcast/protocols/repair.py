"""Repair: when to ask a sender for what is missing. Used by every protocol with receive windows.

A missing seqno is asked for when it has been missing for one gap-tick, or as soon as three later
datagrams of its sender have arrived: plain reordering asks for nothing, a lost datagram in a busy
stream is asked for at once. The gap-tick is about two round trips, which are measured from
requests to their answers. A request is repeated when its answer is overdue; while nothing at all
is answered the pause doubles, up to the retransmission interval τ, on which all delivery bounds
rest.
A sender answers in order, so an answer that comes before one that was asked for earlier proves
that the earlier answer was lost: it is asked for again at once.

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
    later: int = 0  # later datagrams that have arrived before it was first asked for
    is_proved: bool = False  # lost, or its answer is: ask at once
    asked: int = 0
    asked_at: int = 0  # for the first time
    request: int = 0  # the number of the request that asked for it last
    volatile: ClassVar[frozenset[str]] = frozenset(
        {"since", "ask_at", "asked", "asked_at", "request"}
    )


class Repair:
    """Which seqnos of one receive window to ask for, and when."""

    __slots__ = (
        "_patience",
        "_requests",
        "_round_trip",
        "announced",
        "gaps",
        "has_proof",
        "is_repeated",
        "known",
        "tau",
    )
    volatile: ClassVar[frozenset[str]] = frozenset(
        {"_patience", "_requests", "_round_trip", "is_repeated"}
    )

    def __init__(self, offset: int, tau: int) -> None:
        self.tau = tau
        self.gaps: list[Gap] = []
        self.known = offset
        """Gaps up to here have been noted."""
        self.announced = offset
        """The highest seqno that is known to exist. It may lie beyond the window, where the
        sender's is larger; what it hides is noted as the window moves on."""
        self.has_proof = False
        """Some gap is proved: ask now, not at the gap-tick."""
        self.is_repeated = False
        """Some of what was asked for last had been asked for before, and has not come."""
        self._patience = 1  # how many answer times to wait: doubles while there is no answer
        self._requests = 0
        self._round_trip = 0

    @property
    def gap_tick(self) -> int:
        """How long a seqno may be missing before it is asked for."""
        return min(self.tau, max(GAP_TICK_MIN_NS, 2 * self._round_trip or GAP_TICK_START_NS))

    @property
    def _answer_time(self) -> int:
        """How long an answer may take: a round trip and a quarter."""
        return max(GAP_TICK_MIN_NS, self._round_trip * 5 // 4 or GAP_TICK_START_NS)

    def saw_data(self, window: ReceiveWindow, first: int, last: int, now: int) -> None:
        """first..last have just been offered to the window."""
        if first == self.known + 1 and last == window.held and not self.gaps:
            self.known = last  # the next in order, and nothing is missing
            self.announced = max(self.announced, last)
            return
        if last > self.known:
            for gap in reversed(self.gaps):
                if gap.asked or gap.is_proved:
                    break
                gap.later += 1
                if gap.later >= LATER_DATAGRAMS:
                    gap.is_proved = self.has_proof = True
            self._note_gaps(window, first - 1, now)
            # Not simply `last`: what the window refused is to be asked for later.
            self.known = max(self.known, min(last, window.high))
            self.announced = max(self.announced, last)
        elif self.gaps:
            self._saw_answer(first, now)
        if self.gaps and window.held >= self.gaps[0].first:
            self._forget_filled(window.held)

    def saw_next(self, seqno: int) -> bool:
        """Whether this is the next of a stream of which nothing is known to be missing."""
        if self.gaps or self.announced >= seqno or self.known + 1 != seqno:
            return False
        self.known = self.announced = seqno
        return True

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
        seqno = min(seqno, window.low + window.capacity_max)
        if seqno > self.known:
            self.gaps.append(Gap(self.known + 1, seqno, now, now + self.gap_tick))
            self.known = seqno

    def _saw_answer(self, first: int, now: int) -> None:
        """Something asked for has come: the answers that were due before it are lost."""
        self._patience = 1
        answered = next((gap for gap in self.gaps if gap.first <= first <= gap.last), None)
        if answered is None or not answered.asked:
            return
        self._measure(now - answered.asked_at, is_sure=answered.asked == 1)
        for gap in self.gaps:
            if gap is answered:
                break
            if gap.asked and gap.request <= answered.request:
                gap.is_proved = self.has_proof = True

    def _measure(self, sample: int, *, is_sure: bool) -> None:
        """Learn the round trip. Counted from the first request on a sample is never too short,
        but too long if that request was lost: then the estimate rises slowly."""
        sample = min(sample, self.tau)
        if not self._round_trip or sample < self._round_trip:
            self._round_trip = sample
        else:
            self._round_trip += (sample - self._round_trip) // (2 if is_sure else 8)

    def _forget_filled(self, held: int) -> None:
        """Drop the gaps that are closed."""
        done = 0
        for gap in self.gaps:
            if gap.last > held:
                gap.first = max(gap.first, held + 1)
                break
            done += 1
        del self.gaps[:done]

    def next_ask(self) -> int | None:
        """When the next gap is due by time."""
        return min([gap.ask_at for gap in self.gaps]) if self.gaps else None

    def take_due(
        self, window: ReceiveWindow, now: int, ranges_max: int, messages_max: int
    ) -> list[range]:
        """What to ask for now: ascending ranges, at most so many and so many seqnos in all.

        What did not fit waits for its next gap-tick: requests are paced.
        """
        self.has_proof = False
        self._requests += 1
        due: list[range] = []
        open_gaps: list[Gap] = []
        self.is_repeated = False
        for gap in self.gaps:
            if gap.ask_at <= now or gap.is_proved:
                missing = window.missing_within(gap.first, gap.last, ranges_max)
                if not missing:
                    continue
                if len(due) < ranges_max and messages_max > 0:
                    for seqnos in missing[: ranges_max - len(due)]:
                        due.append(seqnos[: max(messages_max, 0)])
                        messages_max -= len(due[-1])
                    if not gap.asked:
                        gap.asked_at = now
                    self.is_repeated |= gap.asked > 0 and not gap.is_proved
                    gap.is_proved = False
                    gap.asked += 1
                    gap.request = self._requests
                    gap.ask_at = now + min(self._patience * self._answer_time, self.tau)
                else:
                    gap.ask_at = now + self.gap_tick
            open_gaps.append(gap)
        self.gaps = open_gaps
        if self.is_repeated:
            self._patience = min(2 * self._patience, self.tau // GAP_TICK_MIN_NS)
        return [seqnos for seqnos in due if seqnos]
