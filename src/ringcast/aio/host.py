"""Host: what a member takes from where it runs: a transport, the clock, chance, a place to meet.

A process has one, the machine. `ringcast.testing` runs many members in one process, each on a host
of its own: `join` takes that of the task that calls it, so no application has to know.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from ringcast.aio.sources import group_directory, runtime_source
from ringcast.model import INCARNATION_MAX, Address

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.aio.keys import KeyRing
    from ringcast.aio.transport import Transport
    from ringcast.arguments import Source
    from ringcast.config import GroupConfig


class Host(Protocol):
    """Where members run."""

    is_up: bool
    """False: it is being killed, and nobody says goodbye."""

    has_signals: bool
    """The process may be told to end, and members in it are to leave first."""

    def now(self) -> int:
        """Nanoseconds on a clock that never goes back."""
        ...

    def wall(self) -> int:
        """Nanoseconds since the epoch, by a clock that people set."""
        ...

    def loop(self) -> asyncio.AbstractEventLoop:
        """Where its members plan what they do."""
        ...

    def open_transport(
        self,
        config: GroupConfig,
        address: Address,
        forwarder: Address | None,
        keys: KeyRing | None,
    ) -> Transport:
        """Listen at this address, as configured; UsageError if it cannot be had. `keys`: for who
        opens connections."""
        ...

    def new_incarnation(self) -> int:
        """A number that no member has had."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """That nobody has had, or can guess."""
        ...

    def meeting_place(self, group: str) -> Source:
        """Where members of this group look for each other if nothing else is said."""
        ...

    def probe_directory(self, group: str) -> Path | None:
        """Where members answer questions of their user; None: nobody asks here."""
        ...

    def own_keys(self, group: str) -> KeyRing | None:
        """The key of this group if none is given; None: nobody else is on this network."""
        ...


class Machine:
    """The real one."""

    is_up = has_signals = True
    now = staticmethod(time.monotonic_ns)
    wall = staticmethod(time.time_ns)
    loop = staticmethod(asyncio.get_running_loop)

    def open_transport(
        self,
        config: GroupConfig,
        address: Address,
        forwarder: Address | None,
        keys: KeyRing | None,
    ) -> Transport:
        # Each needs what not every system has, and most groups need one of them.
        insecure, buffer_bytes = config.insecure, config.receive_buffer_bytes
        if config.transport == "udp":
            from ringcast.aio.udp import UdpSocket

            return UdpSocket(address, insecure=insecure, buffer_bytes=buffer_bytes)
        if config.transport == "multicast":
            from ringcast.aio.multicast_socket import MulticastSocket, group_address

            group = group_address(config.group)
            return MulticastSocket(address, group, insecure=insecure, buffer_bytes=buffer_bytes)
        from ringcast.aio.handshake import Handshake
        from ringcast.aio.tcp import TcpMesh

        handshake = Handshake(config.group, keys)
        return TcpMesh(address, forwarder, insecure=insecure, handshake=handshake)

    def new_incarnation(self) -> int:
        return 1 + int.from_bytes(os.urandom(8)) % INCARNATION_MAX

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def meeting_place(self, group: str) -> Source:
        return runtime_source(group)

    def probe_directory(self, group: str) -> Path | None:
        return group_directory(group)

    def own_keys(self, group: str) -> KeyRing | None:
        from ringcast.aio.keys import own_keys  # takes milliseconds, and who joins needs it

        return own_keys(group_directory(group))


MACHINE = Machine()

HOST: ContextVar[Host] = ContextVar("HOST", default=MACHINE)
"""Where whoever calls `join` runs."""
