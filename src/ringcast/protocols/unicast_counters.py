"""What `stats()` tells of the messages between one member and each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringcast.protocols.unicast import ReliableUnicast


def count(unicast: ReliableUnicast) -> dict[str, object]:
    """Every table with its size, and every counter."""
    return {
        "epoch": unicast._epoch,
        "ticks": unicast.ticks,
        "stale": unicast.stale,
        "refused": unicast.refused,
        "to": {str(peer): sender.stats() for peer, sender in unicast.senders.items()},
        "from": {str(peer): entry.stats() for peer, entry in unicast.receivers.items()},
        "sync_requests": {
            str(peer): {"connection": str(q.conn), "nonce": q.nonce, "asked": q.asked}
            for peer, q in unicast.sync_requests.items()
        },
        "tombstones": {
            str(peer): {
                "connection": str(tomb.conn),
                "delivered": tomb.delivered,
                "final": tomb.is_final,
            }
            for peer, tomb in unicast.tombstones.items()
        },
        "early": {"runs": unicast.early.runs, "bytes": unicast.early.size},
        "strangers": {
            "members": len(unicast.strangers),
            "bytes": unicast.strangers.size,
            "refused": unicast.strangers.refused,
        },
        "loopback": unicast.loopback.size,
    }
