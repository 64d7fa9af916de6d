"""Reading by threads: each message comes to one of them. What the loop takes from the node waits in
a queue of its own, under a lock, so a thread fetches many at once and the others find them there.
"""

from __future__ import annotations

from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

from ringcast.aio.read_queue import ReadQueue
from ringcast.aio.reading import BATCH_MAX, PREFETCH
from ringcast.errors import GroupClosed
from ringcast.events import Delivered

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ringcast.aio.engine import Engine
    from ringcast.aio.presence import Presence
    from ringcast.aio.read_queue import Message, Notice
    from ringcast.aio.reading import Reading
    from ringcast.events import Closed
    from ringcast.model import Member

T = TypeVar("T")


class ThreadReading:
    """What one member has for any number of threads."""

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
