"""Roster: membership by a fixed list of addresses. The first view is made when all have answered.

For groups whose members are known beforehand. The list is the same everywhere, in the same
order, so everybody makes the same view without agreeing on it, provided that no process is started
again while the others are still coming together. It does not notice crashes and admits nobody
later: a process that comes back on a listed address is another member (its incarnation differs),
gets no answer and stays outside.

On start, and every interval until all are known: ask those who have not answered.
On Hello from a listed address: note who is there; answer a question.
When all are known: the view, in the order of the list, and a digest that opens every window at 0.
    Keep answering: somebody else may still be asking.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import DigestAgreed, ViewAgreed
from ringcast.core.timers import Timers
from ringcast.errors import UsageError
from ringcast.model import Digest, Origin, Stream, View, ViewId
from ringcast.wire.frames import Hello

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.effects import Effects, Signal
    from ringcast.events import Event
    from ringcast.model import Address, Member
    from ringcast.wire.frames import Frame

ASK_INTERVAL_NS = 50_000_000


class Timer(Enum):
    ASK = auto()
    """Somebody on the list has not answered yet."""


class Roster:
    """Waits for everybody on the list, then makes the one view there is."""

    frames: ClassVar[tuple[type[Frame], ...]] = (Hello,)

    def __init__(self, me: Member, addresses: Sequence[Address]) -> None:
        if me.address not in addresses:
            raise UsageError(f"{me.address} is not on the list of members: add it")
        if len(set(addresses)) != len(addresses):
            raise UsageError("the list of members names an address twice")
        self._me = me
        self._addresses = tuple(addresses)
        self._known: dict[Address, Member] = {me.address: me}
        self._is_complete = False
        self._is_closed = False
        self._started = 0
        self._timers: Timers[Timer] = Timers()

    @property
    def missing(self) -> list[Address]:
        """Who has not answered yet, in the order of the list."""
        return [address for address in self._addresses if address not in self._known]

    def start(self, now: int, out: Effects) -> None:
        self._started = now
        self._ask(now, out)
        self._agree_when_complete(out)

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        if source.address not in self._addresses or source.address == self._me.address:
            return
        if self._is_complete and self._known[source.address] != source:
            return  # it came back too late: without an answer it will not believe it is in
        for frame in frames:
            if isinstance(frame, Hello) and frame.is_question:
                out.datagram(source.address, Hello(is_question=False))
        if not self._is_complete:
            # Until the view is made the newest process at an address counts: one that died
            # before it was never a member.
            self._known[source.address] = source
            self._agree_when_complete(out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        if self._timers.take_due(now):
            self._ask(now, out)

    def next_timeout(self) -> int | None:
        return self._timers.next_timeout()

    def install_view(self, view: View, now: int, out: Effects) -> None:
        pass

    def install_digest(self, digest: Digest, now: int, out: Effects) -> None:
        pass

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        """Nothing of it concerns this layer."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return []

    def close(self, reason: str, now: int, out: Effects) -> None:
        self._is_closed = True
        self._timers.disarm(Timer.ASK)

    def stats(self) -> dict[str, object]:
        return {"listed": len(self._addresses), "known": len(self._known)}

    def explain(self, now: int) -> list[str]:
        if not self.missing:
            return []
        waited = (now - self._started) / 1e9
        names = ", ".join(map(str, self.missing))
        return [f"not in the group yet: no answer from {names} for {waited:.1f} s"]

    def check_invariants(self) -> None:
        assert self._is_complete == (not self.missing)
        assert self._is_complete or self._is_closed or self._timers.is_armed(Timer.ASK)

    def _ask(self, now: int, out: Effects) -> None:
        for address in self.missing:
            out.datagram(address, Hello(is_question=True))
        if self.missing:
            self._timers.arm(Timer.ASK, now + ASK_INTERVAL_NS)

    def _agree_when_complete(self, out: Effects) -> None:
        if self.missing:
            return
        self._is_complete = True
        self._timers.disarm(Timer.ASK)
        members = tuple(self._known[address] for address in self._addresses)
        origins = [Origin(member, stream) for member in members for stream in Stream]
        out.signal(ViewAgreed(View(ViewId(members[0], 1), members)))
        out.signal(DigestAgreed(Digest(dict.fromkeys(origins, 0))))
