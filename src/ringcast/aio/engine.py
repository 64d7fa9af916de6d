"""Engine: one thread with an event loop, and how other threads have things done in it.

Whoever calls waits for the result, for as long as it likes, and can be interrupted: then what it
has asked for is cancelled, and has come to its end before the call returns. When the loop is over
nobody waits: calls that were not done raise GroupClosed.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ringcast.aio.loop import run
from ringcast.errors import GroupClosed, TimedOut, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

OVER = "this member has left its group"


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
    """Something to be done in the loop."""

    def __init__(self, engine: Engine, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.done = Latch()
        self._engine = engine
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        if self._engine.is_over:  # nobody would wait for the task
            self.done.set()
            return
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(lambda _: self.done.set())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._task is None or not self._task.done() or self._task.cancelled()

    def result(self) -> T:
        assert self._task is not None
        return self._task.result()


class Engine:
    """The thread. It ends when `main` does."""

    def __init__(self, name: str) -> None:
        self.over = threading.Event()
        self.error: BaseException | None = None
        """What `main` has raised."""
        self._name = name
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        # Reentrant: the finalizer of an iterator may run anywhere, and comes here.
        self._lock = threading.RLock()
        self._calls: set[_Call[Any]] = set()
        self.is_over = False
        """Nothing more is begun in the loop."""

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # A daemon: should the application end without leaving, it is not held up.
        self._thread = threading.Thread(
            target=self._run, args=(main,), name=self._name, daemon=True
        )
        self._thread.start()
        self._begun.wait()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop and return what it does, or raise what it raises.

        TimedOut: it was cancelled after this time.
        """
        if threading.current_thread() is self._thread:
            raise UsageError("this runs in the engine's own thread, which cannot wait for itself")
        call = _Call(self, work)
        with self._lock:
            self._schedule(call.start)
            self._calls.add(call)
        try:
            if not call.done.wait(timeout_s):
                self.soon(call.cancel)
                call.done.wait()
                if call.is_cancelled:
                    raise TimedOut(f"not done within {timeout_s} s")
        except BaseException:  # such as KeyboardInterrupt
            self.soon(call.cancel)
            call.done.wait()
            raise
        finally:
            self._calls.discard(call)
        if call.is_cancelled:
            raise GroupClosed(OVER)
        return call.result()

    def soon(self, callback: Callable[[], object]) -> bool:
        """Have it called in the loop; False: that is over."""
        try:
            with self._lock:
                self._schedule(callback)
        except GroupClosed:
            return False
        return True

    def abort(self) -> None:
        """Cancel `main`."""
        if self._main is not None:
            self.soon(self._main.cancel)

    def _schedule(self, callback: Callable[[], object]) -> None:
        if self.is_over or self._loop is None:
            raise GroupClosed(OVER)
        self._loop.call_soon_threadsafe(callback)

    def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def begin() -> None:
            self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
            self._begun.set()
            try:
                await main()
            finally:
                with self._lock:  # nothing is scheduled in a loop that ends
                    self.is_over = True

        try:
            run(begin())
        except BaseException as error:  # whoever waits for the thread is told
            self.error = error
        finally:
            self.is_over = True
            self._begun.set()
            for call in list(self._calls):  # those that did not start
                call.done.set()
            self.over.set()
