"""Reliable group messaging: views, repair, flow control and proofs, without a broker."""

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.errors import ConfigError, DecodeError, GroupClosed, RingcastError, UsageError
from ringcast.model import Address, Digest, Member, Origin, Run, Stream, View, ViewId

__all__ = [
    "Address",
    "ConfigError",
    "DecodeError",
    "Digest",
    "GroupClosed",
    "GroupConfig",
    "Member",
    "MulticastConfig",
    "Origin",
    "RingcastError",
    "Run",
    "Stream",
    "UsageError",
    "View",
    "ViewId",
]
