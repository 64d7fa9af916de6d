"""BROKEN on purpose, not for use: view changes with one of their rules taken away.

Each shows that its rule is needed: in its scenario, which is as small as can be, the exploration
finds what it prevents. With the rule nothing goes wrong there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.core.view_change import order
from ringcast.explore.ablations import broken
from ringcast.explore.view_scenarios import explore_views
from ringcast.explore.view_steps import Script
from ringcast.explore.view_world import NOT_IN, Kind, Scenario
from ringcast.explore.views import Views
from ringcast.model import Stream
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.views.fetch import Fetch
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import Propose
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.parts import make_cut
from ringcast.protocols.views.proposer import Proposer
from ringcast.protocols.views.reading import Reading
from ringcast.protocols.views.streams import ViewStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ringcast.core.effects import Effects
    from ringcast.core.shared import Deadlines, GroupState
    from ringcast.core.view_change import Begin, Cut, Part
    from ringcast.events import Event
    from ringcast.explore.explorer import Report
    from ringcast.explore.view_world import Person, World
    from ringcast.model import Member, Origin, View, ViewId
    from ringcast.protocols.views.discovery import Met
    from ringcast.protocols.views.frames import ChangeFrame, Wishes
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


def _lower_matters(self: Views, person: Person, frame: ChangeFrame) -> bool:
    if isinstance(frame, Propose):
        return Views._matters(self, person, frame)
    return self._is_there(person) and order(frame.id) > order(person.follower.view.id)


def _hears_who_is_asked(self: Views, person: Person, origin: Origin) -> bool:
    follower = person.follower
    if follower.phase is Phase.FROZEN and follower.proposal is not None:
        return origin.sender in follower.proposal.members
    return Views._hears(self, person, origin)


def _cutting(mark: Callable[[Proposer, Part, Origin, int], int]) -> type:
    """A proposer that cuts otherwise."""

    def make(self: Proposer) -> Cut:
        cut = Proposer._make_cut(self)
        parts = (
            part._replace(cuts={o: mark(self, part, o, seqno) for o, seqno in part.cuts.items()})
            for part in cut.parts
        )
        return replace(cut, parts=tuple(parts))

    return broken(Proposer, _make_cut=make)


def _held(self: Proposer, members: Iterable[Member], origin: Origin) -> int:
    return max(self._states[who].snapshot.held.get(origin, 0) for who in members)


def _by_others(self: Proposer, part: Part, origin: Origin, seqno: int) -> int:
    """Without what an origin itself has sent."""
    others = [m for m in part.members if m != origin.sender]
    return _held(self, others, origin) if len(others) == len(part.members) - 1 > 0 else seqno


def _by_first(self: Proposer, part: Part, origin: Origin, seqno: int) -> int:
    """What the proposer holds of a departed origin, not the most that anybody does."""
    me = _me(self)
    is_mine = me in part.members and origin.sender not in part.members
    return _held(self, [me], origin) if is_mine else seqno


def _me(proposer: Proposer) -> Member:
    assert proposer.proposal is not None
    return proposer.proposal.id.creator


def _finishing(choose: Callable[[list[ViewId], set[ViewId]], ViewId | None]) -> type:
    """A proposer that finishes another view than it should, of those that somebody has flushed and
    of those that somebody is in."""

    def behind(self: Proposer) -> dict[Member, ViewId]:
        views = {state.view.id for state in self._states.values()}
        found = {
            member: choose([each.id for each in state.flushed], views)
            for member, state in self._states.items()
        }
        return {member: id for member, id in found.items() if id is not None}

    return broken(Proposer, _behind=behind)


def _any(flushed: list[ViewId], views: set[ViewId]) -> ViewId | None:
    """Whatever was flushed, last or not."""
    return min(views.intersection(flushed), key=order, default=None)


def _last(flushed: list[ViewId], views: set[ViewId]) -> ViewId | None:
    """What was flushed last, though it may be dead."""
    return flushed[-1] if flushed and flushed[-1] in views else None


def _deliver_fetched(self: Views, world: World, member: Member) -> World:
    after = Views._flush(self, world, member)
    person = after.people[member]
    if person.follower.phase is Phase.FLUSHED:
        person.key = 0
        for i, held in enumerate(person.held):
            if not self._waits(i) and held > person.now.delivered[i]:
                self._deliver(person, i, held, by_commit=False)
    return after


def _cut_as_before(self: Proposer) -> Cut:
    """Members of its view are there still, whatever they say."""
    assert self.proposal is not None
    view = self._states[_me(self)].view
    states = {
        member: replace(state, view=view) if member in view else state
        for member, state in self._states.items()
    }
    return make_cut(self.proposal, states, self._is_kept)


def _start_at_zero(self: Views, person: Person, begin: Begin, i: int) -> int:
    return Views._start(self, person, begin, i) if person.held[i] != NOT_IN else 0


# Whole nodes


def _propose_without_leavers(
    self: GroupViews, parts: Sequence[Met], now: int, out: Effects
) -> None:
    """Whoever leaves is not in the proposal: nobody gets what it holds."""
    leavers, self.requests.leavers = self.requests.leavers, set()
    self.change.elsewhere |= leavers
    GroupViews._propose(self, parts, now, out)


class DirectFetch(Fetch):
    def ask(self, now: int, out: Effects) -> bool:
        self._tries = 0
        return super().ask(now, out)


def _fetch_directly(self: ViewStreams, group: GroupState, deadlines: Deadlines) -> None:
    """What is lacking is asked of its holder alone, never by way of the proposer."""
    ViewStreams.attach(self, group, deadlines)
    self.fetch = DirectFetch(self.me, self._half_of, deadlines.owner("flush"))


def _commit_nothing(self: ViewStreams, begin: Begin, now: int, out: Effects) -> None:
    """A view begins without the uniform messages up to the cut that nobody has committed."""
    part = begin.cut.part_of(self.me)
    cuts = {
        origin: self.receivers[origin].window.gate
        if origin in self.receivers and origin.stream is Stream.UNIFORM
        else seqno
        for origin, seqno in part.cuts.items()
    }
    parts = tuple(p._replace(cuts=cuts) if p is part else p for p in begin.cut.parts)
    ViewStreams._begin(self, replace(begin, cut=replace(begin.cut, parts=parts)), now, out)


def _announce_at_once(self: ViewStreams, group: GroupState, deadlines: Deadlines) -> None:
    """A view is shown before what was sent in the last one is read."""
    ViewStreams.attach(self, group, deadlines)
    self.reading = broken(Reading, is_due=property(lambda self: bool(self.unread)))()


def _go_on_with_fragments(
    self: MulticastSender, view: View, together: Collection[Member], now: int, out: Effects
) -> None:
    """A large message goes on where it is, though somebody new lacks its beginning."""
    rest, self.fragments.rest = self.fragments.rest, deque()
    MulticastSender.begin(self, view, together, now, out)
    self.fragments.rest = rest


def _read_ahead(self: ViewStreams, events: Sequence[Event], *, pauses: bool) -> None:
    """Whoever is to get a state reads on before it comes."""
    ViewStreams.follow_view(self, events, pauses=False)


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


def _views(**parts: object) -> type:
    return broken(Views, **parts)


def _always(*_: object) -> bool:
    return True


def _nodes(rule: str, script: Script, **parts: object) -> Ablation:
    """Nodes whose multicast has these parts in place of its own."""
    layers = {"multicast": broken(ViewStreams, **parts)}
    return Ablation(rule, layers, script._replace(name=f"without {rule}"))


FIFO, UNIFORM = (Kind(0, Stream.FIFO),), (Kind(0, Stream.UNIFORM),)

ABLATIONS = {
    each.rule: each
    for each in (
        _machines(
            *("promise", UNIFORM, "AB B"),
            follower=AnswersLower,
            system=_views(_matters=_lower_matters, _may_matter=_always),
        ),
        _machines("freeze", FIFO, "AB", system=_views(_may_send=_always)),
        _machines(
            *("deaf", UNIFORM, "C"),
            system=_views(_hears=lambda self, who, _: who.follower.phase is not Phase.FLUSHED),
        ),
        _machines("deaf to all", UNIFORM, "A CA", system=_views(_hears=_hears_who_is_asked)),
        _machines("own", FIFO, "AB", proposer=_cutting(_by_others)),
        _machines("most held", UNIFORM, "AB CB", proposer=_cutting(_by_first)),
        _machines(
            *("all flushed", FIFO, "AB"),
            proposer=broken(Proposer, _all_have_flushed=lambda self: _me(self) not in self.awaited),
        ),
        _machines("hold", FIFO, "BC CA", system=_views(_flush=_deliver_fetched)),
        _machines("finish", (), "AB AB", proposer=_finishing(lambda flushed, views: None)),
        _machines("last flushed", (), "ABC BC", proposer=_finishing(_any)),
        _machines("dead", (), "ABC CB", proposer=_finishing(_last)),
        _machines("tag", UNIFORM, "A B", system=_views(_is_of=_always)),
        _machines(
            *("parts", UNIFORM, "A BA"),
            proposer=broken(Proposer, _make_cut=_cut_as_before),
            follower=broken(Follower, _is_mine=_always),
        ),
        _machines("window", FIFO, "BA", "A B", system=_views(_start=_start_at_zero)),
        _machines("gate", UNIFORM, "B", system=_views(_waits=lambda self, i: False)),
        _nodes("order", Script("", ("ABC",), crashes="C", idle="B"), attach=_announce_at_once),
        _nodes("commit", Script("", ("ABC",), crashes="C", unheard="CA"), _begin=_commit_nothing),
        Ablation(
            "leave",
            {"membership": broken(GroupViews, _propose=_propose_without_leavers)},
            Script("without leave", ("ABC",), leaves="C", unheard="CB"),
        ),
        _nodes(
            "fetch",
            Script("", ("ABCD",), crashes="D", unheard="DA DC", severed="BC", faults=()),
            attach=_fetch_directly,
        ),
        _nodes("state", Script("", ("AB",), joins="C", has_state=True), follow_view=_read_ahead),
        _nodes(
            "start over",
            Script("", ("AB",), joins="C", idle="B", size=2000, capacity=2),
            sending=broken(MulticastSender, begin=_go_on_with_fragments),
        ),
    )
}
"""By name, in the order of the rules of a view change: R1 to R9, then state and large messages."""
