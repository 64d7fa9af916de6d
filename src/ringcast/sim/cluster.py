"""Cluster: a whole group on a virtual clock, from the first view to the last drained window.

A run has phases. `warm`: no faults. `safety`: faults; only what must never happen is judged.
`heal`: all faults off, crashed members stay crashed, sleepers wake, clocks run true, stray packets
expire, and the group comes to one view. `liveness`: delivery bounds apply, applications send a
little more. `end`: nothing may be repeated any more.

Nothing here iterates over a set, and all chance comes from the seed: one seed, one trace.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ringcast.config import GroupConfig
from ringcast.events import Delivered, FragmentsTaken, Writable
from ringcast.model import Address, Member
from ringcast.node import Node
from ringcast.protocols.inbox import NACK_MESSAGES_MAX
from ringcast.sim.agenda import Agenda, LocalClock, ns
from ringcast.sim.coordinator import Coordinator
from ringcast.sim.harness import Harness, NodeFailure
from ringcast.sim.network import Network
from ringcast.sim.options import slot_name
from ringcast.sim.recorder import Recorder
from ringcast.sim.seal import ChecksumSeal
from ringcast.sim.workload import Application, Payloads
from ringcast.trace.rows import CRASH, PAUSE, RESUME, Facts, Trace, member_key
from ringcast.wire.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from ringcast.model import Digest, View
    from ringcast.sim.coordinator import Seat
    from ringcast.sim.network import Packet
    from ringcast.sim.options import Incident, Options
    from ringcast.wire.codec import DatagramSeal

    class NodeFactory(Protocol):
        """Makes nodes: Node itself, or a broken one that must be caught."""

        def __call__(
            self, me: Member, config: GroupConfig, *, seal: DatagramSeal | None
        ) -> Node: ...


GROUP = "sim"
OFFER_MAX = 100
"""Messages offered to a node in one call."""
SOCKET_PACKETS_MAX = 500
"""Packets that wait for a paused member; more are lost, as in a full socket buffer."""
DOOM_MS = 20.0
"""A member that is to crash in the middle of its next multicast crashes at the latest then."""
HEAL_STEP_MS = 5.0
HEAL_MAX_MS = 30_000.0
SPREAD_MS = 10.0
"""Applications send their last messages within this time after the network has healed."""
CLOCK_START_MAX_NS = 3600 * 10**9


class Machine:
    """One incarnation of a node: its harness, its clock, its application, and what ails it."""

    def __init__(self, harness: Harness, clock: LocalClock, application: Application) -> None:
        self.harness = harness
        self.clock = clock
        self.application = application
        self.is_alive = True
        self.is_paused = False
        self.doom: int | None = None
        """Copies of datagrams that still leave before the crash."""
        self.timer_fault = ""
        self.timer_late = 0
        self.wake_at: int | None = None
        self.arrivals: list[Packet] = []
        self.is_polling = False
        self.is_holding = False
        self.deferred: list[Callable[[], None]] = []

    @property
    def can_act(self) -> bool:
        return self.is_alive and not self.is_paused and not self.harness.is_closed


class Cluster:
    """One run. Call `run` once; then read `trace`, `recorder` and `network`."""

    def __init__(self, options: Options, node_factory: NodeFactory = Node) -> None:
        self.options = options
        self.agenda = Agenda()
        self.recorder = Recorder(self.agenda)
        self.network = Network(options, self.agenda, self, self._arrive)
        self.machines: list[Machine] = []
        """Every incarnation there ever was."""
        self._node_factory = node_factory
        self._random = Random(f"{options.seed} cluster")
        self._payloads = Payloads(options.seed)
        self._seal = ChecksumSeal() if options.has("F6") else None
        # Reads what nodes send; the name matters to nobody.
        wiretapper = Member(Address("wiretap", 0), 1, "wiretap")
        self._wiretap = Codec(GROUP, wiretapper, options.datagram_bytes, self._seal)
        self._by_member: dict[Member, Machine] = {}
        self._slots: list[Machine | None] = [None] * options.nodes
        self._incarnations = [0] * options.nodes
        self._coordinator = Coordinator(
            self._by_member.__getitem__,
            self._post_view,
            self._post_join,
            digest_before_freeze=options.digest_before_freeze,
        )
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
        options = self.options
        stopped = [
            member_key(machine.harness.me)
            for machine in self.machines
            if machine.application.rate is not None
        ]
        return Trace(
            self.recorder.rows,
            Facts(
                run=f"seed {options.seed}",
                seed=options.seed,
                tau_ns=ns(max(options.tau_ms)),
                delta_ns=ns(options.delta_ms),
                ack_delay_ns=ns(options.ack_delay_ms),
                # Nobody asks for more than has a slot.
                nack_messages_max=min(NACK_MESSAGES_MAX, *options.capacities),
                capacity={
                    member_key(machine.harness.me): options.capacities[machine.harness.slot]
                    for machine in self.machines
                },
                stopped_members=frozenset(stopped),
                gst_ns=self._gst,
                end_ns=self.agenda.now,
            ),
        )

    def _warm(self) -> None:
        self.recorder.phase("warm")
        first = [self._boot(slot) for slot in range(self.options.initial)]
        self._coordinator.begin(tuple(machine.harness.me for machine in first))
        start = ns(self.options.warm_ms)
        self._plan_sends(start // 2, start + ns(self.options.safety_ms))
        self.agenda.run_until(start)

    def _plan_sends(self, start: int, stop: int) -> None:
        for slot in self.options.senders:
            left = self.options.messages
            if left <= self.options.burst:
                self.agenda.at(start, self._want, slot, left)
                continue
            while left > 0:
                count = min(left, self._random.randint(1, self.options.burst))
                self.agenda.at(self._random.randint(start, stop), self._want, slot, count)
                left -= count

    def _safety(self) -> None:
        self.recorder.phase("safety")
        self.network.is_calm = False
        start = self.agenda.now
        for incident in self.options.incidents:
            self.agenda.at(start + ns(incident.at_ms), self._begin_incident, incident)
        if self.options.stopped >= 0:
            self.agenda.after(self.options.safety_ms / 2, self._stop_taking, self.options.stopped)
        self.agenda.run_until(start + ns(self.options.safety_ms))

    def _heal(self) -> None:
        self.recorder.phase("heal")
        self.network.is_calm = True
        self.network.cuts.clear()
        for machine in self.machines:
            self._cure(machine)
        deadline = self.agenda.now + ns(HEAL_MAX_MS)
        while not self._is_healed():
            if self.agenda.now >= deadline:
                self.recorder.find("N-L4", "the group does not come to one view")
                return
            self.agenda.run_until(self.agenda.now + ns(HEAL_STEP_MS))
            self._coordinator.step()
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
            self._crash(machine)
        elif machine.is_paused:
            self._resume(machine)
        else:
            self._turn(machine)

    def _is_healed(self) -> bool:
        if not self._coordinator.is_settled:
            return False
        view = self._coordinator.view
        return all(
            machine.harness.me in view or not machine.is_alive or machine.harness.is_closed
            for machine in self.machines
        )

    def _liveness(self) -> None:
        """Until everything must have been delivered and acknowledged, then a little longer."""
        if self.recorder.findings and self.recorder.findings[-1].predicate == "N-L4":
            return
        self.recorder.phase("liveness")
        self._gst = self.agenda.now
        for slot in range(self.options.nodes):
            delay = self._random.uniform(0, SPREAD_MS)
            self.agenda.after(delay, self._want, slot, self.options.late_messages)
        self.agenda.run_until(self.agenda.now + ns(SPREAD_MS) + 1)
        bound = self.trace.facts.drain_bound_ns(max(self.options.capacities))
        while self.agenda.now < max(self._gst, self.recorder.last_send) + bound:
            self.agenda.run_until(max(self._gst, self.recorder.last_send) + bound)
        self._find_blocked()
        self.recorder.phase("end")
        self.agenda.run_until(self.agenda.now + 2 * ns(max(self.options.tau_ms)))

    def _find_blocked(self) -> None:
        if any(machine.application.rate is not None for machine in self._members()):
            return  # whoever stops taking holds the others back, and is meant to
        for machine in self._members():
            if machine.application.wanted:
                self.recorder.find(
                    "N-L3", f"{machine.harness.me} still waits for room though all have taken"
                )

    def _members(self) -> list[Machine]:
        """Those in the current view that live."""
        return [
            self._by_member[member]
            for member in self._coordinator.view
            if self._by_member[member].is_alive
        ]

    # Members come and go

    def _boot(self, slot: int) -> Machine:
        self._incarnations[slot] += 1
        me = Member(Address("10.0.0.1", 7800 + slot), self._incarnations[slot], slot_name(slot))
        config = GroupConfig(group=GROUP, name=me.name, multicast=self.options.config(slot))
        node = self._node_factory(me, config, seal=self._seal)
        harness = Harness(node, slot, self.recorder, self._wiretap)
        start = self._random.randrange(CLOCK_START_MAX_NS) if self.options.has("F13") else 0
        machine = Machine(harness, LocalClock(start), Application(me, self.options, self._payloads))
        self.machines.append(machine)
        self._by_member[me] = machine
        self._slots[slot] = machine
        return machine

    def _join(self, slot: int) -> None:
        machine = self._slots[slot]
        if machine is not None and machine.is_alive and not machine.harness.is_closed:
            return
        self._coordinator.admit(self._boot(slot).harness.me)

    def _may_go(self, machine: Machine | None) -> bool:
        """Whether the group survives without this one."""
        if machine is None or not machine.is_alive or machine.doom is not None:
            return False
        return any(
            other is not machine
            and other.is_alive
            and other.doom is None
            and not other.harness.is_closed
            and self._coordinator.is_member(other.harness.me)
            for other in self.machines
        )

    def _crash(self, machine: Machine) -> None:
        if not machine.is_alive:
            return
        machine.is_alive = False
        machine.arrivals.clear()
        machine.harness.note(CRASH)
        detect = self.options.delta_ms if self.network.is_calm else self.options.detect_ms
        self.agenda.after(detect, self._coordinator.remove, machine.harness.me)

    def _pause(self, machine: Machine) -> None:
        machine.is_paused = True
        machine.harness.note(PAUSE)

    def _resume(self, machine: Machine) -> None:
        """Everything that waited comes at once."""
        if not machine.is_alive or not machine.is_paused:
            return
        machine.is_paused = False
        machine.harness.note(RESUME)
        deferred, machine.deferred = machine.deferred, []
        for action in deferred:
            action()
        self._poll(machine)
        self._turn(machine)
        self._coordinator.step()

    # Views

    def _post_view(self, seat: Seat, view: View) -> None:
        machine = self._by_member[seat.harness.me]
        self.agenda.after(self._view_delay(), self._install, machine, view, None)

    def _post_join(self, seat: Seat, view: View | None, digest: Digest) -> None:
        machine = self._by_member[seat.harness.me]
        self.agenda.after(self._view_delay(), self._install, machine, view, digest)

    def _view_delay(self) -> float:
        longest = self.options.delta_ms if self.network.is_calm else self.options.view_ms
        return self._random.uniform(0, longest)

    def _install(self, machine: Machine, view: View | None, digest: Digest | None) -> None:
        if machine.is_paused:
            machine.deferred.append(lambda: self._install(machine, view, digest))
        if not machine.can_act:
            return
        now = machine.clock.read(self.agenda.now)
        if view is not None:
            # A driver sends what is waiting before the group changes: it may be for the departed.
            self._flush(machine)
            if not machine.is_alive:
                return
            machine.harness.install_view(view, now)
        if digest is not None:
            machine.harness.install_digest(digest, now)
        self._turn(machine)
        self._coordinator.step()

    # Packets

    def _arrive(self, slot: int, packet: Packet) -> None:
        machine = self._slots[slot]
        if machine is None or not machine.is_alive or machine.harness.is_closed:
            return
        if len(machine.arrivals) < SOCKET_PACKETS_MAX:
            machine.arrivals.append(packet)
        if machine.is_paused:
            return
        if self.options.poll_ms and not self.network.is_calm:
            if not machine.is_polling:
                machine.is_polling = True
                delay = self._random.uniform(0, self.options.poll_ms)
                self.agenda.after(delay, self._poll, machine)
            return
        self._poll(machine)

    def _poll(self, machine: Machine) -> None:
        """Hand over what has arrived, all in one call or each in its own."""
        machine.is_polling = False
        if not machine.can_act or not machine.arrivals:
            return
        arrivals, machine.arrivals = machine.arrivals, []
        now = machine.clock.read(self.agenda.now)
        if len(arrivals) == 1 or self._random.random() < 0.5:
            machine.harness.receive(arrivals, now)
        else:
            for packet in arrivals:
                machine.harness.receive([packet], now)
        self._turn(machine)

    def packet_fault(self, event: str, fault: str, packet: Packet, dest: int) -> None:
        """The network did something to a packet."""
        sender = Member(
            Address("10.0.0.1", 7800 + packet.source), packet.incarnation, packet.sender
        )
        self._by_member[sender].harness.packet_fault(event, fault, packet, slot_name(dest))

    def _flush(self, machine: Machine) -> None:
        machine.is_holding = False
        if not machine.is_alive:
            return
        for dest, packet in machine.harness.take_packets():
            for slot in self._destinations(machine, dest):
                if machine.doom is not None:
                    if machine.doom == 0:
                        self._crash(machine)
                        return
                    machine.doom -= 1
                self.network.send(packet, slot)

    def _destinations(self, machine: Machine, dest: Address | None) -> list[int]:
        if dest is not None:
            return [dest.port - 7800]
        view = machine.harness.node.view
        others = [] if view is None else [m.address for m in view if m != machine.harness.me]
        return [address.port - 7800 for address in dict.fromkeys(others)]

    # What a driver does after an input

    def _turn(self, machine: Machine) -> None:
        """The application takes and sends, datagrams leave, the timer is set anew."""
        if not machine.can_act:
            return
        machine.harness.check_invariants()
        self._let_application_act(machine)
        if self.options.hold_ms and not self.network.is_calm and machine.doom is None:
            if not machine.is_holding:
                machine.is_holding = True
                delay = self._random.uniform(0, self.options.hold_ms)
                self.agenda.after(delay, self._flush, machine)
        else:
            self._flush(machine)
        self._set_timer(machine)

    def _let_application_act(self, machine: Machine) -> None:
        now = machine.clock.read(self.agenda.now)
        limit = self.options.take_limit if machine.application.rate is None else 0
        while True:
            took = self._take(machine, limit, now)
            sent = self._send(machine, now)
            # Taking one's own messages may make room: then there is one more event to see.
            is_done = limit > OFFER_MAX and not machine.application.is_waiting
            if not sent and (not took or is_done):
                return

    @staticmethod
    def _take(machine: Machine, limit: int, now: int) -> bool:
        """Whether there were messages."""
        events = machine.harness.take(limit, now)
        if any(isinstance(event, Writable) for event in events):
            machine.application.is_waiting = False
        return any(isinstance(event, Delivered | FragmentsTaken) for event in events)

    def _send(self, machine: Machine, now: int) -> bool:
        """Offer the backlog; whether anything was accepted."""
        application = machine.application
        if not application.wanted or application.is_waiting or machine.harness.is_closed:
            return False
        if not self._coordinator.is_member(machine.harness.me) or machine.harness.node.view is None:
            return False
        messages = application.next_messages(OFFER_MAX)
        accepted = machine.harness.send(messages, now)
        application.accepted(accepted)
        application.is_waiting = accepted < len(messages)
        return accepted > 0

    def _want(self, slot: int, count: int) -> None:
        machine = self._slots[slot]
        if machine is None or not machine.is_alive or machine.harness.is_closed:
            return
        machine.application.wanted += count
        if not machine.application.is_waiting:
            self._turn(machine)

    def _take_slowly(self, machine: Machine, rate: float) -> None:
        """One message each 1/rate seconds, until the application is itself again."""
        if not machine.is_alive or machine.application.rate != rate:
            return
        if machine.can_act:
            self._take(machine, 1, machine.clock.read(self.agenda.now))
            self._turn(machine)
        self.agenda.after(1000 / rate, self._take_slowly, machine, rate)

    def _stop_taking(self, slot: int) -> None:
        machine = self._slots[slot]
        if machine is not None and machine.is_alive:
            machine.application.rate = 0

    # Timers

    def _set_timer(self, machine: Machine) -> None:
        deadline = machine.harness.node.next_timeout()
        due = None if deadline is None else machine.clock.when(deadline)
        if due is None or not machine.is_alive:
            return
        match machine.timer_fault:
            case "never":
                return
            case "late":
                due += round(machine.timer_late * self._random.random())
            case "bursts":
                due += -due % ns(50)
        due = max(due, self.agenda.now)
        if machine.wake_at is None or due < machine.wake_at:
            machine.wake_at = due
            self.agenda.at(due, self._wake, machine, due)

    def _wake(self, machine: Machine, planned: int) -> None:
        if machine.wake_at != planned:
            return  # an earlier one was set meanwhile
        machine.wake_at = None
        if not machine.can_act:
            return
        now = machine.clock.read(self.agenda.now)
        deadline = machine.harness.node.next_timeout()
        if deadline is not None and deadline <= now:
            machine.harness.handle_timeout(now)
            if machine.timer_fault == "twice":
                machine.harness.handle_timeout(now)
            self._turn(machine)
        else:
            self._set_timer(machine)

    # Incidents

    def _begin_incident(self, incident: Incident) -> None:
        machine = self._slots[incident.nodes[0]]
        match incident.fault:
            case "join":
                self._join(incident.nodes[0])
                return
            case "F7" | "F8" | "F9":
                self._cut(incident)
            case "F10" | "F11":
                if machine is None or not self._may_go(machine):
                    return
                machine.doom = int(incident.amount)
                self.agenda.after(DOOM_MS, self._crash, machine)
                if incident.fault == "F11":
                    self.agenda.after(DOOM_MS + incident.ms, self._join, incident.nodes[0])
            case _:
                if machine is None or not machine.can_act:
                    return
                self._trouble(machine, incident)
        self.network.faults.count(incident.fault, self.network.kinds_under_way())
        self.recorder.fault_on(incident.fault, str(incident).strip())

    def _cut(self, incident: Incident) -> None:
        slots = range(self.options.nodes)
        side = incident.nodes
        if incident.fault == "F9":
            links = [(side[0], side[1]), (side[1], side[0])]
        else:
            links = [(a, b) for a in slots for b in slots if a in side and b not in side]
            if incident.fault == "F7":
                links += [(b, a) for a, b in links]
        for source, dest in links:
            self.network.cuts[source, dest, incident.fault] += 1
        self.agenda.after(incident.ms, self._mend, incident, links)

    def _mend(self, incident: Incident, links: list[tuple[int, int]]) -> None:
        if self.network.is_calm:
            return
        for source, dest in links:
            self.network.cuts[source, dest, incident.fault] -= 1
        self.recorder.fault_off(incident.fault, str(incident).strip())

    def _trouble(self, machine: Machine, incident: Incident) -> None:
        """What ails one member for a while."""
        agenda = self.agenda
        match incident.fault, incident.what:
            case "F12", _:
                self._pause(machine)
                agenda.after(incident.ms, self._resume, machine)
            case "F13", "jump":
                machine.clock.change(agenda.now, jump=ns(incident.amount))
                self._set_timer(machine)
            case "F13", _:
                machine.clock.change(agenda.now, rate=incident.amount)
                agenda.after(incident.ms, self._true_clock, machine)
                self._set_timer(machine)
            case "F14", _:
                machine.application.rate = incident.amount
                if incident.amount:
                    agenda.after(0, self._take_slowly, machine, incident.amount)
                agenda.after(incident.ms, self._take_again, machine, incident.amount)
            case "F18", _:
                self._view_chaos(machine, incident)
            case "F19", what:
                machine.timer_fault = what
                machine.timer_late = ns(incident.amount)
                agenda.after(incident.ms, self._true_timers, machine)

    def _true_clock(self, machine: Machine) -> None:
        machine.clock.change(self.agenda.now)
        self._set_timer(machine)

    def _true_timers(self, machine: Machine) -> None:
        machine.timer_fault = ""
        self._set_timer(machine)

    def _take_again(self, machine: Machine, rate: float) -> None:
        if machine.application.rate == rate and machine.harness.slot != self.options.stopped:
            machine.application.rate = None
            self._turn(machine)

    def _view_chaos(self, machine: Machine, incident: Incident) -> None:
        me = machine.harness.me
        may_go = self._coordinator.is_member(me) and self._may_go(machine)
        match incident.what:
            case "again":
                self._coordinator.resend(machine)
            case "flap":
                for count in range(int(incident.amount)):
                    self.agenda.after(count * incident.ms, self._coordinator.renew)
            case "exclude" if may_go:
                self._coordinator.remove(me)
                self.agenda.after(incident.ms, self._join, incident.nodes[0])
            case "swap" if may_go:
                machine.harness.close(machine.clock.read(self.agenda.now))
                self._turn(machine)
                self._coordinator.swap(me, self._boot(incident.nodes[0]).harness.me)
