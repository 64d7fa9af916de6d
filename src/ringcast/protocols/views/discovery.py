"""Discovery: where members of the group may be.

Addresses come from member files, a list, a shared directory. Some lead nowhere; who is really there
shows by answering. Candidates are asked often at first, and less and less often: a group keeps
looking for other parts of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.model import Address, Member

ASK_START_NS = 40_000_000
ASK_MAX_NS = 1_000_000_000
"""How often candidates are asked: at first, and at the least."""

CANDIDATES_MAX = 4096


class Discovery:
    """The candidates of one member."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self.candidates: dict[Address, None] = {}
        self.interval = ASK_START_NS
        """Until candidates are asked again."""

    def add(self, addresses: Iterable[Address]) -> list[Address]:
        """Those that are new."""
        fresh = [address for address in addresses if address not in self.candidates]
        fresh = [address for address in dict.fromkeys(fresh) if address != self._me.address]
        fresh = fresh[: CANDIDATES_MAX - len(self.candidates)]
        self.candidates.update(dict.fromkeys(fresh))
        return fresh

    def slow_down(self) -> None:
        """Ask less often from now on."""
        self.interval = min(2 * self.interval, ASK_MAX_NS)
