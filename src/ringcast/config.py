"""Configuration: frozen, and checked when it is built. A wrong value gets no further, except where
only the key or the members tell that it is wrong.

Times are in seconds (`_s`), sizes in bytes (`_bytes`), the rest counts messages.

What a user may set are the fields of these classes, from code, from a file or by an option, except
those that are `internal`. Presets, the simulator and tests set these too; files and options may
not, and they may change with any version.

Members of a group must agree on some of them (settings.py). Whoever joins takes these from its
group, and is refused if it asked for another value: so a default of one of these knows that it is
a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ringcast.checks import check_address, check_flag, check_name, check_seconds, check_whole
from ringcast.errors import ConfigError
from ringcast.model import Address, Purge

if TYPE_CHECKING:
    from collections.abc import Sequence

TransportName: TypeAlias = Literal["udp", "multicast", "tcp"]

CAPACITY_LIMIT = 1 << 20
"""A window holds an array of this many slots at the most: 8 MB of pointers."""

DISCOVERY_WAIT_MIN_S = 0.02
"""Less than a round trip, and those who start together decide before they have heard each other:
each starts a group of its own, again and again."""

MEMBERS_MAX = 512
"""A view holds no more."""

SPIN_S_MAX = 1.0
"""Members that beat four times a second never sleep with this."""

GROWN_CAPACITY = 1 << 16
"""Messages that a window has slots for at the most, where nobody has set its capacity."""

GROWN_WINDOWS = 4
"""And so many times `window_bytes`."""

DATAGRAM_BYTES_MIN = 512
DATAGRAM_BYTES_MAX = 65_507
"""What IPv4 allows in one UDP datagram."""

RECEIVE_BUFFER_MIN = 1 << 14
"""Four members share it, and each may have more than one datagram there."""


SECTIONS = {"multicast", "stability", "unicast", "membership"}
"""Fields that hold settings of their own."""


class DefaultTime(float):
    """Seconds that nobody asked for: who joins a group takes that group's time."""


class DefaultSize(int):
    """Bytes or messages that nobody asked for. Who joins a group takes that group's size; windows
    may come to have another capacity."""


def is_default(value: object) -> bool:
    """Whether nobody asked for this value of a setting that a group agrees on."""
    return isinstance(value, DefaultTime | DefaultSize)


def internal(default: object) -> Any:
    """A field that is none of the settings."""
    return field(default=default, metadata={"internal": True})


def settings(kind: type[Any]) -> list[str]:
    """What of a configuration class a user may set."""
    return [one.name for one in fields(kind) if not one.metadata and one.name not in SECTIONS]


@dataclass(frozen=True, kw_only=True, slots=True)
class StabilityConfig:
    """How a group with stability rounds on what everybody has goes about it. For large groups,
    where an ack from everyone to every sender costs too much; uniform messages are acknowledged all
    the same."""

    interval_s: float = DefaultTime(0.05)
    """StabilityReport at the latest this long after a message was taken."""

    retain_delivered: bool = True
    """Keep messages after they were taken until everybody has them. Then any member can repair for
    any other, and what a sender left that crashed reaches all who go on, or none."""

    # Internal

    threshold_bytes: int | None = internal(None)
    """StabilityReport after so many bytes were taken of each sender, on average; None means an
    eighth of `window_bytes`. A member reports in any case after an eighth of what its socket buffer
    holds, and after `ack_threshold` messages of one sender; if that is None, after a quarter of
    `capacity` or a 16th of `capacity_max`, whichever is more."""

    capacity_max: int = internal(65_536)
    """How far a sender's window may grow, in messages, from `capacity`. There the sender waits."""

    def __post_init__(self) -> None:
        check_seconds("interval_s", self.interval_s, 0.001, 60.0)
        if self.threshold_bytes is not None:
            check_whole("threshold_bytes", self.threshold_bytes, 1, 1 << 32)
        check_flag("retain_delivered", self.retain_delivered)
        # Those who retain have room for two windows.
        check_whole("capacity_max", self.capacity_max, 1, CAPACITY_LIMIT // 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class MulticastConfig:
    """How messages to the whole group are buffered, acknowledged and repaired."""

    capacity: int = DefaultSize(4096)
    """Messages a sender may have in flight before the slowest member has taken them. Each member
    holds this many slots per sender. If it is not given, windows grow where paths are long."""

    xmit_interval_s: float = DefaultTime(0.5)
    """The repair tick τ: the longest pause between two repair attempts, and the beat at which a
    sender tells how far it is while somebody lags. Delivery bounds are stated in it."""

    datagram_bytes: int = 60_000
    """The largest datagram to build. Large ones are fastest on loopback and jumbo paths."""

    max_message_bytes: int = DefaultSize(64 << 20)
    """The largest message; larger than a datagram travels in fragments."""

    stability: StabilityConfig | None = None
    """How senders learn what everybody has: by reports; None, as the group does, and if this member
    starts the group, from an ack of each to each."""

    retain: bool = False
    """Where members acknowledge: keep messages after they were taken until everybody has them. Then
    what a sender left that crashed reaches all who go on, or none. It costs up to one window of
    memory for each sender. Where members report, `stability` says it."""

    # Internal

    window_bytes: int = internal(4 << 20)
    """Bytes a sender may have out before all have delivered them. Half of it may be under way, or
    less, as far as receivers' socket buffers go; the rest is for what has arrived and waits
    behind a gap. `memory_limit` makes it smaller."""

    ack_threshold: int | None = internal(None)
    """Acknowledge after this many taken messages; None means max(1, capacity // 4). Fewer frees
    the sender sooner, more saves control traffic."""

    ack_delay_s: float = internal(0.02)
    """Acknowledge at the latest this long after a message was taken."""

    bulk_bytes: int | None = internal(None)
    """Where a receiver's socket buffer is what bounds a sender: what is beyond so many bytes of a
    datagram takes half as much of it; None: all bytes take the same. `join` sets this."""

    held_bytes: int | None = internal(None)
    """Bytes of one sender that wait here, in order or not, at the most; None: as many as it may
    have out. `memory_limit` sets this."""

    repair_to_all: bool = internal(False)
    """Answer a request for lost messages to the whole group instead of to whoever asked. Right on
    a multicast transport, where one loss often hits several members."""

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, 1, CAPACITY_LIMIT)
        check_whole("datagram_bytes", self.datagram_bytes, DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
        # Two datagrams under way: one is read while the next one travels.
        check_whole("window_bytes", self.window_bytes, 4 * self.datagram_bytes, 1 << 32)
        if self.ack_threshold is not None:
            highest = max(1, self.capacity // 4)
            is_whole = isinstance(self.ack_threshold, int) and self.ack_threshold is not True
            if not is_whole or not 1 <= self.ack_threshold <= highest:
                allowed = f"from 1 to max(1, capacity // 4) = {highest}, or None for that"
                raise ConfigError("ack_threshold", self.ack_threshold, allowed)
        check_seconds("ack_delay_s", self.ack_delay_s, 0.0, 30.0)
        least = max(0.001, 2 * self.ack_delay_s)
        check_seconds("xmit_interval_s", self.xmit_interval_s, least, 60.0)
        check_whole("max_message_bytes", self.max_message_bytes, 1, 1 << 32)
        if self.held_bytes is not None:
            check_whole("held_bytes", self.held_bytes, 4 * self.datagram_bytes, 1 << 32)
        if self.bulk_bytes is not None:
            check_whole("bulk_bytes", self.bulk_bytes, DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
        check_flag("repair_to_all", self.repair_to_all)
        check_flag("retain", self.retain)
        if self.retain and self.stability is not None:
            raise ConfigError("retain", True, "False with stability, which has retain_delivered")
        if self.stability is not None:
            if not isinstance(self.stability, StabilityConfig):
                raise ConfigError("stability", self.stability, "a StabilityConfig, or None")
            if self.capacity > self.stability.capacity_max:
                allowed = f"at most {self.stability.capacity_max} where members report"
                raise ConfigError("capacity", self.capacity, allowed)

    @property
    def purge(self) -> Purge:
        """What all members of a group must agree on."""
        if self.stability is None:
            return Purge.ACKS_RETAINED if self.retain else Purge.ACKS
        return Purge.RETAINED if self.stability.retain_delivered else Purge.STABILITY

    @property
    def capacity_max(self) -> int:
        """How large a window may become."""
        return self.grown_capacity if self.stability is None else self.stability.capacity_max

    @property
    def grows(self) -> bool:
        """Whether windows grow where members acknowledge: nobody has said how large they are, and
        not all are on one machine, where nothing is under way for long."""
        return is_default(self.capacity) and self.bulk_bytes is None

    @property
    def grown_capacity(self) -> int:
        """How many messages such a window may come to."""
        return max(self.capacity, GROWN_CAPACITY) if self.grows else self.capacity

    @property
    def grown_bytes(self) -> int:
        """How many bytes such a window may come to."""
        if self.held_bytes is not None:
            return self.held_bytes
        return GROWN_WINDOWS * self.window_bytes if self.grows else self.window_bytes

    @property
    def in_flight_bytes(self) -> int:
        """How many of `window_bytes` may be under way."""
        return self.window_bytes // 2

    @property
    def allowed_bytes(self) -> int:
        """How many one sender is told that it may have under way to this member."""
        if self.held_bytes is None:
            return self.in_flight_bytes
        return min(self.in_flight_bytes, self.held_bytes // 4)

    @property
    def ack_every(self) -> int:
        """The acknowledgement threshold in force."""
        return self.ack_threshold or max(1, self.capacity // 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnicastConfig:
    """How messages to one member are buffered, acknowledged and repaired, and when the connection
    that carries them ends."""

    max_retransmit_s: float = 60.0
    """A member that answers nothing for so long is given up: what it has not acknowledged is
    reported as undeliverable."""

    # Internal

    capacity: int = internal(4096)
    """Messages that may be in flight to one member before it has taken them."""

    window_bytes: int = internal(4 << 20)
    """Bytes that may be in flight to one member; half of it may be under way."""

    held_bytes: int | None = internal(None)
    """Bytes of one member that wait here, at the most; None: as many as it may have out."""

    ack_interval_s: float = internal(0.002)
    """A message is acknowledged at the latest this long after it was taken; sooner, when a quarter
    of the window was. Longer saves acks of slow streams."""

    xmit_interval_s: float = internal(0.5)
    """The repair tick τ: on every second one without progress the last message is retransmitted."""

    expiry_s: float = internal(120.0)
    """A connection on which nothing has moved for so long begins to close; 0: never."""

    close_s: float = internal(60.0)
    """How long a closing connection may still be taken up again before it is removed."""

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, 1, CAPACITY_LIMIT)
        check_whole("window_bytes", self.window_bytes, 4 * DATAGRAM_BYTES_MIN, 1 << 32)
        check_seconds("xmit_interval_s", self.xmit_interval_s, 0.001, 60.0)
        check_seconds("ack_interval_s", self.ack_interval_s, 0.0, self.xmit_interval_s / 2)
        if self.expiry_s != 0:
            check_seconds("expiry_s", self.expiry_s, 2 * self.xmit_interval_s, 1e6)
        check_seconds("close_s", self.close_s, 0.0, 1e6)
        # Less would give a member up before the last message has been sent twice more.
        check_seconds("max_retransmit_s", self.max_retransmit_s, 4 * self.xmit_interval_s, 1e6)

    @property
    def in_flight_bytes(self) -> int:
        """How many of `window_bytes` may be under way."""
        return self.window_bytes // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipConfig:
    """How members find each other, and how they notice that one is gone."""

    discovery_wait_s: float = 0.3
    """How long to look for a group before starting one. It must be more than a round trip; longer
    makes it less likely that two who start at the same time do not see each other."""

    suspect_after_s: float = DefaultTime(2.0)
    """Who is not heard for so long is asked directly, and suspected if it does not answer. Eight
    beats by default: if one datagram in twenty is lost, all eight are lost once in centuries."""

    leave_timeout_s: float = 5.0
    """How long leaving may take: until everybody has received what was sent to the group, delivered
    what was sent to it alone, and gone on. After that the member is gone all the same."""

    slow_member_timeout_s: float = DefaultTime(0.0)
    """Exclude a member whose application holds a sender up for so long; 0: never."""

    min_members: int = 1
    """In a view of fewer members nothing is sent to the group: sends raise TooFewMembers. More than
    half of all members keeps the smaller side of a partition from going on alone."""

    # Internal

    join_buffer_bytes: int = internal(16 << 20)
    """Messages to the group that a joiner keeps while its state is still on its way. What is more
    stays with its senders, and blocks them."""

    heartbeat_s: float = internal(DefaultTime(0.25))
    """How often a member tells those who watch it that it is alive."""

    verify_s: float = internal(DefaultTime(0.5))
    """How long a silent member has to answer when it is asked directly."""

    def __post_init__(self) -> None:
        check_seconds("discovery_wait_s", self.discovery_wait_s, DISCOVERY_WAIT_MIN_S, 600.0)
        check_seconds("heartbeat_s", self.heartbeat_s, 0.001, 60.0)
        check_seconds("suspect_after_s", self.suspect_after_s, 2 * self.heartbeat_s, 3600.0)
        check_seconds("verify_s", self.verify_s, 0.001, 60.0)
        check_seconds("leave_timeout_s", self.leave_timeout_s, 0.0, 3600.0)
        check_seconds("slow_member_timeout_s", self.slow_member_timeout_s, 0.0, 1e6)
        check_whole("min_members", self.min_members, 1, MEMBERS_MAX)
        check_whole("join_buffer_bytes", self.join_buffer_bytes, 0, 1 << 40)


PARTS = {"multicast": MulticastConfig, "unicast": UnicastConfig, "membership": MembershipConfig}


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """One member of one group: who it is, where it is found, and how it works."""

    group: str
    """The group's name: only members with the same one talk to each other."""

    name: str = ""
    """A label for this member, shown to people. Need not be unique."""

    listen: str = "127.0.0.1:0"
    """The address to use; port 0 is any that is free."""

    advertise: str | None = None
    """Where others reach this member, if a forwarder stands between. None: at `listen`."""

    members: Sequence[str] = ()
    """Addresses where others may be found. None: members of one user on one machine find each
    other by the name of the group."""

    transport: TransportName = "udp"
    """How datagrams travel: "udp", "multicast" or "tcp", the same for all members."""

    key_file: Path | str | None = None
    """The key of the group: a file that `ringcast keygen` has made. None: the environment says it;
    else, on one machine, the user's own key for this group, which the first member makes."""

    insecure: bool = False
    """Use no key, and allow addresses beyond this machine. Nothing is encrypted: whoever can reach
    a member can read the group's messages, forge some, and join."""

    must_exist: bool = False
    """Do not start the group if nobody is there."""

    record: Path | str | None = None
    """A directory for the trace that `ringcast audit` reads."""

    metrics: str | None = None
    """An address where this member tells Prometheus its figures, such as 127.0.0.1:9464."""

    memory_limit: int | None = None
    """Bytes that all windows and queues of this member may take together. None: as many as their
    own bounds come to."""

    spin_s: float = 0.0
    """Look for the next datagram without sleeping for so long after the last one. Round trips take
    two thirds of the time, and a core all of it."""

    # Internal

    receive_buffer_bytes: int = internal(8 << 20)
    """What to ask the kernel for, for datagrams that have arrived and wait to be read. An
    unprivileged process gets net.core.rmem_max at the most; acks follow what was granted."""

    # Sections

    multicast: MulticastConfig = field(default_factory=MulticastConfig)
    unicast: UnicastConfig = field(default_factory=UnicastConfig)
    membership: MembershipConfig = field(default_factory=MembershipConfig)

    def __post_init__(self) -> None:
        check_name("group", self.group)
        check_name("name", self.name, empty_allowed=True)
        check_address("listen", self.listen)
        if self.advertise is not None:
            check_address("advertise", self.advertise)
        if not isinstance(self.members, list | tuple):
            raise ConfigError("members", self.members, "a list of addresses: ['127.0.0.1:7800']")
        for address in self.members:
            check_address("members", address, Address.parse_place)
        if self.transport not in get_args(TransportName):
            raise ConfigError("transport", self.transport, "'udp', 'multicast' or 'tcp'")
        check_flag("must_exist", self.must_exist)
        if self.key_file is not None and not isinstance(self.key_file, str | Path):
            kind = type(self.key_file).__name__  # it may be the key itself: nobody is told
            raise ConfigError("key_file", kind, "the path of a file")
        if self.record is not None and not isinstance(self.record, str | Path):
            raise ConfigError("record", self.record, "a directory")
        if self.metrics is not None:
            check_address("metrics", self.metrics)
        if self.memory_limit is not None:
            check_whole("memory_limit", self.memory_limit, 1, 1 << 50)
        check_seconds("spin_s", self.spin_s, 0.0, SPIN_S_MAX)
        check_flag("insecure", self.insecure)
        for part, kind in PARTS.items():
            if not isinstance(getattr(self, part), kind):
                raise ConfigError(part, getattr(self, part), f"a {kind.__name__}")
        check_whole("receive_buffer_bytes", self.receive_buffer_bytes, RECEIVE_BUFFER_MIN, 1 << 30)
