"""Publisher: sends staged batches to a group, each message once at every member it is for.

Messages are sent in the order of their batches, partitions and rows, each on the stream of its
guarantee, or to its one receiver; each bears its offset (published.py). From one offset on, in one
view, it sends without asking anybody. Where it cannot know what members have, it stops and asks.

On start, and when the view is no longer the one that it asked in: wait until those that have
    published here before are gone from the view, and until enough others are in it. Wait until the
    others have delivered what was sent (flush). Ask them how far they have come by this view, and
    go on behind the lowest offset of each stream: who has more passes over what it has had. Members
    that came along from the view before have the same of uniform and total messages; of plain ones,
    or if they were parted, they may not. Who has no offset comes only now: it is told the highest.
On a batch: send what is behind those offsets. When all who were to have the last messages have
    delivered them, tell them that the batch is over, and it is done. If one of them departed first,
    ask. The rest of a message that does not fit a datagram may get its seqnos in another view: that
    is what the flush waits for.
On a batch that is done: keep it for a while. Who was parted, and comes back, may lack it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ringcast.aio.published import (
    GROUP_STREAMS,
    PUBLISHER_BYTES_MAX,
    TO_ONE,
    Offset,
    dump,
    end_of,
    header_of,
    parse,
)
from ringcast.errors import NotDelivered, RequestFailed, TooFewMembers, Undeliverable, UsageError
from ringcast.model import Headed, Member, Stream, View
from ringcast.texts import counted
from ringcast.wire.headers import CHANNEL, encode_headers, split_headers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.aio.group import Group
    from ringcast.trace.staging import Batch, Staging

POLL_S: Final = 0.1
"""How often it is looked for the next batch."""

ASK_S: Final = 5.0
"""How long a member has to answer before it is asked once more: it may have to be read first."""

KEEP_S: Final = 60.0
"""How long a batch is kept that is done: parts of a group come together again within seconds."""

log = logging.getLogger("ringcast")


class _Moved(Exception):
    """The view is another one: ask before anything more is sent."""


class Publisher:
    """Of one staging directory, for as long as its group goes on."""

    def __init__(
        self, staging: Staging, group: Group, least: int = 2, *, keep_s: float = KEEP_S
    ) -> None:
        """`least`: members of a view in which it sends, itself among them."""
        self.name = check_publisher(staging.publisher)
        self.sent = 0
        """Messages, those that were sent once more among them."""
        self.unsent = 0
        """Messages for one member that was not there."""
        self.batches = 0
        self._staging = staging
        self._group = group
        self._least = least
        self._keep_s = keep_s
        self._node = group._driver.node
        self._view: View | None = None  # in which it has asked
        self._behind: dict[str | Member, Offset] = {}  # by stream, or by receiver
        self._next = 0  # the batch to go on with
        self._missed: dict[str, int] = {}  # in the batch that was sent last, by receiver

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
        while True:
            self._group._presence.check_open()
            if self._staging.has_batches and self._node.view is not self._view:
                await self._ask()
            batch = self._staging.next_batch(self._next)
            if batch is None:
                self._staging.forget(self._keep_s)
                await asyncio.sleep(POLL_S)
            elif await self._publish(batch):
                self._next = batch.number + 1
                if self._staging.finish(batch):
                    self.batches += 1
                    self._tell_missed(batch)
                self._staging.forget(self._keep_s)
            else:
                self._view = None
                await asyncio.sleep(POLL_S)  # the group may be too small for a while

    async def _publish(self, batch: Batch) -> bool:
        """Whether the group has it."""
        try:
            for stream, to in await self._send(batch):
                self._check()
                number = self._group._driver.ask_receipt(stream, to)
                await self._group._sending.receipts.of(number).delivered()
            self._check()
        except (_Moved, NotDelivered, TooFewMembers, Undeliverable) as why:
            log.info("%s asks how far its group has come: %s", self.name, why)
            return False
        view = self._view
        assert view is not None
        over = dict.fromkeys((TO_ONE, *GROUP_STREAMS), end_of(batch.number))
        return await self._ask_all(view, dict.fromkeys(self._others(view), over)) is not None

    async def _send(self, batch: Batch) -> list[tuple[Stream, Member | None]]:
        """What is behind the offsets where the group is; and where it has gone."""
        used: dict[tuple[Stream, Member | None], None] = {}
        missed: dict[str, int] = {}
        for partition, name in enumerate(batch.files):
            for first, messages, stream, receiver in self._staging.messages(name):
                self._check()
                to = self._receiver(receiver)
                if receiver and to is None:
                    missed[receiver] = missed.get(receiver, 0) + len(messages)
                    continue
                known = self._behind[stream.name.lower() if to is None else to]
                had = 0
                if known > (batch.number, partition, first - 1):
                    is_here = known[:2] == (batch.number, partition)
                    had = known.number + 1 - first if is_here else len(messages)
                rest = [
                    bearing(header_of(self.name, Offset(batch.number, partition, number)), staged)
                    for number, staged in enumerate(messages[had:], first + had)
                ]
                if rest:
                    used[stream, to] = None
                    await self._offer(rest, stream, to)
        self._missed = missed
        return list(used)

    def _tell_missed(self, batch: Batch) -> None:
        for name, count in self._missed.items():
            self.unsent += count
            log.warning(
                "%s: %s of batch %d not sent: the group has not one member that is named %r",
                *(self.name, counted(count, "message"), batch.number, name),
            )

    async def _offer(self, messages: Sequence[bytes], stream: Stream, to: Member | None) -> None:
        """In the view in which it has asked, or not at all."""
        while messages:
            self._check()
            # Nothing is awaited in between: these get their seqnos in this view.
            accepted = self._group._driver.send(messages, stream, to)
            self.sent += accepted
            messages = messages[accepted:]
            if messages:
                await self._group._sending.until_writable(to)

    def _check(self) -> None:
        """Where it has asked it may send, and who stays gets what it has sent there."""
        if self._node.view is not self._view or not self._group._presence.is_in:
            raise _Moved(f"{self._group.view}")

    def _receiver(self, name: str) -> Member | None:
        assert self._view is not None
        found = [member for member in self._others(self._view) if member.name == name]
        return found[0] if name and len(found) == 1 else None

    def _others(self, view: View) -> list[Member]:
        return [member for member in view if member != self._group.me]

    async def _ask(self) -> None:
        """How far the others have come, by a view that is still there when all have said so."""
        group = self._group
        while True:
            await group.wait_for_view(lambda view: len(view) >= self._least)
            view = self._node.view
            assert view is not None
            await group.flush()
            said = await self._ask_all(view, {member: {} for member in self._others(view)})
            if said is not None and await self._ask_all(view, self._conclude(said)) is not None:
                break
        self._view = view
        self._next = min(offset.next_batch for offset in self._behind.values())
        log.info("%s goes on with batch %d in %s", self.name, self._next, view)

    def _conclude(
        self, said: Mapping[Member, Mapping[str, Offset]]
    ) -> dict[Member, dict[str, Offset]]:
        """Where to go on; and what offsets members are to have. UsageError: they have more than is
        here."""
        staging = self._staging
        through, gone = end_of(staging.progress().through), end_of(staging.gone)
        highest = max(
            (offset for offsets in said.values() for offset in offsets.values()), default=gone
        )
        if highest.batch > staging.last:
            raise UsageError(
                f"members of the group have had batch {highest.batch} of publisher {self.name!r}, "
                f"and {staging.path} ends with batch {staging.last}: is it a new directory? It "
                "needs another publisherId then"
            )
        self._behind.clear()
        notes: dict[Member, dict[str, Offset]] = {member: {} for member in said}
        for stream in GROUP_STREAMS:
            known = [offsets[stream] for offsets in said.values() if stream in offsets]
            self._behind[stream] = max(gone, min(known, default=through))
            for member, offsets in said.items():
                if stream not in offsets:
                    notes[member][stream] = max(known, default=through)
        for member, offsets in said.items():
            self._behind[member] = max(gone, offsets.get(TO_ONE, through))
            if TO_ONE not in offsets:
                notes[member][TO_ONE] = through
            late = {stream: gone for stream, offset in offsets.items() if offset < gone}
            if late:
                notes[member] |= late
                log.warning(
                    "%s has come to batch %d of %s, and batches up to %d are kept no more: it "
                    "misses what was published meanwhile",
                    *(member, min(offsets[stream] for stream in late).batch, self.name, gone.batch),
                )
        return {member: noted for member, noted in notes.items() if noted}

    async def _ask_all(
        self, view: View, notes: Mapping[Member, Mapping[str, Offset]]
    ) -> dict[Member, dict[str, Offset]] | None:
        """What these members say, who take these offsets; None if one says nothing, or the view is
        another one now: ask once more."""
        answers = await asyncio.gather(
            *(self._ask_one(member, view, noted) for member, noted in notes.items())
        )
        said = {who: each for who, each in zip(notes, answers, strict=True) if each is not None}
        return said if len(said) == len(notes) and self._node.view is view else None

    async def _ask_one(
        self, member: Member, view: View, noted: Mapping[str, Offset]
    ) -> dict[str, Offset] | None:
        requests, loop = self._group._requests, asyncio.get_running_loop()
        try:
            requests.check(member)
            by = loop.time() + ASK_S
            asked = b"%d\n" % view.counter + dump({self.name: noted})
            answer = await requests.ask(member, asked, by, is_inquiry=True)
        except TimeoutError:
            log.warning("%s has not read up to %s: %s waits for it", member, view, self.name)
            return None
        except RequestFailed:
            await asyncio.sleep(POLL_S)  # it is gone: there will be another view
            return None
        return parse(answer).get(self.name, {})


def check_publisher(name: str) -> str:
    """UsageError unless a publisher can be called that."""
    if not name or not name.isprintable() or len(name.encode()) > PUBLISHER_BYTES_MAX:
        raise UsageError(
            f"publisherId is 1 to {PUBLISHER_BYTES_MAX} bytes of printable text, not {name!r}"
        )
    return name


def bearing(published: str, staged: bytes) -> Headed:
    """A staged message with its own headers, if it has some, and its offset."""
    named, payload = split_headers(staged) if type(staged) is Headed else ({}, staged)
    own = {name: value for name, value in named.items() if name != CHANNEL}
    return Headed(encode_headers(own, named.get(CHANNEL, ""), None, published) + payload)
