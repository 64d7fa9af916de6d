"""SIGTERM: a process that is told to end leaves its groups first, and then ends with status 143.

Only in the main thread, only while SIGTERM has its default action, and only while a block is open
that asks for it. A handler that somebody sets meanwhile stays.

On opening the first block: the handler takes the place of the default action.
On SIGTERM: tasks that have opened blocks are cancelled, as asyncio does with its main task on
    Ctrl-C; each leaves in good order. A thread that has opened one gets SystemExit where it is, as
    it gets KeyboardInterrupt on Ctrl-C.
When a task has left its last block: it waits for other tasks to leave theirs. Else who is done
    first would end a `gather`, and with it the program, and cut the others short.
When all these tasks are done, with whatever they do after their blocks: SystemExit ends the event
    loop. Whatever else runs there is cancelled, and what is registered with atexit still runs.
On another SIGTERM: SystemExit at once, in whatever runs. That cancels those who are leaving for
    the second time, which ends it. The next one has the default action.
On closing the last block: the default action is back. Only the main thread can do that: if another
    one closes it, the handler stays, and ends the process in the same way.

SIGHUP: members read their key files again, at once and whatever the files look like. Also only in
the main thread, while SIGHUP has its default action, which would end the process, and while a block
is open; of a member that has its key from a file.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from ringcast.aio.gate import Gate

if TYPE_CHECKING:
    from types import FrameType

    Task: TypeAlias = asyncio.Task[Any]

STATUS = 128 + signal.SIGTERM
"""What a shell calls a process that SIGTERM has ended."""

URGENT = "_ringcast_is_urgent"

INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)

E = TypeVar("E", bound=BaseException)

log = logging.getLogger("ringcast")


def urgent(error: E) -> E:
    """Mark what ends a leaving: members that have to leave because of it do so at once."""
    setattr(error, URGENT, True)
    return error


def is_urgent(error: BaseException | None) -> bool:
    """Whether it is marked so; or is a Ctrl-C that has come while the first one was handled, before
    anybody could begin to leave."""
    if getattr(error, URGENT, False):
        return True
    before = error.__context__ if isinstance(error, KeyboardInterrupt) else None
    while before is not None and not isinstance(before, INTERRUPTS):
        before = before.__context__
    return before is not None


class Block:
    """One that is open, and the task that has opened it; None: a thread has."""

    def __init__(self, task: Task | None = None) -> None:
        self.task = task
        self.is_told = False
        """SIGTERM has come while it was open."""


class Termination:
    """All blocks of a process."""

    def __init__(self) -> None:
        self._blocks: dict[Block, None] = {}
        self._told: set[Task] = set()
        self._is_received = False
        self._closed = Gate()

    def open(self, block: Block) -> None:
        """It has begun, in the thread that calls."""
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not self._is_received:
                signal.signal(signal.SIGTERM, self._on_signal)
            if self._is_handling:
                self._blocks[block] = None
                _listen_to_hangup()

    def close(self, block: Block) -> None:
        """It is over, and the member is out of its group."""
        if block not in self._blocks:
            return
        del self._blocks[block]
        self._closed.open()
        if not self._blocks:
            self._is_received = bool(self._told)
            if self._is_handling and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _ignore_hangup()

    async def wait_for_others(self, block: Block) -> None:
        """If SIGTERM has come while this one was open, and it was the last of its task: until other
        tasks of this loop that were told have closed theirs. Blocks opened since then end with the
        process."""
        loop = asyncio.get_running_loop()
        while block.is_told:
            told = (other for other in self._blocks if other.is_told)
            tasks = [other.task for other in told if other.task is not None]
            others = [task for task in tasks if not task.done() and task.get_loop() is loop]
            if block.task in tasks or not others:
                return
            await self._closed.wait()

    @property
    def _is_handling(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._on_signal

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_received:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            raise urgent(SystemExit(STATUS))
        self._is_received = True
        blocks = list(self._blocks)
        for block in blocks:
            block.is_told = True
        tasks = dict.fromkeys(block.task for block in blocks if _is_alive(block.task))
        if not tasks or blocks[-1].task is None:
            raise SystemExit(STATUS)
        for task in tasks:
            assert task is not None
            self._told.add(task)
            task.get_loop().call_soon_threadsafe(self._tell, task)  # which wakes the loop too

    def _tell(self, task: Task) -> None:
        task.add_done_callback(self._on_done)
        task.cancel()

    def _on_done(self, task: Task) -> None:
        self._told.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.error("SIGTERM ends this process, and this was raised meanwhile", exc_info=error)
        if not self._told:
            self._is_received = False
            raise SystemExit(STATUS)


def _is_alive(task: Task | None) -> bool:
    return task is not None and not task.done() and not task.get_loop().is_closed()


TERMINATION = Termination()
"""That of this process."""


class Reader(Protocol):
    def ask(self) -> None:
        """Read again. Called between any two instructions of the main thread."""
        ...


READERS: WeakSet[Reader] = WeakSet()
"""Of this process, in whatever thread."""


def _listen_to_hangup() -> None:
    if READERS and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _on_hangup)


def _ignore_hangup() -> None:
    if signal.getsignal(signal.SIGHUP) is _on_hangup:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _on_hangup(_signal: int, _frame: FrameType | None) -> None:
    for reader in list(READERS):
        reader.ask()
