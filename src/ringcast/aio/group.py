"""Group: what an asyncio application holds. `async with ringcast.join("orders", …) as group`.

For now the members are a list of loopback addresses that everybody is given. Reading is pulling:
a message counts as delivered when it is taken here, and a member that does not read holds the
senders of its group back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from ringcast.aio.driver import Driver
from ringcast.aio.tap import Tap
from ringcast.aio.udp import UdpSocket
from ringcast.config import DATAGRAM_BYTES_MIN, GroupConfig, MulticastConfig
from ringcast.errors import GroupClosed, JoinTimeout, UsageError
from ringcast.events import Closed, Delivered, ViewInstalled, Writable
from ringcast.model import INCARNATION_MAX, Address, Member, Run, Stream
from ringcast.node import Node
from ringcast.protocols.roster import Roster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from ringcast.events import Event
    from ringcast.model import View, ViewId

BATCH_MAX = 4096
"""Messages taken at once by `batches()`."""

PREFETCH = 256
"""Messages taken at once for `async for`: the bounded queue between the group and its reader."""

SEND_CHUNK = 8192
"""Messages offered to the window at once by `send_many`."""

UNREAD_WARNING_S = 5.0
LEAVE_TIMEOUT_S = 5.0
JOIN_TIMEOUT_S = 30.0

log = logging.getLogger("ringcast")


class Message(NamedTuple):
    """One message as an application sees it."""

    sender: Member
    payload: bytes
    seqno: int
    view: ViewId


class _Gate:
    """Where tasks wait for a condition; each looks again when the gate opens."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiters)

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # cancelled before the gate opened
                self._waiters.remove(waiter)

    def open(self) -> bool:
        """Wake everybody; True if anybody waited."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return bool(waiters)


class Group:
    """A member's handle on its group. Made by `join`; not to be shared between event loops."""

    def __init__(self, *, receive: bool) -> None:
        self._driver: Driver
        self._is_receiving = receive
        self._closed: Closed | None = None
        self._last_read = time.monotonic()
        self._has_warned = False
        self._unread: deque[Delivered] = deque()  # taken, not yet handed to the reader
        self._read_of_first = 0
        self._readable = _Gate()
        self._writable = _Gate()
        self._settled = _Gate()

    @property
    def me(self) -> Member:
        return self._driver.node.me

    @property
    def view(self) -> View:
        """Who is in the group now."""
        view = self._driver.node.view
        assert view is not None  # join() returns only then
        return view

    async def send(self, payload: bytes) -> None:
        """Send to everybody, oneself included. Waits only while the window is full."""
        await self.send_many([payload])

    async def send_many(self, payloads: Sequence[bytes]) -> None:
        """Send in order. If it is cancelled, the first so many were sent and the rest were not."""
        start = 0
        while True:
            self._check_open()
            chunk = payloads[start : start + SEND_CHUNK]
            accepted = self._driver.send(chunk, Stream.FIFO)
            start += accepted
            if start == len(payloads):
                return
            if accepted < len(chunk):
                await self._writable.wait()
            else:
                await asyncio.sleep(0)  # the window is large: let others have their turn

    def try_send(self, payload: bytes) -> bool:
        """Send if there is room; False, and nothing is sent, if not."""
        self._check_open()
        return self._driver.send([payload], Stream.FIFO) == 1

    async def batches(self) -> AsyncIterator[Delivered]:
        """Runs of messages as they come: `run.payloads` of one `sender`. The fast way to read.

        What was taken and not handed out when you stop reading comes first when you go on.
        """
        while await self._has_unread(BATCH_MAX):
            delivered = self._unread.popleft()
            if self._read_of_first:
                run = delivered.run
                rest = run.payloads[self._read_of_first :]
                run = Run(run.stream, run.first + self._read_of_first, rest)
                delivered = Delivered(delivered.sender, run, delivered.view_id)
                self._read_of_first = 0
            yield delivered

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages one by one, in each sender's order. Reading may stop and go on at any time."""
        while await self._has_unread(PREFETCH):
            delivered = self._unread[0]
            run = delivered.run
            at = self._read_of_first
            self._read_of_first += 1
            if self._read_of_first == len(run.payloads):
                self._unread.popleft()
                self._read_of_first = 0
            yield Message(delivered.sender, run.payloads[at], run.first + at, delivered.view_id)

    async def _has_unread(self, limit: int) -> bool:
        """Wait for messages and take up to `limit` of them; False once there will be no more."""
        self._check_receiving()
        while not self._unread:
            self._last_read = time.monotonic()
            self._unread.extend(self._driver.take(limit))
            self._open_if_settled()
            if self._unread:
                break
            if self._closed is not None:
                return False
            if self._driver.node.has_ready:
                await asyncio.sleep(0)  # those were fragments; the rest of the message is coming
            else:
                await self._readable.wait()
        return True

    async def flush(self) -> None:
        """Wait until every other member has taken what was sent here."""
        while not self._driver.node.multicast.is_flushed:
            self._check_open()
            await self._settled.wait()
        self._check_open()

    def explain(self) -> list[str]:
        """One sentence for each thing that waits, and for whom."""
        return self._driver.explain()

    def stats(self) -> dict[str, object]:
        """Every table with its size, and every counter."""
        return self._driver.stats()

    def install_view(self, view: View) -> None:
        """Go on with this view: until groups find out for themselves, somebody has to say who
        is gone."""
        self._driver.install_view(view)

    # What the driver tells

    def on_event(self, event: Event) -> None:
        match event:
            case Writable():
                self._writable.open()
            case Closed():
                self._closed = event
                for gate in (self._readable, self._writable, self._settled):
                    gate.open()
            case ViewInstalled():
                self._settled.open()

    def on_input(self) -> None:
        """Something arrived, or a deadline came."""
        if not self._is_receiving:
            while self._driver.take(BATCH_MAX):
                pass
        elif self._driver.node.has_ready and not self._readable.open():
            self._warn_if_unread()
        self._open_if_settled()

    def _open_if_settled(self) -> None:
        if self._settled.is_awaited and self._driver.node.multicast.is_flushed:
            self._settled.open()

    def _warn_if_unread(self) -> None:
        waited = time.monotonic() - self._last_read
        if waited > UNREAD_WARNING_S and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: messages wait and nobody has read them for %.0f s; this holds the senders of "
                "the group back. Read with `async for message in group`, or join with "
                "receive=False to take and drop them.",
                self.me,
                waited,
            )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise GroupClosed(self._closed.reason)

    def _check_receiving(self) -> None:
        if not self._is_receiving:
            raise UsageError("joined with receive=False: there is nothing to read")


@asynccontextmanager
async def join(
    group: str,
    *,
    listen: str,
    members: Sequence[str],
    name: str = "",
    receive: bool = True,
    record: Path | None = None,
    run_id: str = "",
    config: MulticastConfig | None = None,
    join_timeout_s: float = JOIN_TIMEOUT_S,
    lose: Callable[[], bool] | None = None,
) -> AsyncIterator[Group]:
    """Join a group whose members are listed; in it when the block starts.

    `listen` is this member's own address and stands in `members`, which is the same list in the
    same order everywhere. `receive=False` is for members that only send: what arrives is taken
    and dropped. `record` is a directory for the trace, `run_id` what to call this run of the
    group there (else by the group's name). `lose` drops what arrives whenever it returns True:
    for tests of one's own application. Leaving the block waits until everybody has taken what
    was sent, for 5 s at the most.
    """
    addresses = [Address.parse(text) for text in members]
    own = Address.parse(listen)
    for address in (own, *addresses):
        _check_loopback(address)
    with closing(UdpSocket(own)) as sock:
        me = Member(sock.address, 1 + secrets.randbelow(INCARNATION_MAX), name)
        settings = _fit(config or MulticastConfig(), sock.receive_buffer, len(addresses))
        group_config = GroupConfig(group=group, name=name, multicast=settings)
        roster = Roster(me, addresses)
        node = Node(me, group_config, layers=[roster])
        node.multicast.receive_buffer = sock.receive_buffer
        handle = Group(receive=receive)
        loop = asyncio.get_running_loop()
        tap = _tap(node, record, run_id)
        driver = handle._driver = Driver(node, sock, loop, handle, tap=tap, lose=lose)
        try:
            driver.start()
            await _joined(handle, driver, roster, join_timeout_s)
            yield handle
            await _flushed(handle)
        finally:
            driver.close()


async def _flushed(handle: Group) -> None:
    try:
        await asyncio.wait_for(handle.flush(), LEAVE_TIMEOUT_S)
    except TimeoutError:
        log.warning("%s leaves before everybody has taken its messages", handle.me)
    except GroupClosed:
        pass  # the group went on without this member: nobody is left to wait for


async def _joined(handle: Group, driver: Driver, roster: Roster, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while driver.node.view is None:
                await handle._settled.wait()
    except TimeoutError:
        silent = ", ".join(map(str, roster.missing))
        raise JoinTimeout(
            f"nobody answered at {silent} within {limit_s:g} s: are these members running, with "
            f"the same group name and the same list?"
        ) from None


def _fit(config: MulticastConfig, receive_buffer: int, members: int) -> MulticastConfig:
    """Datagrams small enough that two from every other member fit the receive buffer."""
    share = receive_buffer // max(1, members - 1)
    datagram_bytes = max(DATAGRAM_BYTES_MIN, min(config.datagram_bytes, share // 2))
    return replace(config, datagram_bytes=datagram_bytes)


def _check_loopback(address: Address) -> None:
    """There is no encryption yet, so nothing leaves the machine."""
    try:
        is_local = ip_address(address.host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise UsageError(
            f"{address} is not a loopback address: without encryption ringcast stays on one "
            f"machine; use 127.0.0.1 or [::1]"
        )


def _tap(node: Node, directory: Path | None, run_id: str) -> Tap | None:
    if directory is None:
        return None
    from ringcast.trace.recorder import Recorder  # needs what only ringcast[spark] brings

    return Tap(node, Recorder(directory, run_id or node.config.group, node.me))
