"""Data structures that are the same at all members of a group: dicts, locks, counters, leaders.

    space = replicated.Space()
    prices, reprice = space.dict("prices"), space.lock("reprice")
    async with space.join("shop"):
        async with reprice as token:
            await prices.set("tea", 4.2, token=token)

They stand on total order (`guarantee="total"`): all members do the same operations in the same
order, views among them, so they cannot diverge. All that they use of a group is public.
"""

from ringcast.replicated.encoding import BYTES, JSON, Codec, Token
from ringcast.replicated.handles import (
    ABSENT,
    Changed,
    Counter,
    Dict,
    Leader,
    Lock,
    Removed,
    Reset,
)
from ringcast.replicated.machine import Diverged, Lost
from ringcast.replicated.operation import Unanswered
from ringcast.replicated.space import Space

__all__ = [
    "ABSENT",
    "BYTES",
    "JSON",
    "Changed",
    "Codec",
    "Counter",
    "Dict",
    "Diverged",
    "Leader",
    "Lock",
    "Lost",
    "Removed",
    "Reset",
    "Space",
    "Token",
    "Unanswered",
]
