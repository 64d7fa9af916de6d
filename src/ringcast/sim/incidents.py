"""Incidents: what befalls a member or the whole group at a certain time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ringcast.sim.agenda import ns
from ringcast.sim.machine import FIRST_PORT
from ringcast.sim.partitions import FOR_GOOD, cut_links, kinds_of
from ringcast.sim.workload import EVERYBODY, UNIFORM

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.sim.agenda import Agenda
    from ringcast.sim.coordinator import Coordinator
    from ringcast.sim.gathering import Gathering
    from ringcast.sim.machine import Machine
    from ringcast.sim.network import Network
    from ringcast.sim.options import Incident, Options
    from ringcast.sim.recorder import Recorder

DOOM_MS = 20.0
"""A member that is to crash in the middle of its next multicast crashes at the latest then."""


COORDINATOR = "coordinator"
"""An incident that befalls whoever that is by then."""
SENDING = "sending"
"""A crash in the middle of sending uniform messages, or of the commit that follows,"""
PLAIN = "plain"
"""or of sending plain ones."""
SENDING_MESSAGES = 3


class Stage(Protocol):
    """The cluster, as far as incidents touch it."""

    @property
    def options(self) -> Options: ...
    @property
    def agenda(self) -> Agenda: ...
    @property
    def network(self) -> Network: ...
    @property
    def recorder(self) -> Recorder: ...
    @property
    def coordinator(self) -> Coordinator: ...
    @property
    def gathering(self) -> Gathering: ...

    def machine_in(self, slot: int) -> Machine | None: ...
    def machine_of(self, member: Member) -> Machine: ...
    def boot(self, slot: int) -> Machine: ...
    def join(self, slot: int) -> None: ...
    def crash(self, machine: Machine) -> None: ...
    def resume(self, machine: Machine) -> None: ...

    def may_go(self, machine: Machine) -> bool:
        """Whether the group survives without this one."""
        ...


class Incidents:
    """Begins incidents, and ends those that last."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def begin(self, incident: Incident) -> None:
        stage = self._stage
        machine = self._whom(incident)
        match incident.fault:
            case "join":
                stage.join(incident.nodes[0])
                return
            case "leave":
                if machine is not None and machine.can_act and stage.may_go(machine):
                    self._leave(machine, incident)
                return
            case "stabilize":
                if machine is not None and machine.can_act:
                    machine.harness.stabilize(machine.now)
                    machine.turn()
                return
            case "close" | "sync":
                if machine is not None and machine.can_act:
                    self._call(machine, incident)
                return
            case "F7" | "F8" | "F9":
                self._cut(incident)
            case "F10" | "F11":
                if machine is None or not stage.may_go(machine):
                    return
                machine.doom = int(incident.amount)
                stage.agenda.after(DOOM_MS, stage.crash, machine)
                if incident.what.startswith(SENDING):
                    dest = EVERYBODY if incident.what.endswith(PLAIN) else UNIFORM
                    stage.agenda.after(0, machine.want, dest, SENDING_MESSAGES)
                if incident.fault == "F11":
                    stage.agenda.after(DOOM_MS + incident.ms, stage.join, machine.harness.slot)
            case _:
                if machine is None or not machine.can_act:
                    return
                self._trouble(machine, incident)
        stage.network.faults.count(incident.fault, stage.network.kinds_under_way())
        stage.recorder.fault_on(incident.fault, str(incident).strip())

    def _whom(self, incident: Incident) -> Machine | None:
        """The node that is named, or whoever coordinates when it happens."""
        if incident.what.endswith(COORDINATOR):
            member = self._stage.gathering.coordinator()
            if member is not None:
                return self._stage.machine_of(member)
        return self._stage.machine_in(incident.nodes[0])

    def _leave(self, machine: Machine, incident: Incident) -> None:
        """In good order; some come back."""
        machine.leave()
        if incident.ms:
            self._stage.agenda.after(incident.ms, self._stage.join, machine.harness.slot)

    def _cut(self, incident: Incident) -> None:
        stage = self._stage
        links = cut_links(incident, stage.options.nodes)
        stage.network.faults.partitions.update(kinds_of(incident, stage.options.safety_ms))
        if incident.what == FOR_GOOD:
            stage.network.severed.update(links)
            return
        end = stage.agenda.now + ns(incident.ms)
        if incident.amount:
            self._flap(incident, links, end)
        else:
            self._set_cut(incident, links, 1)
            stage.agenda.at(end, self._mend, incident, links)

    def _flap(self, incident: Incident, links: list[tuple[int, int]], end: int) -> None:
        """Cut for half a period, whole for the other half, and so on."""
        agenda = self._stage.agenda
        if self._stage.network.is_calm or agenda.now >= end:
            return
        self._set_cut(incident, links, 1)
        half_ms = 500 / incident.amount
        agenda.after(half_ms, self._mend, incident, links)
        agenda.after(2 * half_ms, self._flap, incident, links, end)

    def _mend(self, incident: Incident, links: list[tuple[int, int]]) -> None:
        if not self._stage.network.is_calm:
            self._set_cut(incident, links, -1)
            self._stage.recorder.fault_off(incident.fault, str(incident).strip())

    def _set_cut(self, incident: Incident, links: list[tuple[int, int]], change: int) -> None:
        for source, dest in links:
            self._stage.network.cuts[source, dest, incident.fault] += change

    def _call(self, machine: Machine, incident: Incident) -> None:
        """An application or an operator calls the node about a peer."""
        peer = machine.harness.member_at(incident.nodes[1] + FIRST_PORT)
        if peer is None:
            return
        match incident.fault, incident.what:
            case "close", _:
                machine.harness.close_to(peer, machine.now)
            case "sync", _:
                machine.harness.sync(peer, machine.now)
            case _, "drop":
                machine.harness.drop_from(peer, machine.now)
        machine.turn()

    def _trouble(self, machine: Machine, incident: Incident) -> None:
        """What ails one member for a while."""
        agenda = self._stage.agenda
        machine.was_late |= incident.fault in ("F12", "F13", "F19")
        match incident.fault, incident.what:
            case "F12", _:
                machine.pause()
                agenda.after(incident.ms, self._stage.resume, machine)
            case "F13", "jump":
                machine.clock.change(agenda.now, jump=ns(incident.amount))
                machine.set_timer()
            case "F13", _:
                machine.clock.change(agenda.now, rate=incident.amount)
                agenda.after(incident.ms, self._true_clock, machine)
                machine.set_timer()
            case "F14", _:
                machine.application.rate = incident.amount
                if incident.amount:
                    agenda.after(0, machine.take_slowly, incident.amount)
                agenda.after(incident.ms, self._take_again, machine, incident.amount)
            case "F18", "drop":
                self._call(machine, incident)
            case "F18", _:
                self._view_chaos(machine, incident)
            case "F19", what:
                machine.timer_fault = what
                machine.timer_late = ns(incident.amount)
                agenda.after(incident.ms, self._true_timers, machine)

    def _true_clock(self, machine: Machine) -> None:
        machine.clock.change(self._stage.agenda.now)
        machine.set_timer()

    def _true_timers(self, machine: Machine) -> None:
        machine.timer_fault = ""
        machine.set_timer()

    def _take_again(self, machine: Machine, rate: float) -> None:
        is_stopped = machine.harness.slot == self._stage.options.stopped
        if machine.application.rate == rate and not is_stopped:
            machine.application.rate = None
            machine.turn()

    def _view_chaos(self, machine: Machine, incident: Incident) -> None:
        stage = self._stage
        coordinator = stage.coordinator
        me = machine.harness.me
        may_go = coordinator.is_member(me) and stage.may_go(machine)
        match incident.what:
            case "again":
                coordinator.resend(machine)
            case "flap":
                for count in range(int(incident.amount)):
                    stage.agenda.after(count * incident.ms, coordinator.renew)
            case "exclude" if may_go:
                coordinator.remove(me)
                stage.agenda.after(incident.ms, stage.join, incident.nodes[0])
            case "swap" if may_go:
                machine.harness.close(machine.now)
                machine.turn()
                coordinator.swap(me, stage.boot(incident.nodes[0]).harness.me)
            case "split" if coordinator.is_member(me):
                peer = machine.harness.member_at(incident.nodes[1] + FIRST_PORT)
                if peer is not None:
                    coordinator.split(machine, peer)
                    stage.agenda.after(incident.ms, self._end_split, machine)

    def _end_split(self, machine: Machine) -> None:
        if not self._stage.network.is_calm:
            self._stage.coordinator.reunite(machine)
