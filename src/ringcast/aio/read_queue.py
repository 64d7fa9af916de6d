"""ReadQueue: what has left the node and not yet reached the application, in one order.

Messages are taken from the node only when somebody reads, so few of them wait here. Notices come by
themselves and are bounded. Whoever reads messages only passes over the notices; but that messages
were lost is then logged, so that no loss is silent. A SnapshotMarker marks a place at which the
state of the application is wanted: whoever reads stops there until it is made."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from typing import Final, Literal, NamedTuple, TypeAlias

from ringcast.aio.state import SnapshotMarker
from ringcast.errors import UsageError
from ringcast.events import Closed, Delivered, GapSkipped, StateLost, Undeliverable, ViewInstalled
from ringcast.model import NO_HEADERS, Headers, Member, Place, Run, Stream, ViewId
from ringcast.wire.headers import read_headers

NOTICES_MAX = 1024
"""Notices that wait for a reader; beyond this the oldest goes."""

Loss: TypeAlias = Undeliverable | GapSkipped | StateLost
Notice: TypeAlias = ViewInstalled | Loss
Guarantee: TypeAlias = Literal["fifo", "uniform", "total"]

log = logging.getLogger("ringcast")


class Message(NamedTuple):
    """One message as an application sees it."""

    sender: Member
    payload: bytes
    seqno: int
    view: ViewId
    to_me: bool = False
    """It was sent to this member alone."""
    guarantee: Guarantee = "fifo"
    """What it was sent with. `seqno` counts the sender's messages with this guarantee."""
    headers: Headers = NO_HEADERS
    """What its sender said of it, by name."""
    position: int = 0
    """Of a total message: which one it is in the one order of all. 0 for all others."""
    carried: bool = False
    """Total: its sender had sent it before it came to this part of the group from another one."""
    seen: bool = False
    """Total: this member has taken it before, in another part."""

    @property
    def channel(self) -> str:
        """Which use of the group it belongs to, if its sender said so; else ""."""
        return self.headers.channel

    @property
    def sent_at(self) -> float | None:
        """When it was sent, in seconds since the epoch by the clock of its sender, if that joined
        with `send_time=True`."""
        return self.headers.sent_at

    @property
    def place(self) -> Place:
        """Where a total message stands in the one order: unique for ever, and in order."""
        if not self.position:
            raise UsageError(f"a {self.guarantee} message has no place: send guarantee='total'")
        return Place(self.view, self.position)


_make_message: Final = partial(tuple.__new__, Message)  # a call into C for each


def _messages_of(delivered: Delivered) -> list[Message]:
    run = delivered.run
    guarantee = run.stream.name.lower()
    same = (delivered.sender, delivered.view_id, delivered.epoch > 0, guarantee)
    sender, view_id, to_me, guarantees = map(repeat, same)
    seqnos = range(run.first, run.first + len(run.payloads))
    headers = repeat(NO_HEADERS) if run.headers is None else run.headers
    positions = count(delivered.position) if delivered.position else repeat(0)
    flags = map(repeat, (delivered.carried, delivered.seen))
    known = sender, run.payloads, seqnos, view_id, to_me, guarantees, headers
    fields = zip(*known, positions, *flags, strict=False)
    return list(map(_make_message, fields))


class ReadQueue:
    """A queue with three ways to read it. Each item is handed out once, to whoever comes first."""

    def __init__(self, me: Member) -> None:
        self.watchers = 0
        """How many are reading notices: with none, losses are logged as they come."""
        self.dropped = 0
        """Notices that nobody read in time."""
        self.unread_headers = 0
        """Messages whose headers cannot be read: they are delivered as they came."""
        self._me = me
        self.items: deque[Delivered | Notice | SnapshotMarker] = deque()
        """What waits, to be read only; runs of messages are appended to it."""
        self._read_of_first = 0  # messages of the first item that have been handed out
        self._messages: list[Message] = []  # of the first item, once one was
        self._notices = 0
        self._untold: deque[Loss] = deque()  # waiting, and not logged

    @property
    def place(self) -> tuple[int, int]:
        """It changes whenever something is read."""
        return len(self.items), self._read_of_first

    def add_notice(self, notice: Notice) -> None:
        if self._notices == NOTICES_MAX:
            self._drop_oldest()
        self._notices += 1
        self.items.append(notice)
        if isinstance(notice, Loss):
            self._untold.append(notice)
            if not self.watchers:
                self.tell_losses()

    def add_headed(self, delivered: Delivered) -> None:
        """Messages that begin with their headers."""
        run = delivered.run
        headers, payloads, unread = read_headers(run.payloads)
        self.unread_headers += unread
        run = Run(run.stream, run.first, payloads, headers)
        self.items.append(replace(delivered, run=run))

    def add_marker(self, marker: SnapshotMarker) -> None:
        self.items.append(marker)

    def remove_marker(self, marker: SnapshotMarker) -> None:
        """It has been made, or is not wanted any more."""
        if marker in self.items:
            self.items.remove(marker)

    @property
    def marker(self) -> SnapshotMarker | None:
        """What is to be made before anything more is taken."""
        first = self.items[0] if self.items else None
        return first if isinstance(first, SnapshotMarker) else None

    def take_message(self) -> Message | None:
        """The next message; notices before it are passed over. None: there is none, or a marker
        is first."""
        at = self._read_of_first
        if not at:
            delivered = self._first_messages() if self.items else None
            if delivered is None:
                return None
            self._messages = _messages_of(delivered)
        messages = self._messages
        if at + 1 < len(messages):
            self._read_of_first = at + 1
        else:
            self._read_of_first = 0
            self.items.popleft()
            self._messages = []
        return messages[at]

    def take_run(self) -> Delivered | None:
        """The next messages of one sender; notices before them are passed over."""
        delivered = self._first_messages()
        if delivered is not None:
            self.items.popleft()
            delivered = self._rest_of(delivered)
        return delivered

    def take(self) -> Delivered | Notice | None:
        """The next messages or the next notice, whatever comes first."""
        if not self.items or self.marker is not None:
            return None
        item = self.items.popleft()
        if isinstance(item, Delivered):
            return self._rest_of(item)
        assert not isinstance(item, SnapshotMarker)
        self._leaves(item, is_read=True)
        return item

    def tell_losses(self) -> None:
        """Log those that wait here and have not been logged: nobody may ever read them."""
        while self._untold:
            self._warn_of(self._untold.popleft())

    def stats(self) -> dict[str, object]:
        runs = [item.run.payloads for item in self.items if isinstance(item, Delivered)]
        return {
            "runs": len(runs),
            "bytes": sum(len(payload) for payloads in runs for payload in payloads),
            "notices": self._notices,
            "notices_dropped": self.dropped,
            "unread_headers": self.unread_headers,
        }

    def _first_messages(self) -> Delivered | None:
        while self.items:
            item = self.items[0]
            if isinstance(item, Delivered):
                return item
            if isinstance(item, SnapshotMarker):
                return None
            self.items.popleft()
            self._leaves(item, is_read=False)
        return None

    def _rest_of(self, delivered: Delivered) -> Delivered:
        """What has not been handed out of the item that was the first."""
        at, self._read_of_first = self._read_of_first, 0
        if not at:
            return delivered
        run, headers = delivered.run, delivered.run.headers
        headers = None if headers is None else headers[at:]
        run = Run(run.stream, run.first + at, run.payloads[at:], headers)
        return replace(delivered, run=run, position=delivered.position and delivered.position + at)

    def _drop_oldest(self) -> None:
        if not self.dropped:
            log.warning(
                "%s: %d notices wait and nobody reads them: the oldest are dropped. Read them with "
                "`async for event in group.events()`, or pass over them with `async for message in "
                "group`.",
                *(self._me, NOTICES_MAX),
            )
        self.dropped += 1
        for at, item in enumerate(self.items):
            if isinstance(item, Notice):
                del self.items[at]
                self._leaves(item, is_read=False)
                return

    def _leaves(self, notice: Notice, *, is_read: bool) -> None:
        self._notices -= 1
        if self._untold and self._untold[0] is notice:  # both queues are in the same order
            loss = self._untold.popleft()
            if not is_read:
                self._warn_of(loss)

    def _warn_of(self, loss: Loss) -> None:
        match loss:
            case Undeliverable():
                log.warning(
                    "%s: messages %d..%d to %s were given up and may not have arrived: %s",
                    *(self._me, loss.first, loss.last, loss.to, loss.reason),
                )
            case GapSkipped():
                log.warning(
                    "%s: messages %d..%d of %s to this member are lost",
                    *(self._me, loss.first, loss.last, loss.sender),
                )
            case StateLost(reason):
                log.warning("%s is in its group without the state: %s", self._me, reason)


def describe_losses(end: Closed) -> str:
    """Which of one's own messages to the group may not have arrived: for people."""
    streams = [f"{first}..{last}" for stream, first, last in end.unacked if stream is Stream.FIFO]
    streams += [
        f"{stream.name.lower()} {first}..{last}"
        for stream, first, last in end.unacked
        if stream is not Stream.FIFO
    ]
    if end.unsent_bytes:
        streams.append(f"{end.unsent_bytes} bytes of a large message")
    if end.unsent:
        streams.append(f"the last {end.unsent} of these were not sent")
    return ", ".join(streams)
