"""Incidents: what befalls a member or the whole group at a certain time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ringcast.sim.clock import ns
from ringcast.sim.member import FIRST_PORT
from ringcast.sim.partitions import FOR_GOOD, cut_links, kinds_of
from ringcast.sim.workload import EVERYBODY, UNIFORM
from ringcast.trace.rows import PAUSE

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.sim.clock import VirtualClock
    from ringcast.sim.coordinator import Coordinator
    from ringcast.sim.faults import Conditions
    from ringcast.sim.gathering import Gathering
    from ringcast.sim.member import SimProcess
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
    def clock(self) -> VirtualClock: ...
    @property
    def conditions(self) -> Conditions: ...
    @property
    def recorder(self) -> Recorder: ...
    @property
    def coordinator(self) -> Coordinator: ...
    @property
    def gathering(self) -> Gathering: ...

    def process_in(self, slot: int) -> SimProcess | None: ...
    def process_of(self, member: Member) -> SimProcess: ...
    def boot(self, slot: int) -> SimProcess: ...
    def join(self, slot: int) -> None: ...
    def crash(self, process: SimProcess) -> None: ...
    def resume(self, process: SimProcess) -> None: ...

    def may_go(self, process: SimProcess) -> bool:
        """Whether the group survives without this one."""
        ...


class Incidents:
    """Begins incidents, and ends those that last."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def begin(self, incident: Incident) -> None:
        stage = self._stage
        process = self._whom(incident)
        match incident.fault:
            case "join":
                stage.join(incident.nodes[0])
                return
            case "leave":
                if process is not None and process.can_act and stage.may_go(process):
                    self._leave(process, incident)
                return
            case "vote":
                if process is not None and process.can_act:
                    process.resident.harness.vote_now(process.now)
                    process.turn()
                return
            case "close" | "sync":
                if process is not None and process.can_act:
                    self._call(process, incident)
                return
            case "F7" | "F8" | "F9":
                self._cut(incident)
            case "F10" | "F11":
                if process is None or not stage.may_go(process):
                    return
                process.doom = int(incident.amount)
                stage.clock.after(DOOM_MS, stage.crash, process)
                if incident.what.startswith(SENDING):
                    dest = EVERYBODY if incident.what.endswith(PLAIN) else UNIFORM
                    stage.clock.after(0, process.resident.want, dest, SENDING_MESSAGES)
                if incident.fault == "F11":
                    stage.clock.after(
                        DOOM_MS + incident.ms, stage.join, process.resident.harness.slot
                    )
            case _:
                if process is None or not process.can_act:
                    return
                self._trouble(process, incident)
        stage.conditions.log.count(incident.fault, stage.conditions.kinds_under_way())
        stage.recorder.fault_on(incident.fault, str(incident).strip())

    def _whom(self, incident: Incident) -> SimProcess | None:
        """The node that is named, or whoever coordinates when it happens."""
        if incident.what.endswith(COORDINATOR):
            member = self._stage.gathering.coordinator()
            if member is not None:
                return self._stage.process_of(member)
        return self._stage.process_in(incident.nodes[0])

    def _leave(self, process: SimProcess, incident: Incident) -> None:
        """In good order; some come back."""
        process.resident.leave()
        if incident.ms:
            self._stage.clock.after(incident.ms, self._stage.join, process.resident.harness.slot)

    def _cut(self, incident: Incident) -> None:
        stage = self._stage
        links = cut_links(incident, stage.options.nodes)
        stage.conditions.log.partitions.update(kinds_of(incident, stage.options.safety_ms))
        if incident.what == FOR_GOOD:
            stage.conditions.severed.update(links)
            return
        end = stage.clock.now + ns(incident.ms)
        if incident.amount:
            self._flap(incident, links, end)
        else:
            self._set_cut(incident, links, 1)
            stage.clock.at(end, self._mend, incident, links)

    def _flap(self, incident: Incident, links: list[tuple[int, int]], end: int) -> None:
        """Cut for half a period, whole for the other half, and so on."""
        clock = self._stage.clock
        if self._stage.conditions.is_calm or clock.now >= end:
            return
        self._set_cut(incident, links, 1)
        half_ms = 500 / incident.amount
        clock.after(half_ms, self._mend, incident, links)
        clock.after(2 * half_ms, self._flap, incident, links, end)

    def _mend(self, incident: Incident, links: list[tuple[int, int]]) -> None:
        if not self._stage.conditions.is_calm:
            self._set_cut(incident, links, -1)
            self._stage.recorder.fault_off(incident.fault, str(incident).strip())

    def _set_cut(self, incident: Incident, links: list[tuple[int, int]], change: int) -> None:
        for source, dest in links:
            self._stage.conditions.cuts[source, dest, incident.fault] += change

    def _call(self, process: SimProcess, incident: Incident) -> None:
        """An application or an operator calls the node about a peer."""
        peer = process.resident.harness.member_at(incident.nodes[1] + FIRST_PORT)
        if peer is None:
            return
        match incident.fault, incident.what:
            case "close", _:
                process.resident.harness.close_to(peer, process.now)
            case "sync", _:
                process.resident.harness.sync(peer, process.now)
            case _, "drop":
                process.resident.harness.drop_from(peer, process.now)
        process.turn()

    def _trouble(self, process: SimProcess, incident: Incident) -> None:
        """What ails one member for a while."""
        clock = self._stage.clock
        process.resident.was_late |= incident.fault in ("F12", "F13", "F19")
        match incident.fault, incident.what:
            case "F12", _:
                process.resident.harness.note(PAUSE)
                process.pause()
                clock.after(incident.ms, self._stage.resume, process)
            case "F13", "jump":
                process.clock.change(clock.now, jump=ns(incident.amount))
                process.set_timer()
            case "F13", _:
                process.clock.change(clock.now, rate=incident.amount)
                clock.after(incident.ms, self._true_clock, process)
                process.set_timer()
            case "F14", _:
                process.resident.application.rate = incident.amount
                if incident.amount:
                    clock.after(0, process.resident.take_slowly, incident.amount)
                clock.after(incident.ms, self._take_again, process, incident.amount)
            case "F18", "drop":
                self._call(process, incident)
            case "F18", _:
                self._view_chaos(process, incident)
            case "F19", what:
                process.timer_fault = what
                process.timer_late = ns(incident.amount)
                clock.after(incident.ms, self._true_timers, process)

    def _true_clock(self, process: SimProcess) -> None:
        process.clock.change(self._stage.clock.now)
        process.set_timer()

    def _true_timers(self, process: SimProcess) -> None:
        process.timer_fault = ""
        process.set_timer()

    def _take_again(self, process: SimProcess, rate: float) -> None:
        is_stopped = process.resident.harness.slot == self._stage.options.stopped
        if process.resident.application.rate == rate and not is_stopped:
            process.resident.application.rate = None
            process.turn()

    def _view_chaos(self, process: SimProcess, incident: Incident) -> None:
        stage = self._stage
        coordinator = stage.coordinator
        me = process.resident.harness.me
        may_go = coordinator.is_member(me) and stage.may_go(process)
        match incident.what:
            case "again":
                coordinator.resend(process.resident)
            case "flap":
                for count in range(int(incident.amount)):
                    stage.clock.after(count * incident.ms, coordinator.renew)
            case "exclude" if may_go:
                coordinator.remove(me)
                stage.clock.after(incident.ms, stage.join, incident.nodes[0])
            case "swap" if may_go:
                process.resident.harness.close(process.now)
                process.turn()
                coordinator.swap(me, stage.boot(incident.nodes[0]).resident.harness.me)
            case "split" if coordinator.is_member(me):
                peer = process.resident.harness.member_at(incident.nodes[1] + FIRST_PORT)
                if peer is not None:
                    coordinator.split(process.resident, peer)
                    stage.clock.after(incident.ms, self._end_split, process)

    def _end_split(self, process: SimProcess) -> None:
        if not self._stage.conditions.is_calm:
            self._stage.coordinator.reunite(process.resident)
