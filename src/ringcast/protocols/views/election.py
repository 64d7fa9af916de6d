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
    it is not                                  if my coordinator is in its proposal, as I see it
Else: my coordinator lives, ask that one. So a member with one bad link cannot tear the others from
their coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ringcast.model import Member, View
    from ringcast.protocols.views.frames import Propose


VERIFIED_MAX = 32


def coordinator(view: View, gone: Collection[Member], me: Member) -> Member:
    """The first of the view that is not gone; at the worst oneself."""
    return next((member for member in view if member not in gone), me)


def verified(view: View, gone: Collection[Member], me: Member) -> list[Member]:
    """Who comes before me, to be asked whether it is there: the first so many. All members may be
    about to ask, and in a large group there would be no end of it."""
    before = view.members[: view.members.index(me)]
    return [member for member in before if member not in gone][:VERIFIED_MAX]


def may_answer(
    source: Member, proposal: Propose, view: View, gone: Collection[Member], me: Member
) -> bool:
    if source == me or len(view) == 1:
        return True
    if source in view:
        before = view.members[: view.members.index(source)]
        return all(member in gone for member in before)
    return coordinator(view, gone, me) in proposal.members
