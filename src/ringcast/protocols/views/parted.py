"""Parted: which of one's own messages members may lack for good that come back from another view.

Of a member that does not come along into a view it is known how far it holds each stream. What was
sent beyond that, until it is met again, was sent in views that it was not in, or at the end of the
one in which the two parted. Nobody sends it again: the view in which they meet tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from ringcast.model import Member, Stream
    from ringcast.protocols.multicast_sender import MulticastSender

PARTED_MAX = 1024
"""Members that are remembered: those who parted last."""


class Parted:
    """What one member remembers of others."""

    def __init__(self) -> None:
        self._held: dict[Member, dict[Stream, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def part(self, senders: Mapping[Stream, MulticastSender], staying: Set[Member]) -> None:
        """A view begins in which only these of the last one are."""
        for stream, sending in senders.items():
            for member in sending.acks.members:
                if member not in staying:
                    self._held.setdefault(member, {})[stream] = sending.acks.received_by(member)
        while len(self._held) > PARTED_MAX:
            del self._held[next(iter(self._held))]

    def meet(
        self, members: Iterable[Member], senders: Mapping[Stream, MulticastSender]
    ) -> tuple[tuple[Stream, int, int], ...]:
        """These come from other views. What some of them may lack, by stream: from, to."""
        back = [self._held.pop(member) for member in members if member in self._held]
        found = []
        for stream, sending in senders.items():
            last = sending.window.high
            first = 1 + min((held.get(stream, last) for held in back), default=last)
            if first <= last:
                found.append((stream, first, last))
        return tuple(found)
