"""Between members that talk by TCP: a forwarder that cuts, garbles and chops what passes.

Each member listens behind one of these, and advertises its address. It runs in the event loop of
the members, and does what it is told when it is told:

    async with StreamProxy() as proxy:
        join(..., transport="tcp", listen=proxy.listen, advertise=proxy.advertise)
        proxy.cut()
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any


class StreamProxy:
    """The way to one member. It takes connections for as long as the block lasts."""

    def __init__(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self._place = sock.getsockname()
        self.listen = f"127.0.0.1:{self._place[1]}"
        """Where the member is to listen."""
        self.advertise = ""
        """What it is to give as its address."""
        self.piece_bytes = 1 << 20
        """What passes is handed on in such pieces."""
        self.garble_next = 0
        """In so many of the next chunks one byte changes."""
        self.is_stalled = False
        self.accepted = 0
        self._server: asyncio.Server | None = None
        self._halves: set[_Half] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> StreamProxy:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Front(self), "127.0.0.1", 0)
        self.advertise = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        while self._halves:
            await asyncio.sleep(0)

    def cut(self) -> None:
        """Break every connection, with what is on its way."""
        for half in list(self._halves):
            half.transport.abort()

    def stall(self) -> None:
        """Hand nothing on, and break nothing, until it goes on."""
        self.is_stalled = True
        for half in self._halves:
            half.transport.pause_reading()

    def go_on(self) -> None:
        self.is_stalled = False
        for half in self._halves:
            half.transport.resume_reading()

    def mangle(self, data: bytes) -> bytes:
        if not self.garble_next:
            return data
        self.garble_next -= 1
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]

    def reach(self, front: _Front) -> None:
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(lambda: _Half(self, front), *self._place)
        task = loop.create_task(connecting)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_reached(done, front))

    def _on_reached(self, task: asyncio.Task[Any], front: _Front) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is not None:
            front.transport.abort()  # nobody is there


class _Half(asyncio.Protocol):
    """One end of a connection that passes; the other end is another one."""

    transport: asyncio.Transport

    def __init__(self, proxy: StreamProxy, other: _Half | None) -> None:
        self.proxy = proxy
        self.other = other
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.proxy._halves.add(self)
        other = self.other
        if other is None:
            return
        other.other = self
        if other.transport.is_closing():
            transport.abort()
        elif not self.proxy.is_stalled:
            other.transport.resume_reading()
        if self.proxy.is_stalled:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        data = self.proxy.mangle(data)
        for at in range(0, len(data), self.proxy.piece_bytes):
            self.other.transport.write(data[at : at + self.proxy.piece_bytes])

    def eof_received(self) -> bool:
        assert self.other is not None
        self.is_over = True
        if self.other.is_over:
            self.other.transport.close()
            return False
        self.other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.proxy._halves.discard(self)
        if self.other is not None:
            self.other.transport.abort()


class _Front(_Half):
    """Where connections come in."""

    def __init__(self, proxy: StreamProxy) -> None:
        super().__init__(proxy, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.proxy.accepted += 1
        self.transport.pause_reading()
        self.proxy.reach(self)
