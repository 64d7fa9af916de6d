"""Gathering: nodes that find each other and make their own views. The simulator only looks on.

It stands where the coordinator stands in runs whose views come from outside: it starts nodes, tells
them where others may be, and knows when all that live are in one view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ringcast.model import Origin
from ringcast.protocols.membership import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Address, Member
    from ringcast.sim.agenda import Agenda
    from ringcast.sim.machine import Machine
    from ringcast.sim.network import Network
    from ringcast.sim.options import Options


class Ground(Protocol):
    """The cluster, as far as a gathering needs it."""

    @property
    def options(self) -> Options: ...
    @property
    def agenda(self) -> Agenda: ...
    @property
    def network(self) -> Network: ...
    @property
    def machines(self) -> list[Machine]: ...

    def machine_of(self, member: Member) -> Machine: ...


class Gathering:
    """What all nodes of a run have in common, though none of them knows it."""

    def __init__(self, ground: Ground, addresses: Sequence[Address]) -> None:
        self._ground = ground
        self._addresses = addresses

    def admit(self, member: Member, heir_of: Machine | None = None) -> None:
        """Start it. It knows some addresses, the nearest; the others it learns later.

        Whoever comes back without having been away still knows what it knew.
        """
        machine = self._ground.machine_of(member)
        options = self._ground.options
        machine.harness.start(machine.now)
        before = None if heir_of is None else heir_of.harness.node.membership
        if before is not None:
            machine.harness.add_candidates(before.discovery.candidates, machine.now)
        self._tell(machine, options.told)
        if options.told < 1:
            self._ground.agenda.after(options.told_ms, self._tell, machine)

    def gather(self) -> None:
        """Nobody has an excuse any more: all addresses to everybody."""
        for machine in self._living():
            self._tell(machine)

    def _tell(self, machine: Machine, share: float = 1.0) -> None:
        if machine.can_act:
            slot, count = machine.harness.slot, len(self._addresses)
            others = [self._addresses[(slot + step) % count] for step in range(1, count)]
            machine.harness.add_candidates(others[: round(share * count)], machine.now)
            machine.turn()

    def remove(self, *members: Member) -> None:
        """The others will notice."""

    def step(self) -> None:
        """There is nothing to help along."""

    def members(self) -> list[Member]:
        """Who lives and has not left, in the group or on the way to it."""
        return [machine.harness.me for machine in self._living()]

    def is_member(self, member: Member) -> bool:
        """Whether it is in the group and stays."""
        membership = self._ground.machine_of(member).harness.node.membership
        return membership is not None and membership.phase is Phase.MEMBER

    def coordinator(self) -> Member | None:
        """Whoever makes views for the largest group, as most members see it."""
        reports: dict[Member, int] = {}
        for machine in self._living():
            membership = machine.harness.node.membership
            if membership is not None and membership.coordinator is not None:
                who = membership.coordinator
                reports[who] = reports.get(who, 0) + 1
        return max(reports, key=lambda who: reports[who], default=None)

    @property
    def has_one_view(self) -> bool:
        """Everybody who lives is in one view of exactly those, and nothing is being changed. So it
        is in each component, if some cannot hear each other."""
        components: dict[int, list[Machine]] = {}
        for machine in self._living():
            component = self._ground.network.component(machine.harness.slot)
            components.setdefault(component, []).append(machine)
        return all(map(_are_one, components.values()))

    def _living(self) -> list[Machine]:
        return [
            machine
            for machine in self._ground.machines
            if machine.is_alive and not machine.harness.is_closed
        ]


def _are_one(machines: list[Machine]) -> bool:
    views = [machine.harness.node.view for machine in machines]
    everybody = {machine.harness.me for machine in machines}
    return all(
        view is not None and view == views[0] and set(view) == everybody for view in views
    ) and all(map(_is_at_rest, machines))


def _is_at_rest(machine: Machine) -> bool:
    """In the group with all windows open, and waiting for nothing."""
    node = machine.harness.node
    membership, windows = node.membership, node.multicast.windows()
    assert membership is not None
    return (
        membership.phase is Phase.MEMBER
        and membership.change is None
        and not membership.suspects
        and not (node.state is not None and node.state.is_behind)
        and all(
            Origin(member, stream) in windows
            for member in node.view or ()
            for stream in node.multicast.streams
        )
    )
