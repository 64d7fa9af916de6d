"""What one member did with each of its peers, instant by instant, from rows that come one by one.

An *instant* is all rows of one member at one time that are about one peer, or about nobody. Real
members' frames may leave a little later than the input that made them: what happens until then is
one instant (`held`). The system's own connections with a peer are another pair than the
application's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeAlias

from ringcast.model import SYSTEM_EPOCH
from ringcast.trace import rows as trace
from ringcast.trace.rows import MemberKey, Row

ABOUT_NOBODY = (trace.CRASH, trace.REJECT, trace.STOP, trace.VIEW)
"""What befalls a member, whoever its peers are."""
OF_PAIRS = (
    *(trace.CONN, trace.SYNC, trace.SYNC_CALL, trace.TAIL, trace.TICK, trace.UNDELIVERABLE),
    *(trace.UNICAST_DELIVER, trace.UNICAST_DROP, trace.UNICAST_SEND, trace.UNICAST_WIN),
)
FRAMES_OF_PAIRS = ("udata", "uack", "unack", "close", "sync", "sync_ok", "sync_ack")

EVENTS = (*ABOUT_NOBODY, *OF_PAIRS, trace.RX, trace.TX, trace.XMIT_MISMATCH, trace.HELD, trace.LATE)
"""All that is to be fed."""

Peer: TypeAlias = tuple[str, int, bool]
"""Its name and incarnation, and whether it is about the system's own connections."""


class Late:
    """When a member's machine kept it from what was due: its `late` rows.

    Timers of a machine that works are late, too: by a little, and by a share of what they wait."""

    NEVER: ClassVar[Late]

    LITTLE_NS = 2_000_000
    SHARE = 50

    def __init__(self, *, is_machine: bool = True) -> None:
        self._is_machine = is_machine
        self._ends: list[int] = []
        self._before: list[int] = [0]
        """How long it was late up to each of these ends."""

    def add(self, row: Row) -> None:
        self._ends.append(row.mono_ns)
        self._before.append(self._before[-1] + row.size)

    def between(self, since_ns: int, until_ns: int) -> int:
        """How much later something may be that was to last from then to then."""
        if not self._is_machine:
            return 0
        first, last = bisect_left(self._ends, since_ns), bisect_left(self._ends, until_ns + 1)
        late_ns = self._before[last] - self._before[first]
        return late_ns + self.LITTLE_NS + max(0, until_ns - since_ns - late_ns) // self.SHARE


Late.NEVER = Late(is_machine=False)


class Instants:
    """Takes the rows of one member."""

    def __init__(self, member: MemberKey, late: Late = Late.NEVER) -> None:
        self.peers: dict[Peer, None] = {}
        self._member = member
        self._late = late
        self._now_ns = -1
        self._general: list[Row] = []
        self._found: dict[Peer, list[Row]] = {}

    def feed(self, row: Row) -> Iterator[tuple[Peer, list[Row]]]:
        """The instant that ended before this row, of each peer that it is about."""
        if row.mono_ns != self._now_ns:
            if row.event != trace.HELD:
                yield from self.end()
            self._now_ns = row.mono_ns
        if row.event == trace.LATE:
            self._late.add(row)
        elif row.event in ABOUT_NOBODY:
            self._general.append(row)
            for mine in self._found.values():
                mine.append(row)
        elif self._is_of_pair(row):
            peer = (*row.peer_key, row.epoch >= SYSTEM_EPOCH)
            if peer not in self._found:
                self.peers[peer] = None
                self._found[peer] = list(self._general)
            self._found[peer].append(row)

    def _is_of_pair(self, row: Row) -> bool:
        """What members say to themselves needs no connection."""
        if row.event in (trace.RX, trace.TX):
            is_meant = row.kind in FRAMES_OF_PAIRS
        elif row.event == trace.XMIT_MISMATCH:
            is_meant = row.epoch > 0
        else:
            is_meant = row.event in OF_PAIRS
        return is_meant and row.peer_key != self._member

    def end(self) -> Iterator[tuple[Peer, list[Row]]]:
        """The last one."""
        found, general = self._found, self._general
        self._found, self._general = {}, []
        for peer in self.peers if general else found:
            yield peer, found.get(peer, general)


def instants(member: MemberKey, rows: Iterable[Row]) -> Iterator[list[list[Row]]]:
    """For each of its peers, all of them."""
    grouped = Instants(member)
    found: dict[Peer, list[list[Row]]] = {}
    for each in map(grouped.feed, rows):
        for peer, instant in each:
            found.setdefault(peer, []).append(instant)
    for peer, instant in grouped.end():
        found.setdefault(peer, []).append(instant)
    return iter(found.values())
