"""Machine: one incarnation of a node, and the driver that turns its wheel.

What a driver owes a node: hand over what has arrived, let the application send, and take for as
long as something is ready, send the node's datagrams, and wake it at its deadline. Drivers differ,
and here one does it in every way that is allowed: at once or in batches, with datagrams blocked,
and with timers that are late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ringcast.events import Delivered, FragmentsDelivered, StateChunk, Undeliverable, Writable
from ringcast.model import Stream
from ringcast.sim.agenda import ns
from ringcast.sim.workload import EVERYBODY, UNIFORM
from ringcast.trace.rows import PAUSE, RESUME

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ringcast.model import Address, Member
    from ringcast.sim.agenda import Agenda, LocalClock
    from ringcast.sim.application import Giver
    from ringcast.sim.harness import Harness
    from ringcast.sim.network import Network, Packet
    from ringcast.sim.options import Options
    from ringcast.sim.workload import Application, Backlog

FIRST_PORT = 7800
"""Of slot 0; the others follow."""
OFFER_MAX = 100
"""Messages offered to a node in one call."""
SOCKET_PACKETS_MAX = 500
"""Packets that wait for a paused member; more are lost, as in a full socket buffer."""


class World(Protocol):
    """What machines share."""

    @property
    def options(self) -> Options: ...
    @property
    def agenda(self) -> Agenda: ...
    @property
    def network(self) -> Network: ...
    @property
    def random(self) -> Random: ...

    def may_send(self, machine: Machine) -> bool:
        """Whether the application may send: its member is in the group."""
        ...

    def may_send_to(self, machine: Machine, peer: Member) -> bool:
        """Whether it may send to this one, whom it has had in a view."""
        ...

    def crash(self, machine: Machine) -> None: ...

    def closed(self, machine: Machine) -> None:
        """This member is out of its group."""
        ...


class Machine:
    """A node with its harness, its clock, its application, and what ails it."""

    def __init__(
        self, world: World, harness: Harness, clock: LocalClock, application: Application
    ) -> None:
        self.harness = harness
        self.clock = clock
        self.application = application
        self.giver: Giver | None = None
        """Who gives the application's state away, if it has one."""
        self.is_alive = True
        self.is_paused = False
        self.doom: int | None = None
        """Copies of datagrams that still leave before the crash."""
        self.timer_fault = ""
        self.timer_late = 0
        """How late they are at most; with bursts, the time from one to the next (0: 50 ms)."""
        self.was_late = False
        """It slept, or its clock or timers were wrong, at some time."""
        self.arrivals: list[Packet] = []
        self.deferred: list[Callable[[], None]] = []
        self._world = world
        self._wake_at: int | None = None
        self._is_polling = False
        self._is_holding = False

    @property
    def can_act(self) -> bool:
        return self.is_alive and not self.is_paused and not self.harness.is_closed

    @property
    def now(self) -> int:
        """What its clock shows."""
        return self.clock.read(self._world.agenda.now)

    # Packets

    def arrive(self, packet: Packet) -> None:
        if not self.is_alive or self.harness.is_closed:
            return
        if len(self.arrivals) < SOCKET_PACKETS_MAX:
            self.arrivals.append(packet)
        if self.is_paused:
            return
        world = self._world
        if world.options.poll_ms and not world.network.is_calm:
            if not self._is_polling:
                self._is_polling = True
                world.agenda.after(world.random.uniform(0, world.options.poll_ms), self.poll)
            return
        self.poll()

    def poll(self) -> None:
        """Hand over what has arrived, all in one call or each in its own."""
        self._is_polling = False
        if not self.can_act or not self.arrivals:
            return
        arrivals, self.arrivals = self.arrivals, []
        now = self.now
        is_batch = len(arrivals) == 1 or (
            not self.harness.has_own_views and self._world.random.random() < 0.5
        )
        if is_batch:
            self.harness.receive(arrivals, now)
        else:
            for packet in arrivals:
                self.harness.receive([packet], now)
        self.turn()

    def flush(self) -> None:
        """Send what the node wants sent. A doomed member crashes in the middle of it."""
        self._is_holding = False
        if not self.is_alive:
            return
        copies = [
            (packet, slot)
            for dest, packet in self.harness.take_packets()
            for slot in self._destinations(dest)
        ]
        if self.doom is not None and self.harness.has_own_views:
            # Whoever would take its place must not always be the one who hears of it last.
            self._world.random.shuffle(copies)
        for packet, slot in copies:
            if self.doom is not None:
                if self.doom == 0:
                    self._world.crash(self)
                    return
                self.doom -= 1
            self._world.network.send(packet, slot)

    def _destinations(self, dest: Address | None) -> list[int]:
        if dest is not None:
            return [dest.port - FIRST_PORT]
        view = self.harness.node.view
        others = [] if view is None else [m.address for m in view if m != self.harness.me]
        return [address.port - FIRST_PORT for address in dict.fromkeys(others)]

    # After an input

    def turn(self) -> None:
        """The application takes and sends, datagrams leave, the timer is set anew."""
        if not self.can_act:
            return
        self.harness.check_invariants()
        self._let_application_act()
        world = self._world
        if world.options.hold_ms and not world.network.is_calm and self.doom is None:
            if not self._is_holding:
                self._is_holding = True
                world.agenda.after(world.random.uniform(0, world.options.hold_ms), self.flush)
        else:
            self.flush()
        if self.harness.is_closed:
            world.closed(self)
        else:
            self.set_timer()

    def _let_application_act(self) -> None:
        now = self.now
        limit = self._world.options.take_limit if self.application.rate is None else 0
        while True:
            took = self._take(limit, now)
            sent = self._send(now)
            # Taking one's own messages may make room: then there is one more event to see, or the
            # rest of a large message to take.
            has_more = self.application.is_waiting or self.harness.node.has_ready
            is_done = limit > OFFER_MAX and not has_more
            if not sent and (not took or is_done):
                return

    def _take(self, limit: int, now: int) -> bool:
        """Whether there were messages."""
        events = self.harness.take(limit, now)
        for event in events:
            if isinstance(event, Writable | Undeliverable):
                self.application.writable(event.to)
        if self.giver is not None:
            self.giver.react(events)
        return any(
            isinstance(event, Delivered | FragmentsDelivered | StateChunk) for event in events
        )

    def _send(self, now: int) -> bool:
        """Offer every backlog; whether anything was accepted."""
        if self.harness.is_closed or not self._world.may_send(self):
            return False
        offers = [
            self._offer(dest, backlog, now)
            for dest, backlog in self.application.backlogs.items()
            if backlog.wanted
        ]
        return any(offers)

    def _offer(self, dest: int, backlog: Backlog, now: int) -> bool:
        if dest >= 0:
            to = self.harness.member_at(dest + FIRST_PORT)
            if to is None or not self._world.may_send_to(self, to):
                return False
            if to != backlog.to:
                backlog.to = to
                backlog.is_waiting = False
        if backlog.is_waiting:
            return False
        messages = backlog.next_messages(OFFER_MAX)
        stream = Stream.UNIFORM if dest == UNIFORM else Stream.FIFO
        try:
            accepted = self.harness.send(messages, now, backlog.to, stream)
        except Undeliverable:
            return False  # not in the view: it tries again when something has happened
        backlog.accepted(accepted)
        backlog.is_waiting = accepted < len(messages)
        return accepted > 0

    def leave(self) -> None:
        """In good order."""
        options = self._world.options
        if options.deaf_leavers:
            self.application.rate = 0
            for dest in (EVERYBODY, UNIFORM) if options.has_uniform else (EVERYBODY,):
                self.want(dest, options.late_messages)
        self.harness.leave(self.now)
        self.turn()

    def want(self, dest: int, count: int) -> None:
        """The application has more to send."""
        if not self.is_alive or self.harness.is_closed:
            return
        if not self.application.want(dest, count).is_waiting:
            self.turn()

    def take_slowly(self, rate: float) -> None:
        """One message each 1/rate seconds, until the application is itself again."""
        if not self.is_alive or self.application.rate != rate:
            return
        if self.can_act:
            self._take(1, self.now)
            self.turn()
        self._world.agenda.after(1000 / rate, self.take_slowly, rate)

    # State for joiners

    def provide_state(self, transfer: int, limit: int) -> bool:
        """Give up to `limit` chunks of this state. Whether it may go on at once."""
        may_go_on = self.harness.provide_state(transfer, limit, self.now)
        self.turn()
        return may_go_on

    def refuse_state(self, transfer: int) -> None:
        self.harness.refuse_state(transfer, self.now)
        self.turn()

    # Sleep

    def pause(self) -> None:
        self.is_paused = True
        self.harness.note(PAUSE)

    def resume(self) -> bool:
        """Everything that waited comes at once; False if it did not sleep."""
        if not self.is_alive or not self.is_paused:
            return False
        self.is_paused = False
        self.harness.note(RESUME)
        deferred, self.deferred = self.deferred, []
        for action in deferred:
            action()
        self.poll()
        self.turn()
        return True

    # Timers

    def set_timer(self) -> None:
        world = self._world
        deadline = self.harness.node.next_timeout()
        due = None if deadline is None else self.clock.when(deadline)
        if due is None or not self.is_alive:
            return
        match self.timer_fault:
            case "never":
                return
            case "late":
                due += round(self.timer_late * world.random.random())
            case "bursts":
                due += -due % (self.timer_late or ns(50))
        due = max(due, world.agenda.now)
        if self._wake_at is None or due < self._wake_at:
            self._wake_at = due
            world.agenda.at(due, self._wake, due)

    def _wake(self, planned: int) -> None:
        if self._wake_at != planned:
            return  # an earlier one was set meanwhile
        self._wake_at = None
        if not self.can_act:
            return
        now = self.now
        deadline = self.harness.node.next_timeout()
        if deadline is not None and deadline <= now:
            self.harness.handle_timeout(now)
            if self.timer_fault == "twice":
                self.harness.handle_timeout(now)
            self.turn()
        else:
            self.set_timer()
