"""Joining under every order of events: views made by real members.

A coordinator, a member that sends, and a joiner that asks for admission at any moment. Views and
digests travel in datagrams, and any of these may be lost. The failure detector is left out: that a
member is dead is found out by each of the others at any later moment, and that one is behind, too.

What must hold always: the nodes' own invariants; order, once, and content (N1, N2); a sender keeps
what some member of its view has not delivered (N5, N9). And from every state the goal stays
reachable: those who live are in one view, the joiner too; all is sent and delivered by everybody
who must, and the sender's window is empty.

What keeps it small: timers fire when nothing is under way, except where haste is the fault; only
acks that were put off, and the joiner's request, may come at any time. By timers alone nobody is
left out, and no joiner turns to somebody else unless one has crashed.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.core.effects import NonMember, Suspected
from ringcast.events import Closed
from ringcast.explore.system import GONE, NO_WINDOW, Fault, NodeSystem, replaced
from ringcast.model import Digest, Origin, Stream
from ringcast.protocols.membership import Membership, Timer
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import Timer as ReceiverTimer
from ringcast.wire.frames import Ack, DiscoverReply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import Enum

    from ringcast.core.effects import Effects, Signal
    from ringcast.events import Delivered
    from ringcast.explore.automata import Step
    from ringcast.explore.system import State
    from ringcast.model import Member, View
    from ringcast.node import Node

Now: TypeAlias = "State[tuple[()]]"
Move: TypeAlias = "tuple[str, Now]"
Moves: TypeAlias = "Iterator[Move]"

COORDINATOR, SENDER, JOINER = range(3)
NEVER = (Timer.ASK, Timer.OVERDUE)
"""Looking for other groups, of which there are none; leaving out who is only silent."""


class SenderOnly(ReliableMulticast):
    """Windows for those who send: the others would add nothing but acks of nothing."""

    def install_digest(self, digest: Digest, now: int, out: Effects) -> None:
        of_sender = [each for each in digest.entries.items() if _is_sender(each[0].sender)]
        super().install_digest(Digest(dict(of_sender)), now, out)


class Facts(NamedTuple):
    me: Member
    view: View | None
    """None: it is in none."""
    suspects: frozenset[Member]
    low: int
    high: int
    """Of what it has sent."""
    delivered: int
    """How far its window for the sender's messages is."""
    may_rejoin: bool
    is_settled: bool
    """It waits for nobody's answer."""


class JoinSystem(NodeSystem[Facts, tuple[()]]):
    protocol = Membership
    timers = frozenset(["sent", "received", "membership"])

    def initial(self) -> Now:
        """Two members at rest; the joiner has found them, and may ask at any moment."""
        state = self.at_rest((GONE,) * 3, (), ((NO_WINDOW,),) * 3)
        for place in (COORDINATOR, SENDER, JOINER):
            state = self.calm(self.after(state, place, self._start(place)))
            if place != JOINER:
                ((_, state),) = self._firings(state, place, Timer.DECIDE)
                state = self.calm(state)
        return state

    def calming(self, state: Now) -> Moves:
        """Arrivals, and the acks that were put off."""
        acks = [self._firings(state, place, ReceiverTimer.ACK) for place in range(3)]
        return chain(self.arrivals(state), *acks)

    def _firings(self, state: Now, place: int, which: Enum) -> Moves:
        if state.nodes[place] != GONE:
            for owner, timer in self.armed[state.nodes[place]]:
                if timer is which:
                    yield self.firing(state, place, owner, timer)

    def _start(self, place: int, incarnation: int = 1) -> Step:
        """A process that looks for the others."""
        layers = {"membership": self.protocol, "detector": None, "multicast": SenderOnly}
        node = self.build(place, incarnation, **layers)
        addresses = [self.member(each).address for each in range(3)]

        def start(node: Node, now: int) -> None:
            node.start(now)
            _membership(node).add_candidates(addresses, now, node._out)

        return self.outcome(node, start)

    def read(self, node: Node) -> Facts:
        layer = _membership(node)
        windows = node.multicast.windows()
        own = windows.get(Origin(node.me, Stream.FIFO))
        of_sender = [each.delivered for o, each in windows.items() if _is_sender(o.sender)]
        return Facts(
            me=node.me,
            view=layer.view if layer.is_member else None,
            suspects=frozenset(layer.suspects),
            low=own.low if own else 0,
            high=own.high if own else 0,
            delivered=of_sender[0] if of_sender else NO_WINDOW,
            may_rejoin=layer.may_rejoin,
            is_settled=layer.change is None and not layer.suspects and not layer._joiners,
        )

    def is_over(self, number: int, datagram: int) -> bool:
        """It tells nothing new, and never will."""
        kinds, view = self.datagrams[datagram].kinds, self.facts[number].view
        if kinds == {Ack}:
            is_last = view is not None and self.datagrams[datagram].sender in view
        else:
            is_last = kinds == {DiscoverReply}
        return is_last and self.is_idle(number, datagram)

    # What may happen

    def may_fire(self, state: Now, place: int, timer: Enum, busy: set[int]) -> bool:
        if not self._may_ever_fire(state, timer):
            return False
        has_crashed = self._has_crashed(state)
        if timer is ReceiverTimer.ACK or (timer is Timer.DECIDE and not has_crashed):
            return place not in busy
        return not state.flight

    def _may_ever_fire(self, state: Now, timer: Enum) -> bool:
        return timer not in NEVER and (timer is not Timer.PATIENCE or self._has_crashed(state))

    def _has_crashed(self, state: Now) -> bool:
        return Fault.CRASH in self.scenario.faults and not any(state.left)

    def strike(self, fault: Fault, state: Now) -> Moves:
        if fault is not Fault.HASTE:
            yield from super().strike(fault, state)
            return
        for place, node in self.alive(state):
            for owner, timer in self.armed[node]:
                if self._may_ever_fire(state, timer):
                    yield self.firing(state, place, owner, timer)

    def more_moves(self, state: Now) -> Moves:
        """What the failure detectors would find out: who is dead, and who does not know yet."""
        living = {self.facts[node].me: self.facts[node] for _, node in self.alive(state)}
        for place, node in self.alive(state):
            facts = self.facts[node]
            for member in facts.view or ():
                if member not in living and member not in facts.suspects:
                    step = self._tell(node, Suspected(member, "dead"))
                    yield self.acts(state, place, f"suspects {member}", step)
            for member, other in living.items():
                if _is_behind(other, facts):
                    step = self._tell(node, NonMember(member))
                    label, after = self.acts(state, place, f"hears a beat of {member}", step)
                    if after.flight != state.flight:
                        yield label, after

    def _tell(self, number: int, signal: Signal) -> Step:
        def raise_signal(node: Node, now: int) -> None:
            node._out.signal(signal)
            node._run_to_completion(now)

        return self.step(number, signal, raise_signal)

    def on_delivered(self, state: Now, place: int, node: int, event: Delivered) -> Now:
        if state.delivered[place] == (NO_WINDOW,):  # the first comes after where its window opened
            opened = (self.facts[node].delivered,)
            state = state._replace(delivered=replaced(state.delivered, place, opened))
        return super().on_delivered(state, place, node, event)

    def after(self, state: Now, place: int, step: Step) -> Now:
        """Whoever is out without having asked for it comes back as another incarnation."""
        after = super().after(state, place, step)
        if not any(isinstance(event, Closed) for event in step.events):
            return after
        facts = self.facts[step.after]
        gone = self.end(after, place)
        gone = gone._replace(delivered=replaced(gone.delivered, place, (NO_WINDOW,)))
        if not facts.may_rejoin:
            return gone
        return self.after(gone, place, self._start(place, facts.me.incarnation + 1))

    # What must hold

    def violations(self, state: Now) -> Iterator[str]:
        yield from state.wrong
        if state.nodes[SENDER] == GONE:
            return
        sender = self.facts[state.nodes[SENDER]]
        for _, node in self.alive(state):
            is_counted = sender.view is not None and self.facts[node].me in sender.view
            if is_counted and NO_WINDOW < self.facts[node].delivered < sender.low:
                yield "a sender purged what a member of its view has not delivered (N5, N9)"

    def goal(self, state: Now) -> bool:
        """One view of all who live, nothing waits, and everybody has all that it must have."""
        alive = [self.facts[node] for _, node in self.alive(state)]
        view = alive[0].view
        if view is None or set(view) != {facts.me for facts in alive}:
            return False
        if not all(facts.view == view and facts.is_settled for facts in alive):
            return False
        if state.nodes[SENDER] == GONE:
            return True
        sender = self.facts[state.nodes[SENDER]]
        is_drained = state.sent[0] == sender.low == sender.high == self.scenario.messages
        return is_drained and all(facts.delivered == state.sent[0] for facts in alive)


def _membership(node: Node) -> Membership:
    assert isinstance(node.membership, Membership)
    return node.membership


def _is_sender(member: Member) -> bool:
    return member.address.port == 1 + SENDER


def _is_behind(other: Facts, mine: Facts) -> bool:
    """Whether a beat of the other would show me that it does not know my view."""
    if other.view is None or mine.view is None or mine.me not in other.view:
        return False
    return other.me not in mine.view or other.view.counter < mine.view.counter
