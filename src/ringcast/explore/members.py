"""Real nodes as automata, for an exploration: what each input does to one member, found out once.

Nodes and datagrams are numbered; nodes that behave alike share a number. Clocks do not count here:
any armed timer of a node can be made the next one to fire.
"""

from __future__ import annotations

from traceback import extract_tb
from typing import TYPE_CHECKING, NamedTuple, cast

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.core.state import canonical, clone
from ringcast.events import Delivered, Writable
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.node import Node
from ringcast.window.windows import ReceiveWindow, SendWindow
from ringcast.wire.frames import Ack, Data, Highest, Nack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from enum import Enum

    from ringcast.core.timers import Timers
    from ringcast.protocols.multicast import ReliableMulticast
    from ringcast.wire.frames import Frame

DATAGRAM_BYTES = 2048
NO_WINDOW = -1
"""As an offset: that sender has no window here yet."""


class Datagram(NamedTuple):
    source: int
    dest: int
    content: bytes


class Step(NamedTuple):
    """What one input does to one member."""

    after: int
    datagrams: tuple[int, ...]
    delivered: tuple[tuple[int, int, tuple[bytes, ...]], ...]
    """(sender, first seqno, payloads) of each run that the application got."""
    accepted: int
    is_writable: bool
    wrong: tuple[str, ...]
    told: str
    """What came out, in words."""


class Facts(NamedTuple):
    """What the exploration asks about a node, read once."""

    armed: list[tuple[int, Enum]]
    """(box, timer) of each armed timer."""
    has_ready: bool
    view: tuple[int, ...]
    """By place."""
    low: int
    """Of its own messages."""
    high: int


class Members:
    """The nodes as automata that are discovered step by step.

    Nodes that behave alike share a number; what an input does to one is found out once.
    """

    def __init__(
        self,
        size: int,
        *,
        founders: int,
        senders: tuple[int, ...],
        capacity: int,
        multicast: type[ReliableMulticast],
    ) -> None:
        self.members = [
            Member(Address("explore", 1 + place), 1, "ABCDEFGH"[place]) for place in range(size)
        ]
        self.facts: list[Facts] = []
        self.datagrams: list[Datagram] = []
        self.told: list[str] = []  # each datagram in words
        self.is_ack: list[bool] = []  # each datagram: nothing but acks
        self._founders = range(founders)
        self._senders = senders
        self._capacity = capacity
        self._multicast = multicast
        self._places = {member.address: place for place, member in enumerate(self.members)}
        self._nodes: list[tuple[Node, int]] = []  # with each one's clock
        self._node_numbers: dict[object, int] = {}
        self._datagram_numbers: dict[Datagram, int] = {}
        self._steps: dict[object, Step] = {}
        self._config = GroupConfig(
            group="explore",
            multicast=MulticastConfig(
                capacity=capacity,
                datagram_bytes=DATAGRAM_BYTES,
                window_bytes=4 * DATAGRAM_BYTES,
            ),
        )

    def fresh(self, place: int) -> int:
        """A founder in the first view, or somebody who is in none."""
        node = Node(self.members[place], self._config, multicast=self._multicast)
        # So small that each sender's share is the minimum, however many were heard of late.
        node.multicast.receive_buffer = DATAGRAM_BYTES
        if place in self._founders:
            node.install_view(self.view(1, self._founders), 0)
            offsets = [0 if s in self._founders else NO_WINDOW for s in self._senders]
            node.install_digest(self._digest(offsets), 0)
            node.take_events(0, 0)
        return self._node_number(place, node, 0)

    def view(self, counter: int, places: Iterable[int]) -> View:
        members = tuple(self.members[place] for place in places)
        return View(ViewId(members[0], counter), members)

    def is_stale(self, datagram: int, nodes: tuple[int, ...]) -> bool:
        """An ack from a member that the receiver knows, and knows to be as far already."""
        if not self.is_ack[datagram]:
            return False
        source, dest, _ = self.datagrams[datagram]
        number = nodes[dest]
        step = self.receive(number, datagram)
        return step.after == number and not step.told and source in self.facts[number].view

    def offsets(self, number: int) -> tuple[int, ...]:
        """The digest of this member: how far it has delivered each sender."""
        entries = self._nodes[number][0].digest().entries
        return tuple(entries.get(self._origin(s), 0) for s in self._senders)

    # Inputs: what would become of the node. The node itself stays as it is.

    def receive(self, number: int, datagram: int) -> Step:
        content = self.datagrams[datagram].content
        return self._step(
            number, ("receive", datagram), lambda node, now: node.receive_datagrams([content], now)
        )

    def send(self, number: int, payload: bytes) -> Step:
        return self._step(number, ("send", payload), lambda node, now: node.send([payload], now))

    def take(self, number: int) -> Step:
        """One message at a time; with several senders all that is ready, as turns do not count."""
        senders = len(self._senders)
        limit = 1 if senders == 1 else senders * self._capacity
        return self._step(number, "take", lambda node, now: None, take=limit)

    def fire(self, number: int, box: int, timer: Enum) -> Step:
        return self._step(
            number, ("fire", box, timer), lambda node, now: node.handle_timeout(now), (box, timer)
        )

    def install_view(self, number: int, view: View) -> Step:
        return self._step(
            number, ("view", view.members), lambda node, now: node.install_view(view, now)
        )

    def install_digest(self, number: int, offsets: tuple[int, ...]) -> Step:
        digest = self._digest(offsets)
        return self._step(
            number, ("digest", offsets), lambda node, now: node.install_digest(digest, now)
        )

    def enter(self, number: int, view: View, offsets: tuple[int, ...]) -> Step:
        """The answer to a joiner: view and digest in one."""

        def install_both(node: Node, now: int) -> None:
            node.install_view(view, now)
            node.install_digest(self._digest(offsets), now)

        return self._step(number, ("enter", view.members, offsets), install_both)

    def _step(
        self,
        number: int,
        what: object,
        act: Callable[[Node, int], int | None],
        due: tuple[int, Enum] | None = None,
        *,
        take: int = 0,
    ) -> Step:
        step = self._steps.get((number, what))
        if step is None:
            before, now = self._nodes[number]
            node = clone(before)
            if due is not None:
                now = _make_due(_timers(node), *due, now)
            accepted = act(node, now) or 0
            step = self._steps[number, what] = self._outcome(node, now, accepted, take)
        return step

    def _outcome(self, node: Node, now: int, accepted: int, take: int) -> Step:
        place = self._places[node.me.address]
        events = node.take_events(take, now)
        datagrams = sorted(
            {
                self._datagram_number(Datagram(place, dest, content))
                for address, content in node.take_datagrams()
                for dest in self._dests(node, address)
            }
        )
        told = [f"sends {self.told[number]}" for number in datagrams]
        told += [type(event).__name__ for event in events if not isinstance(event, Delivered)]
        delivered = tuple(
            (self._places[event.sender.address], event.run.first, tuple(event.run.payloads))
            for event in events
            if isinstance(event, Delivered)
        )
        told += [f"gets {self.members[s]}#{first}" for s, first, _ in delivered]
        return Step(
            after=self._node_number(place, node, now),
            datagrams=tuple(datagrams),
            delivered=delivered,
            accepted=accepted,
            is_writable=any(isinstance(event, Writable) for event in events),
            wrong=tuple(_wrong_with(node)),
            told=f"  [{', '.join(told)}]" if told else "",
        )

    def _dests(self, node: Node, address: Address | None) -> list[int]:
        if address is not None:
            return [self._places[address]]
        assert node.view is not None
        return [self._places[member.address] for member in node.view if member != node.me]

    def _node_number(self, place: int, node: Node, now: int) -> int:
        number = self._node_numbers.setdefault((place, canonical(node)), len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append((node, now))
            self.facts.append(self._read(node))
        return number

    def _read(self, node: Node) -> Facts:
        windows = node.multicast.windows()
        own = windows.get(Origin(node.me, Stream.FIFO))
        return Facts(
            armed=[
                (box, timer)
                for box, table in enumerate(_timers(node))
                for timer in sorted(table.canonical(), key=str)
            ],
            has_ready=any(_is_ready(window) for window in windows.values()),
            view=tuple(self._places[member.address] for member in node.view or ()),
            low=own.low if own else 0,
            high=own.high if own else 0,
        )

    def _datagram_number(self, datagram: Datagram) -> int:
        number = self._datagram_numbers.setdefault(datagram, len(self.datagrams))
        if number == len(self.datagrams):
            self.datagrams.append(datagram)
            # Any codec of the group can tell what it says.
            _, frames = self._nodes[0][0].codec.unpack(datagram.content, overhear=True)
            self.is_ack.append(all(isinstance(frame, Ack) for frame in frames))
            source, dest = self.members[datagram.source], self.members[datagram.dest]
            self.told.append(f"{source}→{dest} {' + '.join(map(_in_words, frames))}")
        return number

    def _origin(self, place: int) -> Origin:
        return Origin(self.members[place], Stream.FIFO)

    def _digest(self, offsets: Iterable[int]) -> Digest:
        pairs = zip(self._senders, offsets, strict=True)
        return Digest({self._origin(s): offset for s, offset in pairs if offset != NO_WINDOW})


def _in_words(frame: Frame) -> str:
    match frame:
        case Data():
            return f"Data {frame.first}..{frame.last}"
        case Ack():
            return f"Ack held={frame.held} delivered={frame.delivered}"
        case Nack():
            return f"Nack {', '.join(f'{r.start}..{r.stop - 1}' for r in frame.missing)}"
        case Highest():
            return f"Highest {frame.seqno}"
        case _:
            return str(frame)


def _is_ready(window: SendWindow | ReceiveWindow) -> bool:
    return window.delivered < (window.high if isinstance(window, SendWindow) else window.held)


def _wrong_with(node: Node) -> Iterator[str]:
    try:
        node.check_invariants()
    except AssertionError as error:
        yield f"an invariant is broken: {extract_tb(error.__traceback__)[-1].line}"
    if node.rejected:
        yield f"a datagram of a member was rejected: {sorted(node.rejected)}"
    windows = node.multicast.windows().values()
    if any(w.dropped_high for w in windows if isinstance(w, ReceiveWindow)):
        yield "a receiver dropped what the sender was allowed to send (N4)"


def _timers(node: Node) -> list[Timers[Enum]]:
    # Deadlines are nobody else's business; an exploration must be able to do without them.
    return [cast("Timers[Enum]", box._timers) for box in node.multicast._boxes()]


def _make_due(tables: list[Timers[Enum]], box: int, timer: Enum, now: int) -> int:
    """Let time pass until this timer is due, and put off the others beyond that."""
    others = [
        (table, other)
        for place, table in enumerate(tables)
        for other in table.canonical()
        if (place, other) != (box, timer)
    ]
    for table, other in others:
        table.disarm(other)
    deadline = tables[box].next_timeout()
    assert deadline is not None
    now = max(now, deadline)
    for table, other in others:
        table.arm(other, now + 1)
    return now
