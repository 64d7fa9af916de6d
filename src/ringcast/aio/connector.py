"""Connector: opens the connections of a TCP mesh.

On connect: say the hello, then what waits. In a group with a key, the challenge comes before.
On a refused connect: what waits is dropped, and the driver is told that nobody listens there.
    Further tries come after pauses that double; what is sent in a pause is dropped.
On no answer for PATIENCE_S: the same, but that nobody is told.
"""

from __future__ import annotations

import errno
import socket
import time
from typing import TYPE_CHECKING

from ringcast.aio.handshake import ROUND_MAX, Handshake, Hello
from ringcast.aio.peers import REFUSED, Link, Peer, reason_of, reason_of_code, trouble_of

if TYPE_CHECKING:
    from ringcast.aio.acceptor import Acceptor
    from ringcast.aio.tcp import TcpMesh
    from ringcast.model import Address

PATIENCE_S = 5.0
"""How long a connection may take to be made, and to be proved to be somebody's."""

_CONNECTED = {0, errno.EISCONN}
_CONNECTING = {errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK}


class Connector:
    """From here to others."""

    def __init__(
        self, mesh: TcpMesh, acceptor: Acceptor, name: Address, handshake: Handshake
    ) -> None:
        self._mesh = mesh
        self._acceptor = acceptor
        self._name = name
        self._handshake = handshake

    def open(self, peer: Peer) -> None:
        """Try to connect, unless it is too early for that."""
        now = time.monotonic_ns()
        if now < peer.retry_at:
            if peer.retry is None:
                delay_s = (peer.retry_at - now) / 1e9
                peer.retry = self._mesh.loop.call_later(delay_s, self._on_retry, peer)
            return
        peer.cancel_retry()
        try:
            sock = socket.socket(self._acceptor.sock.family, socket.SOCK_STREAM)
        except OSError as error:
            self._acceptor.exhausted += 1
            peer.back_off(reason_of(error))
            return
        # The port that the system chooses for this end may be one where a member listened that is
        # about to come back: it shall not be in its way.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        link = Link(sock, is_ours=True)
        link.peer = peer
        peer.round = min(peer.round + 1, ROUND_MAX)
        link.rank = (peer.round, self._name < peer.address)
        self._mesh.links.add(link)
        peer.links.append(link)
        peer.main = link
        code = sock.connect_ex(peer.address)
        if code == errno.EINPROGRESS:
            code = sock.connect_ex(peer.address)  # on the same machine it is decided by now
        self.on_connect(link, code)

    def _on_retry(self, peer: Peer) -> None:
        peer.retry = None
        if peer.main is None:
            self.open(peer)

    def on_connect(self, link: Link, code: int) -> None:
        """How a connection of ours has come along."""
        peer = link.peer
        assert peer is not None
        if code in _CONNECTING:
            if link.deadline is None:
                link.deadline = self._mesh.loop.call_later(PATIENCE_S, self._on_no_connect, link)
                self._mesh.write_on(link)
            return
        trouble = trouble_of(link.sock) if code in _CONNECTED else reason_of_code(code)
        if not trouble and not self._handshake.is_sealed:
            trouble = self.greet(link, peer)
        if trouble:
            self._on_no_connect(link, trouble)
            return
        link.is_made = True
        self._mesh.write_off(link)
        self._mesh.read_on(link)
        if link.is_connected:
            self._mesh.use(peer, link)
        elif link.deadline is None:  # the other side is to say the challenge
            link.deadline = self._mesh.loop.call_later(PATIENCE_S, self._on_no_connect, link)

    def greet(self, link: Link, peer: Peer, challenge: bytes = b"") -> str:
        """Say who is here; why that was not possible, or nothing."""
        hello = Hello(self._name, link.rank[0])
        try:
            # So little always fits a buffer that is empty.
            link.sock.sendall(self._handshake.hello(hello, peer.address, challenge))
        except OSError as error:
            return reason_of(error)
        if link.deadline is not None:
            link.deadline.cancel()
        link.is_connected = True
        return ""

    def _on_no_connect(self, link: Link, reason: str = "no answer") -> None:
        peer = link.peer
        assert peer is not None
        self._mesh.close_link(link)
        if peer.main is not None:
            return  # it has come by another way
        self._mesh.drop(peer, peer.clear_queue())
        peer.back_off(reason)
        if reason == REFUSED:
            self._mesh.hints.add(peer.address)
            self._mesh.tell_soon()
