"""The world in which view changes are explored: its members, what they hold, what was said; and
what happened in it, as rows for the rules of views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ringcast.core.view_change import Cut, Part
from ringcast.model import Member, Origin, ViewId
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import ChangeFrame, Propose
from ringcast.protocols.views.proposer import Proposer
from ringcast.rules.findings import Rule
from ringcast.rules.table import VIEWS, verdicts
from ringcast.rules.views import uniform_in_all
from ringcast.trace.rows import (
    DELIVER,
    FREEZE,
    SEND,
    SHOWN,
    STOP,
    VIEW,
    Facts,
    Row,
    member_key,
    naming,
)

T = TypeVar("T")

NOT_IN = -1
"""In place of a number: the sender is not in this member's view."""

RULES = {rule.id: rule for rule in sorted((*VIEWS, uniform_in_all)) if rule.id <= "VS7"}


def judge(
    rows: Iterable[Row],
    facts: Facts,
    premises: Counter[str],
    rules: Iterable[Rule] = RULES.values(),
) -> list[str]:
    """Which of these this breaks; each counts how often its premise was true."""
    found = verdicts(rules, rows, facts)
    for verdict in found:
        premises[verdict.id] += verdict.premises
    return [f"{verdict.id}: {verdict.title}" for verdict in found if verdict.violations]


@cache
def keys_of(members: tuple[Member, ...]) -> tuple[str, ...]:
    return tuple(map(member_key, members))


@cache
def naming_in_order(id: ViewId) -> dict[str, Any]:
    """The columns that name a view. Rules compare numbers, so that no two ids have the same one."""
    return {
        "view": id.counter * 1000 + id.creator.address.port,
        "view_creator": member_key(id.creator),
    }


def fork(value: T) -> T:
    """A copy with the same attributes; `copy` takes several times as long."""
    other = object.__new__(type(value))
    other.__dict__.update(value.__dict__)
    return other


class Lived(NamedTuple):
    """One view at one member: the number of the last message before it, of the last that was
    delivered in it, and of the last that was delivered by Commit."""

    view: ViewId
    start: int
    delivered: int
    committed: int


@dataclass
class Person:
    """One member: its machines, and what it has of the stream."""

    follower: Follower
    proposer: Proposer
    held: int
    lived: tuple[Lived, ...]
    is_up: bool = True
    key: int = 0  # the same for members that behave alike; 0: not known
    streams: int = 0  # where they are real: which they are, by number
    rows: tuple[Row, ...] = ()  # then: what it has done

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

    @property
    def flushing(self) -> Part | None:
        """What it gets before it is flushed."""
        follower = self.follower
        if follower.phase is not Phase.FLUSHING or follower._cut is None:
            return None
        return follower._cut.part_of(follower.me)

    def deliver(self, upto: int, *, by_commit: bool) -> None:
        now = self.now._replace(delivered=upto)
        self.lived = (*self.lived[:-1], now._replace(committed=upto) if by_commit else now)


Said: TypeAlias = "tuple[Member, Member, ChangeFrame]"
"""By whom, to whom, what."""


@dataclass
class World:
    people: dict[Member, Person]
    sent: tuple[ViewId, ...] = ()  # the view in which each message was sent
    acks: tuple[frozenset[Member], ...] = ()  # who acknowledged each, where Commits depend on it
    commits: int = 0
    frames: dict[str, Said] = field(default_factory=dict)  # from proposers: what was ever sent
    proposals: tuple[Propose, ...] = ()
    cuts: dict[ViewId, Cut] = field(default_factory=dict)
    proposed: int = 0  # the same where the same was proposed, in the same order
    marks: int = 0  # the same where the same is in the cuts
    crashes: int = 0
    flight: tuple[int, ...] = ()  # where streams are real: what may still arrive, by number
    wrong: tuple[str, ...] = ()  # then: what the last step did that it must not

    def copy(self, member: Member, *, is_changing: bool = False) -> World:
        """To do something to this member; `is_changing`: to its machines."""
        other, person = fork(self), self.people[member]
        other.people = dict(self.people)
        other.people[member] = person.copy() if is_changing else fork(person)
        other.people[member].key = 0
        return other

    def rows(self, origin: Origin, members: dict[ViewId, tuple[Member, ...]]) -> Iterator[Row]:
        """What everybody has done; `members`: of the views in which they began."""
        asked = {each.id: each for each in self.proposals}
        of_stream = naming(origin)
        at = 0

        def row(event: str, **columns: Any) -> Row:
            nonlocal at
            at += 1
            return Row(event, str(me), me.incarnation, at, at, **columns)

        def deliver(in_view: dict[str, Any], before: int, upto: int) -> Iterator[Row]:
            if upto > before:
                yield row(DELIVER, seqno=before + 1, seqno2=upto, **of_stream, **in_view)

        for me, person in self.people.items():
            left: Iterable[Row] = ()
            for lived in person.lived:
                view = lived.view
                named = naming_in_order(view)
                if view in asked and me in asked[view].leaving:
                    yield row(STOP, detail="left")
                    break
                those = part = members.get(view, ())
                if view in asked:
                    those = asked[view].view.members
                    part = next((p.members for p in self.cuts[view].parts if me in p.members), ())
                yield row(VIEW, members=keys_of(those), part=keys_of(part), **named)
                yield from left
                yield row(SHOWN, **named)
                sent = [n for n, tag in enumerate(self.sent, 1) if tag == view]
                if sent and me == origin.sender:
                    yield row(SEND, seqno=sent[0], seqno2=sent[-1], **of_stream, **named)
                by_commit = max(lived.start, lived.committed)
                yield from deliver(named, lived.start, by_commit)
                left = deliver(named, by_commit, lived.delivered)
            else:
                yield from left
            for proposal in self.proposals:
                if proposal.id.creator == me:
                    yield row(
                        FREEZE, members=keys_of(proposal.members), **naming_in_order(proposal.id)
                    )
