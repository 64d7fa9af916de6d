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
FREEZE = "view_freeze"
"""The member promises the proposal `view` of these `members`: no seqno until the next `view`."""
VIEW = "view"
"""The node installs a view: it gives its seqnos in it from here on."""
SHOWN = "shown"
"""The application is told of it: nothing of the view before follows. In groups with total messages
`low` is its position in their order, `members` who came to it, `part` who is gone."""
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

# The application's side.
SEND = "send"
SEND_BLOCK = "send_block"
SEND_UNBLOCK = "send_unblock"
SEND_FAIL = "send_fail"
DELIVER = "deliver"
HEADED = "headed"
"""The `kind` of a `deliver` in an archive whose messages begin with their headers."""
SEEN = "seen"
"""The `kind` of an `order` row in an archive that took its messages in another history, too."""
ACCEPT = "accept"
"""A member accepts total messages: `seqno`..`seqno2` are their numbers."""
ORDER = "order"
"""Its application takes total messages `seqno`..`seqno2` of `peer`; the first has position `low` in
the one order of all. `detail` says if they are carried, or seen before."""
BLOCK = "block"
"""The content hash of one block of consecutive messages, written by its sender and receivers."""
HANDED = "handed"
"""Messages that were put aside, and the application gets only now: its state had to come first.
Their `deliver` bears the detail "aside"."""
ASIDE = "aside"

# The application's state: who gives it to whom, and what is in it.
STATE_WAIT = "state_wait"
"""A member begins to wait for its state: messages that come are put aside."""
STATE_WANTED = "state_wanted"
"""Behind a view the application is asked for its state for `peer`; `seqno` is the number of the
transfer."""
STATE_REFUSED = "state_refused"
"""It does not give that one."""
STATE_BEGUN = "state_begun"
"""At who takes it: transfer `seqno` of `peer` begins."""
STATE_RECEIVED = "state_received"
"""It is complete, as it was at the cut of `view`."""
STATE_LOST = "state_lost"
"""Nobody has it; `view` is the one at whose cut it was to be taken."""
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

# The machine that a real member runs on.
HELD = "held"
"""Frames of the inputs before wait to leave: what follows is of the same instant."""
LATE = "late"
"""The machine kept this member from what was due, for `size` nanoseconds up to now."""

# The run.
FAULT_ON = "fault_on"
FAULT_OFF = "fault_off"
PHASE = "phase"


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
    part: tuple[str, ...] = ()
    """Of a view: the member keys of those who come together from the view before."""
    cut: tuple[str, ...] = ()
    """Of a view: up to where they end the view before, as `cut_text` writes it for each origin."""

    @property
    def member(self) -> str:
        """The member key of the row's own node."""
        return f"{self.node}#{self.inc}"

    @property
    def key(self) -> MemberKey:
        """The row's own node."""
        return self.node, self.inc

    @property
    def peer_key(self) -> MemberKey:
        return self.peer, self.peer_inc

    @property
    def peer_member(self) -> str:
        """The member key of the peer."""
        return f"{self.peer}#{self.peer_inc}"

    @property
    def run(self) -> str:
        """Its messages, in words."""
        return f"{self.seqno}..{self.seqno2}"

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

    @property
    def conn_key(self) -> tuple[int, int]:
        """Connections of one direction: a newer one is greater."""
        return self.epoch, self.conn

    @property
    def view_key(self) -> ViewKey:
        """Views in the order in which a member may install them."""
        return self.view, self.view_creator


MemberKey: TypeAlias = tuple[str, int]
"""(node, inc) as rows carry it; `split_key` makes it from a member key."""

OriginKey: TypeAlias = tuple[str, int, int]
"""(sender, its incarnation, stream)."""

PairKey: TypeAlias = tuple[str, int, str, int, int]
"""(receiver, its incarnation, sender, its incarnation, stream)."""

ViewKey: TypeAlias = tuple[int, str]
"""(counter, member key of its maker)."""

LISTS = tuple(name for name, value in Row._field_defaults.items() if isinstance(value, tuple))
"""Columns whose values are lists."""


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


def cut_text(origin: Origin, seqno: int) -> str:
    """An origin that ends a view at this seqno; -1: each member keeps what it has of it."""
    return f"{member_key(origin.sender)} {int(origin.stream)} {seqno}"


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
    """How members learn what everybody has of plain messages: acks, stability, retained (stability,
    and receivers keep messages until then) or acks_retained."""
    stability_ns: int = 0
    """Where they report: the longest that a report waits."""
    nack_messages_max: int = 1
    """How many messages one repair request may ask for."""
    growth: int = 1
    """How many times as large windows of plain messages may become."""
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
    nodes: int = 1
    """How many members there may be at one time."""
    discovery_ns: int = 0
    heartbeat_ns: int = 0
    suspect_ns: int = 0
    verify_ns: int = 0
    leave_ns: int = 0
    late_members: frozenset[str] = frozenset()
    """Member keys of those that slept, or whose clocks or timers were wrong, at some time."""
    component: Mapping[str, int] = field(default_factory=dict)
    """Who hears whom in the end, by member key: those with the same number. All do, by default."""
    state_ns: int = 0
    """How long it takes to give the largest state of the run, once it has begun."""
    gst_ns: int | None = None
    """When healing ended; None: the run has no liveness phase."""
    end_ns: int = 0

    def delivery_bound_ns(self, missing: int, *, is_gated: bool = False) -> int:
        """The longest that `missing` messages may take to be repaired and delivered (N-L1). Who
        retains what it has delivered asks for more only once that is known to be everybody's.

        What `is_gated` waits for a commit (U5): until all hold it, then acks, or a probe for those
        that were lost, and the commit. With a further request the receiver must first deliver what
        it has, so each costs an ack and a commit too.
        """
        growth = 1 if is_gated else self.growth  # windows of uniform messages do not grow
        further = max(0, -(-missing // (self.nack_messages_max * growth)) - 1)
        if is_gated:
            each_ns = self.tau_ns + 4 * self.delta_ns
            return 4 * self.tau_ns + 8 * self.delta_ns + further * each_ns
        each_ns = self.tau_ns + self.is_retained * self.round_bound_ns
        return 3 * self.tau_ns + 5 * self.delta_ns + further * each_ns

    def drain_bound_ns(self, missing: int, *, is_gated: bool = False) -> int:
        """The longest until the sender also knows of it and its window is empty (N-L2). Uniform
        messages are acknowledged in any group."""
        known_ns = self.ack_delay_ns if is_gated else self.known_ns
        delivered_ns = self.delivery_bound_ns(missing, is_gated=is_gated)
        return delivered_ns + known_ns + max(self.tau_ns, self.stability_ns) + self.delta_ns

    @property
    def known_ns(self) -> int:
        """How long a member may keep to itself what it has taken; where members report, until all
        know what everybody has."""
        reports_ns = self.stability_ns + 2 * self.delta_ns
        return reports_ns if self.has_stability else self.ack_delay_ns

    @property
    def round_bound_ns(self) -> int:
        """Where members report: the longest from when all have delivered something until its sender
        knows, and has room. A round in which one has reported too early needs another report, and
        so does one that is lost: the pause between two is up to τ, and never shorter than s."""
        return self.known_ns + max(self.tau_ns, self.stability_ns) + self.delta_ns

    @property
    def is_retained(self) -> bool:
        """Whether receivers keep plain messages until everybody has them."""
        return self.purge in ("retained", "acks_retained")

    @property
    def has_stability(self) -> bool:
        """Whether members report what they have delivered of plain messages."""
        return self.purge in ("stability", "retained")

    def window_max(self, member: str) -> int:
        """How many messages a receiver has slots for at the most: twice as many as it may send, if
        it retains them for a round longer."""
        return self.capacity[member] * (1 + self.is_retained)


@dataclass(slots=True)
class Trace:
    """One run: its rows, in the order of `idx` within each (node, inc), and its facts."""

    rows: list[Row]
    facts: Facts
