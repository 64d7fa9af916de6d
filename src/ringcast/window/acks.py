"""AckTable: how far each member has come with one sender's stream.

The sender purges what everybody has delivered and, on a uniform stream, commits what everybody
holds: both are minima over exactly the members of its current view, itself included (N5, N7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.model import Member


class AckTable:
    """Two watermarks per member, and their minima.

    `held` is contiguously received, `delivered` is taken by the application. A member's marks
    never decrease; the minima do when a member joins. That a mark is not beyond what was sent is
    for the caller to check.
    """

    __slots__ = ("_delivered", "_held", "min_delivered", "min_held")

    def __init__(self, members: Iterable[Member], start: int) -> None:
        self._held: dict[Member, int] = {}
        self._delivered: dict[Member, int] = {}
        self.min_held = self.min_delivered = start
        self.set_members(members, start)

    def set_members(self, members: Iterable[Member], start: int) -> None:
        """Forget the departed, keep the others; new members enter at `start`, the sender's low."""
        members = tuple(members)
        assert members
        self._held = {member: self._held.get(member, start) for member in members}
        self._delivered = {member: self._delivered.get(member, start) for member in members}
        self.min_held = min(self._held.values())
        self.min_delivered = min(self._delivered.values())

    def update(self, member: Member, held: int, delivered: int) -> bool:
        """Whether a minimum rose. Late and strangers' acks change nothing (N6, N7)."""
        old_held = self._held.get(member)
        if old_held is None:
            return False
        old_delivered = self._delivered[member]
        rose = False
        if held > old_held:
            self._held[member] = held
            if old_held == self.min_held:
                self.min_held = min(self._held.values())
                rose = self.min_held > old_held
        if delivered > old_delivered:
            self._delivered[member] = delivered
            if old_delivered == self.min_delivered:
                self.min_delivered = min(self._delivered.values())
                rose = rose or self.min_delivered > old_delivered
        return rose

    def slowest(self) -> list[Member]:
        """Who pins the sender: those at the lowest delivered mark, in member order."""
        return self.behind(self.min_delivered + 1)

    def behind(self, seqno: int) -> list[Member]:
        """Those who have not delivered `seqno`, in member order."""
        return [member for member, delivered in self._delivered.items() if delivered < seqno]

    def entries(self) -> list[tuple[Member, int, int]]:
        """(member, held, delivered) in member order."""
        return [(member, held, self._delivered[member]) for member, held in self._held.items()]

    def __len__(self) -> int:
        return len(self._held)
