"""What threads have in place of tasks: the receipt of a message, for which they wait; a queue where
each message comes to one of those that read; and the state of an application, which threads of
their own give and take."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeAlias, TypeVar

from ringcast.aio.joining import Once
from ringcast.aio.read_queue import Message, Notice, ReadQueue
from ringcast.aio.reading import BATCH_MAX, PREFETCH, Reading
from ringcast.aio.state import CHUNK_BYTES
from ringcast.arguments import name_options
from ringcast.checks import check_function, check_seconds
from ringcast.errors import GroupClosed, TimedOut
from ringcast.events import Closed, Delivered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator

    from ringcast.aio import receipts
    from ringcast.aio.engine import Engine
    from ringcast.aio.presence import Presence
    from ringcast.model import Member, Place

    GiveState: TypeAlias = Callable[[], Iterable[bytes]]
    TakeState: TypeAlias = Callable[[Iterator[bytes]], None]

P = ParamSpec("P")
G = TypeVar("G")
T = TypeVar("T")

TIMEOUT_S_MAX = 86_400.0


def check_timeout(timeout: float | None) -> None:
    if timeout is not None:
        check_seconds("timeout", timeout, 0.0, TIMEOUT_S_MAX)


class Join(Once[AbstractContextManager[G, bool | None]], AbstractContextManager[G, bool | None]):
    """What `join` returns, for `with`."""

    how = (
        "write `with ringcast.blocking.join(…) as group:`; the block is how long this member stays"
    )

    def __enter__(self) -> G:
        return self._enter().__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._entering.__exit__(*error)

    def __iter__(self) -> NoReturn:
        raise self._misused("for")

    async def __aenter__(self) -> NoReturn:
        raise self._misused("async with", "; in tasks, `async with ringcast.join(…) as group:`")

    async def __aexit__(self, *error: object) -> NoReturn:
        raise self._misused("async with")


def entered(joining: Callable[P, Iterator[G]]) -> Callable[P, Join[G]]:
    manager = contextmanager(joining)

    @wraps(joining)
    def made(*args: P.args, **options: P.kwargs) -> Join[G]:
        return Join(manager(*args, **options))

    return name_options(made)


class ThreadReading:
    """What one member has for any number of threads. What the loop takes from the node waits in a
    queue of its own, under a lock: a thread fetches many at once, and others find them there."""

    def __init__(self, engine: Engine, reading: Reading, presence: Presence, me: Member) -> None:
        self._engine = engine
        self._reading = reading
        self._presence = presence
        self._me = me
        self._lock = RLock()
        self._queue = ReadQueue(me)  # messages on their way to readers
        self._notice: Notice | None = None  # after them, for who reads events

    def messages(self) -> Iterator[Message]:
        self._reading.check_receiving()
        return self._read(self._queue.take_message, PREFETCH)

    def batches(self) -> Iterator[Delivered]:
        self._reading.check_receiving()
        return self._read(self._queue.take_run, BATCH_MAX)

    def events(self) -> Generator[Delivered | Notice | Closed, None, None]:
        self._engine.soon(partial(self._watch, 1))
        try:
            taken: Iterator[Delivered | Notice]
            taken = self._read(self._take_event, BATCH_MAX, with_notices=True)
            yield from taken
            if self._presence.closed is not None:
                yield self._presence.closed
        finally:
            self._engine.soon(partial(self._watch, -1))

    def disown(self) -> None:
        """This process is a copy: what waits here is the parent's."""
        self._queue = self._reading.queue = ReadQueue(self._me)
        self._notice = None
        self._lock = RLock()

    def _read(
        self, take: Callable[[], T | None], limit: int, *, with_notices: bool = False
    ) -> Iterator[T]:
        while True:
            with self._lock:
                item = take()
                while item is None and self._fetch(limit, with_notices):
                    item = take()
            if item is None:
                return
            yield item

    def _fetch(self, limit: int, with_notices: bool) -> bool:
        """Wait for more to read; False once there will be no more."""
        try:
            return self._engine.call(partial(self._refill, limit, with_notices))
        except GroupClosed:
            return self._move(with_notices)  # what had been taken and not read

    def _take_event(self) -> Delivered | Notice | None:
        delivered = self._queue.take_run()
        if delivered is None:
            notice, self._notice = self._notice, None
            return notice
        return delivered

    # In the loop

    async def _refill(self, limit: int, with_notices: bool) -> bool:
        is_more = await self._reading.refill(limit)
        return self._move(with_notices) or is_more

    def _move(self, with_notices: bool) -> bool:
        """To where threads read, up to the next notice if those are wanted; False: nothing was."""
        queue = self._reading.queue
        take = queue.take if with_notices else queue.take_run
        has_moved = False
        while self._notice is None and (item := take()) is not None:
            has_moved = True
            if isinstance(item, Delivered):
                self._queue.items.append(item)
            else:
                self._notice = item
        return has_moved

    def _watch(self, change: int) -> None:
        queue = self._reading.queue
        queue.watchers += change
        if not queue.watchers:
            queue.tell_losses()


class Receipt:
    """Of one message. Made by `send`; any number of threads may wait for it, at any time."""

    def __init__(self, engine: Engine, receipt: receipts.Receipt) -> None:
        self._engine = engine
        self._receipt = receipt

    def delivered(self, *, timeout: float | None = None) -> None:
        """Wait until every other member of the view that the message was sent in has delivered it;
        or the member that it was sent to. TimedOut after `timeout` seconds; what else is raised is
        as with asyncio."""
        check_timeout(timeout)
        try:
            self._engine.call(self._receipt.delivered, timeout)
        except TimedOut:
            raise TimedOut(f"not everybody has delivered it within {timeout:g} s") from None
        except GroupClosed:
            if not self.is_delivered():  # it was known before the end
                raise

    def ordered(self, *, timeout: float | None = None) -> Place:
        """Of a total message: wait until it has its place in the one order. TimedOut after
        `timeout` seconds; what else is raised is as with asyncio."""
        check_timeout(timeout)
        try:
            return self._engine.call(self._receipt.ordered, timeout)
        except TimedOut:
            raise TimedOut(f"the message has no place within {timeout:g} s") from None

    def is_delivered(self) -> bool:
        """What `delivered` would return or raise, without waiting; False: it would wait."""
        return self._receipt.is_delivered()


def giving(give: GiveState) -> Callable[[], AsyncIterator[bytes]]:
    """As `ringcast.join` wants it."""
    check_function("give_state", give)

    async def chunks() -> AsyncIterator[bytes]:
        state = await asyncio.to_thread(lambda: iter(give()))
        while some := await asyncio.to_thread(_pull, state):
            for chunk in some:
                yield chunk

    return chunks


def _pull(state: Iterator[bytes]) -> list[bytes]:
    """Enough chunks to be worth a change of threads."""
    some: list[bytes] = []
    size = 0
    for chunk in state:
        some.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            break
    return some


def taking(
    take: TakeState, engine: Engine
) -> Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, None]]:
    """As `ringcast.join` wants it."""
    check_function("take_state", take)

    async def run(chunks: AsyncIterator[bytes]) -> None:
        async def pull() -> bytes | None:
            return await anext(chunks, None)

        def each() -> Iterator[bytes]:
            while (chunk := engine.call(pull)) is not None:
                yield chunk

        await asyncio.to_thread(take, each())

    return run
