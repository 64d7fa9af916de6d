"""Reliable group messaging: views, repair, flow control and proofs, without a broker."""

from ringcast import blocking
from ringcast.aio.answers import Health
from ringcast.aio.group import Group
from ringcast.aio.joining import join
from ringcast.aio.read_queue import Message
from ringcast.aio.receipts import Receipt
from ringcast.aio.requests import Replies, Request
from ringcast.aio.sources import DirectorySource
from ringcast.arguments import JoinOptions, Source
from ringcast.config import (
    GroupConfig,
    MembershipConfig,
    MulticastConfig,
    StabilityConfig,
    UnicastConfig,
)
from ringcast.config_file import load_config
from ringcast.errors import (
    ConfigError,
    DecodeError,
    GroupClosed,
    JoinTimeout,
    LockLost,
    NoSuchMember,
    NotDelivered,
    NotOrdered,
    OperationFailed,
    OutcomeUnknown,
    RequestFailed,
    RingcastError,
    SpaceClosed,
    StaleToken,
    StateInterrupted,
    TimedOut,
    TooFewMembers,
    UnknownStructure,
    UsageError,
)
from ringcast.events import (
    Closed,
    Delivered,
    GapSkipped,
    StateLost,
    Undeliverable,
    ViewInstalled,
)
from ringcast.model import (
    Address,
    Digest,
    Headers,
    Member,
    Origin,
    Place,
    Run,
    Stream,
    View,
    ViewId,
)

__all__ = [
    "Address",
    "Closed",
    "ConfigError",
    "DecodeError",
    "Delivered",
    "Digest",
    "DirectorySource",
    "GapSkipped",
    "Group",
    "GroupClosed",
    "GroupConfig",
    "Headers",
    "Health",
    "JoinOptions",
    "JoinTimeout",
    "LockLost",
    "Member",
    "MembershipConfig",
    "Message",
    "MulticastConfig",
    "NoSuchMember",
    "NotDelivered",
    "NotOrdered",
    "OperationFailed",
    "Origin",
    "OutcomeUnknown",
    "Place",
    "Receipt",
    "Replies",
    "Request",
    "RequestFailed",
    "RingcastError",
    "Run",
    "Source",
    "SpaceClosed",
    "StabilityConfig",
    "StaleToken",
    "StateInterrupted",
    "StateLost",
    "Stream",
    "TimedOut",
    "TooFewMembers",
    "Undeliverable",
    "UnicastConfig",
    "UnknownStructure",
    "UsageError",
    "View",
    "ViewId",
    "ViewInstalled",
    "blocking",
    "join",
    "load_config",
]
