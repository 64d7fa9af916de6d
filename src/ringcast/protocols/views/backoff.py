"""BackOff: how long no parts are brought together after a loss.

After a loss: a second, and twice as long each time if parts had come together since, up to 16
seconds. In quiet times that is forgotten. So a link that comes and goes makes and breaks views less
and less often.
"""

from __future__ import annotations

WAIT_START_NS = 1_000_000_000
WAIT_MAX_NS = 16_000_000_000
QUIET_NS = 60_000_000_000
"""How long parts wait after a loss, at first and at the most; and what is quiet for how long."""


class BackOff:
    """Of one coordinator."""

    def __init__(self) -> None:
        self._wait = 0
        self._not_before = 0
        self._lost_at = 0
        self._has_merged = False  # since somebody was left out

    def lose(self, now: int) -> None:
        """Somebody had to be left out."""
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
