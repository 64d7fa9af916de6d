"""Repair: when to ask a sender for what is missing. Used by every protocol with receive windows.

A missing seqno is asked for when it has been missing for one gap-tick, or as soon as three more
datagrams of its sender have arrived after the one that shows the gap: plain reordering asks for
nothing, a lost datagram in a busy stream is asked for at once. The gap-tick is about two round
trips, which are measured from requests to their answers.

A request is repeated when nothing has been answered for an answer time, which is a round trip and a
quarter. While the sender stays silent that pause doubles, up to the retransmission interval τ, on
which all delivery bounds rest.
A sender answers in order, so an answer that comes before one that was asked for earlier proves
that the earlier answer was lost: it is asked for again at once.

Answers pace requests: at most NACK_MESSAGES_MAX seqnos are asked for and unanswered, and once half
of those have come the next are asked for. So a wide gap is asked for piece by piece, each with its
own time of asking, at so many pieces per round trip and not per timer. Requests are an eighth of a
round trip apart, so that gaps which are proved in one burst share a request.

Every missing seqno up to `known` is in one of three places, and moves on only from one to the next:
`unasked`, ascending and so by age; `requests`, in the order in which they were made and answers
come; `lost`, whose answers are known not to come. What lies in `unasked` is above everything that
was ever asked for. All are looked at from their heads, so what a datagram costs does not grow with
the number of gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.window.receive import ReceiveWindow

LATER_DATAGRAMS = 3
"""So many later datagrams prove a loss; fewer may be reordering."""

NACK_MESSAGES_MAX = 1024
"""Seqnos that may be asked for and unanswered. It bounds the burst that answers come in."""

GAP_TICK_MIN_NS = 200_000
GAP_TICK_START_NS = 1_000_000
"""The gap-tick before the first round trip was measured."""

ANSWER_TIME_START_NS = 5_000_000
"""How long an answer may take before the first was timed. Too short a time asks twice."""

LONG_PATIENCE = 8
"""After so many answer times an answer is not on its way any more, but lost."""

_FIRST: Final = attrgetter("first")


@dataclass(slots=True)
class Gap:
    """Seqnos first..last were missing when somebody last looked."""

    first: int
    last: int
    since: int
    asked: int = 0  # how often
    is_doubtful: bool = False  # asked for again after silence: either request may be answered

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(slots=True)
class Request:
    """What was asked for at one time and has not been answered, ascending."""

    asked_at: int
    gaps: list[Gap]


class Repair:
    """Which seqnos of one receive window to ask for, and when."""

    __slots__ = (
        "_answered_at",
        "_awaited",
        "_datagram",
        "_marks",
        "_not_before",
        "_patience",
        "_round_trip",
        "announced",
        "is_repeated",
        "known",
        "lost",
        "requests",
        "tau",
        "unasked",
    )

    def __init__(self, offset: int, tau: int) -> None:
        self.tau = tau
        self.unasked: deque[Gap] = deque()
        self.requests: deque[Request] = deque()
        self.lost: deque[Gap] = deque()
        self.known = offset
        """Gaps up to here have been noted."""
        self.announced = offset
        """The highest seqno that is known to exist. It may lie beyond the window, where the
        sender's is larger; what it hides is noted as the window moves on."""
        self.is_repeated = False
        """Some of what was asked for last had been asked for before, and has not come."""
        # `known` before each of the last datagrams: what is missing below the first is proved lost.
        self._marks: deque[int] = deque(maxlen=LATER_DATAGRAMS)
        self._datagram: int | None = None  # the last one that was counted
        self._awaited = 0  # seqnos in `requests`
        self._not_before = 0  # the next request
        self._answered_at = 0
        self._patience = 1  # how many answer times to wait: doubles while the sender is silent
        self._round_trip = 0

    @property
    def has_gaps(self) -> bool:
        """Something is missing."""
        return bool(self.unasked or self.requests or self.lost)

    @property
    def gap_count(self) -> int:
        """How many ranges were noted and not found filled since."""
        return sum(1 for _ in self._gaps())

    @property
    def gap_tick(self) -> int:
        """How long a seqno may be missing before it is asked for."""
        return min(self.tau, max(GAP_TICK_MIN_NS, 2 * self._round_trip or GAP_TICK_START_NS))

    @property
    def _answer_time(self) -> int:
        """How long an answer may take: a round trip and a quarter."""
        return max(GAP_TICK_MIN_NS, self._round_trip * 5 // 4 or ANSWER_TIME_START_NS)

    # Inputs

    def saw_data(
        self, window: ReceiveWindow, first: int, last: int, now: int, datagram: int | None = None
    ) -> None:
        """first..last have just been offered to the window. Runs of one datagram have the same
        number, and count once; without a number, each is a datagram of its own."""
        is_whole = not (self.unasked or self.requests or self.lost)
        if is_whole and first == self.known + 1 and last == window.received:
            self.known = last  # the next in order, and nothing is missing
            self.announced = max(self.announced, last)
            return
        if last > self.known:
            if datagram is None or datagram != self._datagram:
                self._datagram = datagram
                self._marks.append(self.known)
            self._note_gaps(window, first - 1, now)
            # Not simply `last`: what the window refused is to be asked for later.
            self.known = max(self.known, min(last, window.high))
            self.announced = max(self.announced, last)
        else:
            if last == self.known:  # once more, so the sender waits, and can be heard
                self._patience = 1
            self._saw_answer(window, first, last, now)
        self._forget_filled(window.received)

    def saw_next(self, seqno: int) -> bool:
        """Whether this is the next of a stream of which nothing is known to be missing."""
        if self.announced >= seqno or self.known + 1 != seqno:
            return False
        if self.unasked or self.requests or self.lost:
            return False
        self.known = self.announced = seqno
        return True

    def saw_watermark(self, window: ReceiveWindow, seqno: int, now: int) -> None:
        """The sender says that it has sent up to seqno: so it can be heard."""
        self._patience = 1
        self.announced = max(self.announced, seqno)
        self._note_gaps(window, seqno, now)

    def window_moved(self, window: ReceiveWindow, now: int) -> None:
        """The application has delivered something: more of what was announced has a slot now."""
        if self.announced > self.known:
            self._note_gaps(window, self.announced, now)

    # Outputs

    def next_ask(self) -> int | None:
        """When to ask for something, unless an answer comes before that."""
        times = []
        if self.requests:
            times.append(self._overdue_at(self.requests[0]))
        if self.lost:
            times.append(0)
        elif self.unasked and self._awaited <= NACK_MESSAGES_MAX // 2:
            times.append(self._due_at(self.unasked[0]))
        return max(self._not_before, min(times)) if times else None

    def take_due(self, window: ReceiveWindow, now: int) -> list[range]:
        """What to ask for now, ascending: what is lost first, then what was never asked for."""
        at = self.next_ask()
        if at is None or at > now:
            return []
        is_overdue = self._give_up_overdue(now)
        self.lost = deque(sorted(self.lost, key=_FIRST))
        asked: list[Gap] = []
        for queue in (self.lost, self.unasked):
            while queue and self._awaited < NACK_MESSAGES_MAX and self._due_at(queue[0]) <= now:
                self._ask(queue[0], window, asked)
                if not queue[0].count:
                    queue.popleft()
        if asked:
            self.requests.append(Request(now, asked))
            self._not_before = now + self._answer_time // 10
        self.is_repeated = is_overdue and any(gap.asked > 1 for gap in asked)
        if self.is_repeated:
            self._patience = min(2 * self._patience, self.tau // GAP_TICK_MIN_NS)
        return [range(gap.first, gap.last + 1) for gap in asked]

    def gap_of(self, seqno: int) -> Gap:
        """What is known of a seqno that is missing."""
        return next(gap for gap in self._gaps() if gap.first <= seqno <= gap.last)

    def check_invariants(self, window: ReceiveWindow) -> None:
        has_gaps = self.has_gaps
        assert has_gaps == (window.received < self.known)
        if not has_gaps:  # as mostly when a simulation looks
            assert not self._awaited
            return
        gaps = sorted(self._gaps(), key=_FIRST)
        assert all(gap.count > 0 for gap in gaps)
        assert all(gap.last < after.first for gap, after in pairwise(gaps))
        assert gaps[len(gaps) - len(self.unasked) :] == list(self.unasked)
        missing = window.missing_within(window.received + 1, self.known, window.capacity_max)
        noted = [window.missing_within(gap.first, gap.last, gap.count) for gap in gaps]
        assert sum(map(len, missing)) == sum(map(len, chain.from_iterable(noted)))
        assert all(request.gaps for request in self.requests)
        assert self._awaited == sum(gap.count for request in self.requests for gap in request.gaps)
        # Else what is lost would wait for room that nothing makes.
        assert self._awaited + sum(gap.count for gap in self.lost) <= NACK_MESSAGES_MAX

    def _gaps(self) -> Iterator[Gap]:
        """All of them, in no order."""
        asked = chain.from_iterable(request.gaps for request in self.requests)
        return chain(asked, self.lost, self.unasked)

    # What is missing

    def _note_gaps(self, window: ReceiveWindow, seqno: int, now: int) -> None:
        """Everything up to seqno exists; what lies above `known` is missing."""
        seqno = min(seqno, window.last_slot)
        if seqno > self.known:
            self.unasked.append(Gap(self.known + 1, seqno, now))
            self.known = seqno

    def _forget_filled(self, received: int) -> None:
        """Nothing up to `received` is missing. What was asked for of that is dropped at its
        turn."""
        if received >= self.known:
            for queue in (self.unasked, self.requests, self.lost, self._marks):
                queue.clear()
            self._awaited = 0
        while self.unasked and self.unasked[0].last <= received:
            self.unasked.popleft()

    # Asking

    def _due_at(self, gap: Gap) -> int:
        """When to ask for this, which is lost or was never asked for: at once if that is proved."""
        is_proved = len(self._marks) == LATER_DATAGRAMS and gap.last <= self._marks[0]
        return 0 if gap.asked or is_proved else gap.since + self.gap_tick

    def _ask(self, gap: Gap, window: ReceiveWindow, asked: list[Gap]) -> None:
        """Ask for what is missing of this gap. It keeps what there is no room for, if anything."""
        room = NACK_MESSAGES_MAX - self._awaited
        for seqnos in window.missing_within(gap.first, gap.last, room):
            if not room:
                break
            last = min(seqnos.stop, seqnos.start + room) - 1
            asked.append(Gap(seqnos.start, last, gap.since, gap.asked + 1, gap.is_doubtful))
            room -= asked[-1].count
        gap.first = gap.last + 1 if room else asked[-1].last + 1
        self._awaited = NACK_MESSAGES_MAX - room

    def _overdue_at(self, request: Request) -> int:
        """When to give up on its answer. As long as others come, their order tells."""
        silent_since = max(request.asked_at, self._answered_at)
        return silent_since + min(self._patience * self._answer_time, self.tau)

    def _give_up_overdue(self, now: int) -> bool:
        """Whether any request was overdue."""
        count = len(self.requests)
        is_doubtful = self._patience < LONG_PATIENCE
        while self.requests and self._overdue_at(self.requests[0]) <= now:
            self._give_up(self.requests.popleft().gaps, is_doubtful=is_doubtful)
        return len(self.requests) < count

    def _give_up(self, gaps: list[Gap], *, is_doubtful: bool = False) -> None:
        """The answers to these do not come."""
        for gap in gaps:
            gap.is_doubtful = is_doubtful
            self._awaited -= gap.count
        self.lost += gaps

    # Answers

    def _saw_answer(self, window: ReceiveWindow, first: int, last: int, now: int) -> None:
        """If this was asked for: the answers that were due before it are lost."""
        found = self._find(first)
        if found is None:
            return
        number, place = found
        request = self.requests[number]
        gap = request.gaps[place]
        self._answered_at = now
        self._measure(now - request.asked_at, is_sure=not gap.is_doubtful)
        passed = Gap(gap.first, min(last, gap.last), gap.since, gap.asked)
        self._awaited -= passed.count
        # Of these, what came before it is lost; what came and the window has no room for, too.
        for seqnos in window.missing_within(passed.first, passed.last, passed.count):
            self.lost.append(Gap(seqnos.start, seqnos.stop - 1, gap.since, gap.asked))
        gap.first = passed.last + 1
        self._give_up(request.gaps[:place])
        del request.gaps[: place + (not gap.count)]
        if not request.gaps:
            del self.requests[number]
        if not gap.is_doubtful:
            for _ in range(number):
                self._give_up(self.requests.popleft().gaps)

    def _find(self, seqno: int) -> tuple[int, int] | None:
        """In which request this was asked for last, and in which of its gaps."""
        if self.unasked and seqno >= self.unasked[0].first:
            return None
        for number, request in enumerate(self.requests):
            place = bisect_right(request.gaps, seqno, key=_FIRST) - 1
            if place >= 0 and seqno <= request.gaps[place].last:
                return number, place
        return None

    def _measure(self, sample: int, *, is_sure: bool) -> None:
        """Learn the round trip from an answer, so long after the last request for it. If it may be
        the answer to an earlier one, the round trip may be longer than that, but not shorter; and
        patience is kept, so that the next request is not repeated too soon (Karn's algorithm)."""
        sample = min(sample, self.tau)
        before = self._round_trip or sample
        if sample >= before:
            self._round_trip = before + (sample - before) // 2
        elif is_sure:
            self._round_trip = max(sample, before // 2)
        if is_sure:
            self._patience = 1
