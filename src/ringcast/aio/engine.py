"""Engine: one thread with an event loop, and how other threads have things done in it.

Whoever calls waits for the result, for as long as it likes, and can be interrupted: then what it
has asked for is cancelled, and has come to its end before the call returns. When the loop is over
nobody waits: calls that were not done raise GroupClosed.

Interrupts, such as KeyboardInterrupt in the main thread, come where a function of Python begins,
goes back in a loop, or returns from a call. So threads share no lock with the engine that is itself
written in Python, as those in threading.Event, Thread.join and Future are: interrupted while it
takes one or gives it back, a thread would keep it, and the engine would wait for ever. A lock
written in C has no such moment when it is taken by `with`, nor has a SimpleQueue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ringcast.aio.loop import run
from ringcast.errors import GroupClosed, TimedOut, UsageError

T = TypeVar("T")

OVER = "this member has left its group"


def failed(error: Exception) -> str:
    """What those are told who wait for something."""
    return f"this member has failed and is gone; leaving raises {error!r}"


class Latch:
    """Set once, for one thread that waits. Unlike a threading.Event it has no lock that a thread,
    interrupted at the wrong moment, would keep for ever: whoever sets it never waits."""

    __slots__ = ("_tokens", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self.is_set = True
        self._tokens.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once it is set."""
        if not self.is_set:
            with suppress(Empty):
                self._tokens.get(timeout=timeout_s)
        return self.is_set


class _Call(Generic[T]):
    """Something to be done in the loop. `start` and `cancel` run there."""

    def __init__(self, engine: Engine, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.done = Latch()
        self._engine = engine
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._results: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        if self._engine.is_ending:  # nobody would wait for the task
            self.done.set()
            return
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # who asks was interrupted before this was to be started
            self.done.set()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        # It is dropped here: asyncio has functions called where a task is freed, and an interrupt
        # that came to the caller in one of those would be lost.
        self._task = None
        if not task.cancelled():
            self._error = task.exception()
            if self._error is None:
                self._results.append(task.result())
        self.done.set()

    @property
    def is_cancelled(self) -> bool:
        return self._error is None and not self._results

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]


class Engine:
    """The thread. It ends when `main` does."""

    def __init__(self, name: str) -> None:
        self.is_ending = False
        """Nothing more is begun in the loop."""
        self.is_over = False
        """Nothing is done there any more."""
        self.error: BaseException | None = None
        """What `main` has raised."""
        self._name = name
        self.loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._alive = threading.Lock()  # held as long as the thread runs
        # Reentrant: the finalizer of an iterator may run anywhere, and comes here.
        self._lock = threading.RLock()
        self._calls: set[_Call[Any]] = set()
        self._is_aborted = False
        self.failure: str | None = None
        """Why nothing is done any more, unless `main` came to its end."""

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`main` is the first that may have others call."""
        # A daemon: should the application end without leaving, nothing delays it.
        self._thread = threading.Thread(
            target=self._run, args=(main,), name=self._name, daemon=True
        )
        self._alive.acquire()
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop and return what it does, or raise what it raises.

        TimedOut: it was cancelled after this time.
        """
        self.check_thread()
        call = _Call(self, work)
        try:
            self._calls.add(call)
            self._schedule(call.start)
            if not call.done.wait(timeout_s):
                self._cancel(call)
                if call.is_cancelled:
                    raise TimedOut(f"not done within {timeout_s} s")
        except BaseException:  # such as KeyboardInterrupt
            self._cancel(call)
            raise
        finally:
            self._calls.discard(call)
        if call.is_cancelled:
            raise GroupClosed(self.failure or OVER)
        return call.result()

    def soon(self, callback: Callable[[], object]) -> bool:
        """Have it called in the loop; False: that is over."""
        try:
            self._schedule(callback)
        except GroupClosed:
            return False
        return True

    def join(self) -> None:
        """Wait until the thread has ended."""
        self.check_thread()
        with self._alive:
            pass

    def abort(self) -> None:
        """Cancel `main`, which may not have begun, and wait until the thread has ended."""
        self._is_aborted = True  # before it is looked if there is something to cancel
        main = self._main
        if main is not None:
            self.soon(main.cancel)
        if self._thread is not None and self._thread.ident is not None:  # it could be started
            self.join()

    def disown(self, reason: str) -> None:
        """This process is a copy made by fork, without the thread, and with locks as they were."""
        self._lock, self._alive = threading.RLock(), threading.Lock()
        self.is_ending = self.is_over = True
        self.failure = reason

    def check_thread(self) -> None:
        """Raise UsageError in the engine's own thread, where nobody may wait."""
        if self._thread is not None and self._thread.ident == threading.get_ident():
            raise UsageError("this runs in the engine's own thread, which cannot wait for itself")

    def _schedule(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if self.is_ending or self.loop is None:
                raise GroupClosed(self.failure or OVER)
            self.loop.call_soon_threadsafe(callback)

    def _cancel(self, call: _Call[Any]) -> None:
        """Wait until it has come to its end. A loop that ends has cancelled it already."""
        if self.soon(call.cancel):
            call.done.wait()

    def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def begin() -> None:
            self.loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
            if self._is_aborted:
                return
            try:
                await main()
            finally:
                with self._lock:  # nothing is scheduled in a loop that ends
                    self.is_ending = True
                    self._main = None  # freed here, as all tasks

        try:
            run(begin())
        except BaseException as error:  # whoever waits for the thread is told
            self.error = error
            if isinstance(error, Exception):
                self.failure = failed(error)
        finally:
            self.is_ending = self.is_over = True
            for call in self._calls.copy():  # those that were not started, or not ended
                call.done.set()
            self._alive.release()
