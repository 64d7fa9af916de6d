"""Strangers: what members that are not in the view have sent, until a view with them begins.

Whoever is let in may speak before this member is in the same view. What it says waits here, little
and not for long: who is not let in has the group's key, and no more. None of it reaches the
application before its sender is in the view; what is not kept its sender repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from ringcast.window.assembler import PART_BYTES_MIN
from ringcast.wire.frames import UnicastData

if TYPE_CHECKING:
    from ringcast.model import Member

T = TypeVar("T")

STRANGERS_MAX = 16
STRANGER_BYTES_MAX = 64 << 10
STRANGER_NS = 2_000_000_000
"""How many strangers something is kept of, how many bytes of each, and for how long."""

ITEM_BYTES = 64
"""What each thing that is kept counts for besides its bytes."""


@dataclass(slots=True)
class _Kept(Generic[T]):
    since: int
    size: int = 0
    items: list[T] = field(default_factory=list)


class Strangers(Generic[T]):
    __slots__ = ("_kept", "refused")

    def __init__(self) -> None:
        self.refused = 0
        self._kept: dict[Member, _Kept[T]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        return sum(kept.size for kept in self._kept.values())

    def has_room(self, member: Member, size: int, now: int) -> bool:
        """Whether something of so many bytes may be kept of this one. If not, it is counted."""
        self._forget_old(now)
        kept = self._kept.get(member)
        taken = 0 if kept is None else kept.size
        is_few = kept is not None or len(self._kept) < STRANGERS_MAX
        may = is_few and taken + size + ITEM_BYTES <= STRANGER_BYTES_MAX
        self.refused += not may
        return may

    def keep(self, member: Member, item: T, size: int, now: int) -> None:
        """After `has_room`."""
        kept = self._kept.setdefault(member, _Kept(now))
        kept.items.append(item)
        kept.size += size + ITEM_BYTES

    def take(self, member: Member, now: int) -> list[T]:
        """What has come of this one, in order."""
        self._forget_old(now)
        kept = self._kept.pop(member, None)
        return [] if kept is None else kept.items

    def forget(self, member: Member) -> None:
        self._kept.pop(member, None)

    def clear(self) -> None:
        self._kept.clear()

    def check_invariants(self) -> None:
        assert len(self._kept) <= STRANGERS_MAX
        assert all(kept.size <= STRANGER_BYTES_MAX for kept in self._kept.values())

    def _forget_old(self, now: int) -> None:
        for member in [who for who, kept in self._kept.items() if now - kept.since > STRANGER_NS]:
            del self._kept[member]


def keep(strangers: Strangers[UnicastData], peer: Member, data: UnicastData, now: int) -> None:
    """Messages of who is not in the view, if there is room for them."""
    if not strangers.has_room(peer, PART_BYTES_MIN * data.count, now):
        return  # before it is cut: this costs nothing
    payloads = data.payloads  # cut now: the datagram's buffer may be used again
    size = sum(map(len, payloads)) + PART_BYTES_MIN * data.count
    if strangers.has_room(peer, size, now):
        kept = UnicastData(data.conn, data.first, payloads, more=data.more)
        strangers.keep(peer, kept, size, now)
