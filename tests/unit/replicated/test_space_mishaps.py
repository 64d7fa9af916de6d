"""Spaces on a model of total order: what goes wrong at one member, and what others see of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import ringcast
from ringcast.errors import OutcomeUnknown, SpaceClosed, TooFewMembers, UsageError
from ringcast.replicated import Changed, Codec, Reset, Space
from ringcast.replicated import handles as handles_of
from ringcast.replicated.structures import CounterState
from support.ordered import Order, member, settle
from support.spaces import App, apps, run, same

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.ordered import OrderedGroup


def refuse(group: OrderedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has too few members from now on."""

    async def send(_: bytes, **__: object) -> None:
        raise TooFewMembers(1, 2, 0.0)

    monkeypatch.setattr(group, "send", send)


def test_a_lock_is_freed_though_there_were_too_few_to_say_so_and_others_speak_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is said again is another operation: that one is below what its space waits for."""
    monkeypatch.setattr(handles_of, "RETRY_S", 0.01)

    async def main() -> None:
        async with apps(Order(), 0, 1) as (a, b):
            token, send = await a.lock.acquire(), a.group.send
            refuse(a.group, monkeypatch)
            with pytest.raises(TooFewMembers):
                await a.lock.release(token)
            await asyncio.sleep(0)  # and once more, in the background
            monkeypatch.setattr(a.group, "send", send)
            await a.sold.add(1)
            async with asyncio.timeout(1), b.lock as later:
                assert bytes(later) > bytes(token)
            assert not a.space._tasks

    run(main)


def test_who_could_not_ask_for_a_lock_has_nothing_to_withdraw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who tries again and again would leave more in the background each time."""

    async def main() -> None:
        async with apps(Order(), 0, 1) as (a, b):
            refuse(a.group, monkeypatch)
            for _ in range(3):
                with pytest.raises(TooFewMembers):
                    await a.lock.acquire()
            assert not a.space._tasks
            assert not a.space._open
            async with b.lock:
                pass

    run(main)


def test_who_is_told_of_a_leader_reads_what_is_there_with_it() -> None:
    """Also of structures that are named behind the leader."""

    async def main() -> None:
        order = Order()
        seen: list[tuple[int, int]] = []
        async with AsyncExitStack() as stack:
            groups = []
            for number in range(2):
                space = Space()

                def note(*_: Any, space: Space = space, number: int = number) -> None:
                    seen.append((number, space.counter("sold").value))

                space.leader("boss", on_leader=note)
                sold = space.counter("sold")
                groups.append(await order.join(member(number), space))
                await stack.enter_async_context(space.serve(groups[-1]))  # type: ignore[arg-type]
                await sold.add(1)
            assert seen == [(0, 0), (1, 1)]

    run(main)


def test_what_a_callback_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        order = Order()
        told: list[Any] = []

        def fail(*arguments: Any) -> None:
            told.append(arguments)
            raise ZeroDivisionError

        async with apps(order, 0, 1, on_leader=fail, on_diverged=fail) as (a, b):
            assert len(told) == 2
            order.divide(b.group)
            await settle(lambda: len(b.space.view) == 1)
            await b.sold.add(1)
            order.merge(a.group.part, b.group.part)  # type: ignore[arg-type]
            await settle(lambda: len(b.space.view) == 2)
            assert [type(each) for each, *_ in told[-2:]].count(ringcast.Member) == 1
            await b.prices.set("x", 1)
            await same(a, b)

    run(main)
    assert "raises" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("key", [7, None, b"tea", "\ud800"])
def test_what_is_no_key_is_refused(key: Any) -> None:
    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            for call in (a.prices.set, a.prices.delete, a.prices.compare_and_set):
                arguments = {a.prices.set: (1,), a.prices.compare_and_set: (1, 2)}.get(call, ())
                with pytest.raises(UsageError, match="keys of prices are texts"):
                    await call(key, *arguments)  # type: ignore[operator]
            assert a.space._number == 0

    run(main)


@pytest.mark.parametrize("value", [5, "text", [1, 2], 10**12])
def test_what_is_no_bytes_is_refused(value: Any) -> None:
    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            with pytest.raises(UsageError, match=r"blobs\['raw'\] cannot be"):
                await a.blobs.set("raw", value)
            for buffer in (bytearray(b"x"), memoryview(b"x"), b"x"):
                await a.blobs.set("raw", buffer)
                assert a.blobs["raw"] == b"x"

    run(main)


def test_what_a_codec_raises_reaches_its_caller_alone() -> None:
    def encode(value: object) -> bytes:
        if value == "attribute":
            raise AttributeError
        return b"bad" if value == "bad" else str(value).encode()

    def decode(data: bytes) -> str:
        if data == b"bad":
            raise LookupError
        return data.decode()

    async def main() -> None:
        space = Space()
        things = space.dict("things", Codec(encode, decode))
        other = space.dict("other", Codec(str, str))  # type: ignore[arg-type]
        order = Order()
        group = await order.join(member(0), space)
        async with space.serve(group):  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="cannot be 'attribute'") as caught:
                await things.set("x", "attribute")
            assert isinstance(caught.value.__cause__, AttributeError)
            with pytest.raises(UsageError, match="makes str of a value"):
                await other.set("x", 1)
            watching = things.watch()
            assert await anext(watching) == Reset({})
            await things.set("x", "bad")
            with pytest.raises(LookupError):
                await anext(watching)
            with pytest.raises(LookupError):
                things["x"]
            await things.set("x", "good")
            assert things["x"] == "good"
            assert not space._open

    run(main)


def test_a_member_that_fails_alone_closes_its_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a result it would differ from what others have."""

    async def main() -> None:
        async with apps(Order(), 0) as (a,):

            def fail(*_: object) -> None:
                raise MemoryError

            monkeypatch.setattr(CounterState, "apply", fail)
            with pytest.raises(OutcomeUnknown):
                await a.sold.add(1)
            with pytest.raises(SpaceClosed):
                await a.sold.add(1)

    with pytest.raises(MemoryError):
        run(main)


def test_who_is_cancelled_has_asked_once_and_stands_in_nobodys_way() -> None:
    async def main() -> None:
        order = Order(is_prompt=False)
        async with apps(order, 0, 1) as (a, b):
            adding = asyncio.create_task(a.sold.add(5))
            await settle(lambda: a.group.pending)
            adding.cancel()
            with suppress(asyncio.CancelledError):
                await adding
            assert len(a.space._open) == 1
            order.divide(a.group)  # it comes along
            order.merge(b.group.part, a.group.part)  # type: ignore[arg-type]
            await settle(lambda: len(a.space.view) == 2)
            order.is_prompt = True
            assert [await a.sold.add(1) for _ in range(2)] == [6, 7]
            await same(a, b)
            assert not a.space._open
            assert list(b.space._machine.clients[a.space.client].results) == [3]

    run(main)


def test_whoever_waits_is_told_when_the_group_closes() -> None:
    async def main() -> None:
        order = Order(is_prompt=False)
        async with apps(order, 0, 1) as (a, b):
            order.is_prompt = True
            token = await a.lock.acquire()
            order.is_prompt = False
            waits = [b.sold.get(fresh=True), b.blobs.set("x", b"1")]
            writing = [asyncio.create_task(each) for each in waits]
            locking = asyncio.create_task(b.lock.acquire())
            watch, terms, messages = b.prices.watch(), b.leader.terms(), b.space.messages()
            assert await anext(watch) == Reset({})
            await anext(terms)
            following = [asyncio.ensure_future(anext(each)) for each in (watch, terms, messages)]
            await settle(lambda: len(b.group.pending) == 3)
            order.order(b.group)
            order.order(b.group)
            order.order(b.group)
            await settle(lambda: len(b.lock._state.line) == 2)
            late = asyncio.create_task(b.sold.add(1))
            await settle(lambda: b.group.pending)
            order.kill(b.group)
            b.group.close()
            with pytest.raises(OutcomeUnknown, match="out of its group"):
                await late
            with pytest.raises(SpaceClosed):
                await locking
            for each in following:
                with pytest.raises(StopAsyncIteration):
                    await each
            await asyncio.gather(*writing)  # these had been done
            await settle(lambda: not b.space._tasks)
            order.is_prompt = True
            await a.lock.release(token)
            assert a.lock.holder is None

    run(main)


def test_changes_are_kept_while_somebody_watches_and_not_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringcast.replicated.structures.CHANGES_BYTES_MAX", 100)

    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            await a.blobs.set("x", bytes(40))
            state = a.blobs._state
            assert not state.changes
            first, second = a.blobs.watch(), a.blobs.watch("x")
            for watching in (first, second):
                assert await anext(watching) == Reset({"x": bytes(40)})
            await a.blobs.set("x", bytes(50))
            assert isinstance(await anext(first), Changed)
            await first.aclose()  # type: ignore[attr-defined]
            await a.blobs.set("y", b"z")
            assert len(state.changes) == 2
            for size in (40, 60):
                await a.blobs.set("x", bytes(size))
                assert sum(len(value or b"") for _, value, _ in state.changes) <= 100
            assert await anext(second) == Reset({"x": bytes(60)})
            await second.aclose()  # type: ignore[attr-defined]
            assert not state.changes
            await a.blobs.set("x", b"")
            assert not state.changes

    run(main)


def test_what_a_join_has_taken_that_came_to_nothing_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def join(_: str, **options: Any) -> AsyncIterator[OrderedGroup]:
        if orders[0].parts:
            await orders.pop(0).join(member(1), app.space)
            raise TimeoutError  # when it has the state
        group = await orders[0].join(member(1), app.space)
        yield group

    monkeypatch.setattr(ringcast, "join", join)
    orders = [Order(), Order()]
    app = App(1)

    async def main() -> None:
        async with apps(orders[0], 0) as (a,):
            await a.prices.set("x", 1)
            with suppress(TimeoutError):
                async with app.space.join("shop"):
                    pass
            async with app.space.join("shop"):
                assert "x" not in app.prices
                await app.prices.set("y", 2)

    run(main)
