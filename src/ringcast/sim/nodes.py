"""The nodes that are simulated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ringcast.model import Stream
from ringcast.node import build_node
from ringcast.protocols.failure import FailureDetector

if TYPE_CHECKING:
    from ringcast.config import GroupConfig
    from ringcast.model import Member
    from ringcast.node import Node
    from ringcast.sim.options import Options
    from ringcast.wire.seal import DatagramSeal


class NodeFactory(Protocol):
    """Makes nodes: a real one, or a broken one that must be caught."""

    def __call__(self, me: Member, config: GroupConfig, *, seal: DatagramSeal | None) -> Node: ...


def node_factory_for(options: Options) -> NodeFactory:
    """Nodes as a run has them."""
    has_uniform, has_detector = options.has_uniform, options.has_detector
    return partial(
        build_node,
        streams=(Stream.FIFO, Stream.UNIFORM) if has_uniform else (Stream.FIFO,),
        detector=FailureDetector if has_detector else None,
        state=options.state,
    )
