"""Reliable multicast in one view, plain or uniform, under every order of events.

What must hold always: the nodes' own invariants; order, once, and content (N1, N2); no receiver
drops what a sender was allowed to send (N4); a sender keeps what some member of its view has not
delivered (N5); a uniform message is delivered only when all hold it (U3). And from every state the
goal stays reachable: all is sent, and delivered by all, and the senders' windows are empty.

What becomes of it when a view ends: views.py and view_steps.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.explore.system import NodeSystem
from ringcast.model import Origin, Stream
from ringcast.protocols.views.streams import ViewStreams
from ringcast.window.receive import ReceiveWindow
from ringcast.wire.frames import Ack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.explore.automata import Step
    from ringcast.explore.system import Scenario, State
    from ringcast.node import Node

Now: TypeAlias = "State[tuple[()]]"


class Facts(NamedTuple):
    low: int
    """Of its own messages."""
    high: int
    received: tuple[int, ...]
    """By sender."""


class MulticastSystem(NodeSystem[Facts, tuple[()]]):
    protocol = ViewStreams
    timers = frozenset(["sent", "received"])

    def __init__(self, scenario: Scenario, protocol: type | None = None) -> None:
        super().__init__(scenario, protocol)
        if len(scenario.senders) > 1:  # all that is ready, as turns do not count
            self.take_limit = len(scenario.senders) * scenario.capacity

    def initial(self) -> Now:
        """A group at rest."""
        nodes = map(self._fresh, range(self.scenario.size))
        nothing = ((0,) * len(self.scenario.senders),) * self.scenario.size
        return self.calm(self.at_rest(nodes, (), nothing))

    def _fresh(self, place: int) -> int:
        node = self.build(place, multicast=self.protocol, streams=(self.scenario.stream,))
        node.install_view(self.view(1, range(self.scenario.size)), 0)
        node.take_events(0, 0)
        return self.number(node)

    def read(self, node: Node) -> Facts:
        windows = node.multicast.windows()
        own = windows[self._origin(self.place_of(node.me))]
        senders = [windows[self._origin(sender)] for sender in self.scenario.senders]
        held = (w.received if isinstance(w, ReceiveWindow) else w.high for w in senders)
        return Facts(own.low, own.high, tuple(held))

    def _origin(self, place: int) -> Origin:
        return Origin(self.member(place), self.scenario.stream)

    def wrong_with(self, node: Node) -> Iterator[str]:
        yield from super().wrong_with(node)
        windows = node.multicast.windows().values()
        if any(w.dropped_high for w in windows if isinstance(w, ReceiveWindow)):
            yield "a receiver dropped what the sender was allowed to send (N4)"

    def send(self, number: int, payload: bytes) -> Step:
        stream = self.scenario.stream
        return self.step(
            number, payload, lambda node, now: node.send([payload], now, stream=stream)
        )

    def is_over(self, number: int, datagram: int) -> bool:
        """An ack of a member that is known to be as far: acks only grow."""
        return self.datagrams[datagram].kinds == {Ack} and self.is_idle(number, datagram)

    # What must hold

    def violations(self, state: Now) -> Iterator[str]:
        yield from state.wrong
        facts = [self.facts[node] for node in state.nodes]
        for i, sender in enumerate(self.scenario.senders):
            counts = [delivered[i] for delivered in state.delivered]
            if min(counts) < facts[sender].low:
                yield "a sender purged what a member of its view has not delivered (N5)"
            is_uniform = self.scenario.stream is Stream.UNIFORM
            if is_uniform and max(counts) > min(each.received[i] for each in facts):
                yield "a uniform message was delivered before all held it (U3)"

    def goal(self, state: Now) -> bool:
        """All is sent and has reached everybody, and the windows are empty."""
        for i, sender in enumerate(self.scenario.senders):
            facts, sent = self.facts[state.nodes[sender]], state.sent[i]
            if not sent == facts.low == facts.high == self.scenario.messages:
                return False
            if any(delivered[i] != sent for delivered in state.delivered):
                return False
        return True
