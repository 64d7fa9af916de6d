"""The applications: what each node wants to send, how fast it takes, and their state for joiners.

A state is small, but tells everything apart: of each origin how many messages, the last, and a hash
that depends on their order. It travels in chunks of any size, some behind each other, some slowly,
some not at all.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from ringcast.events import (
    Delivered,
    FragmentsDelivered,
    StateAbandoned,
    StateBegun,
    StateChunk,
    StateLost,
    StateReceived,
    StateWanted,
    StateWritable,
)
from ringcast.rules.state import NOTHING, Content, run_hash
from ringcast.sim.options import slot_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.events import Event
    from ringcast.model import Member
    from ringcast.sim.cluster import Cluster
    from ringcast.sim.member import SimulatedMember
    from ringcast.sim.options import Options
    from ringcast.trace.rows import OriginKey

EVERYBODY = -1
"""Instead of a slot: what is for the whole group."""
SECOND = -2
"""The same, on the second stream: uniform, or total."""
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
        """By the slot of the receiver, or EVERYBODY, or SECOND."""
        self._me = me
        self._sizes = options.sizes
        self._payloads = payloads

    def want(self, dest: int, count: int) -> Backlog:
        """Send so many more to this destination when there is room."""
        backlog = self.backlogs.get(dest)
        if backlog is None:
            origin = f"{self._me}#{self._me.incarnation}"
            if dest != EVERYBODY:
                origin += ">all" if dest == SECOND else f">{slot_name(dest)}"
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


# State for joiners

AGAIN_MS = 50.0
"""How often an application that cannot give, or will not, thinks about it again."""


class Ledger:
    """What was handed to the application, by origin."""

    def __init__(self) -> None:
        self.entries: dict[OriginKey, Content] = {}

    def add(self, event: Delivered | FragmentsDelivered) -> None:
        run = event.run if isinstance(event, Delivered) else event
        origin = (str(event.sender), event.sender.incarnation, int(run.stream))
        content = self.entries.get(origin, NOTHING)
        for payload in event.run.payloads if isinstance(event, Delivered) else ():
            content = content.then(1, run.last, run_hash([payload]))  # as they come: one by one
        self.entries[origin] = content._replace(last=run.last)

    def dump(self) -> bytes:
        lines = [
            f"{name} {incarnation} {stream} {content.messages} {content.last} {content.hash}\n"
            for (name, incarnation, stream), content in self.entries.items()
        ]
        return "".join(lines).encode()

    @classmethod
    def load(cls, text: bytes) -> Ledger:
        """ValueError: this is no ledger."""
        ledger = cls()
        for line in text.decode("ascii").splitlines():
            name, *numbers = line.split()
            incarnation, stream, messages, last, hash = map(int, numbers)
            ledger.entries[name, incarnation, stream] = Content(messages, last, hash)
        return ledger


class Keeper:
    """One member's application, as far as it has a state. It gives what it is asked for at once,
    later, bit by bit, or not."""

    def __init__(self, owner: SimulatedMember, cluster: Cluster) -> None:
        self.ledger = Ledger()
        self.giving: dict[int, list[bytes]] = {}
        """Of each transfer that is wanted the chunks that the node has not accepted yet."""
        self.most_chunks = 0
        self._owner = owner
        self._options = cluster.options
        self._clock = cluster.clock
        self._conditions = cluster.conditions
        self._random = cluster.state_random
        self._incoming: list[bytes] = []

    @property
    def entries(self) -> dict[OriginKey, Content]:
        """What is in the state, by origin."""
        return self.ledger.entries

    def see(self, event: Event) -> None:
        """What happens, in order. ValueError: a state came that is none."""
        match event:
            case Delivered() | FragmentsDelivered() if not event.epoch:
                self.ledger.add(event)
            case StateWanted(transfer):
                self.giving[transfer] = self._cut(self.ledger.dump())
                self.most_chunks = max(self.most_chunks, len(self.giving[transfer]))
            case StateAbandoned(transfer):
                self.giving.pop(transfer, None)
            case StateBegun() | StateLost():
                self._incoming = []
            case StateChunk(payload):
                self._incoming.append(payload)
            case StateReceived():
                text, _, _ = b"".join(self._incoming).partition(b"\0")
                self._incoming = []
                self.ledger = Ledger.load(text)

    def _cut(self, text: bytes) -> list[bytes]:
        text += bytes(self._options.ballast)
        chunks, start = [], 0
        while start < len(text):
            stop = start + self._random.choice(self._options.chunk_bytes)
            chunks.append(text[start:stop])
            start = stop
        return chunks

    def react(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, StateWanted | StateWritable):
                self.plan(event.transfer)

    def plan(self, transfer: int) -> None:
        """The next chunks of it go out after a while."""
        self._clock.after(self._random.uniform(0, self._options.give_ms), self._give, transfer)

    def _give(self, transfer: int) -> None:
        process = self._owner.process
        if transfer not in self.giving or not process.is_alive:
            return
        is_calm = self._conditions.is_calm
        is_stalled = self._owner.slot == self._options.stalled and not is_calm
        if not process.can_act or is_stalled:
            self._clock.after(AGAIN_MS, self._give, transfer)
        elif not is_calm and self._random.random() < self._options.refuse:
            self._owner.refuse_state(transfer, process.now)
            process.turn()
        else:
            may_go_on = self._owner.provide_state(transfer, self._options.give_chunks, process.now)
            process.turn()
            if may_go_on:
                self.plan(transfer)
