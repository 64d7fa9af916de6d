"""Transport: what a driver needs of sockets. UDP (udp.py), with multicast (multicast_socket.py),
and a mesh of TCP connections (tcp.py).

All of them carry datagrams as UDP does: whole or not at all, in any order, never blocking. What
cannot be sent is dropped and counted; repair is above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from ringcast.config import DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN
from ringcast.window.send import size_in

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ringcast.model import Address, View
    from ringcast.wire.codec import Buffer

Inputs: TypeAlias = "Mapping[int, Callable[[], None]]"
"""The file descriptors on which datagrams come now, and what is to be called if one is there."""

SHARES_MIN = 6
"""Datagrams of three other members fit a receive buffer twice, those of many once."""


def fitting(receive_buffer: int, bulk_bytes: int | None, others: int) -> int:
    """The largest datagram to build in a group with so many others: all of them may send at the
    same time, and one of each is to find room."""
    size = size_in(receive_buffer // max(SHARES_MIN, others), bulk_bytes)
    return min(max(size, DATAGRAM_BYTES_MIN), DATAGRAM_BYTES_MAX)


class Transport(Protocol):
    """Where a member listens, and how its datagrams travel."""

    address: Address
    """Where it listens."""
    group_address: Address | None = None
    """Where one datagram reaches all members. None: each is sent its own."""
    receive_buffer: int
    """Bytes of others that may wait until they are read."""
    bulk_bytes: int | None = None
    """What is beyond so many bytes of a datagram takes half as much of that; None: the same."""
    shortage: str | None = None
    """What the system did not grant, and how to get it; None: it granted all."""
    datagram_bytes: int
    """The longest datagram that goes whole to all who are written to, and leaves room for those of
    others. It changes with the view, and when a path turns out to be narrow; longer datagrams go
    too, but in fragments."""
    hints: set[Address]
    """Where nobody listened, since the driver last took these."""
    source: Address | None = None
    """Where the datagram came from that was drained last, if that is noted."""
    notes_sources: bool = False
    """Note it from now on: that costs a microsecond a datagram."""
    rejected: dict[str, int]
    """Connections of who could not prove to be of the group, by reason."""

    def start(self, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None]) -> None:
        """Call this whenever there is something to drain, or a hint."""
        ...

    def stop(self) -> None:
        """Call it no more. Sending goes on, and another driver may start."""
        ...

    def inputs(self) -> Inputs:
        """For who does not wait for the loop to see that something is there."""
        ...

    def drain(self, limit: int) -> Iterator[Sequence[memoryview]]:
        """What has arrived: up to so many bursts, each of what one system call brought. It is gone
        when the next is asked for."""
        ...

    def send(self, datagram: Buffer, dest: Address) -> None:
        """The datagram is gone when this returns: who keeps it copies it."""
        ...

    def send_burst(self, burst: Sequence[Buffer], dest: Address) -> None:
        """Some datagrams of one length, the last of which may be shorter: as many as `bursts_of`
        puts together. One by one, where nothing better is known."""
        for datagram in burst:
            self.send(datagram, dest)

    def enter_view(self, view: View) -> None:
        """This is who is in the group now; and they listen by now, whoever refused before."""
        ...

    def explain(self, awaited: Mapping[Address, str], now: int) -> list[str]:
        """Why these, with what people call them, may not be heard of."""
        ...

    def stats(self) -> dict[str, object]: ...

    def close(self) -> None: ...
