"""The skeleton of an explored system: members, what is under way between them, what may happen.

A `Scenario` says who is there, what is sent and which faults may strike; a subclass of `NodeSystem`
says how a member is made, what must hold, and what is special about its protocol. The rest is here.

What keeps it finite, and small:
    Clocks do not count: any armed timer may fire next, whatever the deadlines.
    Identical datagrams on the same way are one: the network may drop a repetition.
    What is in flight and can never have an effect again is gone (`is_over`).
    In a `patient` scenario timers are slower than the network: a member's timers fire only when
    nothing that it sent is under way, except where haste is the fault.
    In a `lasting` scenario nothing ever leaves the network: what was sent can arrive again and
    again, in any order, or never. That is loss, duplication and delay at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from ringcast.events import Writable
from ringcast.explore.automata import NAMES, Armed, Automata, Step
from ringcast.explore.explorer import Report, Violation, explore
from ringcast.explore.words import timer_in_words
from ringcast.model import Run, Stream

T = TypeVar("T")

GONE = -1
"""In place of a node: it has crashed, or left."""


class Fault(Enum):
    """What may strike, so often on each path."""

    LOSS = "a datagram is lost"
    DUPLICATE = "a datagram arrives twice"
    HASTE = "a timer fires too early"
    CRASH = "the last member crashes"
    RESTART = "an end crashes and restarts at the same address"
    CLOSE = "an application closes its connection"
    IDLE = "an idle end of a connection begins to close, or is gone"
    DROP = "a receiver drops its window"
    SYNC = "an operator asks for a sync"
    GIVE_UP = "a sync request is given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Who is there, what they send, and what may happen to them."""

    system: type[NodeSystem]
    name: str
    faults: Mapping[Fault, int] = field(default_factory=dict)  # how often each may strike
    size: int = 3  # how many members there are
    senders: tuple[int, ...] = (1,)  # by place in the view
    stream: Stream = Stream.FIFO
    messages: int = 2  # from each sender
    capacity: int = 1
    patient: bool = True
    lasting: bool = False

    @property
    def description(self) -> str:
        senders = ", ".join(NAMES[place] for place in self.senders)
        several = len(self.senders) > 1
        sent = f"{senders} send{'' if several else 's'} {self.messages}{' each' * several}"
        sent += " uniformly" * (self.stream is Stream.UNIFORM)
        faults = [
            fault.value + f" ({count} times)" * (count > 1) for fault, count in self.faults.items()
        ]
        notes = ""
        if self.lasting:
            notes = "; what was sent may arrive at any time, again and again"
        elif not self.patient:
            notes = "; timers fire at any time"
        told = ", ".join(faults) or "no fault"
        return f"{self.size} members, {sent}, capacity {self.capacity}: {told}{notes}"

    def explore(self, protocol: type | None = None, **limits: Any) -> Report:
        """Every state, and whether the goal stays reachable from each.

        `protocol` is explored in place of the system's own: a class with one rule changed.
        """
        system = self.system(self, protocol)
        report = explore(system, goal=system.goal, **limits)
        if not report.violations:
            report.violations.extend(system.afterthoughts())
        return report


class State(NamedTuple):
    """Numbers only: nodes and datagrams are kept by the system."""

    nodes: tuple[int, ...]
    flight: tuple[int, ...]  # ascending
    sent: tuple[int, ...]  # by sender
    waiting: tuple[bool, ...]  # by sender: it was refused, and waits until it is told of room
    left: tuple[int, ...]  # by fault: how often it may still strike
    more: Any  # what the protocol adds: a tuple
    wrong: tuple[str, ...]  # what the last step did that it must not


Move: TypeAlias = tuple[str, State]
Moves: TypeAlias = "Iterator[Move]"


class NodeSystem(Automata, ABC):
    """Everything that can happen in one scenario."""

    protocol: type
    """What is explored, unless another class is given."""
    ids: ClassVar = ("N1", "N2")
    """The rules of order and of once."""

    def __init__(self, scenario: Scenario, protocol: type | None = None) -> None:
        super().__init__(scenario.size, scenario.capacity)
        self.scenario = scenario
        self.protocol = protocol or self.protocol
        self._is_over = cache(self.is_over)
        self._is_patient = scenario.patient and not scenario.lasting

    # What a protocol says

    @abstractmethod
    def initial(self) -> State: ...

    @abstractmethod
    def goal(self, state: State) -> bool: ...

    def violations(self, state: State) -> Iterable[str]:
        return state.wrong

    def afterthoughts(self) -> Iterator[Violation]:
        """What is found when all nodes and datagrams are known."""
        return iter(())

    def more_moves(self, state: State) -> Moves:
        """What may happen with this protocol only."""
        return iter(())

    def is_over(self, number: int, datagram: int) -> bool:
        """This datagram does nothing to this node, and never will."""
        return False

    def messages(self, state: State, place: int) -> int:
        """How many this sender is to send."""
        return self.scenario.messages

    def may_fire(self, state: State, place: int, timer: Enum, busy: set[int]) -> bool:
        """`busy`: who has sent something that is still under way."""
        return not self._is_patient or place not in busy

    def at_rest(self, nodes: Iterable[int], more: Any) -> State:
        """Nothing is under way, nothing has been sent."""
        senders, left = len(self.scenario.senders), tuple(self.scenario.faults.values())
        return State(tuple(nodes), (), (0,) * senders, (False,) * senders, left, more, ())

    def alive(self, state: State) -> list[tuple[int, int]]:
        """Places, and the numbers of the nodes there."""
        return [(place, node) for place, node in enumerate(state.nodes) if node != GONE]

    # What may happen

    def key(self, state: State) -> object:
        return (*state[:5], *state.more, state.wrong)

    def actions(self, state: State) -> Moves:
        yield from self.arrivals(state)
        yield from self.timeouts(state)
        yield from self.takes(state)
        yield from self.sends(state)
        yield from self.more_moves(state)
        for at, fault in enumerate(self.scenario.faults):
            if state.left[at]:
                left = replaced(state.left, at, state.left[at] - 1)
                yield from self.strike(fault, state._replace(left=left))

    def arrivals(self, state: State) -> Moves:
        for at, datagram in enumerate(state.flight):
            rest = state.flight if self.scenario.lasting else without(state.flight, at)
            yield self.arrival(state._replace(flight=rest), datagram, "arrives")

    def arrival(self, state: State, datagram: int, how: str) -> Move:
        dest = self.datagrams[datagram].dest
        step = self.receive(state.nodes[dest], datagram)
        return f"{how}: {self.datagrams[datagram].told}{step.told}", self.after(state, dest, step)

    def timeouts(self, state: State, *, hasty: bool = False) -> Moves:
        """`hasty`: those that it is too early for."""
        busy = {self.datagrams[number].source for number in state.flight}
        for place, node in self.alive(state):
            for armed in self.armed[node]:
                if self.may_fire(state, place, armed[1], busy) is not hasty:
                    yield self.firing(state, place, armed)

    def firing(self, state: State, place: int, armed: Armed) -> Move:
        step = self.fire(state.nodes[place], *armed)
        return self.acts(state, place, f"timer {timer_in_words(*armed)} fires", step)

    def takes(self, state: State) -> Moves:
        for place, node in self.alive(state):
            if self.nodes[node].has_ready:
                yield self.acts(state, place, "takes", self.take(node))

    def sends(self, state: State) -> Moves:
        for i, place in enumerate(self.scenario.senders):
            node, number = state.nodes[place], state.sent[i] + 1
            if node == GONE or state.waiting[i] or number > self.messages(state, place):
                continue
            step = self.send(node, payload_of(place, number))
            if step.accepted:
                sent = state._replace(sent=replaced(state.sent, i, number))
                yield self.acts(self.on_sent(sent, i, step), place, f"sends #{number}", step)
            else:
                waits = state._replace(waiting=replaced(state.waiting, i, True))
                yield self.acts(waits, place, "wants to send, and the window is full", step)

    def on_sent(self, state: State, i: int, step: Step) -> State:
        """A message of the sender at `i` was accepted."""
        return state

    def acts(self, state: State, place: int, what: str, step: Step) -> Move:
        return f"{NAMES[place]}: {what}{step.told}", self.after(state, place, step)

    def strike(self, fault: Fault, state: State) -> Moves:
        match fault:
            case Fault.LOSS:
                for at, datagram in enumerate(state.flight):
                    lost = state._replace(flight=without(state.flight, at))
                    yield f"LOST: {self.datagrams[datagram].told}", lost
            case Fault.DUPLICATE:
                for datagram in state.flight:
                    yield self.arrival(state, datagram, "DUPLICATED: a copy arrives")
            case Fault.HASTE:
                yield from self.timeouts(state, hasty=True)
            case Fault.CRASH if state.nodes[-1] != GONE:
                last = self.scenario.size - 1
                nodes = replaced(state.nodes, last, GONE)
                flight = self._in_flight(state.flight, (), nodes)
                yield f"CRASH of {NAMES[last]}", state._replace(nodes=nodes, flight=flight)

    # What a step leads to

    def after(self, state: State, place: int, step: Step) -> State:
        """The state with what the step did to one member, and what came out of it."""
        node = state.nodes[place]
        nodes = replaced(state.nodes, place, step.after)
        flight = self._in_flight(state.flight, step.datagrams, nodes)
        state = State(nodes, flight, *state[2:6], step.wrong)  # faster than to replace
        for event in step.events:
            state = self.on_event(state, place, node, event)
        return state

    def _in_flight(
        self, flight: tuple[int, ...], sent: tuple[int, ...], nodes: tuple[int, ...]
    ) -> tuple[int, ...]:
        """What may still have an effect, of what was in flight and what was sent now."""
        if sent:
            flight = tuple(sorted({*flight, *sent}))
        return tuple(
            datagram
            for datagram in flight
            if (number := nodes[self.datagrams[datagram].dest]) != GONE
            and not self._is_over(number, datagram)
        )

    def on_event(self, state: State, place: int, node: int, event: object) -> State:
        """Something came out of what was node `node` before."""
        if isinstance(event, Writable):
            i = self.scenario.senders.index(place)
            state = state._replace(waiting=replaced(state.waiting, i, False))
        return state

    def wrong_delivery(self, run: Run, count: int, sender: int, before: int = 0) -> Iterator[str]:
        """What is wrong with getting these on a stream that has come so far; `before`: how many
        messages its sender had sent before it began."""
        if run.first > count + 1:
            yield f"a message was delivered before an earlier one ({self.ids[0]})"
        elif run.first <= count:
            yield f"a message was delivered twice ({self.ids[1]})"
        seqnos = range(run.first, run.last + 1)
        if run.payloads != [payload_of(sender, before + seqno) for seqno in seqnos]:
            yield f"a message was delivered with another content ({self.ids[0]})"


def payload_of(place: int, number: int) -> bytes:
    return b"%d#%d" % (place, number)


def replaced(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def without(values: tuple[T, ...], at: int) -> tuple[T, ...]:
    return (*values[:at], *values[at + 1 :])
