"""What a mesh knows of an address: its connections, what waits for them, when to try again.
PeerTable: all addresses that it knows of, and who of them is a member."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping

    from ringcast.model import Address, View

QUEUE_BYTES = 8 << 20
"""What may wait for one peer. Windows admit far less than this, unless it does not read."""

WRITE_MAX = 16
"""Datagrams written with one call."""

FREE_TRIES = 2
"""Failures before the first pause: one for what was sent anyway, one for the probe that follows."""

BACK_OFF_NS = 50_000_000
BACK_OFF_NS_MAX = 1_000_000_000
"""Pauses double from the first to the second. A connection that lasted for longer than the second
has not failed when it ends."""

REFUSED: Final = "refused"


class Link:
    """A connection, from its beginning to its end."""

    def __init__(
        self, sock: socket.socket, *, is_ours: bool, source: Address | None = None
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.is_ours = is_ours
        """Opened here."""
        self.source = source
        """Where it comes from, if somebody else has opened it."""
        self.is_made = not is_ours
        """There is a connection; what comes first may still be to come."""
        self.is_connected = not is_ours
        """It may be written to."""
        self.is_retired = False
        """There is a better one: nothing new is written here."""
        self.is_writer = False
        """The loop tells when it takes more."""
        self.begun_at = time.monotonic_ns()
        self.peer: Peer | None = None
        """None: it has not said yet from whom it is."""
        self.challenge = b""
        """What a hello must prove to have heard."""
        self.rank = (0, False)
        """Its round, and whether the lower address opened it. The highest is used."""
        self.tail = b""
        """What was read of a datagram that is not whole yet."""
        self.rest: memoryview | None = None
        """What is still to be written of a datagram that was begun."""
        self.deadline: asyncio.TimerHandle | None = None

    @property
    def is_greeted(self) -> bool:
        """What comes now are datagrams."""
        return self.is_connected and self.peer is not None

    def end_writing(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended by itself
            self.sock.shutdown(socket.SHUT_WR)


class Peer:
    """An address, and how to get there."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.links: list[Link] = []
        self.main: Link | None = None
        """The one to write to."""
        self.queue: deque[tuple[bytes, bytes]] = deque()
        """Heads and datagrams."""
        self.queued_bytes = 0
        self.round = 0
        """The highest of any connection so far."""
        self.dropped = 0
        self.reconnects = 0
        self.is_broken = False
        """A connection has ended, and none has taken its place yet."""
        self.left_at = 0
        """When it was in a view of ours for the last time."""
        self.failures = 0
        self.retry_at = 0
        self.retry: asyncio.TimerHandle | None = None
        self.trouble = ""
        """Why there is no connection."""

    @property
    def is_refused(self) -> bool:
        return self.main is None and self.trouble == REFUSED

    # What waits

    def enqueue(self, framed: tuple[bytes, bytes]) -> bool:
        """False if it does not fit."""
        size = len(framed[0]) + len(framed[1])
        if self.queued_bytes + size > QUEUE_BYTES:
            return False
        self.queue.append(framed)
        self.queued_bytes += size
        return True

    def next_buffers(self, link: Link) -> list[bytes | memoryview]:
        """What to write to this connection now: what was begun there; what waits, if it is the one
        in use."""
        buffers: list[bytes | memoryview] = [] if link.rest is None else [link.rest]
        if self.main is link:
            for framed in islice(self.queue, WRITE_MAX):
                buffers += framed
        return buffers

    def wrote(self, link: Link, size: int) -> int:
        """So many bytes of these were written; how many datagrams are out by that."""
        count = 0
        if link.rest is not None:
            if size < len(link.rest):
                link.rest = link.rest[size:]
                return 0
            size -= len(link.rest)
            link.rest = None
            count = 1
        while size:
            head, datagram = self.queue.popleft()
            whole = len(head) + len(datagram)
            self.queued_bytes -= whole
            if size < whole:
                link.rest = memoryview(head + datagram)[size:]
                break
            size -= whole
            count += 1
        return count

    def clear_queue(self) -> int:
        """Let go of what waits; how much that was."""
        count = len(self.queue)
        self.queue.clear()
        self.queued_bytes = 0
        return count

    # When to try again

    def back_off(self, reason: str) -> None:
        doublings = min(self.failures - FREE_TRIES, 16)
        pause = min(BACK_OFF_NS << doublings, BACK_OFF_NS_MAX) if doublings >= 0 else 0
        self.failures += 1
        self.retry_at = time.monotonic_ns() + pause
        self.trouble = reason

    def forget_failures(self) -> None:
        self.failures = self.retry_at = 0
        self.trouble = ""

    def cancel_retry(self) -> None:
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None

    # What people see

    def explain(self, label: str, now: int) -> str:
        """Why it may not be heard of; empty if nothing is in its way."""
        link = self.main
        if link is None and self.trouble:
            wait_s = max(0, self.retry_at - now) / 1e9
            when = f"in {wait_s:.1f} s" if wait_s else "with the next datagram"
            return f"no connection to {label}: {self.trouble}, next try {when}"
        if link is not None and not link.is_connected:
            since_s = (now - link.begun_at) / 1e9
            return f"no connection to {label} yet: no answer for {since_s:.1f} s"
        if self.queue:
            return f"{len(self.queue)} datagrams wait for {label}: its connection takes no more"
        return ""

    def stats(self) -> dict[str, object]:
        link = self.main
        state = "none" if link is None else "connected" if link.is_connected else "connecting"
        return {
            "connection": state,
            "trouble": self.trouble,
            "connections": len(self.links),
            "queued": len(self.queue),
            "queued_bytes": self.queued_bytes,
            "dropped": self.dropped,
            "reconnects": self.reconnects,
        }


def trouble_of(sock: socket.socket) -> str:
    """Where nobody listens the system may choose that very port for this end, and connect the
    socket with itself."""
    try:
        return REFUSED if sock.getsockname() == sock.getpeername() else ""
    except OSError as error:
        return reason_of(error)


def reason_of(error: OSError) -> str:
    return reason_of_code(error.errno or 0)


def reason_of_code(code: int) -> str:
    return REFUSED if code == errno.ECONNREFUSED else os.strerror(code).lower()


PEERS_MAX = 1024

OUTSIDERS_MAX = 512
"""Connections with who is in no view of ours. If more come, the oldest must go."""

OUTSIDER_NS = 60_000_000_000
"""How long such a connection may stay."""


class PeerTable:
    """Bounded: those without a connection make room for others."""

    def __init__(self) -> None:
        self._peers: dict[Address, Peer] = {}
        self._members: frozenset[Address] = frozenset()
        self.get = self._peers.get

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __len__(self) -> int:
        return len(self._peers)

    def meet(self, address: Address) -> Peer | None:
        """A peer that was not known; None if there are too many."""
        if len(self) >= PEERS_MAX:
            for peer in [peer for peer in self if not peer.links]:
                peer.cancel_retry()
                del self._peers[peer.address]
            if len(self) >= PEERS_MAX:
                return None
        peer = self._peers[address] = Peer(address)
        return peer

    def enter_view(self, view: View) -> None:
        before, self._members = self._members, frozenset(member.address for member in view)
        for peer in self:
            peer.forget_failures()
            if peer.address in before - self._members:
                peer.left_at = time.monotonic_ns()

    def surplus(self) -> Link | None:
        """Whose connection must go: there are too many that are no member's."""
        outsiders = self._outsiders()
        if len(outsiders) <= OUTSIDERS_MAX:
            return None
        return min(outsiders, key=lambda link: link.begun_at)

    def expired(self, now: int) -> list[Link]:
        """Connections that have been no member's for long."""
        return [
            link
            for link in self._outsiders()
            if link.peer and now - max(link.begun_at, link.peer.left_at) >= OUTSIDER_NS
        ]

    def _outsiders(self) -> list[Link]:
        others = (peer for peer in self if peer.address not in self._members)
        return [link for peer in others for link in peer.links]

    def clear(self) -> None:
        for peer in self:
            peer.cancel_retry()
            peer.queue.clear()
            peer.main = None

    def explain(self, awaited: Mapping[Address, str], now: int) -> list[str]:
        found = [(self._peers.get(address), label) for address, label in awaited.items()]
        reasons = [peer.explain(label, now) for peer, label in found if peer is not None]
        return [reason for reason in reasons if reason]

    def stats(self) -> dict[str, object]:
        return {
            "refused": [str(peer.address) for peer in self if peer.is_refused],
            "peers": {str(peer.address): peer.stats() for peer in self},
        }
