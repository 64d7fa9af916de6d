"""What comes too early to be used: Early and Strangers keep a little of it.

Early: only the first message of a stream opens its receive window. What comes before it, because
the network reorders or because it was lost, waits here: in a bounded number of runs and bytes for
each peer, and in all. What does not fit is dropped: the receiver asks for it once the window is
open. Strangers get half of the room, so that they cannot keep members of the view out.

Strangers: a member that is let in may speak before this member is in the same view. What it says
waits here, little and not for long: who is not let in has the group's key, and no more. None of it
reaches the application before its sender is in the view; what is not kept its sender repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcast.window.assembler import PART_BYTES_MIN

if TYPE_CHECKING:
    from ringcast.model import Conn, Member
    from ringcast.wire.frames import UnicastData

RUNS_MAX = 256
BYTES_MAX = 1 << 20
"""Of one peer. Each message counts PART_BYTES_MIN more than its bytes: even an empty one takes a
place."""

ALL_RUNS_MAX = 8 * RUNS_MAX
ALL_BYTES_MAX = 8 * BYTES_MAX
"""Of all peers. Who is not in the view finds room only while half of it is free."""


@dataclass(slots=True)
class _Kept:
    """What came of one connection, by its first seqno."""

    conn: Conn
    runs: dict[int, UnicastData] = field(default_factory=dict)
    size: int = 0


class Early:
    """Data that overtook the first message of their stream: of one connection for each peer, the
    newest that its question is about."""

    __slots__ = ("_kept", "runs", "size")

    def __init__(self) -> None:
        self._kept: dict[Member, _Kept] = {}
        self.runs = 0
        self.size = 0

    def keep(self, peer: Member, data: UnicastData, *, is_member: bool) -> bool:
        """Whether there was room for it."""
        kept = self._kept.get(peer)
        if kept is None or kept.conn < data.conn:
            self.forget(peer)
            kept = _Kept(data.conn)
        if kept.conn != data.conn or data.first in kept.runs:
            return False
        size = data.count * PART_BYTES_MIN
        if not self._has_room(kept, size, is_member=is_member):
            return False  # before it is cut: this costs nothing
        size += sum(map(len, data.payloads))
        if not self._has_room(kept, size, is_member=is_member):
            return False
        self._kept[peer] = kept
        kept.runs[data.first] = data
        kept.size += size
        self.runs += 1
        self.size += size
        return True

    def take(self, peer: Member, conn: Conn) -> list[UnicastData]:
        """What is kept of this connection, in order. What is older goes; what is newer stays."""
        kept = self._kept.get(peer)
        if kept is None or kept.conn > conn:
            return []
        self.forget(peer)
        return [kept.runs[first] for first in sorted(kept.runs)] if kept.conn == conn else []

    def forget(self, peer: Member) -> None:
        kept = self._kept.pop(peer, None)
        if kept is not None:
            self.runs -= len(kept.runs)
            self.size -= kept.size

    def clear(self) -> None:
        self._kept.clear()
        self.runs = self.size = 0

    def conns(self) -> dict[Member, Conn]:
        """Whose data are kept, and of which connection."""
        return {peer: kept.conn for peer, kept in self._kept.items()}

    def check_invariants(self) -> None:
        assert self.runs == sum(len(kept.runs) for kept in self._kept.values()) <= ALL_RUNS_MAX
        assert self.size == sum(kept.size for kept in self._kept.values()) <= ALL_BYTES_MAX
        assert all(0 < len(kept.runs) <= RUNS_MAX for kept in self._kept.values())
        assert all(kept.size <= BYTES_MAX for kept in self._kept.values())

    def _has_room(self, kept: _Kept, size: int, *, is_member: bool) -> bool:
        """Whether one more run of so many bytes may be kept of this peer."""
        share = 1 if is_member else 2
        return (
            len(kept.runs) < RUNS_MAX
            and kept.size + size <= BYTES_MAX
            and self.runs < ALL_RUNS_MAX // share
            and self.size + size <= ALL_BYTES_MAX // share
        )


STRANGERS_MAX = 16
STRANGER_BYTES_MAX = 64 << 10
STRANGER_NS = 2_000_000_000
"""How many strangers something is kept of, how many bytes of each, and for how long."""

ITEM_BYTES = 64
"""What each run that is kept counts for besides its messages."""


@dataclass(slots=True)
class _Waiting:
    since: int
    size: int = 0
    items: dict[tuple[Conn, int, int], UnicastData] = field(default_factory=dict)


class Strangers:
    """What members that are not in the view have sent, until a view with them begins."""

    __slots__ = ("_kept", "refused")

    def __init__(self) -> None:
        self.refused = 0
        self._kept: dict[Member, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        return sum(kept.size for kept in self._kept.values())

    def keep(self, member: Member, data: UnicastData, now: int) -> None:
        """If there is room for it. What is retransmitted takes no more."""
        self._forget_old(now)
        kept, item = self._kept.get(member, _Waiting(now)), (data.conn, data.first, data.count)
        size = ITEM_BYTES + PART_BYTES_MIN * data.count
        if item in kept.items or not self._has_room(member, size):
            return  # before it is cut: this costs nothing
        size += sum(map(len, data.payloads))
        if self._has_room(member, size):
            self._kept[member] = kept
            kept.items[item] = data.kept()
            kept.size += size

    def take(self, member: Member, now: int) -> list[UnicastData]:
        """What has come of this one, in order."""
        self._forget_old(now)
        kept = self._kept.pop(member, None)
        return [] if kept is None else list(kept.items.values())

    def clear(self) -> None:
        self._kept.clear()

    def check_invariants(self) -> None:
        assert len(self._kept) <= STRANGERS_MAX
        assert all(kept.size <= STRANGER_BYTES_MAX for kept in self._kept.values())

    def _has_room(self, member: Member, size: int) -> bool:
        """Whether so many bytes more may be kept of this one. If not, that is counted."""
        kept = self._kept.get(member)
        is_few = kept is not None or len(self._kept) < STRANGERS_MAX
        may = is_few and (0 if kept is None else kept.size) + size <= STRANGER_BYTES_MAX
        self.refused += not may
        return may

    def _forget_old(self, now: int) -> None:
        for member in [who for who, kept in self._kept.items() if now - kept.since > STRANGER_NS]:
            del self._kept[member]
