"""Spinner: keeps an event loop from sleeping for a while after each datagram, by choice.

A process that sleeps has to be woken, and then works slowly at first: on a quiet machine that is
a third of a short round trip. While it spins it takes a core instead.

On each datagram that comes or goes: stay awake for `spin_s` from now on.
While awake: look at the sockets for 20 µs, or until something is there, which is read; and come
    back in the next turn of the loop. Looking is left to the system, which hardly slows down what
    shares the core: Python that turns in circles takes a third from it.
"""

from __future__ import annotations

import select
from itertools import repeat
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ringcast.aio.transport import Inputs

TURN_NS = 20_000
"""How long to look in one turn of the loop, in which nothing else of it gets its turn."""

LOOKS = 4
"""As often before the clock is read. At each one other threads may go first, for long."""


class Spinner:
    """For one loop, and the file descriptors on which datagrams come now, with what reads them.
    Where there are none, as where all time is made up, there is nothing to wait for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inputs: Callable[[], Inputs],
        spin_s: float,
    ) -> None:
        self._loop = loop
        self._inputs = inputs
        self._span = round(spin_s * 1e9)
        self._until = 0
        self._is_turning = False
        self._is_first = False  # turn since then: whoever waited for that datagram goes before us

    def stay_awake(self) -> None:
        """A datagram came or went: the next one may not be far."""
        if self._span:
            self._until = monotonic_ns() + self._span
            self._is_first = True
            if not self._is_turning:
                self._is_turning = True
                self._loop.call_soon(self._turn)

    def close(self) -> None:
        self._span = self._until = 0

    def _turn(self) -> None:
        inputs = self._inputs() if monotonic_ns() < self._until else {}
        self._is_turning = bool(inputs)
        if not self._is_turning:
            return
        self._loop.call_soon(self._turn)
        if self._is_first:
            self._is_first = False
            return
        poller = select.poll()
        for descriptor in inputs:
            poller.register(descriptor, select.POLLIN)
        stop = monotonic_ns() + TURN_NS
        found: list[tuple[int, int]] | None = None
        while not found and monotonic_ns() < stop:
            found = next(filter(None, map(poller.poll, repeat(0, LOOKS))), None)
        if found:
            inputs[found[0][0]]()  # the loop finds the others, if this has not ended them
