"""Every exception ringcast raises, split by who is to blame.

RingcastError
├── UsageError        the caller's mistake: fix the call
│   ├── ConfigError   a configuration value: names the field, the value and what is allowed
│   └── NoSuchMember  a name that no member of the view has, or more than one
├── JoinTimeout       nobody, or not everybody, answered in time
├── TooFewMembers     the view has fewer than `min_members`: nothing is sent to the group
├── Undeliverable     a member that is not in the view, or messages to one that were given up
├── TimedOut          what was waited for did not come in the time that was given
├── NotOrdered        total messages that are in no order: they were not sent to anybody
├── OutcomeUnknown    nobody can say whether a total message, or an operation, is in the order
├── NotDelivered      a message whose receipt names who departed before it had delivered it
├── RequestFailed     a request that will not be answered: says who was asked, and why
├── StateInterrupted  a state that does not come to its end here; it may come again
├── OperationFailed   an operation that its structure has refused, at every member alike
│   └── StaleToken    its token is not, or no longer, the one that counts
├── LockLost          a lock that was granted to somebody else before it was released
├── GroupClosed       the group is gone: nothing more can be sent or received
│   └── SpaceClosed   the space of structures is closed
│       └── UnknownStructure  a member has sent to a structure that this space does not name
└── DecodeError       a peer's bytes: counted and dropped by Node, never seen by applications
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringcast.model import Member


SHOWN_MAX = 200


class RingcastError(Exception):
    """The root: catch this to catch everything ringcast raises on purpose."""


class UsageError(RingcastError):
    """A call that cannot be right, whatever the network does."""


def _shown(value: object) -> str:
    """What is long is told by its kind."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"a {type(value).__name__}"


class ConfigError(UsageError):
    """A configuration value that is not allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {_shown(value)}: must be {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class NoSuchMember(UsageError, LookupError):
    """No member of the view has this name, or more than one has it."""


class JoinTimeout(RingcastError):
    """The group could not be joined in time. The message says who did not answer."""


class TooFewMembers(RingcastError):
    """The view has fewer members than `min_members`: messages to the group are refused.

    `have` of `need` members are here, for `since_s` seconds. `sent` messages of the same call had
    been sent before, from the first on; the others were not and have taken no number.
    """

    def __init__(self, have: int, need: int, since_s: float, sent: int = 0) -> None:
        missing = need - have
        verb = "is" if missing == 1 else "are"
        what = f"only the first {sent} went" if sent else "nothing went"
        super().__init__(
            f"{have} of {need} members are here, {missing} {verb} missing for {since_s:.1f} s: "
            f"{what} to the group; send again when it is whole, or join with when_few='wait'"
        )
        self.have = have
        self.need = need
        self.since_s = since_s
        self.sent = sent


@dataclass(unsafe_hash=True)
class Undeliverable(RingcastError):
    """Messages first..last to one member are unacknowledged: it may or may not have got them.

    As an event: they were given up, and `unsent_bytes` counts the bytes of a large message that had
    not been sent at all. With an `epoch` of 0 all of them still waited for room.

    Raised by a send: the member is not in the view, and what this call has still to send is not
    accepted. What was accepted before is kept, and goes on if that very member answers again; the
    event follows if it does not. `last` is below `first` if there is none of it. `sent` messages of
    the same call had been accepted, from the first on.
    """

    to: Member
    epoch: int
    first: int
    last: int
    reason: str
    unsent_bytes: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.reason)

    def __reduce__(self) -> tuple[type[Undeliverable], tuple[object, ...]]:
        return Undeliverable, tuple(getattr(self, name) for name in self.__match_args__)


class TimedOut(RingcastError, TimeoutError):
    """What was waited for did not come in time. The message says what, and how long.

    `sent` messages of the same call had been sent before, from the first on; the others were not.
    """

    def __init__(self, message: str, sent: int = 0) -> None:
        super().__init__(message)
        self.sent = sent


class NotDelivered(RingcastError):
    """A message that not all of its receivers have delivered, as far as is known here. `missing`
    are the members that left, or were excluded, before they had; each may have it all the same."""

    def __init__(self, missing: tuple[Member, ...], reason: str) -> None:
        names = ", ".join(map(str, missing))
        super().__init__(
            f"{names} left, or was excluded, before it had delivered the message: {reason}"
        )
        self.missing = missing


class NotOrdered(RingcastError):
    """Total messages first..last were accepted here, and never left this member: nobody delivers
    them."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(
            f"total messages {first}..{last} are not in the order: this member was out of its "
            "group before they were sent to anybody"
        )
        self.first = first
        self.last = last


class OutcomeUnknown(RingcastError):
    """Nobody can say whether this was done. To do it once more is right only if it may be done
    twice."""


class RequestFailed(RingcastError):
    """There will be no answer: the member has departed, or refuses. It may have acted on it."""


class StateInterrupted(RingcastError):
    """Raised to `take_state` by its iterator: the state that it was taking is worth nothing.

    It is called again, from the start, if another member can give the state.
    """


class GroupClosed(RingcastError):
    """The member has left, was closed, or was told that the group goes on without it."""


class OperationFailed(RingcastError):
    """A structure has refused an operation: it changed nothing, at any member."""


class StaleToken(OperationFailed):
    """The token that came with an operation is not the present one of its lock or leader."""


class LockLost(RingcastError):
    """The lock was freed before this member released it, because the others were without this
    member: what was done under it may have overlapped with what another holder did."""


class SpaceClosed(GroupClosed):
    """The space is not served, or not any more. The message says why."""


class UnknownStructure(SpaceClosed):
    """A member has sent an operation for a structure that this space does not name. To skip it
    would be to diverge from those who have it, so this space is closed: `origin` sent it to
    `name`."""

    def __init__(self, name: str, origin: Member) -> None:
        super().__init__(
            f"{origin} has a structure {name!r} and this member has not, so its space is closed: "
            f"name the same structures at all members of a group"
        )
        self.name = name
        self.origin = origin


class Reject(StrEnum):
    """Why a datagram was refused. A closed list: traces and counters use these words."""

    TOO_SHORT = "too short"
    TOO_LONG = "too long"
    NOT_OURS = "not a ringcast datagram"
    VERSION = "unknown version"
    SEAL = "seal not valid"
    SEALED = "sealed, and this member has no key"
    UNSEALED = "not sealed, and the group has a key"
    KEY = "sealed with another key"
    REPLAY = "came before"
    LEAP = "numbered further ahead than anybody counts"
    OURS = "says to be of this member"
    POSES = "sealed by another member than it says"
    SALTS = "too many unknown senders"
    IDENTITY = "malformed sender identity"
    GROUP = "another group"
    ADDRESSEE = "for another incarnation"
    FRAME_KIND = "unknown frame kind"
    FRAME_LENGTH = "frame length out of bounds"
    STREAM = "unknown stream"
    SEQNO = "sequence number out of range"
    COUNT = "count out of bounds"
    LENGTHS = "payload lengths do not add up"
    RANGES = "ranges not ascending"
    FLAGS = "unknown flags"
    MEMBER = "malformed member"
    VIEW = "malformed view"
    SETTINGS = "settings out of range"


class DecodeError(RingcastError):
    """Bytes that are no datagram of ours. `reason` is one of `Reject`."""

    def __init__(self, reason: Reject) -> None:
        self.reason = reason  # nothing more: it is its text already, and strangers may send many
