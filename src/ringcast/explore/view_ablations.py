"""Rules of a view change, each left out: what goes wrong then shows that it is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ringcast.explore.views import NOT_IN, Views
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.proposer import Proposer

if TYPE_CHECKING:
    from ringcast.core.view_change import Begin, Cut
    from ringcast.explore.views import Person, Scenario
    from ringcast.model import Origin, ViewId


class SendsWhileFrozen(Views):
    def _may_send(self, person: Person) -> bool:
        return True


class HearsWhileFrozen(Views):
    def _hears(self, person: Person, origin: Origin) -> bool:
        return person.follower.phase is not Phase.FLUSHED


class CutsByOthers(Proposer):
    """Without what an origin itself has sent."""

    def _make_cut(self) -> Cut:
        cut = super()._make_cut()
        parts = []
        for part in cut.parts:
            cuts = dict(part.cuts)
            for origin in cuts:
                others = [m for m in part.members if m != origin.sender]
                if origin.sender in part.members and others:
                    held = (self._states[m].snapshot.held.get(origin, 0) for m in others)
                    cuts[origin] = max(held)
            parts.append(part._replace(cuts=cuts))
        return replace(cut, parts=tuple(parts))


class InstallsAtOnce(Proposer):
    def _all_have_flushed(self) -> bool:
        assert self.proposal is not None
        return self.proposal.id.creator not in self.awaited


class IgnoresTags(Views):
    def _is_of(self, tag: ViewId, person: Person) -> bool:
        return True


class OpensWindowsAtZero(Views):
    def _start(self, person: Person, begin: Begin, i: int, origin: Origin) -> int:
        return super()._start(person, begin, i, origin) if person.held[i] != NOT_IN else 0


class DeliversUniformAtOnce(Views):
    def _waits(self, i: int) -> bool:
        return False


class Ablation(NamedTuple):
    """A rule, its system without it, and the scenario that shows what comes of it."""

    rule: str
    scenario: str
    system: type[Views] = Views
    follower: type[Follower] = Follower
    proposer: type[Proposer] = Proposer

    def build(self, scenarios: dict[str, Scenario]) -> Views:
        return self.system(scenarios[self.scenario], self.follower, self.proposer)


ABLATIONS = {
    each.rule: each
    for each in (
        Ablation("freeze", "crash", SendsWhileFrozen),
        Ablation("deaf", "crash, uniform", HearsWhileFrozen),
        Ablation("own", "crash", proposer=CutsByOthers),
        Ablation("all flushed", "crash", proposer=InstallsAtOnce),
        Ablation("tag", "crash, uniform", IgnoresTags),
        Ablation("window", "join", OpensWindowsAtZero),
        Ablation("gate", "crash, uniform", DeliversUniformAtOnce),
    )
}
