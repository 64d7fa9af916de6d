"""Publisher: sends staged batches to a group, each message once at every member.

The messages are uniform, in the order of their batches, partitions and rows, and each bears its
place (published.py). From one place on, in one view, it sends without asking anybody: whatever it
has sent there, all who go on with it deliver. Where it cannot know what they have, it stops and
asks.

On start, and when the view is no longer the one that it asked in: wait until those that have
    published here before are gone from the view, and until enough others are in it. Wait until the
    others have delivered what was sent (flush). Ask them how far they have come by this view, and
    go on behind the highest place: members that came along from the view before have the same.
On a batch: send what is behind that place. When all who were to have the last message have
    delivered it, the batch is done. If one of them departed first, ask.
    The rest of a message that does not fit a datagram may get its seqnos in another view: that is
    what the flush waits for.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from ringcast.aio.published import NOWHERE, PUBLISHER_BYTES_MAX, Place, header_of, parse
from ringcast.errors import NotDelivered, RequestFailed, TooFewMembers, UsageError
from ringcast.model import Headed, Stream
from ringcast.wire.headers import CHANNEL, encode_headers, split_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.aio.group import Group
    from ringcast.model import Member, View
    from ringcast.trace.staging import Batch, Staging

POLL_S: Final = 0.1
"""How often it is looked for the next batch."""

ASK_S: Final = 5.0
"""How long a member has to answer before it is asked once more: it may have to be read first."""

CHUNK: Final = 1024
"""Messages offered to the window at once."""

END: Final = 2**63
"""Behind all that is in a batch."""

log = logging.getLogger("ringcast")


class _Moved(Exception):
    """The view is another one: ask before anything more is sent."""


class Publisher:
    """Of one staging directory, for as long as its group goes on."""

    def __init__(self, staging: Staging, group: Group, least: int = 2) -> None:
        """`least`: members of a view in which it sends, itself among them."""
        self.name = check_publisher(staging.publisher)
        self.sent = 0
        """Messages, those that were sent once more among them."""
        self.batches = 0
        self._staging = staging
        self._group = group
        self._least = least
        self._node = group._driver.node
        self._at = NOWHERE
        self._view: View | None = None  # in which it has asked

    async def run(self) -> None:
        """Until this member is out: GroupClosed."""
        progress = self._staging.progress()
        before = set(progress.incarnations)
        progress.incarnations.append(self._group.me.incarnation)
        self._staging.note(progress)
        await self._group.wait_for_view(
            lambda view: not before & {member.incarnation for member in view}
        )
        progress.incarnations = [self._group.me.incarnation]
        self._staging.note(progress)
        self._staging.sweep()
        while True:
            batch = self._staging.next_batch()
            if batch is None:
                self._group._presence.check_open()
                await asyncio.sleep(POLL_S)
                continue
            while not await self._publish(batch):
                pass
            self._staging.finish(batch)
            self.batches += 1

    async def _publish(self, batch: Batch) -> bool:
        """Whether the group has it."""
        if self._node.view is not self._view:
            await self._ask()
        end = Place(batch.number, END, 0)
        try:
            await self._send(batch)
            self._check()
            number = self._group._driver.ask_receipt(Stream.UNIFORM, None)
            await self._group._sending.receipts.of(number).delivered()
        except (_Moved, NotDelivered, TooFewMembers) as why:
            log.info("%s asks how far its group has come: %s", self.name, why)
            self._view = None
            return False
        self._at = max(self._at, end)
        return True

    async def _send(self, batch: Batch) -> None:
        messages = self._messages(batch)
        while chunk := list(islice(messages, CHUNK)):
            await self._offer(chunk)

    def _messages(self, batch: Batch) -> Iterator[bytes]:
        """What is behind the place where the group is."""
        for partition, name in enumerate(batch.files):
            for number, staged in self._staging.messages(name):
                place = Place(batch.number, partition, number)
                if place > self._at:
                    yield bearing(header_of(self.name, place), staged)

    async def _offer(self, messages: list[bytes]) -> None:
        """In the view in which it has asked, or not at all."""
        while messages:
            self._check()
            # Nothing is awaited in between: these get their seqnos in this view.
            accepted = self._group._driver.send(messages, Stream.UNIFORM, None)
            self.sent += accepted
            messages = messages[accepted:]
            if messages:
                await self._group._sending.until_writable(None)

    def _check(self) -> None:
        """Where it has asked it may send, and what it has sent there all get that stay."""
        if self._node.view is not self._view or not self._group._presence.is_in:
            raise _Moved(f"{self._group.view}")

    async def _ask(self) -> None:
        """How far the others have come, by a view that is still there when all have said so."""
        group = self._group
        while True:
            await group.wait_for_view(lambda view: len(view) >= self._least)
            view = self._node.view
            assert view is not None
            await group.flush()
            others = [member for member in view if member != group.me]
            said = await asyncio.gather(*(self._ask_one(member, view) for member in others))
            if None not in said and self._node.view is view:
                break
        through = Place(self._staging.progress().through, END, 0)
        self._at = max([through, *(place for place in said if place is not None)])
        self._view = view
        log.info("%s goes on behind %s in %s", self.name, self._at, view)

    async def _ask_one(self, member: Member, view: View) -> Place | None:
        """None: it is to be asked once more, if it is still there."""
        requests, loop = self._group._requests, asyncio.get_running_loop()
        try:
            requests.check(member)
            by = loop.time() + ASK_S
            asked = b"%d" % view.counter
            answer = await requests.ask(member, asked, by, is_inquiry=True)
        except TimeoutError:
            log.warning("%s has not read up to %s: %s waits for it", member, view, self.name)
            return None
        except RequestFailed:
            await asyncio.sleep(POLL_S)  # it is gone: there will be another view
            return None
        return parse(answer).get(self.name, NOWHERE)


def check_publisher(name: str) -> str:
    """UsageError unless a publisher can be called that."""
    if not name or len(name.encode()) > PUBLISHER_BYTES_MAX or not name.isprintable():
        raise UsageError(
            f"publisherId is 1 to {PUBLISHER_BYTES_MAX} bytes of printable text, not {name!r}"
        )
    return name


def bearing(published: str, staged: bytes) -> Headed:
    """A staged message with its own headers, if it has some, and its place."""
    named, payload = split_headers(staged) if type(staged) is Headed else ({}, staged)
    own = {name: value for name, value in named.items() if name != CHANNEL}
    return Headed(encode_headers(own, named.get(CHANNEL, ""), None, published) + payload)
