"""One order of total messages, explored: real streams, through any change of views. What may
happen, and what must hold, says docs/howto/explore.md.

All of a change up to Install is one step: what may befall its frames views.py explores. Then each
of the others installs at any later time, or never, or the next change takes it along before it has.
What a flush asks for comes at once, and applications read at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ringcast.core.view_change import Begin, Cut, Freeze, Frozen, Part, StateStanding, order
from ringcast.events import Delivered, Event, ViewInstalled
from ringcast.explore.explorer import Report, explore
from ringcast.explore.system import payload_of
from ringcast.explore.total_streams import Said, Step, Streams
from ringcast.explore.view_world import Person, World, judge, keys_of, naming_in_order
from ringcast.explore.views import Proposals, Views
from ringcast.explore.words import in_words
from ringcast.model import Member, Stream
from ringcast.protocols.views.frames import Wish, Wishes
from ringcast.protocols.views.streams import ViewStreams
from ringcast.rules.table import ORDER
from ringcast.trace import rows as trace
from ringcast.trace.observe.order import order_of, shown_of
from ringcast.trace.rows import Facts, Row
from ringcast.wire.changes import Holding, Install

PENDING = "O-L3: a message is pending for ever"
STUCK = "stuck: a change of all who live does not end in one view"
FACTS = Facts(protocol="total")


@dataclass(frozen=True, slots=True)
class Orders(Proposals):
    """Members that send total messages, and change their views however they like. `sender` names
    all who send, each so many messages; `proposals` is how many changes there are, and `targets`,
    if there are any, to which views, one after the other."""

    @property
    def description(self) -> str:
        sets = ", then ".join(f"{names} led by {names[0]}" for names in self.targets)
        return (
            f"{' | '.join(self.views)}; changes: {self.proposals}, "
            f"{sets or 'of any who live, led by any of their parts'}; crashes: {self.crashes}; "
            f"messages: {self.messages} total by {' and '.join(self.sender)}; every order, "
            "anything late or lost"
        )

    def explore(self, system: type[Views] | None = None, **limits: Any) -> Report:
        return explore((system or TotalViews)(self), **limits)


class TotalViews(Views):
    """The system that is explored."""

    protocol: ClassVar[type[ViewStreams]] = ViewStreams
    late = Install

    def __init__(self, scenario: Orders) -> None:
        super().__init__(scenario)
        self.streams = Streams(self.protocol)

    def initial(self) -> World:
        people: dict[Member, Person] = {}
        world = World(people)
        for view in self._views():
            cut = Cut(view.id, (Part(view.id, view.members, {}, {}),), {})
            for member in view:
                machines = self.follower(member, view), self.proposer(self._is_kept)
                people[member] = Person(*machines, 0, (), streams=self.streams.fresh(member))
                self._tell_streams(world, member, Begin(view, cut), Wishes())
        world.people = dict(sorted(people.items()))
        return world

    # What becomes of the world

    def _feed(self, world: World, member: Member, step: Step) -> None:
        person = world.people[member]
        person.streams, person.key = step.after, 0
        for event in step.events:
            self._note(person, *_told_in_row(event))
        world.wrong += step.wrong
        world.flight += step.late
        for signal in step.signals:
            wishes, follower = Wishes(), world.people[member].follower
            if isinstance(signal, Frozen):
                follower.on_snapshot(signal.id, signal.snapshot, wishes)
            else:
                follower.on_flushed(signal.id, wishes)
            self._do(world, member, wishes)
        for number in step.at_once:
            dest = self.streams.said[number].dest
            if world.people[dest].is_there:
                world.people[dest] = other = world.people[dest].copy()
                self._feed(world, dest, self.streams.receive(other.streams, number))

    def _note(self, person: Person, event: str, columns: dict[str, Any]) -> None:
        """Of proposals the last that was promised counts."""
        me, rows = person.follower.me, person.rows
        if event == trace.FREEZE == rows[-1].event:
            rows = rows[:-1]
        at = len(rows)
        person.rows = (*rows, Row(event, str(me), me.incarnation, at, at, at, **columns))

    def _tell_streams(self, world: World, member: Member, wish: Wish, wishes: Wishes) -> None:
        person = world.people[member]
        if isinstance(wish, Freeze):
            members = keys_of(wish.members)
            self._note(person, trace.FREEZE, {"members": members, **naming_in_order(wish.id)})
        elif isinstance(wish, Begin):
            part, members = wish.cut.part_of(member).members, keys_of(wish.view.members)
            named = naming_in_order(wish.view.id)
            self._note(person, trace.VIEW, {"members": members, "part": keys_of(part), **named})
        self._feed(world, member, self.streams.change(person.streams, wish))

    def _settled(self, world: World) -> World:
        """Without what can have no effect any more."""
        flight = (each for each in world.flight if self._may_come(world, self.streams.said[each]))
        world.flight = tuple(sorted({*flight}))
        return world

    def _may_come(self, world: World, said: Said) -> bool:
        person = world.people[said.dest]
        return person.is_there and order(said.view) >= order(person.follower.view.id)

    # What tells states apart

    def key(self, world: World) -> object:
        people = [person.key or self._key_of(person) for person in world.people.values()]
        frames = sorted(t for t, said in world.frames.items() if self._may_matter(world, said))
        return people, world.flight, frames, world.crashes, len(world.proposals), world.wrong

    def _key_of(self, person: Person) -> int:
        follower = person.follower
        kept = tuple(repr(each.cut) for each in follower._flushed)
        phase = follower.view.id, follower.phase, follower.promised, person.proposer.step
        told = (person.streams, *phase, kept) if person.is_there else ()
        person.key = self._number((person.rows, told))
        return person.key

    # What can happen

    def actions(self, world: World) -> Iterator[tuple[str, World]]:
        for what, after in self._happens(world):
            yield what, self._settled(after)

    def _happens(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._arrivals(world)
        for said in world.frames.values():
            _, dest, frame = said
            if self._matters(world.people[dest], frame):
                yield f"{dest} gets Install {frame.id}", self._arrive(world, said)
        for place, member in enumerate(self.members):
            person = world.people[member]
            if not person.is_there:
                continue
            if member.name in self.scenario.sender:
                yield from self._sends(world, member, place)
            if world.crashes < self.scenario.crashes:
                after = world.copy(member)
                self._note(after.people[member], trace.CRASH, {})
                after.people[member].is_up, after.crashes = False, world.crashes + 1
                yield f"{member} crashes", after
        if len(world.proposals) < self.scenario.proposals:
            yield from self._changes(world)

    def _arrivals(self, world: World) -> Iterator[tuple[str, World]]:
        for number in world.flight:
            source, dest, _, what = self.streams.said[number]
            before = world.people[dest].streams
            step = self.streams.receive(before, number)
            if step != Step(before):
                after = world.copy(dest, is_changing=True)
                after.flight = tuple(each for each in world.flight if each != number)
                self._feed(after, dest, step)
                yield f"{source}→{dest} {in_words(what)} arrives{step.told}", after

    def _sends(self, world: World, member: Member, place: int) -> Iterator[tuple[str, World]]:
        before = world.people[member].streams
        number = self.streams.all[before].highest_sent(Stream.TOTAL) + 1
        if number > self.scenario.messages:
            return
        step = self.streams.send(before, payload_of(place, number))
        if step.accepted:
            after = world.copy(member, is_changing=True)
            person = after.people[member]
            columns = {"seqno": number, "seqno2": number, "stream": int(Stream.TOTAL)}
            in_view = naming_in_order(person.follower.view.id)
            self._note(person, trace.ACCEPT, {**columns, **in_view})
            self._feed(after, member, step)
            yield f"{member} sends {number}{step.told}", after

    def _changes(self, world: World) -> Iterator[tuple[str, World]]:
        living, targets = self._living(world), self.scenario.targets
        for bits in range(1, 1 << len(living)):
            chosen = [member for at, member in enumerate(living) if bits >> at & 1]
            names = "".join(member.name for member in chosen)
            for leader in self._leaders(world, chosen):
                if targets:
                    target = targets[len(world.proposals)]
                    if set(target) != set(names):
                        continue
                    leader = next(member for member in chosen if member.name == target[0])
                yield f"{leader} changes the view: {names}", self._change(world, leader, chosen)

    def _leaders(self, world: World, members: Sequence[Member]) -> Iterable[Member]:
        """One of each view that they are in."""
        firsts = {world.people[member].follower.view.id: member for member in reversed(members)}
        return firsts.values()

    def _change(self, world: World, leader: Member, members: Sequence[Member]) -> World:
        """To one view of these, until all have flushed and its proposer has installed it. The part
        leads that has a state: its own. Who is first in its list may be elsewhere by now."""
        mine = world.people[leader].follower.view
        for member in members:
            world = world.copy(member, is_changing=True)
            follower = world.people[member].follower
            is_leading = follower.view == mine
            follower.standing = StateStanding(Holding.HOLDS if is_leading else Holding.LACKS)
        ordered = [member for member in mine if member in members]
        ordered += [member for member in members if member not in mine]
        counter = 1 + max(world.people[member].follower.promised.counter for member in members)
        after = self._propose(world, leader, counter, tuple(ordered))
        if after.people[leader].follower.view.id != after.proposals[-1].id:
            after.wrong += (STUCK,)
        return after

    # What must hold

    def violations(self, world: World) -> Iterable[str]:
        return world.wrong or self._judge(world) or self._stuck(world)

    def _judge(self, world: World, *more: Row) -> tuple[str, ...]:
        rows = tuple(row for person in world.people.values() for row in person.rows) + more
        if rows not in self._judged:
            self._judged[rows] = tuple(judge(rows, FACTS, self.premises, ORDER))
        return self._judged[rows]

    def _stuck(self, world: World) -> tuple[str, ...]:
        """What was said in the views before has no effect then."""
        living = self._living(world)
        key = tuple(person.key or self._key_of(person) for person in world.people.values())
        if key in self._healed:
            return ()
        self._healed.add(key)
        leaders = self._leaders(world, living)
        found = [kind for leader in leaders for kind in self._healed_by(world, leader, living)]
        return tuple(dict.fromkeys(found))

    def _healed_by(self, world: World, leader: Member, living: Sequence[Member]) -> Iterator[str]:
        world = self._settled(self._change(world, leader, living))
        last = world.proposals[-1].id
        while not world.wrong:
            said = (each for each in world.frames.values() if each[2].id == last)
            install = next(
                (each for each in said if self._matters(world.people[each[1]], each[2])), None
            )
            if install is not None:
                world = self._settled(self._arrive(world, install))
            elif (arrival := next(self._arrivals(world), None)) is not None:
                world = self._settled(arrival[1])
            else:
                break
        self.premises["healed"] += 1
        people = [world.people[member] for member in living]
        found = world.wrong or self._judge(world, Row(trace.PHASE, "", 0, 0, kind="end"))
        if not found and any(person.follower.view.id != last for person in people):
            found = (STUCK,)
        orders = [self.streams.all[person.streams].total for person in people]
        if not found and any(total is not None and len(total.pending) for total in orders):
            found = (PENDING,)
        for kind in found:
            yield f"{kind}; seen once {leader} changes the view of all who live"

    def _living(self, world: World) -> list[Member]:
        return [member for member, person in world.people.items() if person.is_there]


def _told_in_row(event: Event) -> tuple[str, dict[str, Any]]:
    if isinstance(event, Delivered):
        return trace.ORDER, {**order_of(event), **naming_in_order(event.view_id)}
    assert isinstance(event, ViewInstalled)
    return trace.SHOWN, {**shown_of(event), **naming_in_order(event.view.id)}
