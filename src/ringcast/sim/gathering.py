"""Gathering: nodes find each other and make their own views. The simulator starts them, tells them
where others may be, and knows when all that live are in one view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.model import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Address, Member
    from ringcast.sim.cluster import Cluster
    from ringcast.sim.member import SimProcess


class Gathering:
    """What all nodes of a run have in common, though none of them knows it."""

    def __init__(self, cluster: Cluster, addresses: Sequence[Address]) -> None:
        self._cluster = cluster
        self._addresses = addresses

    def admit(self, process: SimProcess) -> None:
        """Start it. It knows some addresses, the nearest; the others it learns later."""
        options = self._cluster.options
        process.resident.harness.start(process.now)
        self._tell(process, options.told)
        if options.told < 1:
            self._cluster.clock.after(options.told_ms, self._tell, process)

    def gather(self) -> None:
        """Nobody has an excuse any more: all addresses to everybody."""
        for process in self._living():
            self._tell(process)

    def _tell(self, process: SimProcess, share: float = 1.0) -> None:
        if process.can_act:
            slot, count = process.resident.harness.slot, len(self._addresses)
            others = [self._addresses[(slot + step) % count] for step in range(1, count)]
            process.resident.harness.add_candidates(others[: round(share * count)], process.now)
            process.turn()

    # Outputs

    def members(self) -> list[Member]:
        """Who lives and has not left, in the group or on the way to it."""
        return [process.resident.harness.me for process in self._living()]

    def is_member(self, member: Member) -> bool:
        """Whether it is in the group and stays."""
        membership = self._cluster.process_of(member).resident.harness.node.membership
        return membership is not None and membership.phase.name == "MEMBER"

    def coordinator(self) -> Member | None:
        """Whoever makes views for the largest group, as most members see it."""
        reports: dict[Member, int] = {}
        for process in self._living():
            membership = process.resident.harness.node.membership
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
            component = self._cluster.conditions.component(process.resident.harness.slot)
            components.setdefault(component, []).append(process)
        return all(map(_are_one, components.values()))

    def _living(self) -> list[SimProcess]:
        return [
            process
            for process in self._cluster.processes
            if process.is_alive and not process.resident.harness.is_closed
        ]


def _are_one(processes: list[SimProcess]) -> bool:
    views = [process.resident.harness.node.view for process in processes]
    everybody = {process.resident.harness.me for process in processes}
    return all(
        view is not None and view == views[0] and set(view) == everybody for view in views
    ) and all(map(_is_at_rest, processes))


def _is_at_rest(process: SimProcess) -> bool:
    """In the group with all windows open, and waiting for nothing."""
    node = process.resident.harness.node
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
