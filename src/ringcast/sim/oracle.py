"""Where nodes have no failure detector, the simulator tells them what one would.

Who is gone, crashed or left: a while later, and again in each view that still has it. And, as beats
would, who is in an older view with a member, or in a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import MemberAhead, NonMember, Suspected
from ringcast.model import Member
from ringcast.sim.member import SimProcess, SimulatedMember

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster

BEAT_MS = 50.0


class Oracle:
    """Knows what no member does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._missed: dict[Member, None] = {}  # are gone, and it is known

    def start(self) -> None:
        if not self._cluster.options.has_detector:
            self._beat()

    def gone(self, process: SimProcess) -> None:
        cluster = self._cluster
        if not cluster.options.has_detector:
            is_calm = cluster.conditions.is_calm
            delay = cluster.options.delta_ms if is_calm else cluster.options.detect_ms
            cluster.clock.after(delay, self._miss, process.resident.me)

    def _miss(self, member: Member) -> None:
        self._missed[member] = None
        for process in self._cluster.processes:
            process.turn()

    def look(self, member: SimulatedMember) -> None:
        """If they are in its view, it learns so, once in each view."""
        view = member.node.view
        if not self._missed or view is None:
            return
        for who in view:
            if who in self._missed and (view.id, who) not in member.told:
                member.told.add((view.id, who))
                member.signal(Suspected(who, "it is gone"), member.process.now)

    def _beat(self) -> None:
        for process in self._cluster.processes:
            view = process.node.view
            if process.can_act and view is not None:
                for member in view:
                    self._hear(self._cluster.process_of(member), process)
        self._cluster.clock.after(BEAT_MS, self._beat)

    def _hear(self, process: SimProcess, other: SimProcess) -> None:
        """The other one, which has this one in its view, says in which one it is."""
        mine, theirs = process.node.view, other.node.view
        if not process.can_act or mine is None or theirs is None or mine.id == theirs.id:
            return
        ends = other.resident.slot, process.resident.slot
        if self._cluster.conditions.cut_by(*ends):
            return
        me = other.resident.me
        if me not in mine or theirs.counter < mine.counter:
            process.resident.signal(NonMember(me), process.now)
        else:
            process.resident.signal(MemberAhead(me, theirs.counter), process.now)
        process.turn()
