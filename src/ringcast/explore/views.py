"""View changes, explored: the machines of `protocols/views`, with streams as simple as can be.

Any live member may propose any set with itself in it at any time: false suspicion, several
proposers, proposers that know too little. A frame that a proposer has sent may arrive at any later
time, never, or again. An answer reaches the proposer at once: if it comes late or is lost, that is
as if what it answers had come late. Members crash at any step. A stream is a log of the views in
which its messages were sent; what somebody holds of it is a number. Getting what a flush lacks is
one step, and needs a live member that has it.

From every state the group must be able to go on: somebody is answered by all who live, and its
proposal of all of them ends in one view. What else must hold: view_rules.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcast.core.view_change import OWN, Begin, Cut, Flush, Freeze, Snapshot, order
from ringcast.explore.automata import NAMES
from ringcast.explore.explorer import explore
from ringcast.explore.system import replaced
from ringcast.explore.view_rules import History, Lived, violations
from ringcast.explore.view_world import NOT_IN, Person, World
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.protocols.views.election import may_answer
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import Propose, Wishes, receive
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.wire.changes import Finish, Install

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.explore.explorer import Report
    from ringcast.explore.view_world import Kind, Said
    from ringcast.protocols.views.frames import ChangeFrame

STUCK = "stuck: a proposal of all who live does not end in one view"
ROUNDS = 8
"""In which all frames of a proposal arrive and everybody flushes: one for each step, and twice for
views that are finished first."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """Members that propose whatever they like."""

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
        sets = " or ".join(f"{names} by {names[0]}" for names in self.targets)
        return (
            f"{' | '.join(self.views)}{leaver}; proposals: {self.proposals}, "
            f"{sets or 'any set by anybody'}; crashes: {self.crashes}; messages: "
            f"{', '.join(map(str, self.streams)) or 'none'}; every order, any frame lost, late or "
            f"again"
        )

    def explore(self, system: type[Views] | None = None, **limits: Any) -> Report:
        """Every state, of a class with one rule changed if that is given."""
        return explore((system or Views)(self), **limits)


class Views:
    """The system that is explored."""

    follower = Follower
    proposer = Proposer

    def __init__(self, scenario: Proposals) -> None:
        self.scenario = scenario
        self.premises: Counter[str] = Counter()
        names = sorted("".join(scenario.views))
        self.members = [Member(Address("h", NAMES.index(name)), 1, name) for name in names]
        self.origins = [Origin(self.members[k.sender], k.stream) for k in scenario.streams]
        self._numbers: dict[object, int] = {}
        self._judged: dict[object, tuple[str, ...]] = {}
        self._healed: set[object] = set()

    def initial(self) -> World:
        people: dict[Member, Person] = {}
        for view in self._views():
            held = tuple(0 if o.sender in view else NOT_IN for o in self.origins)
            lived = (Lived(view.id, *(held,) * 3),)
            for member in view:
                machines = self.follower(member, view), self.proposer(self._is_kept)
                people[member] = Person(*machines, held, lived)
        nothing, none = ((),) * len(self.origins), (0,) * len(self.origins)
        return World(dict(sorted(people.items())), nothing, nothing, none)

    def _views(self) -> Iterator[View]:
        """In which members begin."""
        for names in self.scenario.views:
            members = tuple(m for m in self.members if m.name in names)
            yield View(ViewId(members[0], 1), members)

    def _is_kept(self, stream: Stream) -> bool:
        return all(k.is_retained for k in self.scenario.streams if k.stream is stream)

    # What tells states apart

    def key(self, world: World) -> object:
        people = [person.key or self._key_of(person) for person in world.people.values()]
        frames = sorted(t for t, said in world.frames.items() if self._may_matter(world, said))
        rest = world.sent, world.acks, world.commits, world.proposals, world.marks
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
                own, held = state.snapshot
                flushed = (each.id for each in state.flushed)
                asked.append((who, state.view.id, *own.values(), *held.values(), *flushed))
        kept = tuple(each.proposal.id for each in follower._flushed)
        phase = follower.view.id, follower.phase, follower.promised
        told = person.lived, person.held, phase, kept, tuple(asked)
        person.key = self._number(told if person.is_there else person.lived)
        return person.key

    # What can happen

    def actions(self, world: World) -> Iterator[tuple[str, World]]:
        for i in range(len(self.origins)):
            yield from self._stream(world, i)
        for said in world.frames.values():
            _, dest, frame = said
            if self._matters(world.people[dest], frame):
                yield f"{dest} gets {_text(frame)}", self._arrive(world, said)
        for member, person in world.people.items():
            if not person.is_there:
                continue
            if person.flushing is not None and self._can_get(world, member):
                yield f"{member} flushes {person.follower.promised}", self._flush(world, member)
            if world.crashes < self.scenario.crashes:
                after = world.copy(member)
                after.people[member].is_up, after.crashes = False, world.crashes + 1
                yield f"{member} crashes", after
            if len(world.proposals) < self.scenario.proposals:
                counter = person.follower.promised.counter + 1
                for members in self._targets(member):
                    names = "".join(m.name for m in members)
                    after = self._propose(world, member, counter, members)
                    yield f"{member} proposes {counter}@{member} of {names}", after

    def _targets(self, member: Member) -> Iterator[tuple[Member, ...]]:
        for names in self.scenario.targets:
            if names[0] == member.name:
                yield tuple(m for m in self.members if m.name in names)
        for bits in range(1, 1 << len(self.members)) if not self.scenario.targets else ():
            chosen = tuple(m for n, m in enumerate(self.members) if bits >> n & 1)
            if member in chosen:
                yield chosen

    def _stream(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        origin, kind, sent = self.origins[i], self.scenario.streams[i], world.sent[i]
        is_uniform = kind.stream is Stream.UNIFORM
        sender, done = world.people[origin.sender], world.commits[i]
        if sender.is_up and self._may_send(sender) and len(sent) < kind.messages:
            after = self._hold(world, origin.sender, i, len(sent) + 1)
            after.sent = replaced(world.sent, i, (*sent, sender.follower.view.id))
            yield f"{origin} sends {len(sent) + 1}", after
        for member, person in world.people.items():
            held, delivered = person.held[i], person.now.delivered[i]
            if not person.is_there or held == NOT_IN:
                continue
            is_next = member != origin.sender and held < len(sent)
            if is_next and self._is_of(sent[held], person) and self._hears(person, origin):
                after = self._hold(world, member, i, held + 1)
                yield f"{member} gets {origin} {held + 1}", after
            if is_uniform and delivered < min(held, done) and sent[delivered] == person.now.view:
                after = world.copy(member)
                after.people[member].deliver(i, delivered + 1, by_commit=True)
                yield f"{member} gets Commit of {origin} {delivered + 1}", after
        view = sender.follower.view
        is_waiting = is_uniform and done < len(sent) and sent[done] == view.id
        if is_waiting and sender.is_up and world.acks[i][done].issuperset(view):
            after = world.copy(origin.sender)
            after.commits = replaced(world.commits, i, done + 1)
            after.people[origin.sender].deliver(i, done + 1, by_commit=True)
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
        return self.scenario.streams[i].stream is Stream.UNIFORM

    # Streams

    def _hold(self, world: World, member: Member, i: int, upto: int) -> World:
        after = world.copy(member)
        person = after.people[member]
        person.held = replaced(person.held, i, upto)
        if self.scenario.streams[i].stream is Stream.UNIFORM:
            by = (*world.acks[i], frozenset[Member]())
            after.acks = replaced(
                world.acks, i, (*by[: upto - 1], by[upto - 1] | {member}, *by[upto:-1])
            )
        if not self._waits(i):
            person.deliver(i, upto, by_commit=True)
        return after

    def _can_get(self, world: World, member: Member) -> bool:
        person = world.people[member]
        assert person.flushing is not None
        part = person.flushing.part_of(member)
        return all(
            cut <= person.held[i]
            or any(
                self._has(world, other, i, person.held[i] + 1, cut)
                for other in part.members
                if other != member and world.people[other].is_there
            )
            for i, origin in enumerate(self.origins)
            for cut in (part.cuts.get(origin, OWN),)
        )

    def _has(self, world: World, member: Member, i: int, first: int, last: int) -> bool:
        if member == self.origins[i].sender:
            return last <= len(world.sent[i])
        person = world.people[member]
        if person.held[i] < last:
            return False
        return not self._waits(i) or person.now.delivered[i] < first

    def _flush(self, world: World, member: Member) -> World:
        after = world.copy(member, is_changing=True)
        person = after.people[member]
        assert person.flushing is not None
        for i, origin in enumerate(self.origins):
            cut = person.flushing.part_of(member).cuts.get(origin, OWN)
            person.held = replaced(person.held, i, max(person.held[i], cut))
        person.flushing = None
        wishes = Wishes()
        person.follower.on_flushed(person.follower.promised, wishes)
        self._do(after, member, wishes)
        return after

    def _begin(self, person: Person, member: Member, begin: Begin) -> None:
        part = begin.cut.part_of(member)
        for i, origin in enumerate(self.origins):
            cut = part.cuts.get(origin, OWN)
            if person.now.delivered[i] != NOT_IN and cut > person.now.delivered[i]:
                person.deliver(i, cut, by_commit=False)
        is_in = member in begin.view
        person.held = tuple(
            self._start(person, begin, i) if is_in and origin.sender in begin.view else NOT_IN
            for i, origin in enumerate(self.origins)
        )
        person.lived += (Lived(begin.view.id, *(person.held,) * 3),)

    def _start(self, person: Person, begin: Begin, i: int) -> int:
        return begin.cut.starts[self.origins[i]]

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
        person = world.people[member]
        for wish in wishes.streams:
            match wish:
                case Freeze():
                    person.flushing = None
                    snapshot = self._snapshot(world, member)
                    person.follower.on_snapshot(person.follower.promised, snapshot, wishes)
                case Flush():
                    person.flushing = person.follower._cut
                case Begin():
                    person.flushing = None
                    self._begin(person, member, wish)
        for dest, frame in wishes.frames:
            if isinstance(frame, Cut) and frame.id not in world.cuts:
                world.cuts = {**world.cuts, frame.id: frame}
                parts = tuple((p.view, p.members, *p.cuts.items()) for p in frame.parts)
                world.marks += ((frame.id, *frame.starts.items(), *parts),)
            if dest == member:
                self._receive(world, member, member, frame)
            elif isinstance(frame, Propose | Finish | Cut | Install):
                text = f"{dest} {_text(frame)}"
                if text not in world.frames:
                    world.frames = {**world.frames, text: (member, dest, frame)}
            elif world.people[dest].is_there:
                world.people[dest] = world.people[dest].copy()
                self._receive(world, member, dest, frame)

    def _snapshot(self, world: World, member: Member) -> Snapshot:
        own = {kind.stream: 0 for kind in self.scenario.streams}
        for i, origin in enumerate(self.origins):
            if origin.sender == member:
                own[origin.stream] = len(world.sent[i])
        held = world.people[member].held
        return Snapshot(own, {o: held[i] for i, o in enumerate(self.origins) if held[i] != NOT_IN})

    # What must hold

    def violations(self, world: World) -> Iterable[str]:
        lived = tuple(person.lived for person in world.people.values())
        key = self._number((lived, world.sent, world.proposals, world.marks))
        found = self._judged.get(key)
        if found is None:
            found = self._judged[key] = tuple(violations(self._history(world), self.premises))
        return found or self._stuck(world)

    def _history(self, world: World) -> History:
        views = *self._views(), *(each.view for each in world.proposals)
        return History(
            self.origins,
            [self._is_kept(kind.stream) for kind in self.scenario.streams],
            {member: person.lived for member, person in world.people.items()},
            world.sent,
            {view.id: view.members for view in views},
            {proposal.id: proposal.members for proposal in world.proposals},
            {(part.view, c.id): part.members for c in world.cuts.values() for part in c.parts},
        )

    def _stuck(self, world: World) -> tuple[str, ...]:
        """Let all who live come together, without faults; from states that differ only in what
        was delivered, once."""
        people = [
            (person.held, person.now, *(each.proposal.id for each in person.follower._flushed))
            for person in world.people.values()
            if person.is_there
        ]
        key = self._number((tuple(people), world.sent, world.commits, world.marks))
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
        for _ in range(ROUNDS):
            for said in world.frames.values():
                _, dest, frame = said
                is_new = frame.id == ViewId(leader, counter)
                if is_new and self._matters(world.people[dest], frame):
                    world = self._arrive(world, said)
            for member in living:
                if world.people[member].flushing is not None and self._can_get(world, member):
                    world = self._flush(world, member)
        self.premises["healed"] += 1
        ends = {world.people[member].now.view for member in living}
        if ends != {world.proposals[-1].id}:
            return (STUCK,)
        found = violations(self._history(world), self.premises)
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
