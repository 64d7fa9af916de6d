"""Whole members in virtual time, and the network between them: groups that form by themselves.

A `Town` has processes that find each other, join, leave, crash and come back, each a real `Node`
with membership and failure detector, speaking real datagrams. Delays come from a seed; faults are
set by hand: cut links, a rule that says which datagrams are lost, processes that are paused,
applications that take nothing. One step is one arrival, one due timer or one restart.

What must always hold is looked at after every step: the nodes' invariants, the order of views (G4),
and order, once and no gap in what is delivered (N1, N2).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig
from ringcast.events import Closed, Delivered, FragmentsDelivered, ViewInstalled
from ringcast.model import Address, Member, Origin, Stream
from ringcast.node import build_node
from ringcast.protocols.multicast import ReliableMulticast

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.events import Event
    from ringcast.model import View, ViewId
    from ringcast.node import Node
    from ringcast.protocols.membership import Membership
    from ringcast.wire.frames import Frame

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
NAMES = "ABCDEF"


class Sent(NamedTuple):
    """A datagram that left a process, whether or not it arrives."""

    source: str
    dest: str
    frames: list[Frame]

    def has(self, kind: type[Frame]) -> bool:
        return any(isinstance(frame, kind) for frame in self.frames)


class Town:
    """Processes by name: one letter is one address. Time stands in `now`."""

    def __init__(
        self,
        seed: int = 1,
        *,
        membership: MembershipConfig | None = None,
        multicast: type[ReliableMulticast] = ReliableMulticast,
        hints: bool = False,
        streams: tuple[Stream, ...] = (Stream.FIFO,),
        **config: Any,
    ) -> None:
        defaults: dict[str, Any] = {"datagram_bytes": 1000, "window_bytes": 1 << 20}
        self.now = SECOND
        self.nodes: dict[str, Node] = {}
        """Who runs now."""
        self.events: dict[Member, list[Event]] = defaultdict(list)
        """What the application of every process there ever was has taken."""
        self.sent: list[Sent] = []
        self.lose: Callable[[Sent], bool] = lambda sent: False
        self.twice: Callable[[Sent], bool] = lambda sent: False
        """Which datagrams arrive, and some time later once more."""
        self.cut: set[tuple[str, str]] = set()
        """(source, dest) of links on which nothing arrives."""
        self.silenced: set[str] = set()
        """Of whom nothing arrives any more, not even what is under way."""
        self.paused: set[str] = set()
        """Who does nothing. What arrives meanwhile waits in its socket buffer."""
        self.stopped: set[str] = set()
        """Whose application takes no messages."""
        self.rejoins = True
        """Whoever is out without having asked for it comes back as another incarnation."""
        self._rng = Random(seed)
        self._hints = hints
        self._multicast = multicast
        self._streams = streams
        self._config = GroupConfig(
            group="town",
            membership=membership or MembershipConfig(),
            multicast=MulticastConfig(**(defaults | config)),
        )
        self._incarnations = count(1)
        self._numbers = count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._buffers: dict[str, list[bytes]] = defaultdict(list)
        self._members_of: dict[ViewId, tuple[Member, ...]] = {}
        self._next_seqno: dict[tuple[Member, Origin], int] = {}
        self._away: set[tuple[Member, Origin]] = set()  # whose next window may open further on

    # Processes

    def start(
        self, names: str, *, must_exist: bool = False, candidates: str | None = NAMES
    ) -> None:
        """A new process for each name. Same name, same address; but another incarnation."""
        for name in names:
            me = Member(address_of(name), next(self._incarnations), name)
            config = replace(self._config, name=name)
            node = self.nodes[name] = self._build(name, me, config, must_exist=must_exist)
            self._buffers[name].clear()
            node.start(self.now)
            if candidates is not None:
                node.add_candidates(map(address_of, candidates), self.now)
            self._turn(name)

    def _build(self, name: str, me: Member, config: GroupConfig, *, must_exist: bool) -> Node:
        return build_node(
            *(me, config), must_exist=must_exist, multicast=self._multicast, streams=self._streams
        )

    def form(self, names: str) -> None:
        """A group of these, in this order of joining."""
        for name in names:
            self.start(name)
            self.run_until(partial(self._is_in, name, names[0]), within=5)
        self.run(0.5)
        assert self.group(names[0]) == names
        assert self.agree(names)

    def _is_in(self, name: str, founder: str) -> bool:
        return name in self.group(founder)

    def crash(self, names: str) -> None:
        for name in names:
            del self.nodes[name]

    def leave(self, name: str, by: int | None = None) -> None:
        self.nodes[name].leave(self.now, by)
        self._turn(name)

    def send(self, name: str, *payloads: bytes, stream: Stream = Stream.FIFO) -> int:
        accepted = self.nodes[name].send(payloads, self.now, stream=stream)
        self._turn(name)
        return accepted

    def pause(self, name: str, seconds: float) -> None:
        """Nothing for so long; then all that has arrived meanwhile, and the timers that are due."""
        self.paused.add(name)
        self.run(seconds)
        self.paused.discard(name)
        node, waiting = self.nodes[name], self._buffers.pop(name, [])
        node.handle_timeout(self.now)  # a loop looks at its timers before it reads
        node.receive_datagrams(waiting, self.now)
        self._turn(name)

    def part(self, one: str, other: str) -> None:
        """Cut all links between these and those, both ways."""
        self.cut |= {pair for a in one for b in other for pair in ((a, b), (b, a))}

    def heal(self) -> None:
        self.cut.clear()
        self.lose = lambda sent: False

    # Time

    def step(self) -> None:
        """The next thing that happens, whatever it is."""
        when, _, act = heappop(self._agenda)
        self.now = max(self.now, when)  # late, if everybody has slept
        act()

    def run(self, seconds: float) -> None:
        stop = self.now + round(seconds * SECOND)
        while self._agenda and self._agenda[0][0] <= stop:
            self.step()
        self.now = stop

    def run_until(self, condition: Callable[[], bool], within: float) -> float:
        """Until it is so; how many seconds that took."""
        begun, stop = self.now, self.now + round(within * SECOND)
        while not condition():
            assert self._agenda, "nothing will ever happen again"
            assert self._agenda[0][0] <= stop, f"not within {within} s: {self.explain()}"
            self.step()
        return (self.now - begun) / SECOND

    def run_until_agreed(self, names: str, within: float = 20) -> float:
        return self.run_until(lambda: self.agree(names), within)

    def _at(self, when: int, act: Callable[[], None]) -> None:
        heappush(self._agenda, (when, next(self._numbers), act))

    # What came out

    def group(self, name: str) -> str:
        """The members of its view by name, in order; empty: it is in none."""
        node = self.nodes[name]
        assert node.membership is not None
        is_member = node.view is not None and node.membership.is_member
        return "".join(member.name for member in node.view or ()) if is_member else ""

    def agree(self, names: str | None = None) -> bool:
        """Whether these processes, by default all, are in one view of just them."""
        nodes = [self.nodes[name] for name in names or self.nodes]
        views = {node.view for node in nodes}
        if len(views) > 1 or not all(n.membership and n.membership.is_member for n in nodes):
            return False
        (view,) = views
        return view is not None and set(view) == {node.me for node in nodes}

    def membership(self, name: str) -> Membership:
        membership = self.nodes[name].membership
        assert membership is not None
        return membership

    def views(self, member: Member) -> list[View]:
        return [event.view for event in self.events[member] if isinstance(event, ViewInstalled)]

    def closed(self, member: Member) -> list[Closed]:
        return [event for event in self.events[member] if isinstance(event, Closed)]

    def delivered(self, member: Member, sender: Member) -> list[bytes]:
        return [
            payload
            for event in self.events[member]
            if isinstance(event, Delivered) and event.sender == sender
            for payload in event.run.payloads
        ]

    def is_drained(self, name: str) -> bool:
        """Everything that it has sent was taken by everybody, and it knows."""
        node = self.nodes[name]
        window = node.multicast.windows()[Origin(node.me, Stream.FIFO)]
        return window.low == window.high

    def count(self, kind: type[Frame]) -> int:
        """Datagrams with such a frame, of all that were sent."""
        return sum(sent.has(kind) for sent in self.sent)

    def explain(self) -> dict[str, list[str]]:
        return {name: node.explain(self.now) for name, node in self.nodes.items()}

    # One process and the network

    def _turn(self, name: str) -> None:
        """What a driver does after each input."""
        node = self.nodes[name]
        node.check_invariants()
        events = node.take_events(0 if name in self.stopped else 1_000, self.now)
        self.events[node.me] += events
        for event in events:
            self._check(node, event)
        for dest, datagram in node.take_datagrams():
            _, frames = node.codec.unpack(datagram, overhear=True)
            others = [m.address for m in node.view or () if m != node.me]
            for address in others if dest is None else [dest]:
                self._dispatch(Sent(name, name_of(address), frames), datagram)
        if any(isinstance(event, Closed) for event in events):
            self._end(name, node)
        elif (deadline := node.next_timeout()) is not None:
            self._at(max(deadline, self.now), lambda: self._timeout(name, node, deadline))

    def _dispatch(self, sent: Sent, datagram: bytes) -> None:
        self.sent.append(sent)
        if (sent.source, sent.dest) in self.cut or self.lose(sent):
            return
        delay = self._rng.randint(MILLISECOND // 10, 2 * MILLISECOND)
        self._at(self.now + delay, lambda: self._arrive(sent, datagram))
        if self.twice(sent):
            again = self.now + delay + self._rng.randint(0, 50 * MILLISECOND)
            self._at(again, lambda: self._arrive(sent, datagram))

    def _arrive(self, sent: Sent, datagram: bytes) -> None:
        node = self.nodes.get(sent.dest)
        if sent.source in self.silenced:
            return
        if sent.dest in self.paused:
            self._buffers[sent.dest].append(datagram)
        elif node is not None:
            node.receive_datagrams([datagram], self.now)
            assert node.rejected.keys() <= {"for another incarnation"}
            self._turn(sent.dest)
        elif self._hints and sent.source in self.nodes:
            self.nodes[sent.source].transport_hint(address_of(sent.dest), self.now)
            self._turn(sent.source)

    def _timeout(self, name: str, node: Node, deadline: int) -> None:
        is_current = self.nodes.get(name) is node and node.next_timeout() == deadline
        if is_current and name not in self.paused:
            node.handle_timeout(self.now)
            self._turn(name)

    def _end(self, name: str, node: Node) -> None:
        """Its socket closes; or the next incarnation goes on with it."""
        del self.nodes[name]
        assert node.membership is not None
        if self.rejoins and node.membership.may_rejoin:
            self.start(name)

    # What must always hold

    def _check(self, node: Node, event: Event) -> None:
        me = node.me
        if isinstance(event, ViewInstalled):
            view = event.view
            assert me in view
            assert self._members_of.setdefault(view.id, view.members) == view.members
            counters = [installed.counter for installed in self.views(me)]
            assert counters == sorted(set(counters))
            gone = (key for key in self._next_seqno if key[0] == me and key[1].sender not in view)
            self._away.update(gone)
        elif isinstance(event, Delivered):
            assert node.view is not None
            assert event.sender in node.view or event.run.stream is Stream.UNIFORM
            key = (me, Origin(event.sender, event.run.stream))
            self._check_order(key, event.run.first, event.run.last)
        elif isinstance(event, FragmentsDelivered):
            key = (me, Origin(event.sender, event.stream))
            self._check_order(key, event.first, event.last)

    def _check_order(self, key: tuple[Member, Origin], first: int, last: int) -> None:
        expected = self._next_seqno.get(key, first)
        assert first == expected or (key in self._away and first > expected)
        self._away.discard(key)
        self._next_seqno[key] = last + 1


def lose_once(kind: type[Frame], *, after: int = 0) -> Callable[[Sent], bool]:
    """Lose one datagram with such a frame: the first, or the one after so many."""
    seen = count()

    def is_lost(sent: Sent) -> bool:
        return sent.has(kind) and next(seen) == after

    return is_lost


def address_of(name: str) -> Address:
    return Address("10.0.0.1", 7800 + NAMES.index(name))


def name_of(address: Address) -> str:
    return NAMES[address.port - 7800]
