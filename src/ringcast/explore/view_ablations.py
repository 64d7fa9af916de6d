"""BROKEN on purpose, not for use: view changes with one of their rules taken away.

Each shows that its rule is needed: in its scenario, which is as small as can be, the exploration
finds what it prevents. With the rule nothing goes wrong there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.core.view_change import order
from ringcast.explore.view_scenarios import explore_views
from ringcast.explore.view_steps import Script
from ringcast.explore.view_world import NOT_IN, Kind, Scenario
from ringcast.explore.views import Views
from ringcast.model import Stream
from ringcast.protocols.views.fetch import Fetch
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import Propose
from ringcast.protocols.views.halves import ViewSender
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.parts import make_cut
from ringcast.protocols.views.proposer import Proposer
from ringcast.protocols.views.reading import Reading
from ringcast.protocols.views.streams import ViewStreams

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ringcast.core.effects import Effects
    from ringcast.core.shared import Deadlines, GroupState
    from ringcast.core.view_change import Begin, Cut, Part
    from ringcast.events import Event
    from ringcast.explore.explorer import Report
    from ringcast.explore.view_world import Person, Said, World
    from ringcast.model import Member, Origin, View, ViewId
    from ringcast.protocols.views.frames import ChangeFrame, Wishes
    from ringcast.protocols.views.meeting import Met
    from ringcast.wire.changes import Install

# Members with simple streams


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

    def _may_matter(self, world: World, said: Said) -> bool:
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


class CutsOtherwise(Proposer):
    def _make_cut(self) -> Cut:
        cut = super()._make_cut()
        parts = (
            part._replace(cuts={o: self._mark(part, o, seqno) for o, seqno in part.cuts.items()})
            for part in cut.parts
        )
        return replace(cut, parts=tuple(parts))

    def _mark(self, part: Part, origin: Origin, seqno: int) -> int:
        raise NotImplementedError

    def _held(self, members: Iterable[Member], origin: Origin) -> int:
        return max(self._states[who].snapshot.held.get(origin, 0) for who in members)


class CutsByOthers(CutsOtherwise):
    """Without what an origin itself has sent."""

    def _mark(self, part: Part, origin: Origin, seqno: int) -> int:
        others = [m for m in part.members if m != origin.sender]
        return self._held(others, origin) if len(others) == len(part.members) - 1 > 0 else seqno


class CutsByFirst(CutsOtherwise):
    """What the proposer holds of a departed origin, not the most that anybody does."""

    def _mark(self, part: Part, origin: Origin, seqno: int) -> int:
        assert self.proposal is not None
        me = self.proposal.id.creator
        is_mine = me in part.members and origin.sender not in part.members
        return self._held([me], origin) if is_mine else seqno


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


# Whole nodes


class LeavesUnasked(GroupViews):
    """Whoever leaves is not in the proposal: nobody gets what it holds."""

    def _propose(self, parts: Sequence[Met], now: int, out: Effects) -> None:
        leavers, self.requests.leavers = self.requests.leavers, set()
        self.change.elsewhere |= leavers
        super()._propose(parts, now, out)


class DirectFetch(Fetch):
    def ask(self, now: int, out: Effects) -> bool:
        self._tries = 0
        return super().ask(now, out)


class FetchesDirectly(ViewStreams):
    """What is lacking is asked of its holder alone, never by way of the proposer."""

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self.fetch = DirectFetch(self.me, self._half_of, deadlines.owner("flush"))


class CommitsNothing(ViewStreams):
    """A view begins without the uniform messages up to the cut that nobody has committed."""

    def _begin(self, begin: Begin, now: int, out: Effects) -> None:
        part = begin.cut.part_of(self.me)
        cuts = {
            origin: self._receivers[origin].window.gate
            if origin in self._receivers and origin.stream is Stream.UNIFORM
            else seqno
            for origin, seqno in part.cuts.items()
        }
        parts = tuple(p._replace(cuts=cuts) if p is part else p for p in begin.cut.parts)
        super()._begin(replace(begin, cut=replace(begin.cut, parts=parts)), now, out)


class HastyReading(Reading):
    @property
    def is_due(self) -> bool:
        return bool(self.unread)


class AnnouncesAtOnce(ViewStreams):
    """A view is shown before what was sent in the last one is read."""

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self.reading = HastyReading()


class GoesOnWithFragments(ViewSender):
    def begin(self, view: View, together: Collection[Member], now: int, out: Effects) -> None:
        rest, self.fragments.rest = self.fragments.rest, deque()
        super().begin(view, together, now, out)
        self.fragments.rest = rest


class KeepsFragments(ViewStreams):
    """A large message goes on where it is, though somebody new lacks its beginning."""

    sending = GoesOnWithFragments


class ReadsAhead(ViewStreams):
    """Whoever is to get a state reads on before it comes."""

    def follow_view(self, events: Sequence[Event], *, pauses: bool) -> None:
        super().follow_view(events, pauses=False)


class Ablation(NamedTuple):
    """A rule, what breaks it, and where that is seen."""

    rule: str
    parts: dict[str, Any]
    scenario: Scenario | Script

    def explore(self, scenario: Scenario | Script | None = None, **limits: Any) -> Report:
        """Without the rule; in another scenario, if that is given."""
        return explore_views(scenario or self.scenario, self.parts, **limits)


def _machines(
    rule: str, streams: tuple[Kind, ...], targets: str, views: str = "ABC", **parts: type
) -> Ablation:
    """Members that propose these sets at any time, each by the first that is named."""
    sets = tuple(targets.split())
    scenario = Scenario(f"without {rule}", tuple(views.split()), streams, len(sets), 0, sets)
    return Ablation(rule, parts, scenario)


def _nodes(rule: str, script: Script, **layers: type) -> Ablation:
    return Ablation(rule, layers, script._replace(name=f"without {rule}"))


FIFO, UNIFORM = (Kind(0, Stream.FIFO),), (Kind(0, Stream.UNIFORM),)

ABLATIONS = {
    each.rule: each
    for each in (
        _machines("promise", UNIFORM, "AB B", system=FollowsLower, follower=AnswersLower),
        _machines("freeze", FIFO, "AB", system=SendsWhileFrozen),
        _machines("deaf", UNIFORM, "C", system=HearsWhileFrozen),
        _machines("deaf to all", UNIFORM, "A CA", system=HearsWhoIsAsked),
        _machines("own", FIFO, "AB", proposer=CutsByOthers),
        _machines("most held", UNIFORM, "AB CB", proposer=CutsByFirst),
        _machines("all flushed", FIFO, "AB", proposer=InstallsAtOnce),
        _machines("hold", FIFO, "BC CA", system=DeliversWhatItFetches),
        _machines("finish", (), "AB AB", proposer=FinishesNothing),
        _machines("last flushed", (), "ABC BC", proposer=FinishesAny),
        _machines("dead", (), "ABC CB", proposer=FinishesLast),
        _machines("tag", UNIFORM, "A B", system=IgnoresTags),
        _machines("parts", UNIFORM, "A BA", proposer=RemembersParts, follower=FollowsAnyPart),
        _machines("window", FIFO, "BA", "A B", system=OpensWindowsAtZero),
        _machines("gate", UNIFORM, "B", system=DeliversUniformAtOnce),
        _nodes("order", Script("", ("ABC",), crashes="C", idle="B"), multicast=AnnouncesAtOnce),
        _nodes("commit", Script("", ("ABC",), crashes="C", unheard="CA"), multicast=CommitsNothing),
        _nodes("leave", Script("", ("ABC",), leaves="C", unheard="CB"), membership=LeavesUnasked),
        _nodes(
            "fetch",
            Script("", ("ABCD",), crashes="D", unheard="DA DC", severed="BC", faults=()),
            multicast=FetchesDirectly,
        ),
        _nodes("state", Script("", ("AB",), joins="C", has_state=True), multicast=ReadsAhead),
        _nodes(
            "start over",
            Script("", ("AB",), joins="C", idle="B", size=2000, capacity=2),
            multicast=KeepsFragments,
        ),
    )
}
"""By name, in the order of the rules of a view change: R1 to R9, then state and large messages."""
