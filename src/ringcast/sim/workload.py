"""The applications: what each node wants to send, and how fast it takes."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from ringcast.sim.options import slot_name

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.sim.options import Options

EVERYBODY = -1
"""Instead of a slot: what is for the whole group."""
UNIFORM = -2
"""The same, on the uniform stream."""
_FILLER_BYTES = 4096


class Payloads:
    """Bytes that tell where they come from: no two messages of 16 bytes or more are the same."""

    def __init__(self, seed: int) -> None:
        self._filler = Random(f"{seed} payloads").randbytes(_FILLER_BYTES)

    def make(self, origin: str, counter: int, size: int) -> bytes:
        label = f"{origin}:{counter};".encode()
        place = counter * 7 % (_FILLER_BYTES // 2)
        body = label + self._filler[place:]
        if len(body) < size:
            body += self._filler * (size // _FILLER_BYTES + 1)
        return body[:size]


class Backlog:
    """What one application wants to send to one destination, in order.

    Nothing grows: what is wanted is counted, and made only when it can be sent.
    """

    __slots__ = (
        "_counter",
        "_origin",
        "_payloads",
        "_ready",
        "_sizes",
        "is_waiting",
        "to",
        "wanted",
    )

    def __init__(self, origin: str, sizes: tuple[int, ...], payloads: Payloads) -> None:
        self.wanted = 0
        """Messages that it still wants to send."""
        self.is_waiting = False
        """A send was cut short; the node will say when there is room."""
        self.to: Member | None = None
        """The incarnation that it was last offered to."""
        self._origin = origin
        self._sizes = sizes
        self._payloads = payloads
        self._counter = 0
        self._ready: deque[bytes] = deque()

    def next_messages(self, limit: int) -> list[bytes]:
        """The next messages to offer, the same ones until they are accepted."""
        while len(self._ready) < min(limit, self.wanted):
            self._counter += 1
            # Sizes follow from the counter alone, so that a retry offers the same bytes.
            size = self._sizes[self._counter * 2654435761 // 65536 % len(self._sizes)]
            self._ready.append(self._payloads.make(self._origin, self._counter, size))
        return list(self._ready)

    def accepted(self, count: int) -> None:
        self.wanted -= count
        for _ in range(count):
            self._ready.popleft()

    def give_up(self) -> None:
        """Drop what has not been sent yet."""
        self.wanted = 0
        self._ready.clear()


class Application:
    """One member's application: sends its backlogs as room appears, and takes what comes."""

    __slots__ = ("_me", "_payloads", "_sizes", "backlogs", "rate")

    def __init__(self, me: Member, options: Options, payloads: Payloads) -> None:
        self.rate: float | None = None
        """Messages taken per second; None: as they come, 0: none."""
        self.backlogs: dict[int, Backlog] = {}
        """By the slot of the receiver, or EVERYBODY, or UNIFORM."""
        self._me = me
        self._sizes = options.sizes
        self._payloads = payloads

    def want(self, dest: int, count: int) -> Backlog:
        """Send so many more to this destination when there is room."""
        backlog = self.backlogs.get(dest)
        if backlog is None:
            origin = f"{self._me}#{self._me.incarnation}"
            if dest != EVERYBODY:
                origin += ">all" if dest == UNIFORM else f">{slot_name(dest)}"
            backlog = self.backlogs[dest] = Backlog(origin, self._sizes, self._payloads)
        backlog.wanted += count
        return backlog

    @property
    def is_waiting(self) -> bool:
        """For room, somewhere."""
        return any(backlog.is_waiting for backlog in self.backlogs.values())

    def writable(self, to: Member | None) -> None:
        """There is room again, for the group or for one member."""
        for backlog in self.backlogs.values():
            if backlog.to == to:
                backlog.is_waiting = False

    def give_up(self) -> None:
        """Drop what has not been sent yet."""
        for backlog in self.backlogs.values():
            backlog.give_up()
