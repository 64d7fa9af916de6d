"""A network that takes its time: the members of a Cluster or a Pair, so many seconds apart."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from support.cluster import Cluster, Packet


class Delays:
    """Carries datagrams one way in `one_way_s`, in order, but for those that it loses."""

    def __init__(
        self, members: Cluster, one_way_s: float, lose: Callable[[Packet], bool] = lambda _: False
    ) -> None:
        self.members = members
        self.lose = lose
        self.carried: list[tuple[int, Packet]] = []
        """Every datagram that left a member, with when it did, whatever became of it."""
        self._one_way = round(one_way_s * 1e9)
        self._numbers = count()
        self._under_way: list[tuple[int, int, Packet]] = []

    def carry(self, packets: Iterable[Packet]) -> None:
        """These leave now."""
        now = self.members.now
        for packet in packets:
            self.carried.append((now, packet))
            if not self.lose(packet):
                self.put(now, packet)

    def put(self, at: int, packet: Packet) -> None:
        """It is on the wire then."""
        heappush(self._under_way, (at + self._one_way, next(self._numbers), packet))

    def run_until(self, is_reached: Callable[[], bool], seconds: float) -> float:
        """Let time pass until it is so, at most so long; how long it took."""
        c = self.members
        start = c.now
        stop = start + round(seconds * 1e9)
        self._turn()
        while not is_reached():
            deadlines = [c.next_timeout(), self._under_way[0][0] if self._under_way else None]
            at = min((at for at in deadlines if at is not None), default=stop)
            assert at < stop, [node.explain(c.now) for node in c.nodes.values()]
            c.now = max(c.now, at)
            while self._under_way and self._under_way[0][0] <= c.now:
                c.hand_over([heappop(self._under_way)[2]])
                self._turn()
            for node in c.nodes.values():
                node.handle_timeout(c.now)
            self._turn()
        return (c.now - start) / 1e9

    def _turn(self) -> None:
        """The applications take what is ready; what members want to send leaves."""
        for name in self.members.nodes:
            if name not in self.members.stopped:
                self.members.take(name)
        self.carry(self.members.collect())
