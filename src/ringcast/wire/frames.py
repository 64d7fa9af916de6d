"""Every frame: the language members speak. What they say to change their view is in changes.py.

Hot frames are plain slotted classes, immutable by agreement; cold ones are frozen. The byte layouts
stand in docs/wire.md and are known to the other files here alone. At the end stand the system's own
messages: they are no frames, but travel as messages to one member, each in its turn and once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.model import FIRST_CONN_ID, Purge, Stream
from ringcast.wire.changes import ChangeFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from ringcast.model import Conn, Digest, Member, Origin, View, ViewId


class Messages:
    """Payloads with consecutive seqnos, first..last: what the frames that carry messages share.

    `more` says that every payload here is a fragment that the next seqno continues. A received
    run is cut into payloads only when somebody asks for them: a duplicate or a forged run costs
    nothing but its header.
    """

    __slots__ = ("_cut", "_payloads", "count", "first", "more")

    # Set by each frame itself: to call a common constructor makes building one dearer by half.
    first: int
    count: int
    more: bool
    _payloads: list[bytes] | None
    _cut: Callable[[], list[bytes]] | None

    @property
    def payloads(self) -> list[bytes]:
        if self._payloads is None:
            assert self._cut is not None
            self._payloads = self._cut()
            self._cut = None  # it holds on to the datagram's buffer
        return self._payloads

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Data(Messages):
    """To the group: messages of the datagram's sender on one stream."""

    __slots__ = ("stream",)

    def __init__(
        self, stream: Stream, first: int, payloads: list[bytes], *, more: bool = False
    ) -> None:
        self.stream = stream
        self.first = first
        self.count = len(payloads)
        self.more = more
        self._payloads = payloads
        self._cut = None

    @classmethod
    def uncut(
        cls, stream: Stream, first: int, count: int, cut: Callable[[], list[bytes]], *, more: bool
    ) -> Self:
        """A received run whose payloads are still one piece of the datagram."""
        data = cls.__new__(cls)
        data.stream = stream
        data.first = first
        data.count = count
        data.more = more
        data._payloads = None
        data._cut = cut
        return data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and (
            (self.stream, self.first, self.more, self.payloads)
            == (other.stream, other.first, other.more, other.payloads)
        )

    def __repr__(self) -> str:
        more = ", more" if self.more else ""
        return f"Data({self.stream.name}, {self.first}..{self.last}{more})"


@dataclass(slots=True)
class Ack:
    """To a sender: how far its stream has come here. Both watermarks only ever grow.

    `received` is contiguously received, `delivered` is delivered to the application. `allowance` is
    how many bytes the sender may have in flight towards this member."""

    stream: Stream
    received: int
    delivered: int
    allowance: int


@dataclass(slots=True)
class Nack:
    """To a sender: these seqnos of its stream are missing here. Ascending, disjoint, half-open."""

    stream: Stream
    missing: list[range]


@dataclass(slots=True)
class Watermark:
    """To the group: the last seqno sent on this stream, so that a lost last message is missed."""

    stream: Stream
    seqno: int


class UnicastData(Messages):
    """To one member: messages of the datagram's sender on one connection.

    The very first message of a stream, on the connection it started with, opens the receiver's
    window; nothing else does but the answer to a Sync.
    """

    __slots__ = ("conn",)

    def __init__(
        self, conn: Conn, first: int, payloads: list[bytes], *, more: bool = False
    ) -> None:
        self.conn = conn
        self.first = first
        self.count = len(payloads)
        self.more = more
        self._payloads = payloads
        self._cut = None

    @classmethod
    def uncut(
        cls, conn: Conn, first: int, count: int, cut: Callable[[], list[bytes]], *, more: bool
    ) -> Self:
        """A received run whose payloads are still one piece of the datagram."""
        data = cls.__new__(cls)
        data.conn = conn
        data.first = first
        data.count = count
        data.more = more
        data._payloads = None
        data._cut = cut
        return data

    @property
    def opens(self) -> bool:
        """Whether it begins its stream."""
        return self.first == 1 and self.conn.id == FIRST_CONN_ID

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicastData) and (
            (self.conn, self.first, self.more, self.payloads)
            == (other.conn, other.first, other.more, other.payloads)
        )

    def __repr__(self) -> str:
        more = ", more" if self.more else ""
        return f"UnicastData({self.conn}, {self.first}..{self.last}{more})"


@dataclass(slots=True)
class UnicastAck:
    """To a sender: this member's application has delivered everything up to `delivered` of this
    stream. Counts only on the connection that the sender is on now."""

    conn: Conn
    delivered: int
    allowance: int


@dataclass(slots=True)
class UnicastNack:
    """To a sender: these seqnos are missing here. Ascending, disjoint, half-open."""

    conn: Conn
    missing: list[range]


@dataclass(frozen=True, slots=True)
class Close:
    """To a receiver: nothing more comes on this connection."""

    conn: Conn


@dataclass(frozen=True, slots=True)
class Sync:
    """To a sender: I have no window for what you send on this connection. Where do we stand?

    `nonce` grows with every new question of this member; a repeated question repeats it.
    """

    conn: Conn
    nonce: int


@dataclass(frozen=True, slots=True)
class SyncOk:
    """To a receiver, in answer to its nonce: go on with this connection after `low`; messages up
    to `high` have been sent. `is_middle`: what comes after `low` continues a fragment."""

    conn: Conn
    nonce: int
    low: int
    high: int
    is_middle: bool


@dataclass(frozen=True, slots=True)
class SyncAck:
    """To a sender: its SyncOk has arrived. So says anything else on the new connection."""

    conn: Conn
    nonce: int


@dataclass(frozen=True, slots=True)
class Discover:
    """To an address: I look for my group, which purges like this. Are you in it?"""

    purge: Purge = Purge.ACKS


@dataclass(frozen=True, slots=True)
class DiscoverReply:
    """To whoever asked: ask `coordinator` for admission to the group of `size` members that I am
    in. None: I am looking for one myself. It purges like this."""

    coordinator: Member | None
    size: int
    purge: Purge = Purge.ACKS


@dataclass(frozen=True, slots=True)
class Join:
    """To a coordinator: let me in."""


@dataclass(frozen=True, slots=True)
class ViewIs:
    """To a member: the view that I am in. A newer one that counts for it is to be installed."""

    view: View


@dataclass(frozen=True, slots=True)
class ViewAck:
    """To the maker of a view: I have installed it."""

    view_id: ViewId


@dataclass(frozen=True, slots=True)
class Welcome:
    """To a joiner: this is the view, and this is where your windows open.

    `halves` tells where a window opens in the middle of a large message, and how many fragments of
    it are to be fetched first; None: nobody has them any more.
    """

    view: View
    digest: Digest
    halves: Mapping[Origin, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HalfWanted:
    """To whoever sent the Welcome to the view with this counter: the fragments of one stream of the
    member at this place in it, from number `first` on."""

    counter: int
    place: int
    stream: Stream
    first: int


@dataclass(frozen=True, slots=True)
class Half:
    """To a joiner: one fragment that it asked for. `is_last`: of those sent at once."""

    counter: int
    place: int
    stream: Stream
    index: int
    payload: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """To a coordinator: go on without me."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """To a coordinator: I take this member of our view for dead; or, `is_slow`, it has held me
    up for longer than we agreed to bear."""

    member: Member
    is_slow: bool


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """To the coordinator of another group of the same name: my group is this. Make one of both."""

    view: View


@dataclass(frozen=True, slots=True)
class Merged:
    """To a member of any of the groups that have come together in this view: install it.

    `parts` are the views they were in until then, as far as their members are in this one.
    """

    view: View
    parts: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """To a member that is in my view again, or with another group: what I send on this stream after
    `offset` is for you.

    `counter` is that of the first such view at the sender. `is_middle`: what comes after `offset`
    continues a message of which the beginning is not for you.
    """

    stream: Stream
    counter: int
    offset: int
    is_middle: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """To the sender of a Begin with this counter: I have a window for it."""

    stream: Stream
    counter: int


@dataclass(frozen=True, slots=True)
class Commit:
    """To the group: all members of my view, which is this one, hold my uniform messages up to
    `seqno`. They may be delivered."""

    seqno: int
    view_id: ViewId


@dataclass(frozen=True, slots=True)
class CommitWanted:
    """To a member: in this view, what have you committed?"""

    view_id: ViewId


class Stage(IntEnum):
    """How far the messages of a departed sender have come."""

    COLLECT = 0
    """Say what you have of them."""
    HOLD = 1
    """Fetch what you lack, up to `high`: I have it all."""
    COMMIT = 2
    """All hold them: deliver."""
    RESOLVED = 3
    """All have delivered them: purge what is left."""


class RecoveryTarget(NamedTuple):
    """What a departed sender has left behind, as far as its taker knows."""

    sender: Member
    stage: Stage
    high: int


@dataclass(frozen=True, slots=True)
class Takeover:
    """To the members of this view, of which I am the first: so far have these departed senders
    come. Of others that somebody knows of I have yet to hear."""

    view_id: ViewId
    claims: tuple[RecoveryTarget, ...]
    stream: Stream = Stream.UNIFORM


class ReceivedRange(NamedTuple):
    """What one member has of a departed sender's messages. `has_window`: or would have, if that one
    had ever said where to begin. What is up to `low` it can give to nobody: it has purged that,
    or never had it."""

    sender: Member
    delivered: int
    received: int
    has_window: bool
    low: int


@dataclass(frozen=True, slots=True)
class Standing:
    """To the taker of this view: what I have of senders that are not resolved here. `is_open`:
    otherwise I am not in yet, and have nothing of anybody."""

    view_id: ViewId
    is_open: bool
    shares: tuple[ReceivedRange, ...]
    stream: Stream = Stream.UNIFORM


@dataclass(frozen=True, slots=True)
class StabilityReport:
    """To the coordinator of this view: how far this member's application has come with the plain
    messages of each member of it, in the order of the view. It has heard what was stable in round
    `number`. `allowance` is how many bytes each sender may have in flight towards it."""

    view_id: ViewId
    number: int
    allowance: int
    delivered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StabilityQuery:
    """To a member: report in this view now, or once you have heard what was stable in round
    `number`. To its coordinator: have everybody do so."""

    view_id: ViewId
    number: int


class Mark(NamedTuple):
    """How far everybody has come with one sender's plain messages; how far everybody but itself;
    and the place in the view of whoever is behind the others."""

    by_all: int
    by_others: int
    slowest: int


@dataclass(frozen=True, slots=True)
class Stable:
    """To the members of this view, from its coordinator: everybody has reported, for the `number`th
    time. One mark for each member, in the order of the view; the least allowance of all."""

    view_id: ViewId
    number: int
    allowance: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class PeerRepairRequest:
    """To any member: these seqnos of the sender's plain messages are missing here, and the sender
    does not answer. Ascending, disjoint, half-open."""

    sender: Member
    missing: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class PeerRepair:
    """To whoever asked: plain messages of this sender, as they came here."""

    sender: Member
    data: Data


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """To a member that watches me: I am alive, and in the view with this counter."""

    counter: int


@dataclass(frozen=True, slots=True)
class Ping:
    """To a member under suspicion: are you alive?"""

    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    """To whoever asked with this nonce: I am."""

    nonce: int


Frame: TypeAlias = (
    Data
    | Ack
    | Nack
    | Watermark
    | UnicastData
    | UnicastAck
    | UnicastNack
    | Close
    | Sync
    | SyncOk
    | SyncAck
    | Discover
    | DiscoverReply
    | Join
    | ViewIs
    | ViewAck
    | Welcome
    | HalfWanted
    | Half
    | Leave
    | Suspect
    | MergeRequest
    | Merged
    | Begin
    | Begun
    | Commit
    | CommitWanted
    | Takeover
    | Standing
    | StabilityReport
    | StabilityQuery
    | Stable
    | PeerRepairRequest
    | PeerRepair
    | Heartbeat
    | Ping
    | Pong
    | ChangeFrame
)


# The system's own messages


class Refusal(IntEnum):
    """Why somebody gives a joiner no state."""

    STATELESS = 0
    WAITING = 1
    FAILED = 2

    def __str__(self) -> str:
        return _REFUSALS[self]


_REFUSALS = ("gives no state", "waits for its own state", "could not give its state")


@dataclass(frozen=True, slots=True)
class StateRequest:
    """To a provider: give me the state. My windows opened at this digest, and I am in this view.

    `attempt` grows with each request of this member; a repeated one repeats it.
    """

    attempt: int
    view_id: ViewId
    opened: Digest


@dataclass(frozen=True, slots=True)
class StateRefused:
    """To a joiner, in answer to that attempt: not from me."""

    attempt: int
    reason: Refusal


@dataclass(frozen=True, slots=True)
class StateBegin:
    """To a joiner, in answer to that attempt: a state with all that is up to `cut` follows."""

    transfer: int
    attempt: int
    cut: Digest


@dataclass(frozen=True, slots=True)
class StateData:
    """To a joiner: one chunk of the state. They count from 0."""

    transfer: int
    index: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class StateEnd:
    """To a joiner: that was all, in so many chunks."""

    transfer: int
    count: int


@dataclass(frozen=True, slots=True)
class StateAck:
    """To a provider: the application has delivered so much of the state. That makes room for
    more."""

    transfer: int
    taken: int


@dataclass(frozen=True, slots=True)
class StateCancel:
    """To a provider: forget that attempt, I get the state from somebody else."""

    attempt: int


@dataclass(frozen=True, slots=True)
class JoinerBlocked:
    """To a member: my state is still on its way, and there is no more room for what comes
    meanwhile: I hold senders up. Or, if not `is_full`, no longer."""

    is_full: bool


@dataclass(frozen=True, slots=True)
class EstateWanted:
    """To a member: I lack these messages of a departed sender."""

    view_id: ViewId
    sender: Member
    first: int
    last: int
    stream: Stream = Stream.UNIFORM


@dataclass(frozen=True, slots=True)
class EstateRun:
    """To whoever asked: some of them. `more` says which ones the next seqno continues."""

    sender: Member
    first: int
    payloads: tuple[bytes, ...]
    more: tuple[bool, ...]
    stream: Stream = Stream.UNIFORM


SystemMessage: TypeAlias = (
    StateRequest
    | StateRefused
    | StateBegin
    | StateData
    | StateEnd
    | StateAck
    | StateCancel
    | JoinerBlocked
    | EstateWanted
    | EstateRun
)
