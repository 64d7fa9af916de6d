"""The applications: what each node wants to send, and how fast it takes."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.sim.options import Options

_FILLER_BYTES = 4096


class Payloads:
    """Bytes that tell where they come from: no two messages of 16 bytes or more are the same."""

    def __init__(self, seed: int) -> None:
        self._filler = Random(f"{seed} payloads").randbytes(_FILLER_BYTES)

    def make(self, member: Member, counter: int, size: int) -> bytes:
        label = f"{member}#{member.incarnation}:{counter};".encode()
        place = counter * 7 % (_FILLER_BYTES // 2)
        body = label + self._filler[place:]
        if len(body) < size:
            body += self._filler * (size // _FILLER_BYTES + 1)
        return body[:size]


class Application:
    """One member's application: sends its backlog as room appears.

    Nothing grows: what is wanted is counted, and made only when it can be sent.
    """

    __slots__ = ("_counter", "_me", "_payloads", "_ready", "_sizes", "is_waiting", "rate", "wanted")

    def __init__(self, me: Member, options: Options, payloads: Payloads) -> None:
        self.wanted = 0
        """Messages that it still wants to send."""
        self.is_waiting = False
        """A send was cut short; the node will say when there is room."""
        self.rate: float | None = None
        """Messages taken per second; None: as they come, 0: none."""
        self._me = me
        self._payloads = payloads
        self._sizes = options.sizes
        self._counter = 0
        self._ready: deque[bytes] = deque()

    def next_messages(self, limit: int) -> list[bytes]:
        """The next messages to offer, the same ones until they are accepted."""
        while len(self._ready) < min(limit, self.wanted):
            self._counter += 1
            # Sizes follow from the counter alone, so that a retry offers the same bytes.
            size = self._sizes[self._counter * 2654435761 // 65536 % len(self._sizes)]
            self._ready.append(self._payloads.make(self._me, self._counter, size))
        return list(self._ready)

    def accepted(self, count: int) -> None:
        self.wanted -= count
        for _ in range(count):
            self._ready.popleft()

    def give_up(self) -> None:
        """Drop what has not been sent yet."""
        self.wanted = 0
        self._ready.clear()
