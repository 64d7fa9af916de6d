"""The nouns everybody shares. All immutable; none knows of sockets, time or bytes on the wire.

Seqnos count from 1 per (sender, stream) and never wrap. They stay within 63 bits so that every
tool that reads a trace (Spark's LongType among them) holds them exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from typing import Final, NamedTuple

from ringcast.errors import NoSuchMember, UsageError

SEQNO_MAX = 2**63 - 1
INCARNATION_MAX = 2**64 - 1
CONN_ID_MAX = 2**32 - 1

REPR_LETTERS_MAX = 64
"""How long the representation of a view may get before it only counts the rest: one line."""

SYSTEM_EPOCH = 2**62
"""Unicast epochs from here on are the system's own: their messages are not the application's."""


class Address(NamedTuple):
    """Where datagrams go."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read "host:port" (or "[v6]:port"); raise UsageError with an example otherwise."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise UsageError(f"{text!r} is not an address: write host:port, such as 127.0.0.1:7800")
        return cls(host, int(port))

    @classmethod
    def parse_place(cls, text: str) -> Address:
        """The same, or the name of SRV records, which have the ports: it gets port 0."""
        if ":" not in text and (service := cls(text, 0)).is_service:
            return service
        return cls.parse(text)

    @property
    def is_service(self) -> bool:
        """It is a name of SRV records, such as _ringcast._udp.orders.example."""
        return self.host.startswith("_") and "._" in self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Member(NamedTuple):
    """One process in a group. A restart on the same address is another member: its incarnation
    differs. The name is a label for people and need not be unique."""

    address: Address
    incarnation: int
    name: str

    def __str__(self) -> str:
        return self.name or str(self.address)


class ViewId(NamedTuple):
    """Which view: made by whom, and the how-manieth."""

    creator: Member
    counter: int

    def __str__(self) -> str:
        return f"{self.counter}@{self.creator}"


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """Who is in the group, in an order that is the same everywhere. The first coordinates.

    `member in view` takes a Member or a name, which several may have, and `view[…]` gives the
    member: of a name, the only one that has it. Who has no name is not found by one.
    """

    id: ViewId
    members: tuple[Member, ...]
    _everybody: frozenset[Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.members:
            raise UsageError(f"view {self.id}: a view has at least one member")
        object.__setattr__(self, "_everybody", frozenset(self.members))
        if len(self._everybody) != len(self.members):
            raise UsageError(f"view {self.id}: a member stands in it twice")
        if self.id.counter < 1:
            raise UsageError(f"view {self.id}: counters start at 1")

    @property
    def counter(self) -> int:
        return self.id.counter

    @property
    def coordinator(self) -> Member:
        return self.members[0]

    def __contains__(self, member: object) -> bool:
        if isinstance(member, Member):
            return member in self._everybody
        return member != "" and any(each.name == member for each in self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, name: str | Member) -> Member:
        """The member with this name; NoSuchMember if there is none or more than one."""
        if isinstance(name, Member) and name in self:
            return name
        found = [member for member in self.members if member.name == name != ""]
        if not found:
            raise NoSuchMember(f"no member named {name!r} in {self!r}")
        if len(found) > 1:
            where = " and ".join(str(member.address) for member in found)
            raise NoSuchMember(
                f"{len(found)} members are named {name!r}, at {where}: give each a name of its own"
            )
        return found[0]

    def __str__(self) -> str:
        return f"View {self.counter}: {', '.join(map(str, self.members))}"

    def __repr__(self) -> str:
        shown = f"<View {self.counter}: {self.members[0]}"
        for at, member in enumerate(self.members[1:], 1):
            if len(shown) + len(str(member)) > REPR_LETTERS_MAX:
                return f"{shown} and {len(self) - at} more>"
            shown += f", {member}"
        return f"{shown}>"


class Stream(IntEnum):
    """A seqno space of its own per sender. Order and exactly-once hold within a stream."""

    FIFO = 0
    UNIFORM = 1
    TOTAL = 2
    """All that one member relays in its view, for the one order. To applications: a sender's
    messages in that order, by their numbers."""


class Purge(IntEnum):
    """How a group learns which plain messages everybody has, so that they can be purged. All its
    members must agree on that."""

    ACKS = 0
    """Everybody acknowledges to every sender."""
    STABILITY = 1
    """Everybody tells the coordinator, which tells all."""
    RETAINED = 2
    """The same, and receivers keep messages until then: any of them can repair for any other."""
    ACKS_RETAINED = 3
    """Everybody acknowledges, and receivers keep messages until their sender has purged them."""

    @property
    def is_retained(self) -> bool:
        """Whether a survivor holds what a departed sender has sent."""
        return self in (Purge.RETAINED, Purge.ACKS_RETAINED)


class Origin(NamedTuple):
    """Whose messages: one sender's one stream. What windows, digests and acks are kept by."""

    sender: Member
    stream: Stream

    def __str__(self) -> str:
        return f"{self.sender}/{self.stream.name.lower()}"


class Conn(NamedTuple):
    """One connection on a unicast stream. Both numbers only grow, so "newer" means "greater".

    A stream is (sender, receiver, epoch): its seqnos count from 1, and a sender that begins anew
    takes a higher epoch. `id` tells the connections of one stream apart: what was said on an
    earlier one no longer counts.
    """

    epoch: int
    id: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.id}"


FIRST_CONN_ID = 1
"""Every stream starts on this connection; a sync moves it to the next."""


@dataclass(frozen=True, slots=True)
class Digest:
    """How far each origin has been delivered by whoever took it."""

    entries: Mapping[Origin, int]

    def __post_init__(self) -> None:
        for origin, seqno in self.entries.items():
            if not 0 <= seqno <= SEQNO_MAX:
                raise UsageError(f"digest entry {origin} = {seqno}: must be in 0..2**63-1")

    def __str__(self) -> str:
        return "{" + ", ".join(f"{origin}: {seqno}" for origin, seqno in self.entries.items()) + "}"


class Headed(bytes):
    """A message with headers, as it travels: their block, then the payload (wire/headers.py). All
    that keeps or passes on messages keeps the flag with them, by their class."""

    __slots__ = ()


def alike(first: int, payloads: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Consecutive messages in stretches, each with headers throughout or without, and the seqno of
    the first of each."""
    for _, stretch in groupby(payloads, type):
        found = list(stretch)
        yield first, found
        first += len(found)


class Headers(Mapping[str, str]):
    """What the sender of a message said of it, by name. `channel` ("" if none) and `sent_at` (in
    seconds since the epoch by the sender's clock; None if it was not told) are apart."""

    __slots__ = ("_given", "channel", "sent_at")

    def __init__(
        self, given: Mapping[str, str], channel: str = "", sent_at: float | None = None
    ) -> None:
        self._given = given
        self.channel = channel
        self.sent_at = sent_at

    def __getitem__(self, name: str) -> str:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return f"Headers({dict(self._given)})"


NO_HEADERS: Final = Headers({})


class Place(NamedTuple):
    """Where a message stands in the one order of total messages: unique for ever.

    Places of one member ascend as it goes from view to view. Position 0: before that view, where it
    was not told."""

    view_id: ViewId
    position: int

    def _key(self) -> tuple[int, Member, int]:
        return self.view_id.counter, self.view_id.creator, self.position

    def __lt__(self, other: tuple[object, ...]) -> bool:
        return self._key() < other._key() if isinstance(other, Place) else NotImplemented

    def __le__(self, other: tuple[object, ...]) -> bool:
        return self._key() <= other._key() if isinstance(other, Place) else NotImplemented

    def __gt__(self, other: tuple[object, ...]) -> bool:
        return self._key() > other._key() if isinstance(other, Place) else NotImplemented

    def __ge__(self, other: tuple[object, ...]) -> bool:
        return self._key() >= other._key() if isinstance(other, Place) else NotImplemented


@dataclass(slots=True)
class Run:
    """Consecutive messages of one sender on one stream: the unit of work everywhere.

    One message is a run of one. Immutable by agreement (a frozen dataclass costs three times as
    much to build, and runs are built on the hot path).
    """

    stream: Stream
    first: int
    payloads: list[bytes]
    headers: list[Headers] | None = None
    """Of each message; None: none has any. In a run either all have some or none has."""

    @property
    def last(self) -> int:
        return self.first + len(self.payloads) - 1
