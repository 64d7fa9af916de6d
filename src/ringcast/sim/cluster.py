"""Cluster: a whole group in a virtual world. `sim/phases.py` says what it goes through.

Nodes find each other and make their own views: the cluster starts them, tells them where others may
be, and knows when all that live are in one view. Nothing here iterates over a set, and all chance
comes from the seed: one seed, one trace.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Protocol

from ringcast.config import GroupConfig
from ringcast.core.shared import Phase
from ringcast.model import Address, Member, Origin, Stream
from ringcast.node import Node, build_node
from ringcast.protocols.failure import FailureDetector
from ringcast.sim.clock import LocalClock
from ringcast.sim.facts import facts_of
from ringcast.sim.faults import Conditions, seeded_link
from ringcast.sim.harness import Recorder
from ringcast.sim.incidents import Incidents
from ringcast.sim.member import FIRST_PORT, SimProcess, SimulatedMember
from ringcast.sim.network import ChecksumSeal
from ringcast.sim.options import Options, slot_name
from ringcast.sim.oracle import Oracle
from ringcast.sim.phases import Phases
from ringcast.sim.workload import Payloads
from ringcast.sim.world import Driving, World
from ringcast.trace.rows import CRASH, RESUME, Trace
from ringcast.wire.codec import Codec
from ringcast.wire.seal import DatagramSeal

GROUP = "sim"
HOST = "10.0.0.1"
CLOCK_START_MAX_NS = 3600 * 10**9


class NodeFactory(Protocol):
    """Makes nodes: a real one, or a broken one that must be caught."""

    def __call__(self, me: Member, config: GroupConfig, *, seal: DatagramSeal | None) -> Node: ...


def node_factory_for(options: Options) -> NodeFactory:
    """Nodes as a run has them."""
    second, has_detector = options.second, options.has_detector
    return partial(
        build_node,
        streams=(Stream.FIFO,) if second is None else (Stream.FIFO, second),
        detector=FailureDetector if has_detector else None,
        state=options.state,
    )


class Cluster:
    """One run. Call `run` once; then read `trace`, `recorder` and `conditions`."""

    def __init__(self, options: Options, node_factory: NodeFactory | None = None) -> None:
        self.options = options
        self.random = Random(f"{options.seed} cluster")
        self.driving = Driving(self.random, batch_share=0.5, shuffles_doomed=True)
        self.world: World[SimulatedMember] = World(
            partial(seeded_link, options, _slot),
            driving=self.driving,
            hint_ms=options.delta_ms if options.hints else None,
        )
        self.clock = self.world.clock
        self.state_random = Random(f"{options.seed} state")
        self.recorder = Recorder(self.clock)
        self.incidents = Incidents(self)
        self.conditions = Conditions(options, self.world.network, _slot, self.incidents.happen)
        self.processes: list[SimProcess] = []
        """Every incarnation there ever was."""
        self._by_member: dict[Member, SimProcess] = {}
        self.oracle = Oracle(self)
        self._node_factory = node_factory or node_factory_for(options)
        self.payloads = Payloads(options.seed)
        self._seal = ChecksumSeal() if options.has("F6") else None
        # Reads what nodes send; the name matters to nobody.
        wiretapper = Member(Address("wiretap", 0), 1, "wiretap")
        self.wiretap = Codec(GROUP, wiretapper, options.datagram_bytes)
        self._incarnations = [0] * options.nodes
        self.is_healing = False
        self.gst: int | None = None

    # The run

    def run(self) -> None:
        """All phases, once."""
        Phases(self).run()

    @property
    def trace(self) -> Trace:
        return Trace(self.recorder.rows, facts_of(self))

    # Who is there

    @property
    def living(self) -> list[SimProcess]:
        """Who lives and has not left, in the group or on the way to it."""
        return [process for process in self.processes if process.is_up]

    def coordinator(self) -> SimProcess | None:
        """Whoever makes views for the largest group, as most members see it."""
        memberships = [process.node.membership for process in self.living]
        named = [each.coordinator for each in memberships if each is not None]
        reports = Counter(who for who in named if who is not None)
        return self._by_member[max(reports, key=lambda who: reports[who])] if reports else None

    @property
    def has_one_view(self) -> bool:
        """Everybody who lives is in one view of exactly those, and nothing is being changed. So it
        is in each component, if some cannot hear each other."""
        components: dict[int, list[SimProcess]] = {}
        for process in self.living:
            component = self.conditions.component(process.resident.slot)
            components.setdefault(component, []).append(process)
        return all(map(_are_one, components.values()))

    def process_in(self, slot: int) -> SimProcess | None:
        """The latest incarnation there, dead or alive; None: there never was any."""
        return self.world.processes.get(_address(slot)) if slot >= 0 else None

    def process_of(self, member: Member) -> SimProcess:
        return self._by_member[member]

    # Members come and go

    def boot(self, slot: int) -> SimProcess:
        self._incarnations[slot] += 1
        me = Member(_address(slot), self._incarnations[slot], slot_name(slot))
        config = GroupConfig(
            group=GROUP,
            name=me.name,
            multicast=self.options.multicast_config(slot),
            unicast=self.options.unicast_config(slot),
            membership=self.options.membership_config(),
        )
        node = self._node_factory(me, config, seal=self._seal)
        start = self.random.randrange(CLOCK_START_MAX_NS) if self.options.has("F13") else 0
        member = SimulatedMember(self, node, slot)
        process = member.process = self.world.add(me.address, member, LocalClock(start))
        self.processes.append(process)
        self._by_member[me] = process
        return process

    def join(self, slot: int) -> None:
        """Start a node. It knows some addresses, the nearest; the others it learns later."""
        process = self.process_in(slot)
        if (process is not None and process.is_up) or self.is_healing:  # who is away stays away
            return
        process = self.boot(slot)
        process.resident.call(process.node.start, process.now)
        self.tell_addresses(process, self.options.told)
        if self.options.told < 1:
            self.clock.after(self.options.told_ms, self.tell_addresses, process)

    def tell_addresses(self, process: SimProcess, share: float = 1.0) -> None:
        if process.can_act:
            slot, count = process.resident.slot, self.options.nodes
            others = [_address((slot + step) % count) for step in range(1, count)]
            known = others[: round(share * count)]
            process.resident.call(process.node.add_candidates, known, process.now)
            process.turn()

    def may_go(self, process: SimProcess) -> bool:
        """Whether the group survives without this one."""
        if not process.is_alive or process.doom is not None:
            return False
        return any(other is not process and other.doom is None for other in self.living)

    def crash(self, process: SimProcess) -> None:
        if not process.is_up:
            return
        process.crash()
        process.resident.sink.write(CRASH)
        self.oracle.gone(process)

    def resume(self, process: SimProcess) -> None:
        """Everything that waited comes at once."""
        if process.is_alive and process.is_paused:
            process.resident.sink.write(RESUME)
            process.resume()


def _are_one(processes: list[SimProcess]) -> bool:
    views = [process.node.view for process in processes]
    everybody = {process.resident.me for process in processes}
    return all(
        view is not None and view == views[0] and set(view) == everybody for view in views
    ) and all(map(_is_at_rest, processes))


def _is_at_rest(process: SimProcess) -> bool:
    """In the group with all windows open, and waiting for nothing."""
    node, windows = process.node, process.node.multicast.windows()
    assert node.membership is not None
    return (
        node.membership.phase is Phase.MEMBER
        and node.membership.is_idle
        and not (node.state is not None and node.state.is_behind)
        and all(
            Origin(member, stream) in windows
            for member in node.view or ()
            for stream in node.multicast.streams
            if stream is not Stream.TOTAL
        )
    )


def _address(slot: int) -> Address:
    return Address(HOST, FIRST_PORT + slot)


def _slot(address: Address) -> int:
    return address.port - FIRST_PORT
