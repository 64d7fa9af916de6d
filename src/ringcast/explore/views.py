"""View changes, explored: the machines of `protocols/views`, with streams as simple as can be.

Any live member may propose any set with itself in it at any time: false suspicion, several
proposers, proposers that know too little. A frame that a proposer has sent may arrive at any later
time, never, or again; an answer reaches the proposer at once or never. Members crash at any step.
A stream is a log of the views in which its messages were sent; what somebody holds of it is a
number. Getting what a flush lacks is one step, and needs a live member that has it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ringcast.core.view_change import OWN, Begin, Cut, Flush, Freeze, Snapshot, order
from ringcast.explore.view_rules import violations
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import Propose, Wishes
from ringcast.protocols.views.machines import receive
from ringcast.protocols.views.proposer import Proposer
from ringcast.wire.changes import Finish, Install

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.core.view_change import Part
    from ringcast.protocols.views.frames import ChangeFrame


T = TypeVar("T")


class Kind(NamedTuple):
    """One stream of a scenario."""

    sender: int
    stream: Stream
    messages: int
    is_retained: bool = True

    @property
    def words(self) -> str:
        return self.stream.name.lower() + " not retained" * (not self.is_retained)


class Scenario(NamedTuple):
    name: str
    views: tuple[tuple[int, ...], ...]
    """Members by number, in the views in which they begin."""
    streams: tuple[Kind, ...]
    proposals: int = 2
    crashes: int = 1
    targets: tuple[tuple[int, ...], ...] = ()
    """What may be proposed; nothing: any set."""

    @property
    def description(self) -> str:
        parts = " and ".join("".join("ABCDEFGH"[n] for n in view) for view in self.views)
        messages = sum(kind.messages for kind in self.streams)
        streams = ", ".join(kind.words for kind in self.streams)
        counts = (
            f"{messages} messages ({streams}), {self.proposals} proposals by anybody of any set"
        )
        return f"views of {parts}; {counts}, {self.crashes} crashes at any step, any frame lost"


class Lived(NamedTuple):
    """One view at one member: how far it delivered each stream in it, and how far by Commit."""

    view: ViewId
    starts: tuple[int, ...]
    delivered: tuple[int, ...]
    committed: tuple[int, ...]


@dataclass(slots=True)
class Person:
    """One member: its machines and its streams, by the number of the stream."""

    follower: Follower
    proposer: Proposer
    held: tuple[int, ...]
    lived: tuple[Lived, ...]
    is_up: bool = True
    flushing: Part | None = None

    def copy(self) -> Person:
        follower, proposer = copy(self.follower), copy(self.proposer)
        follower._flushed = list(follower._flushed)
        proposer.awaited = dict(proposer.awaited)
        proposer._states = dict(proposer._states)
        return replace(self, follower=follower, proposer=proposer)

    @property
    def now(self) -> Lived:
        return self.lived[-1]


NOT_IN = -1
"""In place of a number: the sender is not in this member's view."""


@dataclass(slots=True)
class World:
    people: dict[Member, Person]
    sent: tuple[tuple[ViewId, ...], ...]
    """By stream: the view in which each message was sent."""
    acks: tuple[tuple[frozenset[Member], ...], ...]
    commits: tuple[int, ...]
    frames: dict[str, tuple[Member, Member, ChangeFrame]] = field(default_factory=dict)
    """From proposers: what was ever sent."""
    proposals: tuple[Propose, ...] = ()
    cuts: dict[ViewId, Cut] = field(default_factory=dict)
    crashes: int = 0


class Views:
    """The system that is explored."""

    def __init__(
        self,
        scenario: Scenario,
        follower: type[Follower] = Follower,
        proposer: type[Proposer] = Proposer,
    ) -> None:
        self.scenario = scenario
        self._follower, self._proposer = follower, proposer
        count = sum(map(len, scenario.views))
        self.members = [Member(Address("h", n), 1, "ABCDEFGH"[n]) for n in range(count)]
        self.streams = scenario.streams
        self.origins = [Origin(self.members[s.sender], s.stream) for s in self.streams]

    def initial(self) -> World:
        people = {}
        for numbers in self.scenario.views:
            members = tuple(self.members[n] for n in numbers)
            view = View(ViewId(members[0], 1), members)
            start = tuple(0 if o.sender in members else NOT_IN for o in self.origins)
            for member in members:
                people[member] = Person(
                    self._follower(member, view),
                    self._proposer(self._is_kept),
                    start,
                    (Lived(view.id, start, start, (0,) * len(start)),),
                )
        empty = tuple(() for _ in self.streams)
        zeros = (0,) * len(self.streams)
        return World(dict(sorted(people.items())), empty, empty, zeros)

    def _is_kept(self, stream: Stream) -> bool:
        return all(kind.is_retained for kind in self.streams if kind.stream is stream)

    def key(self, world: World) -> object:
        people = [
            (
                person.is_up,
                person.follower.view.id,
                person.follower.phase.value,
                person.follower.promised,
                [kept.proposal.id for kept in person.follower._flushed],
                person.proposer.step.value,
                sorted(person.proposer.awaited),
                person.held,
                person.lived,
            )
            for person in world.people.values()
        ]
        frames = sorted(
            text
            for text, (_, dest, frame) in world.frames.items()
            if self._may_matter(world.people[dest], frame)
        )
        return people, world.sent, world.acks, world.commits, frames, world.crashes

    # What can happen

    def actions(self, world: World) -> Iterator[tuple[object, World]]:
        yield from self._streams(world)
        for source, dest, frame in world.frames.values():
            if self._matters(world.people[dest], frame):
                after = self._copy(world, dest)
                self._receive(after, source, dest, frame)
                yield f"{dest} gets {_text(frame)}", after
        for member, person in world.people.items():
            if not person.is_up:
                continue
            if person.flushing is not None and self._can_get(world, member):
                after = self._copy(world, member)
                self._flush(after, member)
                yield f"{member} flushes {person.follower.promised}", after
            if world.crashes < self.scenario.crashes:
                after = self._copy(world, member)
                after.people[member].is_up = False
                after.crashes += 1
                yield f"{member} crashes", after
            if len(world.proposals) < self.scenario.proposals:
                for members in self._targets(member):
                    after = self._copy(world, member)
                    id = ViewId(member, person.follower.promised.counter + 1)
                    proposal = Propose(id, members)
                    after.proposals += (proposal,)
                    names = "".join(m.name for m in members)
                    self._propose(after, member, proposal)
                    yield f"{member} proposes {id} of {names}", after

    def _targets(self, member: Member) -> Iterator[tuple[Member, ...]]:
        count = len(self.members)
        for bits in range(1, 1 << count):
            numbers = tuple(n for n in range(count) if bits >> n & 1)
            if member in [self.members[n] for n in numbers] and (
                not self.scenario.targets or numbers in self.scenario.targets
            ):
                yield tuple(self.members[n] for n in numbers)

    def _streams(self, world: World) -> Iterator[tuple[object, World]]:
        for i, kind in enumerate(self.streams):
            origin, is_uniform = self.origins[i], kind.stream is Stream.UNIFORM
            sender = world.people[origin.sender]
            sent, view = world.sent[i], sender.follower.view
            if sender.is_up and self._may_send(sender) and len(sent) < kind.messages:
                after = self._copy(world, origin.sender)
                after.sent = _with(world.sent, i, (*sent, view.id))
                after.acks = _with(world.acks, i, (*world.acks[i], frozenset([origin.sender])))
                self._hold(after, origin.sender, i, len(sent) + 1)
                yield f"{origin} sends {len(sent) + 1}", after
            for member, person in world.people.items():
                if not person.is_up:
                    continue
                held, view_id = person.held[i], person.follower.view.id
                if (
                    member != origin.sender
                    and 0 <= held < len(sent)
                    and self._is_of(sent[held], person)
                    and self._hears(person, origin)
                ):
                    after = self._copy(world, member)
                    acks = world.acks[i]
                    more = acks[held] | {member}
                    after.acks = _with(world.acks, i, _with(acks, held, more))
                    self._hold(after, member, i, held + 1)
                    yield f"{member} gets {origin} {held + 1}", after
                delivered = person.now.delivered[i]
                is_committed = is_uniform and 0 <= delivered < min(held, world.commits[i])
                if is_committed and sent[delivered] == view_id:
                    after = self._copy(world, member)
                    self._deliver(after.people[member], i, delivered + 1, by_commit=True)
                    yield f"{member} gets Commit of {origin} {delivered + 1}", after
            done = world.commits[i]
            is_waiting = is_uniform and done < len(sent) and sent[done] == view.id
            if is_waiting and sender.is_up and world.acks[i][done] >= set(view.members):
                after = self._copy(world, origin.sender)
                after.commits = _with(world.commits, i, done + 1)
                self._deliver(after.people[origin.sender], i, done + 1, by_commit=True)
                yield f"{origin} commits {done + 1}", after

    def _may_send(self, person: Person) -> bool:
        return person.follower.phase is Phase.OPEN

    def _hears(self, person: Person, origin: Origin) -> bool:
        """Whether what comes of its view counts."""
        return person.follower.phase is Phase.OPEN

    def _is_of(self, tag: ViewId, person: Person) -> bool:
        return tag == person.follower.view.id

    def _waits(self, i: int) -> bool:
        """Whether what is held is delivered by Commit or by a cut alone."""
        return self.streams[i].stream is Stream.UNIFORM

    def _copy(self, world: World, member: Member) -> World:
        people = dict(world.people)
        people[member] = people[member].copy()
        return replace(world, people=people, frames=dict(world.frames), cuts=dict(world.cuts))

    # Streams

    def _hold(self, world: World, member: Member, i: int, upto: int) -> None:
        person = world.people[member]
        person.held = _with(person.held, i, upto)
        if not self._waits(i):
            self._deliver(person, i, upto, by_commit=True)

    def _deliver(self, person: Person, i: int, upto: int, *, by_commit: bool) -> None:
        now = person.now
        committed = _with(now.committed, i, upto) if by_commit else now.committed
        now = now._replace(delivered=_with(now.delivered, i, upto), committed=committed)
        person.lived = (*person.lived[:-1], now)

    def _can_get(self, world: World, member: Member) -> bool:
        person = world.people[member]
        assert person.flushing is not None
        for i, origin in enumerate(self.origins):
            cut = person.flushing.cuts.get(origin, OWN)
            if cut > person.held[i] and not any(
                self._has(world, other, i, person.held[i] + 1, cut)
                for other in person.flushing.members
                if other != member and world.people[other].is_up
            ):
                return False
        return True

    def _has(self, world: World, member: Member, i: int, first: int, last: int) -> bool:
        if member == self.origins[i].sender:
            return last <= len(world.sent[i])
        person = world.people[member]
        if person.held[i] < last:
            return False
        return self.streams[i].stream is not Stream.UNIFORM or person.now.delivered[i] < first

    def _flush(self, world: World, member: Member) -> None:
        person = world.people[member]
        assert person.flushing is not None
        for i, origin in enumerate(self.origins):
            cut = person.flushing.cuts.get(origin, OWN)
            person.held = _with(person.held, i, max(person.held[i], cut))
        person.flushing = None
        wishes = Wishes()
        person.follower.on_flushed(person.follower.promised, wishes)
        self._do(world, member, wishes)

    def _begin(self, person: Person, member: Member, begin: Begin) -> None:
        part = begin.cut.part_of(member)
        for i, origin in enumerate(self.origins):
            cut = part.cuts.get(origin, OWN)
            if person.now.delivered[i] != NOT_IN and cut > person.now.delivered[i]:
                self._deliver(person, i, cut, by_commit=False)
        start = tuple(
            self._start(person, begin, i, origin) if origin.sender in begin.view else NOT_IN
            for i, origin in enumerate(self.origins)
        )
        person.held = start
        person.flushing = None
        person.lived += (Lived(begin.view.id, start, start, (0,) * len(start)),)

    def _start(self, person: Person, begin: Begin, i: int, origin: Origin) -> int:
        return begin.cut.starts[origin]

    # Machines

    def _matters(self, person: Person, frame: ChangeFrame) -> bool:
        """Whether it would change anything there; to leave the others out loses no state."""
        follower = person.follower
        if not person.is_up:
            return False
        match frame:
            case Propose():
                return order(frame.id) > order(follower.promised)
            case Cut() | Finish():
                return frame.id == follower.promised and follower.phase is Phase.FROZEN
            case Install():
                return frame.id == follower.promised and follower.phase is Phase.FLUSHED
            case _:
                return False

    def _may_matter(self, person: Person, frame: ChangeFrame) -> bool:
        """Whether it could change anything there, now or later."""
        follower = person.follower
        is_late = order(frame.id) < order(follower.promised) or frame.id == follower.view.id
        return person.is_up and not is_late

    def _propose(self, world: World, member: Member, proposal: Propose) -> None:
        wishes = Wishes()
        world.people[member].proposer.propose(proposal, wishes)
        self._do(world, member, wishes)

    def _receive(self, world: World, source: Member, dest: Member, frame: ChangeFrame) -> None:
        person = world.people[dest]
        wishes = Wishes()
        receive(person.follower, person.proposer, source, frame, wishes)
        if isinstance(frame, Propose):
            self._follow(person)
        self._do(world, dest, wishes)

    def _follow(self, person: Person) -> None:
        """A proposer that has promised another one is none any more."""
        proposal = person.proposer.proposal
        if proposal is not None and proposal.id != person.follower.promised:
            person.proposer.stop()

    def _do(self, world: World, member: Member, wishes: Wishes) -> None:
        person = world.people[member]
        for wish in wishes.streams:
            match wish:
                case Freeze():
                    person.flushing = None
                    own = {
                        o.stream: len(world.sent[i])
                        for i, o in enumerate(self.origins)
                        if o.sender == member
                    }
                    streams = {kind.stream for kind in self.streams}
                    snapshot = Snapshot(
                        {stream: own.get(stream, 0) for stream in sorted(streams)},
                        {o: person.held[i] for i, o in enumerate(self.origins)},
                    )
                    person.follower.on_snapshot(person.follower.promised, snapshot, wishes)
                case Flush():
                    person.flushing = wish.part
                case Begin():
                    self._begin(person, member, wish)
        for dest, frame in wishes.frames:
            if isinstance(frame, Cut):
                world.cuts[frame.id] = frame
            if dest == member:
                self._receive(world, member, member, frame)
            elif isinstance(frame, Propose | Finish | Cut | Install):
                world.frames.setdefault(f"{dest} {_text(frame)}", (member, dest, frame))
            elif world.people[dest].is_up:
                world.people[dest] = world.people[dest].copy()
                self._receive(world, member, dest, frame)

    def violations(self, world: World) -> Iterable[str]:
        return violations(self, world)


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _text(frame: ChangeFrame) -> str:
    more = f" {frame.first}" if isinstance(frame, Finish) else ""
    return f"{type(frame).__name__} {frame.id}{more}"


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("crash", ((0, 1, 2),), (Kind(0, Stream.FIFO, 1),)),
        Scenario("crash, uniform", ((0, 1, 2),), (Kind(0, Stream.UNIFORM, 1),)),
        Scenario("crash, not retained", ((0, 1, 2),), (Kind(0, Stream.FIFO, 1, False),)),
        Scenario("join", ((0, 1), (2,)), (Kind(1, Stream.FIFO, 1),)),
        Scenario("three parts", ((0,), (1,), (2,)), (Kind(0, Stream.UNIFORM, 1),)),
    )
}
