"""The trace: one row per event of one run, and the facts that the rules' bounds need.

An observer of a node writes rows (of its inputs, its outputs, read-only snapshots), never a
protocol: a wrong machine cannot lie in its own trace. A row speaks of a run of messages,
`seqno`..`seqno2`, both inclusive. docs/trace.md says which event fills which columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.model import Member, Origin, View, ViewId

# Life of a member.
START = "start"
CRASH = "crash"
STOP = "stop"
PAUSE = "pause"
RESUME = "resume"

# Views and windows.
VIEW_INPUT = "view_input"
"""The simulator hands a view to the node; `view` follows when the node installs it."""
VIEW = "view"
PART = "part"
"""The view brings groups together, and this is one of them: `members` were in the view `seqno` of
`peer`. Written beside `view`, once for each."""
OPEN = "open"
DROP_WINDOW = "drop_window"
WIN = "win"
ACKMAP = "ackmap"
"""The members a sender counts acknowledgements of, after a view or an ack."""
PURGE = "purge"
RELEASE = "release"
"""A receiver that retains what it has delivered of `peer` does so only beyond `seqno` now."""
STABILITY_REPORT = "stability_report"
"""A member says, in the view `view`, that its application has delivered what is up to `hd` of
`peer`. Written once for each member of that view, when the report leaves."""
ESTATE = "estate"
"""What is left here of the messages of `peer` on a stream, who has departed: `hd` and `received`.
`kind` is how far the taker has come with it, and `seqno` what it is to come to: collect, hold,
commit; then it is resolved. Or the sender is back, and that is the end of it. `detail` "no window":
nothing of it was ever due here; "forwarder": it is passed on only."""
RESOLVED = "resolved"
BACK = "back"

# The application's side.
SEND = "send"
SEND_BLOCK = "send_block"
SEND_UNBLOCK = "send_unblock"
SEND_FAIL = "send_fail"
DELIVER = "deliver"
BLOCK = "block"
"""The content hash of one block of consecutive messages, written by its sender and receivers."""
HANDED = "handed"
"""Messages that a joiner had taken, and its application gets only now: its state had to come
first. Their `deliver` bears the detail "aside"."""
ASIDE = "aside"

# The application's state: who gives it to whom, and what is in it.
STATE_WAIT = "state_wait"
"""A joiner is in, its windows are open, and it begins to wait for its state."""
STATE_WANTED = "state_wanted"
"""The application comes to the place where the state for `peer` is cut; `seqno` is the number of
the transfer."""
STATE_REFUSED = "state_refused"
"""It does not give that one."""
STATE_BEGUN = "state_begun"
"""At the joiner: transfer `seqno` of `peer` begins."""
STATE_DIGEST = "state_digest"
"""Behind it, once for each origin: the state has all of it through `seqno`."""
STATE_RECEIVED = "state_received"
STATE_LOST = "state_lost"
LEFT_BEHIND = "left before it came"
"""Detail of `state_lost` where a joiner is gone and what it had put aside with it."""
STATE_END = "state_end"
"""The run ends, and this member's application has a state."""
STATE_ENTRY = "state_entry"
"""What is in a state, once for each origin: behind `state_wanted`, `state_received` and
`state_end`."""

# Messages to one member. `peer` is the other side; `epoch` and `conn` name the connection.
UNICAST_SEND = "unicast_send"
UNICAST_BLOCK = "unicast_block"
UNICAST_UNBLOCK = "unicast_unblock"
UNICAST_DELIVER = "unicast_deliver"
UNICAST_WIN = "unicast_win"
"""A window changed; `kind` is "S" at the sender and "R" at the receiver."""
CONN = "conn"
"""An entry was made, changed its state or its connection, or is gone: `detail` "OPEN>CLOSING"."""
TICK = "tick"
"""The retransmission task looked at one sender entry: `low` and `hr` as it found them, `again` how
many messages it retransmitted."""
TAIL = "tail"
"""The tail timer has retransmitted the end of a stream: columns as in TICK."""
SYNC = "sync"
"""A receiver's question: `seqno` is its nonce, `detail` asked, answered or given up."""
SYNC_CALL = "sync_call"
"""An operator asked for a sync with `peer`."""
UNICAST_DROP = "unicast_drop"
"""The simulator makes a receiver drop its window for `peer`."""
UNDELIVERABLE = "undeliverable"
GAP = "gap"

# The network's side.
TX = "tx"
RX = "rx"
NET_DROP = "net_drop"
NET_DUP = "net_dup"
NET_CORRUPT = "net_corrupt"
XMIT_MISMATCH = "xmit_mismatch"
"""A retransmission whose bytes differ from the original's, as compared by the observer."""
DROP_HIGH = "drop_high"
DROP_LOW = "drop_low"
REJECT = "reject"

# The run.
FAULT_ON = "fault_on"
FAULT_OFF = "fault_off"
PHASE = "phase"

EVENTS = (
    *(START, CRASH, STOP, PAUSE, RESUME),
    *(
        VIEW_INPUT,
        VIEW,
        PART,
        OPEN,
        DROP_WINDOW,
        WIN,
        ACKMAP,
        PURGE,
        RELEASE,
        STABILITY_REPORT,
        ESTATE,
    ),
    *(SEND, SEND_BLOCK, SEND_UNBLOCK, SEND_FAIL, DELIVER, BLOCK, HANDED),
    *(STATE_WAIT, STATE_WANTED, STATE_REFUSED, STATE_BEGUN, STATE_DIGEST),
    *(STATE_RECEIVED, STATE_LOST, STATE_END, STATE_ENTRY),
    *(UNICAST_SEND, UNICAST_BLOCK, UNICAST_UNBLOCK, UNICAST_DELIVER, UNICAST_WIN),
    *(CONN, TICK, TAIL, SYNC, SYNC_CALL, UNICAST_DROP, UNDELIVERABLE, GAP),
    *(TX, RX, NET_DROP, NET_DUP, NET_CORRUPT, XMIT_MISMATCH, DROP_HIGH, DROP_LOW, REJECT),
    *(FAULT_ON, FAULT_OFF, PHASE),
)


class Row(NamedTuple):
    """One event at one member. Columns that an event does not fill keep their default."""

    event: str
    node: str
    """The member's name; the run itself (faults, phases) has the empty name."""
    inc: int
    idx: int
    """Order within one (node, inc), from 0."""
    run_idx: int = -1
    """Order in the whole run; only simulations know it, -1 elsewhere."""
    mono_ns: int = 0
    """The node's monotonic clock; in simulations the one clock of the run."""
    peer: str = ""
    peer_inc: int = 0
    stream: int = -1
    seqno: int = 0
    seqno2: int = 0
    view: int = 0
    """The view's counter; `view_creator` is the member key of its maker."""
    view_creator: str = ""
    members: tuple[str, ...] = ()
    """Member keys, in order."""
    low: int = -1
    hd: int = -1
    received: int = -1
    hr: int = -1
    cap: int = -1
    """The window's capacity in messages."""
    size: int = 0
    """Bytes: of a frame, wanted by a send, or buffered in a window."""
    kind: str = ""
    block: int = -1
    block_hash: int = 0
    detail: str = ""
    again: int = 0
    """1 on a `tx` of data that has been sent before."""
    used: int = -1
    """Bytes charged to the send window at that instant."""
    limit: int = -1
    """The bound in bytes that `used` or `size` must keep; -1: none."""
    epoch: int = 0
    """Of a unicast stream; 0: not about one."""
    conn: int = 0

    @property
    def member(self) -> str:
        """The member key of the row's own node."""
        return f"{self.node}#{self.inc}"

    @property
    def origin(self) -> OriginKey:
        """Whose messages the row speaks of, where it names a peer."""
        return self.peer, self.peer_inc, self.stream

    @property
    def own_origin(self) -> OriginKey:
        """The row's own node as a sender on the row's stream."""
        return self.node, self.inc, self.stream

    @property
    def pair(self) -> PairKey:
        """The row's own node as a receiver of that origin."""
        return self.node, self.inc, self.peer, self.peer_inc, self.stream


MemberKey: TypeAlias = tuple[str, int]
"""(node, inc) as rows carry it; `split_key` makes it from a member key."""

OriginKey: TypeAlias = tuple[str, int, int]
"""(sender, its incarnation, stream)."""

PairKey: TypeAlias = tuple[str, int, str, int, int]
"""(receiver, its incarnation, sender, its incarnation, stream)."""


def member_key(member: Member) -> str:
    """How a trace names a member wherever a list of members stands: name#incarnation."""
    return f"{member}#{member.incarnation}"


def about(member: Member) -> dict[str, Any]:
    """The columns that name another member."""
    return {"peer": str(member), "peer_inc": member.incarnation}


def naming(origin: Origin) -> dict[str, Any]:
    """The columns that say whose messages a row speaks of."""
    sender, stream = origin
    return {"peer": str(sender), "peer_inc": sender.incarnation, "stream": int(stream)}


def naming_id(view_id: ViewId) -> dict[str, Any]:
    """The columns that name a view."""
    return {"view": view_id.counter, "view_creator": member_key(view_id.creator)}


def naming_view(view: View) -> dict[str, Any]:
    """The columns that tell of a view."""
    return {**naming_id(view.id), "members": tuple(map(member_key, view))}


def split_key(key: str) -> MemberKey:
    """A member key as the (node, inc) that this member's rows carry."""
    node, _, inc = key.rpartition("#")
    return node, int(inc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a run as a whole. Times are on the clock of `mono_ns`."""

    run: str = ""
    seed: int = 0
    protocol: str = "multicast"
    """Which one the run was about: its rules are judged."""
    tau_ns: int = 0
    """The repair tick τ."""
    delta_ns: int = 0
    """The one-way delay bound δ once the network has healed."""
    ack_delay_ns: int = 0
    purge: str = "acks"
    """How members learn what everybody has of plain messages: acks, stability or retained."""
    stability_ns: int = 0
    """Where they report: the longest that a report waits."""
    nack_messages_max: int = 1
    """How many messages one repair request may ask for."""
    ack_interval_ns: int = 0
    """The longest that a unicast ack waits."""
    expiry_ns: int = 0
    """How long a unicast connection may be idle before it begins to close; 0: for ever."""
    close_ns: int = 0
    """How long a closing one stays before it is removed."""
    max_retransmit_ns: int = 0
    """How long a member may answer nothing before it is given up."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Window capacity by member key: where windows grow, the most that they may have."""
    stopped_members: frozenset[str] = frozenset()
    """Member keys whose application takes slowly or not at all: no liveness is owed to them."""
    gst_ns: int | None = None
    """When healing ended; None: the run has no liveness phase."""
    end_ns: int = 0

    def delivery_bound_ns(self, missing: int) -> int:
        """The longest that `missing` messages may take to be repaired and delivered (N-L1). Who
        retains what it has delivered asks for more only once that is known to be everybody's."""
        requests = max(1, -(-missing // self.nack_messages_max))
        further_ns = self.tau_ns + self.is_retained * self.round_bound_ns
        return 3 * self.tau_ns + 5 * self.delta_ns + (requests - 1) * further_ns

    def drain_bound_ns(self, missing: int) -> int:
        """The longest until the sender also knows of it and its window is empty (N-L2)."""
        return self.delivery_bound_ns(missing) + self.known_ns + self.tau_ns + self.delta_ns

    @property
    def known_ns(self) -> int:
        """How long a member may keep to itself what it has taken; where members report, until all
        know what everybody has."""
        reports_ns = self.stability_ns + 2 * self.delta_ns
        return self.ack_delay_ns if self.purge == "acks" else reports_ns

    @property
    def round_bound_ns(self) -> int:
        """Where members report: the longest from when all have delivered something until its sender
        knows, and has room."""
        return self.known_ns + self.tau_ns + self.delta_ns

    @property
    def is_retained(self) -> bool:
        """Whether receivers keep plain messages until everybody has them."""
        return self.purge == "retained"

    def window_max(self, member: str) -> int:
        """How many messages a receiver has slots for at the most: twice as many as it may send, if
        it retains them for a round longer."""
        return self.capacity[member] * (1 + self.is_retained)


@dataclass(frozen=True, slots=True)
class TornTrace:
    """The file ends in the middle of a row: its writer died. What is whole was read."""

    rows: int
    """Whole rows before the tear."""
    bytes_lost: int


@dataclass(slots=True)
class Trace:
    """One run: its rows, in the order of `idx` within each (node, inc), and its facts."""

    rows: list[Row]
    facts: Facts
    torn: TornTrace | None = None
