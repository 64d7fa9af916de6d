"""Acceptor: the door of a TCP mesh.

It accepts connections, and keeps those that have not proved yet whose they are: few in all and few
of one host, so that nobody can keep others out by being many.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from ringcast.aio.peers import Link
from ringcast.errors import UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

STRANGERS_MAX = 128
"""Connections that have not said yet from whom they are. If more come, the oldest must go."""

STRANGERS_OF_HOST_MAX = 64
"""The same, of one host: others have room beside it."""

BACKLOG = 128
ACCEPT_MAX = 16
"""Connections accepted before anything else gets its turn."""

ACCEPT_PAUSE_S = 0.5
"""How long to accept nobody when there are no file descriptors left."""

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """Listens at an address."""

    def __init__(self, address: Address) -> None:
        self.sock = _listen(address)
        host, port = self.sock.getsockname()[:2]
        self.address = Address(host, port)
        self.strangers: dict[Link, None] = {}  # the oldest first
        self.exhausted = 0
        """How often the system had no file descriptor, or no memory, for one more."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._take: Callable[[Link], None]  # since it was started
        self._pause: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop, take: Callable[[Link], None]) -> None:
        """`take` is called with each that comes: a stranger."""
        self._loop, self._take = loop, take
        self._accept_on()

    def stop(self) -> None:
        if self._loop is not None:
            if self._pause is not None:
                self._pause.cancel()
                self._pause = None
            self._loop.remove_reader(self.sock.fileno())
            self._loop = None

    def close(self) -> None:
        self.stop()
        self.sock.close()

    def surplus(self) -> Link | None:
        """Who must go: there are too many."""
        hosts = {link: link.source.host for link in self.strangers if link.source}
        newest = hosts[next(reversed(hosts))]
        same = [link for link, host in hosts.items() if host == newest]
        if len(same) > STRANGERS_OF_HOST_MAX:
            return same[0]
        return next(iter(self.strangers)) if len(self.strangers) > STRANGERS_MAX else None

    def _accept_on(self) -> None:
        assert self._loop is not None
        self._pause = None
        self._loop.add_reader(self.sock.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        assert self._loop is not None
        for _ in range(ACCEPT_MAX):
            try:
                sock, source = self.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    continue  # that one is gone already
                # Whoever waits there keeps the listener readable: look away, or do nothing else.
                self.exhausted += 1
                self._loop.remove_reader(self.sock.fileno())
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_on)
                return
            link = Link(sock, is_ours=False, source=Address(*source[:2]))
            self.strangers[link] = None
            self._take(link)


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Connections of who listened here before may not be quite over; they are in nobody's way
        # if this option is set on both sides. Before a free port is chosen it is not: the system
        # might choose one that is not quite free.
        if not address.port:
            sock.bind(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.port:
            sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen on {address}: {error.strerror}") from error
    return sock
