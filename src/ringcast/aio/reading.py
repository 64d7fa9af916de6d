"""Reading: how messages and notices come to the application. Reading is pulling.

On read: what has been taken comes first; then messages are taken from the node, and that is when
    they count as delivered. If there are none, wait until something has arrived.
On input: without a reader, because messages are dropped (`receive=False`) or own ones are left out
    (`receive_own=False`), they are taken at once; else the reader is woken.
On notice: it waits behind the messages before it.
While messages wait and nobody reads, for UNREAD_WARNING_S: a warning, once.
If a state is to be taken, nothing is read before it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ringcast.aio.gate import Gate
from ringcast.aio.read_queue import Message, Notice, ReadQueue
from ringcast.aio.state import GiveState, StateExchange, TakeState
from ringcast.errors import UsageError
from ringcast.events import Closed, Delivered, Event
from ringcast.model import Headed, Member, View

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from ringcast.aio.driver import Driver
    from ringcast.aio.presence import Presence
    from ringcast.aio.published import Published
    from ringcast.arguments import JoinOptions

BATCH_MAX = 4096
"""Messages taken at once by `batches()`."""

PREFETCH = 256
"""Messages taken at once for `async for`: the bounded queue between the group and its reader."""

UNREAD_WARNING_S = 5.0

log = logging.getLogger("ringcast")


class Reading:
    """What one member has for its application."""

    queue: ReadQueue
    _driver: Driver
    _presence: Presence
    _me: Member

    def __init__(
        self,
        published: Published,
        on_event: Callable[[Event], None],
        on_view: Callable[[View], None],
        given: JoinOptions,
    ) -> None:
        """`on_event` is told all events but messages."""
        self.state: StateExchange | None = None
        self.readable = Gate()
        self._published = published
        self._pass_on = on_event
        self._on_view = on_view
        self._is_receiving = given["receive"]
        self._is_receiving_own = given["receive_own"]
        self._refills = 0
        self._unread_timer: asyncio.TimerHandle | None = None
        self._has_warned = False

    def start(
        self, driver: Driver, presence: Presence, hooks: tuple[GiveState, TakeState] | None
    ) -> None:
        """There is a driver, which tells what it has to `on_event` and `on_input`."""
        self._driver, self._presence, self._me = driver, presence, driver.node.me
        self.queue = ReadQueue(self._me)
        if hooks is not None:
            queue = self.queue if self._is_receiving else None
            self.state = StateExchange(driver, queue, self._published, *hooks)

    # What the application calls

    def check_receiving(self) -> None:
        if not self._is_receiving:
            raise UsageError("joined with receive=False: there are no messages to read")

    async def batches(self) -> AsyncIterator[Delivered]:
        self.check_receiving()
        while True:
            delivered = self.queue.take_run()
            if delivered is not None:
                yield delivered
            elif not await self.refill(BATCH_MAX):
                return

    async def messages(self) -> AsyncIterator[Message]:
        self.check_receiving()
        while True:
            message = self.queue.take_message()
            if message is not None:
                yield message
            elif not await self.refill(PREFETCH):
                return

    async def events(self) -> AsyncGenerator[Delivered | Notice | Closed, None]:
        queue = self.queue
        queue.watchers += 1
        try:
            while True:
                event = queue.take()
                if event is not None:
                    yield event
                elif not await self.refill(BATCH_MAX):
                    break
            assert self._presence.closed is not None
            yield self._presence.closed
        finally:
            queue.watchers -= 1
            if not queue.watchers:
                queue.tell_losses()

    async def refill(self, limit: int) -> bool:
        """Wait until there is something to read, and take up to `limit` messages; False once
        there will be no more."""
        driver, node = self._driver, self._driver.node
        while True:
            if self.state is not None:
                await self.state.settle()
            if self.queue.items:
                return True
            if self._presence.closed is None and not driver.has_room:
                await driver.wait_for_room()
                continue
            self._refills += 1
            waiting = node.effects.events or node.effects.frames or node.effects.lone
            if waiting or node.has_ready or self.state is not None:
                driver.take(limit)
            if self.queue.items or (self.state is not None and self.state.is_due):
                continue
            if self._presence.closed is not None:
                return False
            if self._is_receiving and node.has_ready:
                await asyncio.sleep(0)  # those were fragments; the rest of the message is coming
            else:
                await self.readable.wait()

    # What the driver tells

    def on_event(self, event: Event) -> None:
        if not isinstance(event, Delivered):
            self._pass_on(event)
            return
        is_wanted = self._is_receiving_own or event.epoch or event.sender != self._me
        is_cut_off = self._presence.is_leaving and self.has_state_to_take  # worthless without it
        may_read = self._is_receiving and is_wanted and not is_cut_off
        if type(event.run.payloads[0]) is Headed:
            rest = self._published.take(event)
            if may_read and rest is not None:
                self.queue.add_headed(rest)
        elif may_read:
            self.queue.items.append(event)

    def on_input(self) -> None:
        """Something arrived, or a deadline came."""
        driver, state = self._driver, self.state
        node = driver.node
        if node.view is not None and node.view is not self._presence.view:
            self._on_view(node.view)
        if state is not None:
            state.on_input()
            self._published.settle()
        if state is not None and state.is_due:
            pass  # there are no messages before the state
        elif not self._is_receiving:
            while node.has_ready and not (state is not None and state.is_due):
                driver.take(BATCH_MAX, is_looking=state is None)
        else:
            reads_own = self._is_receiving_own  # else these are delivered without a reader
            while not reads_own and node.has_own_ready and driver.has_room:
                driver.take(BATCH_MAX, only_own=True, is_looking=state is None)
            if node.has_ready and not self.readable.open():
                self.watch_unread()

    def notify(self, notice: Notice) -> None:
        self.queue.add_notice(notice)
        self.readable.open()
        self._presence.changed.open()

    @property
    def has_state_to_take(self) -> bool:
        return self.state is not None and self.state.is_due

    def close(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        if self.state is not None:
            self.state.close()

    # Who does not read

    def watch_unread(self) -> None:
        """Look again after a while whether anybody has read since."""
        if self._is_receiving and self._unread_timer is None and not self._has_warned:
            self._unread_timer = asyncio.get_running_loop().call_later(
                UNREAD_WARNING_S, self._warn_if_unread, self._refills, self.queue.place
            )

    def _warn_if_unread(self, refills: int, place: tuple[int, int]) -> None:
        self._unread_timer = None
        is_early = self.has_state_to_take  # there are none before the state
        if is_early or not self._driver.node.has_ready or self.readable.is_awaited:
            return
        if (refills, place) != (self._refills, self.queue.place):
            self.watch_unread()  # slowly, but somebody reads
            return
        self._has_warned = True
        log.warning(
            "%s: messages wait and nobody has read them for %.0f s; this blocks the senders of "
            "the group. Read with `async for message in group`, or join with "
            "receive=False to take and drop them.",
            *(self._me, UNREAD_WARNING_S),
        )
