"""Cluster: a whole group on a virtual clock, from the first view to the last drained window.

A run has phases. `warm`: no faults. `safety`: faults; only what must never happen is judged.
`heal`: all faults off, crashed members stay crashed, sleepers wake, clocks run true, stray packets
expire, and the group comes to one view. `liveness`: delivery bounds apply, applications send a
little more. `end`: nothing may be repeated any more.

Views are made by the simulator's coordinator; in runs of "group" and "uniform" by the nodes.

Nothing here iterates over a set, and all chance comes from the seed: one seed, one trace.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ringcast.config import GroupConfig
from ringcast.model import Address, Member
from ringcast.protocols.repair import NACK_MESSAGES_MAX
from ringcast.sim.agenda import Agenda, LocalClock, ns
from ringcast.sim.application import Giver, Keeper
from ringcast.sim.coordinator import Coordinator
from ringcast.sim.gathering import Gathering
from ringcast.sim.harness import Harness, NodeFailure
from ringcast.sim.incidents import Incidents
from ringcast.sim.machine import FIRST_PORT, Machine
from ringcast.sim.network import Network
from ringcast.sim.nodes import node_factory_for
from ringcast.sim.options import slot_name
from ringcast.sim.recorder import Recorder
from ringcast.sim.seal import ChecksumSeal
from ringcast.sim.workload import EVERYBODY, UNIFORM, Application, Payloads
from ringcast.trace.predicates.membership import GroupFacts
from ringcast.trace.predicates.state import state_bound_ns
from ringcast.trace.predicates.uniform_liveness import HeirFacts, UniformFacts, resolve_bound_ns
from ringcast.trace.rows import CRASH, Facts, Trace, member_key
from ringcast.wire.codec import Codec

if TYPE_CHECKING:
    from ringcast.model import Digest, View
    from ringcast.node import Node
    from ringcast.sim.coordinator import Seat
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
    """One run. Call `run` once; then read `trace`, `recorder` and `network`."""

    def __init__(self, options: Options, node_factory: NodeFactory | None = None) -> None:
        self.options = options
        self.agenda = Agenda()
        self.random = Random(f"{options.seed} cluster")
        self._state_random = Random(f"{options.seed} state")
        self.recorder = Recorder(self.agenda)
        self.network = Network(options, self.agenda, self, self._arrive)
        self.machines: list[Machine] = []
        """Every incarnation there ever was."""
        self._by_member: dict[Member, Machine] = {}
        self.coordinator = Coordinator(
            self._by_member.__getitem__,
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
        self._slots: list[Machine | None] = [None] * options.nodes
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
            self.network.faults.count("F20", self.network.kinds_carried())

    @property
    def trace(self) -> Trace:
        return Trace(self.recorder.rows, self._facts())

    def _facts(self) -> Facts:
        options = self.options
        stopped = [
            member_key(machine.harness.me)
            for machine in self.machines
            if machine.application.rate is not None
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
                member_key(machine.harness.me): options.capacity_max(machine.harness.slot)
                for machine in self.machines
            },
            stopped_members=frozenset(stopped),
            gst_ns=self._gst,
            end_ns=self.agenda.now,
        )
        return self._group_facts(facts) if self._has_own_views else facts

    @property
    def _purge(self) -> str:
        return "retained" if self.options.retain else self.options.purge

    def _group_facts(self, facts: Facts) -> GroupFacts:
        late = [member_key(each.harness.me) for each in self.machines if each.was_late]
        kind = HeirFacts if self.options.retain else GroupFacts
        if self.options.has_uniform:
            kind = UniformFacts
        return kind.of(
            facts,
            self.options.membership_config(),
            nodes=self.options.nodes,
            late_members=frozenset(late),
            component={
                member_key(each.harness.me): self.network.component(each.harness.slot)
                for each in self.machines
            },
            state_ns=self._state_ns(),
        )

    def _state_ns(self) -> int:
        """How long the largest state takes: at the worst, one datagram after the other."""
        options = self.options
        givers = [machine.giver for machine in self.machines if machine.giver is not None]
        chunks = max((giver.keeper.most_chunks for giver in givers), default=0)
        datagrams = -(-max(options.chunk_bytes) // (options.datagram_bytes // 2))
        each = 2 * options.delta_ms + options.ack_delay_ms
        return ns(options.give_ms + chunks * (options.give_ms + datagrams * each))

    def _warm(self) -> None:
        self.recorder.phase("warm")
        if self._has_own_views:
            for slot in range(self.options.initial):
                self.agenda.after(self.random.uniform(0, self.options.start_ms), self.join, slot)
        else:
            first = [self.boot(slot) for slot in range(self.options.initial)]
            self.coordinator.begin(tuple(machine.harness.me for machine in first))
            if self.options.retain:
                self._help_along()
        start = ns(self.options.warm_ms)
        for slot in self.options.senders:
            self._plan_sends(slot, EVERYBODY, start // 2, start + ns(self.options.safety_ms))
        for slot, dest in self.options.pairs:
            self._plan_sends(slot, dest, start // 2, start + ns(self.options.safety_ms))
        self.agenda.run_until(start)

    def _help_along(self) -> None:
        """Nobody is let in before all that departed are resolved: see whether they are."""
        self.coordinator.step()
        self.agenda.after(HEAL_STEP_MS, self._help_along)

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
            self.agenda.at(start, self._want, slot, self._stream_of(dest), left)
            return
        while left > 0:
            count = min(left, self.random.randint(1, self.options.burst))
            when = self.random.randint(start, stop)
            self.agenda.at(when, self._want, slot, self._stream_of(dest), count)
            left -= count

    def _stream_of(self, dest: int) -> int:
        """What is for everybody goes on either stream."""
        share = self.options.uniform
        is_uniform = dest == EVERYBODY and share > 0 and self.random.random() < share
        return UNIFORM if is_uniform else dest

    def _safety(self) -> None:
        self.recorder.phase("safety")
        self.network.is_calm = False
        start = self.agenda.now
        for incident in self.options.incidents:
            self.agenda.at(start + ns(incident.at_ms), self._incidents.begin, incident)
        if self.options.stopped >= 0:
            self.agenda.after(self.options.safety_ms / 2, self._stop_taking, self.options.stopped)
        self.agenda.run_until(start + ns(self.options.safety_ms))

    def _heal(self) -> None:
        self.recorder.phase("heal")
        self._is_healing = True
        self.network.is_calm = True
        self.network.cuts.clear()
        if self._has_own_views:
            self.network.expire()  # V-L1 counts from here: nothing from before may disturb
        for machine in list(self.machines):
            self._cure(machine)
        self._group.gather()
        self._wait_for_one_view()
        if not self._has_own_views:
            # What was sent before this is either there or never comes.
            self.network.expire()

    def _cure(self, machine: Machine) -> None:
        if not machine.is_alive:
            return
        machine.timer_fault = ""
        machine.clock.change(self.agenda.now)
        machine.application.give_up()
        slot = machine.harness.slot
        if not (slot == self.options.stopped and machine.application.rate == 0):
            machine.application.rate = None
        if machine.doom is not None:
            self.crash(machine)
        elif machine.is_paused:
            self.resume(machine)
        else:
            machine.turn()

    def _wait_for_one_view(self) -> None:
        facts = self._facts()
        limit = ns(HEAL_MAX_MS)
        if isinstance(facts, GroupFacts):
            has_state = self.options.state
            limit = state_bound_ns(facts, self.agenda.now) if has_state else facts.one_view_bound_ns
        deadline = self.agenda.now + limit
        while not self._is_healed():
            if self.agenda.now > deadline:
                self._is_stuck = True
                if not self._has_own_views:  # else V-L1 sees it in the rows
                    self.recorder.find("N-L4", "the group does not come to one view")
                return
            self.agenda.run_until(self.agenda.now + ns(HEAL_STEP_MS))
            self._group.step()

    def _is_healed(self) -> bool:
        if self._returning or not self._group.is_settled:
            return False
        members = self._group.members()
        return all(
            machine.harness.me in members or not machine.is_alive or machine.harness.is_closed
            for machine in self.machines
        )

    def _liveness(self) -> None:
        """Until everything must have been delivered and acknowledged, then a little longer."""
        if self._is_stuck:
            return
        self.recorder.phase("liveness")
        self._gst = self.agenda.now
        for slot, dest in self._late_pairs():
            delay = self.random.uniform(0, SPREAD_MS)
            self.agenda.after(delay, self._want, slot, dest, self.options.late_messages)
        self.agenda.run_until(self.agenda.now + ns(SPREAD_MS) + 1)
        self._let_leave()
        bound = self._quiet_after()
        while self.agenda.now < max(self._gst, self.recorder.last_send) + bound:
            self.agenda.run_until(max(self._gst, self.recorder.last_send) + bound)
        self._find_blocked()
        self.recorder.phase("end")
        self.agenda.run_until(self.agenda.now + 2 * ns(max(self.options.tau_ms)))
        for machine in self._members():
            machine.harness.end()

    def _let_leave(self) -> None:
        """Somebody goes while what it has sent is still under way."""
        leaver = self.options.late_leaver
        machine = self._slots[leaver] if leaver >= 0 else None
        if machine is not None and machine.can_act and self.may_go(machine):
            machine.want(UNIFORM, self.options.late_messages)
            machine.leave()

    def _late_pairs(self) -> list[tuple[int, int]]:
        """Who sends to whom once the network has healed."""
        everybody = [(slot, EVERYBODY) for slot in range(self.options.nodes)]
        if self.options.has_uniform:
            everybody += [(slot, UNIFORM) for slot in range(self.options.nodes)]
        if self.options.protocol == "multicast":
            return everybody
        pairs = dict.fromkeys(self.options.pairs)
        pairs.update(dict.fromkeys((dest, slot) for slot, dest in self.options.pairs))
        members = [machine.harness.slot for machine in self._members()]
        among = [
            pair
            for pair in pairs
            if pair[0] in members and pair[1] in members and pair not in self.network.severed
        ]
        return [*everybody, *among] if self._has_own_views else among

    def _quiet_after(self) -> int:
        """How long after the last send everything is delivered, and known to be."""
        facts = self._facts()
        bound = facts.drain_bound_ns(max(self.options.capacities) * self.options.grow)
        if self.options.protocol != "multicast":
            # A receiver may first have to ask where it stands.
            bound += 8 * facts.tau_ns + 8 * facts.delta_ns
        if self.options.protocol == "unicast" and not all(m.is_alive for m in self.machines):
            # The dead are given up at last.
            bound = max(bound, facts.max_retransmit_ns + 4 * facts.tau_ns)
        if isinstance(facts, UniformFacts):
            bound = max(bound, facts.drained_bound_ns)
        if facts.is_retained:
            bound = max(bound, resolve_bound_ns(facts))
        return bound

    def _find_blocked(self) -> None:
        if any(machine.application.rate is not None for machine in self._members()):
            return  # whoever stops taking holds the others back, and is meant to
        predicate = "S-L1" if self.options.protocol == "unicast" else "N-L3"
        for machine in self._members():
            backlogs = machine.application.backlogs.items()
            if any(backlog.wanted for dest, backlog in backlogs if self._is_there(dest)):
                self.recorder.find(
                    predicate, f"{machine.harness.me} still waits for room though all have taken"
                )

    def _is_there(self, dest: int) -> bool:
        """Whether anybody takes what is for this destination; a late leaver does not."""
        machine = self._slots[dest] if dest >= 0 else None
        return machine is None or not machine.harness.is_closed

    def _members(self) -> list[Machine]:
        """Those in the current view that live."""
        machines = map(self.machine_of, self._group.members())
        return [machine for machine in machines if machine.is_alive]

    # The applications

    def may_send(self, machine: Machine) -> bool:
        """Messages to the group need a member that is fully in; those to one member only need to
        know its address."""
        if machine.harness.node.view is None:
            return False
        return self.options.protocol == "unicast" or self._group.is_member(machine.harness.me)

    def may_send_to(self, machine: Machine, peer: Member) -> bool:
        """Whoever knows that a member is gone does not write to it any more."""
        view = machine.harness.node.view
        return not self._has_own_views or (view is not None and peer in view)

    def _want(self, slot: int, dest: int, count: int) -> None:
        machine = self._slots[slot]
        if machine is not None:
            machine.want(dest, count)

    def _stop_taking(self, slot: int) -> None:
        machine = self._slots[slot]
        if machine is not None and machine.is_alive:
            machine.application.rate = 0

    # Members come and go

    def machine_in(self, slot: int) -> Machine | None:
        """The latest incarnation there, dead or alive."""
        return self._slots[slot]

    def machine_of(self, member: Member) -> Machine:
        return self._by_member[member]

    def boot(self, slot: int) -> Machine:
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
        harness = Harness(node, slot, self.recorder, self._wiretap, keeper)
        start = self.random.randrange(CLOCK_START_MAX_NS) if self.options.has("F13") else 0
        application = Application(me, self.options, self._payloads)
        machine = Machine(self, harness, LocalClock(start), application)
        if keeper is not None:
            machine.giver = Giver(
                machine,
                keeper,
                slot,
                options=self.options,
                agenda=self.agenda,
                network=self.network,
                random=self._state_random,
            )
        self.machines.append(machine)
        self._by_member[me] = machine
        self._slots[slot] = machine
        return machine

    def _keeper_of(self, node: Node) -> Keeper | None:
        """Its application's state, if it has one."""
        has_state = node.state is not None and node.state.has_state
        return Keeper(self.options, self._state_random) if has_state else None

    def join(self, slot: int) -> None:
        machine = self._slots[slot]
        if machine is not None and machine.is_alive and not machine.harness.is_closed:
            return
        if self._has_own_views and self._is_healing:
            return  # who is away stays away
        self._group.admit(self.boot(slot).harness.me)

    def may_go(self, machine: Machine) -> bool:
        """Whether the group survives without this one."""
        if not machine.is_alive or machine.doom is not None:
            return False
        return any(
            other is not machine
            and other.is_alive
            and other.doom is None
            and not other.harness.is_closed
            and (self._has_own_views or self.coordinator.is_member(other.harness.me))
            for other in self.machines
        )

    def crash(self, machine: Machine) -> None:
        if not machine.is_alive or (self._has_own_views and machine.harness.is_closed):
            return
        machine.is_alive = False
        machine.arrivals.clear()
        machine.harness.note(CRASH)
        detect = self.options.delta_ms if self.network.is_calm else self.options.detect_ms
        self.agenda.after(detect, self._group.remove, machine.harness.me)

    def resume(self, machine: Machine) -> None:
        if machine.resume():
            self._group.step()

    def closed(self, machine: Machine) -> None:
        """Who is out without having asked for it comes back as another incarnation."""
        if machine.harness.may_rejoin:
            self._returning += 1
            self.agenda.after(self.random.uniform(0, RETURN_MS), self._return, machine)

    def _return(self, machine: Machine) -> None:
        self._returning -= 1
        slot = machine.harness.slot
        if self._slots[slot] is machine:
            self.gathering.admit(self.boot(slot).harness.me, heir_of=machine)

    # Views

    def _post_view(self, seat: Seat, view: View) -> None:
        machine = self._by_member[seat.harness.me]
        self.agenda.after(self._view_delay(), self._install, machine, view, None)

    def _post_join(self, seat: Seat, view: View | None, digest: Digest) -> None:
        machine = self._by_member[seat.harness.me]
        self.agenda.after(self._view_delay(), self._install, machine, view, digest)

    def _view_delay(self) -> float:
        longest = self.options.delta_ms if self.network.is_calm else self.options.view_ms
        return self.random.uniform(0, longest)

    def _install(self, machine: Machine, view: View | None, digest: Digest | None) -> None:
        if machine.is_paused:
            machine.deferred.append(lambda: self._install(machine, view, digest))
        if not machine.can_act:
            return
        if view is not None:
            # A driver sends what is waiting before the group changes: it may be for the departed.
            machine.flush()
            if not machine.is_alive:
                return
            machine.harness.install_view(view, machine.now)
        if digest is not None:
            machine.harness.install_digest(digest, machine.now)
        machine.turn()
        self.coordinator.step()

    # Packets

    def _arrive(self, slot: int, packet: Packet) -> None:
        machine = self._slots[slot]
        if machine is not None and machine.is_alive and not machine.harness.is_closed:
            machine.arrive(packet)
        elif self.options.hints:
            self.agenda.after(self.options.delta_ms, self._refuse, packet, _address(slot))

    def _refuse(self, packet: Packet, address: Address) -> None:
        """The sender learns that nobody listened there."""
        machine = self._slots[packet.source]
        if machine is None or machine.harness.me.incarnation != packet.incarnation:
            return
        if machine.can_act:
            machine.harness.transport_hint(address, machine.now)
            machine.turn()

    def packet_fault(self, event: str, fault: str, packet: Packet, dest: int) -> None:
        """The network did something to a packet."""
        sender = Member(_address(packet.source), packet.incarnation, packet.sender)
        self._by_member[sender].harness.packet_fault(event, fault, packet, slot_name(dest))


def _address(slot: int) -> Address:
    return Address(HOST, FIRST_PORT + slot)
