"""Who is in the group. Nodes find each other and make their own views: the simulator starts them,
tells them where others may be, and knows when all that live are in one view (`Gathering`).

Where nodes have no failure detector it tells them what one would (`Oracle`). Who is gone, crashed
or left: a while later, and again in each view that still has it. And, as beats would, who is in an
older view with a member, or in a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import MemberAhead, NonMember, Suspected
from ringcast.model import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Address, Member
    from ringcast.sim.cluster import Cluster
    from ringcast.sim.member import SimProcess, SimulatedMember

BEAT_MS = 50.0


class Gathering:
    """What all nodes of a run have in common, though none of them knows it."""

    def __init__(self, cluster: Cluster, addresses: Sequence[Address]) -> None:
        self._cluster = cluster
        self._addresses = addresses

    def admit(self, process: SimProcess) -> None:
        """Start it. It knows some addresses, the nearest; the others it learns later."""
        options = self._cluster.options
        process.resident.call(process.node.start, process.now)
        self._tell(process, options.told)
        if options.told < 1:
            self._cluster.clock.after(options.told_ms, self._tell, process)

    def gather(self) -> None:
        """Nobody has an excuse any more: all addresses to everybody."""
        for process in self._living():
            self._tell(process)

    def _tell(self, process: SimProcess, share: float = 1.0) -> None:
        if process.can_act:
            slot, count = process.resident.slot, len(self._addresses)
            others = [self._addresses[(slot + step) % count] for step in range(1, count)]
            known = others[: round(share * count)]
            process.resident.call(process.node.add_candidates, known, process.now)
            process.turn()

    # Outputs

    def members(self) -> list[Member]:
        """Who lives and has not left, in the group or on the way to it."""
        return [process.resident.me for process in self._living()]

    def is_member(self, member: Member) -> bool:
        """Whether it is in the group and stays."""
        membership = self._cluster.process_of(member).node.membership
        return membership is not None and membership.phase.name == "MEMBER"

    def coordinator(self) -> Member | None:
        """Whoever makes views for the largest group, as most members see it."""
        reports: dict[Member, int] = {}
        for process in self._living():
            membership = process.node.membership
            if membership is not None and membership.coordinator is not None:
                who = membership.coordinator
                reports[who] = reports.get(who, 0) + 1
        return max(reports, key=lambda who: reports[who], default=None)

    @property
    def has_one_view(self) -> bool:
        """Everybody who lives is in one view of exactly those, and nothing is being changed. So it
        is in each component, if some cannot hear each other."""
        components: dict[int, list[SimProcess]] = {}
        for process in self._living():
            component = self._cluster.conditions.component(process.resident.slot)
            components.setdefault(component, []).append(process)
        return all(map(_are_one, components.values()))

    def _living(self) -> list[SimProcess]:
        return [
            process
            for process in self._cluster.processes
            if process.is_alive and not process.resident.is_closed
        ]


def _are_one(processes: list[SimProcess]) -> bool:
    views = [process.node.view for process in processes]
    everybody = {process.resident.me for process in processes}
    return all(
        view is not None and view == views[0] and set(view) == everybody for view in views
    ) and all(map(_is_at_rest, processes))


def _is_at_rest(process: SimProcess) -> bool:
    """In the group with all windows open, and waiting for nothing."""
    node = process.node
    membership, windows = node.membership, node.multicast.windows()
    assert membership is not None
    return (
        membership.phase.name == "MEMBER"
        and membership.is_idle
        and not (node.state is not None and node.state.is_behind)
        and all(
            Origin(member, stream) in windows
            for member in node.view or ()
            for stream in node.multicast.streams
        )
    )


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
        if self._cluster.conditions.is_cut(*ends):
            return
        me = other.resident.me
        if me not in mine or theirs.counter < mine.counter:
            process.resident.signal(NonMember(me), process.now)
        else:
            process.resident.signal(MemberAhead(me, theirs.counter), process.now)
        process.turn()
