"""UDP multicast: what is sent to the group leaves once, however many members there are.

A second socket listens at the group's own address, which follows from its name; every member has
one there. Acks, beats and whatever is meant for one member travel by unicast as ever. Everything
is sent from the one unicast socket, so its address tells whose datagram it is: a member's own come
back from the group, and are left out. The interface is that of the member's own address, and
nothing goes further than the network there.

Whoever listens there hears also those who do not count it among their members: while it is left
out, or before two groups merge. What is sent to the group bears the tag of its view, so it is for
members in that view only.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from array import array
from hashlib import sha256
from typing import TYPE_CHECKING

from ringcast.aio.offload import Offload
from ringcast.aio.reach import is_loopback
from ringcast.aio.udp import BUFFER_BYTES, UdpSocket, ask_for_buffers
from ringcast.errors import UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    from ringcast.aio.transport import Inputs

PORTS = range(10_000, 30_000)
"""Below those that systems hand out by themselves."""

# Linux's numbers, which the socket module does not name.
_SO_ATTACH_FILTER = 26
_IP_MULTICAST_ALL = 49
_IP_HEADER = -0x100000 + (1 << 32)  # where a filter finds it; the UDP header is at 0

_LOAD_WORD, _LOAD_HALF, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
_STEP = struct.Struct("=HBBI")  # struct sock_filter
_PROGRAM = struct.Struct("HP")  # struct sock_fprog


def group_address(group: str) -> Address:
    """Where the members of this group listen: in the local scope of RFC 2365."""
    digest = sha256(group.encode()).digest()
    port = PORTS[int.from_bytes(digest[2:4]) % len(PORTS)]
    return Address(f"239.255.{digest[0]}.{digest[1]}", port)


class MulticastSocket(UdpSocket):
    """A unicast socket, and one that listens to the group."""

    def __init__(
        self,
        address: Address,
        group: Address,
        *,
        insecure: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if ":" in address.host:
            raise UsageError(f"multicast is for IPv4: cannot listen on {address}")
        super().__init__(address, insecure=insecure, buffer_bytes=buffer_bytes)
        self.group_address = group
        self.own = 0
        """Datagrams of this member itself, where the system does not leave them out."""
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._from_group = Offload(self._listener)
        try:
            is_filtered = self._listen(buffer_bytes)
        except OSError as error:
            self._listener.close()
            super().close()
            raise UsageError(f"cannot listen on {group}: {error.strerror}") from error
        if self.offload.can_join:
            self._from_group.join()
        if not is_filtered:
            self.receive_buffer //= 2  # our own datagrams take as much as those of others
            self._set_datagram_bytes()

    def start(self, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None]) -> None:
        super().start(loop, on_input)
        loop.add_reader(self._listener.fileno(), on_input)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._listener.fileno())
        super().stop()

    def inputs(self) -> Inputs:
        if self._on_input is None:
            return {}
        return {**super().inputs(), self._listener.fileno(): self._on_input}

    def drain(self, limit: int) -> Iterator[Sequence[memoryview]]:
        yield from super().drain(limit // 2)  # acks and beats shall not wait behind messages
        yield from self._drain_group(limit - limit // 2)

    def stats(self) -> dict[str, object]:
        return {
            **super().stats(),
            "kind": "multicast",
            "group_address": str(self.group_address),
            "own": self.own,
            "received_in_bursts": self.offload.joined + self._from_group.joined,
        }

    def close(self) -> None:
        super().close()
        self._listener.close()

    def _listen(self, buffer_bytes: int) -> bool:
        """Begin to; True if the system leaves out our own datagrams."""
        listener, group = self._listener, self.group_address
        assert group is not None
        listener.setblocking(False)
        ask_for_buffers(listener, buffer_bytes)
        is_filtered = leave_out(listener, self.address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # all members bind there
        listener.bind(group)
        interface = socket.inet_aton(self.address.host)
        joined = socket.inet_aton(group.host) + interface
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        with contextlib.suppress(OSError):  # else also what comes in where others have joined
            listener.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
        hops = 0 if is_loopback(self.address) else 1
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
        return is_filtered

    def _drain_group(self, limit: int) -> Iterator[Sequence[memoryview]]:
        offload = self._from_group
        offload.notes_source = self.notes_sources
        if self.offload.can_join:
            offload.join()
        for place in range(limit):
            if not place and not offload.poll(0):
                return  # as most times when somebody has answered
            try:
                burst, own = offload.receive(self.address)
            except OSError:  # there is none; and who never sends is told of no errors
                return
            self.own += own
            self.received += len(burst)
            self.source = offload.source
            yield burst

    def _admit(self, dest: Address) -> bool:
        return dest == self.group_address or super()._admit(dest)


def leave_out(listener: socket.socket, own: Address) -> bool:
    """Have the system drop what comes from this address before it takes room in the buffer; False
    where it cannot."""
    (host,) = struct.unpack("!I", socket.inet_aton(own.host))
    steps = (
        (_LOAD_WORD, 0, 0, _IP_HEADER + 12),  # source address
        (_JUMP_IF_EQUAL, 0, 3, host),
        (_LOAD_HALF, 0, 0, 0),  # source port
        (_JUMP_IF_EQUAL, 0, 1, own.port),
        (_RETURN, 0, 0, 0),  # nothing of it
        (_RETURN, 0, 0, 0xFFFFFFFF),  # all of it
    )
    program = array("B", b"".join(_STEP.pack(*step) for step in steps))
    start, _ = program.buffer_info()
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM.pack(len(steps), start))
    except OSError:
        return False
    return True
