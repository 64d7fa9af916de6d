"""Group: what an asyncio application holds. `async with ringcast.join("orders") as group`.

Reading is pulling: a message counts as delivered when it is taken here, and a member that does not
read blocks those who send to it. A member that the others have excluded, because it was silent for
too long, comes back by itself, as it was; the view that brings it back says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from ringcast.aio.answers import Health, answer, health_of
from ringcast.aio.driver import Owner
from ringcast.aio.payloads import as_bytes, as_messages, with_block
from ringcast.aio.presence import Presence, check_member, out_of
from ringcast.aio.probe import Probe, Question, probe_name
from ringcast.aio.prometheus import exposition
from ringcast.aio.published import Published
from ringcast.aio.read_queue import Guarantee, Message, Notice, describe_losses
from ringcast.aio.reading import Reading
from ringcast.aio.requests import PAYLOAD_BYTES_MAX, Requests, check_payload, request_all, serve
from ringcast.aio.sending import Outgoing, Sending
from ringcast.checks import check_seconds
from ringcast.errors import TimedOut, UsageError
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
from ringcast.model import Address, Member, View

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping

    from ringcast.aio.member_host import MemberHost
    from ringcast.aio.metrics import Metrics
    from ringcast.aio.receipts import Receipt
    from ringcast.aio.requests import Handler, Replies, Request
    from ringcast.aio.sending import How
    from ringcast.aio.state import GiveState, TakeState
    from ringcast.arguments import JoinOptions
    from ringcast.events import Event
    from ringcast.wire.codec import Buffer

REQUEST_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S_MAX = 86_400.0

log = logging.getLogger("ringcast")


class Group:
    """A member's handle on its group. Made by `join`; not to be shared between event loops."""

    def __init__(
        self,
        place: MemberHost,
        given: JoinOptions,
        hooks: tuple[GiveState, TakeState] | None,
    ) -> None:
        self._place = place
        self._published = Published(lambda: self._reading.has_state_to_take)
        self._requests = Requests(self._published.asked)
        self._reading = Reading(self._published, self._on_event, self._on_view, given)
        on_request, on_reply = self._requests.on_request, self._requests.on_reply
        owner = Owner(self._reading.on_event, on_request, on_reply, self._reading.on_input)
        self._requests.driver = self._driver = place.drive(owner)
        self._presence = Presence(self._driver, self._wake_all)
        self._reading.start(self._driver, self._presence, hooks)
        wall = place.host.wall if given["send_time"] else None
        self._sending = Sending(self._driver, self._presence, self._reading, given, wall)
        self._gathered, self._to_all = self._driver.gathered, self._driver.gathered.to_all
        self._probe: Probe | None = None
        self._metrics: Metrics | None = None

    @property
    def me(self) -> Member:
        """This member, the same for as long as it is in its group."""
        return self._driver.node.me

    @property
    def view(self) -> View:
        """Who is in the group now. Whoever reads finds the view behind the messages before it, so a
        reader may be behind this."""
        assert self._presence.view is not None  # join() returns only then
        return self._presence.view

    @property
    def settings(self) -> dict[str, Any]:
        """What all members of the group agree on, by name."""
        return self._driver.membership.agreement.settings.told

    async def wait_for_view(self, condition: Callable[[View], bool]) -> View:
        """Wait until the group is as wanted: `await group.wait_for_view(lambda v: len(v) >= 3)`."""
        return await self._presence.until_view(condition)

    @property
    def state_lost(self) -> str | None:
        """Why this member came into its group without the state: nobody could give it. None: it
        has it, started the group itself, or wants none."""
        state = self._reading.state
        return None if state is None else state.lost

    @overload
    async def send(
        self, payload: Buffer, *, receipt: Literal[False] = False, **how: Unpack[How]
    ) -> None: ...

    @overload
    async def send(
        self, payload: Buffer, *, receipt: Literal[True], **how: Unpack[How]
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
        sending = self._sending
        if headers is not None or channel != "" or sending.wall is not None:
            payload = with_block(payload, sending.block(headers, channel))
        gathering = self._to_all if to is None else self._gathered.to(to)
        if guarantee == "fifo" and not receipt and gathering.add(payload):
            return None
        outgoing = Outgoing([as_bytes(payload)], wants_receipt=receipt)
        await sending.send(outgoing, sending.check_target(to, guarantee), to)
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
        sending = self._sending
        outgoing = Outgoing(sending.with_block(as_messages(payloads), headers, channel))
        await sending.send(outgoing, sending.check_target(to, guarantee), to)

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
        sending = self._sending
        if headers is not None or channel != "" or sending.wall is not None:
            payload = with_block(payload, sending.block(headers, channel))
        return sending.try_send(payload, to, guarantee)

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
            check_member(member)
        if type(timeout) not in (int, float) or not 0 <= timeout <= REQUEST_TIMEOUT_S_MAX:
            check_seconds("timeout", timeout, 0.0, REQUEST_TIMEOUT_S_MAX)
        by = asyncio.get_running_loop().time() + timeout
        requests = self._requests
        is_known = member in requests.turns or requests.is_there(member)
        try:
            if self._presence.is_leaving or not is_known:
                self._presence.check_peer(member)
                async with asyncio.timeout_at(by):
                    await self._presence.until_in()
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
        payload = check_payload(payload)
        self._presence.check_open()
        return await request_all(self, payload, timeout)

    async def serve(self, handler: Handler) -> None:
        """Reply to each request with what `handler(request)` returns, or awaits; if it raises, with
        RequestFailed and the error. Ends when this member is out of its group."""
        await serve(self, handler)

    def batches(self) -> AsyncIterator[Delivered]:
        """Runs of messages as they come: `run.payloads` of one `sender`. The fast way to read.

        What was taken and not handed out when you stop reading comes first when you go on.
        """
        return self._reading.batches()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Messages one by one, in each sender's order. Reading may stop and go on at any time."""
        return self._reading.messages()

    def events(self) -> AsyncGenerator[Delivered | Notice | Closed, None]:
        """Everything in one order: messages as runs, views, losses, and at last the end.

        A view stands before the messages that were taken in it. Undeliverable tells of messages
        to a member, GapSkipped of messages from one, that were given up. While nobody reads events,
        these are logged as warnings.
        """
        return self._reading.events()

    async def leave(self) -> None:
        """Leave before the block ends, as its end would: when the others have received everything
        that was sent to the group, whether they have read it or not, and know; or after
        `leave_timeout_s`. What this member has sent can still be read here afterwards, unless it
        has yet to take its state or to read what came before a view; what others have sent and was
        not taken by then cannot. Whoever calls it once more, or comes to the end of the block,
        waits for the same; and so if this is cancelled, which does not end the leaving."""
        if self._presence.closed is None:
            await self._presence.leave()

    async def flush(self) -> None:
        """Wait until the others have delivered everything that was sent here before this call, to
        all or to one, by any task. Who is no longer in the view is not waited for: Undeliverable
        tells of that one.

        GroupClosed if this member is out of its group before they have.
        """
        await self._sending.flush()

    def sync(self, peer: Member) -> None:
        """Ask a member where its messages to this one stand, and go on from there: for an
        operator who sees them stuck. It changes nothing where all is well."""
        self._presence.check_peer(peer)
        self._presence.check_open()
        self._driver.sync(peer)

    def stabilize(self) -> None:
        """Find out at once which plain messages everybody has delivered, and purge those.

        For a group with stability rounds (`stability`), where it would come with the next interval
        anyway. UsageError in a group that acknowledges: there nothing waits for a report."""
        self._presence.check_open()
        self._driver.stabilize()

    def health(self) -> Health:
        """Whether this member is ready, and why not; for probes, as `ringcast health` is."""
        has_state = self._reading.has_state_to_take
        return health_of(self._driver, self._presence.closed, has_state_to_take=has_state)

    def explain(self) -> list[str]:
        """One sentence for each thing that waits, and for whom; and one for what slows this member
        down as long as nobody changes it."""
        reasons = self._driver.explain() + self._requests.explain()
        if self._reading.state is not None:
            reasons += self._reading.state.explain()
        return [*reasons, *filter(None, [self._driver.transport.shortage])]

    def stats(self) -> dict[str, object]:
        """Every table with its size, and every counter."""
        return {
            **self._driver.stats(),
            "read_queue": self._reading.queue.stats(),
            "probe": None if self._probe is None else self._probe.stats(),
            "metrics": None if self._metrics is None else self._metrics.stats(),
            "requests": self._requests.stats(),
            "receipts": self._sending.receipts.stats(),
        }

    # What the driver tells

    def _on_event(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._requests.on_request(event)
            case ReplyReceived():
                self._requests.on_reply(event)
            case Delivered() | FragmentsDelivered():
                pass  # it is where messages are read; or not whole yet
            case Writable(to):
                self._sending.open_writable(to)
            case Confirmed():
                self._sending.receipts.on_confirmed(event)
            case Ordered():
                self._sending.receipts.on_ordered(event)
            case ViewInstalled():
                if event.parts:
                    log.info("%s: merged from %s", self.me, ", ".join(map(repr, event.parts)))
                self._published.on_view(event.view.counter)
                self._reading.notify(event)
            case Undeliverable() | GapSkipped():
                if self._presence.is_leaving and isinstance(event, Undeliverable):
                    self._presence.undeliverable.append(event)
                self._reading.notify(event)
            case Closed():
                self._end(event)
            case _:
                state = self._reading.state
                assert state is not None  # else nobody asks for one, and none comes
                state.on_event(event)
                if isinstance(event, StateLost):
                    self._reading.notify(event)
                else:  # a waiting reader may have come to where it is wanted
                    self._reading.readable.open()

    def _on_view(self, view: View) -> None:
        self._place.tell_view(self._driver, self._presence.view)
        self._presence.view = view
        self._requests.on_view(view)
        self._sending.open_writable(None)  # who waits may have to be told of too few members
        self._presence.changed.open()

    def _end(self, closed: Closed) -> None:
        closed = self._presence.closed = self._sending.end(closed)
        log.info("%s is out of group %r: %s", self.me, self._place.config.group, closed.reason)
        self._requests.close(out_of(closed))
        reason = f"out of the group before everybody had delivered it: {closed.reason}"
        self._sending.receipts.fail(reason)
        if self._reading.state is not None:
            self._reading.state.end()  # a reader waits for it
        self._wake_all()

    def _wake_all(self) -> None:
        self._reading.readable.open()
        self._presence.changed.open()
        self._sending.wake_all()

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
        self._open_probe()
        if self._place.config.metrics is not None:
            await self._open_metrics(self._place.config.metrics)
        await self._presence.enter(self._place, self._reading.state, limit_s)

    def _close(self) -> None:
        """Be gone at once, in whatever order."""
        presence = self._presence
        presence.is_leaving = True  # there is no coming back
        self._reading.close()
        if self._probe is not None:
            self._probe.close()
        if self._metrics is not None:
            self._metrics.close()
        try:
            self._driver.close()
        finally:  # also if it was interrupted in the middle of something
            self._place.close()
        if presence.closed is None:
            self._end(Closed("closed"))
        assert presence.closed is not None
        lost = describe_losses(presence.closed)
        to_one = [f"{loss.first}..{loss.last} to {loss.to}" for loss in presence.undeliverable]
        what = ", ".join(filter(None, [lost, *to_one]))
        losses = f"{self.me} leaves before everybody has delivered its messages: {what}"
        if lost:  # the others are notices, and logged as such
            log.warning("%s", losses)
        presence.losses = losses if what else ""
