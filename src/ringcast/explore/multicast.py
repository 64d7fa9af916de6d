"""Reliable multicast in one view, plain or uniform, under every order of events. What must hold
says docs/howto/explore.md; what becomes of it when a view ends is in views.py and view_steps.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from ringcast.events import Delivered
from ringcast.explore.system import NodeSystem, Scenario, State, replaced
from ringcast.model import Origin, Stream, View, ViewId
from ringcast.node import Node
from ringcast.protocols.views.streams import ViewStreams
from ringcast.window.receive import ReceiveWindow
from ringcast.wire.frames import Ack


class Marks(NamedTuple):
    """Of one node's windows."""

    low: int  # of its own messages
    high: int
    received: tuple[int, ...]  # by sender


class MulticastSystem(NodeSystem):
    """To a state it adds, by member and by sender, the last seqno that the application has got."""

    protocol = ViewStreams
    timers = frozenset(["sent", "received"])

    def __init__(self, scenario: Scenario, protocol: type | None = None) -> None:
        super().__init__(scenario, protocol)
        self._marks = cache(self._read_marks)
        if len(scenario.senders) > 1:  # all that is ready, as turns do not count
            self.take_limit = len(scenario.senders) * scenario.capacity

    def initial(self) -> State:
        """A group at rest, after all that happens by itself."""
        size, stream = self.scenario.size, self.scenario.stream
        members = tuple(map(self.member, range(size)))
        view = View(ViewId(members[0], 1), members)
        nodes = [self.fresh(me, view, multicast=self.protocol, streams=(stream,)) for me in members]
        state = self.at_rest(nodes, ((0,) * len(self.scenario.senders),) * size)
        while move := next(chain(self.arrivals(state), self.timeouts(state)), None):
            _, state = move
        return state

    def _read_marks(self, number: int) -> Marks:
        node, stream = self.nodes[number], self.scenario.stream
        windows = node.multicast.windows()
        own = windows[Origin(node.me, stream)]
        senders = [windows[Origin(self.member(each), stream)] for each in self.scenario.senders]
        held = (w.received if isinstance(w, ReceiveWindow) else w.high for w in senders)
        return Marks(own.low, own.high, tuple(held))

    def wrong_with(self, node: Node) -> Iterator[str]:
        yield from super().wrong_with(node)
        windows = node.multicast.windows().values()
        if any(w.dropped_high for w in windows if isinstance(w, ReceiveWindow)):
            yield "a receiver dropped what the sender was allowed to send (N4)"

    def where(self, number: int) -> dict[str, Any]:
        return {"stream": self.scenario.stream}

    def is_over(self, number: int, datagram: int) -> bool:
        """An ack of a member that is known to be as far: acks only grow."""
        return self.datagrams[datagram].kinds == {Ack} and self.is_idle(number, datagram)

    def on_event(self, state: State, place: int, node: int, event: object) -> State:
        if not isinstance(event, Delivered):
            return super().on_event(state, place, node, event)
        sender = self.place_of(event.sender)
        i = self.scenario.senders.index(sender)
        wrong = self.wrong_delivery(event.run, state.more[place][i], sender)
        counts = replaced(state.more[place], i, event.run.last)
        return state._replace(
            more=replaced(state.more, place, counts), wrong=(*state.wrong, *wrong)
        )

    # What must hold

    def violations(self, state: State) -> Iterator[str]:
        yield from state.wrong
        marks = [self._marks(node) for node in state.nodes]
        for i, sender in enumerate(self.scenario.senders):
            delivered = [counts[i] for counts in state.more]
            if min(delivered) < marks[sender].low:
                yield "a sender purged what a member of its view has not delivered (N5)"
            is_uniform = self.scenario.stream is Stream.UNIFORM
            if is_uniform and max(delivered) > min(each.received[i] for each in marks):
                yield "a uniform message was delivered before all held it (U3)"

    def goal(self, state: State) -> bool:
        """All is sent and has reached everybody, and the windows are empty."""
        for i, sender in enumerate(self.scenario.senders):
            marks, sent = self._marks(state.nodes[sender]), state.sent[i]
            if not sent == marks.low == marks.high == self.scenario.messages:
                return False
            if any(counts[i] != sent for counts in state.more):
                return False
        return True
