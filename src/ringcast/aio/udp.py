"""One UDP socket: datagrams in and out, never blocking, with what the kernel tells about them.

The receive buffer is asked for and what was got is used: a sender may have no more under way
than the slowest receiver's buffer holds, or every overflow costs a repair. On Linux IP_RECVERR
brings back refused ports on the one unconnected socket: a process that died is known at once.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from typing import TYPE_CHECKING

from ringcast.aio.transport import is_loopback
from ringcast.errors import UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

    from ringcast.model import View

BUFFER_BYTES = 8 << 20
"""Asked for; an unprivileged process gets at most net.core.rmem_max."""

DATAGRAM_SPACE = 1 << 16

ADMITTED_MAX = 4096
"""Addresses remembered as being on this machine."""

REFUSED_RECENTLY_NS = 5_000_000_000
"""How long a refused port is worth mentioning: somebody may have come to listen there since."""

# Linux's numbers, which the socket module does not name in all the versions we run on.
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_IP_RECVERR = 11
_IPV6_RECVERR = 25

_ERRNO = struct.Struct("=I")  # what struct sock_extended_err begins with
_WOULD_DROP = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM}


class UdpSocket:
    """A bound socket. Sending drops and counts what the kernel does not take: repair is above."""

    def __init__(self, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        ask_for_buffers(self._socket)
        with contextlib.suppress(OSError):  # a hint that other systems do not give
            if family == socket.AF_INET:
                self._socket.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            else:
                self._socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        try:
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise UsageError(f"cannot listen on {address}: {error.strerror}") from error
        host, port = self._socket.getsockname()[:2]
        self.address = Address(host, port)
        self.group_address: Address | None = None
        self._space = bytearray(DATAGRAM_SPACE)
        self._view = memoryview(self._space)
        self.received = 0
        self.sent = 0
        self.dropped = 0
        """Datagrams that the kernel did not take."""
        self.receive_buffer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        """Bytes of datagrams that fit: Linux reports twice what it gives, for its own overhead."""
        self.refused: dict[Address, int] = {}
        """Addresses where nobody listened, with when that was last heard (monotonic ns)."""
        self._admitted: set[Address] = set()
        self.hints: set[Address] = set()
        """Of these, those that nobody has been told of yet: taken by the driver."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None]) -> None:
        self._loop = loop
        loop.add_reader(self._socket.fileno(), on_input)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop = None

    def drain(self, limit: int) -> Iterator[memoryview]:
        """What has arrived, up to so many datagrams. Each is gone when the next is asked for."""
        receive_into = self._socket.recv_into
        for _ in range(limit):
            try:
                size = receive_into(self._space)
            except BlockingIOError:
                return
            except OSError:
                self._read_errors()
                continue
            self.received += 1
            yield self._view[:size]

    def send(self, datagram: bytes, dest: Address) -> None:
        if dest not in self._admitted and not self._admit(dest):
            self.dropped += 1
            return
        # Twice: that an earlier datagram was refused is told in place of sending this one.
        for _ in range(2):
            try:
                self._socket.sendto(datagram, dest)
            except OSError as error:
                if error.errno in _WOULD_DROP:
                    break
                self._read_errors()
            else:
                self.sent += 1
                return
        self.dropped += 1

    def enter_view(self, view: View) -> None:
        self.refused.clear()

    def explain(self, awaited: Mapping[Address, str], now: int) -> list[str]:
        return [
            f"nobody listens at {address}: told so {(now - heard) / 1e9:.1f} s ago"
            for address, heard in self.refused.items()
            if address in awaited and now - heard < REFUSED_RECENTLY_NS
        ]

    def stats(self) -> dict[str, object]:
        return {
            "kind": "udp",
            "address": str(self.address),
            "receive_buffer": self.receive_buffer,
            "received": self.received,
            "sent": self.sent,
            "dropped": self.dropped,
            "refused": list(map(str, self.refused)),
        }

    def close(self) -> None:
        self.stop()
        self._socket.close()

    def _admit(self, dest: Address) -> bool:
        """Whether to send there. Peers and files may name any host: none is ever looked up, and
        without encryption nothing leaves the machine."""
        is_admitted = is_loopback(dest) and (":" in dest.host) == (":" in self.address.host)
        if is_admitted:
            if len(self._admitted) >= ADMITTED_MAX:
                self._admitted.clear()
            self._admitted.add(dest)
        return is_admitted

    def _read_errors(self) -> None:
        """Empty the error queue: each entry names the address that a datagram did not reach."""
        while True:
            try:
                _, ancillary, _, dest = self._socket.recvmsg(0, 512, socket.MSG_ERRQUEUE)
                causes = [_ERRNO.unpack_from(data)[0] for _, _, data in ancillary]
            except (OSError, struct.error):
                return
            # Other causes, such as a datagram that is too long, say nothing about who is there.
            if errno.ECONNREFUSED in causes:
                address = Address(*dest[:2])
                self.refused[address] = time.monotonic_ns()
                self.hints.add(address)


def ask_for_buffers(sock: socket.socket) -> None:
    """Large ones, as far as they are to be had."""
    _ask_for_buffer(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
    _ask_for_buffer(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF)


def _ask_for_buffer(sock: socket.socket, forced: int, plain: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
