"""Limits: how much a sender may have out, as far as its receivers allow it.

On an ack of a member, or the end of a stability round: what it allows counts from now on. Until
    somebody has said it: as much as this member itself would allow each of the others.
On a view: what the departed have allowed counts no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.window.send import room_of

if TYPE_CHECKING:
    from collections.abc import Container

    from ringcast.config import MulticastConfig
    from ringcast.model import Member
    from ringcast.window.send import SendWindow


class Limits:
    """Of one send window."""

    def __init__(self, window: SendWindow, config: MulticastConfig, assumed: int | None) -> None:
        """`assumed` bytes may be under way until somebody has said how many it allows."""
        self.window = window
        self.config = config
        self.allowances: dict[Member, int] = {}
        self._assumed = config.in_flight_bytes if assumed is None else assumed
        self.apply()

    def apply(self) -> bool:
        """As many bytes in flight as every current member can take; True if that is more now."""
        window, config = self.window, self.config
        before = window.max_bytes
        allowed = min(self.allowances.values(), default=self._assumed)
        # Where the configuration is the bound it is one of bytes, not of what these take.
        window.bulk_bytes = config.bulk_bytes if allowed < config.in_flight_bytes // 2 else None
        allowed = max(allowed, room_of(window.datagram_bytes, window.bulk_bytes))
        window.max_bytes = min(allowed, config.window_bytes)
        return window.max_bytes > before

    def begin(self, view: Container[Member]) -> None:
        for member in [member for member in self.allowances if member not in view]:
            del self.allowances[member]
        self.apply()
