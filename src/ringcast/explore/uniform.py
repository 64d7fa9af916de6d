"""Uniform delivery under every order of events and every crash.

Only `ReliableMulticast` with its uniform stream is driven: whole nodes would multiply the states.
Frames and the layer's messages take the same channel. Channels are ideal: in order, nothing lost,
but for what a member that crashes had sent last: any suffix of any of its channels. Views are one
sequence, and each member installs the next one at any later time. Timers fire where nothing is
under way. Applications take what is ready at once.

What must hold always: once, in order, nothing invented (U2, U4). From every state it stays possible
to come to rest, without another fault; and at rest all who are left have delivered the same of
everybody, at least what anybody has who is gone (U1, U5, U6), and hold nothing more (U7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from ringcast.config import MulticastConfig
from ringcast.core.effects import DigestTaken, DigestWanted, Effects, NewerView
from ringcast.explore.automata import NAMES
from ringcast.explore.system import GONE, Chance, Fault, NodeSystem, replaced, without
from ringcast.model import Digest, Origin, Stream
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.window.windows import ReceiveWindow
from ringcast.wire.frames import EstateRun, EstateWanted, Frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ringcast.core.effects import Signal
    from ringcast.events import Event
    from ringcast.explore.automata import Step
    from ringcast.explore.system import State
    from ringcast.model import Address, View
    from ringcast.wire.frames import SystemMessage

Now: TypeAlias = "State[Change]"
Move: TypeAlias = "tuple[str, Now]"
Moves: TypeAlias = "Iterator[Move]"

LONG = 1 << 50
"""Longer than any two of a member's timers are apart."""
THROWN_AWAY = "what a survivor received of a departed sender is thrown away (U6)"


class Alone:
    """A layer in place of a node. What it signals to other layers comes out like an event."""

    has_ready = False
    rejected: ClassVar[dict[str, int]] = {}

    def __init__(self, layer: ReliableMulticast) -> None:
        self.layer = layer
        self.me = layer.me
        self.group = layer.group
        self.deadlines = layer.deadlines
        self.out = Effects()

    @property
    def view(self) -> Sequence[Any]:
        return self.group.view.members if self.group.view else ()

    def install(self, view: View, opened: dict[Origin, int]) -> None:
        self.group.change(view, [self.layer], 0, self.out)
        if opened and not self.layer._is_closed:
            self.layer.install_digest(Digest(opened), 0, self.out)

    def check_invariants(self) -> None:
        self.layer.check_invariants()

    def fire(self) -> None:
        """Whatever timers are armed: all are due."""
        self.layer.handle_timeout((self.deadlines.next() or 0) + LONG, self.out)

    def take_events(self, limit: int, now: int) -> list[Event | Signal]:
        events = self.layer.take_ready(limit, now, self.out)
        return [*events, *self.out.signals]

    def take_datagrams(self) -> list[tuple[Address | None, Frame | SystemMessage]]:
        said = [*self.out.frames, *self.out.messages]
        self.out = Effects()
        return [(getattr(dest, "address", None), word) for dest, word in said]


class Change(NamedTuple):
    """How far changes of the group have come."""

    log: tuple[tuple[int, ...], ...]
    """Every view there was, by places."""
    installed: tuple[int, ...]
    """By member: which of them it has; -1: none yet."""
    heritage: tuple[tuple[int, ...], ...]
    """By member, by sender: what it received when it installed the view without that one."""
    is_asked: bool = False
    """The newest coordinator is to take a digest for the joiner."""
    welcomes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """On their way to the joiner: for which view, and where its windows open."""
    heard: int = 0
    """The newest view that the joiner has heard of: an older welcome counts no more."""


class UniformSystem(NodeSystem[ReliableMulticast, Change]):
    protocol = ReliableMulticast
    takes_at_once = True
    keeps_order = True
    is_chance = True
    ids = ("U4", "U2")

    def initial(self) -> Now:
        scenario = self.scenario
        nothing = ((0,) * len(scenario.senders),) * scenario.size
        founders = tuple(range(scenario.founders))
        installed = (0,) * scenario.founders + (-1,) * scenario.joiners
        nodes = map(self._fresh, range(scenario.size))
        state = self.calm(self.at_rest(nodes, Change((founders,), installed, nothing), nothing))
        for happened in scenario.opening:
            state = next(s for label, s in self.actions(state) if label.startswith(happened))
        return state

    def _fresh(self, place: int) -> int:
        config = MulticastConfig(
            capacity=self.scenario.capacity, datagram_bytes=512, window_bytes=4096
        )
        layer = self.protocol(self.member(place), config, 200, streams=(Stream.UNIFORM,))
        layer.receive_buffer = 1 << 20  # no share of it is ever too small
        node = Alone(layer)
        if place < self.scenario.founders:
            founders = range(self.scenario.founders)
            node.install(self.view(1, founders), dict.fromkeys(map(self._origin, founders), 0))
            node.out = Effects()
        return self.number(node)

    def read(self, node: Alone) -> ReliableMulticast:
        return node.layer

    def _origin(self, place: int) -> Origin:
        return Origin(self.member(place), Stream.UNIFORM)

    def frames_of(self, node: Alone, content: Any) -> list[Any]:
        return [content]

    # Channels

    def in_flight(
        self, flight: tuple[int, ...], sent: tuple[int, ...], nodes: tuple[int, ...]
    ) -> tuple[int, ...]:
        """By way, in order of sending; what is said twice in a row is said once."""
        for datagram in sent:
            way = self._way(datagram)
            if nodes[way[1]] != GONE and [n for n in flight if self._way(n) == way][-1:] != [
                datagram
            ]:
                flight = tuple(sorted((*flight, datagram), key=self._way))
        return flight

    def _way(self, datagram: int) -> tuple[int, int]:
        return self.datagrams[datagram][:2]

    def deliverable(self, state: Now) -> Iterable[tuple[int, int]]:
        return [each for each in self._firsts(state) if self._is_heard(state, each[1])]

    def _firsts(self, state: Now) -> list[tuple[int, int]]:
        ways = [self._way(datagram) for datagram in state.flight]
        return [(at, n) for at, n in enumerate(state.flight) if not at or ways[at] != ways[at - 1]]

    def _is_heard(self, state: Now, datagram: int) -> bool:
        return state.nodes[self.datagrams[datagram].dest] != GONE

    def receive(self, number: int, datagram: int) -> Step:
        _, _, said, source, *_ = self.datagrams[datagram]

        def hear(node: Alone, now: int) -> None:
            if isinstance(said, EstateWanted | EstateRun):
                node.layer.receive_message(source, said, 0, node.out)
            else:
                node.layer.receive(source, [said], 0, node.out)

        return self.step(number, ("receive", datagram), hear)

    def send(self, number: int, payload: bytes) -> Step:
        return self.step(
            number,
            payload,
            lambda node, now: node.layer.send([payload], Stream.UNIFORM, 0, node.out),
        )

    # What may happen

    def timeouts(self, state: Now) -> Moves:
        if any(self._is_heard(state, datagram) for datagram in state.flight):
            return
        for place, node in self.alive(state):
            if self.facts[node].deadlines.next() is not None and self._is_open(state, place):
                step = self.step(node, "timers", lambda node, now: node.fire())
                yield self.acts(state, place, "timers fire", step)

    def _is_open(self, state: Now, place: int) -> bool:
        return state.more.installed[place] >= 0

    def messages(self, state: Now, place: int) -> int:
        is_leaving = place == self.scenario.leaver and self._has_left(state)
        return 0 if is_leaving else self.scenario.messages

    def more_moves(self, state: Now) -> Moves:
        yield from self._views(state)
        if self.scenario.joiners:
            yield from self._admissions(state)
        leaver = self.scenario.leaver
        is_leaving = self._has_left(state) and state.nodes[leaver] != GONE
        if is_leaving and self.facts[state.nodes[leaver]].is_flushed:
            yield f"{NAMES[leaver]} is gone", self.end(state, leaver)
        for _, datagram in self._firsts(state):
            source, dest = self._way(datagram)
            if state.nodes[source] == GONE and state.nodes[dest] != GONE:
                rest = tuple(n for n in state.flight if self._way(n) != (source, dest))
                told = f"LOST: all that {NAMES[source]} had sent to {NAMES[dest]}"
                yield Chance(told), state._replace(flight=rest)

    def _has_left(self, state: Now) -> bool:
        pairs = zip(self.scenario.faults, state.left, strict=True)
        return (Fault.LEAVE, 0) in pairs

    def _views(self, state: Now) -> Moves:
        for place, _ in self.alive(state):
            if 0 < state.more.installed[place] + 1 < len(state.more.log):
                yield self._next_view(state, place, state.more.installed[place] + 1)

    def _next_view(self, state: Now, place: int, at: int) -> Move:
        log = state.more.log
        view = self.view(at + 1, log[at])
        opened = {self._origin(who): 0 for who in log[at] if who not in log[at - 1]}
        step = self.step(
            state.nodes[place], ("view", view), lambda node, now: node.install(view, opened)
        )
        heritage = replaced(state.more.heritage, place, self._heritage(state, place, log[at]))
        installed = replaced(state.more.installed, place, at)
        more = state.more._replace(installed=installed, heritage=heritage)
        return self.acts(state._replace(more=more), place, f"installs {view}", step)

    def _heritage(self, state: Now, place: int, view: tuple[int, ...]) -> tuple[int, ...]:
        windows = self.facts[state.nodes[place]].windows()
        found = list(state.more.heritage[place])
        for i, sender in enumerate(self.scenario.senders):
            window = windows.get(self._origin(sender))
            if isinstance(window, ReceiveWindow) and sender not in view:
                found[i] = window.received
        return tuple(found)

    def _admissions(self, state: Now) -> Moves:
        """The joiner enters; or the coordinator is to take a digest for it."""
        joiner, log = self.scenario.founders, state.more.log
        if self._is_open(state, joiner) or state.nodes[joiner] == GONE:
            return
        for at, offsets in state.more.welcomes:
            if at >= state.more.heard:
                yield self._enter(state, joiner, at, offsets)
        if joiner not in log[-1] or state.more.is_asked:
            return
        coordinator = log[-1][0]
        if coordinator == joiner or state.nodes[coordinator] == GONE:
            return
        olds = [coordinator] if self.scenario.digest_first else [p for p in log[-1] if p != joiner]
        newest = len(log) - 1
        if all(state.more.installed[p] == newest for p in olds if state.nodes[p] != GONE):
            wanted = DigestWanted((self.member(joiner),))
            step = self.step(
                state.nodes[coordinator],
                "digest",
                lambda node, now: node.layer.handle_signal(wanted, 0, node.out),
            )
            asked = state._replace(more=state.more._replace(is_asked=True))
            yield self.acts(asked, coordinator, "is to take the digest", step)

    def _enter(self, state: Now, joiner: int, at: int, offsets: tuple[int, ...]) -> Move:
        places = state.more.log[at]
        view = self.view(at + 1, places)
        senders = self.scenario.senders
        opened = dict(zip(senders, offsets, strict=True))
        origins = {self._origin(place): opened.get(place, 0) for place in places}
        step = self.step(
            state.nodes[joiner],
            ("enter", view, offsets),
            lambda node, now: node.install(view, origins),
        )
        # What the joiner counts as its own: of senders that are no more, all that there was.
        others = state.delivered[places[0]]
        counts = [opened[s] if s in places else others[i] for i, s in enumerate(senders)]
        after = state._replace(
            delivered=replaced(state.delivered, joiner, tuple(counts)),
            more=state.more._replace(installed=replaced(state.more.installed, joiner, at)),
        )
        return self.acts(after, joiner, f"enters {view} at {list(offsets)}", step)

    def strike(self, fault: Fault, state: Now) -> Moves:
        joiner, leaver, log = self.scenario.founders, self.scenario.leaver, state.more.log
        match fault:
            case Fault.LOSS:
                for at, datagram in self._firsts(state):
                    source, dest = self._way(datagram)
                    is_late = state.nodes[source] == GONE and state.nodes[dest] != GONE
                    if not is_late and isinstance(self.datagrams[datagram].content, Frame):
                        lost = state._replace(flight=without(state.flight, at))
                        yield f"LOST: {self.datagrams[datagram].told}", lost
            case Fault.JOIN if state.nodes[joiner] != GONE and log[-1]:
                more = state.more._replace(log=(*log, (*log[-1], joiner)), is_asked=False)
                yield f"JOIN of {NAMES[joiner]}", state._replace(more=more)
            case Fault.LEAVE if state.nodes[leaver] != GONE:
                yield f"{NAMES[leaver]}: wants to LEAVE", state
            case Fault.CRASH if len(self.alive(state)) > 1:
                yield from super().strike(fault, state)

    def end(self, state: Now, place: int) -> Now:
        """It is gone. What it had sent is still under way."""
        log = state.more.log
        if place in log[-1]:
            log = (*log, tuple(who for who in log[-1] if who != place))
        more = state.more._replace(log=log, is_asked=False)
        return state._replace(nodes=replaced(state.nodes, place, GONE), more=more)

    def on_event(self, state: Now, place: int, node: int, event: object) -> Now:
        more = state.more
        match event:
            case NewerView(view_id):
                heard = max(more.heard, view_id.counter - 1)
                return state._replace(more=more._replace(heard=heard))
            case DigestTaken(digest):
                origins = map(self._origin, self.scenario.senders)
                offsets = tuple(digest.entries.get(origin, 0) for origin in origins)
                welcomes = {*more.welcomes, (more.installed[place], offsets)}
                return state._replace(more=more._replace(welcomes=tuple(sorted(welcomes))))
        return super().on_event(state, place, node, event)

    # What must hold

    def violations(self, state: Now) -> Iterator[str]:
        yield from state.wrong
        if self.goal(state):
            yield from self._wrong_at_rest(state)

    def goal(self, state: Now) -> bool:
        """Nothing is under way, and nobody waits for anything."""
        if any(self._is_heard(state, datagram) for datagram in state.flight):
            return False
        alive = self.alive(state)
        has_left = self._has_left(state)
        if has_left and state.nodes[self.scenario.leaver] != GONE:
            return False
        newest = len(state.more.log) - 1
        for place, node in alive:
            if not self._is_open(state, place):
                if place in state.more.log[-1] and len(alive) > 1:
                    return False
                continue
            layer = self.facts[node]
            if state.more.installed[place] < newest or layer.uniform.estates:
                return False
            window = layer.windows()[self._origin(place)]
            if not layer.is_flushed or window.low < window.high:
                return False
        return all(
            count == self.scenario.messages or state.nodes[place] == GONE or has_left
            for place, count in zip(self.scenario.senders, state.sent, strict=True)
        )

    def _wrong_at_rest(self, state: Now) -> Iterator[str]:
        alive = [place for place, _ in self.alive(state) if self._is_open(state, place)]
        for i, sender in enumerate(self.scenario.senders):
            counts = [state.delivered[place][i] for place in alive]
            if not counts:
                continue
            if min(counts) < max(row[i] for row in state.delivered):
                yield "delivered by somebody, and not by every survivor (U1)"
            if min(counts) < max(state.more.heritage[place][i] for place in alive):
                yield THROWN_AWAY
            if len(set(counts)) > 1:
                yield "survivors have delivered different messages (U6)"
            if sender in alive and min(counts) < state.sent[i]:
                yield "a live sender's message is not delivered by all (U5)"
