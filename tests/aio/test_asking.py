"""Asking everybody at once, and handlers that answer, or raise."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from blocking_groups import members, threads
from loopback_groups import exclude, with_members

from ringcast import RequestFailed, TimedOut

if TYPE_CHECKING:
    from ringcast import Group, Request


def halve(request: Request) -> bytes:
    return b"%d" % (100 // int(request.payload))


async def shout(request: Request) -> bytes:
    await asyncio.sleep(0)
    return request.payload.upper()


def test_a_handler_that_raises_answers_with_its_error_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(a: Group, b: Group) -> None:
        serving = asyncio.create_task(b.serve(halve))
        for wrong, error in ((b"0", "ZeroDivisionError: "), (b"x", "ValueError: invalid literal")):
            with pytest.raises(RequestFailed, match=f"B refuses: {error}"):
                await a.request(b.me, wrong, timeout=60.0)
        assert await a.request(b.me, b"4") == b"25"  # and it goes on
        await b.leave()
        await serving

    with_members(2)(test)
    assert caplog.text.count("the handler of requests raised, asked by A") == 2


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def fail(request: Request) -> bytes:
    match request.payload:
        case b"cancel":
            raise asyncio.CancelledError
        case b"text":
            raise Unspeakable
    await asyncio.sleep(60)
    return b"late"


def test_whatever_a_handler_raises_it_answers_at_once_and_others_are_served() -> None:
    async def test(a: Group, b: Group) -> None:
        serving = asyncio.create_task(b.serve(fail))
        for asked, reason in ((b"cancel", "cancelled"), (b"text", "Unspeakable")):
            with pytest.raises(RequestFailed, match=f"^B refuses: {reason}$"):
                await a.request(b.me, asked, timeout=60.0)
        assert not serving.done()
        waiting = asyncio.create_task(a.request(b.me, b"slow", timeout=60.0))
        while not b.stats()["requests"]["unanswered"]:  # type: ignore[index]
            await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(RequestFailed, match=r"^B refuses: cancelled$"):
            await waiting
        assert await asyncio.gather(serving, return_exceptions=True) != [None]

    with_members(2)(test)


def test_a_handler_that_ends_a_thread_refuses_first() -> None:
    def end(request: Request) -> bytes:
        raise SystemExit(7)

    with threads(1) as pool, members(2) as (a, b):
        asking = pool.submit(a.request, b.me, b"x", timeout=60.0)
        with pytest.raises(SystemExit):
            b.serve(end)
        with pytest.raises(RequestFailed, match=r"^B refuses: SystemExit$"):
            asking.result()


def test_a_handler_may_take_its_time_and_must_return_bytes() -> None:
    async def test(a: Group, b: Group) -> None:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(b.serve(shout))
            said = await asyncio.gather(*(a.request(b.me, b"m%d" % at) for at in range(20)))
            assert said == [b"M%d" % at for at in range(20)]
            serving.cancel()
        wrong = asyncio.create_task(b.serve(lambda request: "text"))  # type: ignore[arg-type,return-value]
        with pytest.raises(RequestFailed, match="UsageError"):
            await a.request(b.me, b"what")
        twice = asyncio.create_task(b.serve(lambda request: request.reply(b"once") or b"twice"))  # type: ignore[func-returns-value]
        wrong.cancel()
        assert await a.request(b.me, b"again") == b"once"
        twice.cancel()

    with_members(2)(test)


def test_everybody_is_asked_and_each_failure_has_its_reason() -> None:
    async def test(a: Group, b: Group, c: Group, d: Group) -> None:
        assert (await a.request_all(b"x", timeout=0.05)).failed.keys() == {b.me, c.me, d.me}
        serving = [asyncio.create_task(group.serve(shout)) for group in (b, c)]
        found = await a.request_all(b"hi", timeout=0.5)
        assert found.replies == {b.me: b"HI", c.me: b"HI"}
        assert isinstance(found.failed[d.me], TimedOut)
        asking = asyncio.create_task(a.request_all(b"hi", timeout=60.0))
        await asyncio.sleep(0)
        exclude(d.me, by=a)
        gone = await asking
        assert (list(gone.replies), list(gone.failed)) == ([b.me, c.me], [d.me])
        assert isinstance(gone.failed[d.me], RequestFailed)
        for task in serving:
            task.cancel()

    with_members(4)(test)


def test_threads_ask_everybody_and_serve() -> None:
    with members(2) as (a, b):
        serving = threading.Thread(target=b.serve, args=(halve,))
        serving.start()
        assert a.request_all(b"5").replies == {b.me: b"20"}
        assert str(a.request_all(b"0").failed[b.me]).startswith("B refuses: ZeroDivisionError")
        b.leave()
        serving.join(30)
        assert not serving.is_alive()
