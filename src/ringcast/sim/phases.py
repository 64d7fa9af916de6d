"""The phases of a run, from the first view to the last drained window.

`warm`: no faults. `safety`: faults; only what must never happen is judged. At its end crashed
members stay crashed, sleepers wake, clocks run true, and stale datagrams may still arrive. `heal`:
these expire, and the group comes to one view. `liveness`: delivery bounds apply, applications send
a little more. `end`: nothing may be repeated any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules import bounds
from ringcast.sim.clock import NS_PER_MS, ns
from ringcast.sim.facts import facts_of
from ringcast.sim.harness import NodeFailure
from ringcast.sim.member import SimProcess
from ringcast.sim.workload import EVERYBODY, SECOND
from ringcast.trace.rows import PHASE

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster

HEAL_STEP_MS = 5.0
NS_PER_S = 10**9
SPREAD_MS = 10.0
"""Applications send their last messages within this time after the network has healed."""
SPELL_SHARE = 0.4
"""How much of its turn a spell of sending takes; the rest is silence."""


class Phases:
    """Takes a cluster through its run, once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._options = cluster.options
        self._clock = cluster.clock
        self._random = cluster.random
        self._recorder = cluster.recorder
        self._conditions = cluster.conditions
        self._is_stuck = False

    def run(self) -> None:
        """All phases. A failing node ends the run early; the trace so far stays."""
        try:
            self._warm()
            self._safety()
            self._heal()
            self._liveness()
        except NodeFailure as failure:
            self._recorder.find("G7", str(failure))
        if self._options.has("F20"):
            self._conditions.log.count("F20", self._conditions.kinds_carried())

    def _warm(self) -> None:
        self._recorder.write(PHASE, kind="warm")
        self._cluster.oracle.start()
        for slot in range(self._options.initial):
            delay = self._random.uniform(0, self._options.start_ms)
            self._clock.after(delay, self._cluster.join, slot)
        start = ns(self._options.warm_ms)
        to_all = [(slot, EVERYBODY) for slot in self._options.senders]
        for slot, dest in (*to_all, *self._options.pairs):
            self._plan_sends(slot, dest, start // 2, start + ns(self._options.safety_ms))
        self._clock.run_until(start)

    def _plan_sends(self, slot: int, dest: int, start: int, stop: int) -> None:
        """At any time, or in spells with silence after each."""
        spells, count = self._options.spells, self._options.messages
        if spells == 1:
            self._plan_spell(slot, dest, count, start, stop)
            return
        turn = (stop - start) // spells
        for begin in (start + spell * turn for spell in range(spells)):
            stop = begin + round(turn * SPELL_SHARE)
            self._plan_spell(slot, dest, count // spells + 1, begin, stop)

    def _plan_spell(self, slot: int, dest: int, left: int, start: int, stop: int) -> None:
        if left <= self._options.burst:
            self._clock.at(start, self._want, slot, self._stream_of(dest), left)
            return
        while left > 0:
            count = min(left, self._random.randint(1, self._options.burst))
            when = self._random.randint(start, stop)
            self._clock.at(when, self._want, slot, self._stream_of(dest), count)
            left -= count

    def _stream_of(self, dest: int) -> int:
        """What is for everybody goes on either stream."""
        share = self._options.uniform
        is_uniform = dest == EVERYBODY and share > 0 and self._random.random() < share
        return SECOND if is_uniform else dest

    def _safety(self) -> None:
        self._recorder.write(PHASE, kind="safety")
        self._conditions.is_calm = False
        self._cluster.driving.poll_ms = self._options.poll_ms
        self._cluster.driving.hold_ms = self._options.hold_ms
        start = self._clock.now
        for incident in self._options.incidents:
            self._clock.at(start + ns(incident.at_ms), self._cluster.incidents.begin, incident)
        if self._options.stopped >= 0:
            self._clock.after(self._options.safety_ms / 2, self._stop_taking)
        self._clock.run_until(start + ns(self._options.safety_ms))

    def _heal(self) -> None:
        self._cluster.is_healing = True
        self._conditions.heal()
        self._cluster.driving.poll_ms = self._cluster.driving.hold_ms = 0.0
        for process in list(self._cluster.processes):
            self._cure(process)
        for process in self._cluster.living:  # nobody has an excuse any more
            self._cluster.tell_addresses(process)
        if self._options.has("F22"):
            self._clock.run_until(self._clock.now + ns(self._options.stale_ms))
            for process in [each for each in self._cluster.living if each.doom is not None]:
                self._cluster.crash(process)  # what was to happen late has happened meanwhile
        self._recorder.write(PHASE, kind="heal")
        self._conditions.expire()  # V-L1 counts from here: nothing from before may disturb
        self._wait_for_one_view()

    def _cure(self, process: SimProcess) -> None:
        if not process.is_alive:
            return
        process.timer_fault = ""
        process.clock.change(self._clock.now)
        process.resident.application.give_up()
        slot = process.resident.slot
        if not (slot == self._options.stopped and process.resident.application.rate == 0):
            process.resident.application.rate = None
        if process.doom is not None:
            self._cluster.crash(process)
        elif process.is_paused:
            self._cluster.resume(process)
        else:
            process.turn()

    def _wait_for_one_view(self) -> None:
        facts = facts_of(self._cluster)
        limit = bounds.one_view_ns(facts)
        if self._options.state:
            limit = bounds.state_ns(facts, self._clock.now)
        deadline = self._clock.now + limit
        while not self._cluster.has_one_view:
            if self._clock.now > deadline:
                self._is_stuck = True
                self._recorder.find("V-L1", "the group does not come to one view")
                return
            self._clock.run_until(self._clock.now + ns(HEAL_STEP_MS))

    def _liveness(self) -> None:
        """Until everything must have been delivered and acknowledged, then a little longer."""
        if self._is_stuck:
            return
        self._recorder.write(PHASE, kind="liveness")
        self._cluster.gst = self._clock.now
        for slot, dest in self._late_pairs():
            delay = self._random.uniform(0, SPREAD_MS)
            self._clock.after(delay, self._want, slot, dest, self._options.late_messages)
        self._clock.run_until(self._clock.now + ns(SPREAD_MS) + 1)
        self._let_leave()
        bound = self._quiet_after()
        self._send_stale(bound / NS_PER_MS)
        while self._clock.now < max(self._cluster.gst, self._recorder.last_send) + bound:
            self._clock.run_until(max(self._cluster.gst, self._recorder.last_send) + bound)
        self._find_blocked()
        self._recorder.write(PHASE, kind="end")
        self._clock.run_until(self._clock.now + 2 * ns(max(self._options.tau_ms)))
        for process in self._cluster.living:
            process.resident.end()

    def _send_stale(self, within_ms: float) -> None:
        """Of those who are in the view: what they said to come into it, or an earlier one."""
        members = {process.resident.me: process for process in self._cluster.living}
        for flight in self._conditions.stale.kept:
            addressee = None if flight.packet is None else flight.packet.addressee
            if flight.sender in members.values() and addressee in members:
                self._cluster.world.network.send_again(flight, self._random.uniform(0, within_ms))

    def _let_leave(self) -> None:
        """Somebody goes while what it has sent is still under way."""
        leaver = self._options.late_leaver
        process = self._cluster.process_in(leaver)
        if process is not None and process.can_act and self._cluster.may_go(process):
            process.resident.want(SECOND, self._options.late_messages)
            process.resident.depart()

    def _late_pairs(self) -> list[tuple[int, int]]:
        """Who sends to whom once the network has healed."""
        streams = (EVERYBODY, SECOND) if self._options.second is not None else (EVERYBODY,)
        everybody = [(slot, dest) for dest in streams for slot in range(self._options.nodes)]
        if self._options.protocol == "multicast":
            return everybody
        pairs = dict.fromkeys(self._options.pairs)
        pairs.update(dict.fromkeys((dest, slot) for slot, dest in self._options.pairs))
        members = {process.resident.slot for process in self._cluster.living}
        severed = self._conditions.severed
        among = [pair for pair in pairs if members.issuperset(pair) and pair not in severed]
        return among if self._options.protocol == "unicast" else [*everybody, *among]

    def _quiet_after(self) -> int:
        """How long after the last send everything is delivered, and known to be."""
        facts = facts_of(self._cluster)
        most, protocol = max(self._options.capacities), self._options.protocol
        bound = facts.drain_bound_ns(most * self._options.grow)
        if protocol != "multicast":
            # A receiver may first have to ask where it stands.
            bound += 8 * facts.tau_ns + 8 * facts.delta_ns
        if protocol == "unicast" and not all(each.is_alive for each in self._cluster.processes):
            # The dead are given up at last.
            bound = max(bound, facts.max_retransmit_ns + 4 * facts.tau_ns)
        if self._options.second is not None:
            drained = facts.drain_bound_ns(most, is_gated=True)
            if self._options.second is Stream.TOTAL:  # all go through one window, asked for by 1 s
                drained = self._options.nodes * drained + NS_PER_S
            bound = max(bound, drained)
        return bound

    def _find_blocked(self) -> None:
        living = self._cluster.living
        if any(process.resident.application.rate is not None for process in living):
            return  # who stops taking blocks the others, and is meant to
        rule = "S-L1" if self._options.protocol == "unicast" else "N-L3"
        for process in living:
            backlogs = process.resident.application.backlogs.items()
            if any(backlog.wanted for dest, backlog in backlogs if self._is_there(dest)):
                me = process.resident.me
                self._recorder.find(rule, f"{me} still waits for room though all have delivered")

    def _is_there(self, dest: int) -> bool:
        """Whether anybody takes what is for this destination; a late leaver does not, nor who has
        crashed: in a group it may take long until messages to one are given up."""
        process = self._cluster.process_in(dest)
        if process is None:
            return True
        is_gone = self._options.protocol != "unicast" and not process.is_alive
        return not is_gone and not process.resident.is_closed

    def _want(self, slot: int, dest: int, count: int) -> None:
        process = self._cluster.process_in(slot)
        if process is not None:
            process.resident.want(dest, count)

    def _stop_taking(self) -> None:
        process = self._cluster.process_in(self._options.stopped)
        if process is not None and process.is_alive:
            process.resident.application.rate = 0
