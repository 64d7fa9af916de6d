"""Between what a view change thinks in, members, and what its frames say, places in lists.

A State speaks of the view that its sender is in, a Cut of the views of all parts: whoever gets one
knows the members of those views, or is told them. What names a place that is not there is not from
a member that keeps to the rules: None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.view_change import OWN, Cut, Part, Snapshot, StateStanding
from ringcast.model import Origin, View
from ringcast.protocols.views.frames import Flushable, Propose, State
from ringcast.wire import changes as wire
from ringcast.wire.limits import CHANGE_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.model import Member, Stream, ViewId


def encode_propose(proposal: Propose, known: Sequence[ViewId]) -> wire.Propose:
    assert proposal.settings is not None
    places = tuple(n for n, who in enumerate(proposal.members) if who in proposal.leaving)
    return wire.Propose(proposal.id, proposal.members, proposal.settings, places, tuple(known))


def decode_propose(frame: wire.Propose) -> Propose:
    leaving = frozenset(frame.members[place] for place in frame.leaving)
    return Propose(frame.id, frame.members, leaving, frame.settings)


def encode_state(state: State, known: Sequence[ViewId]) -> wire.State:
    view = state.view
    place = {member: n for n, member in enumerate(view)}
    held = tuple(
        wire.Mark(place[origin.sender], origin.stream, seqno)
        for origin, seqno in state.snapshot.held.items()
        if seqno
    )
    listed, unlisted = list(state.flushed), state.unlisted
    while sum(len(each.members) for each in listed) > CHANGE_MEMBERS_MAX:
        unlisted = listed.pop(0).id  # as if it had been too many of them
    return wire.State(
        state.id,
        view.id,
        () if view.id in known else view.members,
        tuple(state.snapshot.own.items()),
        held,
        tuple(wire.Flushable(each.id, each.members) for each in listed),
        unlisted,
        *state.standing,
    )


def decode_state(frame: wire.State, views: Mapping[ViewId, View]) -> State | None:
    """`views` are those whose members were not to be told."""
    view = View(frame.view_id, frame.members) if frame.members else views.get(frame.view_id)
    if view is None or any(mark.place >= len(view) for mark in frame.held):
        return None
    held = {
        Origin(view.members[place], stream): seqno for place, stream, seqno in frame.held if seqno
    }
    flushed = tuple(Flushable(id, members) for id, members in frame.flushed)
    standing = StateStanding(frame.holding, frame.provider, frame.refused)
    own = Snapshot(dict(frame.own), held)
    return State(frame.id, view, own, flushed, frame.unlisted, standing)


def encode_cut(cut: Cut, proposal: Propose, views: Mapping[ViewId, View]) -> wire.Cut:
    place = {member: n for n, member in enumerate(proposal.members)}
    parts = []
    for part in cut.parts:
        view = views[part.view]
        departed = tuple(
            wire.CutMark(n, stream, seqno, place[part.sources.get(origin, part.members[0])])
            for n, sender in enumerate(view)
            if sender not in part.members
            for origin, seqno in part.cuts.items()
            if origin.sender == sender
            for stream in (origin.stream,)
        )
        places = tuple(place[member] for member in part.members)
        parts.append(wire.PartMarks(part.view, places, departed))
    starts = tuple(
        wire.Mark(place[origin.sender], origin.stream, seqno)
        for origin, seqno in cut.starts.items()
        if seqno
    )
    provider = None if cut.provider is None else place[cut.provider]
    takers = tuple(place[member] for member in cut.takers)
    return wire.Cut(cut.id, tuple(parts), starts, provider, takers)


def decode_cut(
    frame: wire.Cut, proposal: Propose, mine: View, streams: Sequence[Stream]
) -> Cut | None:
    """With the cuts of my own part alone: those of others are not for me."""
    members = proposal.members
    count = len(members)
    named = [*(mark.place for mark in frame.starts), *frame.takers, frame.provider or 0]
    if max(named) >= count:
        return None
    starts = {Origin(who, stream): 0 for who in members for stream in streams}
    starts.update({Origin(members[n], stream): seqno for n, stream, seqno in frame.starts})
    parts = []
    everybody = [place for part in frame.parts for place in part.places]
    if sorted(everybody) != list(range(count)):
        return None  # each member of the proposal is in one part
    for view_id, places, departed in frame.parts:
        together = tuple(members[place] for place in places)
        cuts: dict[Origin, int] = {}
        sources: dict[Origin, Member] = {}
        if view_id == mine.id:
            for who in together:
                for stream in streams:
                    origin = Origin(who, stream)
                    cuts[origin], sources[origin] = starts[origin], who
            for n, stream, seqno, source in departed:
                if n >= len(mine) or source >= count:
                    return None
                origin = Origin(mine.members[n], stream)
                cuts[origin] = seqno
                if seqno != OWN:
                    sources[origin] = members[source]
        parts.append(Part(view_id, together, cuts, sources))
    provider = None if frame.provider is None else members[frame.provider]
    takers = tuple(members[place] for place in frame.takers)
    return Cut(frame.id, tuple(parts), starts, provider, takers)
