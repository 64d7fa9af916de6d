"""SendQueue: where threads put what they send to the group with one guarantee, or to one member.

Each send takes a ticket, its place in the order of all threads' sends, and puts its messages into
the ring buffer under it. The pump, a task of the loop, removes them by ticket and sends them on, so
a thread's messages stay in its order, whatever the scheduling. While the window is full the ring
fills up, and then senders wait.

On send: first wait for room, then take a ticket: who gives up waiting leaves no gap. Up to
    PARCEL_BYTES it is done when it is in the ring: in order, and to be sent even if this member
    leaves at once. More than that waits until the window has it, so the ring is bounded in bytes
    too. So does a send with a receipt, which speaks of the view that the message was sent in.
When a send is interrupted while it has a ticket: the pump fills its place with nothing, or those
    behind it would wait for ever. What an interrupted send has to say is said in single steps, so a
    second interrupt, which can only come between two, leaves nothing unsaid.
On waking: whoever adds to the ring looks if the pump sleeps, and wakes it once; before it sleeps,
    the pump says so and looks again. Whichever comes second sees the other. Who is interrupted
    before it has woken the pump leaves that to the next send, or to the next second (LOOK_S).
On leaving: the ring is closed; who waits for room is told; what is in it is sent, while there is
    time. What is left then is counted: `Closed` tells how many messages that are.
To one member: what is sent singly, while that is in the view, is done when it is in the ring. All
    else waits until the window has it, and is told with Undeliverable if that member departs; of
    what is in the ring the event of that name tells. The queue of a member that has departed
    retires once nobody is about to send: it has all its room back. Who comes later opens another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import chain, count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from ringcast.aio.engine import Engine, Latch, failed
from ringcast.aio.member_host import STREAMS
from ringcast.aio.sending import Outgoing
from ringcast.errors import GroupClosed, RingcastError, TimedOut, TooFewMembers, Undeliverable
from ringcast.model import Member, View, alike
from ringcast.window.threads import RingBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.aio.group import Group
    from ringcast.aio.read_queue import Guarantee
    from ringcast.aio.receipts import Receipt

RING_CAPACITY = 1024
"""Sends that wait to be sent."""

BATCH = RING_CAPACITY // 4
"""Sends that the pump takes at once."""

PARCEL_BYTES = 4096
"""The most that one send leaves in the ring. Each message counts MESSAGE_BYTES more."""

MESSAGE_BYTES = 64

LOOK_S = 1.0
"""How often it is looked if something was put here by who could not say so any more."""

LEAVING = "this member is leaving its group"


class Parcel(Outgoing):
    """Messages whose sender waits until the window has them."""

    __slots__ = ("done", "error", "is_given_up", "task")

    def __init__(self, payloads: Sequence[bytes], *, wants_receipt: bool = False) -> None:
        super().__init__(payloads, wants_receipt=wants_receipt)
        self.done = Latch()
        self.error: RingcastError | None = None
        self.is_given_up = False
        self.task: asyncio.Task[None] | None = None

    def finish(self, error: RingcastError | None = None) -> None:
        self.error = error
        self.done.set()


class SendQueue:
    """One ring and its pump. `send` and `wait_for_sent` are for threads, the rest for the loop."""

    def __init__(
        self, engine: Engine, group: Group, guarantee: Guarantee, to: Member | None = None
    ) -> None:
        self._engine = engine
        self._group = group
        self._to = to
        self.is_retired = False
        """Somebody else is to be asked."""
        self.task: asyncio.Task[None] | None = None
        """The pump, once it has begun."""
        self.stream = STREAMS[guarantee]
        self._ring: RingBuffer[list[bytes] | Parcel] = RingBuffer(RING_CAPACITY)
        self._consumer = self._ring.consumer()
        self._sleeps = count()
        self._asleep: dict[int, None] = {}  # which sleep of the pump nobody has ended yet
        self._awake = asyncio.Event()
        # Room for sends, those in the pump's hand included. So there is always room in the ring
        # for who has a ticket.
        self._room: SimpleQueue[None] = SimpleQueue()
        self._make_room(RING_CAPACITY)
        self._given_up: deque[int] = deque()  # tickets
        self._awaited: dict[Parcel, None] = {}
        self._in_hand = 0  # sends that have left the ring and are not all in the window,
        self._left = 0  # and their messages, of senders that do not wait; of those,
        self._outgoing = Outgoing(())  # what is on its way into the window
        self._last: int | None = None  # once closed: the last ticket that counts
        self._is_over = False
        self._told = 0  # of lost messages to one member
        self._reason = LEAVING

    # What any thread may call

    def send(
        self, payloads: list[bytes], timeout_s: float | None, *, wants_receipt: bool = False
    ) -> Receipt | None:
        """Have them sent after all that was put here before."""
        size = sum(map(len, payloads)) + MESSAGE_BYTES * len(payloads)
        is_safe = self._to is None or (len(payloads) == 1 and self._to in self._group.view)
        if size <= PARCEL_BYTES and is_safe and not wants_receipt:
            self._add(payloads, timeout_s)
            return None
        parcel = Parcel(payloads, wants_receipt=wants_receipt)
        self._send_awaited(parcel, timeout_s)
        return parcel.receipt

    def wait_for_sent(self, timeout_s: float | None) -> None:
        """Wait until the window has all that was put here before."""
        self._send_awaited(Parcel([]), timeout_s)

    def _add(self, item: list[bytes] | Parcel, timeout_s: float | None) -> None:
        # Both as lists: an interrupt finds what was taken, however soon it comes.
        room: list[None] = []
        tickets: list[int] = []
        is_in = False
        try:
            room.extend(map(self._room.get, (True,), (timeout_s,)))
            if self._last is None:
                self._ring.take_ticket(tickets)
                is_in = self._ring.add(tickets[0], item)
        except Empty:
            what = f"no room to send within {timeout_s:g} s: {RING_CAPACITY} sends wait"
            raise TimedOut(what) from None
        except GroupClosed:
            pass  # it was closed in between
        finally:
            if tickets and not is_in:
                self._given_up.extend(tickets)
            elif room and not tickets:
                self._room.put(None)  # for the next one, who may have to be told the same
            self._wake()
        if not is_in or (self._is_over and not self.is_retired):
            raise GroupClosed(self._reason)

    def _send_awaited(self, parcel: Parcel, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else monotonic() + timeout_s
        self._awaited[parcel] = None  # before it is looked whether all is over
        try:
            self._add(parcel, timeout_s)
            if not parcel.done.wait(None if deadline is None else max(0.0, deadline - monotonic())):
                self._give_up(parcel)
                sent, count = parcel.sent, len(parcel.payloads)
                if parcel.error is None and (parcel.is_given_up or sent < count):
                    to = "" if self._to is None else f" to {self._to}"
                    what = f"{sent} of {count} messages{to} were sent within {timeout_s:g} s"
                    raise TimedOut(what, sent)
        except BaseException:  # such as KeyboardInterrupt
            self._give_up(parcel)
            raise
        finally:
            self._awaited.pop(parcel, None)
        if parcel.error is not None:
            raise parcel.error

    def _give_up(self, parcel: Parcel) -> None:
        """From here on no more of it is sent."""
        if not parcel.done.is_set and self._engine.soon(lambda: self._cancel(parcel)):
            parcel.done.wait()

    def _make_room(self, sends: int) -> None:
        for _ in range(sends):
            self._room.put(None)

    def _wake(self) -> None:
        for sleep in tuple(self._asleep):
            self._engine.soon(self._awake.set)
            # Only then: who is interrupted in between has it woken twice, and not never.
            self._asleep.pop(sleep, None)

    # What runs in the loop

    @property
    def is_empty(self) -> bool:
        """The window has all that was put here."""
        return not self._in_hand and self._ring.hr == self._ring.hd

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.pump())

    async def pump(self) -> None:
        """Send on until the queue is closed and empty, or the group is."""
        try:
            while items := await self._next_items():
                self._in_hand = len(items)
                self._left = sum(len(item) for item in items if not isinstance(item, Parcel))
                await self._send_items(items)
                self._in_hand = 0
                self._make_room(len(items))
        except GroupClosed as closed:
            self._reason = str(closed)
        except Exception as error:
            self._reason = failed(error)
            raise
        finally:
            self._end()  # tells the senders

    def look(self) -> None:
        """Have the pump look if something is there. It raises what that has."""
        if self.task is not None and self.task.done():
            self.task.result()
        self._awake.set()

    def close(self) -> None:
        """Nothing more is put here. The pump ends when what is there has been sent."""
        if self._last is None:
            self._ring.close()
            self._last = self._ring.ticket() - 1
            self._make_room(1)  # one who waits wakes the next
            self._awake.set()

    def stop(self, reason: str) -> int:
        """Nothing more is sent; how many messages of senders that do not wait are lost here. Who
        adds one from now on is told."""
        if not self._is_over:
            self._is_over, self._reason = True, reason
        self.close()
        waiting = map(self._consumer.retained, range(self._ring.hd + 1, self._ring.hr + 1))
        in_ring = sum(len(item) for item in waiting if isinstance(item, list))
        lost = in_ring + self._left - self._outgoing.sent
        if self._to is None:
            return lost
        self._tell(lost - self._told, reason)
        self._told = lost
        return 0

    def retire(self) -> bool:
        """End, unless somebody is about to send: then it has not all its room."""
        room = 0
        with suppress(Empty):
            while True:
                self._room.get_nowait()
                room += 1
        if room == RING_CAPACITY:
            self.is_retired = True
            self.close()
        else:
            self._make_room(room)
        return self.is_retired

    def _tell(self, lost: int, reason: str) -> None:
        """Their sender believes them sent."""
        if lost > 0 and self._to is not None:
            self._group._driver.tell(Undeliverable(self._to, 0, 1, lost, reason))

    def stats(self) -> dict[str, object]:
        return {"waiting": self._ring.size + self._in_hand, "given_up": len(self._given_up)}

    async def _send_items(self, items: list[list[bytes] | Parcel]) -> None:
        start = 0
        for at, item in enumerate(items):
            if isinstance(item, Parcel):
                await self._send_lists(items[start:at])
                await self._send_parcel(item)
                start = at + 1
        await self._send_lists(items[start:])

    async def _send_lists(self, items: list[list[bytes] | Parcel]) -> None:
        lists = [item for item in items if not isinstance(item, Parcel)]
        for _, payloads in alike(1, chain.from_iterable(lists)):
            outgoing = self._outgoing = Outgoing(payloads)
            while outgoing.sent < len(outgoing.payloads):
                try:
                    await self._group._sending.send(outgoing, self.stream, self._to)
                except Undeliverable as refused:
                    self._tell(len(outgoing.payloads) - outgoing.sent, refused.reason)
                    outgoing.sent = len(outgoing.payloads)
                except TooFewMembers:
                    # It was taken when there were enough: it is sent when there are.
                    await self._group.wait_for_view(self._is_enough)
            self._left -= outgoing.sent
            self._outgoing = Outgoing(())

    def _is_enough(self, view: View) -> bool:
        return len(view) >= self._group._driver.node.config.membership.min_members

    async def _send_parcel(self, parcel: Parcel) -> None:
        if parcel.is_given_up or not parcel.payloads:
            parcel.finish()
            return
        parcel.task = asyncio.get_running_loop().create_task(
            self._group._sending.send(parcel, self.stream, self._to)
        )
        try:
            await asyncio.wait([parcel.task])
        finally:
            parcel.task.cancel()
        task, parcel.task = parcel.task, None  # it is freed here, and not where its sender waits
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RingcastError):
            raise error
        parcel.finish(error)

    def _cancel(self, parcel: Parcel) -> None:
        if parcel.task is not None:
            parcel.task.cancel()
        elif not parcel.done.is_set:
            parcel.is_given_up = True
            parcel.finish()

    async def _next_items(self) -> list[list[bytes] | Parcel]:
        """What is next in order, once there is something; nothing if there will be no more."""
        while not (items := self._take_items()) and not self._is_drained:
            self._awake.clear()
            self._asleep[next(self._sleeps)] = None
            items = self._take_items()  # whoever came before this line wakes nobody
            if not items and not self._is_drained:
                await self._awake.wait()
            self._asleep.clear()
            if items:
                break
        return items

    def _take_items(self) -> list[list[bytes] | Parcel]:
        while self._given_up:
            self._consumer.fill(self._given_up.popleft(), [])
        return self._consumer.remove_run(BATCH)

    @property
    def _is_drained(self) -> bool:
        return self._last is not None and self._ring.hd >= self._last

    def _end(self) -> None:
        """Nothing is sent from here on: tell who waits."""
        self.stop(self._reason)
        for parcel in list(self._awaited):
            if not parcel.done.is_set:
                parcel.finish(GroupClosed(self._reason))


class SendQueues:
    """All of one member."""

    def __init__(self, engine: Engine, group: Group) -> None:
        self._engine = engine
        self._group = group
        kinds: tuple[Guarantee, ...] = "fifo", "uniform", "total"
        self.to_all = {kind: SendQueue(engine, group, kind) for kind in kinds}
        self._to_one: dict[Member, SendQueue] = {}
        self._is_closed = False
        group._sending.queues.extend(self.to_all.values())

    # What any thread may call

    def send(
        self,
        payloads: list[bytes],
        to: Member | None,
        guarantee: Guarantee,
        timeout_s: float | None,
        *,
        wants_receipt: bool,
    ) -> Receipt | None:
        """Have them sent after all that was put in that place before."""
        while True:
            queue = self.to_all[guarantee] if to is None else self._to_one.get(to)
            if queue is None:
                assert to is not None
                queue = self._engine.call(partial(self._open, to))
            try:
                return queue.send(payloads, timeout_s, wants_receipt=wants_receipt)
            except GroupClosed:
                if not queue.is_retired:
                    raise

    def wait_for_sent(self, left_s: Callable[[], float | None]) -> None:
        """Wait until the windows have all that was put here before."""
        for queue in self._all:
            try:
                queue.wait_for_sent(left_s())
            except GroupClosed:
                if not queue.is_retired:  # that one had nothing left
                    raise

    @property
    def _all(self) -> list[SendQueue]:
        return [*self.to_all.values(), *list(self._to_one.values())]

    # What runs in the loop

    async def _open(self, to: Member) -> SendQueue:
        self._group._presence.check_open()
        if self._is_closed:
            raise GroupClosed(LEAVING)
        queue = self._to_one.get(to)
        if queue is None:
            queue = self._to_one[to] = SendQueue(self._engine, self._group, "fifo", to)
            self._group._sending.queues.append(queue)
            queue.start()
        return queue

    def is_empty(self, to: Member | None, guarantee: Guarantee) -> bool:
        """Nothing waits that comes before what is sent there."""
        if to is None:
            queue = self.to_all[guarantee] if guarantee in [*self.to_all] else None
        else:
            queue = self._to_one.get(to) if isinstance(to, Member) else None
        return queue is None or queue.is_empty

    def start(self) -> None:
        for queue in self._all:
            queue.start()

    def look(self) -> None:
        for queue in self._all:
            queue.look()
        gone = [to for to in self._to_one if to not in self._group.view]
        for to in gone:
            if self._to_one[to].retire():
                self._group._sending.queues.remove(self._to_one.pop(to))

    def close(self) -> None:
        self._is_closed = True
        for queue in self._all:
            queue.close()

    @property
    def pumps(self) -> list[asyncio.Task[None]]:
        return [queue.task for queue in self._all if queue.task is not None]

    def stats(self) -> dict[str, object]:
        found: dict[str, object] = {kind: queue.stats() for kind, queue in self.to_all.items()}
        return found | {f"to {to}": queue.stats() for to, queue in self._to_one.items()}
