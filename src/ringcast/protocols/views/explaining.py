"""What a view change waits for, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.protocols.stream import seconds

if TYPE_CHECKING:
    from ringcast.protocols.views.change import ViewChange
    from ringcast.protocols.views.layer import GroupViews
    from ringcast.protocols.views.requests import Pairs


def explain(change: ViewChange, pairs: Pairs, now: int) -> list[str]:
    """One sentence for each member that is missed, and for the step that is under way."""
    first = change.coordinator
    reasons = [
        f"{member} is suspected: {reason}; {first} is to see to it"
        for member, reason in change.suspects.items()
    ]
    reasons += [
        f"nothing comes from {member} to this member for {seconds(now - since)}; if others hear "
        f"it, {first} leaves out one of the two"
        for member, since in pairs.unheard.items()
        if member in change.view and member not in change.suspects
    ]
    proposal, promised = change.proposer.proposal, change.follower.promised
    if proposal is not None:
        names = ", ".join(sorted(map(str, change.proposer.awaited)))
        reasons.append(f"view {proposal.id} ({change.proposer.step.value}) waits for {names}")
    elif change.is_frozen:
        so_far = seconds(now - change.frozen_since)
        reasons.append(f"view {promised} was promised {so_far} ago; {promised.creator} makes it")
    return reasons


def count(owner: GroupViews) -> dict[str, object]:
    """Every table and counter of one member's views."""
    change = owner.change
    return {
        "phase": owner.phase.value,
        "view": str(owner.view),
        "following": change.follower.phase.value,
        "proposing": change.proposer.step.value,
        "unanswered_by": sorted(map(str, change.proposer.awaited)),
        "candidates": len(owner.discovery.candidates),
        "parts_met": len(owner.meeting.parts),
        "frames_in_pieces": len(owner.pieces),
        "pieces_refused": owner.pieces.refused,
        "suspects": {str(member): reason for member, reason in change.suspects.items()},
        "elsewhere": sorted(map(str, change.elsewhere)),
        "leavers": len(owner.requests.leavers),
        "held_ms": [round(held_up / 1e6, 3) for held_up in owner.meeting.held],
        "incompatible_peers": owner.agreement.incompatible,
        "ignored": owner.ignored + owner.requests.ignored,
        "challenged": owner.greetings.challenged,
        "refused": dict(change.refused),
    }
