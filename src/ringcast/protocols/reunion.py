"""Reunion: when groups of one name that were parted, or never met, are to become one.

Coordinators see to it. They keep asking around, so in the end one hears of another group.

The larger one leads; of two as large, the one with the lower coordinator. Whoever leads says so,
and whoever does not asks it with MergeRequest, again and again for a while. On MergeRequest: keep
it. It is good for a moment only: its sender repeats it for as long as it holds. Whoever has had to
leave somebody out because it was not heard does not merge for a while after
    that; and for twice as long if it had merged since the last time. In quiet times that is
    forgotten. So a link that comes and goes makes and breaks a group less and less often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.protocols.change import REPEAT_MAX_NS, REPEAT_START_NS
from ringcast.wire.limits import PARTS_MAX, VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from ringcast.model import Member, View, ViewId

PATIENCE_NS = 2_000_000_000
"""How long another group is asked, until somebody hears of it anew."""

FRESH_NS = 3 * REPEAT_MAX_NS
"""How long a request counts after it was last repeated."""

REQUESTS_MAX = VIEW_MEMBERS_MAX

WAIT_START_NS = 1_000_000_000
WAIT_MAX_NS = 16_000_000_000
QUIET_NS = 60_000_000_000
"""How long not to merge after a loss, at first and at the most; and what is quiet for how long."""


@dataclass(frozen=True, slots=True)
class Request:
    """Another group would come to mine."""

    view: View
    at: int


class Reunion:
    """What one coordinator knows of other groups."""

    def __init__(self) -> None:
        self.leader: Member | None = None
        """Whom this member asks to make one group of both."""
        self.until = 0
        """When it stops asking."""
        self.interval = REPEAT_START_NS
        self.asked_with: ViewId | None = None
        """The view of its own group that the leader was last told of."""
        self.requests: dict[Member, Request] = {}
        """Who asks this member."""
        self._wait = 0
        self._not_before = 0
        self._partitioned_at = 0
        self._has_merged = False  # since somebody was left out

    def part(self, now: int) -> None:
        """Somebody had to be left out."""
        if now - self._partitioned_at > QUIET_NS:
            self._wait = 0
        elif self._has_merged:
            self._wait = min(2 * self._wait, WAIT_MAX_NS)
        self._wait = max(self._wait, WAIT_START_NS)
        self._partitioned_at = now
        self._not_before = now + self._wait
        self._has_merged = False

    def merge(self) -> None:
        """Groups have come together."""
        self._has_merged = True

    def waits(self, now: int) -> int:
        """For how long yet this member does not merge."""
        return max(0, self._not_before - now)

    def ask(self, leader: Member, now: int) -> None:
        self.leader = leader
        self.asked_with = None
        self.until = now + PATIENCE_NS
        self.interval = REPEAT_START_NS

    def note(self, source: Member, view: View, now: int) -> None:
        self.requests.pop(source, None)
        if len(self.requests) < REQUESTS_MAX:
            self.requests[source] = Request(view, now)

    def take(self, mine: View, now: int) -> list[View]:
        """Groups that can be made one with mine: apart from it, and from each other."""
        taken: list[View] = []
        members = set(mine)
        for request in self.requests.values():
            is_apart = members.isdisjoint(request.view)
            has_room = len(members) + len(request.view) <= VIEW_MEMBERS_MAX
            fits = has_room and 1 + len(taken) < PARTS_MAX
            if request.at > now - FRESH_NS and is_apart and fits:
                taken.append(request.view)
                members.update(request.view)
        self.requests.clear()
        return taken

    def end(self) -> None:
        """This member coordinates nothing any more."""
        self.leader = None
        self.requests.clear()
