"""Reliable multicast under every order of events: views and digests come from outside.

What must hold always: the nodes' own invariants; order, once, and content (N1, N2); no receiver
drops what a sender was allowed to send (N4); a sender keeps what some member of its view has not
delivered (N5, N9); nothing is delivered from the departed (N8). And from every state the goal stays
reachable: all is sent, and delivered by all who are left, and the senders' windows are empty.

Windows exist for senders only: the others would add nothing but acks of nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.explore.automata import NAMES
from ringcast.explore.system import GONE, NO_WINDOW, Fault, NodeSystem, replaced
from ringcast.model import Digest, Origin, Stream
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.window.windows import ReceiveWindow
from ringcast.wire.frames import Ack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.events import Delivered
    from ringcast.explore.automata import Step
    from ringcast.explore.system import Scenario, State
    from ringcast.model import View
    from ringcast.node import Node

Now: TypeAlias = "State[Change]"
Move: TypeAlias = "tuple[str, Now]"
Moves: TypeAlias = "Iterator[Move]"


class Facts(NamedTuple):
    view: tuple[int, ...]
    """By place."""
    low: int
    """Of its own messages."""
    high: int


class Change(NamedTuple):
    """How far a change of the group has come."""

    installed: tuple[bool, ...]
    """By member: has the view after the crash or join."""
    digest: tuple[int, ...] = ()
    """The offsets for the joiner, by sender, once taken."""


class MulticastSystem(NodeSystem[Facts, Change]):
    protocol = ReliableMulticast
    timers = frozenset(["sent", "received"])

    def __init__(self, scenario: Scenario, protocol: type | None = None) -> None:
        super().__init__(scenario, protocol)
        if len(scenario.senders) > 1:  # all that is ready, as turns do not count
            self.take_limit = len(scenario.senders) * scenario.capacity

    def initial(self) -> Now:
        """A group at rest: the founders have told each other where their windows stand."""
        scenario = self.scenario
        nodes = map(self._fresh, range(scenario.size))
        delivered = [
            0 if place < scenario.founders else NO_WINDOW for place in range(scenario.size)
        ]
        state = self.at_rest(
            nodes,
            Change((False,) * scenario.size),
            tuple((seqno,) * len(scenario.senders) for seqno in delivered),
        )
        return self.calm(state)

    def _fresh(self, place: int) -> int:
        """A founder in the first view, or somebody who is in none."""
        node = self.build(place, multicast=self.protocol)
        if place < self.scenario.founders:
            node.install_view(self.view(1, range(self.scenario.founders)), 0)
            node.install_digest(self._digest([0] * len(self.scenario.senders)), 0)
            node.take_events(0, 0)
        return self.number(node)

    def read(self, node: Node) -> Facts:
        own = node.multicast.windows().get(Origin(node.me, Stream.FIFO))
        view = tuple(self.place_of(member) for member in node.view or ())
        return Facts(view, own.low if own else 0, own.high if own else 0)

    def wrong_with(self, node: Node) -> Iterator[str]:
        yield from super().wrong_with(node)
        windows = node.multicast.windows().values()
        if any(w.dropped_high for w in windows if isinstance(w, ReceiveWindow)):
            yield "a receiver dropped what the sender was allowed to send (N4)"

    def is_over(self, number: int, datagram: int) -> bool:
        """An ack from a member that the receiver knows, and knows to be as far: acks only grow."""
        source, kinds = self.datagrams[datagram].source, self.datagrams[datagram].kinds
        is_ack = kinds == {Ack} and source in self.facts[number].view
        return is_ack and self.is_idle(number, datagram)

    def _digest(self, offsets: Iterable[int]) -> Digest:
        pairs = zip(self.scenario.senders, offsets, strict=True)
        return Digest({Origin(self.member(s), Stream.FIFO): offset for s, offset in pairs})

    # What follows from a crash or a join

    def more_moves(self, state: Now) -> Moves:
        alive = self.alive(state)
        if Fault.JOIN in self.scenario.faults:
            if not any(state.left):
                yield from self._join_moves(state)
        elif len(alive) < self.scenario.size:
            view = self.view(2, [place for place, _ in alive])
            for place, node in alive:
                yield from self._install(state, place, self.install_view(node, view), view)

    def _join_moves(self, state: Now) -> Moves:
        """The view to every old member; then the digest is taken; then the joiner enters."""
        joiner = self.scenario.founders
        view = self.view(2, range(self.scenario.size))
        for place, node in enumerate(state.nodes[:joiner]):
            yield from self._install(state, place, self.install_view(node, view), view)
        if not all(state.more.installed[:joiner]):
            return
        if not state.more.digest:
            after = self._take_digest(state)
            yield f"{NAMES[0]}: takes the digest {list(after.more.digest)}", after
        elif not state.more.installed[joiner]:
            offsets = state.more.digest

            def enter(node: Node, now: int) -> None:
                node.install_view(view, now)
                node.install_digest(self._digest(offsets), now)

            step = self.step(state.nodes[joiner], ("enter", offsets), enter)
            opened = replaced(state.delivered, joiner, offsets)
            after = self._installed(state._replace(delivered=opened), joiner)
            yield self.acts(after, joiner, f"enters at digest {list(offsets)}", step)

    def _install(self, state: Now, place: int, step: Step, view: View) -> Moves:
        if not state.more.installed[place]:
            yield self.acts(self._installed(state, place), place, f"installs {view}", step)

    def _installed(self, state: Now, place: int) -> Now:
        installed = replaced(state.more.installed, place, True)
        return state._replace(more=state.more._replace(installed=installed))

    def _take_digest(self, state: Now) -> Now:
        entries = self.nodes[state.nodes[0]][0].digest().entries
        origins = [Origin(self.member(s), Stream.FIFO) for s in self.scenario.senders]
        offsets = tuple(entries.get(origin, 0) for origin in origins)
        return state._replace(more=state.more._replace(digest=offsets))

    def strike(self, fault: Fault, state: Now) -> Moves:
        if fault is not Fault.JOIN:
            yield from super().strike(fault, state)
            return
        label = f"JOIN of {NAMES[self.scenario.founders]} begins"
        if self.scenario.digest_first:
            state = self._take_digest(state)
            label += f": {NAMES[0]} takes the digest {list(state.more.digest)}"
        yield label, state

    def on_delivered(self, state: Now, place: int, node: int, event: Delivered) -> Now:
        state = super().on_delivered(state, place, node, event)
        if self.place_of(event.sender) in self.facts[node].view:
            return state
        wrong = "a message of a departed member was delivered (N8)"
        return state._replace(wrong=(*state.wrong, wrong))

    # What must hold

    def violations(self, state: Now) -> Iterator[str]:
        yield from state.wrong
        for i, sender in enumerate(self.scenario.senders):
            if state.nodes[sender] != GONE:
                facts = self.facts[state.nodes[sender]]
                counts = [state.delivered[place][i] for place in facts.view]
                if any(NO_WINDOW < seqno < facts.low for seqno in counts):
                    yield "a sender purged what a member of its view has not delivered (N5, N9)"

    def goal(self, state: Now) -> bool:
        """All is sent and has reached everybody, the windows are empty, the change is over."""
        alive = [place for place, _ in self.alive(state)]
        is_changing = len(alive) < self.scenario.size or Fault.JOIN in self.scenario.faults
        if is_changing and not all(state.more.installed[place] for place in alive):
            return False
        for i, sender in enumerate(self.scenario.senders):
            if sender in alive:
                facts, sent = self.facts[state.nodes[sender]], state.sent[i]
                if not sent == facts.low == facts.high == self.scenario.messages:
                    return False
                if any(state.delivered[place][i] != sent for place in alive):
                    return False
        return True
