"""Whatever ends a block, its member leaves in good order; a second cancellation cuts that short."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import ringcast
from ringcast import GroupClosed, MembershipConfig, MulticastConfig
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from ringcast import Group
    from ringcast.testing import Cluster

PAYLOADS = [b"%d" % number for number in range(200)]
SMALL = MulticastConfig(capacity=16)
PATIENCE_S = 20.0
FOUND = MembershipConfig(discovery_wait_s=5.0)
PATIENT = replace(FOUND, leave_timeout_s=PATIENCE_S, suspect_after_s=100.0)


class Stopped(Exception):
    """What a block raises."""


class Reader:
    """A member that reads all that comes, and keeps it."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def follow(self, group: Group) -> None:
        async for message in group:
            self.got.append(message.payload)


def run(
    main: Callable[[], Coroutine[Any, Any, None]], *, reads: bool = True
) -> tuple[Cluster, Reader, float]:
    """Run a process beside one that reads, until it has ended; how long that took in virtual s.
    So much is lost on the way that what was accepted last has to be sent again."""
    reader = Reader()

    async def scenario(c: Cluster) -> float:
        began = c.now_s
        ended = asyncio.Event()

        async def whole() -> None:
            try:
                await main()
            finally:
                ended.set()

        c.launch(whole, "main")
        await ended.wait()
        return c.now_s - began

    with cluster(1, multicast=SMALL, membership=PATIENT, loss=0.4) as c:
        if reads:
            c.start(reader.follow)
        took_s = c.run(scenario(c))
        if reads:
            c.run(asyncio.sleep(1))
        return c, reader, took_s


def joining(**options: Any) -> Any:
    options = {"multicast": SMALL, "membership": FOUND, "receive": False, **options}
    return ringcast.join("test", **options)


# What ends a block


async def send_and_raise(error: BaseException) -> None:
    async with joining() as group:
        await group.send_many(PAYLOADS)
        raise error


async def send_and_wait(sent: asyncio.Event) -> None:
    async with joining() as group:
        await group.send_many(PAYLOADS)
        sent.set()
        await asyncio.sleep(1000)


async def by_an_exception() -> None:
    with pytest.raises(Stopped):
        await send_and_raise(Stopped())


async def by_exit() -> None:
    with pytest.raises(SystemExit):
        await send_and_raise(SystemExit(3))


async def by_a_cancellation() -> None:
    sent = asyncio.Event()
    task = asyncio.create_task(send_and_wait(sent))
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def by_a_timeout_around_it() -> None:
    async def block() -> None:
        async with asyncio.timeout(None) as limit, joining() as group:
            await group.send_many(PAYLOADS)
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(1000)

    with pytest.raises(TimeoutError):
        await block()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def by_a_timeout_while_it_leaves() -> None:
    async with joining() as group:
        await group.send_many(PAYLOADS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(group.leave(), 1e-6)


async def by_a_task_beside_it() -> None:
    async def fail() -> None:
        await sent.wait()
        raise Stopped

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            tasks.create_task(send_and_wait(sent))

    sent = asyncio.Event()
    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert [type(error) for error in caught.value.exceptions] == [Stopped]


async def by_a_cancellation_while_it_leaves() -> None:
    """The first: it comes too late to be the end of the block, and too early to end the leaving."""

    async def block() -> None:
        async with joining() as group:
            await group.send_many(PAYLOADS[:-10])
            await group.flush()
            await group.send_many(PAYLOADS[-10:])
            done.set()

    done = asyncio.Event()
    task = asyncio.create_task(block())
    await done.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


WAYS = [
    by_an_exception,
    by_a_cancellation,
    by_a_timeout_around_it,
    by_a_timeout_while_it_leaves,
    by_a_task_beside_it,
    by_exit,
    by_a_cancellation_while_it_leaves,
]


@pytest.mark.parametrize("main", WAYS, ids=[main.__name__ for main in WAYS])
def test_all_that_was_accepted_is_delivered(
    main: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ringcast"):
        _, reader, _ = run(main)
    assert reader.got == PAYLOADS
    assert not [text for text in caplog.messages if "main" in text]


# How long it may take, and what is said then


def test_it_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def block() -> None:
        async with joining(name="late", membership=PATIENT) as group:
            await group.send_many(PAYLOADS[:8])
            await group.send(b"to one", to=group.view.coordinator)
            raise Stopped

    async def main() -> None:
        with pytest.raises(Stopped) as caught:
            await block()
        assert caught.value.__notes__ == [said]

    # What it sent to the group is there, and waits for no reader.
    said = "late leaves before everybody has delivered its messages: 1..1 to m0"
    with caplog.at_level(logging.WARNING, "ringcast"):
        _, _, took_s = run(main, reads=False)
    assert PATIENCE_S * 0.7 < took_s < PATIENCE_S + 1
    assert any("messages 1..1 to m0 were given up" in text for text in caplog.messages)


SAID = "late leaves before everybody has delivered its messages: 1..8, 1..1 to m0"


@pytest.mark.parametrize("how", ["cancelled", "fails", "ends"])
def test_a_second_cancellation_ends_it_at_once_and_says_what_was_not_delivered(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[str] = []

    async def block(sent: asyncio.Event) -> None:
        try:
            async with (
                joining(name="outer", membership=PATIENT) as outer,
                joining(name="late", membership=PATIENT) as group,
            ):
                await outer.send(b"x")
                await group.send_many(PAYLOADS[:8])
                await group.send(b"to one", to=group.view.coordinator)
                sent.set()
                if how == "cancelled":
                    await asyncio.sleep(1000)
                elif how == "fails":
                    raise Stopped
        except asyncio.CancelledError as cancelled:
            notes.extend(cancelled.__notes__)
            raise

    async def main() -> None:
        sent = asyncio.Event()
        task = asyncio.create_task(block(sent))
        await sent.wait()
        for _ in range(2):
            await asyncio.sleep(1)
            assert not task.done()
            task.cancel()
        await asyncio.sleep(0.1)
        assert task.cancelled()

    with caplog.at_level(logging.WARNING, "ringcast"):
        run(main, reads=False)
    outer = "outer leaves before everybody has delivered its messages: 1..1"
    assert notes == [SAID, outer]  # who is around it does not begin to leave
    assert {SAID, outer} <= set(caplog.messages)


# Where nobody leaves


@pytest.mark.parametrize("is_leaving", [False, True])
def test_a_process_that_crashes_does_not_leave(is_leaving: bool) -> None:
    async def main() -> None:
        try:
            async with joining(name="dies", membership=PATIENT) as group:
                await group.send_many(PAYLOADS[:8])
                begun.set()
                if not is_leaving:
                    await asyncio.sleep(1000)
        finally:
            ended.set()

    async def scenario(c: Cluster) -> None:
        process = c.launch(main, "dies")
        await begun.wait()
        await asyncio.sleep(1)
        process.crash()
        await asyncio.sleep(0.01)
        assert ended.is_set()

    begun, ended = asyncio.Event(), asyncio.Event()
    with cluster(1, membership=PATIENT) as c:
        c.run(scenario(c))


def test_a_coroutine_that_is_thrown_away_is_out_at_once() -> None:
    groups: list[Group] = []

    async def block() -> None:
        async with joining(name="thrown away") as group:
            groups.append(group)
            await asyncio.get_running_loop().create_future()

    class Driven:
        """As a task does it, which then goes away."""

        def __await__(self) -> Generator[Any, None, None]:
            coroutine = block()
            while (waits_for := coroutine.send(None)) is not None and not groups:
                yield waits_for
            coroutine.close()

    async def main() -> None:
        await Driven()
        with pytest.raises(GroupClosed):
            await groups[0].send(b"x")

    run(main)
