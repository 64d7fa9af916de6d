"""Health: whether a member can do its work now, for probes and load balancers.

Ready is a member that is in its group, has as many others there as it needs, and has its state. A
member that is slow, or waits for somebody, is ready: `explain` tells of that. That an answer comes
at all shows that its loop is alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.shared import Phase

if TYPE_CHECKING:
    from ringcast.aio.driver import Driver
    from ringcast.events import Closed


class Health(NamedTuple):
    """Of one member."""

    is_ready: bool
    reasons: list[str]
    """Why it is not."""


def health_of(driver: Driver, closed: Closed | None, *, has_state_to_take: bool) -> Health:
    reasons = []
    if closed is not None:
        reasons.append(f"out of its group: {closed.reason}")
    elif driver.membership.phase is not Phase.MEMBER:
        reasons.append("looking for its group")
    few = driver.node.too_few(driver.now())
    if few is not None:
        reasons.append(f"{few.have} of {few.need} members are here")
    if has_state_to_take:
        reasons.append("has not taken the state of its group")
    return Health(not reasons, reasons)
