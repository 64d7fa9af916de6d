"""Group: what an asyncio application holds. `async with ringcast.join("orders") as group`.

Reading is pulling: a message counts as delivered when it is taken here, and a member that does not
read blocks those who send to it. A member that the others have excluded, because it was silent for
too long, comes back by itself, as it was; the view that brings it back says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, overload

from ringcast.aio.answers import answer, health_of
from ringcast.aio.driver import Owner
from ringcast.aio.gate import Gate
from ringcast.aio.member_host import STREAMS
from ringcast.aio.payloads import as_bytes, as_messages, with_block
from ringcast.aio.probe import Probe, probe_name
from ringcast.aio.prometheus import exposition
from ringcast.aio.published import Published
from ringcast.aio.reach import check_address
from ringcast.aio.read_queue import ReadQueue, describe_losses
from ringcast.aio.receipts import Receipts
from ringcast.aio.requests import PAYLOAD_BYTES_MAX, Requests, check_payload, request_all, serve
from ringcast.aio.state import StateExchange
from ringcast.checks import check_function, check_seconds
from ringcast.core.shared import Phase
from ringcast.errors import GroupClosed, TimedOut, TooFewMembers, UsageError
from ringcast.events import (
    Closed,
    Confirmed,
    Delivered,
    FragmentsDelivered,
    GapSkipped,
    Ordered,
    ReplyReceived,
    RequestReceived,
    StateLost,
    Undeliverable,
    ViewInstalled,
    Writable,
)
from ringcast.model import Address, Headed, Member, Stream
from ringcast.protocols.views.layer import GOODBYE_SHARE
from ringcast.wire.headers import encode_headers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
    from typing import Literal

    from ringcast.aio.answers import Health
    from ringcast.aio.gathering import Gatherings
    from ringcast.aio.member_host import MemberHost
    from ringcast.aio.metrics import Metrics
    from ringcast.aio.probe import Question
    from ringcast.aio.read_queue import Guarantee, Message, Notice
    from ringcast.aio.receipts import Receipt
    from ringcast.aio.requests import Handler, Replies, Request
    from ringcast.aio.send_queue import SendQueue
    from ringcast.aio.state import GiveState, TakeState
    from ringcast.events import Event, StateEvent
    from ringcast.model import View
    from ringcast.wire.codec import Buffer

BATCH_MAX = 4096
"""Messages taken at once by `batches()`."""

PREFETCH = 256
"""Messages taken at once for `async for`: the bounded queue between the group and its reader."""

SEND_CHUNK = 8192
"""Messages offered to the window at once by `send_many`."""

UNREAD_WARNING_S = 5.0

REQUEST_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S_MAX = 86_400.0

log = logging.getLogger("ringcast")


class Outgoing:
    """Messages on their way into the window: `sent` of them are in it, from the first on."""

    __slots__ = ("payloads", "receipt", "sent", "wants_receipt")

    def __init__(self, payloads: Sequence[bytes], *, wants_receipt: bool = False) -> None:
        self.payloads = payloads
        self.sent = 0
        self.wants_receipt = wants_receipt
        self.receipt: Receipt | None = None  # once all are in the window


class Group:
    """A member's handle on its group. Made by `join`; not to be shared between event loops."""

    def __init__(
        self,
        place: MemberHost,
        *,
        receive: bool,
        receive_own: bool,
        must_exist: bool,
        waits_for_members: bool,
        send_time: bool,
        hooks: tuple[GiveState, TakeState] | None,
    ) -> None:
        self._place = place
        self._is_receiving = receive
        self._is_receiving_own = receive_own
        self._waits_for_members = waits_for_members
        self._wall = place.host.wall if send_time else None
        self._is_leaving = False
        self._leave_by: float | None = None  # by the clock of the loop
        self._losses = ""  # once it has left: what may not have been delivered, for people
        self._is_hurried = False  # there is no time to leave in good order
        self._undeliverable: list[Undeliverable] = []  # since it is leaving
        self._closed: Closed | None = None
        self._view: View | None = None
        self._refills = 0
        self._unread_timer: asyncio.TimerHandle | None = None
        self._has_warned = False
        self._readable = Gate()
        self._writable: dict[Member | None, Gate] = {}  # by destination; None: the group
        self._settled = Gate()
        self._published = Published(lambda: self._has_state_to_take)
        self._requests = Requests(self._published.asked)
        on_request, on_reply = self._requests.on_request, self._requests.on_reply
        owner = Owner(self._on_event, on_request, on_reply, self._on_input)
        self._requests.driver = self._driver = place.drive(owner, must_exist=must_exist)
        self._gathered = self._driver.gathered
        self._to_all = self._gathered.to_all
        self._queues: list[Gatherings | SendQueue] = [self._gathered]  # before the window
        self._probe: Probe | None = None
        self._metrics: Metrics | None = None
        self._read_queue = ReadQueue(self.me)
        self._receipts = Receipts()
        self._state: StateExchange | None = None
        if hooks is not None:
            self._state = StateExchange(
                *(self._driver, self._read_queue if receive else None, self._published), *hooks
            )

    @property
    def me(self) -> Member:
        """This member, the same for as long as it is in its group."""
        return self._driver.node.me

    @property
    def view(self) -> View:
        """Who is in the group now. Whoever reads finds the view behind the messages before it, so a
        reader may be behind this."""
        assert self._view is not None  # join() returns only then
        return self._view

    @property
    def settings(self) -> dict[str, Any]:
        """What all members of the group agree on, by name."""
        return self._driver.membership.agreement.settings.told

    async def wait_for_view(self, condition: Callable[[View], bool]) -> View:
        """Wait until the group is as wanted: `await group.wait_for_view(lambda v: len(v) >= 3)`."""
        check_function("condition", condition)
        while not (self._is_in and condition(self.view)):
            self._check_open()
            await self._settled.wait()
        return self.view

    @property
    def state_lost(self) -> str | None:
        """Why this member came into its group without the state: nobody could give it. None: it
        has it, started the group itself, or wants none."""
        return None if self._state is None else self._state.lost

    @overload
    async def send(
        self,
        payload: Buffer,
        *,
        to: Member | None = None,
        guarantee: Guarantee = "fifo",
        headers: Mapping[str, str] | None = None,
        channel: str = "",
        receipt: Literal[False] = False,
    ) -> None: ...

    @overload
    async def send(
        self,
        payload: Buffer,
        *,
        to: Member | None = None,
        guarantee: Guarantee = "fifo",
        headers: Mapping[str, str] | None = None,
        channel: str = "",
        receipt: Literal[True],
    ) -> Receipt: ...

    async def send(
        self,
        payload: Buffer,
        *,
        to: Member | None = None,
        guarantee: Guarantee = "fifo",
        headers: Mapping[str, str] | None = None,
        channel: str = "",
        receipt: bool = False,
    ) -> Receipt | None:
        """Send to everybody, oneself included, or to one member alone.

        With `guarantee="uniform"` nobody takes the message before everybody holds it: if one takes
        it, all who stay in the group do, even if this member dies at once. That costs a round trip.
        With `guarantee="total"`, besides, all take all such messages in one order (`position`).

        Waits only while the window is full: the group's for this guarantee, or that member's. What
        is sent to one member, and what is sent with another guarantee, has an order of its own.
        Undeliverable: that member is not in the view, or left it while this waited for room.
        TooFewMembers, or longer waiting, as agreed with `when_few`: the group has fewer than
        `min_members`.

        With `receipt=True` a Receipt is returned: `await receipt.delivered()` ends when the other
        members of the view that the message was sent in have delivered it; `ordered()` of a total
        message, when it has its place.

        `headers` are texts by name, 1 KiB at most, that readers find beside the payload; `channel`
        is one of them, by which several uses of one group are told apart.
        """
        if headers is not None or channel != "" or self._wall is not None:
            payload = with_block(payload, self._block(headers, channel))
        gathering = self._to_all if to is None else self._gathered.to(to)
        if guarantee == "fifo" and not receipt and gathering.add(payload):
            return None
        outgoing = Outgoing([as_bytes(payload)], wants_receipt=receipt)
        await self._send(outgoing, self._check_target(to, guarantee), to)
        return outgoing.receipt

    async def send_many(
        self,
        payloads: Iterable[Buffer],
        *,
        to: Member | None = None,
        guarantee: Guarantee = "fifo",
        headers: Mapping[str, str] | None = None,
        channel: str = "",
    ) -> None:
        """Send in order, all with these headers. If it is cancelled, the first so many were sent
        and the rest were not.

        If the view changes meanwhile, the rest is sent in the next one. TooFewMembers and
        Undeliverable have how many were `sent`.
        """
        outgoing = Outgoing(self._with_block(as_messages(payloads), headers, channel))
        await self._send(outgoing, self._check_target(to, guarantee), to)

    async def _send(self, outgoing: Outgoing, stream: Stream, to: Member | None) -> None:
        """Send what has not been sent of it."""
        while True:
            await self._until_in()
            chunk = outgoing.payloads[outgoing.sent : outgoing.sent + SEND_CHUNK]
            try:
                accepted = self._driver.send(chunk, stream, to)
            except TooFewMembers as few:
                if not self._waits_for_members:
                    raise TooFewMembers(few.have, few.need, few.since_s, outgoing.sent) from None
                accepted = 0
            except Undeliverable as refused:
                refused.sent = outgoing.sent
                raise
            outgoing.sent += accepted
            if outgoing.sent == len(outgoing.payloads):
                if outgoing.wants_receipt:
                    number = self._driver.ask_receipt(stream, to)
                    outgoing.receipt = self._receipts.of(number, self._driver.last_total(stream))
                return
            if accepted < len(chunk):
                self._watch_unread()  # it may be this member that blocks itself
                await self._writable.setdefault(to, Gate()).wait()
            else:
                await asyncio.sleep(0)  # the window is large: let others have their turn

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
        if headers is not None or channel != "" or self._wall is not None:
            payload = with_block(payload, self._block(headers, channel))
        if guarantee == "fifo" and self._gathered.to(to).add(payload):
            return True
        stream = self._check_target(to, guarantee)
        self._check_open()
        return self._is_in and self._driver.send([as_bytes(payload)], stream, to) == 1

    def _block(self, headers: Mapping[str, str] | None, channel: str) -> bytes:
        """What messages with these headers begin with."""
        return encode_headers(headers, channel, None if self._wall is None else self._wall())

    def _with_block(
        self, payloads: Sequence[bytes], headers: Mapping[str, str] | None, channel: str
    ) -> Sequence[bytes]:
        block = self._block(headers, channel)
        return [Headed(block + payload) for payload in payloads] if block else payloads

    async def request(
        self,
        member: Member,
        payload: Buffer,
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109 - the error names member and time
    ) -> bytes:
        """Ask one member, and return what its application replies.

        Requests and replies are no messages: nobody has to read the group for them to pass, and
        they have no place in the order of messages. RequestFailed: the member departed, is not
        there, or refuses. TimedOut: it has not answered within `timeout` seconds. In both cases,
        and if this is cancelled, it may have acted on the request all the same.
        """
        if type(payload) is not bytes or len(payload) > PAYLOAD_BYTES_MAX:
            payload = check_payload(payload)
        if not isinstance(member, Member):
            _check_member(member)
        if type(timeout) not in (int, float) or not 0 <= timeout <= REQUEST_TIMEOUT_S_MAX:
            check_seconds("timeout", timeout, 0.0, REQUEST_TIMEOUT_S_MAX)
        by = asyncio.get_running_loop().time() + timeout
        requests = self._requests
        is_known = member in requests.turns or requests.is_there(member)
        try:
            if self._is_leaving or not is_known:
                self._check_peer(member)
                async with asyncio.timeout_at(by):
                    await self._until_in()
                requests.check(member)
            return await requests.ask(member, payload, by)
        except TimeoutError:
            raise TimedOut(f"{member} has not answered within {timeout:g} s") from None

    def requests(self) -> AsyncIterator[Request]:
        """What others ask this member: `async for request in group.requests()`, then
        `request.reply(b"...")` or `request.refuse("why")`, now or later.

        They wait in order until somebody reads them here, 64 of each member at the most.
        """
        return self._requests

    async def request_all(
        self,
        payload: Buffer,
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109 - errors name member and time
    ) -> Replies:
        """Ask all other members of the view at once: `replies` by member, and who `failed`."""
        check_seconds("timeout", timeout, 0.0, REQUEST_TIMEOUT_S_MAX)
        return await request_all(self, check_payload(payload), timeout)

    async def serve(self, handler: Handler) -> None:
        """Reply to each request with what `handler(request)` returns, or awaits; if it raises, with
        RequestFailed and the error. Ends when this member is out of its group."""
        await serve(self, handler)

    async def batches(self) -> AsyncIterator[Delivered]:
        """Runs of messages as they come: `run.payloads` of one `sender`. The fast way to read.

        What was taken and not handed out when you stop reading comes first when you go on.
        """
        self._check_receiving()
        while True:
            delivered = self._read_queue.take_run()
            if delivered is not None:
                yield delivered
            elif not await self._refill(BATCH_MAX):
                return

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages one by one, in each sender's order. Reading may stop and go on at any time."""
        self._check_receiving()
        while True:
            message = self._read_queue.take_message()
            if message is not None:
                yield message
            elif not await self._refill(PREFETCH):
                return

    async def events(self) -> AsyncGenerator[Delivered | Notice | Closed, None]:
        """Everything in one order: messages as runs, views, losses, and at last the end.

        A view stands before the messages that were taken in it. Undeliverable tells of messages
        to a member, GapSkipped of messages from one, that were given up. While nobody reads events,
        these are logged as warnings.
        """
        queue = self._read_queue
        queue.watchers += 1
        try:
            while True:
                event = queue.take()
                if event is not None:
                    yield event
                elif not await self._refill(BATCH_MAX):
                    break
            assert self._closed is not None
            yield self._closed
        finally:
            queue.watchers -= 1
            if not queue.watchers:
                queue.tell_losses()

    async def _refill(self, limit: int) -> bool:
        """Wait until there is something to read, and take up to `limit` messages; False once
        there will be no more."""
        driver, node = self._driver, self._driver.node
        while True:
            if self._state is not None:
                await self._state.settle()
            if self._read_queue.items:
                return True
            if self._closed is None and not driver.has_room:
                await driver.wait_for_room()
                continue
            self._refills += 1
            waiting = node.effects.events or node.effects.frames or node.effects.lone
            if waiting or node.has_ready or self._state is not None:
                driver.take(limit)
            if self._read_queue.items:
                continue
            if self._closed is not None:
                return False
            if self._is_receiving and node.has_ready:
                await asyncio.sleep(0)  # those were fragments; the rest of the message is coming
            else:
                await self._readable.wait()

    async def leave(self) -> None:
        """Leave before the block ends, as its end would: when the others have received everything
        that was sent to the group, whether they have read it or not, and know; or after
        `leave_timeout_s`. What this member has sent can still be read here afterwards, unless it
        has yet to take its state or to read what came before a view; what others have sent and was
        not taken by then cannot. Whoever calls it once more, or comes to the end of the block,
        waits for the same; and so if this is cancelled, which does not end the leaving."""
        if self._closed is None:
            await self._leave()

    async def flush(self) -> None:
        """Wait until the others have delivered everything that was sent here before this call, to
        all or to one, by any task. Who is no longer in the view is not waited for: Undeliverable
        tells of that one.

        GroupClosed if this member is out of its group before they have.
        """
        await self._gathered.until_settled()
        self._check_open()
        node = self._driver.node
        pending = [self._receipts.of(number) for number in node.ask_flush(self._driver.now())]
        if pending and node.config.multicast.stability is not None:
            self.stabilize()
        for receipt in pending:
            await receipt.delivered()

    def sync(self, peer: Member) -> None:
        """Ask a member where its messages to this one stand, and go on from there: for an
        operator who sees them stuck. It changes nothing where all is well."""
        self._check_peer(peer)
        self._check_open()
        self._driver.sync(peer)

    def stabilize(self) -> None:
        """Find out at once which plain messages everybody has delivered, and purge those.

        For a group with stability rounds (`stability`), where it would come with the next interval
        anyway. UsageError in a group that acknowledges: there nothing waits for a report."""
        self._check_open()
        self._driver.stabilize()

    def health(self) -> Health:
        """Whether this member is ready, and why not; for probes, as `ringcast health` is."""
        return health_of(self._driver, self._closed, has_state_to_take=self._has_state_to_take)

    def explain(self) -> list[str]:
        """One sentence for each thing that waits, and for whom; and one for what slows this member
        down as long as nobody changes it."""
        reasons = self._driver.explain() + self._requests.explain()
        if self._state is not None:
            reasons += self._state.explain()
        return [*reasons, *filter(None, [self._driver.transport.shortage])]

    def stats(self) -> dict[str, object]:
        """Every table with its size, and every counter."""
        return {
            **self._driver.stats(),
            "read_queue": self._read_queue.stats(),
            "probe": None if self._probe is None else self._probe.stats(),
            "metrics": None if self._metrics is None else self._metrics.stats(),
            "requests": self._requests.stats(),
            "receipts": self._receipts.stats(),
        }

    # What the driver tells

    def _on_event(self, event: Event) -> None:
        match event:
            case Delivered():
                is_wanted = self._is_receiving_own or event.epoch or event.sender != self.me
                is_cut_off = self._is_leaving and self._has_state_to_take  # worthless without it
                may_read = self._is_receiving and is_wanted and not is_cut_off
                if type(event.run.payloads[0]) is Headed:
                    rest = self._published.take(event)
                    if may_read and rest is not None:
                        self._read_queue.add_headed(rest)
                elif may_read:
                    self._read_queue.items.append(event)
            case RequestReceived():
                self._requests.on_request(event)
            case ReplyReceived():
                self._requests.on_reply(event)
            case FragmentsDelivered():
                pass
            case Writable(to):
                self._open_writable(to)
            case Confirmed():
                self._receipts.on_confirmed(event)
            case Ordered():
                self._receipts.on_ordered(event)
            case ViewInstalled():
                if event.parts:
                    log.info("%s: merged from %s", self.me, ", ".join(map(repr, event.parts)))
                self._published.on_view(event.view.counter)
                self._notify(event)
            case Undeliverable() | GapSkipped():
                if self._is_leaving and isinstance(event, Undeliverable):
                    self._undeliverable.append(event)
                self._notify(event)
            case Closed():
                self._end(event)
            case _:
                self._on_state_event(event)

    def _on_input(self) -> None:
        """Something arrived, or a deadline came."""
        driver, state = self._driver, self._state
        node = driver.node
        if node.view is not None and node.view is not self._view:
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
            if node.has_ready and not self._readable.open():
                self._watch_unread()

    def _notify(self, notice: Notice) -> None:
        self._read_queue.add_notice(notice)
        self._readable.open()
        self._settled.open()

    @property
    def _has_state_to_take(self) -> bool:
        return self._state is not None and self._state.is_due

    def _on_state_event(self, event: StateEvent) -> None:
        assert self._state is not None  # else nobody asks for one, and none comes
        self._state.on_event(event)
        if isinstance(event, StateLost):
            self._notify(event)
        else:
            self._readable.open()  # whoever waits to read may have come to where it is wanted

    def _on_view(self, view: View) -> None:
        self._place.tell_view(self._driver, self._view)
        self._view = view
        self._requests.on_view(view)
        self._open_writable(None)  # who waits for room may have to be told of too few members
        self._settled.open()

    def _end(self, closed: Closed) -> None:
        closed = self._closed = self._with_unsent(closed)
        log.info("%s is out of group %r: %s", self.me, self._place.config.group, closed.reason)
        self._requests.close(closed.reason)
        self._receipts.fail(f"out of the group before everybody had delivered it: {closed.reason}")
        if self._state is not None:
            self._state.end()  # whoever reads waits for it
        self._wake_all()

    def _with_unsent(self, closed: Closed) -> Closed:
        """Messages that were accepted, and wait in front of the window, are lost too."""
        unacked = {stream: (first, last) for stream, first, last in closed.unacked}
        total = 0
        for queue in self._queues:
            unsent = queue.stop(closed.reason)
            if unsent:
                total += unsent
                high = self._driver.node.multicast.highest_sent(queue.stream)
                first, last = unacked.get(queue.stream, (high + 1, high))
                unacked[queue.stream] = first, last + unsent
        if not total:
            return closed
        ranges = tuple((stream, *ends) for stream, ends in unacked.items())
        return Closed(closed.reason, closed.unsent_bytes, ranges, total)

    def _wake_all(self) -> None:
        self._readable.open()
        self._settled.open()
        for to in list(self._writable):
            self._open_writable(to)

    def _open_writable(self, to: Member | None) -> None:
        gate = self._writable.pop(to, None)
        if gate is not None:
            gate.open()

    def _watch_unread(self) -> None:
        """Look again after a while whether anybody has read since."""
        if self._is_receiving and self._unread_timer is None and not self._has_warned:
            self._unread_timer = asyncio.get_running_loop().call_later(
                UNREAD_WARNING_S, self._warn_if_unread, self._refills, self._read_queue.place
            )

    def _warn_if_unread(self, refills: int, place: tuple[int, int]) -> None:
        self._unread_timer = None
        is_early = self._state is not None and self._state.is_due  # none before the state
        if is_early or not self._driver.node.has_ready or self._readable.is_awaited:
            return
        if (refills, place) != (self._refills, self._read_queue.place):
            self._watch_unread()  # slowly, but somebody reads
            return
        self._has_warned = True
        log.warning(
            "%s: messages wait and nobody has read them for %.0f s; this blocks the senders of "
            "the group. Read with `async for message in group`, or join with "
            "receive=False to take and drop them.",
            *(self.me, UNREAD_WARNING_S),
        )

    @property
    def _is_in(self) -> bool:
        """Messages can be sent; not while this member is looking for its group."""
        return self._driver.membership.phase is Phase.MEMBER

    async def _until_in(self) -> None:
        self._check_open()
        while not self._is_in:
            await self._settled.wait()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise GroupClosed(self._closed.reason)
        if self._is_leaving:
            raise GroupClosed("this member is leaving its group")

    def _check_target(self, to: Member | None, guarantee: Guarantee) -> Stream:
        """Where messages to this destination with this guarantee travel."""
        stream = STREAMS.get(guarantee) if isinstance(guarantee, str) else None
        if stream is None:
            raise UsageError(f"guarantee is 'fifo', 'uniform' or 'total', not {guarantee!r}")
        if to is not None and stream is not Stream.FIFO:
            raise UsageError(
                f"guarantee={guarantee!r} is for messages to the group: it says that all take a "
                f"message or none does, so leave out to="
            )
        self._check_peer(to)
        return stream

    def _check_peer(self, to: Member | None) -> None:
        if to is not None:
            _check_member(to)
            if to not in self.view:
                check_address(to.address, insecure=self._driver.node.config.insecure)

    def _check_receiving(self) -> None:
        if not self._is_receiving:
            raise UsageError("joined with receive=False: there are no messages to read")

    # Who asks from outside

    def _open_probe(self) -> None:
        """A member does its work without it too."""
        place, loop = self._place, asyncio.get_running_loop()
        try:
            directory = place.host.probe_directory(place.config.group)
            if directory is not None:
                self._probe = Probe(directory, probe_name(self.me), loop, self._on_question)
        except (OSError, UsageError) as error:
            log.info("%s answers no local questions (ringcast top and others): %s", self.me, error)

    def _on_question(self, question: Question) -> object:
        return answer(question, self, self._driver)

    async def _open_metrics(self, address: str) -> None:
        from ringcast.aio.metrics import Metrics  # most members need none of it

        self._metrics = Metrics(lambda: exposition([answer({"ask": "top"}, self, self._driver)]))
        await self._metrics.start(Address.parse(address))

    # Coming and going

    async def _enter(self, limit_s: float) -> None:
        """Find the group, and be let in."""
        self._open_probe()
        if self._place.config.metrics is not None:
            await self._open_metrics(self._place.config.metrics)
        self._driver.start()
        try:
            async with asyncio.timeout(limit_s):
                await self._until_in()
        except GroupClosed:  # it had to exist, or cannot be joined
            self._place.raise_refusal(self._driver)
            self._place.raise_join_timeout(self._driver, "")
        except TimeoutError:
            self._place.raise_join_timeout(self._driver, f" within {limit_s:g} s")
        while self._state is not None and self._state.is_due:  # which may take long
            await self._state.take()
            await self._until_in()

    def _leave_within(self, limit_s: float | None = None) -> float:
        """How long leaving may still take, of `limit_s` or `leave_timeout_s`. The first who asks
        begins with it."""
        now = asyncio.get_running_loop().time()
        if self._leave_by is None:
            configured = self._driver.node.config.membership.leave_timeout_s
            self._leave_by = now + (configured if limit_s is None else limit_s)
        return max(0.0, self._leave_by - now)

    async def _leave(self, limit_s: float | None = None) -> None:
        """Go, when the others have everything and know; or when it takes too long."""
        within_s = self._leave_within(limit_s)
        await self._gathered.until_settled(within_s - within_s / GOODBYE_SHARE)
        if not self._is_leaving and self._closed is None:
            self._is_leaving = True
            self._wake_all()  # those who send are told
            self._driver.leave(self._leave_within())
        try:
            async with asyncio.timeout_at(self._leave_by):
                while self._driver.membership.phase is not Phase.OUT:
                    await self._settled.wait()
        except TimeoutError:
            pass  # what was not taken is in the Closed that follows

    def _hurry(self) -> None:
        """Whatever it waits for: be gone at once."""
        self._is_hurried = True

    def _close(self) -> None:
        """Be gone at once, in whatever order."""
        self._is_leaving = True  # there is no coming back
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        if self._probe is not None:
            self._probe.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._state is not None:
            self._state.close()
        try:
            self._driver.close()
        finally:  # also if it was interrupted in the middle of something
            self._place.close()
        if self._closed is None:
            self._end(Closed("closed"))
        assert self._closed is not None
        lost = describe_losses(self._closed)
        to_one = [f"{loss.first}..{loss.last} to {loss.to}" for loss in self._undeliverable]
        what = ", ".join(filter(None, [lost, *to_one]))
        losses = f"{self.me} leaves before everybody has delivered its messages: {what}"
        if lost:  # the others are notices, and logged as such
            log.warning("%s", losses)
        self._losses = losses if what else ""


def _check_member(member: object) -> None:
    """What only looks like one is equal to it, and would be taken for it until it is sent to."""
    if not isinstance(member, Member):
        raise UsageError(
            f"a member is meant, not {member!r}: pass group.view['its name'], or a message's sender"
        )
