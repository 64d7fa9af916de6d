"""A process that sends back what it gets, in an event loop: a round trip without any protocol.

Of what a request takes this is asyncio's own share: a socket becomes readable, a future is done, a
task goes on.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time

from ringcast.aio.loop import run
from ringcast.bench.echo import SPACE, open_socket


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


async def exchange_times(sock: socket.socket, payload: bytes, count: int) -> list[int]:
    """How many nanoseconds it took to get this back, so many times one after the other."""
    wire = Wire(sock)
    times = []
    for _ in range(count):
        started = time.perf_counter_ns()
        wire.send(payload)
        missing = len(payload)
        while missing > 0:
            missing -= len(await wire.receive())
        times.append(time.perf_counter_ns() - started)
    wire.close()
    return times


async def _echo(sock: socket.socket) -> None:
    wire = Wire(sock)
    while data := await wire.receive():
        wire.send(data)
    wire.close()


def _meet(transport: str) -> socket.socket:
    """The connection of the one who asks, once it has come."""
    sock = open_socket(transport)
    if transport == "tcp":
        sock.listen()
    sys.stdout.write(json.dumps({"listen": sock.getsockname()}) + "\n")
    sys.stdout.flush()
    if transport == "tcp":
        link, _ = sock.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link
    _, source = sock.recvfrom(SPACE, socket.MSG_PEEK)
    sock.connect(source)
    return sock


if __name__ == "__main__":
    run(_echo(_meet(json.loads(sys.stdin.readline())["transport"])))
