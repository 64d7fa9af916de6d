"""BROKEN on purpose, not for use: protocols with one of their rules taken away.

Each shows that its rule is needed: in its scenario the exploration finds what it prevents. What
goes well without its rule would be a rule too many, or an exploration that sees too little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines, GroupState
from ringcast.core.view_change import Begin, Cut, Part, order
from ringcast.events import Event
from ringcast.explore.broken import Ablation, always, broken, nothing, reading_ahead, without
from ringcast.explore.explorer import STALL
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.system import Scenario
from ringcast.explore.total_ablations import OF_TOTAL
from ringcast.explore.unicast import LATE_EFFECT
from ringcast.explore.view_steps import Script
from ringcast.explore.view_world import NOT_IN, Person, World
from ringcast.explore.views import Proposals, Views
from ringcast.model import Member, Origin, Stream, ViewId
from ringcast.protocols.connection import Input
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stream import Timer
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_receiving import SyncRequest
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.protocols.views.fetch import Fetch
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.frames import ChangeFrame, Propose, Wishes
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.parts import make_cut
from ringcast.protocols.views.proposer import Proposer
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.changes import Install
from ringcast.wire.frames import Close, Commit, Sync, SyncOk, UnicastData


def muted(
    method: Callable[..., None], is_muted: Callable[..., bool] = always
) -> Callable[..., None]:
    """A method without effects, where `is_muted` says so of the same arguments."""

    def act(*given: Any) -> None:
        *rest, out = given
        method(*rest, Effects() if is_muted(*rest) else out)

    return act


def _commit_at_once(self: MulticastSender, out: Effects) -> None:
    MulticastSender._hold(self, out)
    if self.window.high > self.window.gate:
        self.window.gate = self.window.high
        out.datagram(None, Commit(self.window.gate))


def _answer_again(self: UnicastSender, sync: Sync, *rest: Any) -> None:
    self.nonce = sync.nonce - 1
    UnicastSender.on_sync(self, sync, *rest)


def _await_any(self: ReliableUnicast, source: Member, ok: SyncOk) -> bool:
    self.sync_requests[source] = SyncRequest(ok.conn, ok.nonce, since=0)
    return True


def _close_any(self: ReliableUnicast, source: Member, close: Close) -> None:
    entry = self.receivers.get(source)
    ReliableUnicast._on_close(self, source, close if entry is None else Close(entry.conn))


def _open_with_any(self: ReliableUnicast, source: Member, data: UnicastData, *rest: Any) -> None:
    if self._known(source) is None:
        self._open(source, data.conn, data.first - 1, (), rest[0])
    ReliableUnicast._on_data(self, source, data, *rest)


# View changes of members with simple streams


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
            self._cut = None


def _lower_matters(self: Views, person: Person, frame: ChangeFrame) -> bool:
    if isinstance(frame, Propose):
        return Views._matters(self, person, frame)
    return person.is_there and order(frame.id) > order(person.follower.view.id)


def _hears_who_is_asked(self: Views, person: Person) -> bool:
    proposal, is_frozen = person.follower.proposal, person.follower.phase is Phase.FROZEN
    is_asked = proposal is not None and self.origin.sender in proposal.members
    return (is_frozen and is_asked) or Views._hears(self, person)


def _with_cuts(cut: Cut, mark: Callable[[Part, Origin, int], int]) -> Cut:
    """The same with other seqnos."""
    parts = (
        part._replace(cuts={origin: mark(part, origin, at) for origin, at in part.cuts.items()})
        for part in cut.parts
    )
    return replace(cut, parts=tuple(parts))


def _cutting(
    holders: Callable[[Proposer, Part, Member], Collection[Member]],
) -> Callable[[Proposer], Cut]:
    """To cut at the most that these members of a part hold of a sender, if there are any."""

    def make(self: Proposer) -> Cut:
        def mark(part: Part, origin: Origin, seqno: int) -> int:
            held = (self._states[who].snapshot.held for who in holders(self, part, origin.sender))
            return max((each.get(origin, 0) for each in held), default=seqno)

        return _with_cuts(Proposer._make_cut(self), mark)

    return make


def _others(proposer: Proposer, part: Part, sender: Member) -> Collection[Member]:
    """Not the sender itself."""
    return set(part.members) - {sender} if sender in part.members else ()


def _mine(proposer: Proposer, part: Part, sender: Member) -> Collection[Member]:
    """Of a departed sender the proposer, not whoever holds most."""
    return {_me(proposer)}.intersection(part.members) if sender not in part.members else ()


def _me(proposer: Proposer) -> Member:
    assert proposer.proposal is not None
    return proposer.proposal.id.creator


def _finishing(
    choose: Callable[[list[ViewId], set[ViewId]], ViewId | None],
) -> Callable[[Proposer], dict[Member, ViewId]]:
    """To finish another view than it should, of those that somebody has flushed and of those that
    somebody is in."""

    def behind(self: Proposer) -> dict[Member, ViewId]:
        views = {state.view.id for state in self._states.values()}
        return {
            member: id
            for member, state in self._states.items()
            if (id := choose([each.id for each in state.flushed], views)) is not None
        }

    return behind


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
        if not self._waits() and person.held > person.now.delivered:
            person.deliver(person.held, by_commit=False)
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


def _start_at_zero(self: Views, person: Person, begin: Begin) -> int:
    return Views._start(self, person, begin) if person.held != NOT_IN else 0


# View changes of whole nodes


def _propose_without_leavers(self: GroupViews, *rest: Any) -> None:
    """A leaver is not in the proposal: nobody gets what it holds."""
    leavers, self.requests.leavers = self.requests.leavers, set()
    self.change.elsewhere |= leavers
    GroupViews._propose(self, *rest)


def _fetch_directly(self: ViewStreams, group: GroupState, deadlines: Deadlines) -> None:
    """What is lacking is asked of its holder alone, never by way of the proposer."""

    def ask(self: Fetch, *rest: Any) -> bool:
        self._tries = 0
        return Fetch.ask(self, *rest)

    ViewStreams.attach(self, group, deadlines)
    self.fetch = broken(Fetch, ask=ask)(self.me, self._half_of, deadlines.owner("flush"))


def _commit_nothing(self: ViewStreams, begin: Begin, *rest: Any) -> None:
    """A view begins without the uniform messages up to the cut that nobody has committed."""

    def mark(part: Part, origin: Origin, seqno: int) -> int:
        is_gated = origin.stream is Stream.UNIFORM and origin in self.receivers
        return self.receivers[origin].window.gate if is_gated and self.me in part.members else seqno

    ViewStreams._begin(self, replace(begin, cut=_with_cuts(begin.cut, mark)), *rest)


def _go_on_with_fragments(self: MulticastSender, *rest: Any) -> None:
    """A large message goes on where it is, though somebody new lacks its beginning."""
    left, self.fragments.rest = self.fragments.rest, deque()
    MulticastSender.begin(self, *rest)
    self.fragments.rest = left


def _read_ahead(self: ViewStreams, events: Sequence[Event], **_: object) -> None:
    """A joiner that is to get a state reads on before it comes."""
    ViewStreams.follow_view(self, events, pauses=False)


_multicast = partial(without, "protocol", ViewStreams)
_unicast = partial(without, "protocol", ReliableUnicast)
_nodes = partial(without, "multicast", ViewStreams)


def _sender(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    return _unicast(scenario, finding, sender=broken(UnicastSender, **parts))


def _machines(
    targets: str, stream: Stream = Stream.FIFO, views: str = "ABC", messages: int = 1, **parts: Any
) -> Ablation:
    """Members that propose these sets, each by the first that is named."""
    sets = tuple(targets.split())
    scenario = Proposals("", tuple(views.split()), "A", stream, messages, True, len(sets), 0, sets)
    return without("system", Views, scenario, **parts)


def _proposing(targets: str, stream: Stream = Stream.FIFO, **parts: Any) -> Ablation:
    messages = 0 if "_behind" in parts else 1  # views alone are finished
    return _machines(targets, stream, "ABC", messages, proposer=broken(Proposer, **parts))


UNIFORM = Stream.UNIFORM
_GROUP, _PAIR, _SYNC, *_ = SCENARIOS.values()
_ONE_LOST = replace(_PAIR["loss"], messages=1)
_NEVER_GOT = "a receiver counts as delivered what its application never got (S2)"
_WENT_BACK = "a receiver went back to an older connection (S6)"
_TOO_MANY = "more new connections than reasons to ask for one (Y4)"
_TWICE = "a message was delivered twice (S1, Y3)"
_UNTOLD = "a connection ended, and what it left undone is not told (S8)"
_NOT_ALL = "a uniform message was delivered before all held it (U3)"

_OF_MULTICAST = {
    "highest": _multicast(
        *(_GROUP["loss"], STALL),
        sending=broken(MulticastSender, handle_timeout=muted(MulticastSender.handle_timeout)),
    ),
    "reack": _multicast(
        *(_GROUP["loss"], STALL),
        receiver=broken(
            MulticastReceiver,
            on_watermark=muted(
                MulticastReceiver.on_watermark,
                lambda self, *_: not self._timers.is_armed(Timer.ACK),
            ),
            _on_duplicate=nothing,
        ),
    ),
    "hold": _multicast(
        _GROUP["uniform"], _NOT_ALL, sending=broken(MulticastSender, _hold=_commit_at_once)
    ),
}

_OF_UNICAST = {
    "ack-conn": _sender(_PAIR["stale"], LATE_EFFECT, is_current=always),
    "close-conn": _unicast(_PAIR["stale"], LATE_EFFECT, _on_close=_close_any),
    "first": _unicast(_PAIR["loss"], _NEVER_GOT, _on_data=_open_with_any),
    "nonce": _sender(_SYNC["drop"], _TOO_MANY, on_sync=_answer_again),
    "order": _unicast(_PAIR["stale"], _TWICE, _known=nothing),
    "outstanding": _unicast(replace(_SYNC["drop"], messages=1), _WENT_BACK, _is_awaited=_await_any),
    "reack": _unicast(_ONE_LOST, STALL, receiver=broken(UnicastReceiver, _on_duplicate=nothing)),
    "report": _sender(_PAIR["crash"], _UNTOLD, give_up=lambda self, *_: self._step(Input.GONE)),
    "resend": _sender(_ONE_LOST, STALL, _resend=nothing),
    "sync-ack": _unicast(
        replace(_SYNC["drop and loss"], messages=1),
        STALL,
        _on_sync_ok=muted(
            ReliableUnicast._on_sync_ok, lambda self, who, ok, _: not self._is_awaited(who, ok)
        ),
    ),
    "tombstone": _unicast(_SYNC["drop"], _TWICE, _remembered=nothing),
}
"""What goes with each rule, of views too: docs/howto/explore.md."""

_OF_VIEWS = {
    "promise": _machines(
        *("AB B", UNIFORM), follower=AnswersLower, _matters=_lower_matters, _may_matter=always
    ),
    "freeze": _machines("AB", _may_send=always),
    "deaf": _machines(
        *("C", UNIFORM), _hears=lambda self, who: who.follower.phase is not Phase.FLUSHED
    ),
    "deaf to all": _machines("A CA", UNIFORM, _hears=_hears_who_is_asked),
    "own": _proposing("AB", _make_cut=_cutting(_others)),
    "most held": _proposing("AB CB", UNIFORM, _make_cut=_cutting(_mine)),
    "all flushed": _proposing("AB", _all_have_flushed=lambda self: _me(self) not in self.awaited),
    "hold": _machines("BC CA", _flush=_deliver_fetched),
    "finish": _proposing("AB AB", _behind=lambda self: {}),
    "last flushed": _proposing("ABC BC", _behind=_finishing(_any)),
    "dead": _proposing("ABC CB", _behind=_finishing(_last)),
    "tag": _machines("A B", UNIFORM, _is_of=always),
    "parts": _machines(
        *("A BA", UNIFORM),
        proposer=broken(Proposer, _make_cut=_cut_as_before),
        follower=broken(Follower, _is_mine=always),
    ),
    "window": _machines("BA", views="A B", _start=_start_at_zero),
    "gate": _machines("B", UNIFORM, _waits=lambda self: False),
    "order": _nodes(Script("", ("ABC",), crashes="C", idle="B"), attach=reading_ahead),
    "commit": _nodes(Script("", ("ABC",), crashes="C", unheard="CA"), _begin=_commit_nothing),
    "leave": without(
        *("membership", GroupViews, Script("", ("ABC",), leaves="C", unheard="CB")),
        _propose=_propose_without_leavers,
    ),
    "fetch": _nodes(
        Script("", ("ABCD",), crashes="D", unheard="DA DC", severed="BC", faults=()),
        attach=_fetch_directly,
    ),
    "state": _nodes(Script("", ("AB",), joins="C", has_state=True), follow_view=_read_ahead),
    "start over": _nodes(
        Script("", ("AB",), joins="C", idle="B", size=2000, capacity=2),
        sending=broken(MulticastSender, begin=_go_on_with_fragments),
    ),
}
"""In the order of the rules of a view change: R1 to R9, then state and large messages."""

ABLATIONS = {
    "multicast": _OF_MULTICAST,
    "unicast": _OF_UNICAST,
    "sync": _OF_UNICAST,
    "views": {
        rule: each._replace(scenario=replace(each.scenario, name=f"without {rule}"))
        for rule, each in _OF_VIEWS.items()
    },
    "total": {
        rule: each._replace(scenario=replace(each.scenario, name=f"without {rule}"))
        for rule, each in OF_TOTAL.items()
    },
}
"""By command: what is taken away → the protocol without it, and what comes of it."""
