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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ringcast.errors import ConfigError
from ringcast.model import Purge
from ringcast.options import (
    ADDRESS,
    FLAG,
    LABEL,
    NAME,
    PLACES,
    check_all,
    instance,
    internal,
    one_of,
    path,
    seconds,
    section,
    setting,
    size,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
"""The bytes that such a window grows to at the most, in multiples of `window_bytes`."""

DATAGRAM_BYTES_MIN = 512
DATAGRAM_BYTES_MAX = 65_507
"""What IPv4 allows in one UDP datagram."""

RECEIVE_BUFFER_MIN = 1 << 14
"""Four members share it, and each may have more than one datagram there."""


class DefaultTime(float):
    """Seconds that nobody asked for: who joins a group takes that group's time."""


class DefaultSize(int):
    """Bytes or messages that nobody asked for. Who joins a group takes that group's size; windows
    may come to have another capacity."""


def is_default(value: object) -> bool:
    """Whether nobody asked for this value of a setting that a group agrees on."""
    return isinstance(value, DefaultTime | DefaultSize)


def settings(kind: type[Any]) -> list[str]:
    """What of a configuration class a user may set."""
    plain = [one for one in fields(kind) if "internal" not in one.metadata]
    return [one.name for one in plain if one.metadata["kind"].word != "section"]


class _Checked:
    """What a configuration class says of its fields holds."""

    __slots__ = ()

    def __post_init__(self: Any) -> None:
        check_all(self.__dataclass_fields__, self)


DATAGRAM = size(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
TWO_UNDER_WAY = size(lambda config: 4 * config.datagram_bytes, 1 << 32)
"""Two datagrams, in half of it: one is read while the next one travels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StabilityConfig(_Checked):
    """How a group with stability rounds on what everybody has goes about it. For large groups,
    where an ack from everyone to every sender costs too much; uniform messages are acknowledged all
    the same."""

    interval_s: float = setting(DefaultTime(0.05), seconds(0.001, 60.0))
    """Report at the latest so long after a message was taken."""

    retain_delivered: bool = setting(True, FLAG)
    """Keep messages after they were taken until everybody has them. Then any member can repair for
    any other, and what a sender left that crashed reaches all who go on, or none."""

    # Internal

    threshold_bytes: int | None = internal(None, size(1, 1 << 32))
    """StabilityReport after so many bytes were taken of each sender, on average; None means an
    eighth of `window_bytes`. A member reports in any case after an eighth of what its socket buffer
    holds, and after `ack_threshold` messages of one sender; if that is None, after a quarter of
    `capacity` or a 16th of `capacity_max`, whichever is more."""

    capacity_max: int = internal(65_536, whole(1, CAPACITY_LIMIT // 2))
    """How far a sender's window may grow, in messages, from `capacity`. There the sender waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MulticastConfig(_Checked):
    """How messages to the whole group are buffered, acknowledged and repaired."""

    capacity: int = setting(DefaultSize(4096), whole(1, CAPACITY_LIMIT))
    """Messages a sender may have in flight before the slowest member has taken them. Each member
    holds this many slots per sender. If it is not given, windows grow where paths are long."""

    xmit_interval_s: float = setting(
        DefaultTime(0.5), seconds(lambda c: max(0.001, 2 * c.ack_delay_s), 60.0)
    )
    """The repair tick τ: the longest pause between two repair attempts, and the beat at which a
    sender tells how far it is while somebody lags. Delivery bounds are stated in it."""

    datagram_bytes: int = setting(60_000, DATAGRAM)
    """The largest datagram to build. Large ones are fastest on loopback and jumbo paths; 1400 fits
    all others."""

    max_message_bytes: int = setting(DefaultSize(64 << 20), size(1, 1 << 32))
    """The largest message; larger than a datagram travels in fragments."""

    stability: StabilityConfig | None = setting(
        None, instance(StabilityConfig, "a StabilityConfig, or None")
    )
    """How senders learn what everybody has: by reports; None, as the group does, and if this member
    starts the group, from an ack of each to each."""

    retain: bool = setting(False, FLAG)
    """Where members acknowledge: keep messages after they were taken until everybody has them. Then
    what a sender left that crashed reaches all who go on, or none. It costs up to one window of
    memory for each sender. Where members report, `stability` says it."""

    # Internal

    window_bytes: int = internal(4 << 20, TWO_UNDER_WAY)
    """Bytes a sender may have out before all have delivered them. Half of it may be under way, or
    less, as far as receivers' socket buffers go; the rest is for what has arrived and waits
    behind a gap. `memory_limit` makes it smaller."""

    ack_threshold: int | None = internal(None)
    """Acknowledge after this many taken messages; None means max(1, capacity // 4). Fewer frees
    the sender sooner, more saves control traffic."""

    ack_delay_s: float = internal(0.02, seconds(0.0, 30.0))
    """Acknowledge at the latest this long after a message was taken."""

    bulk_bytes: int | None = internal(None, DATAGRAM)
    """Where a receiver's socket buffer is what bounds a sender: what is beyond so many bytes of a
    datagram takes half as much of it; None: all bytes take the same. `join` sets this."""

    held_bytes: int | None = internal(None, TWO_UNDER_WAY)
    """Bytes of one sender that wait here, in order or not, at the most; None: as many as it may
    have out. `memory_limit` sets this."""

    repair_to_all: bool = internal(False, FLAG)
    """Answer a request for lost messages to the whole group instead of to whoever asked. Right on
    a multicast transport, where one loss often hits several members."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if self.ack_threshold is not None:
            highest = max(1, self.capacity // 4)
            if type(self.ack_threshold) is not int or not 1 <= self.ack_threshold <= highest:
                allowed = f"from 1 to max(1, capacity // 4) = {highest}, or None for that"
                raise ConfigError("ack_threshold", self.ack_threshold, allowed)
        if self.retain and self.stability is not None:
            raise ConfigError("retain", True, "False with stability, which has retain_delivered")
        if self.stability is not None and self.capacity > self.stability.capacity_max:
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
class UnicastConfig(_Checked):
    """How messages to one member are buffered, acknowledged and repaired, and when the connection
    that carries them ends."""

    max_retransmit_s: float = setting(60.0, seconds(lambda c: 4 * c.xmit_interval_s, 1e6))
    """A member that answers nothing for so long is given up: what it has not acknowledged is
    reported as undeliverable."""

    # Internal

    capacity: int = internal(4096, whole(1, CAPACITY_LIMIT))
    """Messages that may be in flight to one member before it has taken them."""

    window_bytes: int = internal(4 << 20, size(4 * DATAGRAM_BYTES_MIN, 1 << 32))
    """Bytes that may be in flight to one member; half of it may be under way."""

    held_bytes: int | None = internal(None)
    """Bytes of one member that wait here, at the most; None: as many as it may have out."""

    ack_interval_s: float = internal(0.002, seconds(0.0, lambda c: c.xmit_interval_s / 2))
    """A message is acknowledged at the latest this long after it was taken; sooner, when a quarter
    of the window was. Longer saves acks of slow streams."""

    xmit_interval_s: float = internal(0.5, seconds(0.001, 60.0))
    """The repair tick τ: on every second one without progress the last message is retransmitted."""

    expiry_s: float = internal(120.0, seconds(lambda c: 2 * c.xmit_interval_s, 1e6, or_zero=True))
    """A connection on which nothing has moved for so long begins to close; 0: never."""

    close_s: float = internal(60.0, seconds(0.0, 1e6))
    """How long a closing connection may still be taken up again before it is removed."""

    @property
    def in_flight_bytes(self) -> int:
        """How many of `window_bytes` may be under way."""
        return self.window_bytes // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipConfig(_Checked):
    """How members find each other, and how they notice that one is gone."""

    discovery_wait_s: float = setting(0.3, seconds(DISCOVERY_WAIT_MIN_S, 600.0))
    """How long to look for a group before starting one. It must be more than a round trip; longer
    makes it less likely that two who start at the same time do not see each other."""

    suspect_after_s: float = setting(DefaultTime(2.0), seconds(lambda c: 2 * c.heartbeat_s, 3600.0))
    """Who is not heard for so long is asked directly, and suspected if it does not answer. Eight
    beats by default: if one datagram in twenty is lost, all eight are lost once in centuries."""

    leave_timeout_s: float = setting(5.0, seconds(0.0, 3600.0))
    """How long leaving may take: until everybody has received what was sent to the group, delivered
    what was sent to it alone, and gone on. After that the member is gone all the same."""

    slow_member_timeout_s: float = setting(DefaultTime(0.0), seconds(0.0, 1e6))
    """Exclude, for good, a member whose application blocks senders for so long; 0: never."""

    min_members: int = setting(1, whole(1, MEMBERS_MAX), "Wait with sending for so many.")
    """In a view of fewer members nothing is sent to the group: sends raise TooFewMembers. More than
    half of all members keeps the smaller side of a partition from going on alone."""

    # Internal

    join_buffer_bytes: int = internal(16 << 20, size(0, 1 << 40))
    """Messages to the group that a joiner keeps while its state is still on its way. What is more
    stays with its senders, and blocks them."""

    heartbeat_s: float = internal(DefaultTime(0.25), seconds(0.001, 60.0))
    """How often a member tells those who watch it that it is alive."""

    verify_s: float = internal(DefaultTime(0.5), seconds(0.001, 60.0))
    """How long a silent member has to answer when it is asked directly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig(_Checked):
    """One member of one group: who it is, where it is found, and how it works."""

    # Type checkers see only by `field` that it has to be given.
    group: str = field(metadata={"kind": NAME})
    """The group's name: only members with the same one talk to each other."""

    name: str = setting("", LABEL, "What to call this member.")
    """A label for this member, shown to people. Need not be unique."""

    listen: str = setting("127.0.0.1:0", ADDRESS, "Address to use.")
    """The address to use; port 0 is any that is free."""

    advertise: str | None = setting(None, ADDRESS, "Where others reach it, if elsewhere.")
    """Where others reach this member, if a forwarder stands between. None: at `listen`."""

    members: Sequence[str] = setting(
        (), PLACES, "Where others may be found; may be given more than once."
    )
    """Addresses where others may be found. None: members of one user on one machine find each
    other by the name of the group."""

    transport: TransportName = setting(
        "udp", one_of(TransportName), "How datagrams travel: the same for all members."
    )
    """How datagrams travel: "udp", "multicast" or "tcp", the same for all members."""

    key_file: Path | str | None = setting(
        None,
        path("the path of a file", "FILE", is_secret=True),
        "The key of the group: see `ringcast keygen`.  [default: your own, on this machine]",
        name="key",
    )
    """The key of the group: a file that `ringcast keygen` has made. None: the environment says it;
    else, on one machine, the user's own key for this group, which the first member makes."""

    insecure: bool = setting(
        False, FLAG, "Use no key, and allow addresses beyond this machine: nothing is encrypted."
    )
    """Use no key, and allow addresses beyond this machine. Nothing is encrypted: whoever can reach
    a member can read the group's messages, forge some, and join."""

    must_exist: bool = setting(False, FLAG, "Do not start the group if nobody is there.")
    """Do not start the group if nobody is there."""

    record: Path | str | None = setting(
        None,
        path("a directory", "DIR"),
        "Record a trace here, for `ringcast audit`; needs ringcast[spark].",
    )
    """A directory for the trace that `ringcast audit` reads."""

    metrics: str | None = setting(None, ADDRESS, "Tell Prometheus the figures here.")
    """An address where this member tells Prometheus its figures, such as 127.0.0.1:9464."""

    memory_limit: int | None = setting(
        None, size(1, 1 << 50), "What windows and queues may take together."
    )
    """Bytes that all windows and queues of this member may take together. None: as many as their
    own bounds come to."""

    spin_s: float = setting(
        0.0, seconds(0.0, SPIN_S_MAX), "Do not sleep for so long after a datagram."
    )
    """Look for the next datagram without sleeping for so long after the last one. Round trips take
    two thirds of the time, and a core all of it."""

    # Internal

    receive_buffer_bytes: int = internal(8 << 20, size(RECEIVE_BUFFER_MIN, 1 << 30))
    """What to ask the kernel for, for datagrams that have arrived and wait to be read. An
    unprivileged process gets net.core.rmem_max at the most; acks follow what was granted."""

    # Sections

    multicast: MulticastConfig = section(MulticastConfig)
    unicast: UnicastConfig = section(UnicastConfig)
    membership: MembershipConfig = section(MembershipConfig)
