"""Between what a view change thinks in, members, and what its frames say, places in lists.

A list of members is told as a difference to one that whoever gets it knows: a proposal to the view
that its receiver is in, the view of a State to the proposal. What was held is told where it differs
from how the view began, if both are in it. So what is told grows with what has changed. What names
a place that is not there is not from a member that keeps to the rules: None.

As proposer: to whom a proposal goes is told it as a difference to the view that it is in, as far as
is known; who does not know that view says so, and is told all. As follower: the views are kept that
proposals may be based on: the last ones that began or were promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.view_change import (
    NOTHING_ORDERED,
    OWN,
    Cut,
    OrderStanding,
    Part,
    Snapshot,
    StateStanding,
    order,
)
from ringcast.model import Member, Origin, Stream, View, ViewId
from ringcast.protocols.views.cookies import permit
from ringcast.protocols.views.election import Rank, rank
from ringcast.protocols.views.frames import ChangeFrame, Flushable, Propose, State
from ringcast.wire import changes as wire
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from ringcast.wire.members import are_distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ringcast.protocols.views.agreement import Agreement
    from ringcast.protocols.views.follower import Follower
    from ringcast.protocols.views.proposer import Proposer
    from ringcast.wire.fields import Listed
    from ringcast.wire.frames import Frame


class Basis(NamedTuple):
    """A view, and where its members' streams were when it began."""

    view: View
    starts: Mapping[Origin, int]


def list_members(members: Sequence[Member], base: Sequence[Member]) -> Listed:
    """These, by their places in that list as far as they are in it."""
    place = {member: n for n, member in enumerate(base)}
    listed: list[Member | range] = []
    for member in members:
        n, last = place.get(member), listed[-1] if listed else None
        if n is None:
            listed.append(member)
        elif isinstance(last, range) and last.stop == n:
            listed[-1] = range(last.start, n + 1)
        else:
            listed.append(range(n, n + 1))
    return tuple(listed)


def read_members(listed: Listed, base: Sequence[Member]) -> tuple[Member, ...] | None:
    members: list[Member] = []
    for each in listed:
        if not isinstance(each, range):
            members.append(each)
        elif each.stop <= len(base):
            members += base[each.start : each.stop]
        else:
            return None
        if len(members) > VIEW_MEMBERS_MAX:
            return None
    return tuple(members) if are_distinct(members) else None


def encode_order(
    order: OrderStanding, base: Sequence[Member], gone: tuple[Member, ...] = ()
) -> wire.OrderMarks | None:
    """None: there is nothing to tell. Marks of who is not in that list stand in their order."""
    if order == NOTHING_ORDERED and not gone:
        return None
    known = set(base)
    origins = [who for who in base if who in order.marks]
    origins += [who for who in order.marks if who not in known]
    marks = tuple(order.marks[who] for who in origins)
    listed = list_members(origins, base)
    return wire.OrderMarks(order.position, listed, marks, gone, order.has_forgotten)


def decode_order(frame: wire.OrderMarks | None, base: Sequence[Member]) -> OrderStanding | None:
    if frame is None:
        return NOTHING_ORDERED
    origins = read_members(frame.origins, base)
    if origins is None or len(origins) != len(frame.marks):
        return None
    marks = dict(zip(origins, frame.marks, strict=True))
    return OrderStanding(frame.position, marks, frame.has_forgotten)


def encode_propose(
    proposal: Propose, base: View | None, *, mine: Rank, permit: int = 0
) -> wire.Propose:
    """To who is in that view, as far as is known; None: that is not known. `mine` is the rank of
    the part that proposes."""
    assert proposal.settings is not None
    places = tuple(n for n, who in enumerate(proposal.members) if who in proposal.leaving)
    listed = list_members(proposal.members, () if base is None else base.members)
    base_id = None if base is None else base.id
    return wire.Propose(
        *(proposal.id, listed, proposal.settings, places, base_id),
        has_state=not mine.lacks_state,
        size=-mine.smaller,
        permit=permit,
    )


def decode_propose(frame: wire.Propose, base: View | None) -> Propose | None:
    members = read_members(frame.members, () if base is None else base.members)
    if members is None or (frame.leaving and max(frame.leaving) >= len(members)):
        return None
    leaving = frozenset(members[place] for place in frame.leaving)
    return Propose(frame.id, members, leaving, frame.settings)


def encode_state(
    state: State,
    proposal: Propose,
    base: ViewId | None,
    starts: Mapping[Origin, int],
    is_kept: Callable[[Stream], bool],
) -> wire.State:
    """`base` is the view that the proposer takes this member to be in; `starts`, where the streams
    of the one that it is in were when that began."""
    view, asked = state.view, proposal.members
    is_based = view.id == base and proposal.id.creator in view
    before = starts if is_based else {}
    place = {member: n for n, member in enumerate(view)}
    held = tuple(
        wire.Mark(place[origin.sender], origin.stream, seqno)
        for origin, seqno in state.snapshot.held.items()
        if is_kept(origin.stream) and seqno != before.get(origin, 0)
    )
    flushed = [wire.Flushable(each.id, list_members(each.members, asked)) for each in state.flushed]
    unlisted = state.unlisted
    while sum(len(each.members) for each in flushed) > VIEW_MEMBERS_MAX:
        unlisted = flushed.pop(0).id  # as if it had been too many of them
    return wire.State(
        state.id,
        view.id,
        () if view.id == base else list_members(view.members, asked),
        tuple(state.snapshot.own.items()),
        held,
        tuple(flushed),
        unlisted,
        *state.standing,
        is_based=is_based,
        order=encode_order(state.snapshot.order, view.members),
    )


def decode_state(
    frame: wire.State, proposal: Propose, views: Mapping[ViewId, View], mine: Basis
) -> State | None:
    """`views` are those whose members were not to be told; of `mine` it is known how it began."""
    asked, view = proposal.members, views.get(frame.view_id)
    if frame.members:
        members = read_members(frame.members, asked)
        view = None if members is None else View(frame.view_id, members)
    if view is None or any(mark.place >= len(view) for mark in frame.held):
        return None
    if frame.is_based and view != mine.view:
        return None
    held = {origin: seqno for origin, seqno in mine.starts.items() if frame.is_based and seqno}
    held.update({Origin(view.members[n], stream): seqno for n, stream, seqno in frame.held})
    flushed = []
    for each in frame.flushed:
        members = read_members(each.members, asked)
        if members is None:
            return None
        flushed.append(Flushable(each.id, members))
    standing = StateStanding(frame.holding, frame.provider, frame.refused)
    order = decode_order(frame.order, view.members)
    if order is None:
        return None
    own = Snapshot(dict(frame.own), held, order)
    return State(frame.id, view, own, tuple(flushed), frame.unlisted, standing)


def encode_cut(cut: Cut, proposal: Propose, view: View, mine: Basis) -> wire.Cut:
    """To who is in that view."""
    place = {member: n for n, member in enumerate(proposal.members)}
    parts = []
    for part in cut.parts:
        departed: tuple[wire.CutMark, ...] = ()
        if part.view == view.id:
            staying, in_view = set(part.members), {who: n for n, who in enumerate(view)}
            departed = tuple(
                wire.CutMark(
                    in_view[origin.sender],
                    origin.stream,
                    seqno,
                    place[part.sources.get(origin, part.members[0])],
                )
                for origin, seqno in part.cuts.items()
                if origin.sender not in staying
            )
        places = tuple(place[member] for member in part.members)
        parts.append(wire.PartMarks(part.view, places, departed))
    is_based = view == mine.view
    before = mine.starts if is_based else {}
    starts = tuple(
        wire.Mark(place[origin.sender], origin.stream, seqno)
        for origin, seqno in cut.starts.items()
        if seqno != before.get(origin, 0)
    )
    provider = None if cut.provider is None else place[cut.provider]
    takers = tuple(place[member] for member in cut.takers)
    order = encode_order(cut.order, proposal.members, cut.gone)
    return wire.Cut(cut.id, tuple(parts), starts, provider, takers, is_based, cut.secret, order)


def decode_cut(
    frame: wire.Cut, proposal: Propose, mine: Basis, streams: Sequence[Stream]
) -> Cut | None:
    """With the cuts of my own part alone: those of others are not for me."""
    members, view = proposal.members, mine.view
    count = len(members)
    named = [*(mark.place for mark in frame.starts), *frame.takers, frame.provider or 0]
    if max(named) >= count:
        return None
    before = mine.starts if frame.is_based else {}
    origins = (Origin(who, stream) for who in members for stream in streams)
    starts = {origin: before.get(origin, 0) for origin in origins}
    starts.update({Origin(members[n], stream): seqno for n, stream, seqno in frame.starts})
    parts = []
    everybody = [place for part in frame.parts for place in part.places]
    if sorted(everybody) != list(range(count)):
        return None  # each member of the proposal is in one part
    for view_id, places, departed in frame.parts:
        together = tuple(members[place] for place in places)
        cuts: dict[Origin, int] = {}
        sources: dict[Origin, Member] = {}
        if view_id == view.id:
            for who in together:
                for stream in streams:
                    origin = Origin(who, stream)
                    cuts[origin], sources[origin] = starts[origin], who
            for n, stream, seqno, source in departed:
                if n >= len(view) or source >= count:
                    return None
                origin = Origin(view.members[n], stream)
                cuts[origin] = seqno
                if seqno != OWN:
                    sources[origin] = members[source]
        parts.append(Part(view_id, together, cuts, sources))
    provider = None if frame.provider is None else members[frame.provider]
    takers = tuple(members[place] for place in frame.takers)
    order = decode_order(frame.order, members)
    gone = () if frame.order is None else frame.order.gone
    if order is None:
        return None
    return Cut(frame.id, tuple(parts), starts, provider, takers, frame.secret, order, gone)


RECENT_MAX = 8
"""Views that are kept: those who propose may be behind, or ahead."""


class Translator:
    """What one member's view change says to each other member, and what it is told."""

    def __init__(self, follower: Follower, proposer: Proposer, agreement: Agreement) -> None:
        self.views: dict[ViewId, View] = {}
        """Those that are known of members of my proposal."""
        self._follower = follower
        self._proposer = proposer
        self._agreement = agreement
        self._mine = Basis(follower.view, {})  # when I proposed
        self._rank = rank(follower.me, 0, has_state=False, is_given=False)
        self._places: dict[Member, View] = {}  # who is in which of these views
        self._told_all: set[Member] = set()  # who did not know that view
        self._permits: dict[ViewId, int] = {}  # of these views
        self._parts: dict[Member, ViewId] = {}  # as they have answered
        self._cached: dict[tuple[type, ViewId | None, int], Frame] = {}  # of my proposal
        self._recent = {follower.view.id: follower.view}
        self._began = {follower.view.id: (follower.view, follower.secret)}  # of these
        self._base: ViewId | None = None  # of the proposal that was promised

    # As proposer

    def know(self, views: Iterable[View], permits: Mapping[ViewId, int]) -> None:
        """Members that I am about to ask are in these; with these permits those of other parts."""
        self.views = {view.id: view for view in views}
        self._permits = dict(permits)

    def offer(self, mine: Rank) -> None:
        """I propose; of this rank is the part that I am in."""
        follower, self._rank = self._follower, mine
        self._mine = Basis(follower.view, follower.starts)
        others = [view for view in self.views.values() if view.id != follower.view.id]
        self._places = {member: view for view in (*others, follower.view) for member in view}
        self._told_all.clear()
        self._parts = {}
        self._cached.clear()

    def tell_all(self, member: Member) -> bool:
        """It does not know the view that I took it to be in. Whether that is new."""
        is_new = member in self._places and member not in self._told_all
        self._told_all.add(member)
        return is_new

    def say(self, dest: Member, frame: ChangeFrame) -> Frame:
        match frame:
            case Propose():
                view = self._places.get(dest)
                base = None if dest in self._told_all else view
                permit = 0 if view is None else self._permits.get(view.id, 0)
                key = Propose, None if base is None else base.id, permit
                if key not in self._cached:
                    self._cached[key] = encode_propose(frame, base, mine=self._rank, permit=permit)
                return self._cached[key]
            case State():
                proposal, starts = self._follower.proposal, self._follower.starts
                assert proposal is not None
                return encode_state(frame, proposal, self._base, starts, self._agreement.is_kept)
            case Cut():
                if not self._parts:
                    self._parts = {who: part.view for part in frame.parts for who in part.members}
                view = self.views[self._parts[dest]]
                if (Cut, view.id, 0) not in self._cached:
                    assert self._proposer.proposal is not None
                    cut = encode_cut(frame, self._proposer.proposal, view, self._mine)
                    self._cached[Cut, view.id, 0] = cut
                return self._cached[Cut, view.id, 0]
            case _:
                return frame

    def hear_state(self, frame: wire.State) -> State | None:
        """In answer to my proposal."""
        assert self._proposer.proposal is not None
        return decode_state(frame, self._proposer.proposal, self.views, self._mine)

    def note(self, view: View) -> bool:
        """A member of my proposal is in this view. Whether that may be."""
        return self.views.setdefault(view.id, view) == view

    # As follower

    def hear_propose(self, frame: wire.Propose) -> Propose | None:
        """None: I do not know the view that it is based on."""
        return decode_propose(frame, None if frame.base is None else self._recent.get(frame.base))

    def is_behind(self, source: Member, base: ViewId | None) -> bool:
        """Whether it takes me to be in a view with it that is over here. One that I have promised,
        and that has yet to begin here, is not."""
        view = None if base is None else self._recent.get(base)
        if view is None or order(view.id) >= order(self._follower.view.id):
            return False
        return source in view

    def was_with(self, member: Member) -> bool:
        """Whether it was in a view with me lately."""
        return any(member in view for view, _ in self._began.values())

    def is_permitted(self, source: Member, frame: wire.Propose) -> bool:
        """Whether it was in a view with me lately, or who coordinated one of mine lets it."""
        permits = (permit(secret, source) for _, secret in self._began.values())
        return self.was_with(source) or frame.permit in permits

    def begin(self, view: View, secret: int) -> None:
        """This view has begun."""
        self.keep(view)
        self._began[view.id] = view, secret
        while len(self._began) > RECENT_MAX:
            del self._began[next(iter(self._began))]

    def promise(self, proposal: Propose, base: ViewId | None) -> None:
        self._base = base
        self.keep(proposal.view)

    def hear_cut(self, frame: wire.Cut) -> Cut | None:
        """Of the proposal that was promised."""
        proposal, mine = self._follower.proposal, Basis(self._follower.view, self._follower.starts)
        if proposal is None or proposal.id != frame.id:
            return None
        return decode_cut(frame, proposal, mine, self._agreement.settings.streams)

    def keep(self, view: View) -> None:
        """Proposals may be based on this one."""
        self._recent.pop(view.id, None)
        self._recent[view.id] = view
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]
