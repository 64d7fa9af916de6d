"""Plain worlds: whole nodes whose applications take whatever there is, without observer or trace.

Every datagram takes the same time. What else befalls it, and what is made of events, is said by
whoever makes the world: benchmarks of many members, the demo of uniform messages, tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ringcast.events import Closed, Event
from ringcast.model import Address, Member
from ringcast.node import Node
from ringcast.sim.world import Flight, Link, Process, World

TAKE_MAX = 1000
"""Messages that an application takes in one call."""


class PlainMember:
    """A node, and an application that takes at once."""

    def __init__(self, node: Node, see: Callable[[Member, Event], None] | None = None) -> None:
        """`see` is told each event that the application takes."""
        self.node = node
        self.is_closed = False
        self.take_limit = TAKE_MAX
        """0: the application takes no messages."""
        self.before_sending: Callable[[Node], None] | None = None
        """Called when an input is done, with the frames still to be packed."""
        self._see = see

    def receive(self, flights: Sequence[Flight], now: int) -> None:
        self.node.receive_datagrams([flight.datagram for flight in flights], now)

    def handle_timeout(self, now: int) -> None:
        self.node.handle_timeout(now)

    def transport_hint(self, address: Address, now: int) -> None:
        self.node.transport_hint(address, now)

    def act(self, now: int) -> None:
        for event in self.node.take_events(self.take_limit, now):
            self.is_closed |= isinstance(event, Closed)
            if self._see is not None:
                self._see(self.node.me, event)

    def take_datagrams(self) -> list[tuple[Address | None, bytes, None]]:
        if self.before_sending is not None:
            self.before_sending(self.node)
        return [(dest, datagram, None) for dest, datagram in self.node.take_datagrams()]

    def doomed(self) -> None:
        raise AssertionError("nobody here crashes in the middle of sending")

    def closed(self) -> None:
        """Its socket is closed, and no timer is set."""


@dataclass(slots=True)
class FixedDelay:
    """The same for all."""

    delay_ns: int

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        flight.due += self.delay_ns
        return [flight]


@dataclass(slots=True)
class LoseWhere:
    """Those are lost of which `is_lost` says so."""

    is_lost: Callable[[Flight], bool]

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        return [] if self.is_lost(flight) else [flight]


def plain_world(*, hint_ms: float | None = None, start: int = 0) -> World[PlainMember]:
    return World(_link, hint_ms=hint_ms, start=start)


def begin(
    world: World[PlainMember], resident: PlainMember, candidates: Sequence[Address]
) -> Process[PlainMember]:
    """Start this node, which may find others at these addresses."""
    node = resident.node
    process = world.add(node.me.address, resident)
    node.start(process.now)
    node.add_candidates(candidates, process.now)
    process.turn()
    return process


def _link(source: Address, dest: Address) -> Link:
    return Link(source, dest, f"{source}>{dest}", Random(0))
