"""The virtual network as asyncio sees it: hosts, each with its sockets and tasks.

`ringcast.testing` runs members on it; `join` finds the host in the context of the task that calls
it. Each direction between two addresses has its own dice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ringcast.aio.host import HOST
from ringcast.aio.transport import Inputs, Transport, fitting
from ringcast.config import GroupConfig
from ringcast.errors import UsageError
from ringcast.model import INCARNATION_MAX, Address, Member, View
from ringcast.sim.clock import LocalClock, VirtualClock
from ringcast.sim.event_loop import NS_PER_S, TURN_NS, VirtualLoop
from ringcast.sim.plain import LoseWhere
from ringcast.sim.world import Flight, Link, Network

if TYPE_CHECKING:
    from ringcast.wire.codec import Buffer

T = TypeVar("T")

FIRST_PORT = 1024
RECEIVE_BUFFER = 1 << 20

LOST, COPIED, LATE, COPY_LATE = range(4)
"""Which draw of a flight is for what."""


@dataclass(slots=True)
class Jitter:
    """Half of the mean delay at the least, and one and a half of it at the most; so datagrams
    overtake each other. It draws for the others."""

    mean_ns: float
    least_ns: int

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        flight.base = flight.due
        flight.draws = self.draw(dice)
        flight.due += self.delay(flight.draws[LATE])
        flight.keeps_order = False
        return [flight]

    def draw(self, dice: Random) -> tuple[float, ...]:
        return tuple(dice.random() for _ in range(4))

    def delay(self, draw: float) -> int:
        return max(self.least_ns, round(self.mean_ns * (0.5 + draw)))


class VirtualSocket(Transport):
    """A transport on the virtual network. It does as UdpSocket does, whatever kind is wanted."""

    def __init__(
        self, network: Internet, host: VirtualHost, address: Address, receive_buffer: int
    ) -> None:
        self.address = address
        self.host = host
        self.receive_buffer = receive_buffer
        self.datagram_bytes = fitting(receive_buffer, None, 1)
        self.hints: set[Address] = set()
        self.rejected: dict[str, int] = {}
        self._counts = {"received": 0, "sent": 0, "dropped": 0}
        self._network = network
        self._fd = network.loop.new_descriptor()
        self._arrived: deque[bytes | Address] = deque()  # an address: nobody listens there
        self._arrived_bytes = 0

    def start(self, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None]) -> None:
        loop.add_reader(self._fd, on_input)

    def stop(self) -> None:
        self._network.loop.remove_reader(self._fd)

    def inputs(self) -> Inputs:
        return {}

    def drain(self, limit: int) -> Iterator[Sequence[memoryview]]:
        for _ in range(limit):
            if not self._arrived:
                return
            item = self._arrived.popleft()
            if not self._arrived:
                self._network.loop.set_readable(self._fd, False)
            if isinstance(item, Address):
                self.hints.add(item)
            else:
                self._arrived_bytes -= len(item)
                self._counts["received"] += 1
                yield (memoryview(item),)

    def send(self, datagram: Buffer, dest: Address) -> None:
        datagram = bytes(datagram)
        if self.host.is_paused:  # somebody else calls it: it leaves when its process goes on
            self.host.parked.append(lambda: self.send(datagram, dest))
        else:
            self._counts["sent" if self.host.is_up else "dropped"] += 1
            if self.host.is_up:
                self._network.send(self, datagram, dest)

    def enter_view(self, view: View) -> None:
        """No refusal is remembered."""
        self.datagram_bytes = fitting(self.receive_buffer, None, len(view) - 1)

    def explain(self, awaited: Mapping[Address, str], now: int) -> list[str]:
        return []

    def stats(self) -> dict[str, object]:
        return {
            "kind": "virtual",
            "address": str(self.address),
            "receive_buffer": self.receive_buffer,
            **self._counts,
        }

    def arrive(self, item: bytes | Address) -> None:
        size = 0 if isinstance(item, Address) else len(item)
        if self._arrived_bytes + size <= self.receive_buffer:
            self._arrived.append(item)
            self._arrived_bytes += size
            self.look()

    def look(self) -> None:
        """Whether its process may read something now."""
        is_readable = bool(self._arrived) and not self.host.is_paused
        self._network.loop.set_readable(self._fd, is_readable)

    def close(self) -> None:
        self.stop()
        self._arrived.clear()
        self._network.loop.set_readable(self._fd, False)
        self._network.unbind(self)


class Internet:
    """The hosts, the sockets bound at their addresses, and the network between them."""

    def __init__(
        self,
        loop: VirtualLoop,
        clock: VirtualClock,
        *,
        seed: int,
        loss: float,
        duplicates: float,
        delay_s: float,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.seed = seed
        self.meetings: dict[str, dict[Member, None]] = {}
        """By group: who can be found."""
        self.parts: dict[VirtualHost, int] = {}
        """Who is in which part of the network, while it is parted."""
        self.cuts: dict[tuple[VirtualHost, VirtualHost], None] = {}
        """(source, dest) of whom nothing passes."""
        self._loss = loss
        self._duplicates = duplicates
        self._jitter = Jitter(delay_s * NS_PER_S, TURN_NS)
        self._network = Network(clock, self._link, self._arrive)
        self._network.faults = (
            self._jitter,
            LoseWhere(lambda flight: flight.draws[LOST] < loss),
            LoseWhere(lambda flight: self._is_cut(_socket(flight).host, flight.link.dest)),
            self._copy,
        )
        self._sockets: dict[Address, VirtualSocket] = {}
        self._hosts: dict[Address, VirtualHost] = {}
        """By address: who has it, or had it last."""
        self._ports = count(FIRST_PORT)

    def bind(self, host: VirtualHost, address: Address, buffer_bytes: int) -> VirtualSocket:
        if address in self._sockets:
            raise UsageError(f"cannot listen on {address}: another member does")
        if not address.port:
            free = (Address(address.host, port) for port in self._ports)
            address = next(each for each in free if each not in self._hosts)
        sock = self._sockets[address] = VirtualSocket(
            self, host, address, min(buffer_bytes, RECEIVE_BUFFER)
        )
        self._hosts[address] = host
        return sock

    def unbind(self, sock: VirtualSocket) -> None:
        if self._sockets.get(sock.address) is sock:
            del self._sockets[sock.address]

    def send(self, source: VirtualSocket, datagram: bytes, dest: Address) -> None:
        self._network.send(source.address, dest, datagram, None, source)

    def _copy(self, flight: Flight, dice: Random) -> list[Flight]:
        """Some arrive twice."""
        if flight.draws[COPIED] >= self._duplicates:
            return [flight]
        due = flight.base + self._jitter.delay(flight.draws[COPY_LATE])
        return [flight, replace(flight, due=due)]

    def _link(self, source: Address, dest: Address) -> Link:
        name = f"{source}>{dest}"
        return Link(source, dest, name, Random(f"{self.seed} {name}"))

    def _arrive(self, flight: Flight) -> None:
        source, dest = _socket(flight), flight.link.dest
        if self._is_cut(source.host, dest):
            return
        sock = self._sockets.get(dest)
        if sock is not None:
            sock.arrive(flight.datagram)
        elif dest not in self._hosts or not self._hosts[dest].is_silent:
            draws = self._jitter.draw(self._network.link(dest, source.address).random)
            if draws[LOST] >= self._loss:
                due = self.clock.now + self._jitter.delay(draws[LATE])
                self.clock.at(due, self._refuse, source, dest)

    def _refuse(self, source: VirtualSocket, dest: Address) -> None:
        is_bound = self._sockets.get(source.address) is source
        other = self._hosts.get(dest)
        is_deaf = other is not None and (other, source.host) in self.cuts  # what comes back is cut
        if is_bound and not is_deaf and not self._is_cut(source.host, dest):
            source.arrive(dest)

    def _is_cut(self, host: VirtualHost, dest: Address) -> bool:
        other = self._hosts.get(dest)
        if other is None:
            return False
        return self.parts.get(host) != self.parts.get(other) or (host, other) in self.cuts


class MeetingPlace:
    """Where members of a group find each other, as in the directory of a user."""

    def __init__(self, present: dict[Member, None]) -> None:
        self._present = present
        self._me: Member | None = None

    def register(self, me: Member) -> None:
        self._me = me
        self._present[me] = None

    def candidates(self) -> list[Address]:
        return [member.address for member in self._present]

    def unregister(self) -> None:
        if self._me is not None:
            self._present.pop(self._me, None)

    def __str__(self) -> str:
        return "the cluster"


class VirtualHost:
    """Where one process runs: what `join` finds in the context of its tasks."""

    def __init__(self, network: Internet, name: str) -> None:
        self.is_up = True
        self.has_signals = False
        self.is_silent = False
        """It does not even refuse what is sent to it."""
        self.is_paused = False
        self.parked: list[Callable[[], None]] = []
        """What waits until it goes on."""
        self.late_s = 0.0
        """How late its timers are at most."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._clock: LocalClock | None = None  # None: it runs true
        self._lateness = Random(f"{network.seed} {name} timers")
        self._network = network
        self._dice = Random(f"{network.seed} {name}")
        self._sockets: list[VirtualSocket] = []

    # Its clock and timers

    def now(self) -> int:
        """What its clock shows."""
        true = self._network.clock.now
        return true if self._clock is None else self._clock.read(true)

    wall = now
    """Virtual time begins with the epoch."""

    def due_s(self, local_s: float) -> float:
        """When a timer fires that is set for this time on its clock."""
        due_s = local_s
        if self._clock is not None:
            due = self._clock.when(round(local_s * NS_PER_S))
            assert due is not None
            due_s = due / NS_PER_S
        return due_s + self.late_s * self._lateness.random() if self.late_s else due_s

    def change_clock(self, rate: float, jump_ns: int) -> None:
        self._clock = self._clock or LocalClock()
        self._clock.change(self._network.clock.now, rate=rate, jump=jump_ns)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Whoever calls: what is planned here is this host's."""
        return cast("asyncio.AbstractEventLoop", _HostLoop(self, self._network.loop))

    # Pauses

    def pause(self) -> None:
        self.is_paused = True
        self._look()

    def resume(self) -> None:
        """What has waited happens at once, in its order."""
        self.is_paused = False
        parked, self.parked = self.parked, []
        for action in parked:
            action()
        self._look()

    def _look(self) -> None:
        for sock in self._sockets:
            sock.look()

    # What `join` wants of it

    def open_transport(
        self, config: GroupConfig, address: Address, forwarder: Address | None, keys: object
    ) -> VirtualSocket:
        if not self.is_up:
            raise UsageError("this process has crashed")
        sock = self._network.bind(self, address, config.receive_buffer_bytes)
        self._sockets.append(sock)
        return sock

    def new_incarnation(self) -> int:
        return self._dice.randint(1, INCARNATION_MAX)

    def random_bytes(self, count: int) -> bytes:
        return self._dice.randbytes(count)

    def meeting_place(self, group: str) -> MeetingPlace:
        return MeetingPlace(self._network.meetings.setdefault(group, {}))

    def probe_directory(self, group: str) -> None:
        """Nobody asks: there are no processes to see."""

    def own_keys(self, group: str) -> None:
        """There is none: no stranger is on a network of this process, and it keeps no files."""

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this host; and so is every task that it makes."""
        return self._network.loop.create_task(coroutine, context=self.context())

    def context(self) -> Context:
        context = copy_context()
        context.run(HOST.set, self)
        return context

    def stop(self, *, silently: bool) -> None:
        """From now on nothing leaves or arrives, whatever tasks still do while they end."""
        self.is_up = False
        self.is_silent = silently
        self.resume()  # its tasks are to end
        for sock in self._sockets:
            sock.close()
        for task in reversed(list(self.tasks)):  # what uses the group before what holds it
            task.cancel()


class _HostLoop:
    """The loop for the members of one host: whoever plans a callback, it is that host's."""

    def __init__(self, host: VirtualHost, loop: VirtualLoop) -> None:
        self._host = host
        self._loop = loop
        self._context = host.context()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._host.now() / NS_PER_S

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(callback, *args, context=self._context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return self._loop.call_at(self.time() + delay, callback, *args, context=self._context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return self._loop.call_at(when, callback, *args, context=self._context)


def _socket(flight: Flight) -> VirtualSocket:
    assert isinstance(flight.sender, VirtualSocket)
    return flight.sender
