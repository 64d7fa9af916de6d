"""Fetch: what one member lacks up to the cut of a proposal, and what others lack and it holds.

Whoever holds it is asked, as the cut says; after two tries the proposer, which passes on both the
question and the answer. So a change depends on nobody's link but those with its proposer.

Only members of the last proposal are answered, and each at most so many windows full.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.config import CAPACITY_LIMIT
from ringcast.core.shared import Named, Timers
from ringcast.core.view_change import OWN, Part
from ringcast.model import Member, Origin, ViewId
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.views.timing import REPEAT_MAX_NS, REPEAT_START_NS
from ringcast.wire.changes import Forwarded, Want
from ringcast.wire.frames import Data
from ringcast.wire.limits import NACK_RANGES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.core.effects import Effects
    from ringcast.protocols.views.reading import Half

DIRECT_TRIES = 2
"""How often its holder is asked before the proposer is."""

WANTS_MAX = 4
"""Windows full of messages of one stream that one member is given for one proposal."""


class Timer(Named):
    FETCH = "fetch"
    """Some of what is lacking has not come: ask again."""


class Fetch:
    """One proposal after the other."""

    def __init__(
        self, me: Member, half_of: Callable[[Origin], Half | None], timers: Timers[Timer]
    ) -> None:
        """`half_of`: one's own stream, or what there is of another member's."""
        self.me = me
        self.proposal: ViewId | None = None
        """None: the view of the last one has begun."""
        self._half_of = half_of
        self._timers = timers
        self._last: ViewId | None = None
        self._members: tuple[Member, ...] = ()  # of that
        self._part: Part | None = None
        self._tries = 0
        self._interval = REPEAT_START_NS
        # Messages that each member was given of each stream, for this proposal.
        self._answered: Counter[tuple[Member, Origin]] = Counter()

    def promise(self, id: ViewId, members: tuple[Member, ...]) -> None:
        """Another proposal was promised."""
        self.end()
        self.proposal = self._last = id
        self._members = members
        self._answered.clear()

    def start(self, part: Part) -> None:
        """This is what everybody is to have."""
        self._part = part
        self._tries = 0
        self._interval = REPEAT_START_NS
        for origin, cut in self.lacking().items():
            # Its sender may have room for more than this member: a change does not wait for a
            # reader.
            window = self._receiver(origin).window
            window.capacity_max = max(window.capacity_max, min(cut - window.low, CAPACITY_LIMIT))

    def end(self) -> None:
        self.proposal = self._part = None
        self._timers.disarm(Timer.FETCH)

    def lacking(self) -> dict[Origin, int]:
        """What does not reach its cut."""
        found: dict[Origin, int] = {}
        if self._part is not None:
            for origin, cut in self._part.cuts.items():
                half = self._half_of(origin)
                if isinstance(half, MulticastReceiver) and half.window.received < cut:
                    found[origin] = cut
        return found

    def ask(self, now: int, out: Effects) -> bool:
        """Ask for what is lacking; whether nothing is."""
        lacking = self.lacking()
        if not lacking:
            self._timers.disarm(Timer.FETCH)
            return True
        assert self._part is not None
        assert self.proposal is not None
        for origin, cut in lacking.items():
            window = self._receiver(origin).window
            missing = window.missing_within(window.received + 1, cut, NACK_RANGES_MAX)
            if not missing:
                continue  # no member that keeps to the rules has so much under way
            source, proposer = self._part.sources[origin], self.proposal.creator
            is_direct = self._tries < DIRECT_TRIES or proposer in (source, self.me)
            want = Want(self.proposal, *origin, tuple(missing), None if is_direct else source)
            out.datagram(source if is_direct else proposer, want)
        self._timers.arm(Timer.FETCH, now + self._interval)
        return False

    def is_due(self, now: int) -> bool:
        """Whether it is time to ask again."""
        is_due = self._timers.take(Timer.FETCH, now)
        if is_due:
            self._tries += 1
            self._interval = min(2 * self._interval, REPEAT_MAX_NS)
        return is_due

    def add(self, origin: Origin, data: Data, now: int) -> None:
        """As far as the cut goes."""
        assert self._part is not None
        half, cut = self._half_of(origin), self._part.cuts.get(origin, OWN)
        if isinstance(half, MulticastReceiver) and data.first <= cut:
            payloads = data.payloads[: cut - data.first + 1]
            half.stream.accept(Data(data.stream, data.first, payloads, more=data.more), now, None)

    def on_want(self, source: Member, want: Want, out: Effects) -> bool:
        """Of mine, or of somebody's that I hold; or pass it on to who does. Whether it counts."""
        if not self._counts(source, want):
            return False
        if want.id.creator == self.me and want.asker not in (None, self.me):
            assert want.asker is not None
            out.datagram(want.asker, replace(want, asker=source))
            return True
        asker = None if want.id.creator == self.me else want.asker
        half = self._half_of(Origin(want.sender, want.stream))
        if half is not None:
            whose = want.asker or source, half.origin
            quota = WANTS_MAX * half.window.capacity_max - self._answered[whose]
            for seqnos in want.missing:
                for data in half.pieces(seqnos[: max(0, quota)], half.window.capacity_max):
                    quota -= data.count
                    self._answered[whose] += data.count
                    out.datagram(source, Forwarded(want.id, want.sender, data, asker))
        return True

    def on_forwarded(self, source: Member, frame: Forwarded, now: int, out: Effects) -> bool:
        """For me, or for who has asked me. Whether it counts."""
        if not self._counts(source, frame):
            return False
        if frame.asker is not None and frame.asker != self.me:
            if frame.id.creator == self.me:
                out.datagram(frame.asker, replace(frame, data=frame.data.kept(), asker=None))
        elif frame.id == self.proposal and self._part is not None:
            self.add(Origin(frame.sender, frame.data.stream), frame.data, now)
        return True

    def includes(self, member: Member) -> bool:
        """Whether it is in the last proposal."""
        return member in self._members

    def explain(self) -> list[str]:
        if self.proposal is None:
            return []
        lacking = [f"{origin} up to {cut}" for origin, cut in self.lacking().items()]
        if lacking:
            return [f"view {self.proposal} waits for this member to get {', '.join(lacking)}"]
        return [f"sends wait for view {self.proposal}"]

    def check_invariants(self, *, is_flushing: bool) -> None:
        assert self._timers.is_armed(Timer.FETCH) == is_flushing
        assert not is_flushing or self.lacking()

    def _counts(self, source: Member, frame: Want | Forwarded) -> bool:
        """It is about the last proposal, and between members of it."""
        named = (source,) if frame.asker is None else (source, frame.asker)
        return frame.id == self._last and all(member in self._members for member in named)

    def _receiver(self, origin: Origin) -> MulticastReceiver:
        half = self._half_of(origin)
        assert isinstance(half, MulticastReceiver)
        return half
