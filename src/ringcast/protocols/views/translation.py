"""Between what a view change thinks in, members, and what its frames say, places in lists.

A list of members is told as a difference to one that whoever gets it knows: a proposal to the view
that its receiver is in, the view of a State to the proposal. What was held is told where it differs
from how the view began, if both are in it. So what is told grows with what has changed. What names
a place that is not there is not from a member that keeps to the rules: None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.view_change import OWN, Cut, Part, Snapshot, StateStanding
from ringcast.model import Origin, View
from ringcast.protocols.views.frames import Flushable, Propose, State
from ringcast.wire import changes as wire
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from ringcast.wire.members import are_distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ringcast.model import Member, Stream, ViewId
    from ringcast.protocols.views.election import Rank
    from ringcast.wire.fields import Listed


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
    own = Snapshot(dict(frame.own), held)
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
    return wire.Cut(cut.id, tuple(parts), starts, provider, takers, is_based, cut.secret)


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
    starts = {
        origin: before.get(origin, 0)
        for who in members
        for stream in streams
        for origin in (Origin(who, stream),)
    }
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
    return Cut(frame.id, tuple(parts), starts, provider, takers, frame.secret)
