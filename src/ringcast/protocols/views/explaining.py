"""What a view change waits for, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.protocols.intake import seconds

if TYPE_CHECKING:
    from ringcast.protocols.views.change import ViewChange


def explain(change: ViewChange, now: int) -> list[str]:
    reasons = [
        f"{member} is suspected: {reason}; {change.coordinator} is to see to it"
        for member, reason in change.suspects.items()
    ]
    proposal, promised = change.proposer.proposal, change.follower.promised
    if proposal is not None:
        names = ", ".join(sorted(map(str, change.proposer.awaited)))
        reasons.append(f"view {proposal.id} ({change.proposer.step.value}) waits for {names}")
    elif change.is_frozen:
        so_far = seconds(now - change.frozen_since)
        reasons.append(f"view {promised} was promised {so_far} ago; {promised.creator} makes it")
    return reasons
