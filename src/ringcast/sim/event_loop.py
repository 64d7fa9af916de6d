"""An asyncio event loop on the virtual clock: what waits in it, waits in virtual time.

asyncio asks a selector to wait, at most until its next timer. This one never waits: it moves the
clock there, or to the next action on the clock if that comes first. Sockets are virtual too, with
file descriptors that no system has; their owner says when there is something to read. Everything
happens in one thread, so a program that uses no other clock, chance or set order runs the same way
every time.

Callbacks belong to the host whose context they run in. While that is paused they are parked, in
their order; its clock may be wrong, and its timers late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from itertools import count
from math import ceil
from selectors import EVENT_READ, BaseSelector, SelectorKey
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from ringcast.errors import UsageError
from ringcast.sim.clock import VirtualClock

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

    from ringcast.sim.sockets import VirtualHost

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NS_PER_S = 1_000_000_000

TURN_NS = 10_000
"""What a turn of the loop takes. Were it nothing, a task that only looks again and again would
stop the clock."""

FIRST_FD = 1 << 30
"""Virtual descriptors begin here, above all that a system gives."""


class VirtualSelector(BaseSelector):
    """Waits for nothing: it moves the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self.readable: dict[int, None] = {}
        """Descriptors with something to read, the longest waiting first."""
        self.admits_real = True
        self._clock = clock
        self._keys: dict[FileDescriptorLike, SelectorKey] = {}

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        fd = _descriptor(fileobj)
        if fd < FIRST_FD and not self.admits_real:
            raise UsageError(
                "real sockets, pipes and processes do not run in virtual time: a member may use "
                "its group, timers and tasks"
            )
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> SelectorKey:
        return self._keys.pop(_descriptor(fileobj))

    def get_map(self) -> Mapping[FileDescriptorLike, SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        now = self._clock.now
        ready = self._ready()
        if ready or (timeout is not None and timeout <= 0):
            self._clock.run_until(now + TURN_NS)
            return self._ready()
        times = [] if timeout is None else [now + ceil(timeout * NS_PER_S)]
        arrival = self._clock.next_time
        if arrival is not None:
            times.append(arrival)
        if not times:
            raise RuntimeError("every task waits, and there is nothing left that could happen")
        self._clock.run_until(min(times))
        return self._ready()

    def _ready(self) -> list[tuple[SelectorKey, int]]:
        return [(self._keys[fd], EVENT_READ) for fd in self.readable if fd in self._keys]


class _Gate:
    """A callback that waits while its owner is paused."""

    __slots__ = ("_callback", "_loop", "context", "handle", "owner")

    def __init__(
        self, loop: VirtualLoop, callback: Callable[[], object], context: Context | None
    ) -> None:
        self.context = copy_context() if context is None else context  # an empty one is false
        self.owner = loop.owner_in(self.context)
        self.handle: asyncio.Handle | None = None
        self._loop = loop
        self._callback = callback

    def __call__(self) -> None:
        if self.owner is not None and self.owner.is_paused:
            self.owner.parked.append(self._again)
        else:
            self._callback()

    def _again(self) -> None:
        self._loop.call_soon(self._run, context=self.context)

    def _run(self) -> None:
        """Unless what ran before this has cancelled it."""
        if self.handle is None or not self.handle.cancelled():
            self._callback()


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop with another clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self.owner_in: Callable[[Context], VirtualHost | None] = lambda context: None
        """Whose the callbacks in this context are."""
        self._clock = clock
        self._virtual = VirtualSelector(clock)
        self._descriptors = count(FIRST_FD)
        super().__init__(self._virtual)
        # What it has registered is its own wake-up pipe, for other threads. It never sleeps.
        self._virtual.admits_real = False

    def time(self) -> float:
        owner = self.owner_in(copy_context())
        return (self._clock.now if owner is None else owner.now()) / NS_PER_S

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        gate = _Gate(self, partial(callback, *args), context)
        gate.handle = super().call_soon(gate, context=gate.context)
        return gate.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        gate = _Gate(self, partial(callback, *args), context)
        due_s = when if gate.owner is None else gate.owner.due_s(when)
        gate.handle = handle = super().call_at(due_s, gate, context=gate.context)
        return handle

    def new_descriptor(self) -> int:
        return next(self._descriptors)

    def set_readable(self, fd: int, is_readable: bool) -> None:
        """Whether there is something to read at this virtual descriptor."""
        if is_readable:
            self._virtual.readable.setdefault(fd)
        else:
            self._virtual.readable.pop(fd, None)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """At once and here: how long a thread takes is nothing that a seed could decide."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return future


def _descriptor(fileobj: FileDescriptorLike) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()
