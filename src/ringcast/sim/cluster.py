"""Cluster: a whole group in a virtual world. `sim/phases.py` says what it goes through.

Nothing here iterates over a set, and all chance comes from the seed: one seed, one trace.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from ringcast.config import GroupConfig
from ringcast.model import Address, Member, Stream
from ringcast.node import build_node
from ringcast.protocols.failure import FailureDetector
from ringcast.sim.clock import LocalClock
from ringcast.sim.facts import facts_of
from ringcast.sim.faults import Conditions, seeded_link
from ringcast.sim.gathering import Gathering, Oracle
from ringcast.sim.harness import Recorder
from ringcast.sim.incidents import Incidents
from ringcast.sim.member import FIRST_PORT, SimulatedMember
from ringcast.sim.network import ChecksumSeal
from ringcast.sim.options import slot_name
from ringcast.sim.phases import Phases
from ringcast.sim.workload import Payloads
from ringcast.sim.world import Driving, World
from ringcast.trace.rows import CRASH, RESUME, Trace
from ringcast.wire.codec import Codec

if TYPE_CHECKING:
    from ringcast.node import Node
    from ringcast.sim.member import SimProcess
    from ringcast.sim.network import Packet
    from ringcast.sim.options import Options
    from ringcast.wire.seal import DatagramSeal

GROUP = "sim"
HOST = "10.0.0.1"
CLOCK_START_MAX_NS = 3600 * 10**9


class NodeFactory(Protocol):
    """Makes nodes: a real one, or a broken one that must be caught."""

    def __call__(self, me: Member, config: GroupConfig, *, seal: DatagramSeal | None) -> Node: ...


def node_factory_for(options: Options) -> NodeFactory:
    """Nodes as a run has them."""
    has_uniform, has_detector = options.has_uniform, options.has_detector
    return partial(
        build_node,
        streams=(Stream.FIFO, Stream.UNIFORM) if has_uniform else (Stream.FIFO,),
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
        self.conditions = Conditions(
            options, self.world.network, self, _slot, self.incidents.happen
        )
        self.processes: list[SimProcess] = []
        """Every incarnation there ever was."""
        self._by_member: dict[Member, SimProcess] = {}
        self.gathering = Gathering(self, [_address(slot) for slot in range(options.nodes)])
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

    # The applications

    def may_send(self, member: SimulatedMember) -> bool:
        """Messages to the group need a member that stays; those to one member only need to know its
        address."""
        if member.node.view is None:
            return False
        return self.options.protocol == "unicast" or self.gathering.is_member(member.node.me)

    def may_send_to(self, member: SimulatedMember, peer: Member) -> bool:
        """Whoever knows that a member is gone does not write to it any more."""
        view = member.node.view
        return self.options.protocol == "unicast" or (view is not None and peer in view)

    # Members come and go

    def process_in(self, slot: int) -> SimProcess | None:
        """The latest incarnation there, dead or alive; None: there never was any."""
        return self.world.processes.get(_address(slot)) if slot >= 0 else None

    def process_of(self, member: Member) -> SimProcess:
        return self._by_member[member]

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
        process = self.process_in(slot)
        if process is not None and process.is_up:
            return
        if not self.is_healing:  # who is away then stays away
            self.gathering.admit(self.boot(slot))

    def may_go(self, process: SimProcess) -> bool:
        """Whether the group survives without this one."""
        if not process.is_alive or process.doom is not None:
            return False
        return any(
            other is not process and other.is_up and other.doom is None for other in self.processes
        )

    def crash(self, process: SimProcess) -> None:
        if not process.is_up:
            return
        process.crash()
        process.resident.note(CRASH)
        self.oracle.gone(process)

    def resume(self, process: SimProcess) -> None:
        """Everything that waited comes at once."""
        if process.is_alive and process.is_paused:
            process.resident.note(RESUME)
            process.resume()

    # Packets

    def packet_fault(self, event: str, fault: str, packet: Packet, dest: Address) -> None:
        """The network did something to a packet."""
        sender = Member(_address(packet.source), packet.incarnation, packet.sender)
        self._by_member[sender].resident.packet_fault(event, fault, packet, slot_name(_slot(dest)))


def _address(slot: int) -> Address:
    return Address(HOST, FIRST_PORT + slot)


def _slot(address: Address) -> int:
    return address.port - FIRST_PORT
