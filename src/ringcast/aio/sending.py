"""Sending: the ways of a message into its window.

On send: a plain message is gathered with others (gathering.py), if it surely has room. All else
    comes here, waits until this member is in its group, and is offered to the window; what finds no
    room is offered again when there is some.
On TooFewMembers: it is raised, or waited for as `when_few` says.
On flush: wait until nothing is gathered, and all that has a seqno is confirmed.
On the end of this member: what waits in front of a window is lost, and Closed counts it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypedDict

from ringcast.aio.gate import Gate
from ringcast.aio.member_host import STREAMS
from ringcast.aio.payloads import as_bytes
from ringcast.aio.receipts import Receipt, Receipts
from ringcast.errors import TooFewMembers, Undeliverable, UsageError
from ringcast.events import Closed
from ringcast.model import Headed, Member, Stream
from ringcast.wire.headers import encode_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ringcast.aio.driver import Driver
    from ringcast.aio.gathering import Gatherings
    from ringcast.aio.presence import Presence
    from ringcast.aio.read_queue import Guarantee
    from ringcast.aio.reading import Reading
    from ringcast.aio.send_queue import SendQueue
    from ringcast.arguments import JoinOptions
    from ringcast.wire.codec import Buffer

    class How(TypedDict, total=False):
        """What all ways of sending take."""

        to: Member | None
        guarantee: Guarantee
        headers: Mapping[str, str] | None
        channel: str

    class HowLong(How, total=False):
        """In threads."""

        timeout: float | None


SEND_CHUNK = 8192
"""Messages offered to the window at once by `send_many`."""


class Outgoing:
    """Messages on their way into the window: `sent` of them are in it, from the first on."""

    __slots__ = ("payloads", "receipt", "sent", "wants_receipt")

    def __init__(self, payloads: Sequence[bytes], *, wants_receipt: bool = False) -> None:
        self.payloads = payloads
        self.sent = 0
        self.wants_receipt = wants_receipt
        self.receipt: Receipt | None = None  # once all are in the window


class Sending:
    """Of one member, to all destinations."""

    def __init__(
        self,
        driver: Driver,
        presence: Presence,
        reading: Reading,
        given: JoinOptions,
        wall: Callable[[], int] | None,
    ) -> None:
        """`wall`: the time of day, if messages are to tell it."""
        self.waits_for_members = given["when_few"] == "wait"
        self.wall = wall
        self.receipts = Receipts()
        self.queues: list[Gatherings | SendQueue] = [driver.gathered]
        """In front of the windows."""
        self._driver = driver
        self._presence = presence
        self._reading = reading
        self._writable: dict[Member | None, Gate] = {}  # by destination; None: the group

    async def send(self, outgoing: Outgoing, stream: Stream, to: Member | None) -> None:
        """Send what has not been sent of it."""
        while True:
            await self._presence.until_in()
            chunk = outgoing.payloads[outgoing.sent : outgoing.sent + SEND_CHUNK]
            try:
                accepted = self._driver.send(chunk, stream, to)
            except TooFewMembers as few:
                if not self.waits_for_members:
                    raise TooFewMembers(few.have, few.need, few.since_s, outgoing.sent) from None
                accepted = 0
            except Undeliverable as refused:
                refused.sent = outgoing.sent
                raise
            outgoing.sent += accepted
            if outgoing.sent == len(outgoing.payloads):
                if outgoing.wants_receipt:
                    number = self._driver.ask_receipt(stream, to)
                    outgoing.receipt = self.receipts.of(number, self._driver.last_total(stream))
                return
            if accepted < len(chunk):
                self._reading.watch_unread()  # it may be this member that blocks itself
                await self.until_writable(to)
            else:
                await asyncio.sleep(0)  # the window is large: let others have their turn

    def try_send(self, payload: Buffer, to: Member | None, guarantee: Guarantee) -> bool:
        if guarantee == "fifo" and self._driver.gathered.to(to).add(payload):
            return True
        stream = self.check_target(to, guarantee)
        self._presence.check_open()
        return self._presence.is_in and self._driver.send([as_bytes(payload)], stream, to) == 1

    async def flush(self) -> None:
        await self._driver.gathered.until_settled()
        self._presence.check_open()
        node = self._driver.node
        pending = [self.receipts.of(number) for number in node.ask_flush(self._driver.now())]
        if pending and node.config.multicast.stability is not None:
            self._driver.stabilize()
        for receipt in pending:
            await receipt.delivered()

    def block(self, headers: Mapping[str, str] | None, channel: str) -> bytes:
        """What messages with these headers begin with."""
        return encode_headers(headers, channel, None if self.wall is None else self.wall())

    def with_block(
        self, payloads: Sequence[bytes], headers: Mapping[str, str] | None, channel: str
    ) -> Sequence[bytes]:
        block = self.block(headers, channel)
        return [Headed(block + payload) for payload in payloads] if block else payloads

    def check_target(self, to: Member | None, guarantee: Guarantee) -> Stream:
        """Where messages to this destination with this guarantee travel."""
        stream = STREAMS.get(guarantee) if isinstance(guarantee, str) else None
        if stream is None:
            raise UsageError(f"guarantee is 'fifo', 'uniform' or 'total', not {guarantee!r}")
        if to is not None and stream is not Stream.FIFO:
            raise UsageError(
                f"guarantee={guarantee!r} is for messages to the group: it says that all take a "
                f"message or none does, so leave out to="
            )
        self._presence.check_peer(to)
        return stream

    async def until_writable(self, to: Member | None) -> None:
        await self._writable.setdefault(to, Gate()).wait()

    def open_writable(self, to: Member | None) -> None:
        gate = self._writable.pop(to, None)
        if gate is not None:
            gate.open()

    def wake_all(self) -> None:
        for to in list(self._writable):
            self.open_writable(to)

    def end(self, closed: Closed) -> Closed:
        """Messages that were accepted, and wait in front of the window, are lost too."""
        unacked = {stream: (first, last) for stream, first, last in closed.unacked}
        total = 0
        for queue in self.queues:
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
