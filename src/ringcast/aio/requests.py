"""Requests: what one member asks another, and what that one says.

They travel on the connections that members have for what the system itself has to say, so they
neither wait behind the application's messages nor can be mistaken for one. A request comes to its
member once, after those that were asked there before; its answer is told apart by a number.

On request: at most OPEN_MAX of them to one member are open; the next one waits until one is over.
    If that member takes nothing, as many wait to be sent, and the next one fails.
On RequestReceived: it waits here until the application comes for it. Who has UNANSWERED_MAX of them
    is refused: it may have given up on some.
    Who is not in our view yet waits until it is: it may have installed the next one before us.
On ReplyReceived: whoever asked goes on; if it no longer waits, the answer is dropped.
When a request has waited for long enough: whoever asked is told. One timer serves all that are
    open, set for the first of them; most are answered long before, and set none.
On view: who is not in it will not answer, and wants no answers. Who asked it is told at once.
On the end of this member: the same, for everybody.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter, deque
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from ringcast.aio.gate import Gate, Turns, Waiter
from ringcast.aio.payloads import as_bytes
from ringcast.checks import check_function
from ringcast.errors import GroupClosed, RequestFailed, RingcastError, TimedOut, UsageError
from ringcast.texts import counted
from ringcast.wire.messages import encode_answer, encode_ask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    from ringcast.aio.driver import Driver
    from ringcast.aio.group import Group
    from ringcast.events import ReplyReceived, RequestReceived
    from ringcast.model import Member, View
    from ringcast.wire.codec import Buffer

    Handler: TypeAlias = Callable[["Request"], Buffer | Awaitable[Buffer]]

OPEN_MAX = 64
"""Requests of one member to another that are not answered."""

UNANSWERED_MAX = 4 * OPEN_MAX
"""What a member may leave unanswered of another that gives up waiting, and asks anew."""

PAYLOAD_BYTES_MAX = 1 << 20
"""The largest request or answer: what is larger is sent as a message."""

REASON_BYTES_MAX = 1024

log = logging.getLogger("ringcast")


class Request:
    """What another member asks. Answer it once, with `reply` or with `refuse`."""

    __slots__ = ("_answer", "payload", "sender")

    def __init__(
        self, sender: Member, payload: bytes, answer: Callable[[bytes, bool], None]
    ) -> None:
        self.sender = sender
        self.payload = payload
        self._answer: Callable[[bytes, bool], None] | None = answer

    def reply(self, payload: Buffer) -> None:
        """What `request` returns to the sender. If that has departed meanwhile, nothing happens."""
        if type(payload) is not bytes or len(payload) > PAYLOAD_BYTES_MAX:
            payload = check_payload(payload)
        answer, self._answer = self._answer or self._take_answer(), None
        answer(payload, False)

    def refuse(self, reason: str) -> None:
        """Say no: `request` raises RequestFailed with this reason."""
        if not isinstance(reason, str):
            raise UsageError(f"a reason is text, not {type(reason).__name__}")
        encoded = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        self._take_answer()(encoded, True)

    def _take_answer(self) -> Callable[[bytes, bool], None]:
        answer, self._answer = self._answer, None
        if answer is None:
            raise UsageError(f"the request of {self.sender} has been answered")
        return answer

    def __repr__(self) -> str:
        return f"Request({str(self.sender)!r}, {self.payload!r})"


class _Open(Waiter[bytes | RingcastError | TimeoutError]):  # results: they may go unheard
    """A request that this member has made; whoever asked waits for it."""

    to: Member
    by: float
    """When there is to be an answer, by the clock of the loop."""


class Requests:
    """Both directions."""

    driver: Driver
    """It is made behind this."""

    def __init__(self, on_inquiry: Callable[[Request], None]) -> None:
        """`on_inquiry` is told what the application is not asked."""
        self._on_inquiry = on_inquiry
        self.refused = 0
        """Requests of members that had too many unanswered, and what is no request."""
        self._view: View | None = None
        self._numbers = count(1)
        self._open: dict[int, _Open] = {}  # by the number of the request
        self.turns: dict[Member, Turns] = {}
        """Of members that can be asked now, and have been."""
        # By who asks, and its number:
        self._unanswered: dict[Member, dict[int, RequestReceived]] = {}
        self._arrived: deque[Request] = deque()  # of these: what the application has not seen
        self._early: deque[RequestReceived] = deque(maxlen=OPEN_MAX)  # of who is not in our view
        self._changed = Gate(at_once=True)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's handles do not tell
        self._closed: str | None = None  # why

    def is_there(self, member: object) -> bool:
        """A member that can be asked now."""
        return self._view is not None and member in self._view.members

    async def ask(
        self, to: Member, payload: bytes, by: float, *, is_inquiry: bool = False
    ) -> bytes:
        """What that member says. RequestFailed as soon as it is known that it says nothing,
        TimeoutError if it has said nothing when the clock of the loop is at `by`. It is there."""
        turns = self.turns.get(to)
        if turns is None:
            turns = self.turns[to] = Turns(OPEN_MAX)
        has_waited = not turns.free
        if has_waited:
            async with asyncio.timeout_at(by):
                await turns.take()
        else:
            turns.free -= 1
        number = next(self._numbers)
        try:
            if has_waited:
                self.check(to)
            if len(self.driver.node.unsaid.get(to, ())) >= OPEN_MAX:
                raise RequestFailed(f"{to} takes nothing: {OPEN_MAX} requests wait to be sent")
            asked = encode_ask(number, payload, is_inquiry=is_inquiry)
            self.driver.say(asked, to)  # the rest is done while it travels
            request = self._open[number] = _Open(loop=asyncio.get_running_loop())
            request.to, request.by = to, by
            if self._timer is None or by < self._timer_at:
                self._arm(by)
            said = await request
        finally:
            self._open.pop(number, None)
            if turns.waiters:
                turns.give()
            else:
                turns.free += 1
        if isinstance(said, bytes):
            return said
        raise said

    def __aiter__(self) -> Self:
        """What this member is asked. Several may read: each gets others."""
        return self

    async def __anext__(self) -> Request:
        while not self._arrived:
            if self._closed is not None:
                raise StopAsyncIteration
            await self._changed.wait()
        return self._arrived.popleft()

    def on_request(self, asked: RequestReceived, *, at_once: bool = False) -> None:
        """`at_once`: if the application waits for it, it gets it before this returns."""
        sender, number = asked.sender, asked.number
        if self._view is None or sender not in self._view.members:
            self._early.append(asked)  # an answer would not go there now
            return
        unanswered = self._unanswered.get(sender)
        if unanswered is None:
            unanswered = self._unanswered[sender] = {}
        if number in unanswered or len(asked.payload) > PAYLOAD_BYTES_MAX:
            self.refused += 1  # no request of ours is like that
            return
        if len(unanswered) >= UNANSWERED_MAX:
            self.refused += 1
            reason = f"it has {UNANSWERED_MAX} requests of this member to answer first"
            said = encode_answer(number, reason.encode(), is_refused=True)
            self.driver.say(said, sender, is_awaited=True)
            return
        unanswered[number] = asked
        request = Request(sender, asked.payload, partial(self._answer, asked))
        if asked.is_inquiry:
            self._on_inquiry(request)
            return
        self._arrived.append(request)
        self._changed.open(at_once=at_once)

    def _answer(self, asked: RequestReceived, payload: bytes, is_refused: bool) -> None:
        """Nothing happens if that member is gone, even if it has come back."""
        unanswered = self._unanswered.get(asked.sender)
        if unanswered is not None and unanswered.get(asked.number) is asked:
            del unanswered[asked.number]
            said = encode_answer(asked.number, payload, is_refused=is_refused)
            self.driver.say(said, asked.sender, is_awaited=True)

    def on_reply(self, answered: ReplyReceived, *, at_once: bool = False) -> None:
        """`at_once`: whoever asked goes on before this returns."""
        request = self._open.get(answered.number)
        if request is None or request.to != answered.sender or request.done():
            return
        if answered.is_refused:
            reason = answered.payload.decode(errors="replace")
            request.set_result(RequestFailed(f"{request.to} refuses: {reason}"))
        elif at_once:
            request.go_on(answered.payload)
        else:
            request.set_result(answered.payload)

    def on_view(self, view: View) -> None:
        self._view = view
        for request in self._open.values():
            if request.to not in view and not request.done():
                request.set_result(RequestFailed(f"{request.to} departed before it answered"))
        self.turns = {to: turns for to, turns in self.turns.items() if to in view}
        self._forget([sender for sender in self._unanswered if sender not in view])
        early, self._early = self._early, deque(maxlen=OPEN_MAX)
        for asked in early:
            if asked.sender in view:
                self.on_request(asked)

    def close(self, reason: str) -> None:
        """This member is out of its group."""
        self._view, self._closed = None, reason
        self._early.clear()
        for request in self._open.values():
            if not request.done():
                request.set_result(GroupClosed(reason))
        self.turns.clear()
        self._forget(list(self._unanswered))
        self._changed.open()
        if self._timer is not None:
            self._timer.cancel()

    def explain(self) -> list[str]:
        asked = Counter(request.to for request in self._open.values())
        waiting = ("request waits", "requests wait")
        reasons = [f"{counted(n, *waiting)} for {to} to answer" for to, n in asked.items()]
        if self._arrived:
            what = counted(len(self._arrived), *waiting)
            reasons.append(
                f"{what} for this member's application: it reads them with group.requests()"
            )
        return reasons

    def stats(self) -> dict[str, object]:
        return {
            "open": len(self._open),
            "unread": len(self._arrived),
            "unanswered": sum(map(len, self._unanswered.values())),
            "refused": self.refused,
        }

    def _arm(self, by: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = by
        self._timer = asyncio.get_running_loop().call_at(by, self._on_timer, by)

    def _on_timer(self, by: float) -> None:
        """Never early; and if the loop is late, for all whose time is up, or it gets later with
        each of them."""
        self._timer = None
        now = max(by, asyncio.get_running_loop().time())
        waiting = [request for request in self._open.values() if not request.done()]
        for request in waiting:
            if request.by <= now:
                request.set_result(TimeoutError())
        later = [request.by for request in waiting if request.by > now]
        if later:
            self._arm(min(later))

    def check(self, to: Member) -> None:
        """RequestFailed, or GroupClosed, unless this member can be asked."""
        if self._closed is not None:
            raise GroupClosed(self._closed)
        if not self.is_there(to):
            raise RequestFailed(f"{to} is not in the group")

    def _forget(self, senders: Collection[Member]) -> None:
        for sender in senders:
            del self._unanswered[sender]  # what is answered later finds nothing there
        self._arrived = deque(r for r in self._arrived if r.sender in self._unanswered)


def check_payload(payload: Buffer) -> bytes:
    """What is asked or said of it; UsageError unless it can be."""
    content = as_bytes(payload)
    if len(content) > PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"{len(content)} bytes: a request or an answer has at most {PAYLOAD_BYTES_MAX}; send "
            f"more as a message, with send(..., to=member)"
        )
    return content


# Asking everybody, and answering with a handler


class Replies(NamedTuple):
    """What the other members of the view said to one request. Each stands in one of the two."""

    replies: dict[Member, bytes]
    """By member, in the order of the view."""
    failed: dict[Member, RingcastError]
    """Who did not reply, and why: RequestFailed or TimedOut."""


async def request_all(group: Group, payload: bytes, timeout_s: float) -> Replies:
    """Ask all other members of the view at once. GroupClosed: this member is out of its group."""
    asked = [member for member in group.view if member != group.me]
    said = await asyncio.gather(
        *(group.request(member, payload, timeout=timeout_s) for member in asked),
        return_exceptions=True,
    )
    found = Replies({}, {})
    for member, each in zip(asked, said, strict=True):
        if isinstance(each, bytes):
            found.replies[member] = each
        elif isinstance(each, RequestFailed | TimedOut):
            found.failed[member] = each
        else:
            raise each
    return found


async def serve(group: Group, handler: Handler) -> None:
    """Answer requests until this member is out of its group, each in a task of its own."""
    check_function("handler", handler)
    async with asyncio.TaskGroup() as tasks:
        async for request in group.requests():
            tasks.create_task(_answer(request, handler))


async def _answer(request: Request, handler: Handler) -> None:
    with refusing(request):
        said = handler(request)
        request.reply(await said if inspect.isawaitable(said) else said)


@contextmanager
def refusing(request: Request) -> Iterator[None]:
    """If the application raises: at once, so that nobody has to wait for its time to be over. What
    is no Exception, such as a cancellation, goes on."""
    try:
        yield
    except BaseException as error:
        reason = type(error).__name__
        is_error = isinstance(error, Exception)
        if is_error:
            log.exception("the handler of requests raised, asked by %s", request.sender)
            with suppress(Exception):  # its text is the application's, too
                reason = f"{reason}: {error}"
        with suppress(UsageError):  # it has answered by itself
            request.refuse("cancelled" if isinstance(error, asyncio.CancelledError) else reason)
        if not is_error:
            raise
