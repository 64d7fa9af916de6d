"""Reliable unicast under every order of events: two real nodes, real datagrams, all schedules.

A state is the `Node` of either end, the datagrams in flight, how far the applications have come on
each stream as they count themselves, and which faults are left. What can happen next: any datagram
in flight arrives, any armed timer fires, an application takes or sends, a fault strikes, or a view
that a restart made necessary reaches the other end.

What must hold always: the nodes' own invariants; order, once, and content (S1, Y3); a sender lets
go only of what that very receiver has delivered (S2, Y1); on the same connection it still has all
that the receiver waits for (Y2); nobody asks for a new connection without need (Y4); what ends
undelivered is reported (S8). And from every state the goal stays reachable: all is sent and
delivered, or reported where the receiver is gone; nothing is unacknowledged, no sync request is
outstanding, and no timer runs that would send something.

What keeps it finite, and small:
    Clocks do not count: whichever timer of a node is armed may fire next, whatever the deadlines.
        Those of idle connections too, but only so often; only the dead are given up as silent.
    Ticks are not counted: that a sync request is given up after so many is a fault.
    Nodes are alike if `canonical` says so; the first one found acts for all.
    Identical datagrams on the same way are one: the network may drop a repetition.
    What is late (of a connection that its receiver knows to be over) and does nothing is gone from
        the flight, and so is an ack that tells nothing new. That what is late will never do
        anything is checked in the end, on every node with everything that was ever sent (S7).
    In a `patient` scenario timers are slower than the network: an end's timers fire only when
        nothing that it sent is under way.
    In a `lasting` scenario nothing ever leaves the network: whatever was sent can arrive again and
        again, in any order, or never. That is loss, duplication and delay at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ringcast.events import Delivered, GapSkipped, Undeliverable, Writable
from ringcast.explore.automata import replaced, without
from ringcast.explore.ends import Ends
from ringcast.explore.explorer import Violation, explore
from ringcast.model import FIRST_CONN_ID
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.wire.frames import Sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ringcast.explore.automata import Step
    from ringcast.explore.ends import Armed, End, Facts
    from ringcast.explore.explorer import Report
    from ringcast.model import Conn, Run

MAX_STATES = 5_000_000
"""Where memory would end before patience does."""

LATE_EFFECT = "something that was late had an effect (S7)"

CRASHED = -1
A, B = 0, 1


class Fault(Enum):
    """What may strike, so often on each path."""

    LOSS = "a datagram is lost"
    DUPLICATE = "a datagram arrives twice"
    RESTART = "an end crashes and restarts at the same address"
    CRASH = "B crashes for good"
    CLOSE = "an application closes its connection"
    IDLE = "an idle end of a connection begins to close, or is gone"
    DROP = "a receiver drops its window"
    SYNC = "an operator asks for a sync"
    GIVE_UP = "a sync_request is given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Who sends, and what may happen."""

    name: str
    faults: Mapping[Fault, int] = field(default_factory=dict)
    """How often each may strike."""
    senders: tuple[int, ...] = (A,)
    messages: int = 2
    """From each sender; one more for each restart."""
    capacity: int = 2
    patient: bool = True
    """An end's timers fire only when nothing that it sent is under way. Otherwise any armed timer
    may fire at any time."""
    lasting: bool = False
    """What was sent can arrive any number of times, for ever; timers fire at any time."""

    @property
    def description(self) -> str:
        struck = [
            f"{fault.value}{f' ({count} times)' if count > 1 else ''}"
            for fault, count in self.faults.items()
        ]
        ways = "A to B" if self.senders == (A,) else "both ways"
        if self.lasting:
            notes = "; what was sent may arrive at any time, again and again"
        else:
            notes = "" if self.patient else "; timers fire at any time"
        return (
            f"{self.messages} messages {ways}, capacity {self.capacity}: "
            f"{', '.join(struck) or 'no fault'}{notes}"
        )


LOSS = Scenario(name="loss", faults={Fault.LOSS: 1})
CRASH = Scenario(name="crash", faults={Fault.CRASH: 1})
STALE = Scenario(name="stale", faults={Fault.IDLE: 4}, capacity=1, lasting=True)

UNICAST_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="any timer", faults={Fault.LOSS: 1}, capacity=1, patient=False),
        Scenario(name="two ways", faults={Fault.LOSS: 1}, senders=(A, B), messages=1),
        LOSS,
        Scenario(name="duplicate", faults={Fault.DUPLICATE: 1}),
        Scenario(name="restart", faults={Fault.RESTART: 1}, capacity=1),
        CRASH,
        Scenario(name="closing", faults={Fault.CLOSE: 1, Fault.IDLE: 2, Fault.LOSS: 1}, capacity=1),
        Scenario(name="expiry", faults={Fault.IDLE: 4}, capacity=1),
        STALE,
    )
}

DROP = Scenario(name="drop", faults={Fault.DROP: 2}, capacity=1, lasting=True)
DROP_AND_LOSS = Scenario(name="drop and loss", faults={Fault.DROP: 1, Fault.LOSS: 1}, capacity=1)

SYNC_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        DROP,
        Scenario(name="operator", faults={Fault.SYNC: 1, Fault.DROP: 1}, capacity=1, lasting=True),
        Scenario(
            name="give up", faults={Fault.DROP: 1, Fault.GIVE_UP: 1}, capacity=1, lasting=True
        ),
        DROP_AND_LOSS,
        Scenario(name="drop and duplicate", faults={Fault.DROP: 1, Fault.DUPLICATE: 1}, capacity=1),
        Scenario(name="drop two ways", faults={Fault.DROP: 2}, senders=(A, B), messages=1),
    )
}


class Channel(NamedTuple):
    """One stream as the applications count: what was sent on it, and what came out."""

    sender: End
    receiver: End
    epoch: int
    before: int
    """How many messages the sender's application had sent before this stream began."""
    sent: int = 0
    delivered: int = 0
    reported: int = 0
    """From this seqno on all are reported as undeliverable; 0: none is."""

    @property
    def kept(self) -> int:
        """Up to here the sender owes delivery."""
        return self.reported - 1 if self.reported else self.sent


class State(NamedTuple):
    """Numbers only: nodes and datagrams are those of `Ends`."""

    nodes: tuple[int, ...]
    flight: tuple[int, ...]
    """Ascending."""
    sent: tuple[int, ...]
    """By end: messages that its application has sent, in all incarnations."""
    waiting: tuple[bool, ...]
    """By end: a send was refused; its application waits to be told that there is room."""
    channels: tuple[Channel, ...]
    left: tuple[int, ...]
    """By fault: how often it may still strike."""
    uninformed: tuple[bool, ...]
    """By end: a view is on its way to it."""
    asking: tuple[bool, ...]
    """By receiving end: it has asked since its window was last in order."""
    occasions: tuple[int, ...]
    """By receiving end: how often there was a reason to ask."""
    wrong: tuple[str, ...]
    """What the last step did that it must not."""


def explore_unicast(
    scenario: Scenario,
    unicast: type[ReliableUnicast] = ReliableUnicast,
    *,
    max_seconds: float = math.inf,
    stop_at_violation: bool = False,
) -> Report:
    """Every state of the scenario, and whether the goal stays reachable from each."""
    system = UnicastSystem(scenario, unicast)
    report = explore(
        system,
        goal=system.goal,
        max_states=MAX_STATES,
        max_seconds=max_seconds,
        stop_at_violation=stop_at_violation,
    )
    if not report.violations:
        # Whatever was late has been left out. Now that all nodes and datagrams are known: rightly.
        report.violations.extend(Violation(LATE_EFFECT, [told]) for told in system.late_effects())
    return report


class UnicastSystem:
    """Everything that can happen in one scenario."""

    def __init__(
        self, scenario: Scenario, unicast: type[ReliableUnicast] = ReliableUnicast
    ) -> None:
        self.scenario = scenario
        self.ends = Ends(capacity=scenario.capacity, unicast=unicast)
        self._faults = list(scenario.faults)

    def initial(self) -> State:
        both = (A, B)
        return State(
            nodes=tuple(self.ends.fresh((place, 1), {A: 1, B: 1}) for place in both),
            flight=(),
            sent=(0, 0),
            waiting=(False, False),
            channels=(),
            left=tuple(self.scenario.faults.values()),
            uninformed=(False, False),
            asking=(False, False),
            occasions=(0, 0),
            wrong=(),
        )

    def key(self, state: State) -> object:
        return (*state[:4], tuple(map(tuple, state.channels)), *state[5:])

    def actions(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._arrivals(state)
        yield from self._timeouts(state)
        yield from self._takes(state)
        yield from self._sends(state)
        yield from self._views(state)
        yield from self._surrenders(state)
        for place, fault in enumerate(self._faults):
            if state.left[place]:
                left = replaced(state.left, place, state.left[place] - 1)
                yield from self._strike(fault, state._replace(left=left))

    def _arrivals(self, state: State) -> Iterator[tuple[str, State]]:
        for datagram in state.flight:
            rest = state.flight if self.scenario.lasting else without(state.flight, datagram)
            yield self._arrival(state._replace(flight=rest), datagram, "arrives")

    def _arrival(self, state: State, datagram: int, how: str) -> tuple[str, State]:
        ends = self.ends
        dest = ends.datagrams[datagram].dest
        node = state.nodes[dest]
        step = ends.receive(node, datagram)
        after = self._after(state, dest, step)
        if ends.is_late(node, datagram) and not ends.is_idle(node, datagram):
            after = after._replace(wrong=(*after.wrong, LATE_EFFECT))
        return f"{how}: {ends.told[datagram]}{step.told}", after

    def _timeouts(self, state: State) -> Iterator[tuple[str, State]]:
        ends = self.ends
        is_patient = self.scenario.patient and not self.scenario.lasting
        busy = {ends.datagrams[number].source for number in state.flight}
        for place, facts in self._alive(state):
            if is_patient and place in busy:
                continue
            for armed in facts.armed:
                if not armed.is_for_idle and not armed.is_for_silent:
                    yield self._firing(state, place, armed)

    def _firing(self, state: State, place: int, armed: Armed) -> tuple[str, State]:
        step = self.ends.fire(state.nodes[place], armed.owner, armed.timer)
        label = f"{self.ends.name(place)}: timer {armed.told} fires{step.told}"
        return label, self._after(state, place, step)

    def _takes(self, state: State) -> Iterator[tuple[str, State]]:
        for place, facts in self._alive(state):
            if facts.has_ready:
                step = self.ends.take(state.nodes[place])
                yield f"{self.ends.name(place)}: takes{step.told}", self._after(state, place, step)

    def _sends(self, state: State) -> Iterator[tuple[str, State]]:
        for place, facts in self._alive(state):
            if place not in self.scenario.senders or state.waiting[place]:
                continue
            number = state.sent[place] + 1
            if number > self._messages(state):
                continue
            peer = facts.peer
            step = self.ends.send(state.nodes[place], _payload(place, number), peer)
            name = self.ends.name(place)
            if not step.accepted:
                after = state._replace(waiting=replaced(state.waiting, place, True))
                label = f"{name}: wants to send, and the window is full"
                yield label, self._after(after, place, step)
                continue
            epoch = self.ends.facts[step.after].senders[peer].conn.epoch
            channel = _find(state.channels, facts.me, peer, epoch)
            if channel is None:
                channel = Channel(facts.me, peer, epoch, before=state.sent[place])
            after = state._replace(
                sent=replaced(state.sent, place, number),
                channels=_updated(state.channels, channel._replace(sent=channel.sent + 1)),
            )
            yield f"{name}: sends #{number}{step.told}", self._after(after, place, step)

    def _messages(self, state: State) -> int:
        """How many each sender is to send."""
        restarts = sum(self.ends.facts[node].me[1] - 1 for node in state.nodes if node != CRASHED)
        return self.scenario.messages + restarts

    def _views(self, state: State) -> Iterator[tuple[str, State]]:
        """After a restart both are in the same view again, one after the other."""
        incarnations = {place: facts.me[1] for place, facts in self._alive(state)}
        for place, _ in self._alive(state):
            if state.uninformed[place]:
                step = self.ends.install_view(state.nodes[place], incarnations)
                informed = state._replace(uninformed=replaced(state.uninformed, place, False))
                label = f"{self.ends.name(place)}: installs the view with the restarted{step.told}"
                yield label, self._after(informed, place, step)

    # Faults

    def _strike(self, fault: Fault, state: State) -> Iterator[tuple[str, State]]:
        ends = self.ends
        match fault:
            case Fault.LOSS:
                for datagram in state.flight:
                    lossy = state._replace(flight=without(state.flight, datagram))
                    yield f"LOST: {ends.told[datagram]}", lossy
            case Fault.DUPLICATE:
                for datagram in state.flight:
                    yield self._arrival(state, datagram, "DUPLICATED: a copy arrives")
            case Fault.RESTART:
                for place, facts in self._alive(state):
                    label = f"RESTART of {ends.name(place)}"
                    yield label, self._restart(state, place, facts.me)
            case Fault.CRASH:
                yield f"CRASH of {ends.name(B)}", self._crash(state, B)
            case Fault.CLOSE:
                for place, facts in self._alive(state):
                    for peer in facts.senders:
                        yield self._act(state, place, "CLOSES", ends.close_to, peer)
            case Fault.IDLE:
                for place, facts in self._alive(state):
                    for armed in facts.armed:
                        if armed.is_for_idle:
                            yield self._firing(state, place, armed)
            case Fault.DROP:
                for place, facts in self._alive(state):
                    for peer in facts.receivers:
                        yield self._act(state, place, "DROPS its window for", ends.drop_from, peer)
            case Fault.SYNC:
                for place, facts in self._alive(state):
                    for peer in facts.known:
                        yield self._act(state, place, "OPERATOR wants a sync with", ends.sync, peer)
            case Fault.GIVE_UP:
                for place, facts in self._alive(state):
                    for peer in facts.sync_requests:
                        yield self._give_up_sync_request(state, place, peer)

    def _act(
        self, state: State, place: int, what: str, act: Callable[[int, End], Step], peer: End
    ) -> tuple[str, State]:
        step = act(state.nodes[place], peer)
        label = f"{self.ends.name(place)}: {what} {self.ends.name(peer[0])}{step.told}"
        return label, self._after(state, place, step)

    def _give_up_sync_request(self, state: State, place: int, peer: End) -> tuple[str, State]:
        label, after = self._act(
            state, place, "GIVES UP asking", self.ends.give_up_sync_request, peer
        )
        return label, after._replace(asking=replaced(after.asking, place, False))

    def _surrenders(self, state: State) -> Iterator[tuple[str, State]]:
        """In the end everybody gives up on the dead, and on answers nobody waits for."""
        alive = {facts.me: facts for _, facts in self._alive(state)}
        for place, facts in self._alive(state):
            for peer in facts.sync_requests:
                if peer not in alive:
                    yield self._give_up_sync_request(state, place, peer)
            for armed in facts.armed:
                if armed.is_for_silent and armed.peer not in alive:
                    yield self._firing(state, place, armed)
            for peer, entry in facts.senders.items():
                if entry.is_answering and not _is_waiting(alive.get(peer), facts.me, entry.conn):
                    act = self.ends.give_up_answer
                    yield self._act(state, place, "GIVES UP answering", act, peer)

    def _restart(self, state: State, place: int, me: End) -> State:
        """A new member at the same address; the other end hears of it by a view, later."""
        reborn = (place, me[1] + 1)
        incarnations = {each: facts.me[1] for each, facts in self._alive(state)}
        node = self.ends.fresh(reborn, {**incarnations, place: reborn[1]})
        return state._replace(
            nodes=replaced(state.nodes, place, node),
            waiting=replaced(state.waiting, place, False),
            uninformed=replaced(state.uninformed, 1 - place, True),
            asking=(False, False),
        )

    def _crash(self, state: State, place: int) -> State:
        datagrams = self.ends.datagrams
        return state._replace(
            nodes=replaced(state.nodes, place, CRASHED),
            flight=tuple(number for number in state.flight if datagrams[number].dest != place),
        )

    # What a step leads to

    def _after(self, state: State, place: int, step: Step) -> State:
        """The state with what the step did to one end, and what came out of it."""
        ends = self.ends
        before, after = ends.facts[state.nodes[place]], ends.facts[step.after]
        nodes = replaced(state.nodes, place, step.after)
        flight = state.flight
        asking, occasions = state.asking, state.occasions
        if step.datagrams:
            arriving = [n for n in step.datagrams if nodes[ends.datagrams[n].dest] != CRASHED]
            flight = tuple(sorted({*flight, *arriving}))
            if not asking[place] and any(Sync in ends.kinds[n] for n in step.datagrams):
                asking = replaced(asking, place, True)
                occasions = replaced(occasions, place, occasions[place] + 1)
        flight = tuple(
            number
            for number in flight
            if not ends.is_spent(nodes[ends.datagrams[number].dest], number)
        )
        if asking[place] and after.receivers and not after.sync_requests:
            asking = replaced(asking, place, False)
        waiting, channels = state.waiting, state.channels
        wrong = list(step.wrong)
        for event in step.events:
            match event:
                case Writable():
                    waiting = replaced(waiting, place, False)
                case Delivered():
                    sender = ends.end_of(event.sender)
                    channel = _find(channels, sender, after.me, event.epoch)
                    wrong += _wrong_delivery(channel, event.run)
                    if channel is not None:
                        channels = _updated(channels, channel._replace(delivered=event.run.last))
                case Undeliverable():
                    channel = _find(channels, after.me, ends.end_of(event.to), event.epoch)
                    if channel is None or event.last != channel.sent or channel.reported:
                        wrong.append("something else than what was sent is reported (S8)")
                    else:
                        channels = _updated(channels, channel._replace(reported=event.first))
                case GapSkipped():
                    wrong.append("a receiver skipped messages that the sender purged (Y1)")
        if any(after.known.get(peer, conn) < conn for peer, conn in before.known.items()):
            wrong.append("a receiver went back to an older connection (S6)")
        for peer, entry in before.senders.items():
            remaining = after.senders.get(peer)
            if remaining is None or remaining.conn.epoch != entry.conn.epoch:
                channel = _find(channels, before.me, peer, entry.conn.epoch)
                if channel is not None and channel.kept > channel.delivered:
                    wrong.append("a connection ended, and what it left undone is not told (S8)")
        return state._replace(
            nodes=nodes,
            flight=flight,
            waiting=waiting,
            channels=channels,
            asking=asking,
            occasions=occasions,
            wrong=tuple(wrong),
        )

    # What must hold

    def late_effects(self) -> Iterator[str]:
        """Each datagram that would change a node for which it is late, and how that node stands."""
        ends = self.ends
        for datagram, (_, dest, _) in enumerate(ends.datagrams):
            for node, facts in enumerate(ends.facts):
                is_late = facts.me[0] == dest and ends.is_late(node, datagram)
                if is_late and ends.would_change(node, datagram):
                    yield f"{ends.told[datagram]} arrives where {facts}"

    def violations(self, state: State) -> Iterator[str]:
        yield from state.wrong
        alive = {facts.me: facts for _, facts in self._alive(state)}
        for channel in state.channels:
            sender, receiver = alive.get(channel.sender), alive.get(channel.receiver)
            entry = sender.senders.get(channel.receiver) if sender else None
            window = receiver.receivers.get(channel.sender) if receiver else None
            is_open = window is not None and window.conn.epoch == channel.epoch
            if window is not None and is_open and window.delivered > channel.delivered:
                yield "a receiver counts as delivered what its application never got (S2)"
            if entry is None or entry.conn.epoch != channel.epoch:
                continue
            if entry.high != channel.sent:
                yield "a message that was accepted has no seqno, or one that was not has (S1)"
            if entry.low > channel.delivered:
                yield "a sender purged what the receiver has not delivered (S2, Y1)"
            if window and window.conn == entry.conn and entry.low > window.delivered:
                yield "on one connection, the receiver waits for what the sender purged (Y2)"
            if entry.conn.id - FIRST_CONN_ID > state.occasions[channel.receiver[0]]:
                yield "more new connections than reasons to ask for one (Y4)"

    def goal(self, state: State) -> bool:
        """All is sent, and delivered or reported; everybody knows; nothing more will be sent."""
        alive = {facts.me: facts for _, facts in self._alive(state)}
        if any(state.uninformed) or (state.flight and not self.scenario.lasting):
            return False
        if not all(facts.is_quiet for facts in alive.values()):
            return False
        for place, _ in self._alive(state):
            if place in self.scenario.senders and state.sent[place] < self._messages(state):
                return False
        for channel in state.channels:
            # Nobody but the dead may be given up.
            owed = channel.sent if channel.receiver in alive else channel.kept
            if channel.sender in alive and channel.delivered < owed:
                return False
        return True

    def _alive(self, state: State) -> list[tuple[int, Facts]]:
        facts = self.ends.facts
        return [(place, facts[node]) for place, node in enumerate(state.nodes) if node != CRASHED]


def _is_waiting(receiver: Facts | None, sender: End, conn: Conn) -> bool:
    """Whether the answer to a Sync still means something to whoever asked."""
    if receiver is None:
        return False
    window = receiver.receivers.get(sender)
    return sender in receiver.sync_requests or (window is not None and window.conn == conn)


def _wrong_delivery(channel: Channel | None, run: Run) -> Iterator[str]:
    """What is wrong with getting these on a stream that has come so far."""
    if channel is None or run.last > channel.sent:
        yield "a message was delivered that nobody sent (S1)"
        return
    if run.first > channel.delivered + 1:
        yield "a message was delivered before an earlier one (S1)"
    elif run.first <= channel.delivered:
        yield "a message was delivered twice (S1, Y3)"
    seqnos = range(run.first, run.last + 1)
    if run.payloads != [_payload(channel.sender[0], channel.before + s) for s in seqnos]:
        yield "a message was delivered with another content (S1)"


def _payload(place: int, number: int) -> bytes:
    return b"%d#%d" % (place, number)


def _find(channels: tuple[Channel, ...], sender: End, receiver: End, epoch: int) -> Channel | None:
    for channel in channels:
        if channel[:3] == (sender, receiver, epoch):
            return channel
    return None


def _updated(channels: tuple[Channel, ...], changed: Channel) -> tuple[Channel, ...]:
    """With this one in place of its former self; sorted."""
    others = [channel for channel in channels if channel[:3] != changed[:3]]
    return tuple(sorted([*others, changed]))
