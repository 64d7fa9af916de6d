"""Joining under every order of events: views made by real members, all schedules.

A coordinator, a member that sends, and a joiner that asks for admission at any moment. Unlike in
`explore multicast`, nobody hands out views and digests here: they travel in datagrams, and any of
these may be lost. A state is every member's `Node`, the datagrams in flight, and how far each
application has come. What can happen next: a datagram arrives, a timer fires, an application takes
or sends, or one fault strikes: a datagram is lost, or a member crashes. The failure detector is
left out: that a member is dead is found out by each of the others at any later moment, and that
one is behind, too.

What must hold always: the nodes' own invariants; order, once, and content (N1, N2); a sender keeps
what some member of its view has not delivered (N5, N9). And from every state the goal stays
reachable: those who live are in one view, the joiner too; all is sent and delivered by everybody
who must, and the sender's window is empty.

What keeps it finite, and small: as in `explore multicast`, and
    Timers are slower than the network: they fire when nothing is under way, except where haste is
    the fault. Only acks that were put off may come at any time.
    By timers alone nobody is left out, and no joiner turns to somebody else unless one has crashed.
    An answer in flight that tells its receiver nothing new is gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.core.effects import DigestWanted, NonMember, Suspected
from ringcast.errors import Reject
from ringcast.events import Closed, Delivered, Writable
from ringcast.explore.automata import (
    DATAGRAM_BYTES,
    Automata,
    frame_in_words,
    replaced,
    without,
)
from ringcast.explore.explorer import explore
from ringcast.model import Address, Digest, Member, Origin, Stream
from ringcast.node import build_node
from ringcast.protocols.membership import Membership, Timer
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import Timer as ReceiverTimer
from ringcast.wire.frames import (
    Ack,
    Discover,
    DiscoverReply,
    Join,
    Leave,
    Suspect,
    ViewAck,
    ViewIs,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from ringcast.core.effects import Effects, Signal
    from ringcast.explore.automata import Datagram, Step
    from ringcast.explore.explorer import Report
    from ringcast.model import View
    from ringcast.node import Node
    from ringcast.wire.frames import Frame

MAX_STATES = 5_000_000
GONE = -1
"""In place of a node: crashed, or left."""

NO_WINDOW = -1
COORDINATOR, SENDER, JOINER = range(3)
_PLACES = (COORDINATOR, SENDER, JOINER)
_ROLES = ("the coordinator", "the sender", "the joiner")
_ADDRESSES = [Address("explore", 1 + place) for place in _PLACES]

_NEVER = frozenset([Timer.ASK, Timer.OVERDUE])
"""Looking for other groups, of which there are none; leaving out who is only silent."""
_CUMULATIVE: tuple[set[type[Frame]], ...] = ({Ack}, {DiscoverReply})
"""What tells nothing new now never will."""


class Fault(Enum):
    """What may strike, once on each path."""

    LOSS = "a datagram is lost"
    CRASH = "a member crashes"
    HASTE = "a timer fires too early"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    fault: Fault | None
    victims: tuple[int, ...] = ()
    """Who may crash."""
    messages: int = 2
    capacity: int = 1

    @property
    def description(self) -> str:
        count = f"{self.messages} messages" if self.messages > 1 else "1 message"
        if self.fault is None:
            fault = "no fault"
        elif self.victims:
            fault = " or ".join(f"{_ROLES[place]} crashes" for place in self.victims)
        else:
            fault = self.fault.value
        return f"2 members and a joiner, capacity {self.capacity}, {count}: {fault}"


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="quiet", fault=None),
        Scenario(name="loss", fault=Fault.LOSS),
        Scenario(name="haste", fault=Fault.HASTE),
        Scenario(name="joiner", fault=Fault.CRASH, victims=(JOINER,)),
        Scenario(name="sender", fault=Fault.CRASH, victims=(SENDER,)),
        Scenario(name="coordinator", fault=Fault.CRASH, victims=(COORDINATOR,)),
    )
}


def explore_join(
    scenario: Scenario,
    membership: type[Membership] = Membership,
    *,
    max_seconds: float = math.inf,
) -> Report:
    """Every state of the scenario, and whether the goal stays reachable from each."""
    system = JoinSystem(scenario, membership)
    return explore(system, goal=system.goal, max_states=MAX_STATES, max_seconds=max_seconds)


class WithoutFreeze(Membership):
    """BROKEN on purpose: the digest is taken when the view is made, before anybody has it."""

    _early: Digest | None = None

    def _spread(
        self,
        view: View,
        parts: tuple[View, ...],
        old: View,
        joiners: dict[Member, None],
        now: int,
        out: Effects,
    ) -> None:
        self._early = None
        out.signal(DigestWanted(tuple(joiners)))
        super()._spread(view, parts, old, joiners, now, out)

    def _on_digest(self, digest: Digest, taken: Digest, now: int, out: Effects) -> None:
        if self._early is None:
            self._early = digest
        super()._on_digest(self._early, taken, now, out)


class SenderOnly(ReliableMulticast):
    """Windows for those who send: the others would add nothing but acks of nothing."""

    def install_digest(self, digest: Digest, now: int, out: Effects) -> None:
        entries = {
            origin: seqno
            for origin, seqno in digest.entries.items()
            if origin.sender.address == _ADDRESSES[SENDER]
        }
        super().install_digest(Digest(entries), now, out)


class Facts(NamedTuple):
    """What the exploration asks about a node, read once."""

    me: Member
    armed: list[tuple[Hashable, Enum]]
    has_ready: bool
    view: View | None
    """None: it is in none."""
    suspects: frozenset[Member]
    low: int
    high: int
    """Of what it has sent."""
    delivered: int
    """How far its window for the sender's messages is; NO_WINDOW: it has none."""
    may_rejoin: bool
    is_settled: bool
    """It waits for nobody's answer."""


class Joiners(Automata[Facts]):
    """The members as automata."""

    def __init__(self, *, capacity: int, membership: type[Membership]) -> None:
        super().__init__(_ADDRESSES)
        self._membership = membership
        self._started: dict[tuple[int, int], Step] = {}
        self._config = GroupConfig(
            group="explore",
            multicast=MulticastConfig(
                capacity=capacity, datagram_bytes=DATAGRAM_BYTES, window_bytes=4 * DATAGRAM_BYTES
            ),
        )

    # Inputs

    def start(self, place: int, incarnation: int = 1) -> Step:
        """A process that looks for the others."""
        step = self._started.get((place, incarnation))
        if step is None:
            me = Member(_ADDRESSES[place], incarnation, self.name(place) + "'" * (incarnation - 1))
            node = build_node(
                *(me, self._config),
                membership=self._membership,
                detector=None,
                multicast=SenderOnly,
            )
            # So small that each sender's share is the minimum, however many were heard of late.
            node.multicast.receive_buffer = DATAGRAM_BYTES
            node.start(0)
            membership_of(node).add_candidates(_ADDRESSES, 0, node._out)
            step = self._started[place, incarnation] = self._outcome(node, 0, 0, 0)
        return step

    def send(self, number: int, payload: bytes) -> Step:
        return self._step(number, ("send", payload), lambda node, now: node.send([payload], now))

    def take(self, number: int) -> Step:
        return self._step(number, "take", lambda node, now: None, take=1)

    def tell(self, number: int, signal: Signal) -> Step:
        """What a failure detector would have found out."""

        def raise_signal(node: Node, now: int) -> None:
            node._out.signal(signal)
            node._run_to_completion(now)

        return self._step(number, ("signal", signal), raise_signal)

    def is_idle_for_good(self, datagram: int, nodes: tuple[int, ...]) -> bool:
        """Nobody is there, or it is told nothing new and never will be."""
        number = nodes[self.datagrams[datagram].dest]
        if number == GONE:
            return True
        kinds = self.kinds[datagram]
        if kinds not in _CUMULATIVE or not self.is_idle(number, datagram):
            return False
        view = self.facts[number].view
        return kinds != {Ack} or (view is not None and self.senders[datagram] in view)

    def _datagram_in_words(self, datagram: Datagram, frames: Sequence[Frame]) -> str:
        way = f"{self.name(datagram.source)}→{self.name(datagram.dest)}"
        return f"{way} {' + '.join(map(_in_words, frames))}"

    # What is read from a node

    def _read(self, node: Node) -> Facts:
        layer = membership_of(node)
        windows = node.multicast.windows()
        own = windows.get(Origin(node.me, Stream.FIFO))
        of_sender = [
            window.delivered
            for origin, window in windows.items()
            if origin.sender.address == _ADDRESSES[SENDER]
        ]
        return Facts(
            me=node.me,
            armed=self.armed(node),
            has_ready=node.has_ready,
            view=layer.view if layer.is_member else None,
            suspects=frozenset(layer.suspects),
            low=own.low if own else 0,
            high=own.high if own else 0,
            delivered=of_sender[0] if of_sender else NO_WINDOW,
            may_rejoin=layer.may_rejoin,
            is_settled=layer.change is None and not layer.suspects and not layer._joiners,
        )

    def _has_timers(self, owner: Hashable) -> bool:
        if owner == "membership":
            return True
        return isinstance(owner, tuple) and owner[0] in ("sent", "received")

    def _wrong_with(self, node: Node) -> Iterator[str]:
        yield from super()._wrong_with(node)
        if node.rejected.keys() - {Reject.ADDRESSEE.value}:
            yield f"a datagram of a member was rejected: {sorted(node.rejected)}"


def _in_words(frame: Frame) -> str:
    match frame:
        case DiscoverReply(coordinator):
            return f"DiscoverReply {coordinator}"
        case ViewIs(view):
            return f"ViewIs {view}"
        case ViewAck(view_id):
            return f"ViewAck {view_id.counter}"
        case Welcome(view, digest):
            return f"Welcome to {view} at {digest}"
        case Suspect(member):
            return f"Suspect {member}"
        case Discover() | Join() | Leave():
            return type(frame).__name__
        case _:
            return frame_in_words(frame)


def membership_of(node: Node) -> Membership:
    (layer,) = (layer for layer in node._layers if isinstance(layer, Membership))
    return layer


class State(NamedTuple):
    """Numbers only: nodes and datagrams are those of `Joiners`."""

    nodes: tuple[int, ...]
    flight: tuple[int, ...]
    """Ascending."""
    sent: int
    is_waiting: bool
    """A send was refused; the application waits to be told that there is room."""
    delivered: tuple[int, ...]
    """By member: the sender's last message that its application has got, as it counts itself."""
    fault: str
    """What has struck; empty: nothing yet."""
    wrong: tuple[str, ...]
    """What the last step did that it must not."""


class JoinSystem:
    """Everything that can happen in one scenario."""

    def __init__(self, scenario: Scenario, membership: type[Membership] = Membership) -> None:
        self.scenario = scenario
        self.joiners = Joiners(capacity=scenario.capacity, membership=membership)

    def initial(self) -> State:
        """Two members at rest; the joiner has found them, and may ask at any moment."""
        state = State((GONE,) * 3, (), 0, False, (NO_WINDOW,) * 3, "", ())
        for place in _PLACES:
            state = self._calm(self._after(state, place, self.joiners.start(place)))
            if place != JOINER:
                (decide,) = self._firings(state, place, Timer.DECIDE)
                state = self._calm(decide[1])
        return state

    def _calm(self, state: State) -> State:
        """After all that is in flight has arrived, and what follows from it."""
        while (first := next(chain(self._arrivals(state), self._acks(state)), None)) is not None:
            _, state = first
        return state

    def _acks(self, state: State) -> Iterator[tuple[str, State]]:
        for place in _PLACES:
            yield from self._firings(state, place, ReceiverTimer.ACK)

    def key(self, state: State) -> object:
        return tuple(state)

    def actions(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._arrivals(state)
        yield from self._timeouts(state)
        yield from self._takes(state)
        yield from self._sends(state)
        yield from self._findings(state)
        if not state.fault:
            yield from self._faults(state)

    def _arrivals(self, state: State) -> Iterator[tuple[str, State]]:
        joiners = self.joiners
        for datagram in state.flight:
            dest = joiners.datagrams[datagram].dest
            step = joiners.receive(state.nodes[dest], datagram)
            flight = without(state.flight, datagram)
            label = f"arrives: {joiners.told[datagram]}{step.told}"
            yield label, self._after(state._replace(flight=flight), dest, step)

    def _timeouts(self, state: State) -> Iterator[tuple[str, State]]:
        datagrams = self.joiners.datagrams
        busy = {datagrams[number].source for number in state.flight}
        for place, facts in self._alive(state):
            for timer in sorted({timer for _, timer in facts.armed}, key=str):
                is_slow = timer is not ReceiverTimer.ACK and not self._is_request(state, timer)
                if not state.flight if is_slow else place not in busy:
                    yield from self._firings(state, place, timer)

    def _is_request(self, state: State, timer: Enum) -> bool:
        """Whether by this the joiner asks for the first time: that may be at any moment."""
        return timer is Timer.DECIDE and not state.fault.startswith(Fault.CRASH.name)

    def _firings(self, state: State, place: int, which: Enum) -> Iterator[tuple[str, State]]:
        node = state.nodes[place]
        if node == GONE or which in _NEVER or not self._may_give_up(state, which):
            return
        for owner, timer in self.joiners.facts[node].armed:
            if timer is which:
                step = self.joiners.fire(node, owner, timer)
                label = f"{self.joiners.name(place)}: timer {timer.name} fires{step.told}"
                yield label, self._after(state, place, step)

    def _may_give_up(self, state: State, timer: Enum) -> bool:
        return timer is not Timer.PATIENCE or state.fault.startswith(Fault.CRASH.name)

    def _takes(self, state: State) -> Iterator[tuple[str, State]]:
        for place, facts in self._alive(state):
            if facts.has_ready:
                step = self.joiners.take(state.nodes[place])
                label = f"{self.joiners.name(place)}: takes{step.told}"
                yield label, self._after(state, place, step)

    def _sends(self, state: State) -> Iterator[tuple[str, State]]:
        node = state.nodes[SENDER]
        if node == GONE or state.is_waiting or state.sent == self.scenario.messages:
            return
        step = self.joiners.send(node, _payload(state.sent + 1))
        name = self.joiners.name(SENDER)
        if step.accepted:
            after = state._replace(sent=state.sent + 1)
            yield f"{name}: sends #{after.sent}{step.told}", self._after(after, SENDER, step)
        else:
            after = state._replace(is_waiting=True)
            label = f"{name}: wants to send, and the window is full"
            yield label, self._after(after, SENDER, step)

    def _findings(self, state: State) -> Iterator[tuple[str, State]]:
        """What the failure detectors would find out: who is dead, and who does not know yet."""
        alive = self._alive(state)
        living = {facts.me: facts for _, facts in alive}
        for place, facts in alive:
            name = self.joiners.name(place)
            for member in facts.view or ():
                if member not in living and member not in facts.suspects:
                    step = self.joiners.tell(state.nodes[place], Suspected(member, "dead"))
                    yield f"{name}: suspects {member}{step.told}", self._after(state, place, step)
            for member, other in living.items():
                if _is_behind(other, facts):
                    step = self.joiners.tell(state.nodes[place], NonMember(member))
                    after = self._after(state, place, step)
                    if after.flight != state.flight:
                        yield f"{name}: hears a beat of {member}{step.told}", after

    def _faults(self, state: State) -> Iterator[tuple[str, State]]:
        match self.scenario.fault:
            case Fault.LOSS:
                lossy = state._replace(fault=Fault.LOSS.name)
                for datagram in state.flight:
                    label = f"LOST: {self.joiners.told[datagram]}"
                    yield label, lossy._replace(flight=without(state.flight, datagram))
            case Fault.CRASH:
                for place in self.scenario.victims:
                    if state.nodes[place] != GONE:
                        crashed = self._without(state, place)
                        struck = crashed._replace(fault=f"{Fault.CRASH.name} {place}")
                        yield f"CRASH of {self.joiners.name(place)}", struck
            case Fault.HASTE:
                hasty = state._replace(fault=Fault.HASTE.name)
                for place, facts in self._alive(state):
                    for timer in sorted({timer for _, timer in facts.armed}, key=str):
                        yield from self._firings(hasty, place, timer)
            case None:
                pass

    def _without(self, state: State, place: int) -> State:
        datagrams = self.joiners.datagrams
        return state._replace(
            nodes=replaced(state.nodes, place, GONE),
            flight=tuple(number for number in state.flight if datagrams[number].dest != place),
        )

    def _after(self, state: State, place: int, step: Step) -> State:
        """The state with what the step did to one member, and what came out of it."""
        nodes = replaced(state.nodes, place, step.after)
        count, is_waiting, wrong = state.delivered[place], state.is_waiting, list(step.wrong)
        for event in step.events:
            match event:
                case Writable():
                    is_waiting = False
                case Delivered(_, run):
                    if count == NO_WINDOW:  # its first one comes after where its window opened
                        count = self.joiners.facts[state.nodes[place]].delivered
                    if run.first != count + 1:
                        wrong.append("a message was delivered out of order or twice (N1, N2)")
                    if run.payloads != [_payload(run.first)]:
                        wrong.append("a message was delivered with another content (N1)")
                    count = run.last
        flight = {*state.flight, *step.datagrams}
        after = state._replace(
            nodes=nodes,
            flight=tuple(sorted(flight)),
            is_waiting=is_waiting,
            delivered=replaced(state.delivered, place, count),
            wrong=tuple(wrong),
        )
        if any(isinstance(event, Closed) for event in step.events):
            after = self._restart(after, place)
        idle = self.joiners.is_idle_for_good
        kept = tuple(number for number in after.flight if not idle(number, after.nodes))
        return after._replace(flight=kept)

    def _restart(self, state: State, place: int) -> State:
        """Whoever is out without having asked for it comes back as another incarnation."""
        facts = self.joiners.facts[state.nodes[place]]
        gone = self._without(state, place)
        gone = gone._replace(delivered=replaced(gone.delivered, place, NO_WINDOW))
        if not facts.may_rejoin:
            return gone
        return self._after(gone, place, self.joiners.start(place, facts.me.incarnation + 1))

    # What must hold

    def violations(self, state: State) -> Iterator[str]:
        yield from state.wrong
        if state.nodes[SENDER] == GONE:
            return
        sender = self.joiners.facts[state.nodes[SENDER]]
        for _, facts in self._alive(state):
            is_counted = sender.view is not None and facts.me in sender.view
            if is_counted and NO_WINDOW < facts.delivered < sender.low:
                yield "a sender purged what a member of its view has not delivered (N5, N9)"

    def goal(self, state: State) -> bool:
        """One view of all who live, nothing waits, and everybody has all that it must have."""
        alive = self._alive(state)
        views = {facts.view for _, facts in alive}
        (view, *others) = views
        is_one_view = not others and view is not None
        if not is_one_view or {*(view or ())} != {facts.me for _, facts in alive}:
            return False
        if not all(facts.is_settled for _, facts in alive):
            return False
        if state.nodes[SENDER] == GONE:
            return True
        sender = self.joiners.facts[state.nodes[SENDER]]
        is_drained = state.sent == sender.low == sender.high == self.scenario.messages
        return is_drained and all(facts.delivered == state.sent for _, facts in alive)

    def _alive(self, state: State) -> list[tuple[int, Facts]]:
        facts = self.joiners.facts
        return [(place, facts[node]) for place, node in enumerate(state.nodes) if node != GONE]


def _is_behind(other: Facts, mine: Facts) -> bool:
    """Whether a beat of the other would show me that it does not know my view."""
    if other.view is None or mine.view is None or mine.me not in other.view:
        return False
    return other.me not in mine.view or other.view.counter < mine.view.counter


def _payload(seqno: int) -> bytes:
    return b"#%d" % seqno
