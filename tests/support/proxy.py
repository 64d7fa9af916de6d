"""A network of our own between members on real sockets: every link can be cut, lossy or slow.

Each member advertises an address of the proxy and listens elsewhere. Whatever the others send to
it comes here first, and who sent it shows by the port it came from. So the members are the real
ones, and nothing between them happens by chance:

    with Proxy("ABC") as proxy:
        join(..., listen=proxy.listen["A"], advertise=proxy.advertise["A"])
        proxy.part("A", "BC")
        proxy.heal()

What is dropped here is dropped in silence, as by a network that broke: no port is ever refused, so
that a member that died is missed by its silence too.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

DATAGRAM_SPACE = 1 << 16
BUFFER_BYTES = 4 << 20
DRAIN_MAX = 64


@dataclass(frozen=True, slots=True)
class Link:
    """How datagrams fare from one member to another."""

    is_cut: bool = False
    loss: float = 0.0
    delay_s: float = 0.0


WHOLE = Link()


class Proxy:
    """Forwards datagrams between members by name, in a thread, until the block ends."""

    def __init__(self, names: Sequence[str], seed: int = 1) -> None:
        ports = free_ports(len(names))
        self.listen = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        """Where each member is to listen."""
        self.advertise: dict[str, str] = {}
        """What it is to give as its address."""
        self.forwarded: Counter[tuple[str, str]] = Counter()
        self.dropped: Counter[tuple[str, str]] = Counter()
        self._places = dict(zip(names, (("127.0.0.1", port) for port in ports), strict=True))
        self._sources = {place: name for name, place in self._places.items()}
        self._links: dict[tuple[str, str], Link] = {}  # those that are not whole
        self._random = random.Random(seed)
        self._late: list[tuple[float, int, str, bytes]] = []  # a heap: when, the how manieth, whom
        self._numbers = count()
        self._sockets: dict[str, socket.socket] = {}
        self._waker, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Proxy:
        for name in self._places:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._sockets[name] = sock
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0))
            self.advertise[name] = f"127.0.0.1:{sock.getsockname()[1]}"
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waker.close()
        self._thread.join()
        self._wake.close()
        for sock in self._sockets.values():
            sock.close()

    # What happens to links

    def part(self, *sides: Iterable[str]) -> None:
        """Cut all links between these sides, both ways."""
        for side in sides:
            for other in sides:
                if other is not side:
                    self.cut(side, other)

    def cut(self, sources: Iterable[str], dests: Iterable[str]) -> None:
        """Nothing gets from any of these to any of those; the other way it does."""
        self.set(sources, dests, Link(is_cut=True))

    def set(self, sources: Iterable[str], dests: Iterable[str], link: Link) -> None:
        dests = list(dests)
        for source in sources:
            self._links.update(((source, dest), link) for dest in dests)

    def heal(self) -> None:
        """All links are whole again. What was dropped stays dropped."""
        self._links.clear()

    # The thread

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for name, sock in self._sockets.items():
                selector.register(sock, selectors.EVENT_READ, name)
            while True:
                wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
                for key, _ in selector.select(wait_s):
                    if key.data is None:
                        return
                    for source, datagram in self._arrived(key.data):
                        self._forward(source, key.data, datagram)
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, dest, datagram = heapq.heappop(self._late)
                    self._hand_over(dest, datagram)

    def _arrived(self, dest: str) -> Iterator[tuple[str, bytes]]:
        """What has come for this member, and from whom. Strangers are not let through."""
        for _ in range(DRAIN_MAX):
            try:
                datagram, place = self._sockets[dest].recvfrom(DATAGRAM_SPACE)
            except BlockingIOError:
                return
            source = self._sources.get(place)
            if source is not None:
                yield source, datagram

    def _forward(self, source: str, dest: str, datagram: bytes) -> None:
        link = self._links.get((source, dest), WHOLE)
        if link.is_cut or (link.loss and self._random.random() < link.loss):
            self.dropped[source, dest] += 1
            return
        self.forwarded[source, dest] += 1
        if link.delay_s:
            due = time.monotonic() + link.delay_s
            heapq.heappush(self._late, (due, next(self._numbers), dest, datagram))
        else:
            self._hand_over(dest, datagram)

    def _hand_over(self, dest: str, datagram: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # a full buffer drops, as they do
            self._sockets[dest].sendto(datagram, self._places[dest])
