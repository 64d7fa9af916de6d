"""Plain sockets, to be measured beside ours: what they move and how soon they answer.

Pumps move bytes in the pattern of a group, with no order and no repair. With UDP each sender keeps
a few datagrams in flight towards each receiver, which returns a one-byte credit for every few that
arrive; multicast datagrams leave once for all; TCP blocks its senders by itself. What they move is
what the machine can move; the rest is our own cost.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ringcast.aio.multicast_socket import leave_out
from ringcast.aio.udp import ask_for_buffers
from ringcast.errors import RingcastError
from ringcast.model import Address

SPACE = 1 << 16
"""Bytes of one read."""

ANY = ("127.0.0.1", 0)

IN_FLIGHT = 64
"""Datagrams under way from one sender: shared by its receivers, as far as credits allow."""
CREDIT_EVERY = 8
IDLE_S = 0.01
LATE_S = 10.0
"""How long others may keep this process waiting."""
TURN = 16
"""What is read before it is somebody else's turn."""


class UdpPump:
    """Datagrams to each peer, or, if there is an address of the group, once to all of them."""

    def __init__(self, group: Address | None) -> None:
        self.received = 0
        self._group = group
        self._socket = self._prepare()
        self._socket.bind(ANY)
        self.address = Address(*self._socket.getsockname())
        self._inputs = [self._socket]
        if group is not None:
            self._inputs.append(self._listen(group))
            interface = socket.inet_aton(self.address.host)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        self._space = bytearray(SPACE)
        self._peers: list[Address] = []
        self._in_flight = 0
        self._credit: dict[Address, int] = {}
        self._owed: dict[Address, int] = {}
        self._topped_up = time.perf_counter()

    def connect(self, peers: list[Address]) -> None:
        self._peers = peers
        self._in_flight = max(CREDIT_EVERY * 3 // 2, IN_FLIGHT // len(peers))
        self._credit = dict.fromkeys(peers, self._in_flight)
        self._owed = dict.fromkeys(peers, 0)

    def send(self, datagram: bytes) -> bool:
        now = time.perf_counter()
        if now - self._topped_up > 0.05:  # credits are lost like everything else
            self._topped_up = now
            self._credit = dict.fromkeys(self._peers, self._in_flight)
        ready = [peer for peer in self._peers if self._credit[peer] > 0]
        if self._group is not None and len(ready) < len(self._peers):
            return False
        for peer in ready:
            self._credit[peer] -= 1
        for dest in ready if self._group is None else [self._group]:
            with suppress(OSError):  # dropped, like what overflows at a receiver
                self._socket.sendto(datagram, dest)
        return bool(ready)

    def receive(self) -> bool:
        did_something = False
        for sock in self._inputs:
            for _ in range(TURN):
                try:
                    length, source = sock.recvfrom_into(self._space)
                except OSError:
                    break
                did_something = True
                self._count(length, source)
        return did_something

    def wait(self, *, for_room: bool) -> None:
        select.select(self._inputs, [], [], IDLE_S)

    def _count(self, length: int, source: Any) -> None:
        if source not in self._credit:
            return  # a stranger on the group's address
        if length == 1:
            self._credit[source] += CREDIT_EVERY
            return
        self.received += length
        self._owed[source] += 1
        if self._owed[source] == CREDIT_EVERY:
            self._owed[source] = 0
            with suppress(OSError):
                self._socket.sendto(b"+", source)

    def _listen(self, group: Address) -> socket.socket:
        listener = self._prepare()
        leave_out(listener, self.address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(group)
        joined = socket.inet_aton(group.host) + socket.inet_aton(self.address.host)
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        return listener

    @staticmethod
    def _prepare() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        ask_for_buffers(sock)
        return sock


class TcpPump:
    """One connection to each peer, opened by whoever has the higher address of the two."""

    def __init__(self) -> None:
        self.received = 0
        self._listener = socket.create_server(ANY)
        self.address = Address(*self._listener.getsockname())
        self._links: list[socket.socket] = []
        self._space = bytearray(1 << 18)

    def connect(self, peers: list[Address]) -> None:
        """They all listen by now."""
        self._listener.settimeout(LATE_S)
        for peer in peers:
            if peer < self.address:
                self._links.append(socket.create_connection(peer, timeout=LATE_S))
        while len(self._links) < len(peers):
            self._links.append(self._listener.accept()[0])
        for link in self._links:
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, datagram: bytes) -> bool:
        return self._with_each(lambda link: link.send(datagram)) > 0

    def receive(self) -> bool:
        length = self._with_each(lambda link: link.recv_into(self._space))
        self.received += length
        return length > 0

    def wait(self, *, for_room: bool) -> None:
        select.select(self._links, self._links if for_room else [], [], IDLE_S)

    def _with_each(self, use: Callable[[socket.socket], int]) -> int:
        moved = 0
        for link in self._links:
            # It is full or empty; or the other end, which began earlier, is done.
            with suppress(OSError):
                moved += use(link)
        return moved


def move(pump: UdpPump | TcpPump, datagram: bytes, seconds: float, *, is_receiver: bool) -> float:
    """Payload bytes received per second. An empty datagram: only receive.

    A receiver whose turn has not come by then, on a busy machine, goes on until something has.
    """
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or (
        is_receiver and not pump.received and elapsed < LATE_S
    ):
        has_sent = bool(datagram) and pump.send(datagram)
        if not pump.receive() and not has_sent:
            pump.wait(for_room=bool(datagram))
    if is_receiver and not pump.received:
        raise RingcastError(f"plain sockets moved nothing within {elapsed:.0f} s")
    return pump.received / elapsed


# Round trips


def open_socket(transport: str) -> socket.socket:
    """Bound to a free port of loopback. Requests never travel by multicast: that is UDP here."""
    is_tcp = transport == "tcp"
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM if is_tcp else socket.SOCK_DGRAM)
    if is_tcp:  # and whatever connection it accepts
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind(ANY)
    return sock


class Wire:
    """A connected socket in the loop that runs."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.send = sock.send
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Future[bytes] | None = None
        self._loop.add_reader(sock, self._on_readable)

    async def receive(self) -> bytes:
        """What has come, or comes next; nothing at the end."""
        self._arrived = self._loop.create_future()
        return await self._arrived

    def close(self) -> None:
        self._loop.remove_reader(self._socket)

    def _on_readable(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(self._socket.recv(SPACE))
