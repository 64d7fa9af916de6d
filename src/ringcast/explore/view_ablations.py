"""Rules of a view change, each left out: what goes wrong then shows that it is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ringcast.explore.views import NOT_IN, Views
from ringcast.model import Stream
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import Propose, order
from ringcast.protocols.views.parts import make_cut
from ringcast.protocols.views.proposer import Proposer

if TYPE_CHECKING:
    from ringcast.explore.views import Person, Scenario, World
    from ringcast.model import Member, Origin, ViewId
    from ringcast.protocols.views.frames import Begin, Cut, Wishes


class AnswersAnyProposal(Follower):
    def on_propose(self, source: Member, proposal: Propose, out: Wishes) -> None:
        if order(proposal.id) > order(self.view.id) and proposal.id != self.promised:
            self.promised = proposal.id
            self.proposal = proposal
            self._freeze(out)


class AnyProposalMatters(Views):
    def _matters(self, person: Person, frame: object) -> bool:
        follower = person.follower
        if isinstance(frame, Propose) and person.is_up:
            return frame.id != follower.promised and order(frame.id) > order(follower.view.id)
        return super()._matters(person, frame)  # type: ignore[arg-type]

    def _may_matter(self, person: Person, frame: object) -> bool:
        return person.is_up


class SendsWhileFrozen(Views):
    def _may_send(self, person: Person) -> bool:
        return True


class HearsWhileFrozen(Views):
    def _hears(self, person: Person, origin: Origin) -> bool:
        return person.follower.phase is not Phase.FLUSHED


class HearsTheProposed(Views):
    """Of those who are in the proposal, until the flush."""

    def _hears(self, person: Person, origin: Origin) -> bool:
        follower = person.follower
        if follower.phase is Phase.FROZEN and follower.proposal is not None:
            return origin.sender in follower.proposal.members
        return follower.phase is Phase.OPEN


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


class CutsByItself(Proposer):
    """What the first of a part holds of a departed origin, in place of the most."""

    def _make_cut(self) -> Cut:
        cut = super()._make_cut()
        parts = []
        for part in cut.parts:
            cuts = dict(part.cuts)
            for origin in cuts:
                if origin.sender not in part.members:
                    cuts[origin] = self._states[part.members[0]].snapshot.held.get(origin, 0)
            parts.append(part._replace(cuts=cuts))
        return replace(cut, parts=tuple(parts))


class InstallsAtOnce(Proposer):
    def _all_have_flushed(self) -> bool:
        assert self.proposal is not None
        return self.proposal.id.creator not in self.awaited


class NeverCompletes(Proposer):
    def _behind(self) -> dict[Member, ViewId]:
        return {}


class PartsFromMemory(Proposer):
    """All who were in the proposer's view count as in it."""

    def _make_cut(self) -> Cut:
        assert self.proposal is not None
        mine = self._states[self.proposal.id.creator].view
        states = {
            member: replace(state, view=mine) if member in mine else state
            for member, state in self._states.items()
        }
        return make_cut(self.proposal, states, self._is_kept)


class DeliversWhatAFlushFetched(Views):
    def _flush(self, world: World, member: Member) -> None:
        super()._flush(world, member)
        person = world.people[member]
        for i, kind in enumerate(self.streams):
            if kind.stream is not Stream.UNIFORM and person.held[i] > person.now.delivered[i] >= 0:
                self._deliver(person, i, person.held[i], by_commit=False)


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
        Ablation("promise", "crash, uniform", AnyProposalMatters, AnswersAnyProposal),
        Ablation("freeze", "crash", SendsWhileFrozen),
        Ablation("deaf", "crash, uniform", HearsWhileFrozen),
        Ablation("deaf to all", "crash, uniform", HearsTheProposed),
        Ablation("own", "crash", proposer=CutsByOthers),
        Ablation("most held", "crash, uniform", proposer=CutsByItself),
        Ablation("all flushed", "crash", proposer=InstallsAtOnce),
        Ablation("finish", "crash, uniform", proposer=NeverCompletes),
        Ablation("hold", "crash", DeliversWhatAFlushFetched),
        Ablation("tag", "crash, uniform", IgnoresTags),
        Ablation("parts", "crash, uniform", proposer=PartsFromMemory),
        Ablation("window", "join", OpensWindowsAtZero),
        Ablation("gate", "crash, uniform", DeliversUniformAtOnce),
    )
}
