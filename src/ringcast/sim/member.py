"""SimulatedMember: what runs in a process of a simulation, an observed node and its application."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ringcast.core.shared import Phase
from ringcast.events import Delivered, FragmentsDelivered, StateChunk, Undeliverable, Writable
from ringcast.model import Member, Stream, ViewId
from ringcast.node import Node
from ringcast.protocols.views.change import ViewChange
from ringcast.protocols.views.layer import GroupViews
from ringcast.sim.harness import Harness
from ringcast.sim.workload import EVERYBODY, SECOND, Application, Backlog, Keeper
from ringcast.sim.world import Process

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster

FIRST_PORT = 7800
"""Of slot 0; the others follow."""
OFFER_MAX = 100
"""Messages offered to a node in one call."""


class SimulatedMember(Harness):
    """An observed node, and an application that sends and takes as the run's options say."""

    process: SimProcess

    def __init__(self, cluster: Cluster, node: Node, slot: int) -> None:
        options, has_state = cluster.options, node.state is not None and node.state.has_state
        self.keeper = Keeper(self, cluster) if has_state else None
        super().__init__(node, slot, cluster.recorder, cluster.wiretap)
        self.application = Application(node.me, options, cluster.payloads)
        self.was_late = False
        """It slept, or its clock or timers were wrong, at some time."""
        self.told: set[tuple[ViewId, Member]] = set()
        """In which views it was told that a member of them is gone."""
        self._cluster = cluster
        self._options = options

    @property
    def change(self) -> ViewChange | None:
        """Its side of view changes, unless it is out, or has not started."""
        membership = self.node.membership
        assert isinstance(membership, GroupViews)
        is_there = membership.phase in (Phase.LOOKING, Phase.MEMBER, Phase.LEAVING)
        return membership.change if is_there else None

    # What its process asks of it

    def doomed(self) -> None:
        self._cluster.crash(self.process)

    def closed(self) -> None:
        self._cluster.oracle.gone(self.process)

    def act(self, now: int) -> None:
        """The application takes, and sends what it wants to."""
        self.check_invariants()
        self._cluster.oracle.look(self)
        limit = self._options.take_limit if self.application.rate is None else 0
        while True:
            took = self._take(limit, now)
            sent = self._send(now)
            # Taking one's own messages may make room: then there is one more event to see, or the
            # rest of a large message to take.
            has_more = self.application.is_waiting or self.node.has_ready
            is_done = limit > OFFER_MAX and not has_more
            if not sent and (not took or is_done):
                return

    def _take(self, limit: int, now: int) -> bool:
        """Whether there were messages."""
        events = self.take(limit, now)
        for event in events:
            if isinstance(event, Writable | Undeliverable):
                self.application.writable(event.to)
        if self.keeper is not None:
            self.keeper.react(events)
        return any(
            isinstance(event, Delivered | FragmentsDelivered | StateChunk) for event in events
        )

    def _send(self, now: int) -> bool:
        """Offer every backlog; whether anything was accepted."""
        if self.is_closed or not self._may_send:
            return False
        offers = [
            self._offer(dest, backlog, now)
            for dest, backlog in self.application.backlogs.items()
            if backlog.wanted
        ]
        return any(offers)

    @property
    def _may_send(self) -> bool:
        """Messages to the group need a member that stays; those to one member only need to know its
        address."""
        membership = self.node.membership
        is_member = membership is not None and membership.phase is Phase.MEMBER
        return self.node.view is not None and (is_member or self._options.protocol == "unicast")

    def _offer(self, dest: int, backlog: Backlog, now: int) -> bool:
        if dest >= 0:
            to = self.member_at(dest + FIRST_PORT)
            # Whoever knows that a member is gone does not write to it any more.
            is_gone = self._options.protocol != "unicast" and to not in (self.node.view or ())
            if to is None or is_gone:
                return False
            if to != backlog.to:
                backlog.to = to
                backlog.is_waiting = False
        if backlog.is_waiting:
            return False
        messages = backlog.next_messages(OFFER_MAX)
        second = self._options.second
        stream = second if dest == SECOND and second is not None else Stream.FIFO
        try:
            accepted = self.send(messages, now, backlog.to, stream)
        except Undeliverable:
            return False  # not in the view: it tries again when something has happened
        backlog.accepted(accepted)
        backlog.is_waiting = accepted < len(messages)
        return accepted > 0

    # What the run asks of it

    def depart(self) -> None:
        """In good order."""
        if self._options.deaf_leavers:
            self.application.rate = 0
            for dest in (EVERYBODY, SECOND) if self._options.second is not None else (EVERYBODY,):
                self.want(dest, self._options.late_messages)
        self.leave(self.process.now)
        self.process.turn()

    def want(self, dest: int, count: int) -> None:
        """The application has more to send."""
        if not self.process.is_alive or self.is_closed:
            return
        if not self.application.want(dest, count).is_waiting:
            self.process.turn()

    def take_slowly(self, rate: float) -> None:
        """One message each 1/rate seconds, until the application is itself again."""
        if not self.process.is_alive or self.application.rate != rate:
            return
        if self.process.can_act:
            self._take(1, self.process.now)
            self.process.turn()
        self._cluster.clock.after(1000 / rate, self.take_slowly, rate)


SimProcess: TypeAlias = Process[SimulatedMember]
