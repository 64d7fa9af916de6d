"""Repeating: how long a proposer waits before it asks again, and before it goes on without."""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING

from ringcast.core.shared import Named
from ringcast.protocols.views.timing import PATIENCE_NS, REPEAT_MAX_NS, REPEAT_START_NS

if TYPE_CHECKING:
    from ringcast.core.shared import Timers
    from ringcast.model import ViewId
    from ringcast.protocols.views.proposer import Proposer, Step


class Timer(Named):
    REPEAT = auto()
    """Ask those again who have not answered my proposal."""
    SILENT = auto()
    """They will not."""
    STALLED = auto()
    """A proposal that was promised gets nowhere."""


class Repeating:
    """Each step of a proposal is asked for anew: after 40 ms, then every 80 ms."""

    def __init__(self) -> None:
        self.interval = REPEAT_START_NS
        self._step: tuple[ViewId, Step] | None = None  # as timers have it

    def follow(self, proposer: Proposer, timers: Timers[Timer], now: int) -> None:
        """The proposer may have come to another step."""
        proposal = proposer.proposal
        step = None if proposal is None else (proposal.id, proposer.step)
        if step is None:
            timers.disarm(Timer.REPEAT)
            timers.disarm(Timer.SILENT)
        elif step != self._step:
            self.interval = REPEAT_START_NS
            timers.arm(Timer.REPEAT, now + self.interval)
            timers.arm(Timer.SILENT, now + PATIENCE_NS)
        self._step = step

    def slow_down(self, timers: Timers[Timer], now: int) -> None:
        """All were asked again."""
        self.interval = min(2 * self.interval, REPEAT_MAX_NS)
        timers.arm(Timer.REPEAT, now + self.interval)
