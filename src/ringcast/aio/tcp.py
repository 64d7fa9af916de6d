"""A mesh of TCP connections that carries datagrams: one for each pair of members.

Whoever has something to send opens the connection and says first where it listens; both then use
it. Each datagram stands behind a short head with its length and a checksum. What does not fit the
socket waits in a queue that is bounded in bytes; what does not fit there is dropped, as by a full
socket buffer.

Which of two connections? Both ends may open one at once, or one end has noticed that a connection
is dead and the other has not. Each connection has a round: one more than the highest that its
opener knows of this pair. The highest round wins; of two with the same, that which the member with
the lower address opened. Both ends see the same numbers, so both choose the same. A datagram is
written to one connection only. Who opened the other one finishes the datagram that it has begun
there and ends it; the other end reads until then. So nothing is sent twice, and nothing is cut.

On connect (connector.py): say the hello, then what waits.
On hello (acceptor.py): this connection is that member's; the better one is written to from now on.
On the end of the connection in use: connect again. Whole datagrams wait for that; one that was
    begun is dropped.
On bytes that are no hello, prove nothing or are not what a head says: the connection is closed.
    So is one that has said nothing for 5 s, or has been no member's for a minute.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ringcast.aio import connector
from ringcast.aio.acceptor import Acceptor
from ringcast.aio.connector import Connector
from ringcast.aio.framing import FRAME_BYTES_MAX, HEAD_BYTES, Malformed, body_at, cut, head_of
from ringcast.aio.handshake import Handshake, Hello, Refused
from ringcast.aio.peers import BACK_OFF_NS_MAX, QUEUE_BYTES, Link, Peer, PeerTable, reason_of
from ringcast.aio.reach import admits
from ringcast.aio.transport import Inputs, Transport
from ringcast.config import DATAGRAM_BYTES_MAX
from ringcast.model import Address, View

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

    from ringcast.wire.codec import Buffer

READ_BYTES = 1 << 18
"""Read from one connection before another gets its turn."""

SHORT_BYTES_MAX = 4096
"""A datagram of no more than this is copied behind its head: less work than to send two buffers."""

LINKS_MAX = 4
"""Connections with one peer: the one in use, and others that come to their end."""

SWEEP_S = 5.0
"""How often connections are looked for that are no member's."""


class TcpMesh(Transport):
    """Connections to all peers. Those who write here never wait: see the module."""

    def __init__(
        self,
        address: Address,
        advertise: Address | None = None,
        *,
        insecure: bool = False,
        handshake: Handshake | None = None,
    ) -> None:
        """`advertise`: where others reach this member, if that is not where it listens.
        `insecure`: it may talk to other machines too. `handshake`: with the group's key."""
        self._acceptor = Acceptor(address)
        self.address = self._acceptor.address
        self._handshake = handshake or Handshake()
        self._name = advertise or self.address
        self._connector = Connector(self, self._acceptor, self._name, self._handshake)
        self._insecure = insecure
        self.receive_buffer = QUEUE_BYTES
        """Nothing is lost for want of a buffer before the queue of its sender is full."""
        self.datagram_bytes = DATAGRAM_BYTES_MAX
        self.received = 0
        self.sent = 0
        self.dropped = 0
        """Datagrams that were not sent: no connection, a full queue, or a connection that ended."""
        self.malformed = 0
        """Connections closed because of what came on them."""
        self.turned_away = 0
        """Connections closed because there are too many."""
        self.rejected: dict[str, int] = {}
        """Connections closed because who opened them has another key, or none; by reason."""
        self.hints: set[Address] = set()
        self._peers = PeerTable()
        self.links: set[Link] = set()
        self._ready: Link | None = None
        self._last: Buffer = b""
        """The last datagram: it may go to many."""
        self._framed: tuple[bytes, Buffer] = (b"", b"")
        """Its head, and itself; a copy, if it waits for somebody."""
        self._view = memoryview(bytearray(READ_BYTES + FRAME_BYTES_MAX))
        self.loop: asyncio.AbstractEventLoop  # since it was started
        self._on_input: Callable[[], None] | None = None
        self._is_telling = False
        self._sweeping: asyncio.TimerHandle | None = None

    # What a driver calls

    def start(self, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None]) -> None:
        self.loop, self._on_input = loop, on_input
        self._acceptor.start(loop, self._on_stranger)
        self._sweep()
        for link in self.links:
            if link.is_made:
                loop.add_reader(link.sock.fileno(), self._on_readable, link)

    def stop(self) -> None:
        if self._on_input is None:
            return
        self._on_input = None
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._acceptor.stop()
        for link in self.links:
            self.loop.remove_reader(link.sock.fileno())

    def inputs(self) -> Inputs:
        if self._on_input is None:
            return {}
        links = (link for link in self.links if link.is_made)
        return {link.sock.fileno(): partial(self._on_readable, link) for link in links}

    def drain(self, limit: int) -> Iterator[tuple[memoryview]]:
        """What one connection has brought."""
        link, self._ready = self._ready, None
        self.source = None if link is None or link.peer is None else link.peer.address
        return zip(() if link is None else self._read(link, limit))  # None: hints only

    def send(self, datagram: Buffer, dest: Address) -> None:
        peer = self._peers.get(dest)
        if peer is None:
            peer = self._peers.meet(dest) if self._admits(dest) else None
            if peer is None:
                self.dropped += dest not in (self._name, self.address)  # oneself needs no datagram
                return
        if peer.main is None:
            self._connector.open(peer)
        link = peer.main
        if link is None or not 0 < len(datagram) <= DATAGRAM_BYTES_MAX:
            self.drop(peer, 1)
            return
        if datagram is not self._last:
            self._last, self._framed = datagram, (head_of(datagram), datagram)
        if not link.is_connected or link.rest is not None or peer.queue:
            self._enqueue(peer)
        else:
            try:
                if len(datagram) <= SHORT_BYTES_MAX:
                    size = link.sock.send(self._framed[0] + datagram)
                else:
                    size = link.sock.sendmsg(self._framed)
            except BlockingIOError:
                self._enqueue(peer)
                self.write_on(link)
            except OSError as error:
                self.drop(peer, 1)
                self._on_end(link, reason_of(error))
            else:
                if size == HEAD_BYTES + len(datagram):
                    self.sent += 1
                else:
                    link.rest = memoryview(b"".join(self._framed))[size:]
                    self.write_on(link)

    def enter_view(self, view: View) -> None:
        self._peers.enter_view(view)

    def explain(self, awaited: Mapping[Address, str], now: int) -> list[str]:
        return self._peers.explain(awaited, now)

    def stats(self) -> dict[str, object]:
        return {
            "kind": "tcp",
            "address": str(self.address),
            "receive_buffer": self.receive_buffer,
            "received": self.received,
            "sent": self.sent,
            "dropped": self.dropped,
            "connections": len(self.links),
            "strangers": len(self._acceptor.strangers),
            "malformed": self.malformed,
            "turned_away": self.turned_away,
            "rejected": dict(self.rejected),
            "exhausted": self._acceptor.exhausted,
            **self._peers.stats(),
        }

    def close(self) -> None:
        self.stop()
        self._peers.clear()
        for link in list(self.links):
            link.peer = None  # nothing takes its place
            self.close_link(link)
        self._peers = PeerTable()
        self._acceptor.close()

    # Who is out there

    def _admits(self, address: Address) -> bool:
        """Whether to talk to it."""
        is_own = address in (self._name, self.address)
        return not is_own and admits(self.address, address, insecure=self._insecure)

    def _choose(self, peer: Peer) -> None:
        """Use the best connection. Whoever opened another one ends it."""
        before = peer.main
        alive = [link for link in peer.links if not link.is_retired]
        peer.main = max(alive, key=lambda link: link.rank, default=None)
        for link in alive:
            if link.is_ours and link is not peer.main:
                self._retire(link)
        if peer.main is not None and peer.main is not before and peer.main.is_connected:
            self.use(peer, peer.main)

    def use(self, peer: Peer, link: Link) -> None:
        """There is a connection: what has waited goes."""
        peer.trouble = ""
        peer.reconnects += peer.is_broken
        peer.is_broken = False
        peer.cancel_retry()
        self._flush(link)

    def _retire(self, link: Link) -> None:
        link.is_retired = True
        if not link.is_connected:
            self.close_link(link)
        elif link.rest is None:
            link.end_writing()

    # What there is to tell

    def tell_soon(self) -> None:
        """Not from here: the driver may be in the middle of something."""
        if self._on_input is not None and not self._is_telling:
            self._is_telling = True
            self.loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        if self._on_input is not None:
            self._on_input()

    # Accepting

    def _on_stranger(self, link: Link) -> None:
        """Somebody has connected, and is to say who it is."""
        self.links.add(link)
        link.deadline = self.loop.call_later(connector.PATIENCE_S, self._turn_away, link)
        self.loop.add_reader(link.sock.fileno(), self._on_readable, link)
        challenge = self._handshake.challenge()
        if challenge:
            link.challenge = challenge[HEAD_BYTES:]
            with suppress(OSError):  # so little fits a buffer that is empty; who is gone is noticed
                link.sock.send(challenge)
        if (surplus := self._acceptor.surplus()) is not None:
            self._turn_away(surplus)

    def _turn_away(self, link: Link) -> None:
        self.turned_away += 1
        self.close_link(link)

    def _shake_hands(self, link: Link, body: bytes) -> None:
        """What comes first on a connection: a challenge from who accepts it, else a hello."""
        peer = link.peer
        if peer is None:
            own = (self._name, Address(*link.sock.getsockname()[:2]))
            self._on_hello(link, self._handshake.check(body, own, link.challenge))
        elif trouble := self._connector.greet(link, peer, body):
            self._on_end(link, trouble)
        else:
            self.use(peer, link)

    def _on_hello(self, link: Link, hello: Hello) -> None:
        """Whose connection this is."""
        address, number = hello
        if not self._admits(address):
            raise Malformed
        peer = self._peers.get(address) or self._peers.meet(address)
        if peer is None:
            self._turn_away(link)
            return
        del self._acceptor.strangers[link]
        assert link.deadline is not None
        link.deadline.cancel()
        link.peer = peer
        link.rank = (number, address < self._name)
        peer.round = max(peer.round, number)
        peer.links.append(link)
        self._choose(peer)
        if len(peer.links) > LINKS_MAX:
            self._turn_away(min(peer.links, key=lambda other: other.rank))
        if (surplus := self._peers.surplus()) is not None:
            self._turn_away(surplus)

    def _sweep(self) -> None:
        """Close the connections that have been no member's for long. Who needs one makes it."""
        self._sweeping = self.loop.call_later(SWEEP_S, self._sweep)
        for link in self._peers.expired(time.monotonic_ns()):
            self._turn_away(link)

    def _reject(self, link: Link, refused: Refused) -> None:
        reason, said = refused.reason, refused.address
        self.rejected[reason.value] = self.rejected.get(reason.value, 0) + 1
        source = link.source  # and if it listens there too, the port where it does
        if source is not None and said is not None and said.host == source.host:
            source = said
        if self._handshake.keys is not None:
            self._handshake.keys.refusals.note(reason, refused.key_id, source)

    # Reading

    def _on_readable(self, link: Link) -> None:
        self._ready = link
        if self._on_input is not None:
            self._on_input()

    def _read(self, link: Link, limit: int) -> list[memoryview]:
        """The datagrams that are whole by now."""
        space = self._view
        kept = len(link.tail)
        if kept:
            space[:kept] = link.tail
        wanted = min(READ_BYTES, limit * DATAGRAM_BYTES_MAX)
        try:
            size = link.sock.recv_into(space[kept:] if kept else space, wanted)
        except BlockingIOError:
            return []
        except OSError as error:
            self._on_end(link, reason_of(error))
            return []
        if not size:
            self._on_end(link, "closed by the other side")
            return []
        stream, place = space[: kept + size], 0
        datagrams: list[memoryview] = []
        try:
            longest = self._handshake.bytes_max
            if not link.is_greeted and (body := body_at(stream, 0, longest)) is not None:
                place = HEAD_BYTES + len(body)
                self._shake_hands(link, bytes(body))
            if link.is_greeted:
                place = cut(stream, place, datagrams)
        except Malformed as error:
            if isinstance(error, Refused):
                self._reject(link, error)
            self.malformed += 1
            self._on_end(link, "what came could not be understood")
        link.tail = bytes(stream[place:]) if place < len(stream) else b""
        self.received += len(datagrams)
        return datagrams

    def _on_end(self, link: Link, reason: str) -> None:
        """A connection that stood has ended. The one in use is made again."""
        peer = link.peer
        was_in_use = peer is not None and peer.main is link
        self.close_link(link)
        if peer is None or not was_in_use or peer.main is not None:
            return
        peer.is_broken = True
        if time.monotonic_ns() - link.begun_at > BACK_OFF_NS_MAX:
            peer.failures = 0
        peer.back_off(reason)
        if peer.retry_at > time.monotonic_ns():
            self.drop(peer, peer.clear_queue())
        self._connector.open(peer)

    def close_link(self, link: Link) -> None:
        if link not in self.links:
            return
        self.links.remove(link)
        self._acceptor.strangers.pop(link, None)
        if link.deadline is not None:
            link.deadline.cancel()
        self.loop.remove_reader(link.sock.fileno())
        self.loop.remove_writer(link.sock.fileno())
        link.sock.close()
        peer = link.peer
        if peer is not None:
            if link.rest is not None:
                self.drop(peer, 1)
            peer.links.remove(link)
            self._choose(peer)

    def read_on(self, link: Link) -> None:
        if self._on_input is not None:
            self.loop.add_reader(link.sock.fileno(), self._on_readable, link)

    # Writing

    def _enqueue(self, peer: Peer) -> None:
        head, datagram = self._framed
        self._framed = kept = head, bytes(datagram)
        if not peer.enqueue(kept):
            self.drop(peer, 1)

    def drop(self, peer: Peer, count: int) -> None:
        peer.dropped += count
        self.dropped += count

    def write_on(self, link: Link) -> None:
        if not link.is_writer:
            link.is_writer = True
            self.loop.add_writer(link.sock.fileno(), self._on_writable, link)

    def write_off(self, link: Link) -> None:
        if link.is_writer:
            link.is_writer = False
            self.loop.remove_writer(link.sock.fileno())

    def _on_writable(self, link: Link) -> None:
        peer = link.peer
        assert peer is not None
        if link.is_connected:
            self._flush(link)
        else:
            self._connector.on_connect(link, link.sock.connect_ex(peer.address))

    def _flush(self, link: Link) -> None:
        """Write what waits, as far as the socket takes it."""
        peer = link.peer
        assert peer is not None
        while link.rest is not None or (peer.main is link and peer.queue):
            try:
                size = link.sock.sendmsg(peer.next_buffers(link))
            except BlockingIOError:
                self.write_on(link)
                return
            except OSError as error:
                self._on_end(link, reason_of(error))
                return
            self.sent += peer.wrote(link, size)
        self.write_off(link)
        if link.is_retired:
            link.end_writing()
