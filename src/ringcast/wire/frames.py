"""Every frame: the language members speak. What they say to change their view is in changes.py.

Hot frames are plain slotted classes, immutable by agreement; cold ones are frozen. The byte layouts
stand in docs/wire.md and are known to the other files here alone. At the end stand the system's own
messages: they are no frames, but travel as messages to one member, each in its turn and once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.model import FIRST_CONN_ID
from ringcast.wire.changes import ChangeFrame

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from ringcast.model import Conn, Digest, Member, Stream, ViewId


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
class Leave:
    """To a coordinator: go on without me."""


@dataclass(frozen=True, slots=True)
class Commit:
    """To the group: all members of the view that this is said in hold my uniform messages up to
    `seqno`. They may be delivered."""

    seqno: int


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
    | Leave
    | Commit
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


@dataclass(frozen=True, slots=True)
class StateRefused:
    """To a joiner, in answer to that attempt: not from me."""

    attempt: int


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


SystemMessage: TypeAlias = (
    StateRefused | StateBegin | StateData | StateEnd | StateAck | StateCancel | JoinerBlocked
)
