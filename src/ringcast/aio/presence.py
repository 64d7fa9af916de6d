"""Presence: whether this member is in its group, and how it comes and goes.

On enter: look for the group until this member is in it, or JoinTimeout. Then its state is taken.
On leave: what was gathered gets its seqnos; the others receive what was sent, and know that this
    member goes. That takes `leave_timeout_s` at the most, from when it was first asked for.
On the end of the block, on an exception, on a cancellation: leave, and then go on with the
    exception. The first cancellation waits for that, also if this member is leaving already.
On the second cancellation, or Ctrl-C: be gone at once. A note on it says what may not have been
    delivered, and so does the log. Blocks around this one are gone at once too.
On SIGTERM (termination.py): the same as on a cancellation; then the process ends.

Nobody leaves where nothing can be awaited any more: where the coroutine is thrown away, and in a
process of `ringcast.testing` that has crashed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringcast.aio.gate import Gate
from ringcast.aio.reach import check_address
from ringcast.aio.termination import TERMINATION, Block, is_urgent, urgent
from ringcast.checks import check_function
from ringcast.core.shared import Phase
from ringcast.errors import GroupClosed, UsageError
from ringcast.model import Member, View
from ringcast.protocols.views.layer import GOODBYE_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ringcast.aio.driver import Driver
    from ringcast.aio.group import Group
    from ringcast.aio.host import Host
    from ringcast.aio.member_host import MemberHost
    from ringcast.aio.state import StateExchange
    from ringcast.events import Closed, Undeliverable


class Presence:
    """Of one member in its group."""

    def __init__(self, driver: Driver, wake_all: Callable[[], None]) -> None:
        """`wake_all`: all tasks that wait look again."""
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
            raise GroupClosed(out_of(self.closed))
        if self.is_leaving:
            raise GroupClosed("this member is leaving its group")

    def check_peer(self, to: Member | None) -> None:
        if to is not None:
            check_member(to)
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


def out_of(closed: Closed) -> str:
    """What those hear who would still use this member."""
    is_told = closed.reason.startswith("this member")
    return closed.reason if is_told else f"this member is out of its group: {closed.reason}"


def check_member(member: object) -> None:
    """What only looks like one is equal to it, and would be taken for it until it is sent to."""
    if not isinstance(member, Member):
        raise UsageError(
            f"a member is meant, not {member!r}: pass group.view['its name'], or a message's sender"
        )


def note_losses(error: BaseException | None, losses: str) -> None:
    """Say on it what may not have been delivered."""
    if error is not None and losses:
        error.add_note(losses)


class Stay:
    """The time that a member spends in its group: `async with Stay(...)`."""

    def __init__(self, group: Group, host: Host, *, signals: bool) -> None:
        self._group = group
        self._host = host
        self._signals = signals and host.has_signals
        self._block: Block | None = None

    async def __aenter__(self) -> None:
        if self._signals:
            self._block = Block(asyncio.current_task())
            TERMINATION.open(self._block)

    async def __aexit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        final = error
        try:
            late = await self._leave(error)
            final = late or error
        except BaseException as second:
            final = urgent(second)
            raise
        finally:
            try:
                self._group._close()
                note_losses(final, self._group._presence.losses)
            finally:
                if self._block is not None:
                    TERMINATION.close(self._block)
        if self._block is not None and not isinstance(error, GeneratorExit):
            await TERMINATION.wait_for_others(self._block)
        if late is not None:
            raise late

    async def _leave(self, error: BaseException | None) -> asyncio.CancelledError | None:
        """The cancellation that came meanwhile, if it was the first."""
        late: asyncio.CancelledError | None = None
        while not (self._is_hurried or is_urgent(error) or isinstance(error, GeneratorExit)):
            try:
                await self._group.leave()
                break
            except asyncio.CancelledError as cancelled:
                if self._is_hurried or late or isinstance(error, asyncio.CancelledError):
                    raise
                late = cancelled
        return late

    @property
    def _is_hurried(self) -> bool:
        return self._group._presence.is_hurried or not self._host.is_up
