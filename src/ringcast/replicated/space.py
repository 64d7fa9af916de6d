"""Space: the structures of one group, fed by the one order of its messages and views.

One task reads the group, and does nothing else:
    On a total message in the channel of a structure: the operation goes to the machine, and its
    result to who waits for it here. Then views that stand behind it in the order, and were heard of
    before. Any other message is the application's own.
    On a view: if this member came to it from elsewhere, its locks are lost, and what the structures
    are comes with the state that follows. If the state has it already, nothing. Else it takes its
    place in the order, which may be behind messages that a joiner has yet to hear.
    On a state: it replaces the machine. Own operations that it has the result of are answered.
    On StateLost: this member goes on with what it has, and what it has others take.
What cannot be understood closes the space, because to skip it would be to diverge.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

import ringcast
from ringcast.checks import check_function, check_seconds
from ringcast.errors import SpaceClosed, UnknownStructure, UsageError
from ringcast.events import Delivered, StateLost, ViewInstalled
from ringcast.model import NO_HEADERS, Member, View
from ringcast.replicated.encoding import CHANNEL, JSON, Codec, Op, Result, take_records
from ringcast.replicated.handles import Counter, Dict, Handle, Leader, Lock, OnLeader
from ringcast.replicated.machine import Diverged, Machine
from ringcast.replicated.operation import Operation
from ringcast.replicated.structures import Departure, key_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from ringcast import Group, JoinOptions

TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 86_400.0
NAME_BYTES_MAX = 255
MESSAGES_MAX = 1024
"""Of the application's own, that wait for their reader; then everything waits."""

NOT_JOINED = "this space has joined no group: `async with space.join(…)`"
WITHOUT_STATE = (
    "the group was joined without the space's state: join with give_state=space.give_state and "
    "take_state=space.take_state, or by space.join"
)

H = TypeVar("H", bound=Handle[Any])
Messages: TypeAlias = "asyncio.Queue[ringcast.Message | None]"

log = logging.getLogger("ringcast")


class Space:
    """Structures that are the same at all members of a group, because all do the same in the same
    order.

        space = replicated.Space()
        prices = space.dict("prices")
        async with space.join("shop"):
            await prices.set("tea", 4.2)

    Name its structures before it joins, and the same at all members. A space is for one event loop.
    `timeout_s` is how long an operation may take until OutcomeUnknown is raised. `on_diverged` is
    called where parts of the group have merged and another part's history counts, if operations
    were done here that are not in it; they are logged, too.
    """

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        on_diverged: Callable[[Diverged], object] | None = None,
    ) -> None:
        check_seconds("timeout_s", timeout_s, 0.0, TIMEOUT_S_MAX)
        if on_diverged is not None:
            check_function("on_diverged", on_diverged)
        self.timeout_s = timeout_s
        self.client = os.urandom(8)
        """What tells its operations from those of other spaces."""
        self._on_diverged = on_diverged
        self._handles: dict[str, Handle[Any]] = {}
        self._machine = Machine({})
        self._group: Group | None = None
        self._view: View | None = None
        self._number = 0
        self._open: dict[int, Operation] = {}
        """Own operations that were sent and have no answer, by number, ascending."""
        self._has_state = False
        """It came before there was anything to read."""
        self._is_due = False
        """A state is to come."""
        self._is_leaving = False
        self._ahead: list[ViewInstalled] = []
        """Views whose place in the order is not reached."""
        self._closed = NOT_JOINED
        self._failure: Exception | None = None
        self._messages: tuple[Messages, asyncio.Semaphore] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = asyncio.Event()

    # What it has

    def lock(self, name: str) -> Lock:
        """The lock of this name."""
        return self._named(name, Lock)

    def counter(self, name: str) -> Counter:
        """The counter of this name."""
        return self._named(name, Counter)

    def leader(self, name: str, *, on_leader: OnLeader | None = None) -> Leader:
        """The leader of this name. `on_leader(member, epoch)` is called whenever another leads, or
        the same one anew: at the same place of the order at all members."""
        return self._named(name, Leader, on_leader)

    def dict(self, name: str, codec: Codec = JSON) -> Dict:
        """The dict of this name. Its values are what JSON has, or bytes with `BYTES`, or what
        another codec makes of them: all members use the same."""
        return self._named(name, Dict, codec)

    def _named(self, name: str, kind: type[H], *more: Any) -> H:
        try:
            length = len(name.encode())
        except (AttributeError, UnicodeError):  # of half a surrogate pair
            length = 0
        if not 0 < length <= NAME_BYTES_MAX:
            raise UsageError(
                f"a structure is named by a text of 1 to {NAME_BYTES_MAX} bytes, not {name!r:.100}"
            )
        known = self._handles.get(name)
        if isinstance(known, kind):
            return known
        if known is not None:
            raise UsageError(f"{name!r} is a {type(known).__name__.lower()} of this space already")
        if self._group is not None:
            raise UsageError(f"{name!r} is new: name all structures before the space joins")
        handle = self._handles[name] = kind(self, name, *more)
        self._machine = Machine({each.name: each._state for each in self._handles.values()})
        return handle

    @property
    def group(self) -> Group:
        """The group that it has joined."""
        if self._group is None:
            raise SpaceClosed(self._closed)
        return self._group

    @property
    def me(self) -> Member:
        """This member."""
        return self.group.me

    @property
    def view(self) -> View:
        """The view that the structures are in: that of the group, a little later."""
        if self._view is None:
            raise SpaceClosed(self._closed)
        return self._view

    # Coming and going

    @asynccontextmanager
    async def join(self, group: str = "", **options: Unpack[JoinOptions]) -> AsyncIterator[Space]:
        """Join the group of this name, and leave it at the end. Options are those of
        `ringcast.join` but for the state, which is this space's."""
        for option in ("give_state", "take_state", "receive", "receive_own"):
            if option in options:
                raise UsageError(
                    f"{option}= is not for spaces: they have a state of their own, read all that "
                    f"is sent, and where parts merge the history of one part counts"
                )
        self._has_state = False  # of a join that came to nothing
        hooks: Any = {"give_state": self.give_state, "take_state": self.take_state}
        async with ringcast.join(group, **hooks, **options) as joined, self.serve(joined):
            yield self

    @asynccontextmanager
    async def serve(self, group: Group) -> AsyncIterator[Space]:
        """For a group that was joined with `give_state=space.give_state`, `take_state=` likewise:
        what `join` does beyond that. It reads the group, so nobody else may; at its end the group
        is left."""
        if self._group is not None:
            raise UsageError("this space is served already: make one for each group")
        if not self._has_state:
            self._adopt(self._machine.anew())
        self._group, self._closed, self._failure = group, "", None
        reader = asyncio.create_task(self._read(group))
        try:
            await self._begun.wait()
            if self._failure is not None:
                raise self._failure
            self._check_open()
            yield self
        finally:
            self._is_leaving = True
            if self._messages is not None:
                self._messages[1].release()  # nothing waits for who reads them
            try:
                await group.leave()
                await reader
            finally:
                reader.cancel()
                self._close("this space has left its group")
                self._begun.clear()
                self._group, self._has_state = None, False
                self._ahead, self._is_due, self._is_leaving = [], False, False
        if self._failure is not None:
            raise self._failure

    def give_state(self) -> Iterator[bytes]:
        """For `join` of a group that this space is to serve."""
        return self._machine.records()

    async def take_state(self, chunks: AsyncIterator[bytes]) -> None:
        """For `join` of a group that this space is to serve."""
        before, machine, buffer = self._machine, self._machine.anew(), bytearray()
        async for chunk in chunks:
            buffer += chunk
            for record in take_records(buffer):
                machine.load(record)
        self._has_state, self._is_due = True, False
        while self._ahead and self._ahead[0].view.counter <= machine.view_key[0]:
            self._tell(self._ahead.pop(0))
        known = machine.clients.get(self.client)
        was_known = self.client in before.clients and before.last_common(machine) > (0, 0)
        for number, operation in list(self._open.items()):
            if known is not None and number in known.results:
                self._answer(number, known.results[number])
            elif (known is None and was_known) or (known is not None and number < known.low):
                operation.fail("what has become of it was forgotten while this member was away")
        self._adopt(machine)
        self._install_until(machine.position)
        loss = before.lost_to(machine)
        if loss.operations:
            log.warning(
                "%d operations that were done here are not in the history that counts, since parts "
                "of the group have merged",
                len(loss.operations),
            )
            if self._on_diverged is not None:
                self._call(self._on_diverged, loss)

    def messages(self) -> AsyncIterator[ringcast.Message]:
        """What the application itself sends to the group, from this call on; total messages in the
        order of all that this space does. Who begins to read has to go on: a member that does not
        stops all others in the end. Of a space that has left its group there are none."""
        if self._messages is not None:
            raise UsageError("somebody reads the messages of this space already")
        self._messages = asyncio.Queue(), asyncio.Semaphore(MESSAGES_MAX)
        if self._closed not in ("", NOT_JOINED):
            self._messages[0].put_nowait(None)
        return self._each_of(*self._messages)

    async def _each_of(
        self, queue: Messages, room: asyncio.Semaphore
    ) -> AsyncIterator[ringcast.Message]:
        try:
            while (message := await queue.get()) is not None:
                room.release()
                yield message
            self._is_over()
        finally:
            room.release()
            self._messages = None

    # Operations

    def _new(self, name: str, body: tuple[bytes, ...]) -> Operation:
        self._check_open()
        self._number += 1
        operation = self._open[self._number] = Operation(self, name, body, self._number)
        return operation

    async def _send(self, operation: Operation, *, is_again: bool) -> None:
        self._check_open()
        number, name = operation.number, operation.name
        op = Op(self.client, number, self._low(operation), is_again, operation.body)
        await self.group.send(bytes(op), guarantee="total", channel=CHANNEL + name)

    def _low(self, operation: Operation) -> int:
        if operation.number not in self._open:  # it is asked for again
            self._open = dict(sorted({**self._open, operation.number: operation}.items()))
        return next(iter(self._open))

    def _answer(self, number: int, result: Result) -> None:
        operation = self._open.pop(number, None)
        if operation is not None:
            operation.answer(result)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Of the application: what it raises changes nothing here."""
        try:
            function(*arguments)
        except Exception:
            log.exception("%r raises", function)

    def _post(self, work: Coroutine[Any, Any, None]) -> None:
        """Done in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _is_over(self) -> bool:
        """There is nothing more to come; SpaceClosed: because something went wrong."""
        if self._failure is not None:
            raise self._closed_error()
        return bool(self._closed)

    def _closed_error(self) -> SpaceClosed:
        failure = self._failure
        if isinstance(failure, UnknownStructure):
            return UnknownStructure(failure.name, failure.origin)
        return SpaceClosed(self._closed)

    # What the group tells

    async def _read(self, group: Group) -> None:
        try:
            async for event in group.events():
                match event:
                    case Delivered():
                        await self._on_messages(event)
                    case ViewInstalled():
                        self._on_view(event)
                    case StateLost():
                        self._on_state_lost()
            self._close("this member is out of its group")
        except Exception as error:
            log.exception("the space of %s is closed", group.me)
            self._failure = error
            self._close(str(error) or repr(error))
            await group.leave()

    async def _on_messages(self, event: Delivered) -> None:
        run = event.run
        headers = repeat(NO_HEADERS) if run.headers is None else run.headers
        for at, (payload, said) in enumerate(zip(run.payloads, headers, strict=False)):
            position = event.position and event.position + at
            if position:
                before = self._machine.position
                assert position == before + 1, f"{position} comes behind {before}"
                assert not self._is_due, "messages come behind the state"
                self._machine.position = position
            if position and said.channel.startswith(CHANNEL):
                self._on_operation(event, said.channel, payload, position)
            elif self._messages is not None:
                what = event.sender, payload, run.first + at, event.view_id, event.epoch > 0
                place = position, event.carried, event.seen
                guarantee: Any = run.stream.name.lower()
                message = ringcast.Message(*what, guarantee, said, *place)
                queue, room = self._messages
                if not self._is_leaving:
                    await room.acquire()
                queue.put_nowait(message)
        self._install_until(self._machine.position)

    def _on_operation(self, event: Delivered, channel: str, payload: bytes, position: int) -> None:
        machine, sender, name = self._machine, event.sender, channel.removeprefix(CHANNEL)
        if name not in machine.structures:
            raise UnknownStructure(name, sender)
        try:
            op = Op.of(payload)
        except ValueError:
            raise SpaceClosed(f"{sender} sends what no space sends in {channel!r}") from None
        result = machine.apply(name, op, sender, event.view_id, position)
        if op.client == self.client:
            self._answer(op.number, result)
        self._handles[name]._on_operation()

    def _on_view(self, event: ViewInstalled) -> None:
        if event.view.counter <= self._machine.view_key[0]:  # the state has it
            self._tell(event)
        elif self.me in event.came and len(event.view) > 1:
            if not self._machine.views and self.group.state_lost is None:
                raise UsageError(WITHOUT_STATE)
            self._is_due, self._ahead = True, [event]
            for handle in self._handles.values():
                handle._on_exile()
        else:
            self._ahead.append(event)
            if not self._is_due:
                self._install_until(self._machine.position)

    def _on_state_lost(self) -> None:
        if self._is_due:
            self._is_due = False
            self._install_until(self._ahead[0].position)

    def _install_until(self, position: int) -> None:
        while self._ahead and self._ahead[0].position <= position:
            event = self._ahead.pop(0)
            members = frozenset(event.gone), frozenset(event.came)
            parts = (key_of(part.id) for part in event.parts)
            others = tuple(key for key in parts if key != self._machine.view_key)
            self._machine.install(Departure(event.view, event.position, *members, others))
            self._tell(event)
            for handle in self._handles.values():
                handle._on_view()

    def _tell(self, event: ViewInstalled) -> None:
        self._view = event.view
        self._begun.set()

    def _adopt(self, machine: Machine) -> None:
        self._machine = machine
        for name, handle in self._handles.items():
            handle._state = machine.structures[name]
        for handle in self._handles.values():  # whose callbacks may read any of them
            handle._on_view()

    def _close(self, reason: str) -> None:
        """Whoever waits is told."""
        if self._closed:
            return
        self._closed = reason
        self._begun.set()
        for operation in self._open.values():
            operation.fail(reason)
        for handle in self._handles.values():
            handle._on_exile()
            handle._on_view()
        if self._messages is not None:
            self._messages[0].put_nowait(None)
