"""How long members wait for each other in a view change, and between changes.

Waiting, of a member that has promised a proposal:
    what comes                                   then
    nothing for PATIENCE                         verify the proposer, and who stands before me; who
                                                 is next verifies all, and so do all
    nothing for twice that                       wait no more (`passed`): the next proposes
    nothing again                                nor for that one; then for two more, for four
    its proposer is in a later view without me   nothing comes of what I promised: the next proposes

BackOff, of a coordinator: how long no parts come together after a loss (discovery.py).
"""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING

from ringcast.core.shared import Named
from ringcast.protocols.views.election import coordinator

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ringcast.model import Member, View

REPEAT_START_NS = 40_000_000
REPEAT_MAX_NS = 80_000_000
"""How often whoever asks for a step of a change repeats itself: at first, and at the least. So it
asks seven times before it loses patience: a loss of a tenth leaves hardly anybody out."""

REQUEST_MAX_NS = 500_000_000
"""How often, at the least, a member repeats what it asks of its coordinator."""

PATIENCE_NS = 500_000_000
"""How long a member may leave a proposal unanswered, or a proposer those who have promised."""

REFUSAL_PATIENCE_NS = PATIENCE_NS // 2
"""How much longer who refuses is waited for: it verifies first whom it takes to live."""

JITTER_NS = 20_000_000
"""Proposers in each other's way wait for so long, up to twice that; each time twice as long."""


class Timer(Named):
    REPEAT = auto()
    """Ask those again who have not answered my proposal."""
    SILENT = auto()
    """They will not."""
    STALLED = auto()
    """A proposal that was promised gets nowhere."""


class Waiting:
    """For whom a member waits that has promised, and for whom no more."""

    def __init__(self) -> None:
        self.passed: set[Member] = set()
        """Who was waited for in vain."""
        self.times = 0
        """How often."""

    def begin(self) -> None:
        """Something was promised, or a view has begun."""
        self.passed.clear()
        self.times = 0

    def end(self, proposer: Member) -> None:
        """Nothing comes of its proposal."""
        self.passed.add(proposer)
        self.times = max(self.times, 2)

    def lose_patience(
        self, proposer: Member, view: View, lost: AbstractSet[Member], me: Member
    ) -> None:
        self.times += 1
        if self.times <= 2 and proposer != me:
            self.passed |= {proposer} if self.times == 2 else set()
            return
        for _ in range(1 << max(0, min(self.times - 3, 9))):
            first = coordinator(view, lost | self.passed, me)
            if first != me:
                self.passed.add(first)


WAIT_START_NS = 1_000_000_000
WAIT_MAX_NS = 16_000_000_000
QUIET_NS = 60_000_000_000
"""How long parts wait after a loss, at first and at the most; and what is quiet for how long."""


class BackOff:
    """How long no parts come together, at one coordinator."""

    def __init__(self) -> None:
        self._wait = 0
        self._not_before = 0
        self._lost_at = 0
        self._has_merged = False  # since somebody was excluded

    def lose(self, now: int) -> None:
        """Somebody had to be excluded."""
        if now - self._lost_at > QUIET_NS:
            self._wait = 0
        elif self._has_merged:
            self._wait = min(2 * self._wait, WAIT_MAX_NS)
        self._wait = max(self._wait, WAIT_START_NS)
        self._lost_at = now
        self._not_before = now + self._wait
        self._has_merged = False

    def merge(self) -> None:
        """Parts have come together."""
        self._has_merged = True

    def waits(self, now: int) -> int:
        """For how long yet no parts come together."""
        return max(0, self._not_before - now)
