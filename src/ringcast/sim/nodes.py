"""The nodes that are simulated: the real ones, and for membership one that says when views come.

Where views are handed in from outside, whoever watches a node knows when. A node that makes its own
installs them, and goes, in the middle of an input: what it did before must be written down before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ringcast.model import Stream
from ringcast.node import build_node
from ringcast.protocols.multicast import ReliableMulticast

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.config import GroupConfig
    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.model import Member, View
    from ringcast.node import Node
    from ringcast.wire.codec import DatagramSeal


class NodeFactory(Protocol):
    """Makes nodes: a real one, or a broken one that must be caught."""

    def __call__(self, me: Member, config: GroupConfig, *, seal: DatagramSeal | None) -> Node: ...


class AnnouncedMulticast(ReliableMulticast):
    """Multicast as it is, but it calls `before_view` when a view is about to be installed,
    `before_close` when the member is about to go, and `before_take` and `after_take` around
    whatever is taken out of its windows."""

    before_view: Callable[[View], None] | None = None
    before_close: Callable[[], None] | None = None
    before_take: Callable[[], None] | None = None
    after_take: Callable[[list[Event]], None] | None = None

    def install_view(self, view: View, now: int, out: Effects) -> None:
        if self.before_view is not None:
            self.before_view(view)
        super().install_view(view, now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        if self.before_close is not None:
            self.before_close()
        super().close(reason, now, out)

    def take_ready(
        self, limit: int, now: int, out: Effects, *, only_own: bool = False
    ) -> list[Event]:
        if self.before_take is not None:
            self.before_take()
        events = super().take_ready(limit, now, out, only_own=only_own)
        if self.after_take is not None:
            self.after_take(events)
        return events

    def take_inherited(self, now: int, out: Effects) -> list[Event]:
        if self.before_take is not None:
            self.before_take()
        events = super().take_inherited(now, out)
        if self.after_take is not None:
            self.after_take(events)
        return events


STREAMS = {"group": (Stream.FIFO,), "uniform": (Stream.FIFO, Stream.UNIFORM)}
"""By protocol: the streams of nodes that make their own views."""


def node_factory_for(protocol: str, *, state: bool = False) -> NodeFactory:
    """Nodes of this protocol; with `state`, such as give and get one."""
    if protocol not in STREAMS:
        return partial(build_node, membership=None)
    return partial(build_node, multicast=AnnouncedMulticast, streams=STREAMS[protocol], state=state)
