"""Members as automata: what each input does to a node, found out once.

Nodes and datagrams are numbered. Nodes that behave alike (`canonical`) share a number; the first
one found acts for all. Clocks do not count: any armed timer of a node can be the next one to fire.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from traceback import extract_tb
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ringcast.config import GroupConfig, MulticastConfig, UnicastConfig
from ringcast.errors import Reject
from ringcast.explore.abstraction import canonical, clone
from ringcast.explore.words import in_words
from ringcast.model import Address, Member, View
from ringcast.node import Node, build_node
from ringcast.wire.changes import InView
from ringcast.wire.frames import Frame

Act: TypeAlias = "Callable[[Node, int], int | None]"
"""An input to a node, at a time; how many messages it accepts."""
Armed: TypeAlias = "tuple[Hashable, Enum]"
"""The owner of a timer, and the timer."""

DATAGRAM_BYTES = 4096
NAMES = "ABCDE"


class Datagram(NamedTuple):
    source: int
    dest: int
    content: bytes
    sender: Member
    frames: list[Frame]
    kinds: set[type]  # of its frames
    told: str  # in words


class Step(NamedTuple):
    """What one input does to one node."""

    after: int
    datagrams: tuple[int, ...]
    events: tuple[object, ...]
    accepted: int
    wrong: tuple[str, ...]
    told: str  # what came out, in words


class Automata:
    """The members of a small group."""

    timers: ClassVar[frozenset[str]] = frozenset()
    """Owners of the timers that may fire."""
    take_limit = 1
    """How many messages an application takes in one step."""

    def __init__(self, size: int, capacity: int) -> None:
        self.datagrams: list[Datagram] = []
        self.nodes: list[Node] = []
        """They never change: inputs go to copies."""
        self.armed: list[list[Armed]] = []
        self.clocks: list[int] = []
        self._places = {self.member(place).address: place for place in range(size)}
        self._node_numbers: dict[object, int] = {}
        self._datagram_numbers: dict[object, int] = {}
        self._steps: dict[object, Step] = {}
        self._config = GroupConfig(
            group="explore",
            multicast=MulticastConfig(
                capacity=capacity, datagram_bytes=DATAGRAM_BYTES, window_bytes=4 * DATAGRAM_BYTES
            ),
            # So small that an ack always allows a whole window: bytes do not count here.
            unicast=UnicastConfig(capacity=capacity, window_bytes=DATAGRAM_BYTES),
        )

    def where(self, number: int) -> dict[str, Any]:
        """On which stream, or to whom, this node sends."""
        raise NotImplementedError

    def wrong_with(self, node: Node) -> Iterator[str]:
        """What must not be true of any node, besides what it checks itself."""
        if node.rejected.keys() - {Reject.ADDRESSEE.value}:
            yield f"a datagram of a member was rejected: {sorted(node.rejected)}"

    # Members

    def member(self, place: int, incarnation: int = 1) -> Member:
        name = NAMES[place] + "'" * (incarnation - 1)
        return Member(Address("explore", 1 + place), incarnation, name)

    def place_of(self, member: Member) -> int:
        return self._places[member.address]

    def fresh(self, me: Member, view: View, **layers: Any) -> int:
        """A member that has just come into this view; views come from outside."""
        node = build_node(me, self._config, membership=None, **layers)
        # So small that each sender's share is the minimum, however many were heard of late.
        node.multicast.receive_buffer = DATAGRAM_BYTES
        node.install_view(view, 0)
        node.take_events(0, 0)
        return self._number(node, 0)

    # Inputs: what would become of the node. The node itself stays as it is.

    def step(
        self, number: int, what: object, act: Act, *, due: Armed | None = None, take: int = 0
    ) -> Step:
        step = self._steps.get((number, what))
        if step is None:
            node, now = clone(self.nodes[number]), self.clocks[number]
            if due is not None:
                now = node.deadlines.make_due(due, self.armed[number], now)
            step = self._steps[number, what] = self._outcome(node, act, now, take)
        return step

    def _outcome(self, node: Node, act: Act, now: int, take: int) -> Step:
        accepted, wrong = 0, []
        events: list[Any] = []
        try:
            accepted = act(node, now) or 0
            events = node.take_events(take, now)
            node.check_invariants()
        except AssertionError as error:
            wrong.append(f"an invariant is broken: {extract_tb(error.__traceback__)[-1].line}")
        datagrams = sorted(
            {
                self._datagram_number(node, dest, content)
                for address, content in node.take_datagrams()
                for dest in self._dests(node, address)
            }
        )
        told = [f"sends {self.datagrams[number].told}" for number in datagrams]
        told += map(in_words, events)
        return Step(
            after=self._number(node, now),
            datagrams=tuple(datagrams),
            events=tuple(events),
            accepted=accepted,
            wrong=(*wrong, *self.wrong_with(node)),
            told=f"  [{', '.join(told)}]" if told else "",
        )

    def receive(self, number: int, datagram: int) -> Step:
        content = self.datagrams[datagram].content
        return self.step(
            number, ("receive", datagram), lambda node, now: node.receive_datagrams([content], now)
        )

    def fire(self, number: int, owner: Hashable, timer: Enum) -> Step:
        due = (owner, timer)
        return self.step(number, due, lambda node, now: node.handle_timeout(now), due=due)

    def send(self, number: int, payload: bytes) -> Step:
        where = self.where(number)
        return self.step(number, payload, lambda node, now: node.send([payload], now, **where))

    def take(self, number: int) -> Step:
        return self.step(number, "take", lambda node, now: None, take=self.take_limit)

    def install_view(self, number: int, view: View) -> Step:
        return self.step(number, view, lambda node, now: node.install_view(view, now))

    def is_idle(self, number: int, datagram: int) -> bool:
        """Whether this datagram would do nothing to this node."""
        step = self.receive(number, datagram)
        return step.after == number and not step.told and not step.wrong

    def _dests(self, node: Node, address: Address | None) -> list[int]:
        if address is not None:
            return [self._places[address]]
        return [self.place_of(member) for member in node.view or () if member != node.me]

    def _number(self, node: Node, now: int) -> int:
        number = self._node_numbers.setdefault((node.me, canonical(node)), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
            self.clocks.append(now)
            armed = node.deadlines.armed()
            self.armed.append([each for each in armed if _layer(each[0]) in self.timers])
        return number

    def _datagram_number(self, node: Node, dest: int, content: bytes) -> int:
        key = (node.me.address, dest, content)
        number = self._datagram_numbers.setdefault(key, len(self.datagrams))
        if number == len(self.datagrams):
            source = self.place_of(node.me)
            _, frames = node.codec.unpack(content, overhear=True)
            frames = [frame for frame in frames if not isinstance(frame, InView)]
            told = f"{NAMES[source]}→{NAMES[dest]} {' + '.join(map(in_words, frames))}"
            kinds = set(map(type, frames))
            self.datagrams.append(Datagram(source, dest, content, node.me, frames, kinds, told))
        return number


def _layer(owner: Hashable) -> Hashable:
    return owner[0] if isinstance(owner, tuple) else owner
