"""View changes, explored: the machines of `protocols/views`, with streams as simple as can be. What
may happen, and what must hold, says docs/howto/explore.md.

An answer reaches its proposer at once: if it comes late or is lost, that is as if what it answers
had come late. There is one stream: a log of the views in which its messages were sent; what
somebody holds of it is a number. Getting what a flush lacks is one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ringcast.core.view_change import OWN, Begin, Cut, Freeze, Snapshot, order
from ringcast.explore.automata import NAMES
from ringcast.explore.explorer import Report, explore
from ringcast.explore.view_world import NOT_IN, Lived, Person, Said, World, judge
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.protocols.views.election import may_answer
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import ChangeFrame, Propose, Wish, Wishes, receive
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.trace.rows import Facts
from ringcast.wire.changes import Finish, Install

STUCK = "stuck: a proposal of all who live does not end in one view"
ROUNDS = 8
"""In which all frames of a proposal arrive and everybody flushes: one for each step, and twice for
views that are finished first."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """Members that propose whatever they like."""

    name: str
    views: tuple[str, ...]  # members by name, in the views in which they begin
    sender: str = "A"
    stream: Stream = Stream.FIFO
    messages: int = 1
    is_retained: bool = True  # receivers keep what they have delivered of a sender that departs
    proposals: int = 2
    crashes: int = 1
    targets: tuple[str, ...] = ()  # each by the first that is named; none: any set, by anybody
    leaver: str = ""  # wants to leave: proposals with it and others are without it in their view

    @property
    def description(self) -> str:
        leaver = f"; {self.leaver} leaves" * bool(self.leaver)
        sets = " or ".join(f"{names} by {names[0]}" for names in self.targets)
        kind = f"{self.stream.name.lower()}{' not retained' * (not self.is_retained)}"
        sent = f"{self.messages} {kind} by {self.sender}" if self.messages else "none"
        return (
            f"{' | '.join(self.views)}{leaver}; proposals: {self.proposals}, "
            f"{sets or 'any set by anybody'}; crashes: {self.crashes}; messages: {sent}; every "
            f"order, any frame lost, late or again"
        )

    def explore(self, system: type[Views] | None = None, **limits: Any) -> Report:
        """Every state, of a class with one rule changed if that is given."""
        return explore((system or Views)(self), **limits)


class Views:
    """The system that is explored."""

    follower = Follower
    proposer = Proposer
    late: Any = Propose | Finish | Cut | Install
    """Frames that may arrive at any later time. The others are answers, and come at once."""

    def __init__(self, scenario: Proposals) -> None:
        self.scenario = scenario
        self.premises: Counter[str] = Counter()
        names = sorted("".join(scenario.views))
        self.members = [Member(Address("h", NAMES.index(name)), 1, name) for name in names]
        sender = next(member for member in self.members if member.name in scenario.sender)
        self.origin = Origin(sender, scenario.stream)
        self._is_uniform = scenario.stream is Stream.UNIFORM
        self._facts = Facts(purge="acks_retained" if scenario.is_retained else "acks")
        self._targets = {member: [*self._sets(member)] for member in self.members}
        self._first = {view.id: view.members for view in self._views()}
        self._numbers: dict[object, int] = {}
        self._judged: dict[object, tuple[str, ...]] = {}
        self._healed: set[object] = set()

    def initial(self) -> World:
        people: dict[Member, Person] = {}
        for view in self._views():
            held = 0 if self.origin.sender in view else NOT_IN
            for member in view:
                machines = self.follower(member, view), self.proposer(self._is_kept)
                people[member] = Person(*machines, held, (Lived(view.id, *(held,) * 3),))
        return World(dict(sorted(people.items())))

    def _views(self) -> Iterator[View]:
        """In which members begin."""
        for names in self.scenario.views:
            members = tuple(m for m in self.members if m.name in names)
            yield View(ViewId(members[0], 1), members)

    def _is_kept(self, stream: Stream) -> bool:
        return self.scenario.is_retained

    # What tells states apart

    def key(self, world: World) -> object:
        people = [person.key or self._key_of(person) for person in world.people.values()]
        frames = sorted(t for t, said in world.frames.items() if self._may_matter(world, said))
        rest = world.sent, world.acks, world.commits, world.proposed, world.marks
        return people, self._number(rest), frames

    def _number(self, what: object) -> int:
        return self._numbers.setdefault(what, len(self._numbers) + 1)

    def _key_of(self, person: Person) -> int:
        """What is in proposals and cuts the world tells."""
        follower, proposer = person.follower, person.proposer
        asked: list[object] = []
        if proposer.step not in (Step.IDLE, Step.TELL):
            is_finishing, awaited = proposer.step is Step.FINISH, proposer.awaited
            asked = [proposer.step, *(awaited.items() if is_finishing else awaited)]
            for who, state in sorted(proposer._states.items()):
                own, held, _ = state.snapshot
                flushed = (each.id for each in state.flushed)
                asked.append((who, state.view.id, *own.values(), *held.values(), *flushed))
        kept = tuple(each.proposal.id for each in follower._flushed)
        phase = follower.view.id, follower.phase, follower.promised
        told = person.lived, person.held, phase, kept, tuple(asked)
        person.key = self._number(told if person.is_there else (person.lived,))
        return person.key

    # What can happen

    def actions(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._stream(world)
        for said in world.frames.values():
            _, dest, frame = said
            if self._matters(world.people[dest], frame):
                yield f"{dest} gets {_text(frame)}", self._arrive(world, said)
        for member, person in world.people.items():
            if not person.is_there:
                continue
            if self._can_flush(world, member):
                yield f"{member} flushes {person.follower.promised}", self._flush(world, member)
            if world.crashes < self.scenario.crashes:
                after = world.copy(member)
                after.people[member].is_up, after.crashes = False, world.crashes + 1
                yield f"{member} crashes", after
            if len(world.proposals) < self.scenario.proposals:
                counter = person.follower.promised.counter + 1
                for members in self._targets[member]:
                    names = "".join(m.name for m in members)
                    after = self._propose(world, member, counter, members)
                    yield f"{member} proposes {counter}@{member} of {names}", after

    def _sets(self, member: Member) -> Iterator[tuple[Member, ...]]:
        """What this one may propose."""
        for names in self.scenario.targets:
            if names[0] == member.name:
                yield tuple(m for m in self.members if m.name in names)
        for bits in range(1, 1 << len(self.members)) if not self.scenario.targets else ():
            chosen = tuple(m for n, m in enumerate(self.members) if bits >> n & 1)
            if member in chosen:
                yield chosen

    def _stream(self, world: World) -> Iterator[tuple[str, World]]:
        origin, sent, done = self.origin, world.sent, world.commits
        sender = world.people[origin.sender]
        if sender.is_up and self._may_send(sender) and len(sent) < self.scenario.messages:
            after = self._hold(world, origin.sender, len(sent) + 1)
            after.sent = (*sent, sender.follower.view.id)
            yield f"{origin} sends {len(sent) + 1}", after
        for member, person in world.people.items():
            held, delivered = person.held, person.now.delivered
            if not person.is_there or held == NOT_IN:
                continue
            is_next = member != origin.sender and held < len(sent)
            if is_next and self._is_of(sent[held], person) and self._hears(person):
                yield f"{member} gets {origin} {held + 1}", self._hold(world, member, held + 1)
            is_done = self._is_uniform and delivered < min(held, done)
            if is_done and sent[delivered] == person.now.view:
                after = world.copy(member)
                after.people[member].deliver(delivered + 1, by_commit=True)
                yield f"{member} gets Commit of {origin} {delivered + 1}", after
        view = sender.follower.view
        is_waiting = self._is_uniform and done < len(sent) and sent[done] == view.id
        if is_waiting and sender.is_up and world.acks[done].issuperset(view):
            after = world.copy(origin.sender)
            after.commits = done + 1
            after.people[origin.sender].deliver(done + 1, by_commit=True)
            yield f"{origin} commits {done + 1}", after

    def _may_send(self, person: Person) -> bool:
        return person.follower.phase is Phase.OPEN

    def _hears(self, person: Person) -> bool:
        """Whether what comes of its view counts."""
        return person.follower.phase is Phase.OPEN

    def _is_of(self, tag: ViewId, person: Person) -> bool:
        return tag == person.follower.view.id

    def _waits(self) -> bool:
        """Whether what is held is delivered by Commit or by a cut alone."""
        return self._is_uniform

    # The stream

    def _hold(self, world: World, member: Member, upto: int) -> World:
        after = world.copy(member)
        person = after.people[member]
        person.held = upto
        if self._is_uniform:
            by = (*world.acks, frozenset[Member]())
            after.acks = (*by[: upto - 1], by[upto - 1] | {member}, *by[upto:-1])
        if not self._waits():
            person.deliver(upto, by_commit=True)
        return after

    def _can_flush(self, world: World, member: Member) -> bool:
        """Whether it has what it lacks up to a cut, or somebody who lives does."""
        person = world.people[member]
        part = person.flushing
        if part is None:
            return False
        cut = part.cuts.get(self.origin, OWN)
        return cut <= person.held or any(
            self._has(world, other, person.held + 1, cut)
            for other in part.members
            if other != member and world.people[other].is_there
        )

    def _has(self, world: World, member: Member, first: int, last: int) -> bool:
        if member == self.origin.sender:
            return last <= len(world.sent)
        person = world.people[member]
        if person.held < last:
            return False
        return not self._waits() or person.now.delivered < first

    def _flush(self, world: World, member: Member) -> World:
        after = world.copy(member, is_changing=True)
        person = after.people[member]
        assert person.flushing is not None
        person.held = max(person.held, person.flushing.cuts.get(self.origin, OWN))
        wishes = Wishes()
        person.follower.on_flushed(person.follower.promised, wishes)
        self._do(after, member, wishes)
        return after

    def _begin(self, person: Person, member: Member, begin: Begin) -> None:
        cut = begin.cut.part_of(member).cuts.get(self.origin, OWN)
        if person.now.delivered != NOT_IN and cut > person.now.delivered:
            person.deliver(cut, by_commit=False)
        is_heard = member in begin.view and self.origin.sender in begin.view
        person.held = self._start(person, begin) if is_heard else NOT_IN
        person.lived += (Lived(begin.view.id, *(person.held,) * 3),)

    def _start(self, person: Person, begin: Begin) -> int:
        return begin.cut.starts[self.origin]

    # Machines

    def _matters(self, person: Person, frame: ChangeFrame) -> bool:
        """Whether it would change anything there; to leave the others out loses no state."""
        follower = person.follower
        if not person.is_there:
            return False
        match frame:
            case Propose():
                return order(frame.id) > order(follower.promised)
            case Cut() | Finish():
                return frame.id == follower.promised and follower.phase is Phase.FROZEN
            case _:
                return frame.id == follower.promised and follower.phase is Phase.FLUSHED

    def _may_matter(self, world: World, said: Said) -> bool:
        """Whether it could change anything there, now or later."""
        _, dest, frame = said
        follower = world.people[dest].follower
        is_late = order(frame.id) < order(follower.promised) or frame.id == follower.view.id
        return world.people[dest].is_there and not is_late

    def _propose(
        self, world: World, member: Member, counter: int, members: tuple[Member, ...]
    ) -> World:
        after = world.copy(member, is_changing=True)
        leavers = [m for m in members if m.name == self.scenario.leaver and len(members) > 1]
        proposal = Propose(ViewId(member, counter), members, frozenset(leavers))
        after.proposals += (proposal,)
        after.proposed = self._number((world.proposed, proposal))
        wishes = Wishes()
        after.people[member].proposer.propose(proposal, wishes)
        self._do(after, member, wishes)
        return after

    def _arrive(self, world: World, said: Said) -> World:
        source, dest, frame = said
        after = world.copy(dest, is_changing=True)
        self._receive(after, source, dest, frame)
        return after

    def _receive(self, world: World, source: Member, dest: Member, frame: ChangeFrame) -> None:
        person = world.people[dest]
        wishes = Wishes()
        receive(person.follower, person.proposer, source, frame, wishes)
        mine = person.proposer.proposal
        if isinstance(frame, Propose) and mine and mine.id != person.follower.promised:
            person.proposer.stop()  # who has promised another one is no proposer any more
        self._do(world, dest, wishes)

    def _do(self, world: World, member: Member, wishes: Wishes) -> None:
        for wish in wishes.streams:
            self._tell_streams(world, member, wish, wishes)
        for dest, frame in wishes.frames:
            if isinstance(frame, Cut) and frame.id not in world.cuts:
                world.cuts = {**world.cuts, frame.id: frame}
                parts = tuple((p.view, p.members, *p.cuts.items()) for p in frame.parts)
                world.marks = self._number((world.marks, *frame.starts.items(), *parts, frame.id))
            if dest == member:
                self._receive(world, member, member, frame)
            elif isinstance(frame, self.late):
                text = f"{dest} {_text(frame)}"
                if text not in world.frames:
                    world.frames = {**world.frames, text: (member, dest, frame)}
            elif world.people[dest].is_there:
                world.people[dest] = world.people[dest].copy()
                self._receive(world, member, dest, frame)

    def _tell_streams(self, world: World, member: Member, wish: Wish, wishes: Wishes) -> None:
        person = world.people[member]
        if isinstance(wish, Freeze):
            snapshot = self._snapshot(world, member)
            person.follower.on_snapshot(person.follower.promised, snapshot, wishes)
        elif isinstance(wish, Begin):
            self._begin(person, member, wish)

    def _snapshot(self, world: World, member: Member) -> Snapshot:
        own = len(world.sent) if member == self.origin.sender else 0
        held = world.people[member].held
        return Snapshot({self.origin.stream: own}, {} if held == NOT_IN else {self.origin: held})

    # What must hold

    def violations(self, world: World) -> Iterable[str]:
        return self._judge(world) or self._stuck(world)

    def _judge(self, world: World) -> tuple[str, ...]:
        people = world.people.values()
        key: tuple[object, ...] = tuple(each.lived for each in people), world.sent
        if any(len(each.lived) > 1 for each in people):  # before, no rule looks at proposals
            key = *key, world.proposed, world.marks
        if key not in self._judged:
            rows = world.rows(self.origin, self._first)
            self._judged[key] = tuple(judge(rows, self._facts, self.premises))
        return self._judged[key]

    def _stuck(self, world: World) -> tuple[str, ...]:
        """Let all who live come together, without faults; from states that differ only in what
        was delivered, once."""
        people = [
            (person.held, person.now, *(each.proposal.id for each in person.follower._flushed))
            for person in world.people.values()
            if person.is_there
        ]
        key = tuple(people), world.sent, world.commits, world.marks
        if key in self._healed or not people:
            return ()
        self._healed.add(key)
        return self._heal(world)

    def _heal(self, world: World) -> tuple[str, ...]:
        living = tuple(m for m, person in world.people.items() if person.is_there)
        counter = max(world.people[m].follower.promised.counter for m in living) + 1
        leader = next((m for m in living if self._is_answered(world, m, living)), None)
        if leader is None:
            return (f"{STUCK}: nobody is answered by all",)
        world = self._propose(world, leader, counter, living)
        last = world.proposals[-1].id
        for _ in range(ROUNDS):
            if all(world.people[member].now.view == last for member in living):
                break
            for said in world.frames.values():
                _, dest, frame = said
                if frame.id == last and self._matters(world.people[dest], frame):
                    world = self._arrive(world, said)
            for member in living:
                if self._can_flush(world, member):
                    world = self._flush(world, member)
        self.premises["healed"] += 1
        if any(world.people[member].now.view != last for member in living):
            return (STUCK,)
        found = self._judge(world)
        return tuple(f"{kind}; seen once {leader} proposes all who live" for kind in found)

    def _is_answered(self, world: World, leader: Member, living: tuple[Member, ...]) -> bool:
        """Each of them knows who is gone, or in another view."""
        proposal = Propose(ViewId(leader, 1), living)
        views = {member: world.people[member].follower.view for member in living}
        for who, view in views.items():
            gone = [m for m in view if views.get(m) != view and m != leader]
            if not may_answer(leader, proposal, view, gone, who, is_better=True):
                return False
        return True


def _text(frame: ChangeFrame) -> str:
    more = f" {frame.first}" if isinstance(frame, Finish) else ""
    return f"{type(frame).__name__} {frame.id}{more}"
