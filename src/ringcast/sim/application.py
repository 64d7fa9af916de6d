"""The simulated application's state: what it makes of its messages, gives to joiners, and gets.

It is small, but tells everything apart: of each origin how many messages, the last, and a hash that
depends on their order. It travels in chunks of any size, some behind each other, some slowly, some
not at all.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from ringcast.events import Event
    from ringcast.model import Member
    from ringcast.sim.clock import VirtualClock
    from ringcast.sim.faults import Conditions
    from ringcast.sim.member import SimulatedMember
    from ringcast.sim.options import Options
    from ringcast.trace.rows import OriginKey

AGAIN_MS = 50.0
"""How often an application that cannot give, or will not, thinks about it again."""


class Ledger:
    """What was handed to the application, by origin."""

    def __init__(self) -> None:
        self.entries: dict[OriginKey, Content] = {}

    def add(self, event: Delivered | FragmentsDelivered) -> None:
        if isinstance(event, Delivered):
            run = event.run
            self._add(event.sender, int(run.stream), run.payloads, run.last)
        else:
            self._add(event.sender, int(event.stream), [], event.last)

    def _add(self, sender: Member, stream: int, payloads: list[bytes], last: int) -> None:
        origin = (str(sender), sender.incarnation, stream)
        content = self.entries.get(origin, NOTHING)
        for payload in payloads:  # as an application would: one by one
            content = content.then(1, last, run_hash([payload]))
        self.entries[origin] = content._replace(last=last)

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
    """One member's application, as far as it has a state."""

    def __init__(self, options: Options, random: Random) -> None:
        self.ledger = Ledger()
        self.giving: dict[int, list[bytes]] = {}
        """Of each transfer that is wanted the chunks that the node has not accepted yet."""
        self.most_chunks = 0
        self._options = options
        self._random = random
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


class Giver:
    """When the application gives what it is asked for: at once, later, bit by bit, or not."""

    def __init__(
        self,
        owner: SimulatedMember,
        keeper: Keeper,
        slot: int,
        *,
        options: Options,
        clock: VirtualClock,
        conditions: Conditions,
        random: Random,
    ) -> None:
        self.keeper = keeper
        self._owner = owner
        self._is_stalled = slot == options.stalled
        self._options = options
        self._clock = clock
        self._conditions = conditions
        self._random = random

    def react(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, StateWanted | StateWritable):
                self.plan(event.transfer)

    def plan(self, transfer: int) -> None:
        """The next chunks of it go out after a while."""
        self._clock.after(self._random.uniform(0, self._options.give_ms), self._give, transfer)

    def _give(self, transfer: int) -> None:
        if transfer not in self.keeper.giving or not self._owner.is_alive:
            return
        is_calm = self._conditions.is_calm
        if not self._owner.can_act or (self._is_stalled and not is_calm):
            self._clock.after(AGAIN_MS, self._give, transfer)
        elif not is_calm and self._random.random() < self._options.refuse:
            self._owner.refuse_state(transfer)
        elif self._owner.provide_state(transfer, self._options.give_chunks):
            self.plan(transfer)
