"""The nodes that are simulated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ringcast.model import Stream
from ringcast.node import Node
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.membership import Membership
from ringcast.protocols.multicast import ReliableMulticast

if TYPE_CHECKING:
    from ringcast.config import GroupConfig
    from ringcast.model import Member
    from ringcast.wire.codec import DatagramSeal


class NodeFactory(Protocol):
    """Makes nodes: a real one, or a broken one that must be caught."""

    def __call__(self, me: Member, config: GroupConfig, *, seal: DatagramSeal | None) -> Node: ...


def group_node(
    me: Member,
    config: GroupConfig,
    *,
    seal: DatagramSeal | None,
    streams: tuple[Stream, ...] = (Stream.FIFO,),
    multicast: type[ReliableMulticast] = ReliableMulticast,
    state: bool = False,
) -> Node:
    """A node that finds its group, makes views and notices who is gone."""
    return Node(
        me,
        config,
        seal=seal,
        multicast=multicast,
        layers=[
            Membership(me, config.membership, streams=streams, purge=config.multicast.purge),
            FailureDetector(me, config.membership),
        ],
        streams=streams,
        state=state,
    )


uniform_node = partial(group_node, streams=(Stream.FIFO, Stream.UNIFORM))
"""The same, with both streams."""


def node_factory_for(protocol: str, *, state: bool = False) -> NodeFactory:
    """Nodes of this protocol; with `state`, such as give and get one."""
    if protocol == "group":
        return partial(group_node, state=state)
    return partial(uniform_node, state=state) if protocol == "uniform" else Node
