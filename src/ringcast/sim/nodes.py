"""The nodes that are simulated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ringcast.model import Stream
from ringcast.node import build_node

if TYPE_CHECKING:
    from ringcast.config import GroupConfig
    from ringcast.model import Member
    from ringcast.node import Node
    from ringcast.wire.codec import DatagramSeal


class NodeFactory(Protocol):
    """Makes nodes: a real one, or a broken one that must be caught."""

    def __call__(self, me: Member, config: GroupConfig, *, seal: DatagramSeal | None) -> Node: ...


STREAMS = {"group": (Stream.FIFO,), "uniform": (Stream.FIFO, Stream.UNIFORM)}
"""By protocol: the streams of nodes that make their own views."""


def node_factory_for(protocol: str, *, state: bool = False) -> NodeFactory:
    """Nodes of this protocol; with `state`, such as give and get one."""
    if protocol not in STREAMS:
        return partial(build_node, membership=None)
    return partial(build_node, streams=STREAMS[protocol], state=state)
