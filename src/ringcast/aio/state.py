"""The application's state at the edge of its group: given to those who join, taken by who joins.

On StateWanted: a SnapshotMarker takes its place among what the application reads. Whoever reads
stops there:
    all before it has been consumed, and nothing after it. Then `give_state` is called, and the
    next message is handed out once its first chunk is there, since a generator does nothing
    before it is asked for one. The rest is pulled in the background, as there is room.
On StateBegun: `take_state` is called with an iterator over the chunks that follow; each is taken
    from the node when it is asked for, so what waits here is one chunk. If the state begins anew,
    the iterator of before raises StateInterrupted, and `take_state` is called again. So it is when
    parts of the group have come together and the state of another part counts.
On StateLost: it is not called again, and the application goes on without.

The first chunk is not the application's: how far publishers have come in the state (published.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias, assert_never

from ringcast import events
from ringcast.aio.published import Published, dump
from ringcast.errors import StateInterrupted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ringcast.aio.driver import Driver
    from ringcast.aio.read_queue import ReadQueue
    from ringcast.model import Member

GiveState: TypeAlias = Callable[[], Iterable[bytes] | AsyncIterable[bytes]]
TakeState: TypeAlias = Callable[[AsyncIterator[bytes]], Awaitable[None]]

CHUNK_BYTES = 1 << 19
"""What the application gives is cut and bundled to chunks of this size: each costs a few
milliseconds at both ends, and two make a window."""

log = logging.getLogger("ringcast")


class StateExchange:
    """Both directions."""

    def __init__(
        self,
        driver: Driver,
        queue: ReadQueue | None,
        published: Published,
        give: GiveState,
        take: TakeState,
    ) -> None:
        """`queue` is where the application reads; None: it reads nothing."""
        self.lost: str | None = None
        """Why nobody could give this member the state."""
        self._driver = driver
        self._read_queue = queue
        self._published = published
        self._offsets: bytes | None = None  # the first chunk, once it is there
        self._give = give
        self._take = take
        self._markers: dict[int, SnapshotMarker] = {}
        self._admission = Admission(driver)
        self._taking: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """The application has yet to take its state: there is nothing to read before it has."""
        state, admission = self._driver.node.state, self._admission
        is_coming = admission.attempt > 0 or (state is not None and state.is_behind)
        return is_coming and not admission.is_over

    def take(self) -> asyncio.Task[None]:
        """Let the application take its state; done when it has, or when it will not get it."""
        if self._taking is None:
            self._taking = asyncio.get_running_loop().create_task(self._run_take())
        return self._taking

    async def settle(self) -> None:
        """The application asks for more. If its state is wanted as it is here, give it first; if
        all has been read and a state is to come, let it be taken first."""
        while self._read_queue is not None and (marker := self._read_queue.marker) is not None:
            await marker.cut()
            self._read_queue.remove_marker(marker)
        if self.is_due and not (self._read_queue and self._read_queue.items):
            taking = self.take()
            await asyncio.wait([taking])  # whoever reads may give up, and not this
            if not taking.cancelled():
                taking.result()

    def end(self) -> None:
        """This member is out: nothing is given any more, and nothing comes."""
        for transfer in list(self._markers):
            self._drop(transfer)
        self._admission.end()

    def close(self) -> None:
        """Nobody is to take anything any more."""
        self.end()
        if self._taking is not None:
            self._taking.cancel()

    def on_event(self, event: events.StateEvent) -> None:
        match event:
            case events.StateWanted():
                self._on_wanted(event)
            case events.StateWritable(transfer):
                if transfer in self._markers:
                    self._markers[transfer].go_on()
            case events.StateAbandoned(transfer, reason):
                self._drop(transfer)
                log.info("%s: state transfer %d is over: %s", self._me, transfer, reason)
            case events.StateBegun(provider):
                log.info("%s: the state comes from %s", self._me, provider)
                if self._admission.is_over:  # parts have come together, and another's counts
                    self._admission = Admission(self._driver)
                self._admission.begin()
                self._offsets = None
            case events.StateChunk(payload):
                if self._offsets is None:
                    self._offsets = payload
                else:
                    self._admission.chunks.append(payload)
            case events.StateReceived():
                self._published.load(self._offsets or b"")
                self._admission.complete()
            case events.StateLost(reason):
                self.lost = reason
                self._admission.end()
            case _:
                assert_never(event)

    def on_input(self) -> None:
        """There may be chunks to take. If there are none nobody is woken: to look for some in
        vain ends in this call too, and would be done again for ever."""
        if self._driver.node.has_ready:
            self._admission.wake()
        if self._read_queue is None and self.is_due:
            self.take()

    def explain(self) -> list[str]:
        return [
            f"{marker.joiner} gets the state when the application has read up to where it is cut"
            for marker in self._markers.values()
            if not marker.is_begun
        ]

    @property
    def _me(self) -> Member:
        return self._driver.node.me

    def _on_wanted(self, wanted: events.StateWanted) -> None:
        self._markers = {
            number: marker for number, marker in self._markers.items() if not marker.is_done
        }
        offsets = dump(self._published.offsets)  # a reader may be behind
        marker = SnapshotMarker(self._driver, wanted, offsets, self._give)
        self._markers[wanted.transfer] = marker
        if self._read_queue is None:
            marker.start()
        else:
            self._read_queue.add_marker(marker)

    def _drop(self, transfer: int) -> None:
        marker = self._markers.pop(transfer, None)
        if marker is not None:
            marker.cancel()
            if self._read_queue is not None:
                self._read_queue.remove_marker(marker)

    async def _run_take(self) -> None:
        """One call after the other, until there is a whole state or none is to be had."""
        while self.is_due:
            if not self._admission.attempt:
                await self._admission.change()
                continue
            chunks = Chunks(self._admission)
            try:
                await self._take(chunks)
                async for _ in chunks:
                    pass  # it need not want all of it
            except Exception:
                if chunks.is_current:
                    if self._read_queue is None:  # nobody reads who could be told
                        log.exception("%s cannot take its state", self._me)
                    raise
            else:
                log.info("%s has its state: %d bytes", self._me, chunks.size)
                self._admission.end()
        self._taking = None  # for the next state; unless it failed


class SnapshotMarker:
    """A state that a joiner wants from this member."""

    def __init__(
        self, driver: Driver, wanted: events.StateWanted, known: bytes, give: GiveState
    ) -> None:
        self.joiner = wanted.joiner
        self._driver = driver
        self._transfer = wanted.transfer
        self._offsets = known
        self._give = give
        self._is_cut = asyncio.Event()
        self._has_room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_begun(self) -> bool:
        return self._task is not None

    @property
    def is_done(self) -> bool:
        return self._task is not None and self._task.done()

    def start(self) -> None:
        """Begin, in the background."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def cut(self) -> None:
        """The application has come to this place: return when it may go on."""
        self.start()
        await self._is_cut.wait()

    def go_on(self) -> None:
        """There is room."""
        self._has_room.set()

    def cancel(self) -> None:
        """Nobody wants the rest."""
        self._is_cut.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        bundle = bytearray()
        is_told = False
        try:
            async with aclosing(_each(self._give())) as chunks:
                async for chunk in chunks:
                    self._is_cut.set()
                    if not is_told:
                        is_told = True
                        await self._provide([self._offsets])
                    for start in range(0, len(chunk), CHUNK_BYTES):
                        bundle += chunk[start : start + CHUNK_BYTES]
                        if len(bundle) >= CHUNK_BYTES:
                            await self._provide([bytes(bundle[:CHUNK_BYTES])])
                            del bundle[:CHUNK_BYTES]
            if not is_told:
                await self._provide([self._offsets])
            await self._provide([bytes(bundle)] if bundle else [], is_last=True)
        except Exception:  # whatever the application raises, the joiner shall not wait for it
            me = self._driver.node.me
            log.exception("%s cannot give its state to %s, which asks another", me, self.joiner)
            self._driver.refuse_state(self._transfer)
        finally:
            self._is_cut.set()

    async def _provide(self, chunks: list[bytes], *, is_last: bool = False) -> None:
        while True:
            self._has_room.clear()  # before: the answer may come at once
            accepted = self._driver.provide_state(self._transfer, chunks, is_last=is_last)
            if accepted == len(chunks):
                await asyncio.sleep(0)  # the application has its turn after each chunk
                return
            await self._has_room.wait()


class Admission:
    """The state of a member that joins, as far as it has come."""

    def __init__(self, driver: Driver) -> None:
        self.chunks: deque[bytes] = deque()
        """Taken from the node, and not by the application: one, but for a moment."""
        self.attempt = 0
        """How often it has begun."""
        self.is_complete = False
        self.is_over = False
        """The application has it, or will not get it."""
        self._driver = driver
        self._changed = asyncio.Event()

    def begin(self) -> None:
        self.attempt += 1
        self.chunks.clear()
        self.wake()

    def complete(self) -> None:
        self.is_complete = True
        self.wake()

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.begin()  # whoever is still at it need not go on

    def wake(self) -> None:
        self._changed.set()

    async def change(self) -> None:
        """Wait until something may be different."""
        self._changed.clear()
        await self._changed.wait()

    async def pull(self) -> None:
        """Take a chunk from the node, or wait until there may be one."""
        self._changed.clear()
        self._driver.take(1)
        if not self.chunks:
            await self._changed.wait()


class Chunks:
    """One attempt at a state: what `take_state` iterates over."""

    def __init__(self, admission: Admission) -> None:
        self.size = 0
        self._admission = admission
        self._attempt = admission.attempt

    @property
    def is_current(self) -> bool:
        return self._admission.attempt == self._attempt

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        admission = self._admission
        while self.is_current:
            if admission.chunks:
                chunk = admission.chunks.popleft()
                self.size += len(chunk)
                return chunk
            if admission.is_complete:
                raise StopAsyncIteration
            await admission.pull()
        raise StateInterrupted("the state does not come to its end here: forget what came of it")


async def _each(chunks: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
    else:
        for chunk in chunks:
            yield chunk
