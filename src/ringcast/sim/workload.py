"""The applications: what each node wants to send, how fast it takes, and their state for joiners.

A state is small, but tells everything apart: of each origin how many messages, the last, and a hash
that depends on their order. It travels in chunks of any size, some behind each other, some slowly,
some not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

from ringcast import events
from ringcast.events import Delivered, Event, FragmentsDelivered
from ringcast.model import Member, alike
from ringcast.rules.state import NOTHING, Content, run_hash
from ringcast.sim.options import Options, slot_name
from ringcast.trace.rows import OriginKey

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster
    from ringcast.sim.member import SimulatedMember

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
        self.ready: deque[bytes] = deque()
        """The next ones, made and not accepted."""

    def next_messages(self, limit: int) -> list[bytes]:
        """The next messages to offer, the same ones until they are accepted: all with headers, or
        none."""
        while len(self.ready) < min(limit, self.wanted):
            self._counter += 1
            # Sizes follow from the counter alone, so that a retry offers the same bytes.
            size = self._sizes[self._counter * 2654435761 // 65536 % len(self._sizes)]
            self.ready.append(self._payloads.make(self._origin, self._counter, size))
        return next((run for _, run in alike(1, self.ready)), [])

    def accepted(self, count: int) -> None:
        self.wanted -= count
        for _ in range(count):
            self.ready.popleft()


class Application:
    """One member's application: sends its backlogs as room appears, and takes what comes."""

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
            backlog.wanted = 0
            backlog.ready.clear()


# State for joiners

AGAIN_MS = 50.0
"""How often an application that cannot give, or will not, thinks about it again."""


def dump_entries(entries: Mapping[OriginKey, Content]) -> bytes:
    lines = [
        f"{name} {incarnation} {stream} {content.messages} {content.last} {content.hash}\n"
        for (name, incarnation, stream), content in entries.items()
    ]
    return "".join(lines).encode()


def load_entries(text: bytes) -> dict[OriginKey, Content]:
    """Of a state. ValueError: this is none."""
    entries = {}
    for line in text.decode("ascii").splitlines():
        name, *numbers = line.split()
        incarnation, stream, messages, last, hash = map(int, numbers)
        entries[name, incarnation, stream] = Content(messages, last, hash)
    return entries


class Keeper:
    """One member's application, as far as it has a state. It gives what it is asked for at once,
    later, bit by bit, or not."""

    def __init__(self, owner: SimulatedMember, cluster: Cluster) -> None:
        self.entries: dict[OriginKey, Content] = {}
        """What is in the state, by origin."""
        self.giving: dict[int, list[bytes]] = {}
        """Of each transfer that is wanted the chunks that the node has not accepted yet."""
        self.most_chunks = 0
        self._owner = owner
        self._options = cluster.options
        self._clock = cluster.clock
        self._conditions = cluster.conditions
        self._random = cluster.state_random
        self._incoming: list[bytes] = []

    def see(self, event: Event) -> None:
        """What happens, in order. ValueError: a state came that is none."""
        match event:
            case Delivered() | FragmentsDelivered() if not event.epoch:
                self._add(event)
            case events.StateWanted(transfer):
                self.giving[transfer] = self._cut()
                self.most_chunks = max(self.most_chunks, len(self.giving[transfer]))
            case events.StateAbandoned(transfer):
                self.giving.pop(transfer, None)
            case events.StateBegun() | events.StateLost():
                self._incoming = []
            case events.StateChunk(payload):
                self._incoming.append(payload)
            case events.StateReceived():
                text, _, _ = b"".join(self._incoming).partition(b"\0")
                self._incoming = []
                self.entries = load_entries(text)

    def _add(self, event: Delivered | FragmentsDelivered) -> None:
        run = event.run if isinstance(event, Delivered) else event
        origin = (str(event.sender), event.sender.incarnation, int(run.stream))
        content = self.entries.get(origin, NOTHING)
        for payload in event.run.payloads if isinstance(event, Delivered) else ():
            content = content.then(1, run.last, run_hash([payload]))  # as they come: one by one
        self.entries[origin] = content._replace(last=run.last)

    def _cut(self) -> list[bytes]:
        """The state as it is now, in chunks."""
        text = dump_entries(self.entries) + bytes(self._options.ballast)
        chunks, start = [], 0
        while start < len(text):
            stop = start + self._random.choice(self._options.chunk_bytes)
            chunks.append(text[start:stop])
            start = stop
        return chunks

    def react(self, taken: Iterable[Event]) -> None:
        for event in taken:
            if isinstance(event, events.StateWanted | events.StateWritable):
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
