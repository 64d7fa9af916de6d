"""Queues: what the members of a view have submitted to its sequencer, and is not ordered.

On Submit: the batch that is next of its origin waits here, as far as the origin's credit goes.
    What came before is dropped; and what comes too early: what it follows on is lost, and the
    origin will ask. Who says that nothing lower is pending may skip what it has taken elsewhere.
On room in the log: the origins in turn, a batch of each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ringcast.protocols.total.pending import TOTAL_BYTES
from ringcast.wire.batches import Head, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.model import Member, View

QUEUE_BYTES = 2 * TOTAL_BYTES
"""Of one origin: what it may have under way, with the heads of its batches."""


class Queues:
    def __init__(self, view: View, marks: Mapping[Member, int]) -> None:
        self.next = {member: (marks.get(member, 0) + 1, 0) for member in view}
        """Of each origin: which message comes next, and at which of its bytes."""
        self.overdrawn = 0
        """Batches beyond an origin's credit."""
        self._waiting: dict[Member, deque[bytes]] = {}
        self._sizes: dict[Member, int] = {}
        self._turn: deque[Member] = deque()  # of those who wait

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waiting(self, origin: Member) -> int:
        """How many batches of it."""
        return len(self._waiting.get(origin, ()))

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def offer(self, origin: Member, head: Head, batch: bytes, *, is_lowest: bool) -> None:
        at = (head.first, head.extent if head.is_part else 0)
        if at != self.next[origin] and not (is_lowest and not at[1] and at > self.next[origin]):
            return
        size = self._sizes.get(origin, 0)
        if size >= QUEUE_BYTES:
            self.overdrawn += 1
            return
        end = (head.first, head.extent + size_of(batch, head))
        self.next[origin] = (head.last + 1, 0) if head.ends else end
        self._sizes[origin] = size + len(batch)
        if origin not in self._waiting:
            self._waiting[origin] = deque()
            self._turn.append(origin)
        self._waiting[origin].append(batch)

    def take(self, count: int) -> list[tuple[Member, bytes]]:
        """The next so many."""
        taken: list[tuple[Member, bytes]] = []
        while self._turn and len(taken) < count:
            origin = self._turn.popleft()
            batch = self._waiting[origin].popleft()
            self._sizes[origin] -= len(batch)
            taken.append((origin, batch))
            if self._waiting[origin]:
                self._turn.append(origin)
            else:
                del self._waiting[origin], self._sizes[origin]
        return taken

    def put_back(self, taken: list[tuple[Member, bytes]]) -> None:
        """For these there was no room."""
        for origin, batch in reversed(taken):
            if origin not in self._waiting:
                self._waiting[origin] = deque()
                self._turn.append(origin)
            self._turn.remove(origin)
            self._turn.appendleft(origin)
            self._waiting[origin].appendleft(batch)
            self._sizes[origin] = self._sizes.get(origin, 0) + len(batch)

    def check_invariants(self) -> None:
        assert set(self._turn) == set(self._waiting) == set(self._sizes)
        assert len(self._turn) == len(self._waiting)
        for origin, batches in self._waiting.items():
            assert batches
            assert self._sizes[origin] == sum(map(len, batches)) < 2 * QUEUE_BYTES
