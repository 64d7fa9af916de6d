"""Calls of the asyncio API that are cancelled after so many turns of the loop, for all of them that
matter: nothing is missing in what others get, nothing comes twice, and the next call works."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

import ringcast
from ringcast import MulticastConfig, UnicastConfig
from ringcast.aio.requests import OPEN_MAX
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ringcast import Group
    from ringcast.testing import Cluster

TURNS = range(41)
SMALL = {"multicast": MulticastConfig(capacity=8), "unicast": UnicastConfig(capacity=8)}
"""Windows that are soon full: whoever sends has to wait in the middle of it."""


async def cancelled(call: Coroutine[Any, Any, object], turns: int) -> bool:
    """Cancel it after so many turns of the loop; True if it had been cancelled before its end."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


async def until(condition: Callable[[], object]) -> None:
    """In virtual time, so that nothing is waited for in vain for ever."""
    while not condition():  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(0.001)


class Reader:
    """Reads all that comes to a member."""

    def __init__(self, group: Group) -> None:
        self.got: list[bytes] = []
        self._group = group
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        seqnos: dict[tuple[object, ...], int] = {}
        async for message in self._group:
            stream = (message.sender, message.guarantee, message.to_me)
            assert message.seqno == seqnos.get(stream, 0) + 1
            seqnos[stream] = message.seqno
            self.got.append(message.payload)

    async def until(self, payload: bytes) -> list[bytes]:
        """What came before this, which is the last."""
        await until(lambda: self.got[-1:] == [payload] or self._task.done())
        if self._task.done():
            self._task.result()
        got, self.got[:] = self.got[:-1], []
        return got


def count_cancelled(c: Cluster, scenario: Coroutine[Any, Any, int]) -> None:
    """At least some calls were cancelled in the middle."""
    assert c.run(scenario) > 5


@pytest.mark.parametrize("how", ["fifo", "uniform", "to one"])
@pytest.mark.parametrize("size", [1, 30])
def test_a_send_sends_the_first_so_many(how: str, size: int) -> None:
    async def scenario(a: Group, b: Group) -> int:
        options: dict[str, Any] = {"to": b.me} if how == "to one" else {"guarantee": how}
        readers = [Reader(b)] if how == "to one" else [Reader(a), Reader(b)]
        cancellations = 0
        for turns in TURNS:
            # Eight more, so that also who sends one message has to wait.
            before = [b"before %d" % number for number in range(8)]
            payloads = [b"%d" % number for number in range(size)]
            await a.send_many(before, **options)
            if size == 1:
                call = a.send(payloads[0], **options)
            else:
                call = a.send_many(payloads, **options)
            is_cancelled = await cancelled(call, turns)
            cancellations += is_cancelled
            await a.send(b"end", **options)
            for reader in readers:
                got = await reader.until(b"end")
                assert got[:8] == before
                assert got[8:] == payloads[: len(got) - 8]
                assert is_cancelled or len(got) == 8 + size
        await a.flush()
        return cancellations

    with cluster(2, **SMALL) as c:
        count_cancelled(c, scenario(*(member.group for member in c.members)))


def test_a_request_leaves_nothing_open() -> None:
    async def answer(group: Group) -> None:
        async for request in group.requests():
            request.reply(request.payload)

    async def scenario(a: Group, b: Group) -> int:
        answering = asyncio.create_task(answer(b))
        cancellations = 0
        for attempt in range(2 * OPEN_MAX):  # more than may be open
            turns = TURNS[attempt % len(TURNS)]
            cancellations += await cancelled(a.request(b.me, b"cancelled"), turns)
        asks = [b"%d" % number for number in range(2 * OPEN_MAX)]
        assert await asyncio.gather(*(a.request(b.me, ask) for ask in asks)) == asks
        assert a._requests.stats()["open"] == 0
        assert b._requests.stats()["unanswered"] == 0
        answering.cancel()
        return cancellations

    with cluster(2) as c:
        count_cancelled(c, scenario(*(member.group for member in c.members)))


@pytest.mark.parametrize("way", ["__aiter__", "batches", "events"])
def test_reading_loses_nothing(way: str) -> None:
    async def read(group: Group, got: list[bytes]) -> None:
        async for item in getattr(group, way)():
            if isinstance(item, ringcast.Message):
                got.append(item.payload)
            elif isinstance(item, ringcast.Delivered):
                got.extend(item.run.payloads)

    async def scenario(a: Group, b: Group) -> int:
        Reader(b)
        got: list[bytes] = []
        payloads = [b"%d" % number for number in range(5 * len(TURNS))]
        sending = asyncio.create_task(a.send_many(payloads))
        for turns in TURNS:
            assert await cancelled(read(a, got), turns)
        reading = asyncio.create_task(read(a, got))
        await sending
        await until(lambda: len(got) == len(payloads))
        reading.cancel()
        assert got == payloads
        return len(TURNS)

    with cluster(2, **SMALL) as c:
        count_cancelled(c, scenario(*(member.group for member in c.members)))


def test_a_flush_and_a_wait_for_a_view_may_be_given_up() -> None:
    async def scenario(a: Group, b: Group) -> int:
        reader, _ = Reader(b), Reader(a)
        cancellations = 0
        for turns in TURNS:
            await a.send(b"x")
            cancellations += await cancelled(a.flush(), turns)
            assert await cancelled(a.wait_for_view(lambda view: len(view) == 3), turns)
        await a.send(b"end")
        assert await reader.until(b"end") == [b"x"] * len(TURNS)
        await a.flush()
        assert not a._presence.changed.is_awaited
        return cancellations

    with cluster(2, delay_s=0.0) as c:
        count_cancelled(c, scenario(*(member.group for member in c.members)))


def test_a_leave_goes_on_and_the_block_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    payloads = [b"%d" % number for number in range(30)]

    async def scenario(c: Cluster, a: Group, b: Group) -> int:
        _, reader = Reader(a), Reader(b)
        cancellations: list[bool] = []
        for turns in TURNS:

            async def main(turns: int = turns) -> None:
                async with ringcast.join("test", name="leaver", receive=False) as group:
                    await group.send_many(payloads)
                    cancellations.append(await cancelled(group.leave(), turns))

            c.launch(main, f"leaver {turns}")
            for group in (a, b):
                await group.wait_for_view(lambda view: len(view) == 3)
            for group in (a, b):
                await group.wait_for_view(lambda view: len(view) == 2)
            await b.send(b"end")
            assert await reader.until(b"end") == payloads
        return sum(cancellations)

    with cluster(2) as c, caplog.at_level(logging.WARNING, "ringcast"):
        count_cancelled(c, scenario(c, *(member.group for member in c.members)))
        assert caplog.messages == []


class Log:
    """An application whose state is all that it has read."""

    def __init__(self) -> None:
        self.items: list[bytes] = []

    async def give(self) -> AsyncIterator[bytes]:
        items = list(self.items)
        for _ in range(10):  # it takes a while before anything more may be read
            await asyncio.sleep(0)
        yield b"%d " % len(items)
        for item in items:
            await asyncio.sleep(0)
            yield item + b" "

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        state = b"".join([chunk async for chunk in chunks])
        length, *items = state.split()
        assert len(items) == int(length)
        self.items = items

    @property
    def hooks(self) -> dict[str, Any]:
        return {"give_state": lambda: self.give(), "take_state": self.take}

    async def follow(self, group: Group) -> None:
        async for message in group:
            self.items.append(message.payload)

    async def until(self, item: bytes) -> None:
        await until(lambda: self.items[-1:] == [item])


def test_a_join_that_is_given_up_harms_nobody() -> None:
    async def scenario(c: Cluster) -> int:
        first = Log()
        a = (await c.join("a", **first.hooks)).group
        asyncio.create_task(first.follow(a))  # noqa: RUF006 - it ends with the cluster
        cancellations: list[bool] = []
        for turns in range(0, 20 * len(TURNS), 20):  # a join takes some hundreds
            await a.send_many([b"%d" % turns] * 3)
            done = asyncio.Event()

            async def main(turns: int = turns, done: asyncio.Event = done) -> None:
                joined: list[bool] = []

                async def enter() -> None:
                    async with ringcast.join("test", **Log().hooks):
                        joined.append(True)

                await cancelled(enter(), turns)
                cancellations.append(not joined)
                done.set()

            c.launch(main, f"gives up {turns}")
            await done.wait()
        last = Log()
        late = (await c.join("late", **last.hooks)).group
        asyncio.create_task(last.follow(late))  # noqa: RUF006
        await late.wait_for_view(lambda view: len(view) == 2)
        await a.send(b"end")
        await asyncio.gather(first.until(b"end"), last.until(b"end"))
        expected = [b"%d" % turns for turns in range(0, 20 * len(TURNS), 20) for _ in range(3)]
        assert first.items == last.items == [*expected, b"end"]
        return sum(cancellations)

    with cluster(0) as c:
        count_cancelled(c, scenario(c))


def test_who_stops_reading_where_the_state_is_wanted_gives_it_when_reading_goes_on() -> None:
    async def scenario(c: Cluster) -> int:
        first = Log()
        a = (await c.join("a", **first.hooks)).group
        expected: list[bytes] = []
        cancellations = 0
        for turns in TURNS:
            expected += (batch := [b"%d" % turns] * 3)
            await a.send_many(batch)
            log = Log()
            joining = asyncio.create_task(c.join(f"joiner {turns}", **log.hooks))
            await until(lambda: any("to read what came before" in reason for reason in a.explain()))
            for _ in range(3):
                await cancelled(first.follow(a), turns)
                # It stands at the place where the state is to be made, and may have begun with it.
                cancellations += a._reading.queue.marker is not None
            following = asyncio.create_task(first.follow(a))
            joiner = await joining
            asyncio.create_task(log.follow(joiner.group))  # noqa: RUF006 - ends with the process
            expected.append(last := b"last-%d" % turns)
            await a.send(last)
            await asyncio.gather(first.until(last), log.until(last))
            assert first.items == log.items == expected
            await joiner.leave()
            await a.wait_for_view(lambda view: len(view) == 1)
            following.cancel()
        return cancellations

    with cluster(0) as c:
        count_cancelled(c, scenario(c))
