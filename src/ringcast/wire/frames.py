"""Every frame: the language members speak. What they say to change their view is in changes.py,
what carries messages in runs.py.

Each is declared here once: its number, how it travels, and what each field is on the wire; the
codec follows from that (layout.py), and docs/wire.md has the bytes. Hot frames are plain slotted
classes, immutable by agreement; cold ones are frozen. At the end stand the system's own messages:
they are no frames, but travel as messages to one member, each in its turn and once.
"""

# Annotations are read when this is imported: there is no `from __future__ import annotations`.

from typing import Annotated, NamedTuple, TypeAlias

from ringcast.errors import Reject
from ringcast.model import Stream
from ringcast.wire.changes import FlushFrame, ViewFrame
from ringcast.wire.fields import (
    SEQNO,
    U16,
    Allowance,
    ConnField,
    Counter,
    CounterOr0,
    DigestField,
    MemberField,
    Not0,
    RangeList,
    Ranges,
    Rest,
    RunField,
    Seqno,
    StreamId,
    ViewIdField,
    WindowSize,
)
from ringcast.wire.layout import MESSAGES, frame, record_of
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from ringcast.wire.runs import Data as Data
from ringcast.wire.runs import Messages as Messages
from ringcast.wire.runs import UnicastData as UnicastData
from ringcast.wire.schema import AtMost, Column, Flag, Table


@frame(2, frozen=False, to_anyone=True, in_view=True)
class Ack:
    """To a sender: how far its stream has come here. Both watermarks only ever grow.

    `received` is contiguously received, `delivered` is delivered to the application. `allowance` is
    how many bytes the sender may have in flight towards this member, `widest` how many it has
    memory for should the path take more, with slots for GROWN_CAPACITY messages; 0: no more."""

    stream: StreamId
    received: Seqno
    delivered: Annotated[Seqno, AtMost("received")]
    allowance: WindowSize
    widest: WindowSize = 0


@frame(3, frozen=False, to_anyone=True, in_view=True)
class Nack:
    """To a sender: these seqnos of its stream are missing here. Ascending, disjoint, half-open."""

    stream: StreamId
    missing: RangeList


@frame(4, frozen=False, to_anyone=True, in_view=True)
class Watermark:
    """To the group: the last seqno sent on this stream, so that a lost last message is missed."""

    stream: StreamId
    seqno: Seqno


@frame(7, frozen=False)
class UnicastAck:
    """To a sender: this member's application has delivered everything up to `delivered` of this
    stream. Counts only on the connection that the sender is on now."""

    conn: ConnField
    delivered: Seqno
    allowance: Allowance


@frame(8, frozen=False)
class UnicastNack:
    """To a sender: these seqnos are missing here. Ascending, disjoint, half-open."""

    conn: ConnField
    missing: RangeList


@frame(9)
class Close:
    """To a receiver: nothing more comes on this connection."""

    conn: ConnField


@frame(10)
class Sync:
    """To a sender: I have no window for what you send on this connection. Where do we stand?

    `nonce` grows with every new question of this member; a repeated question repeats it.
    """

    conn: ConnField
    nonce: Counter


@frame(11, wire_order="conn nonce low high flags")
class SyncOk:
    """To a receiver, in answer to its nonce: go on with this connection after `low`; messages up
    to `high` have been sent. `is_middle`: what comes after `low` continues a fragment."""

    conn: ConnField
    nonce: Counter
    low: Annotated[Seqno, AtMost("high")]
    high: Seqno
    is_middle: Annotated[bool, Flag(1)]


@frame(12)
class SyncAck:
    """To a sender: its SyncOk has arrived. So says anything else on the new connection."""

    conn: ConnField
    nonce: Counter


@frame(19, to_anyone=True)
class Leave:
    """To a coordinator: go on without me."""


@frame(40, to_anyone=True, in_view=True)
class Commit:
    """To the group: all members of the view that this is said in hold my uniform messages up to
    `seqno`. They may be delivered."""

    seqno: Seqno


@frame(41, to_anyone=True, in_view=True)
class LogCommit:
    """The same of the log of total messages, from its sequencer."""

    seqno: Seqno


@frame(44, alone=True, in_view=True)
class StabilityReport:
    """To the coordinator of this view: how far this member's application has come with the plain
    messages of each member of it, in the order of the view. It has heard what was stable in round
    `number`. `allowance` is how many bytes each sender may have in flight towards it."""

    view_id: ViewIdField
    number: CounterOr0
    allowance: Allowance
    delivered: Annotated[tuple[int, ...], Column(SEQNO, VIEW_MEMBERS_MAX)]


@frame(45, wire_order="number view_id", in_view=True)
class StabilityQuery:
    """To a member: report in this view now, or once you have heard what was stable in round
    `number`. To its coordinator: have everybody do so."""

    view_id: ViewIdField
    number: CounterOr0


class Mark(NamedTuple):
    """How far everybody has come with one sender's plain messages; how far everybody but itself;
    and the place in the view of whoever is behind the others."""

    by_all: Annotated[Seqno, AtMost("by_others")]
    by_others: Seqno
    slowest: U16


@frame(46, to_anyone=True, alone=True, in_view=True)
class Stable:
    """To the members of this view, from its coordinator: everybody has reported, for the `number`th
    time. One mark for each member, in the order of the view; the least allowance of all."""

    view_id: ViewIdField
    number: Counter
    allowance: Allowance
    marks: Annotated[tuple[Mark, ...], Table(record_of(Mark), VIEW_MEMBERS_MAX, is_counted=False)]

    def fault(self) -> Reject | None:
        is_known = all(mark.slowest < len(self.marks) for mark in self.marks)
        return None if is_known else Reject.VIEW


@frame(47, in_view=True)
class PeerRepairRequest:
    """To any member: these seqnos of the sender's plain messages are missing here, and the sender
    does not answer. Ascending, disjoint, half-open."""

    sender: MemberField
    missing: Ranges


@frame(48, alone=True, in_view=True)
class PeerRepair:
    """To whoever asked: plain messages of this sender, as they came here."""

    sender: MemberField
    data: RunField

    def fault(self) -> Reject | None:
        return None if self.data.stream is Stream.FIFO else Reject.STREAM


@frame(21, to_anyone=True, in_view=True)
class Heartbeat:
    """To a member that watches me: I am alive, and in the view with this counter."""

    counter: Counter


@frame(22, to_anyone=True)
class Ping:
    """To a member under suspicion: are you alive?"""

    nonce: Counter


@frame(23, to_anyone=True)
class Pong:
    """To whoever asked with this nonce: I am."""

    nonce: Counter


_Multicast: TypeAlias = Data | Ack | Nack | Watermark | Commit | LogCommit
_Stability: TypeAlias = StabilityReport | StabilityQuery | Stable | PeerRepairRequest | PeerRepair
_Life: TypeAlias = Leave | Heartbeat | Ping | Pong
StreamFrame: TypeAlias = _Multicast | _Stability | FlushFrame
UnicastFrame: TypeAlias = UnicastData | UnicastAck | UnicastNack | Close | Sync | SyncOk | SyncAck
Frame: TypeAlias = StreamFrame | UnicastFrame | _Life | ViewFrame


# The system's own messages


@frame(31, MESSAGES)
class StateRefused:
    """To a joiner, in answer to that attempt: not from me."""

    attempt: Counter


@frame(32, MESSAGES)
class StateBegin:
    """To a joiner, in answer to that attempt: a state with all that is up to `cut` follows."""

    transfer: Counter
    attempt: Counter
    cut: DigestField


@frame(33, MESSAGES)
class StateData:
    """To a joiner: one chunk of the state. They count from 0."""

    transfer: Counter
    index: CounterOr0
    payload: Rest


@frame(34, MESSAGES)
class StateEnd:
    """To a joiner: that was all, in so many chunks."""

    transfer: Counter
    count: CounterOr0


@frame(35, MESSAGES)
class StateAck:
    """To a provider: the application has delivered so much of the state. That makes room for
    more."""

    transfer: Counter
    taken: CounterOr0


@frame(36, MESSAGES)
class StateCancel:
    """To a provider: forget that attempt, I get the state from somebody else."""

    attempt: Counter


@frame(37, MESSAGES)
class JoinerBlocked:
    """To a member: my state is still on its way, and there is no more room for what comes
    meanwhile: I block senders. Or, if not `is_full`, no longer."""

    is_full: Annotated[bool, Flag(1)]


@frame(38, MESSAGES)
class Submit:
    """To the sequencer of this view: relay this (batches.py)."""

    tag: Not0
    batch: Rest
    is_lowest: Annotated[bool, Flag(1)] = False
    """Nothing that comes before it is pending."""


@frame(39, MESSAGES)
class SubmitQuery:
    """To the sequencer of this view: what of mine comes next? And tell me when all others have
    delivered up to this number of mine; 0: I do not want to know."""

    tag: Not0
    delivered: CounterOr0


@frame(30, MESSAGES)
class SubmitFrom:
    """To an origin, from the sequencer of this view: submit from this message on, from this byte of
    it on; so many batches wait here. And all others have delivered your messages up to that number.
    0: nothing is said of that."""

    tag: Not0
    number: CounterOr0 = 0
    offset: WindowSize = 0
    queued: WindowSize = 0
    delivered: CounterOr0 = 0


OrderMessage: TypeAlias = Submit | SubmitQuery | SubmitFrom
_StateMessage: TypeAlias = (
    StateRefused | StateBegin | StateData | StateEnd | StateAck | StateCancel | JoinerBlocked
)
SystemMessage: TypeAlias = _StateMessage | OrderMessage
