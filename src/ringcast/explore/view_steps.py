"""Whole nodes through one view change, and whatever can befall any one of its datagrams: as
docs/howto/explore.md tells it. What must hold: ringcast.rules.views and view_watch.py.

All is one schedule: each datagram takes a millisecond, timers fire when they are due. So the change
is a list of datagrams, and is run again for each of them and each fault. Nodes have no failure
detector: a moment after somebody is gone the others are told, in each view that still has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import inf
from random import Random
from time import perf_counter
from typing import Any

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.core.effects import Suspected
from ringcast.events import Event, StateWanted, ViewInstalled, Writable
from ringcast.explore.explorer import OnProgress, Report, Violation
from ringcast.explore.view_watch import ORDERED as ORDERED
from ringcast.explore.view_watch import STREAMS, Applications, watch
from ringcast.explore.words import in_words
from ringcast.model import Address, Member, Stream
from ringcast.node import Node, build_node
from ringcast.protocols.views.change import ViewChange
from ringcast.sim.plain import PlainMember, begin, plain_world
from ringcast.sim.world import Flight, Process
from ringcast.wire.changes import InView, Propose
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Frame

START_NS = 1_000_000_000
DELAY_NS = 1_000_000
REST_MS = 200.0
"""Long enough after a view for the next one."""
SUSPECT_MS = 30.0
"""After so long the others know that somebody is gone."""
LATE_NS = 1_000_000_000
END_MS = 20_000.0
"""For so long the survivors may take: back-off after losses is in it."""
FROZEN_NS_MAX = 1_014_000_000
"""VL3: twice the patience of a member, and 14 times the delay of a datagram."""
TOLD_MAX = 200
"""Lines of a witness."""


class Fault(Enum):
    DEATH = "its sender dies just before it"
    LOST = "it is lost"
    TWICE = "it arrives twice"
    LATE = "it arrives after the next change"


@dataclass(frozen=True, slots=True)
class Script:
    """A group, what it sends, and what begins the change. Members by name."""

    name: str
    views: tuple[str, ...]
    joins: str = ""
    leaves: str = ""
    crashes: str = ""
    meets: bool = False  # the views find each other
    unheard: str = ""  # "CA": A gets nothing of C's messages before the change
    severed: str = ""  # these two do not hear each other during the change
    idle: str = ""  # whose application reads nothing until the change is over
    messages: int = 1  # on each stream, by each member that is there from the start
    size: int = 10
    capacity: int = 16
    has_state: bool = False
    retains: bool = False  # receivers keep what they have delivered until everybody has
    streams: tuple[Stream, ...] = STREAMS
    faults: tuple[Fault, ...] = tuple(Fault)

    @property
    def description(self) -> str:
        happens = [f"{name} joins" for name in self.joins]
        happens += [f"{name} leaves" for name in self.leaves]
        happens += [f"{name} crashes" for name in self.crashes]
        happens += ["the parts meet"] * self.meets
        notes = [f"{pair[1]} lacks {pair[0]}'s" for pair in self.unheard.split()]
        notes += [f"{self.idle} reads nothing"] * bool(self.idle)
        notes += ["applications have a state"] * self.has_state
        notes += ["receivers retain"] * self.retains
        notes += [f"{' and '.join(self.severed)} do not hear each other"] * bool(self.severed)
        sent = " and ".join(f"{self.messages} {each.name.lower()}" for each in self.streams)
        return (
            f"{' | '.join(self.views)}, whole nodes: {', '.join(happens)}; messages: "
            f"{sent} by each, {self.size} bytes, window "
            f"{self.capacity}{''.join(f'; {note}' for note in notes)}; for each datagram: "
            + ", or ".join(fault.value for fault in self.faults)
        )

    def explore(
        self,
        *,
        max_seconds: float = inf,
        stop_at_violation: bool = False,
        on_progress: OnProgress | None = None,
        **layers: Any,
    ) -> Report:
        """The change without a fault, then with each fault of each datagram.

        `layers` are built in place of the node's own: classes with one rule changed.
        """
        started = perf_counter()
        premises: Counter[str] = Counter()
        found: dict[str, list[str]] = {}
        todo: list[tuple[Fault | None, int]] = [(None, -1)]
        runs = steps = 0
        for fault, which in todo:
            if perf_counter() - started > max_seconds or (stop_at_violation and found):
                break
            if on_progress:
                on_progress(runs, len(todo) - runs)
            run = Run(self, layers, fault, which)
            run.run(premises)
            runs, steps = runs + 1, steps + run.steps
            if fault is None:
                todo += [(each, at) for at in range(run.count) for each in self.faults]
            for kind in run.applications.wrong:
                found.setdefault(kind, run.told)
        seconds, complete = perf_counter() - started, runs == len(todo)
        violations = [Violation(kind, told) for kind, told in found.items()]
        return Report(steps, steps, seconds, violations, complete, premises, runs)


class Run:
    """One run of a script; `fault` befalls the datagram with the number `which`, from 0."""

    def __init__(
        self, script: Script, layers: Mapping[str, Any], fault: Fault | None = None, which: int = -1
    ) -> None:
        self.script = script
        self.told: list[str] = []
        """What has happened since the change began."""
        self.count = 0
        """Datagrams of the change."""
        self.steps = 0
        self._names = "".join(sorted({*"".join(script.views), *script.joins}))
        self._layers, self._fault, self._which = layers, fault, which
        self._told: set[tuple[object, ...]] = set()  # who knows that somebody is gone
        self._unheard: Sequence[str] = ()
        self._is_on = False
        self._reader = Codec("explore", Member(Address("10.0.0.2", 1), 1, "?"), 2000)
        self.applications = Applications(script.streams, retains=script.retains)
        self.world = plain_world(start=START_NS)
        self.world.network.faults = [self]

    # The script

    def run(self, premises: Counter[str]) -> None:
        self._form()
        self._send_first()
        self._begin_change()
        is_one = self.world.run_until(self._is_one, END_MS)
        self._is_on = False
        for name in self.script.idle:
            self._process(name).resident.take_limit = 1000
            self._process(name).turn()
        is_quiet = is_one and self.world.run_until(self._is_quiet, END_MS)
        if is_quiet and self._fault is Fault.LATE:
            self._propose(self._living())
            self.world.run_for(LATE_NS / 1e6)
        for name in self._living() if is_quiet else ():
            self._want(name, 10)
        if not is_quiet or not self.world.run_until(self._is_quiet, END_MS):
            self.applications.wrong.append("stuck: the survivors do not come to rest in one view")
            self.told += self._reasons()
        living = [_member(name) for name in self._living()]
        self.applications.judge(living, premises, has_state=self.script.has_state)

    def _form(self) -> None:
        """The views of the script; each finds its own members alone."""
        for names in self.script.views:
            for name in names:
                self._start(name, names)
            if len(names) > 1:
                self._propose(names)
        self.world.run_until(lambda: all(self._node(n).view for n in self._living()), END_MS)
        self.world.run_for(REST_MS)

    def _propose(self, names: Sequence[str]) -> None:
        """By the first of them, whatever views they are in."""
        node, change = self._node(names[0]), self._change(names[0])
        views = {self._change(name).view for name in names} - {change.view}
        permits = {other.view.id: other.permit(node.me) for other in map(self._change, names[1:])}
        now = self.world.clock.now
        change.propose(map(_member, names), set(), views, now, node.effects, permits)
        self._settle(names[0])

    def _send_first(self) -> None:
        self._unheard = self.script.unheard.split()
        for name in self.script.idle:
            self._process(name).resident.take_limit = 0
        for name in self._living():
            for _ in range(self.script.messages):
                self._want(name, self.script.size)
        self.world.run_for(1.5)
        self._unheard = ()

    def _begin_change(self) -> None:
        script, now = self.script, self.world.clock.now
        self._is_on = True
        for name in script.crashes:
            self._kill(name)
        for name in script.joins:
            self._start(name, self._names)
        for name in script.leaves:
            self._node(name).leave(now)
            self._process(name).turn()
        for name in self._living() if script.meets else ():
            self._node(name).add_candidates(map(_address, self._names), now)
            self._process(name).turn()

    def _start(self, name: str, others: str) -> None:
        script = self.script
        config = GroupConfig(
            group="explore",
            multicast=MulticastConfig(
                capacity=script.capacity,
                datagram_bytes=600,
                window_bytes=1 << 14,
                retain=script.retains,
            ),
        )
        me, layers = _member(name), self._layers
        node = build_node(
            *(me, config), detector=None, streams=script.streams, state=script.has_state, **layers
        )
        member = watch(node, self.applications.rows, self._see)
        begin(self.world, member, list(map(_address, others)))
        member.before_sending = self._look

    # What befalls datagrams, and members

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        link = _name(flight.link.source) + _name(flight.link.dest)
        flight.due += DELAY_NS
        is_severed = self._is_on and set(link) == set(self.script.severed)
        if not self._process(link[0]).is_alive or link in self._unheard or is_severed:
            return []
        if not self._is_on:
            return [flight]
        fault = self._fault if self.count == self._which else None
        self.count += 1
        _, frames = self._reader.unpack(flight.datagram, overhear=True)
        words = [self._in_words(link[0], f) for f in frames if not isinstance(f, InView)]
        self._tell(f"{link[0]}→{link[1]} {' + '.join(words)}", fault)
        match fault:
            case Fault.DEATH:
                self._kill(link[0])
                return []
            case Fault.LOST:
                return []
            case Fault.TWICE:
                return [flight, flight]
            case Fault.LATE:
                flight.due += LATE_NS
                flight.keeps_order = False
        return [flight]

    def _in_words(self, name: str, frame: Frame) -> str:
        proposal = self._change(name).proposer.proposal
        if proposal is None or not isinstance(frame, Propose):
            return in_words(frame)
        return f"{in_words(frame)} of {', '.join(map(str, proposal.members))}"

    def _kill(self, name: str) -> None:
        self._process(name).crash()
        self._tell(f"{name} crashes")
        self.world.clock.after(SUSPECT_MS, self._miss)

    def _miss(self) -> None:
        """Everybody learns who is gone, once in every view that has it."""
        for name in self._living():
            view = self._change(name).view
            for who in view:
                process = self.world.processes.get(who.address)
                knows = name, view.id, who
                if process is not None and not process.is_up and knows not in self._told:
                    self._told.add(knows)
                    self._node(name).effects.signal(Suspected(who, "it is gone"))
                    self._settle(name)
        if not self._is_one():
            self.world.clock.after(SUSPECT_MS, self._miss)

    # What applications do

    def _see(self, me: Member, event: Event) -> None:
        clock = self.world.clock
        self.applications.see(me, event)
        match event:
            case ViewInstalled(view):
                self._tell(f"{me} is in {view}")
                if self._is_on:
                    clock.at(clock.now, self._want, me.name, 10)  # all of the view get it
            case Writable(None):
                clock.at(clock.now, self._offer, me.name)
            case StateWanted(transfer):
                chunks = [each.ljust(400, b"\n") for each in self.applications.state[me]]
                clock.at(clock.now, self._provide, me.name, transfer, sorted(chunks))

    def _want(self, name: str, size: int) -> None:
        """One more message on each stream."""
        for stream in self.script.streams:
            self.applications.want(_member(name), stream, size)
        self._offer(name)

    def _offer(self, name: str) -> None:
        process, layer = self._process(name), self._node(name).membership
        assert layer is not None
        if process.can_act and not layer.is_leaving:
            for stream, backlog in self.applications.backlog[_member(name)].items():
                if backlog:
                    for _ in range(process.node.send(list(backlog), process.now, stream=stream)):
                        backlog.popleft()
            process.turn()

    def _provide(self, name: str, transfer: int, chunks: list[bytes]) -> None:
        process = self._process(name)
        if process.can_act:
            process.node.provide_state(transfer, chunks, process.now, is_last=True)
            process.turn()

    # What there is

    def _look(self, node: Node) -> None:
        """An input is done."""
        self.steps += 1
        change = self._change(node.me.name)
        if self._is_on:
            node.check_invariants()
        if change.is_frozen and self.world.clock.now - change.frozen_since > FROZEN_NS_MAX:
            self.applications.wrong.append("VL3: a member is frozen for too long")

    def _tell(self, what: str, fault: Fault | None = None) -> None:
        if self._is_on and len(self.told) < TOLD_MAX:
            at = (self.world.clock.now - START_NS) / 1e6
            self.told.append(f"{at:7.1f} ms  {what}{'  ' + fault.name if fault else ''}")

    def _is_one(self) -> bool:
        """All that live are in one view, with nobody else, and whoever leaves has left."""
        nodes = [self._node(name) for name in self._living()]
        everybody = {node.me for node in nodes}
        return all(
            node.me.name not in self.script.leaves
            and (node.view is not None and node.view == nodes[0].view)
            and set(node.view) == everybody
            and (node.membership is not None and node.membership.is_idle)
            and not (node.state is not None and node.state.is_behind)
            for node in nodes
        )

    def _is_quiet(self) -> bool:
        return self._is_one() and not self._reasons()

    def _reasons(self) -> list[str]:
        """What waits, and for what."""
        now, living = self.world.clock.now, self._living()
        found = [f"{name}: {why}" for name in living for why in self._node(name).explain(now)]
        backlogs = {name: self.applications.backlog[_member(name)].values() for name in living}
        return found + [f"{name}: cannot send" for name in living if any(backlogs[name])]

    def _living(self) -> list[str]:
        return [_name(address) for address, p in self.world.processes.items() if p.is_up]

    def _process(self, name: str) -> Process[PlainMember]:
        return self.world.processes[_address(name)]

    def _node(self, name: str) -> Node:
        return self._process(name).node

    def _change(self, name: str) -> ViewChange:
        layer = self._node(name).membership
        assert layer is not None
        return layer.change

    def _settle(self, name: str) -> None:
        """Let its layers hear what was signalled."""
        self._node(name).receive_datagrams((), self.world.clock.now)
        self._process(name).turn()


@cache
def _address(name: str) -> Address:
    return Address("10.0.0.1", ord(name))


@cache
def _member(name: str) -> Member:
    return Member(_address(name), 1, name)


def _name(address: Address) -> str:
    return chr(address.port)
