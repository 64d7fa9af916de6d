"""Cluster: a whole group on a virtual clock, from the first view to the last drained window.

A run has phases. `warm`: no faults. `safety`: faults; only what must never happen is judged.
`heal`: all faults off, crashed members stay crashed, sleepers wake, clocks run true, stray packets
expire, and the group comes to one view. `liveness`: delivery bounds apply, applications send a
little more. `end`: nothing may be repeated any more.

Views are made by the simulator's coordinator; in runs of "group" and "uniform" by the nodes.

Nothing here iterates over a set, and all chance comes from the seed: one seed, one trace.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ringcast.config import GroupConfig
from ringcast.model import Address, Member
from ringcast.protocols.repair import NACK_MESSAGES_MAX
from ringcast.sim.application import Giver, Keeper
from ringcast.sim.clock import LocalClock, ns
from ringcast.sim.coordinator import Coordinator
from ringcast.sim.faults import Conditions, seeded_link
from ringcast.sim.gathering import Gathering
from ringcast.sim.harness import Harness, NodeFailure
from ringcast.sim.incidents import Incidents
from ringcast.sim.member import FIRST_PORT, SimulatedMember
from ringcast.sim.nodes import node_factory_for
from ringcast.sim.options import slot_name
from ringcast.sim.recorder import Recorder
from ringcast.sim.seal import ChecksumSeal
from ringcast.sim.workload import EVERYBODY, UNIFORM, Application, Payloads
from ringcast.sim.world import Driving, World
from ringcast.trace.predicates.membership import GroupFacts
from ringcast.trace.predicates.state import state_bound_ns
from ringcast.trace.predicates.uniform_liveness import HeirFacts, UniformFacts, resolve_bound_ns
from ringcast.trace.rows import CRASH, RESUME, Facts, Trace, member_key
from ringcast.wire.codec import Codec

if TYPE_CHECKING:
    from ringcast.model import Digest, View
    from ringcast.node import Node
    from ringcast.sim.coordinator import Seat
    from ringcast.sim.member import SimProcess
    from ringcast.sim.network import Packet
    from ringcast.sim.nodes import NodeFactory
    from ringcast.sim.options import Options

GROUP = "sim"
HOST = "10.0.0.1"
HEAL_STEP_MS = 5.0
HEAL_MAX_MS = 30_000.0
SPREAD_MS = 10.0
"""Applications send their last messages within this time after the network has healed."""
RETURN_MS = 5.0
"""Whoever was excluded starts again within this time."""
CLOCK_START_MAX_NS = 3600 * 10**9
SPELL_SHARE = 0.4
"""How much of its turn a spell of sending takes; the rest is silence."""


class Cluster:
    """One run. Call `run` once; then read `trace`, `recorder` and `conditions`."""

    def __init__(self, options: Options, node_factory: NodeFactory | None = None) -> None:
        self.options = options
        self.random = Random(f"{options.seed} cluster")
        self._driving = Driving(
            self.random,
            batch_share=0.0 if options.has_own_views else 0.5,
            shuffles_doomed=options.has_own_views,
        )
        self.world: World[SimulatedMember] = World(
            partial(seeded_link, options, _slot),
            driving=self._driving,
            hint_ms=options.delta_ms if options.hints else None,
        )
        self.clock = self.world.clock
        self._state_random = Random(f"{options.seed} state")
        self.recorder = Recorder(self.clock)
        self.conditions = Conditions(options, self.world.network, self, _slot)
        self.processes: list[SimProcess] = []
        """Every incarnation there ever was."""
        self._by_member: dict[Member, SimProcess] = {}
        self.coordinator = Coordinator(
            self._seat_of,
            self._post_view,
            self._post_join,
            has_windows=options.protocol == "multicast",
            parts_at=self.recorder.parts_at if options.retain else None,
            digest_before_freeze=options.digest_before_freeze,
        )
        self.gathering = Gathering(self, [_address(slot) for slot in range(options.nodes)])
        self._has_own_views = options.has_own_views
        self._group = self.gathering if self._has_own_views else self.coordinator
        self._incidents = Incidents(self)
        self._node_factory = node_factory or node_factory_for(options.protocol, state=options.state)
        self._payloads = Payloads(options.seed)
        self._seal = ChecksumSeal() if options.has("F6") else None
        # Reads what nodes send; the name matters to nobody.
        wiretapper = Member(Address("wiretap", 0), 1, "wiretap")
        self._wiretap = Codec(GROUP, wiretapper, options.datagram_bytes, self._seal)
        self._incarnations = [0] * options.nodes
        self._returning = 0  # excluded members that are about to start again
        self._is_healing = False
        self._is_stuck = False
        self._gst: int | None = None

    # The run

    def run(self) -> None:
        """All phases. A failing node ends the run early; the trace so far stays."""
        try:
            self._warm()
            self._safety()
            self._heal()
            self._liveness()
        except NodeFailure as failure:
            self.recorder.find("G7", str(failure))
        if self.options.has("F20"):
            self.conditions.log.count("F20", self.conditions.kinds_carried())

    @property
    def trace(self) -> Trace:
        return Trace(self.recorder.rows, self._facts())

    def _facts(self) -> Facts:
        options = self.options
        stopped = [
            member_key(process.resident.harness.me)
            for process in self.processes
            if process.resident.application.rate is not None
        ]
        facts = Facts(
            run=f"seed {options.seed}",
            seed=options.seed,
            protocol=options.protocol,
            tau_ns=ns(max(options.tau_ms)),
            delta_ns=ns(options.delta_ms),
            ack_delay_ns=ns(options.ack_delay_ms),
            purge=self._purge,
            stability_ns=ns(options.stability_ms) if options.has_votes else 0,
            # Nobody asks for more than has a slot.
            nack_messages_max=min(NACK_MESSAGES_MAX, *options.capacities) * options.grow,
            ack_interval_ns=ns(options.ack_delay_ms),
            expiry_ns=ns(options.expiry_ms),
            close_ns=ns(options.close_ms),
            max_retransmit_ns=ns(options.max_retransmit_ms),
            capacity={
                member_key(process.resident.harness.me): options.capacity_max(
                    process.resident.harness.slot
                )
                for process in self.processes
            },
            stopped_members=frozenset(stopped),
            gst_ns=self._gst,
            end_ns=self.clock.now,
        )
        return self._group_facts(facts) if self._has_own_views else facts

    @property
    def _purge(self) -> str:
        return "retained" if self.options.retain else self.options.purge

    def _group_facts(self, facts: Facts) -> GroupFacts:
        late = [
            member_key(each.resident.harness.me)
            for each in self.processes
            if each.resident.was_late
        ]
        kind = HeirFacts if self.options.retain else GroupFacts
        if self.options.has_uniform:
            kind = UniformFacts
        return kind.of(
            facts,
            self.options.membership_config(),
            nodes=self.options.nodes,
            late_members=frozenset(late),
            component={
                member_key(each.resident.harness.me): self.conditions.component(
                    each.resident.harness.slot
                )
                for each in self.processes
            },
            state_ns=self._state_ns(),
        )

    def _state_ns(self) -> int:
        """How long the largest state takes: at the worst, one datagram after the other."""
        options = self.options
        givers = [
            process.resident.giver
            for process in self.processes
            if process.resident.giver is not None
        ]
        chunks = max((giver.keeper.most_chunks for giver in givers), default=0)
        datagrams = -(-max(options.chunk_bytes) // (options.datagram_bytes // 2))
        each = 2 * options.delta_ms + options.ack_delay_ms
        return ns(options.give_ms + chunks * (options.give_ms + datagrams * each))

    def _warm(self) -> None:
        self.recorder.phase("warm")
        if self._has_own_views:
            for slot in range(self.options.initial):
                self.clock.after(self.random.uniform(0, self.options.start_ms), self.join, slot)
        else:
            first = [self.boot(slot) for slot in range(self.options.initial)]
            self.coordinator.begin(tuple(process.resident.harness.me for process in first))
            if self.options.retain:
                self._help_along()
        start = ns(self.options.warm_ms)
        for slot in self.options.senders:
            self._plan_sends(slot, EVERYBODY, start // 2, start + ns(self.options.safety_ms))
        for slot, dest in self.options.pairs:
            self._plan_sends(slot, dest, start // 2, start + ns(self.options.safety_ms))
        self.clock.run_until(start)

    def _help_along(self) -> None:
        """Nobody is let in before all that departed are resolved: see whether they are."""
        self.coordinator.step()
        self.clock.after(HEAL_STEP_MS, self._help_along)

    def _plan_sends(self, slot: int, dest: int, start: int, stop: int) -> None:
        """At any time, or in spells with silence after each."""
        spells = self.options.spells
        if spells > 1:
            turn = (stop - start) // spells
            for spell in range(spells):
                begin = start + spell * turn
                count = self.options.messages // spells + 1
                self._plan_spell(slot, dest, count, begin, begin + round(turn * SPELL_SHARE))
        else:
            self._plan_spell(slot, dest, self.options.messages, start, stop)

    def _plan_spell(self, slot: int, dest: int, left: int, start: int, stop: int) -> None:
        if left <= self.options.burst:
            self.clock.at(start, self._want, slot, self._stream_of(dest), left)
            return
        while left > 0:
            count = min(left, self.random.randint(1, self.options.burst))
            when = self.random.randint(start, stop)
            self.clock.at(when, self._want, slot, self._stream_of(dest), count)
            left -= count

    def _stream_of(self, dest: int) -> int:
        """What is for everybody goes on either stream."""
        share = self.options.uniform
        is_uniform = dest == EVERYBODY and share > 0 and self.random.random() < share
        return UNIFORM if is_uniform else dest

    def _safety(self) -> None:
        self.recorder.phase("safety")
        self.conditions.is_calm = False
        self._driving.poll_ms = self.options.poll_ms
        self._driving.hold_ms = self.options.hold_ms
        start = self.clock.now
        for incident in self.options.incidents:
            self.clock.at(start + ns(incident.at_ms), self._incidents.begin, incident)
        if self.options.stopped >= 0:
            self.clock.after(self.options.safety_ms / 2, self._stop_taking, self.options.stopped)
        self.clock.run_until(start + ns(self.options.safety_ms))

    def _heal(self) -> None:
        self.recorder.phase("heal")
        self._is_healing = True
        self.conditions.is_calm = True
        self._driving.poll_ms = self._driving.hold_ms = 0.0
        self.conditions.cuts.clear()
        if self._has_own_views:
            self.conditions.expire()  # V-L1 counts from here: nothing from before may disturb
        for process in list(self.processes):
            self._cure(process)
        self._group.gather()
        self._wait_for_one_view()
        if not self._has_own_views:
            # What was sent before this is either there or never comes.
            self.conditions.expire()

    def _cure(self, process: SimProcess) -> None:
        if not process.is_alive:
            return
        process.timer_fault = ""
        process.clock.change(self.clock.now)
        process.resident.application.give_up()
        slot = process.resident.harness.slot
        if not (slot == self.options.stopped and process.resident.application.rate == 0):
            process.resident.application.rate = None
        if process.doom is not None:
            self.crash(process)
        elif process.is_paused:
            self.resume(process)
        else:
            process.turn()

    def _wait_for_one_view(self) -> None:
        facts = self._facts()
        limit = ns(HEAL_MAX_MS)
        if isinstance(facts, GroupFacts):
            has_state = self.options.state
            limit = state_bound_ns(facts, self.clock.now) if has_state else facts.one_view_bound_ns
        deadline = self.clock.now + limit
        while not self._is_healed():
            if self.clock.now > deadline:
                self._is_stuck = True
                if not self._has_own_views:  # else V-L1 sees it in the rows
                    self.recorder.find("N-L4", "the group does not come to one view")
                return
            self.clock.run_until(self.clock.now + ns(HEAL_STEP_MS))
            self._group.step()

    def _is_healed(self) -> bool:
        if self._returning or not self._group.is_settled:
            return False
        members = self._group.members()
        return all(
            process.resident.harness.me in members
            or not process.is_alive
            or process.resident.harness.is_closed
            for process in self.processes
        )

    def _liveness(self) -> None:
        """Until everything must have been delivered and acknowledged, then a little longer."""
        if self._is_stuck:
            return
        self.recorder.phase("liveness")
        self._gst = self.clock.now
        for slot, dest in self._late_pairs():
            delay = self.random.uniform(0, SPREAD_MS)
            self.clock.after(delay, self._want, slot, dest, self.options.late_messages)
        self.clock.run_until(self.clock.now + ns(SPREAD_MS) + 1)
        self._let_leave()
        bound = self._quiet_after()
        while self.clock.now < max(self._gst, self.recorder.last_send) + bound:
            self.clock.run_until(max(self._gst, self.recorder.last_send) + bound)
        self._find_blocked()
        self.recorder.phase("end")
        self.clock.run_until(self.clock.now + 2 * ns(max(self.options.tau_ms)))
        for process in self._members():
            process.resident.harness.end()

    def _let_leave(self) -> None:
        """Somebody goes while what it has sent is still under way."""
        leaver = self.options.late_leaver
        process = self.process_in(leaver)
        if process is not None and process.can_act and self.may_go(process):
            process.resident.want(UNIFORM, self.options.late_messages)
            process.resident.leave()

    def _late_pairs(self) -> list[tuple[int, int]]:
        """Who sends to whom once the network has healed."""
        everybody = [(slot, EVERYBODY) for slot in range(self.options.nodes)]
        if self.options.has_uniform:
            everybody += [(slot, UNIFORM) for slot in range(self.options.nodes)]
        if self.options.protocol == "multicast":
            return everybody
        pairs = dict.fromkeys(self.options.pairs)
        pairs.update(dict.fromkeys((dest, slot) for slot, dest in self.options.pairs))
        members = [process.resident.harness.slot for process in self._members()]
        among = [
            pair
            for pair in pairs
            if pair[0] in members and pair[1] in members and pair not in self.conditions.severed
        ]
        return [*everybody, *among] if self._has_own_views else among

    def _quiet_after(self) -> int:
        """How long after the last send everything is delivered, and known to be."""
        facts = self._facts()
        bound = facts.drain_bound_ns(max(self.options.capacities) * self.options.grow)
        if self.options.protocol != "multicast":
            # A receiver may first have to ask where it stands.
            bound += 8 * facts.tau_ns + 8 * facts.delta_ns
        if self.options.protocol == "unicast" and not all(m.is_alive for m in self.processes):
            # The dead are given up at last.
            bound = max(bound, facts.max_retransmit_ns + 4 * facts.tau_ns)
        if isinstance(facts, UniformFacts):
            bound = max(bound, facts.drained_bound_ns)
        if facts.is_retained:
            bound = max(bound, resolve_bound_ns(facts))
        return bound

    def _find_blocked(self) -> None:
        if any(process.resident.application.rate is not None for process in self._members()):
            return  # whoever stops taking holds the others back, and is meant to
        predicate = "S-L1" if self.options.protocol == "unicast" else "N-L3"
        for process in self._members():
            backlogs = process.resident.application.backlogs.items()
            if any(backlog.wanted for dest, backlog in backlogs if self._is_there(dest)):
                self.recorder.find(
                    predicate,
                    f"{process.resident.harness.me} still waits for room though all have taken",
                )

    def _is_there(self, dest: int) -> bool:
        """Whether anybody takes what is for this destination; a late leaver does not."""
        process = self.process_in(dest)
        return process is None or not process.resident.harness.is_closed

    def _members(self) -> list[SimProcess]:
        """Those in the current view that live."""
        processes = map(self.process_of, self._group.members())
        return [process for process in processes if process.is_alive]

    # The applications

    def may_send(self, member: SimulatedMember) -> bool:
        """Messages to the group need a member that is fully in; those to one member only need to
        know its address."""
        if member.node.view is None:
            return False
        return self.options.protocol == "unicast" or self._group.is_member(member.node.me)

    def may_send_to(self, member: SimulatedMember, peer: Member) -> bool:
        """Whoever knows that a member is gone does not write to it any more."""
        view = member.node.view
        return not self._has_own_views or (view is not None and peer in view)

    def _want(self, slot: int, dest: int, count: int) -> None:
        process = self.process_in(slot)
        if process is not None:
            process.resident.want(dest, count)

    def _stop_taking(self, slot: int) -> None:
        process = self.process_in(slot)
        if process is not None and process.is_alive:
            process.resident.application.rate = 0

    # Members come and go

    def process_in(self, slot: int) -> SimProcess | None:
        """The latest incarnation there, dead or alive; None: there never was any."""
        return self.world.processes.get(_address(slot)) if slot >= 0 else None

    def process_of(self, member: Member) -> SimProcess:
        return self._by_member[member]

    def _seat_of(self, member: Member) -> SimulatedMember:
        return self._by_member[member].resident

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
        keeper = self._keeper_of(node)
        harness = Harness(node, slot, self.recorder, self._wiretap, self._codec_of, keeper)
        start = self.random.randrange(CLOCK_START_MAX_NS) if self.options.has("F13") else 0
        application = Application(me, self.options, self._payloads)
        member = SimulatedMember(self, harness, application)
        process = member.process = self.world.add(me.address, member, LocalClock(start))
        if keeper is not None:
            member.giver = Giver(
                member,
                keeper,
                slot,
                options=self.options,
                clock=self.clock,
                conditions=self.conditions,
                random=self._state_random,
            )
        self.processes.append(process)
        self._by_member[me] = process
        return process

    def _keeper_of(self, node: Node) -> Keeper | None:
        """Its application's state, if it has one."""
        has_state = node.state is not None and node.state.has_state
        return Keeper(self.options, self._state_random) if has_state else None

    def _codec_of(self, member: Member) -> Codec:
        return self._by_member[member].resident.harness.node.codec

    def join(self, slot: int) -> None:
        process = self.process_in(slot)
        if process is not None and process.is_alive and not process.resident.harness.is_closed:
            return
        if self._has_own_views and self._is_healing:
            return  # who is away stays away
        self._group.admit(self.boot(slot).resident.harness.me)

    def may_go(self, process: SimProcess) -> bool:
        """Whether the group survives without this one."""
        if not process.is_alive or process.doom is not None:
            return False
        return any(
            other is not process
            and other.is_alive
            and other.doom is None
            and not other.resident.harness.is_closed
            and (self._has_own_views or self.coordinator.is_member(other.resident.harness.me))
            for other in self.processes
        )

    def crash(self, process: SimProcess) -> None:
        if not process.is_alive or (self._has_own_views and process.resident.harness.is_closed):
            return
        process.crash()
        process.resident.harness.note(CRASH)
        detect = self.options.delta_ms if self.conditions.is_calm else self.options.detect_ms
        self.clock.after(detect, self._group.remove, process.resident.harness.me)

    def resume(self, process: SimProcess) -> None:
        """Everything that waited comes at once."""
        if process.is_alive and process.is_paused:
            process.resident.harness.note(RESUME)
            process.resume()
            self._group.step()

    def closed(self, process: SimProcess) -> None:
        """Who is out without having asked for it comes back as another incarnation."""
        if process.resident.harness.may_rejoin:
            self._returning += 1
            self.clock.after(self.random.uniform(0, RETURN_MS), self._return, process)

    def _return(self, process: SimProcess) -> None:
        self._returning -= 1
        slot = process.resident.harness.slot
        if self.process_in(slot) is process:
            self.gathering.admit(self.boot(slot).resident.harness.me, heir_of=process)

    # Views

    def _post_view(self, seat: Seat, view: View) -> None:
        process = self._by_member[seat.harness.me]
        self.clock.after(self._view_delay(), self._install, process, view, None)

    def _post_join(self, seat: Seat, view: View | None, digest: Digest) -> None:
        process = self._by_member[seat.harness.me]
        self.clock.after(self._view_delay(), self._install, process, view, digest)

    def _view_delay(self) -> float:
        longest = self.options.delta_ms if self.conditions.is_calm else self.options.view_ms
        return self.random.uniform(0, longest)

    def _install(self, process: SimProcess, view: View | None, digest: Digest | None) -> None:
        if process.is_paused:
            process.deferred.append(lambda: self._install(process, view, digest))
        if not process.can_act:
            return
        if view is not None:
            # A driver sends what is waiting before the group changes: it may be for the departed.
            process.flush()
            if not process.is_alive:
                return
            process.resident.harness.install_view(view, process.now)
        if digest is not None:
            process.resident.harness.install_digest(digest, process.now)
        process.turn()
        self.coordinator.step()

    # Packets

    def packet_fault(self, event: str, fault: str, packet: Packet, dest: Address) -> None:
        """The network did something to a packet."""
        sender = Member(_address(packet.source), packet.incarnation, packet.sender)
        self._by_member[sender].resident.harness.packet_fault(
            event, fault, packet, slot_name(_slot(dest))
        )


def _address(slot: int) -> Address:
    return Address(HOST, FIRST_PORT + slot)


def _slot(address: Address) -> int:
    return address.port - FIRST_PORT
