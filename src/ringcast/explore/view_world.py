"""The world in which view changes are explored: its members, what they hold, what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ringcast.core.view_change import Cut
    from ringcast.explore.view_rules import Lived
    from ringcast.model import Member, Stream, ViewId
    from ringcast.protocols.views.follower import Follower
    from ringcast.protocols.views.frames import ChangeFrame, Propose
    from ringcast.protocols.views.proposer import Proposer

T = TypeVar("T")

NAMES = "ABCDEFGH"
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


class Scenario(NamedTuple):
    name: str
    views: tuple[str, ...]
    """Members by name, in the views in which they begin."""
    streams: tuple[Kind, ...]
    proposals: int = 2
    crashes: int = 1
    targets: tuple[str, ...] = ()
    """What may be proposed, each by the first that is named; nothing: any set, by anybody."""
    leaver: str = ""
    """Who wants to leave: proposals with it and others are without it in their view."""

    @property
    def description(self) -> str:
        leaver = f"; {self.leaver} leaves" * bool(self.leaver)
        sets = "any set by anybody"
        if self.targets:
            sets = " or ".join(f"{names} by {names[0]}" for names in self.targets)
        messages = ", ".join(map(str, self.streams)) or "none"
        return (
            f"{' | '.join(self.views)}{leaver}; proposals: {self.proposals}, {sets}; crashes: "
            f"{self.crashes}; messages: {messages}; every order, any frame lost, late or again"
        )


def fork(value: T) -> T:
    """A copy with the same attributes; `copy` takes several times as long."""
    other = object.__new__(type(value))
    other.__dict__.update(value.__dict__)
    return other


class Person:
    """One member: its machines and its streams, by the number of the stream."""

    follower: Follower
    proposer: Proposer
    held: tuple[int, ...]
    lived: tuple[Lived, ...]
    is_up: bool
    flushing: Cut | None
    key: int
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


Said: TypeAlias = "tuple[Member, Member, ChangeFrame]"
"""By whom, to whom, what."""


class World:
    people: dict[Member, Person]
    sent: tuple[tuple[ViewId, ...], ...]
    """By stream: the view in which each message was sent."""
    acks: tuple[tuple[frozenset[Member], ...], ...]
    """By stream: who has acknowledged each message, where Commits depend on it."""
    commits: tuple[int, ...]
    frames: dict[str, Said]
    """From proposers: what was ever sent."""
    proposals: tuple[Propose, ...]
    cuts: dict[ViewId, Cut]
    marks: tuple[object, ...]
    """What is in the cuts."""
    crashes: int
