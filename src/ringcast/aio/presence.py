"""Presence: whether this member is in its group, and how it comes and goes.

On enter: look for the group until this member is in it, or JoinTimeout. Then its state is taken.
On leave: what was gathered gets its seqnos; the others receive what was sent, and know that this
    member goes. That takes `leave_timeout_s` at the most, from when it was first asked for.
On exclusion: it is looked for anew; whoever sends waits until this member is back.
On the end: who waits is told with GroupClosed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringcast.aio.gate import Gate
from ringcast.aio.reach import check_address
from ringcast.checks import check_function
from ringcast.core.shared import Phase
from ringcast.errors import GroupClosed, UsageError
from ringcast.model import Member
from ringcast.protocols.views.layer import GOODBYE_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.aio.driver import Driver
    from ringcast.aio.member_host import MemberHost
    from ringcast.aio.state import StateExchange
    from ringcast.events import Closed, Undeliverable
    from ringcast.model import View


class Presence:
    """Of one member in its group."""

    def __init__(self, driver: Driver, wake_all: Callable[[], None]) -> None:
        """`wake_all`: whoever waits for anything looks again."""
        self.closed: Closed | None = None
        self.view: View | None = None
        self.is_leaving = False
        self.is_hurried = False
        """There is no time to leave in good order."""
        self.losses = ""
        """Once it has left: what may not have been delivered, for people."""
        self.undeliverable: list[Undeliverable] = []
        """Since it is leaving."""
        self.changed = Gate()
        self._driver = driver
        self._wake_all = wake_all
        self._leave_by: float | None = None  # by the clock of the loop

    @property
    def is_in(self) -> bool:
        """Messages can be sent; not while this member is looking for its group."""
        return self._driver.membership.phase is Phase.MEMBER

    async def until_in(self) -> None:
        self.check_open()
        while not self.is_in:
            await self.changed.wait()
            self.check_open()

    async def until_view(self, condition: Callable[[View], bool]) -> View:
        check_function("condition", condition)
        while not (self.is_in and self.view is not None and condition(self.view)):
            self.check_open()
            await self.changed.wait()
        return self.view

    def check_open(self) -> None:
        if self.closed is not None:
            raise GroupClosed(self.closed.reason)
        if self.is_leaving:
            raise GroupClosed("this member is leaving its group")

    def check_peer(self, to: Member | None) -> None:
        """What only looks like a member is equal to it, and would be taken for it until it is sent
        to."""
        if to is None:
            return
        if not isinstance(to, Member):
            raise UsageError(
                f"a member is meant, not {to!r}: pass group.view['its name'], or a message's sender"
            )
        assert self.view is not None
        if to not in self.view:
            check_address(to.address, insecure=self._driver.node.config.insecure)

    async def enter(self, place: MemberHost, state: StateExchange | None, limit_s: float) -> None:
        """Find the group, and be let in."""
        self._driver.start()
        try:
            async with asyncio.timeout(limit_s):
                await self.until_in()
        except GroupClosed:  # it had to exist, or cannot be joined
            place.raise_refusal(self._driver)
            place.raise_join_timeout(self._driver, "")
        except TimeoutError:
            place.raise_join_timeout(self._driver, f" within {limit_s:g} s")
        while state is not None and state.is_due:  # which may take long
            await state.take()
            await self.until_in()

    def leave_within(self, limit_s: float | None = None) -> float:
        """How long leaving may still take, of `limit_s` or `leave_timeout_s`. The first who asks
        begins with it."""
        now = asyncio.get_running_loop().time()
        if self._leave_by is None:
            configured = self._driver.node.config.membership.leave_timeout_s
            self._leave_by = now + (configured if limit_s is None else limit_s)
        return max(0.0, self._leave_by - now)

    async def leave(self, limit_s: float | None = None) -> None:
        """Go, when the others have everything and know; or when it takes too long."""
        within_s = self.leave_within(limit_s)
        await self._driver.gathered.until_settled(within_s - within_s / GOODBYE_SHARE)
        if not self.is_leaving and self.closed is None:
            self.is_leaving = True
            self._wake_all()  # those who send are told
            self._driver.leave(self.leave_within())
        try:
            async with asyncio.timeout_at(self._leave_by):
                while self._driver.membership.phase is not Phase.OUT:
                    await self.changed.wait()
        except TimeoutError:
            pass  # what was not taken is in the Closed that follows

    def hurry(self) -> None:
        """Whatever it waits for: be gone at once."""
        self.is_hurried = True
