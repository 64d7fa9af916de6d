"""How a block ends: whatever ends it, this member leaves in good order.

On the end of the block, on an exception, on a cancellation: leave, within `leave_timeout_s`, and
    then go on with the exception. The first cancellation waits for that, also if it comes while
    this member is leaving already.
On the second cancellation, or Ctrl-C: be gone at once. A note on it says what may not have been
    delivered, and so does the log. Blocks around this one are gone at once too.
On SIGTERM (termination.py): the same as on a cancellation; then the process ends.

Nobody leaves where nothing can be awaited any more: where the coroutine is thrown away, and in a
process of `ringcast.testing` that has crashed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringcast.aio.termination import TERMINATION, Block, is_urgent, urgent

if TYPE_CHECKING:
    from types import TracebackType

    from ringcast.aio.group import Group
    from ringcast.aio.host import Host


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
