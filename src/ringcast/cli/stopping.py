"""Commands that are members until they are told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ringcast.aio.group import Group


class Stop(asyncio.Event):
    """Set by the first Ctrl-C or SIGTERM."""

    is_interrupt = False

    def conclude(self) -> None:
        """When all is done: what Ctrl-C has ended ends as any command does then."""
        if self.is_interrupt:
            raise KeyboardInterrupt


@asynccontextmanager
async def joined(joining: AbstractAsyncContextManager[Group]) -> AsyncIterator[tuple[Group, Stop]]:
    """Be a member. The event is set by the first Ctrl-C or SIGTERM: then the block is to end. The
    next one does what it always does, and ends the leaving too."""
    stopped = _signalled()
    try:
        async with joining as group:
            yield group, stopped
            if stopped.is_set():
                raise asyncio.CancelledError  # so that the next Ctrl-C is the second
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not stopped.is_set() or (task is not None and task.cancelling()):
            raise


async def until_first(*works: Coroutine[Any, Any, object]) -> None:
    """Do all of these until one ends, and raise what that one raised."""
    tasks = [asyncio.create_task(work) for work in works]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # our own bugs are not to be hidden


def _signalled() -> Stop:
    loop = asyncio.get_running_loop()
    came = Stop()

    def stop(which: int) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        came.is_interrupt = which == signal.SIGINT
        came.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return came
