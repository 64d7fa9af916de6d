"""Incidents: what befalls a member or the whole group at a certain time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ringcast.core.effects import Suspected, Trusted
from ringcast.model import Member
from ringcast.sim.clock import ns
from ringcast.sim.member import FIRST_PORT, SimProcess
from ringcast.sim.mishaps import CUTS, FOR_GOOD
from ringcast.sim.options import FAULTS, Incident
from ringcast.sim.workload import EVERYBODY, SECOND
from ringcast.trace.rows import FAULT_OFF, FAULT_ON, PAUSE

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster

DOOM_MS = 20.0
"""A member that is to crash in the middle of its next multicast crashes at the latest then."""


COORDINATOR = "coordinator"
"""An incident that befalls whoever that is by then."""
SENDING = "sending"
"""A crash in the middle of sending uniform messages, or of the commit that follows,"""
PLAIN = "plain"
"""or of sending plain ones."""
SENDING_MESSAGES = 3


class Incidents:
    """Begins incidents, and ends those that last."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def begin(self, incident: Incident) -> None:
        """Now, or with the frame that it waits for."""
        if incident.when:
            self._cluster.conditions.armed.append(incident)
        else:
            self.happen(incident)

    def happen(self, incident: Incident) -> None:
        cluster = self._cluster
        process = self._whom(incident)
        if incident.fault == "join":
            cluster.join(incident.nodes[0])
        elif incident.fault in CUTS:
            self._cut(incident)
        elif process is None:
            return
        elif incident.fault in ("F10", "F11"):
            if not cluster.may_go(process):
                return
            self._doom(process, incident)
        elif process.can_act:
            self._befall(process, incident)
        else:
            return
        if incident.fault in FAULTS:
            cluster.conditions.log.count(incident.fault, cluster.conditions.kinds_under_way())
            self._note(FAULT_ON, incident)

    def _note(self, event: str, incident: Incident) -> None:
        self._cluster.recorder.write(event, kind=incident.fault, detail=str(incident).strip())

    def _whom(self, incident: Incident) -> SimProcess | None:
        """The node that is named, or whoever coordinates when it happens."""
        if incident.what.endswith(COORDINATOR):
            process = self._cluster.coordinator()
            if process is not None:
                return process
        return self._cluster.process_in(incident.nodes[0])

    def _doom(self, process: SimProcess, incident: Incident) -> None:
        """It crashes, with so many copies of datagrams still sent; with F11 it comes back."""
        cluster, clock = self._cluster, self._cluster.clock
        process.doom = int(incident.amount)
        clock.after(DOOM_MS, cluster.crash, process)
        if incident.what.startswith(SENDING):
            dest = EVERYBODY if incident.what.endswith(PLAIN) else SECOND
            clock.after(0, process.resident.want, dest, SENDING_MESSAGES)
        if incident.fault == "F11":
            clock.after(DOOM_MS + incident.ms, cluster.join, process.resident.slot)

    def _cut(self, incident: Incident) -> None:
        cluster = self._cluster
        links = cut_links(incident, cluster.options.nodes)
        cluster.conditions.log.partitions.update(kinds_of(incident, cluster.options.safety_ms))
        if incident.what == FOR_GOOD:
            cluster.conditions.severed.update(links)
            return
        end = cluster.clock.now + ns(incident.ms)
        if incident.amount:
            self._flap(incident, links, end)
        else:
            self._set_cut(incident, links, 1)
            cluster.clock.at(end, self._mend, incident, links)

    def _flap(self, incident: Incident, links: list[tuple[int, int]], end: int) -> None:
        """Cut for half a period, whole for the other half, and so on."""
        clock = self._cluster.clock
        if self._cluster.conditions.is_calm or clock.now >= end:
            return
        self._set_cut(incident, links, 1)
        half_ms = 500 / incident.amount
        clock.after(half_ms, self._mend, incident, links)
        clock.after(2 * half_ms, self._flap, incident, links, end)

    def _mend(self, incident: Incident, links: list[tuple[int, int]]) -> None:
        if not self._cluster.conditions.is_calm:
            self._set_cut(incident, links, -1)
            self._note(FAULT_OFF, incident)

    def _set_cut(self, incident: Incident, links: list[tuple[int, int]], change: int) -> None:
        for source, dest in links:
            self._cluster.conditions.cuts[source, dest, incident.fault] += change

    def _call(self, process: SimProcess, incident: Incident) -> None:
        """An application or an operator calls the node about a peer."""
        resident, now = process.resident, process.now
        peer = resident.member_at(incident.nodes[1] + FIRST_PORT)
        if peer is not None:
            match incident.fault:
                case "close":
                    resident.call(process.node.close_to, peer, now)
                case "sync":
                    resident.sync(peer, now)
                case _:
                    resident.drop_from(peer, now)
            process.turn()

    def _befall(self, process: SimProcess, incident: Incident) -> None:
        """What one member does, or what ails it for a while."""
        cluster, clock = self._cluster, self._cluster.clock
        process.resident.was_late |= incident.fault in ("F12", "F13", "F19")
        match incident.fault, incident.what:
            case "leave", _ if cluster.may_go(process):
                process.resident.depart()
                if incident.ms:  # it comes back
                    clock.after(incident.ms, cluster.join, process.resident.slot)
            case "stabilize", _:
                process.resident.call(process.node.stabilize, process.now)
                process.turn()
            case ("close" | "sync", _) | ("F18", "drop"):
                self._call(process, incident)
            case "F12", _:
                process.resident.sink.write(PAUSE)
                process.pause()
                clock.after(incident.ms, cluster.resume, process)
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
            case "F18", "suspect":
                peer = cluster.process_in(incident.nodes[1])
                if peer is not None and peer is not process:
                    self._suspect(process, peer.resident.me, incident.ms)
            case "F18", _:
                self._propose(process, incident)
            case "F19", what:
                process.timer_fault = what
                process.timer_late = ns(incident.amount)
                clock.after(incident.ms, self._true_timers, process)

    def _true_clock(self, process: SimProcess) -> None:
        process.clock.change(self._cluster.clock.now)
        process.set_timer()

    def _true_timers(self, process: SimProcess) -> None:
        process.timer_fault = ""
        process.set_timer()

    def _take_again(self, process: SimProcess, rate: float) -> None:
        is_stopped = process.resident.slot == self._cluster.options.stopped
        if process.resident.application.rate == rate and not is_stopped:
            process.resident.application.rate = None
            process.turn()

    # Views that nobody needs

    def _propose(self, process: SimProcess, incident: Incident) -> None:
        """It proposes a view of all that are named. For a while they suspect everybody else."""
        slots = map(self._cluster.process_in, incident.nodes)
        named = [each for each in slots if each is not None]
        members = [each.resident.me for each in named]
        for each in named:
            for member in each.node.view or ():
                if member not in members:
                    self._suspect(each, member, incident.ms)
        change = process.resident.change
        if not process.can_act or change is None:
            return
        changes = [each.resident.change for each in named if each.resident.change is not None]
        views = [each.view for each in changes]
        permits = {each.view.id: each.permit(process.resident.me) for each in changes}
        process.resident.propose(members, views, permits, process.now)
        process.turn()

    def _suspect(self, process: SimProcess, member: Member, ms: float) -> None:
        """It takes that one to be gone, until it hears of it again."""
        if process.can_act:
            process.resident.signal(Suspected(member, "it seems so"), process.now)
            process.turn()
            self._cluster.clock.after(ms, self._trust, process, member)

    def _trust(self, process: SimProcess, member: Member) -> None:
        if process.is_paused:
            process.deferred.append(lambda: self._trust(process, member))
        elif process.can_act and self._cluster.process_of(member).is_alive:
            process.resident.signal(Trusted(member), process.now)
            process.turn()


# Cuts


def cut_links(incident: Incident, nodes: int) -> list[tuple[int, int]]:
    """(source, dest) of every link on which nothing arrives."""
    slots, named = range(nodes), incident.nodes
    rest = [slot for slot in slots if slot not in named]
    match incident.fault, incident.what:
        case "F9", "bridge":
            return _both_ways((a, b) for a in named[1:] for b in rest)
        case "F9", "star":
            return [(a, b) for a in rest for b in rest if a != b]
        case "F9", _:
            return _both_ways([(named[0], named[1])])
        case "F8", _:
            return [(a, b) for a in named for b in rest]
    sides = [*_sides(incident), rest]
    side_of = {slot: place for place, side in enumerate(sides) for slot in side}
    return [(a, b) for a in slots for b in slots if side_of[a] != side_of[b]]


def kinds_of(incident: Incident, safety_ms: float) -> Iterator[str]:
    """What this cut counts as."""
    sides = "more sides" if "+" in incident.what else "two sides"
    yield {"F7": sides, "F8": "one way"}.get(incident.fault) or incident.what or "one link"
    if incident.amount:
        yield "flapping"
    if incident.what == FOR_GOOD:
        yield FOR_GOOD
    elif incident.at_ms + incident.ms >= safety_ms:
        yield "until the end"


def _both_ways(links: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [link for a, b in links for link in ((a, b), (b, a))]


def _sides(incident: Incident) -> list[tuple[int, ...]]:
    """All but the last: "2+1" are two and one of the nodes that are named."""
    if "+" not in incident.what:
        return [incident.nodes]
    stops = [0, *accumulate(map(int, incident.what.split("+")))]
    return [incident.nodes[start:stop] for start, stop in pairwise(stops)]
