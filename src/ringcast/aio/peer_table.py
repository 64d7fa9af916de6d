"""PeerTable: all addresses that a mesh knows of, and who of them is a member."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ringcast.aio.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringcast.aio.peers import Link
    from ringcast.model import Address, View

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
