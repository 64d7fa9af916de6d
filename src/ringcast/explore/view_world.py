"""The world in which view changes are explored: its members, what they hold, what was said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from ringcast.explore.automata import NAMES
from ringcast.explore.system import replaced
from ringcast.protocols.views.follower import Phase

if TYPE_CHECKING:
    from ringcast.core.view_change import Cut
    from ringcast.explore.view_rules import Lived
    from ringcast.model import Member, Stream, ViewId
    from ringcast.protocols.views.follower import Follower
    from ringcast.protocols.views.frames import ChangeFrame, Propose
    from ringcast.protocols.views.proposer import Proposer

T = TypeVar("T")

NOT_IN = -1
"""In place of a number: the sender is not in this member's view."""


class Kind(NamedTuple):
    """One stream of a scenario."""

    sender: int
    stream: Stream
    messages: int = 1
    is_retained: bool = True

    def __str__(self) -> str:
        count = f"{self.messages} {self.stream.name.lower()}"
        return f"{count}{' not retained' * (not self.is_retained)} by {NAMES[self.sender]}"


def fork(value: T) -> T:
    """A copy with the same attributes; `copy` takes several times as long."""
    other = object.__new__(type(value))
    other.__dict__.update(value.__dict__)
    return other


@dataclass
class Person:
    """One member: its machines and its streams, by the number of the stream."""

    follower: Follower
    proposer: Proposer
    held: tuple[int, ...]
    lived: tuple[Lived, ...]
    is_up: bool = True
    flushing: Cut | None = None
    key: int = 0
    """The same for members that behave alike; 0: not known."""

    def copy(self) -> Person:
        """With machines of its own."""
        other = fork(self)
        other.follower, other.proposer = fork(self.follower), fork(self.proposer)
        other.follower._flushed = list(other.follower._flushed)
        other.proposer.awaited = dict(other.proposer.awaited)
        other.proposer._states = dict(other.proposer._states)
        other.key = 0
        return other

    @property
    def now(self) -> Lived:
        return self.lived[-1]

    @property
    def is_there(self) -> bool:
        return self.is_up and self.follower.phase is not Phase.OUT

    def deliver(self, i: int, upto: int, *, by_commit: bool) -> None:
        now = self.now
        committed = replaced(now.committed, i, upto) if by_commit else now.committed
        now = now._replace(delivered=replaced(now.delivered, i, upto), committed=committed)
        self.lived = (*self.lived[:-1], now)


Said: TypeAlias = "tuple[Member, Member, ChangeFrame]"
"""By whom, to whom, what."""


@dataclass
class World:
    people: dict[Member, Person]
    sent: tuple[tuple[ViewId, ...], ...]
    """By stream: the view in which each message was sent."""
    acks: tuple[tuple[frozenset[Member], ...], ...]
    """By stream: who has acknowledged each message, where Commits depend on it."""
    commits: tuple[int, ...]
    frames: dict[str, Said] = field(default_factory=dict)
    """From proposers: what was ever sent."""
    proposals: tuple[Propose, ...] = ()
    cuts: dict[ViewId, Cut] = field(default_factory=dict)
    marks: tuple[object, ...] = ()
    """What is in the cuts."""
    crashes: int = 0

    def copy(self, member: Member, *, is_changing: bool = False) -> World:
        """To do something to this member; `is_changing`: to its machines."""
        other, person = fork(self), self.people[member]
        other.people = dict(self.people)
        other.people[member] = person.copy() if is_changing else fork(person)
        other.people[member].key = 0
        return other
