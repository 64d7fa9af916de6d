"""What a proposer concludes from the States of all members of its proposal.

Parts are not negotiated: they are the answers, grouped by the view that each member says it is in.
The cut of a part is, for each origin, the most that any of its members held when it promised. An
origin that is in the part holds all that it has sent. One that is not, and whose stream nobody
retains, is cut at what each member has.

A view that one responder has installed may have to be completed by others first, else they would
lose it though nobody ever parted them:

    responder q is in view v; responder p is in an older one, belongs to v, and v is the last
    proposal that p has flushed and that is not dead     → p installs v first
    another responder belongs to a proposal and has not flushed it: it never will, since it has
    promised a higher one                                → that proposal is dead
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.core.view_change import NOTHING_ORDERED, OWN, Cut, Part, order
from ringcast.model import Member, Origin, Stream, View, ViewId
from ringcast.wire.changes import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ringcast.protocols.views.frames import Flushable, Propose, State

    States = Mapping[Member, State]


def to_finish(states: States) -> dict[Member, ViewId]:
    """Who has to install which view first."""
    found: dict[Member, ViewId] = {}
    for view in sorted({state.view for state in states.values()}, key=lambda view: order(view.id)):
        for member, state in states.items():
            is_behind = order(state.view.id) < order(view.id)
            if member in view and is_behind and member not in found:
                alive = (each.id for each in reversed(state.flushed) if not is_dead(each, states))
                if next(alive, None) == view.id:
                    found[member] = view.id
    return found


def is_dead(proposal: Flushable, states: States) -> bool:
    """Nobody has installed it, nor ever will."""
    return any(
        member in states and not states[member].may_have_flushed(proposal.id)
        for member in proposal.members
    )


def make_cut(proposal: Propose, states: States, is_kept: Callable[[Stream], bool]) -> Cut:
    """`is_kept` says of a stream whether a survivor holds what a departed origin has sent."""
    groups: dict[View, list[Member]] = {}
    for member in proposal.members:
        groups.setdefault(states[member].view, []).append(member)
    parts = tuple(_part(view, members, states, is_kept) for view, members in groups.items())
    starts = {
        Origin(member, stream): seqno
        for member in proposal.members
        for stream, seqno in states[member].snapshot.own.items()
    }
    cut = Cut(proposal.id, parts, starts, *share_state(proposal, parts, states))
    return cut if len(parts) == 1 else _with_order(cut, states)


def _with_order(cut: Cut, states: States) -> Cut:
    """The most that anybody of the leading part held is its cut: so that one's standing is that at
    the cut."""
    lead = cut.lead
    view = states[lead.members[0]].view
    source = lead.sources.get(Origin(view.coordinator, Stream.TOTAL))
    order = NOTHING_ORDERED if source is None else states[source].snapshot.order
    gone = tuple(member for member in view if member not in lead.members)
    return replace(cut, order=order, gone=gone)


def share_state(
    proposal: Propose, parts: Sequence[Part], states: States
) -> tuple[Member | None, tuple[Member, ...]]:
    """Who gives its state, as it is at the cut, and who takes it.

    The leading part has a holder, a member with a state; of several such parts it is the largest,
    of several such the first in the proposal. Its first holder that has refused nobody gives:
        to all members of other parts, also to those with a state or in the middle of taking one;
        to members of its own part that lack a state and are not in the middle of taking one.
    If every holder has refused somebody, a holder gives to those of its part whom it has not
    refused. If there are none, a holder gives to other parts alone. Who was refused waits: a member
    that is taking a state now may give it in a later view.
    If no member is a holder, the leading part's first member gives, if every member may have a
    state. The messages that a member without any was sent before are in no state, and are lost.
    """
    standings = {who: states[who].standing for who in proposal.members}
    staying = [who for who in proposal.members if who not in proposal.leaving]
    wanting = [who for who in staying if standings[who].holding is not Holding.NONE]
    refused = {who for standing in standings.values() for who in standing.refused}
    holders = [who for who in wanting if standings[who].holding in (Holding.HOLDS, Holding.KEEPS)]
    lacking = [who for who in wanting if standings[who].holding is Holding.LACKS]
    together = {who: part.members for part in parts for who in part.members}
    given = {
        who
        for who in lacking
        if standings[who].provider in holders and standings[who].provider in together[who]
    }
    asking = {who: standings[who].refused for who in lacking if who not in given}
    able = [who for who in holders or wanting if who not in refused]
    if not able:
        able = [who for who in holders if any(who not in by for by in asking.values())]
    if not able and (given or len({together[who] for who in holders}) > 1):
        able = holders
    if not able or (not holders and len(wanting) < len(staying)):
        return None, ()
    leading = max(
        parts, key=lambda part: (not set(holders).isdisjoint(part.members), len(part.members))
    )
    provider = next((who for who in leading.members if who in able), able[0])
    takers = []
    for who in wanting:
        is_apart = who not in together[provider] and standings[who].holding is not Holding.KEEPS
        is_asking = who in asking and provider not in asking[who]
        if who != provider and (is_apart or is_asking):
            takers.append(who)
    return provider, tuple(takers)


def _part(
    view: View, members: list[Member], states: States, is_kept: Callable[[Stream], bool]
) -> Part:
    cuts: dict[Origin, int] = {}
    sources: dict[Origin, Member] = {}
    staying = set(members)
    streams = sorted({stream for m in members for stream in states[m].snapshot.own})
    for sender in view:
        for stream in streams:
            origin = Origin(sender, stream)
            if sender in staying:
                cuts[origin] = states[sender].snapshot.own.get(stream, 0)
                sources[origin] = sender
            elif is_kept(stream):
                held = {member: states[member].snapshot.held.get(origin, 0) for member in members}
                cuts[origin] = max(held.values())
                sources[origin] = next(m for m in members if held[m] == cuts[origin])
            else:
                cuts[origin] = OWN
    return Part(view.id, tuple(members), cuts, sources)
