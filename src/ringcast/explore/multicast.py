"""Reliable multicast under every order of events: real nodes, real datagrams, all schedules.

A state is every member's `Node`, the datagrams in flight, how far each application has come, and
how far a change of the group has come. What can happen next: any datagram in flight arrives, any
armed timer fires, an application takes or sends, one fault strikes, or a view or digest that the
fault made necessary reaches one more member.

What must hold always: the nodes' own invariants; order, once, and content (N1, N2); no receiver
drops what a sender was allowed to send (N4); a sender keeps what some member of its view has not
delivered (N5, N9); nothing is delivered from the departed (N8). And from every state the goal stays
reachable: all is sent, and delivered by all who are left, and the senders' windows are empty.

What keeps it finite, and small:
    Clocks do not count: whichever timer of a member is armed may fire next, whatever the deadlines.
    Nodes are alike if `canonical` says so; the first one found acts for all.
    Identical datagrams on the same way are one: the network may drop a repetition.
    An ack in flight that tells its receiver nothing new is gone: it would never do anything.
    Windows exist for senders only: the others would add nothing but acks of nothing.
    In a `patient` scenario timers are slower than the network, except where haste is the fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ringcast.events import Delivered, Writable
from ringcast.explore.automata import replaced, without
from ringcast.explore.explorer import explore
from ringcast.explore.members import NO_WINDOW, Members
from ringcast.protocols.multicast import ReliableMulticast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.explore.automata import Step
    from ringcast.explore.explorer import Report
    from ringcast.model import Run, View

MAX_STATES = 5_000_000
"""Where memory would end before patience does."""

CRASHED = -1


class Fault(Enum):
    """What may strike, once on each path."""

    LOSS = "a datagram is lost"
    DUPLICATE = "a datagram arrives twice"
    CRASH = "a member crashes"
    JOIN = "a member joins"
    HASTE = "a timer fires too early"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Who is there, what they send, and what may happen to them."""

    name: str
    faults: tuple[Fault, ...]
    founders: int = 3
    senders: tuple[int, ...] = (1,)
    """By place in the view. The coordinator, at place 0, had better not be the only one: its
    digest would never lag."""
    messages: int = 2
    """From all senders together."""
    capacity: int = 1
    patient: bool = True
    """A member's timers fire only when nothing that it sent is under way: the network is faster
    than they are. Otherwise any armed timer may fire at any time."""
    digest_first: bool = False
    """BROKEN on purpose: the digest is taken when the join begins, before anybody has frozen."""

    @property
    def has_joiner(self) -> bool:
        return Fault.JOIN in self.faults

    @property
    def size(self) -> int:
        return self.founders + self.has_joiner

    @property
    def messages_each(self) -> int:
        return self.messages // len(self.senders)

    @property
    def description(self) -> str:
        faults = " or ".join(fault.value for fault in self.faults)
        timers = "" if self.patient else "; timers fire at any time"
        return (
            f"{self.founders} members, capacity {self.capacity}, {self.messages_each} messages "
            f"from each of {len(self.senders)}: {faults}{timers}"
        )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="any timer", faults=(Fault.LOSS,), founders=2, patient=False),
        Scenario(name="two senders", faults=(Fault.LOSS,), founders=2, senders=(0, 1)),
        Scenario(name="crash", faults=(Fault.CRASH,)),
        Scenario(name="duplicate", faults=(Fault.DUPLICATE,)),
        Scenario(name="haste", faults=(Fault.HASTE,)),
        Scenario(name="loss", faults=(Fault.LOSS,)),
        Scenario(name="join", faults=(Fault.JOIN,), founders=2),
    )
}


def explore_multicast(
    scenario: Scenario,
    multicast: type[ReliableMulticast] = ReliableMulticast,
    *,
    max_seconds: float = math.inf,
) -> Report:
    """Every state of the scenario, and whether the goal stays reachable from each."""
    system = MulticastSystem(scenario, multicast)
    return explore(system, goal=system.goal, max_states=MAX_STATES, max_seconds=max_seconds)


class State(NamedTuple):
    """Numbers only: nodes and datagrams are those of `Members`."""

    nodes: tuple[int, ...]
    flight: tuple[int, ...]
    """Ascending."""
    sent: tuple[int, ...]
    """By sender."""
    waiting: tuple[bool, ...]
    """By sender: a send was refused; its application waits to be told that there is room."""
    delivered: tuple[tuple[int, ...], ...]
    """By member, by sender: the last seqno that the application has got, as it counts itself."""
    fault: str
    """What has struck; empty: nothing yet."""
    installed: tuple[bool, ...]
    """By member: has the view after the crash or join."""
    digest: tuple[int, ...]
    """The offsets for the joiner, once taken."""
    informed: tuple[bool, ...]
    """By member: has the digest."""
    wrong: tuple[str, ...]
    """What the last step did that it must not."""


class MulticastSystem:
    """Everything that can happen in one scenario."""

    def __init__(
        self, scenario: Scenario, multicast: type[ReliableMulticast] = ReliableMulticast
    ) -> None:
        self.scenario = scenario
        self.members = Members(
            scenario.size,
            founders=scenario.founders,
            senders=scenario.senders,
            capacity=scenario.capacity,
            multicast=multicast,
        )

    def initial(self) -> State:
        """A group at rest: the founders have told each other where their windows stand."""
        state = self._founded()
        while (
            first := next(chain(self._arrivals(state), self._timeouts(state)), None)
        ) is not None:
            _, state = first
        return state

    def _founded(self) -> State:
        scenario = self.scenario
        founders = range(scenario.founders)
        senders = scenario.senders
        return State(
            nodes=tuple(self.members.fresh(place) for place in range(scenario.size)),
            flight=(),
            sent=(0,) * len(senders),
            waiting=(False,) * len(senders),
            delivered=tuple(
                tuple(0 if {place, s} <= set(founders) else NO_WINDOW for s in senders)
                for place in range(scenario.size)
            ),
            fault="",
            installed=(False,) * scenario.size,
            digest=(),
            informed=(False,) * scenario.size,
            wrong=(),
        )

    def key(self, state: State) -> object:
        return tuple(state)

    def actions(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._arrivals(state)
        yield from self._timeouts(state)
        yield from self._takes(state)
        yield from self._sends(state)
        if not state.fault:
            yield from self._faults(state)
        elif state.fault == Fault.JOIN.name:
            yield from self._join_steps(state)
        elif state.fault.startswith(Fault.CRASH.name):
            yield from self._exclusions(state)

    def _arrivals(self, state: State) -> Iterator[tuple[str, State]]:
        members = self.members
        for datagram in state.flight:
            dest = members.datagrams[datagram].dest
            step = members.receive(state.nodes[dest], datagram)
            flight = without(state.flight, datagram)
            label = f"arrives: {members.told[datagram]}{step.told}"
            yield label, self._after(state._replace(flight=flight), dest, step)

    def _timeouts(self, state: State) -> Iterator[tuple[str, State]]:
        busy = self._busy(state) if self.scenario.patient else set()
        for place, node in self._alive(state):
            if place not in busy:
                yield from self._timeouts_of(state, place, node)

    def _timeouts_of(self, state: State, place: int, node: int) -> Iterator[tuple[str, State]]:
        for owner, timer in self.members.facts[node].armed:
            step = self.members.fire(node, owner, timer)
            label = f"{self._name(place)}: timer {timer.name} fires{step.told}"
            yield label, self._after(state, place, step)

    def _busy(self, state: State) -> set[int]:
        """Those with something under way."""
        return {self.members.datagrams[number].source for number in state.flight}

    def _takes(self, state: State) -> Iterator[tuple[str, State]]:
        for place, node in self._alive(state):
            if self.members.facts[node].has_ready:
                step = self.members.take(node)
                yield f"{self._name(place)}: takes{step.told}", self._after(state, place, step)

    def _sends(self, state: State) -> Iterator[tuple[str, State]]:
        for i, place in enumerate(self.scenario.senders):
            node = state.nodes[place]
            is_member = node != CRASHED and self.members.facts[node].view
            if not is_member or state.waiting[i] or state.sent[i] == self.scenario.messages_each:
                continue
            step = self.members.send(node, _payload(place, state.sent[i] + 1))
            if step.accepted:
                after = state._replace(sent=replaced(state.sent, i, state.sent[i] + 1))
                label = f"{self._name(place)}: sends #{after.sent[i]}{step.told}"
            else:
                after = state._replace(waiting=replaced(state.waiting, i, True))
                label = f"{self._name(place)}: wants to send, and the window is full"
            yield label, self._after(after, place, step)

    # Faults, and what follows from them

    def _faults(self, state: State) -> Iterator[tuple[str, State]]:
        for fault in self.scenario.faults:
            match fault:
                case Fault.LOSS:
                    lossy = state._replace(fault=fault.name)
                    for datagram in state.flight:
                        label = f"LOST: {self.members.told[datagram]}"
                        yield label, lossy._replace(flight=without(state.flight, datagram))
                case Fault.DUPLICATE:
                    for datagram in state.flight:
                        dest = self.members.datagrams[datagram].dest
                        step = self.members.receive(state.nodes[dest], datagram)
                        label = f"DUPLICATED: a copy of {self.members.told[datagram]} arrives"
                        yield label, self._after(state._replace(fault=fault.name), dest, step)
                case Fault.HASTE:
                    hasty = state._replace(fault=fault.name)
                    for place in sorted(self._busy(state)):
                        if state.nodes[place] != CRASHED:
                            yield from self._timeouts_of(hasty, place, state.nodes[place])
                case Fault.CRASH:
                    for place, _ in self._alive(state):
                        yield f"CRASH of {self._name(place)}", self._crash(state, place)
                case Fault.JOIN:
                    joining = state._replace(fault=fault.name)
                    if self.scenario.digest_first:
                        joining = self._take_digest(joining)
                    label = f"JOIN of {self._name(self.scenario.founders)} begins"
                    if joining.digest:
                        label += f": {self._name(0)} takes the digest {list(joining.digest)}"
                    yield label, joining

    def _crash(self, state: State, place: int) -> State:
        datagrams = self.members.datagrams
        return state._replace(
            nodes=replaced(state.nodes, place, CRASHED),
            flight=tuple(number for number in state.flight if datagrams[number].dest != place),
            fault=f"{Fault.CRASH.name} {place}",
        )

    def _exclusions(self, state: State) -> Iterator[tuple[str, State]]:
        view = self.members.view(2, [place for place, _ in self._alive(state)])
        for place, node in self._alive(state):
            if not state.installed[place]:
                yield self._install(state, place, self.members.install_view(node, view), view)

    def _join_steps(self, state: State) -> Iterator[tuple[str, State]]:
        """The view to every old member; then the digest is taken; then it goes to everybody."""
        joiner = self.scenario.founders
        view = self.members.view(2, range(self.scenario.size))
        frozen = all(state.installed[:joiner])
        for place, node in enumerate(state.nodes[:joiner]):
            if not state.installed[place]:
                yield self._install(state, place, self.members.install_view(node, view), view)
        if frozen and not state.digest:
            after = self._take_digest(state)
            yield f"{self._name(0)}: takes the digest {list(after.digest)}", after
        if not frozen or not state.digest:
            return
        if not state.informed[joiner]:
            step = self.members.enter(state.nodes[joiner], view, state.digest)
            label = f"{self._name(joiner)}: enters at digest {list(state.digest)}{step.told}"
            entered = state._replace(installed=replaced(state.installed, joiner, True))
            yield label, self._after(self._inform(entered, joiner), joiner, step)
        if joiner in self.scenario.senders:  # else the digest tells the others nothing new
            for place, node in enumerate(state.nodes[:joiner]):
                if not state.informed[place]:
                    step = self.members.install_digest(node, state.digest)
                    label = f"{self._name(place)}: installs the digest{step.told}"
                    yield label, self._after(self._inform(state, place), place, step)

    def _install(self, state: State, place: int, step: Step, view: View) -> tuple[str, State]:
        after = state._replace(installed=replaced(state.installed, place, True))
        return f"{self._name(place)}: installs {view}{step.told}", self._after(after, place, step)

    def _take_digest(self, state: State) -> State:
        return state._replace(digest=self.members.offsets(state.nodes[0]))

    def _inform(self, state: State, place: int) -> State:
        opened = tuple(
            offset if seqno == NO_WINDOW else seqno
            for seqno, offset in zip(state.delivered[place], state.digest, strict=True)
        )
        return state._replace(
            informed=replaced(state.informed, place, True),
            delivered=replaced(state.delivered, place, opened),
        )

    def _after(self, state: State, place: int, step: Step) -> State:
        """The state with what the step did to one member, and what came out of it."""
        nodes = replaced(state.nodes, place, step.after)
        flight = state.flight
        if step.datagrams:
            arriving = [
                number
                for number in step.datagrams
                if nodes[self.members.datagrams[number].dest] != CRASHED
            ]
            flight = tuple(sorted({*flight, *arriving}))
        # Acks only ever grow: one that tells nothing new now never will.
        flight = tuple(number for number in flight if not self.members.is_stale(number, nodes))
        waiting = state.waiting
        counts = list(state.delivered[place])
        wrong = list(step.wrong)
        for event in step.events:
            match event:
                case Writable():
                    waiting = replaced(waiting, self.scenario.senders.index(place), False)
                case Delivered(member, run):
                    sender = self.members.place_of(member)
                    i = self.scenario.senders.index(sender)
                    wrong += _wrong_delivery(counts[i], sender, run)
                    if sender not in self.members.facts[state.nodes[place]].view:
                        wrong.append("a message of a departed member was delivered (N8)")
                    counts[i] = run.last
        return state._replace(
            nodes=nodes,
            flight=flight,
            waiting=waiting,
            delivered=replaced(state.delivered, place, tuple(counts)),
            wrong=tuple(wrong),
        )

    # What must hold

    def violations(self, state: State) -> Iterator[str]:
        yield from state.wrong
        for i, sender in enumerate(self.scenario.senders):
            if state.nodes[sender] == CRASHED:
                continue
            facts = self.members.facts[state.nodes[sender]]
            taken = [state.delivered[place][i] for place in facts.view]
            if any(NO_WINDOW < seqno < facts.low for seqno in taken):
                yield "a sender purged what a member of its view has not delivered (N5, N9)"

    def goal(self, state: State) -> bool:
        """All is sent and has reached everybody, the windows are empty, the change is over."""
        is_changing = Fault.JOIN.name == state.fault or state.fault.startswith(Fault.CRASH.name)
        alive = [place for place, _ in self._alive(state)]
        if is_changing and not all(state.installed[place] for place in alive):
            return False
        if self.scenario.has_joiner and state.fault != Fault.JOIN.name:
            return False
        for i, sender in enumerate(self.scenario.senders):
            if sender not in alive:
                continue
            facts = self.members.facts[state.nodes[sender]]
            if not state.sent[i] == facts.low == facts.high == self.scenario.messages_each:
                return False
            if any(state.delivered[place][i] != state.sent[i] for place in alive):
                return False
        return True

    def _alive(self, state: State) -> list[tuple[int, int]]:
        return [(place, node) for place, node in enumerate(state.nodes) if node != CRASHED]

    def _name(self, place: int) -> str:
        return str(self.members.members[place])


def _wrong_delivery(count: int, sender: int, run: Run) -> Iterator[str]:
    """What is wrong with getting these after the first `count` messages of the sender."""
    if count == NO_WINDOW or run.first > count + 1:
        yield "a message was delivered before an earlier one (N1)"
    elif run.first <= count:
        yield "a message was delivered twice (N2)"
    expected = [_payload(sender, seqno) for seqno in range(run.first, run.last + 1)]
    if run.payloads != expected:
        yield "a message was delivered with another content (N1)"


def _payload(sender: int, seqno: int) -> bytes:
    return b"%d#%d" % (sender, seqno)
