"""Options: everything that decides a simulated run.

Faults that hit a member or the whole group at a certain time are listed one by one (`incidents`),
so that a failing run can be made smaller by leaving some out; faults of single packets are drawn
on the way.

Nodes are slots 0, 1, …, shown as A, B, …. A restart is another member in the same slot.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from textwrap import wrap
from typing import Any

from ringcast.config import MembershipConfig, MulticastConfig, StabilityConfig, UnicastConfig
from ringcast.errors import UsageError
from ringcast.model import Stream

FAULTS = {
    "F1": "loss",
    "F2": "loss of one kind",
    "F3": "duplication",
    "F4": "reordering",
    "F5": "delay spikes, slow links",
    "F6": "corruption",
    "F7": "partition",
    "F8": "one-way partition",
    "F9": "cut between two nodes",
    "F10": "crash",
    "F11": "crash and restart",
    "F12": "pause",
    "F13": "wrong clock",
    "F14": "slow application",
    "F18": "needless views",
    "F19": "wrong timers",
    "F20": "mixed configuration",
    "F22": "stale datagrams",
}
"""The fault classes, by the numbers that docs/howto/simulate.md explains."""

CALLS = {
    "join": "a node joins",
    "leave": "a member leaves",
    "close": "a sender closes its connection",
    "sync": "an operator's sync",
    "stabilize": "an operator wants to know what everybody has",
}
"""Incidents that are no faults."""

STEPS = (
    *("propose", "propose", "state", "refuse", "finish", "cut", "cut", "want", "forwarded"),
    *("flushed", "flushed", "install", "install", "install", "install", "installed", "hello"),
)
"""Frames that an incident may wait for, those of every change more often."""
RECEIVER = "receiver"
"""Of the frame that was waited for: it is hit, and not the sender."""

DETECTING = ("group", "uniform", "total")
"""Protocols whose nodes find out by themselves who has crashed."""
PROTOCOLS = ("multicast", "unicast", *DETECTING)
PURGES = ("acks", "stability")  # how a group may learn what everybody has
MEMBERSHIP = {
    "discovery_ms": "discovery_wait_s",
    "heartbeat_ms": "heartbeat_s",
    "suspect_ms": "suspect_after_s",
    "verify_ms": "verify_s",
    "leave_ms": "leave_timeout_s",
}
"""Which option is which setting of membership."""
NODES_MAX = 10
WORDS_SHOWN = 16


def slot_name(slot: int) -> str:
    """How people see a node."""
    return "ABCDEFGHIJ"[slot]


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault at one time. Which fields matter depends on the fault class."""

    fault: str
    at_ms: float  # after the start of the safety phase
    ms: float = 0.0  # how long it lasts, or how long a node stays down
    nodes: tuple[int, ...] = ()
    what: str = ""  # its flavour; of a partition in more than two: all sizes but the last, "2+1"
    amount: float = 0.0  # how much of it. A cut: how often it comes and goes, in Hz; 0: it stays
    when: str = ""  # it waits for a frame of this kind, and hits its ends if no nodes are named
    after: int = 0  # so many datagrams with such a frame pass before

    def __str__(self) -> str:
        names = "".join(map(slot_name, self.nodes))
        if self.when:
            names += f" at {self.when}" + (f" + {self.after}" if self.after else "")
        lasting = f" for {self.ms:.0f} ms" if self.ms else ""
        what = f" {self.what}" if self.what else ""
        amount = f" {self.amount:g}" if self.amount else ""
        title = FAULTS.get(self.fault) or CALLS[self.fault]
        return f"{self.at_ms:8.1f} ms  {self.fault:4} {title}{what}{amount} {names}{lasting}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """One run. `expand(seed)` makes them; `replay --options` reads them from a file."""

    seed: int
    protocol: str = "multicast"
    partitions: bool = False  # members are cut off for so long that their group falls apart
    # The members
    nodes: int = 3
    initial: int = 3  # how many nodes start first; the others join later
    capacities: tuple[int, ...] = (16, 16, 16)
    datagram_bytes: int = 1400
    window_bytes: int = 64_000
    tau_ms: tuple[float, ...] = (100.0, 100.0, 100.0)  # repair ticks; the group's is the longest
    ack_delay_ms: float = 5.0  # the longest that an ack waits; unicast's are no closer together
    ack_threshold: int | None = None
    repair_to_all: bool = False
    purge: str = "acks"  # members learn what everybody has by acks, or by reports (stability)
    retain: bool = False  # with reports: receivers keep messages until everybody has them
    stability_ms: float = 50.0  # with reports: so long after it was taken a message is reported
    threshold_bytes: int | None = None  # with reports: at once after so many; None: as by default
    grow: int = 1  # with reports: how many times its capacity a window may become
    expiry_ms: float = 0.0  # so long a unicast connection is idle before it closes; 0: for ever
    close_ms: float = 50.0
    max_retransmit_ms: float = 60_000.0
    # Membership
    discovery_ms: float = 100.0
    heartbeat_ms: float = 50.0
    suspect_ms: float = 300.0
    verify_ms: float = 100.0
    leave_ms: float = 500.0  # how long leaving may take
    start_ms: float = 0.0  # the first nodes start within this time; 0: at the same instant
    told: float = 1.0  # which share of all addresses a node knows when it starts
    told_ms: float = 0.0  # how much later it learns the others
    hints: bool = False  # senders are told that nobody listens where their datagrams go
    # The applications
    senders: tuple[int, ...] = (0, 1, 2)  # who sends to the group
    pairs: tuple[tuple[int, int], ...] = ()  # who sends to whom
    uniform: float = 0.0  # which share of what is sent to the group goes on the second stream
    messages: int = 50  # per sender, or per pair, in the safety phase
    spells: int = 1  # in so many spells of time they are sent, with silence after each
    burst: int = 5  # at most so many at once; if not fewer than `messages`, all from the start
    sizes: tuple[int, ...] = (100,)  # each message has one of these sizes, in bytes
    late_messages: int = 3  # per node, in the liveness phase
    late_leaver: int = -1  # who leaves then, right after it has sent them; -1: nobody
    deaf_leavers: bool = False  # who leaves has something to send at last, and takes nothing more
    state: bool = False  # applications have a state, which they give to whoever joins
    join_buffer_bytes: int = 1 << 20  # a joiner keeps so much of what comes before its state
    ballast: int = 0  # bytes of a state that mean nothing
    chunk_bytes: tuple[int, ...] = (100,)  # each chunk of a state has one of these sizes
    give_ms: float = 0.0  # an application gives the next chunks within this time,
    give_chunks: int = 100  # so many of them
    refuse: float = 0.0  # how often it does not: a probability
    stalled: int = -1  # whose application gives nothing until the faults end; -1: nobody's
    take_limit: int = 1000
    stopped: int = -1  # whose application stops taking for good; -1: nobody's
    # The network
    delay: str = "const"
    delay_ms: float = 1.0
    delta_ms: float = 2.0  # the longest delay once the network is healed
    detect_ms: float = 20.0  # from a crash until the others know, where nodes do not find out
    # Phases
    warm_ms: float = 50.0
    safety_ms: float = 500.0
    # Faults
    faults: tuple[str, ...] = ()
    loss: float = 0.0
    loss_burst: float = 0.0  # mean length of bursts of losses, in packets; 0: they are independent
    target: str = ""
    target_loss: float = 0.0
    duplicates: float = 0.0
    copies: int = 1
    copy_late_ms: float = 0.0
    reorder: float = 0.0
    reorder_ms: float = 0.0
    spikes: float = 0.0
    spike_ms: float = 0.0
    asymmetry: float = 1.0  # how many times slower the slowest link is
    corruption: float = 0.0
    stale: float = 0.0  # how often a copy comes much later: a probability,
    stale_ms: float = 0.0  # up to so much later, also when the network has healed
    incidents: tuple[Incident, ...] = ()
    # What drivers may do, and switches for experiments
    hold_ms: float = 0.0  # a driver may keep datagrams so long, to send them with later ones
    poll_ms: float = 0.0  # a driver may hand arrivals over in batches of this length
    only: tuple[str, ...] | None = None  # the only packet faults, as sim/faults.py names them

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise UsageError(f"{self.protocol!r} is not a protocol: {', '.join(PROTOCOLS)}")
        if self.state and not self.has_detector:
            raise UsageError(f"state needs the protocol group, not {self.protocol}")
        if self.purge not in PURGES:
            raise UsageError(f"{self.purge!r} is no way to purge: {', '.join(PURGES)}")
        if self.has_stability and self.protocol == "unicast":
            raise UsageError("stability is about messages to a group, not between two members")
        if not self.has_stability and (self.retain or self.grow > 1):
            raise UsageError("retain and grow need purge to be stability")
        if self.partitions and not self.has_detector:
            raise UsageError(f"partitions need the protocol group, not {self.protocol}")
        if not 1 <= self.initial <= self.nodes <= NODES_MAX:
            raise UsageError(f"1 ≤ initial ≤ nodes ≤ {NODES_MAX}: {self.initial}, {self.nodes}")
        if len(self.capacities) != self.nodes or len(self.tau_ms) != self.nodes:
            raise UsageError("one capacity and one tau_ms for each node")
        slots = [*self.senders, *(slot for pair in self.pairs for slot in pair)]
        slots += [slot for incident in self.incidents for slot in incident.nodes]
        if not all(0 <= slot < self.nodes for slot in slots):
            raise UsageError(f"nodes are numbered 0 to {self.nodes - 1}")
        for fault in self.faults:
            if fault not in FAULTS:
                raise UsageError(f"{fault!r} is not a fault class: {', '.join(FAULTS)}")
        if not self.chunk_bytes or min(self.chunk_bytes) < 1 or self.give_chunks < 1:
            raise UsageError("chunk_bytes and give_chunks must not be empty")
        if not self.sizes or min(self.burst, self.take_limit, self.spells, self.grow) < 1:
            raise UsageError("sizes, burst, spells, take_limit and grow must not be empty")

    def has(self, fault: str) -> bool:
        return fault in self.faults

    @property
    def has_detector(self) -> bool:
        """Whether nodes find out by themselves who has crashed."""
        return self.protocol in DETECTING

    @property
    def second(self) -> Stream | None:
        """Beside that of plain messages."""
        return {"uniform": Stream.UNIFORM, "total": Stream.TOTAL}.get(self.protocol)

    @property
    def has_stability(self) -> bool:
        """Whether members report what they have delivered."""
        return self.purge == "stability"

    def capacity_max(self, slot: int) -> int:
        """How many messages a sender in this slot may have under way."""
        return self.capacities[slot] * self.grow

    def multicast_config(self, slot: int) -> MulticastConfig:
        """What a node in this slot runs with."""
        threshold = self.ack_threshold
        if threshold is not None:
            threshold = min(threshold, max(1, self.capacities[slot] // 4))
        return MulticastConfig(
            capacity=self.capacities[slot],
            window_bytes=self.window_bytes,
            ack_threshold=threshold,
            ack_delay_s=self.ack_delay_ms / 1000,
            xmit_interval_s=max(self.tau_ms) / 1000,
            datagram_bytes=self.datagram_bytes,
            max_message_bytes=1 << 22,
            repair_to_all=self.repair_to_all,
            stability=self._stability_config(slot) if self.has_stability else None,
        )

    def _stability_config(self, slot: int) -> StabilityConfig:
        return StabilityConfig(
            interval_s=self.stability_ms / 1000,
            threshold_bytes=self.threshold_bytes,
            retain_delivered=self.retain,
            capacity_max=self.capacity_max(slot),
        )

    def unicast_config(self, slot: int) -> UnicastConfig:
        """What a node in this slot runs with."""
        return UnicastConfig(
            capacity=self.capacities[slot],
            window_bytes=self.window_bytes,
            ack_interval_s=self.ack_delay_ms / 1000,
            xmit_interval_s=self.tau_ms[slot] / 1000,
            expiry_s=self.expiry_ms / 1000,
            close_s=self.close_ms / 1000,
            max_retransmit_s=self.max_retransmit_ms / 1000,
        )

    def membership_config(self) -> MembershipConfig:
        """What every node runs with."""
        seconds: dict[str, Any] = {
            setting: getattr(self, name) / 1000 for name, setting in MEMBERSHIP.items()
        }
        return MembershipConfig(**seconds, join_buffer_bytes=self.join_buffer_bytes)

    def without(self, fault: str) -> Options:
        """The same run with one fault class off."""
        return replace(
            self,
            faults=tuple(name for name in self.faults if name != fault),
            incidents=tuple(item for item in self.incidents if item.fault != fault),
        )

    def with_nodes(self, nodes: int) -> Options:
        """The same run with the last nodes left out."""
        singles = ("stopped", "stalled", "late_leaver")
        gone: dict[str, Any] = {name: -1 for name in singles if getattr(self, name) >= nodes}
        return replace(
            self,
            nodes=nodes,
            initial=min(self.initial, nodes),
            capacities=self.capacities[:nodes],
            tau_ms=self.tau_ms[:nodes],
            senders=tuple(slot for slot in self.senders if slot < nodes),
            pairs=tuple(pair for pair in self.pairs if max(pair) < nodes),
            incidents=tuple(
                item for item in self.incidents if all(slot < nodes for slot in item.nodes)
            ),
            **gone,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        """A block for people: what is not as by default, by the names that JSON has too."""
        of = f" of {self.protocol}" if self.protocol != "multicast" else ""
        parted = " with partitions" * self.partitions
        lines = [f"seed {self.seed}{of}{parted}, {self.nodes} nodes"]
        for title, names in BLOCK.items():
            lines += self._told(f"  {title:10} ", names)
        lines.append(f"  faults     {', '.join(self.faults) or 'none'}")
        for fault in self.faults:
            lines += self._told(f"{INDENT}{fault:4} ", FAULT_OPTIONS.get(fault, ()))
        lines += [f"{INDENT}{incident}" for incident in self.incidents]
        if self.only is not None:
            lines.append(f"{INDENT}only these packet faults: {', '.join(self.only) or 'none'}")
        return "\n".join(lines)

    def _told(self, title: str, names: Sequence[str]) -> list[str]:
        values = {name: getattr(self, name) for name in names}
        told = [f"{name} {_words(v)}" for name, v in values.items() if v != DEFAULTS[name]]
        return wrap(title + ", ".join(told), 100, subsequent_indent=INDENT) if told else []


DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(Options)}
BLOCK = {
    "start": ("initial", "start_ms", "told", "told_ms", "hints"),
    "windows": ("capacities", "grow", "window_bytes", "datagram_bytes"),
    "timing": (
        *("tau_ms", "ack_delay_ms", "ack_threshold", "repair_to_all"),
        *("expiry_ms", "close_ms", "max_retransmit_ms"),
    ),
    "reports": ("purge", "retain", "stability_ms", "threshold_bytes"),
    "group": (*MEMBERSHIP, "detect_ms", "late_leaver", "deaf_leavers"),
    "load": ("senders", "pairs", "messages", "spells", "burst", "sizes", "uniform"),
    "take": ("late_messages", "take_limit", "stopped", "poll_ms", "hold_ms"),
    "state": (
        *("state", "join_buffer_bytes", "ballast", "chunk_bytes", "give_ms", "give_chunks"),
        *("refuse", "stalled"),
    ),
    "network": ("delay", "delay_ms", "delta_ms"),
    "phases": ("warm_ms", "safety_ms"),
}
"""What people see together of options."""
FAULT_OPTIONS = {
    "F1": ("loss", "loss_burst"),
    "F2": ("target_loss", "target"),
    "F3": ("duplicates", "copies", "copy_late_ms"),
    "F4": ("reorder", "reorder_ms"),
    "F5": ("spikes", "spike_ms", "asymmetry"),
    "F6": ("corruption",),
    "F22": ("stale", "stale_ms"),
}
"""What matters only with this fault of packets: first how often it happens."""
INDENT = " " * 13


def _words(value: object) -> str:
    """As short as it can be: what is the same for all nodes is told once."""
    if not isinstance(value, tuple):
        return f"{value:g}" if isinstance(value, float) else str(value)
    words = [">".join(map(str, v)) if isinstance(v, tuple) else _words(v) for v in value]
    words = words[:1] if len({*words}) == 1 else words or ["none"]
    left_out = f" and {len(words) - WORDS_SHOWN} more" if len(words) > WORDS_SHOWN else ""
    return " ".join(words[:WORDS_SHOWN]) + left_out


def from_json(text: str) -> Options:
    """Options as `to_json` wrote them; UsageError names what is wrong."""
    try:
        values: dict[str, Any] = json.loads(text)
        incidents = tuple(
            Incident(**{**item, "nodes": tuple(item.get("nodes", ()))})
            for item in values.pop("incidents", ())
        )
        values = {name: _frozen(value) for name, value in values.items()}
        return Options(**values, incidents=incidents)
    except (ValueError, TypeError, AttributeError) as error:
        known = ", ".join(item.name for item in fields(Options))
        raise UsageError(f"not the options of a run: {error}. Options are: {known}") from None


def _frozen(value: Any) -> Any:
    """JSON has lists where options have tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
