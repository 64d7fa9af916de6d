"""How far everybody has come with one sender's stream: AckTable, as each has told the sender;
AgreedMark, as all have agreed.

The sender purges what everybody has delivered and, on a uniform stream, commits what everybody
holds: both are minima over exactly the members of its current view, itself included (N5, N7).
"""

from __future__ import annotations

from collections.abc import Iterable

from ringcast.model import SEQNO_MAX, Member


class AckTable:
    """Two watermarks per member, and their minima.

    `received` is contiguously received, `delivered` is delivered to the application. A member's
    marks never decrease; the minima do when a member joins. That a mark is not beyond what was sent
    is for the caller to check."""

    __slots__ = ("_delivered", "_held", "min_delivered", "min_received")

    def __init__(self, members: Iterable[Member], start: int) -> None:
        self._held: dict[Member, int] = {}
        self._delivered: dict[Member, int] = {}
        self.min_received = self.min_delivered = start
        self.set_members(members, start)

    def set_members(self, members: Iterable[Member], start: int) -> None:
        """Forget the departed, keep the others; new members enter at `start`, the sender's low."""
        members = tuple(members)
        assert members
        self._held = {member: self._held.get(member, start) for member in members}
        self._delivered = {member: self._delivered.get(member, start) for member in members}
        self.min_received = min(self._held.values())
        self.min_delivered = min(self._delivered.values())

    def update(self, member: Member, received: int, delivered: int) -> bool:
        """Whether a minimum rose. Late and strangers' acks change nothing (N6, N7)."""
        old_received = self._held.get(member)
        if old_received is None:
            return False
        old_delivered = self._delivered[member]
        rose = False
        if received > old_received:
            self._held[member] = received
            if old_received == self.min_received:
                self.min_received = min(self._held.values())
                rose = self.min_received > old_received
        if delivered > old_delivered:
            self._delivered[member] = delivered
            if old_delivered == self.min_delivered:
                self.min_delivered = min(self._delivered.values())
                rose = rose or self.min_delivered > old_delivered
        return rose

    @property
    def members(self) -> tuple[Member, ...]:
        """Those who count."""
        return tuple(self._held)

    def slowest(self) -> list[Member]:
        """Who pins the sender: those at the lowest delivered mark, in member order."""
        return self.behind(self.min_delivered + 1)

    def behind(self, seqno: int) -> list[Member]:
        """Those who have not delivered `seqno`, in member order."""
        return [member for member, delivered in self._delivered.items() if delivered < seqno]

    def received_by(self, member: Member) -> int:
        """How far this one is known to hold what was sent."""
        return self._held[member]

    def has_delivered(self, member: Member, seqno: int) -> bool:
        """Whether a member is known to have delivered `seqno`; those who do not count are not."""
        return self._delivered.get(member, -1) >= seqno

    def delivered_by_others(self, me: Member) -> int:
        """How far everybody but this member has come."""
        others = [mark for member, mark in self._delivered.items() if member != me]
        return min(others, default=SEQNO_MAX)

    def entries(self) -> list[tuple[Member, int, int]]:
        """(member, received, delivered) in member order."""
        return [
            (member, received, self._delivered[member]) for member, received in self._held.items()
        ]

    def __len__(self) -> int:
        return len(self._held)


class AgreedMark:
    """One watermark for all, as the last stability round has found it. No member tells the sender
    anything by itself."""

    __slots__ = ("_by_others", "_slowest", "members", "min_delivered")

    def __init__(self, members: Iterable[Member], start: int) -> None:
        self.members = tuple(members)
        self.min_delivered = self._by_others = start
        self._slowest: Member | None = None

    @property
    def min_received(self) -> int:
        """Nobody says what it holds: as far as is known, what it has delivered."""
        return self.min_delivered

    def set_members(self, members: Iterable[Member], start: int) -> None:
        """What was agreed without a new member says nothing of it: it enters at `start`."""
        before, self.members = self.members, tuple(members)
        new = [member for member in self.members if member not in before]
        if new:
            self.min_delivered = self._by_others = start
        if new or self._slowest not in self.members:
            self._slowest = next(iter(new), None)

    def update(self, member: Member, received: int, delivered: int) -> bool:
        """Members tell each other in rounds, the sender too."""
        return False

    def agree(self, by_all: int, by_others: int, slowest: Member | None) -> bool:
        """Whether the minimum rose. Whoever has just come may have reported below it."""
        self._slowest = slowest
        self._by_others = max(self._by_others, by_others)
        rose = by_all > self.min_delivered
        self.min_delivered = max(self.min_delivered, by_all)
        return rose

    def slowest(self) -> list[Member]:
        """Who pins the sender, if a round has found it."""
        return [] if self._slowest is None else [self._slowest]

    def received_by(self, member: Member) -> int:
        """How far this one is known to hold what was sent: as all do."""
        return self.min_received

    def has_delivered(self, member: Member, seqno: int) -> bool:
        """Whether a member, not the sender, is known to have delivered `seqno`: what all others
        have is all that is known of each."""
        return self._by_others >= seqno

    def delivered_by_others(self, me: Member) -> int:
        """How far everybody but this member, the sender, has come."""
        return SEQNO_MAX if self.members == (me,) else self._by_others

    def entries(self) -> list[tuple[Member, int, int]]:
        """Nothing is known of anybody by itself."""
        return []

    def __len__(self) -> int:
        return len(self.members)
