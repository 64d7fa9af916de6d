"""The same group for threads: `with ringcast.blocking.join("orders") as group`, without await.

One thread of its own runs the event loop with the asyncio Group in it; the application's threads,
as many as there are, send and read through it. What is promised is the same. A call that waits
can be interrupted, or given a time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload
from weakref import WeakSet

from ringcast.aio.engine import Engine, Latch, failed
from ringcast.aio.group import REQUEST_TIMEOUT_S
from ringcast.aio.joining import join as join_on_loop
from ringcast.aio.payloads import as_messages
from ringcast.aio.presence import note_losses
from ringcast.aio.requests import Replies, Request, refusing
from ringcast.aio.send_queue import LOOK_S, SendQueues
from ringcast.aio.termination import TERMINATION, Block, is_urgent, urgent
from ringcast.aio.threads import Receipt, ThreadReading, check_timeout, entered, giving, taking
from ringcast.checks import check_function
from ringcast.errors import GroupClosed, TimedOut
from ringcast.events import Closed, Delivered
from ringcast.protocols.views.layer import GOODBYE_SHARE
from ringcast.window.fragmenter import check_payloads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from ringcast.aio import group as aio
    from ringcast.aio import receipts
    from ringcast.aio.answers import Health
    from ringcast.aio.read_queue import Guarantee, Message, Notice
    from ringcast.aio.sending import HowLong
    from ringcast.aio.threads import GiveState, TakeState
    from ringcast.arguments import JoinOptions
    from ringcast.model import Member, View
    from ringcast.wire.codec import Buffer

T = TypeVar("T")

FORKED = "this process was made by fork, and the member lives in its parent alone: join here too"

_groups: WeakSet[Group] = WeakSet()  # all of this process


class Group:
    """A member's handle on its group, for any number of threads. Made by `join`."""

    def __init__(self, engine: Engine, group: aio.Group) -> None:
        self._engine = engine
        self._group = group
        self._leaving = asyncio.Event()
        self._sends = SendQueues(engine, group)
        self._queues = self._sends.to_all
        self._reading = ThreadReading(engine, group._reading, group._presence, group.me)
        self._asked: deque[Request] = deque()
        _groups.add(self)

    @property
    def me(self) -> Member:
        """This member."""
        return self._group.me

    @property
    def view(self) -> View:
        """Who is in the group now; while this member is on its way back, who last was."""
        return self._group.view

    @property
    def settings(self) -> dict[str, Any]:
        """What all members of the group agree on, by name."""
        return self._group.settings

    @property
    def state_lost(self) -> str | None:
        """Why this member came into its group without the state; None: it did not."""
        return self._group.state_lost

    def wait_for_view(
        self, condition: Callable[[View], bool], *, timeout: float | None = None
    ) -> View:
        """Wait until the group is as wanted: `group.wait_for_view(lambda v: len(v) >= 3)`.

        `condition` runs in the engine's thread: it must not wait for anything.
        """
        check_timeout(timeout)
        try:
            return self._engine.call(partial(self._group.wait_for_view, condition), timeout)
        except TimedOut:
            what = f"the group was not as wanted within {timeout:g} s: {self.view}"
            raise TimedOut(what) from None

    @overload
    def send(
        self, payload: Buffer, *, receipt: Literal[False] = False, **how: Unpack[HowLong]
    ) -> None: ...

    @overload
    def send(
        self, payload: Buffer, *, receipt: Literal[True], **how: Unpack[HowLong]
    ) -> Receipt: ...

    def send(
        self,
        payload: Buffer,
        *,
        to: Member | None = None,
        guarantee: Guarantee = "fifo",
        headers: Mapping[str, str] | None = None,
        channel: str = "",
        receipt: bool = False,
        timeout: float | None = None,
    ) -> Receipt | None:
        """Send to everybody, oneself included, or to one member alone.

        Waits only while there is no room: TimedOut after `timeout` seconds of that, and then it is
        not sent. A thread's messages go out in its order. What is raised, and what `guarantee`,
        `headers`, `channel` and `receipt` are, is as with asyncio; a send with a receipt returns
        when the window has it.
        """
        how = to, guarantee, headers, channel, timeout
        inner = self._send([payload], *how, wants_receipt=receipt)
        return None if inner is None else Receipt(self._engine, inner)

    def send_many(
        self,
        payloads: Iterable[Buffer],
        *,
        to: Member | None = None,
        guarantee: Guarantee = "fifo",
        headers: Mapping[str, str] | None = None,
        channel: str = "",
        timeout: float | None = None,
    ) -> None:
        """Send in order, with nothing of another thread in between if it is to the group.

        TimedOut, TooFewMembers and Undeliverable have how many were `sent`; the rest was not.
        """
        self._send(payloads, to, guarantee, headers, channel, timeout)

    def _send(
        self,
        payloads: Iterable[Buffer],
        to: Member | None,
        guarantee: Guarantee,
        headers: Mapping[str, str] | None,
        channel: str,
        timeout: float | None,
        *,
        wants_receipt: bool = False,
    ) -> receipts.Receipt | None:
        check_timeout(timeout)
        sending = self._group._sending
        sending.check_target(to, guarantee)
        self._check_open()
        node = self._group._driver.node
        # A list of its own: the caller may change its.
        found = list(sending.with_block(as_messages(payloads), headers, channel))
        check_payloads(found, node.config.multicast.max_message_bytes)
        if not found:
            return None
        if to is None:
            few = None if sending.waits_for_members else node.minimum.too_few(time.monotonic_ns())
            if few is not None:
                raise few
        return self._sends.send(found, to, guarantee, timeout, wants_receipt=wants_receipt)

    def try_send(
        self,
        payload: Buffer,
        *,
        to: Member | None = None,
        guarantee: Guarantee = "fifo",
        headers: Mapping[str, str] | None = None,
        channel: str = "",
    ) -> bool:
        """Send if there is room; False, and nothing is sent, if not. TooFewMembers is raised, and
        so is Undeliverable."""

        def attempt() -> bool:
            if not self._sends.is_empty(to, guarantee):
                return False  # others come before it
            return self._group.try_send(
                payload, to=to, guarantee=guarantee, headers=headers, channel=channel
            )

        return self._do(attempt)

    def request(
        self, member: Member, payload: Buffer, *, timeout: float = REQUEST_TIMEOUT_S
    ) -> bytes:
        """Ask one member, and return what its application replies; RequestFailed or TimedOut."""
        return self._engine.call(partial(self._group.request, member, payload, timeout=timeout))

    def request_all(self, payload: Buffer, *, timeout: float = REQUEST_TIMEOUT_S) -> Replies:
        """Ask all other members of the view at once: `replies` by member, and who `failed`."""
        return self._engine.call(partial(self._group.request_all, payload, timeout=timeout))

    def requests(self) -> Iterator[Request]:
        """What others ask this member: `for request in group.requests()`, then
        `request.reply(b"...")` or `request.refuse("why")`, now or later, in any thread."""
        while True:
            with suppress(IndexError):
                yield self._asked.popleft()
                continue
            try:
                if not self._engine.call(self._fetch_request):
                    return
            except GroupClosed:
                return

    def serve(self, handler: Callable[[Request], bytes]) -> None:
        """Reply to each request with what `handler` returns, in this thread; if it raises, with
        RequestFailed and the error. Ends when this member is out of its group."""
        check_function("handler", handler)
        for request in self.requests():
            with refusing(request):
                request.reply(handler(request))

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, in each sender's order. Reading may stop and go on at any time, and
        several threads may read: each message comes to one of them."""
        return self._reading.messages()

    def batches(self) -> Iterator[Delivered]:
        """Runs of messages as they come: `run.payloads` of one `sender`. The fast way to read."""
        return self._reading.batches()

    def events(self) -> Generator[Delivered | Notice | Closed, None, None]:
        """Everything in one order: messages as runs, views, losses, and at last the end.

        While nobody reads events, losses are logged as warnings.
        """
        return self._reading.events()

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until the others have delivered everything that was sent here before this call, to
        all or to one, by any thread."""
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        self._check_open()
        try:
            self._sends.wait_for_sent(left)
            self._engine.call(self._group.flush, left())
        except TimedOut:
            raise TimedOut(f"not everybody has delivered all within {timeout:g} s") from None

    def leave(self) -> None:
        """Leave before the block ends, as its end would: what was sent is sent, and threads that
        wait are told with GroupClosed. What this member has sent, and the others have delivered,
        can still be read afterwards. Once more changes nothing."""
        self._engine.check_thread()  # a mistake changes nothing
        self._engine.soon(self._leaving.set)
        self._engine.join()
        error = self._engine.error
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._engine.error = None
            raise error

    def sync(self, peer: Member) -> None:
        """Ask a member where its messages to this one stand, and go on from there."""
        self._do(partial(self._group.sync, peer))

    def stabilize(self) -> None:
        """Find out at once which plain messages everybody has delivered, and purge those."""
        self._do(self._group.stabilize)

    def explain(self) -> list[str]:
        """One sentence for each thing that waits, and for whom."""
        return self._do(self._group.explain)

    def health(self) -> Health:
        """Whether this member is ready, and why not."""
        return self._do(self._group.health)

    def stats(self) -> dict[str, object]:
        """Every table with its size, and every counter."""

        def collect() -> dict[str, object]:
            return {**self._group.stats(), "queues": self._sends.stats()}

        return self._do(collect)

    def _disown(self) -> None:
        """This process is a copy, made by fork in the middle of whatever other threads did."""
        self._engine.disown(FORKED)
        self._group._presence.closed = Closed(FORKED)
        self._reading.disown()
        self._asked.clear()

    # In the calling thread

    def _check_open(self) -> None:
        self._engine.check_thread()
        if self._engine.failure is not None:
            raise GroupClosed(self._engine.failure)
        self._group._presence.check_open()

    def _do(self, what: Callable[[], T]) -> T:
        """Have something done in the loop that waits for nothing."""

        async def do() -> T:
            return what()

        try:
            return self._engine.call(do)
        except GroupClosed:
            if not self._engine.is_over:
                raise
        return what()  # nobody else is at it any more

    # In the loop

    async def _serve(self) -> None:
        """Until this member is to leave, and all that was sent is in the window."""
        sends = self._sends
        sends.start()
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            while not leaving.done():
                await asyncio.wait([leaving], timeout=LOOK_S)
                sends.look()
            sends.close()
            membership = self._group._driver.node.config.membership
            goodbye_s = membership.leave_timeout_s / GOODBYE_SHARE  # for the others to learn of it
            within_s = max(0.0, self._group._presence.leave_within() - goodbye_s)
            await asyncio.wait(sends.pumps, timeout=within_s)
        except Exception as error:
            self._group._end(Closed(failed(error)))  # who waits is told why
            raise
        finally:
            tasks = [leaving, *sends.pumps]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for pump in sends.pumps:
            with suppress(asyncio.CancelledError):
                pump.result()

    async def _fetch_request(self) -> bool:
        request = await anext(self._group.requests(), None)
        if request is None:
            return False

        def answer(payload: bytes, is_refused: bool) -> None:
            self._engine.soon(partial(request._take_answer(), payload, is_refused))

        self._asked.append(Request(request.sender, request.payload, answer))
        return True


@entered
def join(
    group: str = "",
    *,
    give_state: GiveState | None = None,
    take_state: TakeState | None = None,
    **options: Unpack[JoinOptions],
) -> Iterator[Group]:
    """Join the group of this name, or start it; in it when the block starts, out when it ends.

    All options are those of `ringcast.join`. `give_state` returns an iterable of bytes, and
    `take_state` gets an iterator of bytes; each runs in a thread of its own. However the block ends
    this member leaves in good order, also by an exception or Ctrl-C; a second Ctrl-C ends that. In
    the main thread SIGTERM raises SystemExit, with status 143, if nobody else handles it.
    """
    engine = Engine(f"ringcast {group or getattr(options.get('config'), 'group', '')}")
    entered = Latch()
    handles: list[Group] = []
    joining = partial(
        join_on_loop,
        group,
        give_state=None if give_state is None else giving(give_state),
        take_state=None if take_state is None else taking(take_state, engine),
        **options,
    )

    async def live() -> None:
        try:
            async with joining() as inner:
                handles.append(Group(engine, inner))
                entered.set()
                await handles[0]._serve()
        finally:
            entered.set()

    try:
        engine.start(live)
        entered.wait()
    except BaseException:
        engine.abort()
        raise
    if not handles:
        engine.join()
        assert engine.error is not None
        raise engine.error
    handle = handles[0]
    blocks: list[Block] = []
    try:
        if options.get("signals", True):
            blocks.append(Block())
            TERMINATION.open(blocks[0])
        yield handle
        handle.leave()
    except BaseException as error:
        try:  # at once: the second Ctrl-C may come any time from here on
            _leave_after(error, handle, is_second=False)
        except BaseException as second:
            _leave_after(second, handle, is_second=True)
            raise
        raise
    finally:
        for block in blocks:
            TERMINATION.close(block)


def _leave_after(error: BaseException, handle: Group, *, is_second: bool) -> None:
    """In good order, unless it was interrupted before, or again while leaving, as by a second
    Ctrl-C. What may not have been delivered is said on what is raised."""
    if is_second or is_urgent(error):
        handle._engine.soon(handle._group._presence.hurry)
        handle._engine.abort()
    else:
        handle.leave()
    note_losses(urgent(error) if is_second else error, handle._group._presence.losses)


def _disown_all() -> None:
    for group in list(_groups):
        group._disown()


if hasattr(os, "register_at_fork"):  # there is fork
    os.register_at_fork(after_in_child=_disown_all)
