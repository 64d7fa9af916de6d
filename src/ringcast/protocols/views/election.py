"""Who proposes the next view, and whose proposal is answered.

Safety does not depend on any of it: whatever is proposed, by whomever, a view change keeps what it
promises. It is here so that changes come to an end.

Who proposes: the first member of the view that I neither suspect nor know to be in another view by
now. Whoever has promised a proposal waits for its proposer; if that stays silent, for the members
of its view in their order, a while for each (`passed`).

Whom to answer:
    nobody is in my view with me               anybody
    it is in my view                           if all that stand before it are suspected, are in
                                               another view, or have been waited for
    it is not                                  if my coordinator is in its proposal, as I see it,
                                               and its part is better than mine
Else: my coordinator lives, ask that one. So a member with one bad link cannot tear the others from
their coordinator. Nor can one that slept while others went on: whoever takes me to be in a view
with it that is over here counts me, and others of my part, as its own part, which is not better.

Of two parts the better leads: one that has a state, then the larger, then one whose settings
somebody asked for, then the one with the lower coordinator; who only looks for a group comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from ringcast.model import Address, Member, View
    from ringcast.protocols.views.frames import Propose


VERIFIED_MAX = 32


class Rank(NamedTuple):
    """Parts in order, the best first."""

    lacks_state: bool
    smaller: int
    """Its size, but negative; who looks is in a group of 0."""
    is_given_nothing: bool
    coordinator: Address
    incarnation: int


def rank(coordinator: Member, size: int, *, has_state: bool, is_given: bool) -> Rank:
    """`is_given`: somebody asked for its settings."""
    return Rank(not has_state, -size, not is_given, coordinator.address, coordinator.incarnation)


def coordinator(view: View, gone: Collection[Member], me: Member) -> Member:
    """The first of the view that is not gone; at the worst oneself."""
    return next((member for member in view if member not in gone), me)


def verified(view: View, gone: Collection[Member], me: Member) -> list[Member]:
    """Who comes before me, to be asked whether it is there: the first so many. All members may be
    about to ask, and in a large group there would be no end of it."""
    before = view.members[: view.members.index(me)]
    return [member for member in before if member not in gone][:VERIFIED_MAX]


def may_answer(
    source: Member,
    proposal: Propose,
    view: View,
    gone: Collection[Member],
    me: Member,
    *,
    is_better: bool,
) -> bool:
    """`is_better`: its part is better than mine."""
    if source == me or len(view) == 1:
        return True
    if source in view:
        before = view.members[: view.members.index(source)]
        return all(member in gone for member in before)
    return is_better and coordinator(view, gone, me) in proposal.members
