"""The virtual world: one clock, one network, and the processes on it.

A `Process` drives one node as a real driver does: it hands over what has arrived, lets the
application take and send, sends the node's datagrams, and wakes the node at its deadline. Drivers
differ, and `Driving` says how: at once or in batches, with datagrams blocked. A process may pause
with its socket buffer filling up, its timers may be late, and its clock may be wrong.

A `Network` carries datagrams between addresses. Its `faults` are asked in order what becomes of
each one (`sim/faults.py`). All chance comes from generators that are passed in, and nothing here
iterates over a set: one seed, one run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, Protocol, TypeAlias, TypeVar

from ringcast.model import Address
from ringcast.node import Node
from ringcast.sim.clock import LocalClock, VirtualClock, ns
from ringcast.sim.network import Packet

SOCKET_DATAGRAMS_MAX = 500
"""Datagrams that wait for a paused process; more are lost, as in a full socket buffer."""


# The network


@dataclass(slots=True, eq=False)
class Link:
    """One direction between two addresses, with a generator of its own: leaving out one fault
    disturbs other links as little as possible."""

    source: Address
    dest: Address
    name: str
    random: Random
    factor: float = 1.0  # how many times the usual delay it takes
    sent: int = 0
    last_arrival: int = 0


@dataclass(slots=True)
class Flight:
    """One datagram on its way."""

    link: Link
    datagram: bytes
    due: int  # when it arrives
    packet: Packet | None = None  # what the sender's observer knows of it
    sender: object = None  # the process or socket that sent it
    draws: tuple[float, ...] = ()  # as many for every datagram, whatever becomes of it
    base: int = 0  # when it would arrive if nothing but the usual delay befell it
    keeps_order: bool = True  # it does not overtake what left before it
    is_copy: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the frames in it, where somebody has looked."""
        return () if self.packet is None else self.packet.kinds


Fault: TypeAlias = "Callable[[Flight, Random], list[Flight]]"
"""What may befall a datagram: what of it goes on. None, it is lost; two, it is copied; it may have
other bytes, or be due at another time."""


class Network:
    """Carries datagrams from address to address."""

    def __init__(
        self,
        clock: VirtualClock,
        link: Callable[[Address, Address], Link],
        deliver: Callable[[Flight], None],
    ) -> None:
        """`link` makes the link between two addresses, when the first datagram takes it."""
        self.clock = clock
        self.faults: Sequence[Fault] = ()
        """In order."""
        self.on_arrival: Callable[[Flight], None] | None = None
        """Told of each that arrives, before anybody gets it."""
        self._new_link = link
        self._deliver = deliver
        self._links: dict[tuple[Address, Address], Link] = {}
        self._era = 0
        self._oldest = 0  # what was sent before that era does not arrive

    def send(
        self,
        source: Address,
        dest: Address,
        datagram: bytes,
        packet: Packet | None = None,
        sender: object = None,
    ) -> None:
        link = self.link(source, dest)
        link.sent += 1
        now = self.clock.now
        flights = [Flight(link, datagram, now, packet, sender)]
        for fault in self.faults:
            if len(flights) == 1:
                flights = fault(flights[0], link.random)
            else:
                flights = [more for each in flights for more in fault(each, link.random)]
        for flight in flights:
            if flight.keeps_order:
                flight.due = link.last_arrival = max(flight.due, link.last_arrival)
            self.clock.at(flight.due, self._arrive, flight, self._era)

    def link(self, source: Address, dest: Address) -> Link:
        link = self._links.get((source, dest))
        if link is None:
            link = self._links[source, dest] = self._new_link(source, dest)
        return link

    def send_again(self, flight: Flight, after_ms: float) -> None:
        """A copy of what was sent long ago arrives, whatever faults there are now."""
        self.clock.after(after_ms, self._arrive, flight, self._era)

    def begin_era(self) -> None:
        """What is sent from now on waits for nothing that is under way."""
        self._era += 1
        for link in self._links.values():
            link.last_arrival = 0

    def expire(self) -> None:
        """What was sent before this era never arrives."""
        self._oldest = self._era

    def _arrive(self, flight: Flight, era: int) -> None:
        if era < self._oldest:
            return
        if self.on_arrival is not None:
            self.on_arrival(flight)
        self._deliver(flight)


# Processes


@dataclass(slots=True)
class Driving:
    """How drivers serve their nodes. One for all processes of a world; it may change."""

    random: Random = field(default_factory=Random)
    poll_ms: float = 0.0  # what arrives is read within this time; 0: at once
    hold_ms: float = 0.0  # datagrams leave within this time; 0: at once
    batch_share: float = 1.0  # how often arrivals are handed over in one call, not one by one
    shuffles_doomed: bool = False  # the last datagrams of a process that crashes leave in any order


class Resident(Protocol):
    """What a process runs: a node with its application."""

    @property
    def node(self) -> Node: ...
    @property
    def is_closed(self) -> bool:
        """The application knows that its member is out of the group."""
        ...

    def receive(self, flights: Sequence[Flight], now: int) -> None: ...
    def handle_timeout(self, now: int) -> None: ...
    def transport_hint(self, address: Address, now: int) -> None: ...
    def act(self, now: int) -> None:
        """After an input: the application takes and sends."""
        ...

    def take_datagrams(self) -> Sequence[tuple[Address | None, bytes, Packet | None]]: ...
    def doomed(self) -> None:
        """The last copy before the crash has left."""
        ...

    def closed(self) -> None:
        """The last datagrams have left."""
        ...


R = TypeVar("R", bound=Resident)


class Process(Generic[R]):
    """One incarnation of a member, with its clock, its socket buffer, and what ails it."""

    def __init__(
        self, world: World[R], address: Address, resident: R, clock: LocalClock | None = None
    ) -> None:
        self.address = address
        self.resident = resident
        self.clock = clock or LocalClock()
        self.is_alive = True
        self.is_paused = False
        self.doom: int | None = None
        """Copies of datagrams that still leave before the crash."""
        self.timer_fault = ""
        """"never", "late", "bursts" or "twice"."""
        self.timer_late = 0
        """How late timers are at most; with bursts, the time from one to the next (0: 50 ms)."""
        self.deferred: list[Callable[[], None]] = []
        """What others wanted of it while it was paused."""
        self._arrived: list[Flight] = []
        self._world = world
        self._wake_at: int | None = None
        self._is_polling = False
        self._is_holding = False

    @property
    def node(self) -> Node:
        return self.resident.node

    @property
    def is_up(self) -> bool:
        return self.is_alive and not self.resident.is_closed

    @property
    def can_act(self) -> bool:
        return self.is_alive and not self.is_paused and not self.resident.is_closed

    @property
    def now(self) -> int:
        """What its clock shows."""
        return self.clock.read(self._world.clock.now)

    # Datagrams

    def arrive(self, flight: Flight) -> None:
        if len(self._arrived) < SOCKET_DATAGRAMS_MAX:
            self._arrived.append(flight)
        if self.is_paused:
            return
        driving = self._world.driving
        if not driving.poll_ms:
            self.poll()
        elif not self._is_polling:
            self._is_polling = True
            self._world.clock.after(driving.random.uniform(0, driving.poll_ms), self.poll)

    def poll(self) -> None:
        """Hand over what has arrived, all in one call or each in its own."""
        self._is_polling = False
        if not self.can_act or not self._arrived:
            return
        arrived, self._arrived = self._arrived, []
        now, driving = self.now, self._world.driving
        share = driving.batch_share
        is_batch = len(arrived) == 1 or share == 1.0
        if is_batch or (share and driving.random.random() < share):
            self.resident.receive(arrived, now)
        else:
            for flight in arrived:
                self.resident.receive([flight], now)
        self.turn()

    def flush(self) -> None:
        """Send what the node wants sent. A doomed process crashes in the middle of it."""
        self._is_holding = False
        if not self.is_alive:
            return
        copies = [
            (address, datagram, packet)
            for dest, datagram, packet in self.resident.take_datagrams()
            for address in self._destinations(dest)
        ]
        if self.doom is not None and self._world.driving.shuffles_doomed:
            # Whoever would take its place must not always be the one who hears of it last.
            self._world.driving.random.shuffle(copies)
        for address, datagram, packet in copies:
            if self.doom is not None:
                if self.doom == 0:
                    self.resident.doomed()
                    return
                self.doom -= 1
            self._world.network.send(self.address, address, datagram, packet, self)

    def _destinations(self, dest: Address | None) -> list[Address]:
        if dest is not None:
            return [dest]
        node = self.node
        others = [member.address for member in node.view or () if member != node.me]
        return list(dict.fromkeys(others))

    # After an input

    def turn(self) -> None:
        """The application takes and sends, datagrams leave, the timer is set anew."""
        if not self.can_act:
            return
        self.resident.act(self.now)
        driving = self._world.driving
        if not driving.hold_ms or self.doom is not None:
            self.flush()
        elif not self._is_holding:
            self._is_holding = True
            self._world.clock.after(driving.random.uniform(0, driving.hold_ms), self.flush)
        if self.resident.is_closed:
            self.resident.closed()
        else:
            self.set_timer()

    def set_timer(self) -> None:
        deadline = self.node.next_timeout()
        due = None if deadline is None else self.clock.when(deadline)
        if due is None or not self.is_alive:
            return
        match self.timer_fault:
            case "never":
                return
            case "late":
                due += round(self.timer_late * self._world.driving.random.random())
            case "bursts":
                due += -due % (self.timer_late or ns(50))
        due = max(due, self._world.clock.now)
        if self._wake_at is None or due < self._wake_at:
            self._wake_at = due
            self._world.clock.at(due, self._wake, due)

    def _wake(self, planned: int) -> None:
        if self._wake_at != planned:
            return  # an earlier one was set meanwhile
        self._wake_at = None
        if not self.can_act:
            return
        now = self.now
        deadline = self.node.next_timeout()
        if deadline is not None and deadline <= now:
            self.resident.handle_timeout(now)
            if self.timer_fault == "twice":
                self.resident.handle_timeout(now)
            self.turn()
        else:
            self.set_timer()

    # What befalls it

    def crash(self) -> None:
        self.is_alive = False
        self._arrived.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        """Everything that waited comes at once."""
        self.is_paused = False
        deferred, self.deferred = self.deferred, []
        for action in deferred:
            action()
        self.poll()
        self.turn()


class World(Generic[R]):
    """The clock, the network and the processes."""

    def __init__(
        self,
        link: Callable[[Address, Address], Link],
        *,
        driving: Driving | None = None,
        hint_ms: float | None = None,
        start: int = 0,
    ) -> None:
        """`hint_ms`: so long after a datagram came to nobody its sender learns it; None: never."""
        self.clock = VirtualClock(start)
        self.network = Network(self.clock, link, self.deliver)
        self.driving = driving or Driving()
        self.processes: dict[Address, Process[R]] = {}
        """By address: the latest incarnation there, dead or alive."""
        self._hint_ms = hint_ms

    def add(self, address: Address, resident: R, clock: LocalClock | None = None) -> Process[R]:
        process = self.processes[address] = Process(self, address, resident, clock)
        return process

    def deliver(self, flight: Flight) -> None:
        process = self.processes.get(flight.link.dest)
        if process is not None and process.is_up:
            process.arrive(flight)
        elif self._hint_ms is not None:
            self.clock.after(self._hint_ms, self._refuse, flight)

    def _refuse(self, flight: Flight) -> None:
        """The sender learns that nobody listened there."""
        sender = self.processes.get(flight.link.source)
        if sender is not None and sender is flight.sender and sender.can_act:
            sender.resident.transport_hint(flight.link.dest, sender.now)
            sender.turn()

    def run_for(self, milliseconds: float) -> None:
        self.clock.run_until(self.clock.now + ns(milliseconds))

    def run_until(self, condition: Callable[[], bool], within_ms: float) -> bool:
        """Until it holds; False if it does not in time."""
        stop = self.clock.now + ns(within_ms)
        while not condition():
            due = self.clock.next_time
            if due is None or due > stop:
                return False
            self.clock.step()
        return True
