"""BROKEN on purpose, not for use: view changes with one of their rules taken away.

Each shows that its rule is needed: in its scenario, which is as small as can be, the exploration
finds what it prevents. With the rule nothing goes wrong there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.core.view_change import order
from ringcast.explore.views import NOT_IN, Kind, Scenario, Views
from ringcast.model import Stream
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import Propose
from ringcast.protocols.views.parts import make_cut
from ringcast.protocols.views.proposer import Proposer

if TYPE_CHECKING:
    from ringcast.core.view_change import Begin, Cut
    from ringcast.explore.views import Person, World
    from ringcast.model import Member, Origin, ViewId
    from ringcast.protocols.views.frames import ChangeFrame, Wishes
    from ringcast.wire.changes import Install


class AnswersLower(Follower):
    """What was promised does not count: a Cut or Install of a lower proposal is followed, too."""

    _answered: tuple[Propose, ...] = ()

    def on_propose(self, source: Member, proposal: Propose, out: Wishes) -> None:
        self._answered += (proposal,)
        super().on_propose(source, proposal, out)

    def on_cut(self, source: Member, cut: Cut, out: Wishes) -> None:
        proposal = next((each for each in self._answered if each.id == cut.id), None)
        if proposal is not None:
            self.promised, self.proposal, self.phase = proposal.id, proposal, Phase.FROZEN
        super().on_cut(source, cut, out)

    def on_install(self, source: Member, install: Install, out: Wishes) -> None:
        kept = next((each for each in self._flushed if each.proposal.id == install.id), None)
        if kept is not None:
            self._install(kept, out)


class FollowsLower(Views):
    def _matters(self, person: Person, frame: ChangeFrame) -> bool:
        if isinstance(frame, Propose):
            return super()._matters(person, frame)
        follower = person.follower
        return self._is_there(person) and order(frame.id) > order(follower.view.id)

    def _may_matter(self, world: World, number: int) -> bool:
        return True


class SendsWhileFrozen(Views):
    def _may_send(self, person: Person) -> bool:
        return True


class HearsWhileFrozen(Views):
    def _hears(self, person: Person, origin: Origin) -> bool:
        return person.follower.phase is not Phase.FLUSHED


class HearsWhoIsAsked(Views):
    """From who is in the proposal."""

    def _hears(self, person: Person, origin: Origin) -> bool:
        follower = person.follower
        if follower.phase is Phase.FROZEN and follower.proposal is not None:
            return origin.sender in follower.proposal.members
        return super()._hears(person, origin)


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


class CutsByFirst(Proposer):
    """What the first of a part holds of a departed origin, not the most that anybody does."""

    def _make_cut(self) -> Cut:
        cut = super()._make_cut()
        assert self.proposal is not None
        parts = []
        for part in cut.parts:
            proposer = self.proposal.id.creator
            first = proposer if proposer in part.members else part.members[0]
            held = self._states[first].snapshot.held
            cuts = {
                origin: seqno if origin.sender in part.members else held.get(origin, 0)
                for origin, seqno in part.cuts.items()
            }
            parts.append(part._replace(cuts=cuts))
        return replace(cut, parts=tuple(parts))


class InstallsAtOnce(Proposer):
    def _all_have_flushed(self) -> bool:
        assert self.proposal is not None
        return self.proposal.id.creator not in self.awaited


class FinishesNothing(Proposer):
    def _behind(self) -> dict[Member, ViewId]:
        return {}


class FinishesAny(Proposer):
    """Whatever was flushed, last or not."""

    def _behind(self) -> dict[Member, ViewId]:
        views = {state.view.id for state in self._states.values()}
        return {
            member: min(found, key=order)
            for member, state in self._states.items()
            if (found := views.intersection(each.id for each in state.flushed))
        }


class FinishesLast(Proposer):
    """What was flushed last, though it may be dead."""

    def _behind(self) -> dict[Member, ViewId]:
        views = {state.view.id for state in self._states.values()}
        return {
            member: state.flushed[-1].id
            for member, state in self._states.items()
            if state.flushed and state.flushed[-1].id in views
        }


class DeliversWhatItFetches(Views):
    def _flush(self, world: World, member: Member) -> World:
        after = super()._flush(world, member)
        person = after.people[member]
        if person.follower.phase is Phase.FLUSHED:
            person.key = 0
            for i, held in enumerate(person.held):
                if not self._waits(i) and held > person.now.delivered[i]:
                    self._deliver(person, i, held, by_commit=False)
        return after


class IgnoresTags(Views):
    def _is_of(self, tag: ViewId, person: Person) -> bool:
        return True


class RemembersParts(Proposer):
    """Members of its view are there still, whatever they say."""

    def _make_cut(self) -> Cut:
        assert self.proposal is not None
        view = self._states[self.proposal.id.creator].view
        states = {
            member: replace(state, view=view) if member in view else state
            for member, state in self._states.items()
        }
        return make_cut(self.proposal, states, self._is_kept)


class FollowsAnyPart(Follower):
    def _is_mine(self, cut: Cut) -> bool:
        return True


class OpensWindowsAtZero(Views):
    def _start(self, person: Person, begin: Begin, i: int) -> int:
        return super()._start(person, begin, i) if person.held[i] != NOT_IN else 0


class DeliversUniformAtOnce(Views):
    def _waits(self, i: int) -> bool:
        return False


FIFO, UNIFORM = (Kind(0, Stream.FIFO),), (Kind(0, Stream.UNIFORM),)


class Ablation(NamedTuple):
    """A rule, the system without it, and the scenario that shows what comes of it."""

    rule: str
    parts: dict[str, Any]
    streams: tuple[Kind, ...]
    targets: str
    views: str = "ABC"
    finding: str = ""

    @property
    def scenario(self) -> Scenario:
        views, targets = tuple(self.views.split()), tuple(self.targets.split())
        return Scenario(f"without {self.rule}", views, self.streams, len(targets), 0, targets)

    def build(self) -> Views:
        terms = {"follower": Follower, "proposer": Proposer, **self.parts}
        return terms.pop("system", Views)(self.scenario, **terms)


ABLATIONS = {
    each.rule: each
    for each in (
        Ablation("promise", {"system": FollowsLower, "follower": AnswersLower}, UNIFORM, "AB BC"),
        Ablation("freeze", {"system": SendsWhileFrozen}, FIFO, "AB"),
        Ablation("deaf", {"system": HearsWhileFrozen}, UNIFORM, "C"),
        Ablation("deaf to all", {"system": HearsWhoIsAsked}, UNIFORM, "A CA"),
        Ablation("own", {"proposer": CutsByOthers}, FIFO, "AB"),
        Ablation("most held", {"proposer": CutsByFirst}, UNIFORM, "AB CB"),
        Ablation("all flushed", {"proposer": InstallsAtOnce}, FIFO, "AB"),
        Ablation("finish", {"proposer": FinishesNothing}, (), "AB AB"),
        Ablation("last flushed", {"proposer": FinishesAny}, (), "ABC BC CAB"),
        Ablation("dead", {"proposer": FinishesLast}, (), "ABC CB BAC"),
        Ablation("hold", {"system": DeliversWhatItFetches}, FIFO, "BC CA ABC"),
        Ablation("tag", {"system": IgnoresTags}, UNIFORM, "A B"),
        Ablation(
            "parts", {"proposer": RemembersParts, "follower": FollowsAnyPart}, UNIFORM, "A BA"
        ),
        Ablation("window", {"system": OpensWindowsAtZero}, FIFO, "BA", "A B"),
        Ablation("gate", {"system": DeliversUniformAtOnce}, UNIFORM, "B"),
    )
}
