"""The members of a group as automata: what an exploration of reliable multicast drives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.explore.automata import DATAGRAM_BYTES, Automata
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.node import build_node
from ringcast.window.windows import ReceiveWindow, SendWindow
from ringcast.wire.frames import Ack

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator
    from enum import Enum

    from ringcast.explore.automata import Step
    from ringcast.node import Node
    from ringcast.protocols.multicast import ReliableMulticast
    from ringcast.wire.frames import Frame

NO_WINDOW = -1
"""As an offset: that sender has no window here yet."""

_ONLY_ACKS: set[type[Frame]] = {Ack}


class Facts(NamedTuple):
    """What the exploration asks about a node, read once."""

    armed: list[tuple[Hashable, Enum]]
    """(owner, timer) of each armed timer."""
    has_ready: bool
    view: tuple[int, ...]
    """By place."""
    low: int
    """Of its own messages."""
    high: int


class Members(Automata[Facts]):
    """The members of one group: some in it from the start, some to join."""

    def __init__(
        self,
        size: int,
        *,
        founders: int,
        senders: tuple[int, ...],
        capacity: int,
        multicast: type[ReliableMulticast],
    ) -> None:
        self.members = [
            Member(Address("explore", 1 + place), 1, self.name(place)) for place in range(size)
        ]
        super().__init__([member.address for member in self.members])
        self._founders = range(founders)
        self._senders = senders
        self._capacity = capacity
        self._multicast = multicast
        self._config = GroupConfig(
            group="explore",
            multicast=MulticastConfig(
                capacity=capacity,
                datagram_bytes=DATAGRAM_BYTES,
                window_bytes=4 * DATAGRAM_BYTES,
            ),
        )

    def fresh(self, place: int) -> int:
        """A founder in the first view, or somebody who is in none."""
        node = build_node(
            self.members[place], self._config, membership=None, multicast=self._multicast
        )
        # So small that each sender's share is the minimum, however many were heard of late.
        node.multicast.receive_buffer = DATAGRAM_BYTES
        if place in self._founders:
            node.install_view(self.view(1, self._founders), 0)
            offsets = [0 if s in self._founders else NO_WINDOW for s in self._senders]
            node.install_digest(self._digest(offsets), 0)
            node.take_events(0, 0)
        return self._node_number(node, 0)

    def view(self, counter: int, places: Iterable[int]) -> View:
        members = tuple(self.members[place] for place in places)
        return View(ViewId(members[0], counter), members)

    def is_stale(self, datagram: int, nodes: tuple[int, ...]) -> bool:
        """An ack from a member that the receiver knows, and knows to be as far already."""
        if self.kinds[datagram] != _ONLY_ACKS:
            return False
        source, dest, _ = self.datagrams[datagram]
        number = nodes[dest]
        return self.is_idle(number, datagram) and source in self.facts[number].view

    def offsets(self, number: int) -> tuple[int, ...]:
        """The digest of this member: how far it has delivered each sender."""
        entries = self._nodes[number][0].digest().entries
        return tuple(entries.get(self._origin(s), 0) for s in self._senders)

    # Inputs: what would become of the node. The node itself stays as it is.

    def send(self, number: int, payload: bytes) -> Step:
        return self._step(number, ("send", payload), lambda node, now: node.send([payload], now))

    def take(self, number: int) -> Step:
        """One message at a time; with several senders all that is ready, as turns do not count."""
        senders = len(self._senders)
        limit = 1 if senders == 1 else senders * self._capacity
        return self._step(number, "take", lambda node, now: None, take=limit)

    def install_view(self, number: int, view: View) -> Step:
        return self._step(
            number, ("view", view.members), lambda node, now: node.install_view(view, now)
        )

    def install_digest(self, number: int, offsets: tuple[int, ...]) -> Step:
        digest = self._digest(offsets)
        return self._step(
            number, ("digest", offsets), lambda node, now: node.install_digest(digest, now)
        )

    def enter(self, number: int, view: View, offsets: tuple[int, ...]) -> Step:
        """The answer to a joiner: view and digest in one."""

        def install_both(node: Node, now: int) -> None:
            node.install_view(view, now)
            node.install_digest(self._digest(offsets), now)

        return self._step(number, ("enter", view.members, offsets), install_both)

    # What is read from a node

    def place_of(self, member: Member) -> int:
        return self._places[member.address]

    def _read(self, node: Node) -> Facts:
        windows = node.multicast.windows()
        own = windows.get(Origin(node.me, Stream.FIFO))
        return Facts(
            armed=self.armed(node),
            has_ready=any(_is_ready(window) for window in windows.values()),
            view=tuple(self._places[member.address] for member in node.view or ()),
            low=own.low if own else 0,
            high=own.high if own else 0,
        )

    def _has_timers(self, owner: Hashable) -> bool:
        return isinstance(owner, tuple) and owner[0] in ("sent", "received")

    def _wrong_with(self, node: Node) -> Iterator[str]:
        yield from super()._wrong_with(node)
        if node.rejected:
            yield f"a datagram of a member was rejected: {sorted(node.rejected)}"
        windows = node.multicast.windows().values()
        if any(w.dropped_high for w in windows if isinstance(w, ReceiveWindow)):
            yield "a receiver dropped what the sender was allowed to send (N4)"

    def _origin(self, place: int) -> Origin:
        return Origin(self.members[place], Stream.FIFO)

    def _digest(self, offsets: Iterable[int]) -> Digest:
        pairs = zip(self._senders, offsets, strict=True)
        return Digest({self._origin(s): offset for s, offset in pairs if offset != NO_WINDOW})


def _is_ready(window: SendWindow | ReceiveWindow) -> bool:
    return window.delivered < (window.high if isinstance(window, SendWindow) else window.received)
