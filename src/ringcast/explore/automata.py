"""Real nodes as automata, for an exploration: what each input does to a node, found out once.

Nodes and datagrams are numbered; nodes that behave alike share a number, and the first one found
acts for all. Clocks do not count here: any armed timer of a node can be made the next one to fire.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from traceback import extract_tb
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ringcast.events import Delivered, GapSkipped, Undeliverable
from ringcast.explore.abstraction import canonical, clone
from ringcast.wire.frames import (
    Ack,
    Close,
    Data,
    Nack,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
    Watermark,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from enum import Enum

    from ringcast.events import Event
    from ringcast.model import Address, Member
    from ringcast.node import Node
    from ringcast.wire.frames import Frame

F = TypeVar("F")
T = TypeVar("T")

DATAGRAM_BYTES = 4096


class Datagram(NamedTuple):
    source: int
    dest: int
    content: bytes


class Step(NamedTuple):
    """What one input does to one node."""

    after: int
    datagrams: tuple[int, ...]
    events: tuple[Event, ...]
    accepted: int
    wrong: tuple[str, ...]
    told: str
    """What came out, in words."""


class Automata(ABC, Generic[F]):
    """Nodes that are discovered step by step. F: what an exploration wants to know of a node."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.facts: list[F] = []
        """Of each node, read once."""
        self.datagrams: list[Datagram] = []
        self.frames: list[list[Frame]] = []
        """What each datagram carries."""
        self.kinds: list[set[type[Frame]]] = []
        self.senders: list[Member] = []
        """Of each datagram."""
        self.told: list[str] = []
        """Each datagram in words."""
        self._places = {address: place for place, address in enumerate(addresses)}
        self._nodes: list[tuple[Node, int]] = []  # with each one's clock
        self._node_numbers: dict[object, int] = {}
        self._datagram_numbers: dict[Datagram, int] = {}
        self._steps: dict[object, Step] = {}

    # What an exploration fills in

    @abstractmethod
    def _read(self, node: Node) -> F:
        """What there is to know of a node."""

    @abstractmethod
    def _has_timers(self, owner: Hashable) -> bool:
        """Whether the timers of this owner may fire."""

    def _wrong_with(self, node: Node) -> Iterator[str]:
        """What must not be true of any node."""
        try:
            node.check_invariants()
        except AssertionError as error:
            yield f"an invariant is broken: {extract_tb(error.__traceback__)[-1].line}"

    # Inputs: what would become of the node. The node itself stays as it is.

    def receive(self, number: int, datagram: int) -> Step:
        content = self.datagrams[datagram].content
        return self._step(
            number, ("receive", datagram), lambda node, now: node.receive_datagrams([content], now)
        )

    def fire(self, number: int, owner: Hashable, timer: Enum) -> Step:
        return self._step(
            number,
            ("fire", owner, timer),
            lambda node, now: node.handle_timeout(now),
            due=(owner, timer),
        )

    def is_idle(self, number: int, datagram: int) -> bool:
        """Whether this datagram would do nothing to this node."""
        step = self.receive(number, datagram)
        return step.after == number and not step.told and not step.wrong

    def would_change(self, number: int, datagram: int) -> bool:
        """Whether this datagram would do something to this node, if it ever arrived there.

        Nothing is remembered of it: it may be something that cannot happen.
        """
        before, now = self._nodes[number]
        node = clone(before)
        node.receive_datagrams([self.datagrams[datagram].content], now)
        is_silent = not node.take_datagrams() and not node.take_events(0, now)
        return not is_silent or canonical(node) != canonical(before)

    def armed(self, node: Node) -> list[tuple[Hashable, Enum]]:
        """(owner, timer) of each armed timer that may fire, always in the same order."""
        return [each for each in node.deadlines.armed() if self._has_timers(each[0])]

    def _step(
        self,
        number: int,
        what: object,
        act: Callable[[Node, int], int | None],
        *,
        due: tuple[Hashable, Enum] | None = None,
        take: int = 0,
    ) -> Step:
        step = self._steps.get((number, what))
        if step is None:
            before, now = self._nodes[number]
            node = clone(before)
            if due is not None:
                now = node.deadlines.make_due(due, self.armed(node), now)
            accepted = act(node, now) or 0
            step = self._steps[number, what] = self._outcome(node, now, accepted, take)
        return step

    def _outcome(self, node: Node, now: int, accepted: int, take: int) -> Step:
        place = self._places[node.me.address]
        events = node.take_events(take, now)
        datagrams = sorted(
            {
                self._datagram_number(node, Datagram(place, dest, content))
                for address, content in node.take_datagrams()
                for dest in self._dests(node, address)
            }
        )
        told = [f"sends {self.told[number]}" for number in datagrams]
        told += map(event_in_words, events)
        return Step(
            after=self._node_number(node, now),
            datagrams=tuple(datagrams),
            events=tuple(events),
            accepted=accepted,
            wrong=tuple(self._wrong_with(node)),
            told=f"  [{', '.join(told)}]" if told else "",
        )

    def _dests(self, node: Node, address: Address | None) -> list[int]:
        if address is not None:
            return [self._places[address]]
        assert node.view is not None
        return [self._places[member.address] for member in node.view if member != node.me]

    def _node_number(self, node: Node, now: int) -> int:
        number = self._node_numbers.setdefault((node.me, canonical(node)), len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append((node, now))
            self.facts.append(self._read(node))
        return number

    def _datagram_number(self, node: Node, datagram: Datagram) -> int:
        number = self._datagram_numbers.setdefault(datagram, len(self.datagrams))
        if number == len(self.datagrams):
            self.datagrams.append(datagram)
            sender, frames = node.codec.unpack(datagram.content, overhear=True)
            self.senders.append(sender)
            self.frames.append(frames)
            self.kinds.append(set(map(type, frames)))
            self.told.append(self._datagram_in_words(datagram, frames))
        return number

    def _datagram_in_words(self, datagram: Datagram, frames: Sequence[Frame]) -> str:
        way = f"{self.name(datagram.source)}→{self.name(datagram.dest)}"
        return f"{way} {' + '.join(map(frame_in_words, frames))}"

    def name(self, place: int) -> str:
        return "ABCDEFGH"[place]


def frame_in_words(frame: Frame) -> str:
    match frame:
        case Data():
            return f"Data {frame.first}..{frame.last}"
        case Ack():
            return f"Ack received={frame.received} delivered={frame.delivered}"
        case Nack():
            return f"Nack {_ranges_in_words(frame.missing)}"
        case Watermark():
            return f"Watermark {frame.seqno}"
        case UnicastData():
            return f"Data({frame.conn}) {frame.first}..{frame.last}"
        case UnicastAck():
            return f"Ack({frame.conn}) {frame.delivered}"
        case UnicastNack():
            return f"Nack({frame.conn}) {_ranges_in_words(frame.missing)}"
        case Close():
            return f"Close({frame.conn})"
        case Sync():
            return f"Sync({frame.conn}) nonce {frame.nonce}"
        case SyncOk():
            return f"SyncOk({frame.conn}) nonce {frame.nonce}, low {frame.low}"
        case SyncAck():
            return f"SyncAck({frame.conn}) nonce {frame.nonce}"
        case _:
            return str(frame)


def event_in_words(event: Event) -> str:
    match event:
        case Delivered():
            epoch = f"{event.epoch}:" if event.epoch else ""
            return f"gets {event.sender}#{epoch}{event.run.first}"
        case Undeliverable():
            return f"Undeliverable {event.epoch}:{event.first}..{event.last}: {event.reason}"
        case GapSkipped():
            return f"GapSkipped {event.epoch}:{event.first}..{event.last}"
        case _:
            return type(event).__name__


def _ranges_in_words(ranges: Sequence[range]) -> str:
    return ", ".join(f"{seqnos.start}..{seqnos.stop - 1}" for seqnos in ranges)


def replaced(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def without(flight: tuple[int, ...], datagram: int) -> tuple[int, ...]:
    return tuple(number for number in flight if number != datagram)
