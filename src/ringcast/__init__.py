"""Reliable group messaging: views, repair, flow control and proofs, without a broker."""

from ringcast.aio.group import Group, Message, join
from ringcast.config import GroupConfig, MulticastConfig
from ringcast.errors import (
    ConfigError,
    DecodeError,
    GroupClosed,
    JoinTimeout,
    RingcastError,
    UsageError,
)
from ringcast.model import Address, Digest, Member, Origin, Run, Stream, View, ViewId

__all__ = [
    "Address",
    "ConfigError",
    "DecodeError",
    "Digest",
    "Group",
    "GroupClosed",
    "GroupConfig",
    "JoinTimeout",
    "Member",
    "Message",
    "MulticastConfig",
    "Origin",
    "RingcastError",
    "Run",
    "Stream",
    "UsageError",
    "View",
    "ViewId",
    "join",
]
