"""Every frame of every protocol: the language members speak, on one page.

Hot frames are plain slotted classes, immutable by agreement; cold ones are frozen. The byte
layouts stand in docs/wire.md and are known to codec.py alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Stream


class Data:
    """Messages first..last of the datagram's sender on one stream.

    `more` says that every payload here is a fragment that the next seqno continues. A received
    run is cut into payloads only when somebody asks for them: a duplicate or a forged run costs
    nothing but its header.
    """

    __slots__ = ("_cut", "_payloads", "count", "first", "more", "stream")

    def __init__(
        self, stream: Stream, first: int, payloads: list[bytes], *, more: bool = False
    ) -> None:
        self.stream = stream
        self.first = first
        self.count = len(payloads)
        self.more = more
        self._payloads: list[bytes] | None = payloads
        self._cut: Callable[[], list[bytes]] | None = None

    @classmethod
    def uncut(
        cls, stream: Stream, first: int, count: int, cut: Callable[[], list[bytes]], *, more: bool
    ) -> Data:
        """A received run whose payloads are still one piece of the datagram."""
        data = cls.__new__(cls)
        data.stream = stream
        data.first = first
        data.count = count
        data.more = more
        data._payloads = None
        data._cut = cut
        return data

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and (
            (self.stream, self.first, self.more, self.payloads)
            == (other.stream, other.first, other.more, other.payloads)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = ", more" if self.more else ""
        return f"Data({self.stream.name}, {self.first}..{self.last}{more})"


@dataclass(slots=True)
class Ack:
    """To a sender: how far its stream has come here. Both watermarks only ever grow.

    `held` is contiguously received, `delivered` is taken by the application. `allowance` is how
    many bytes the sender may have in flight towards this member.
    """

    stream: Stream
    held: int
    delivered: int
    allowance: int


@dataclass(slots=True)
class Nack:
    """To a sender: these seqnos of its stream are missing here. Ascending, disjoint, half-open."""

    stream: Stream
    missing: list[range]


@dataclass(slots=True)
class Highest:
    """To the group: the last seqno sent on this stream, so that a lost last message is missed."""

    stream: Stream
    seqno: int


@dataclass(frozen=True, slots=True)
class Hello:
    """To an address: I am here (who, stands in the datagram). `is_question`: and who are you?"""

    is_question: bool


Frame: TypeAlias = Data | Ack | Nack | Highest | Hello
