"""Where tasks wait: who goes on when, and what is left behind by those who give up."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.aio.gate import Gate, Turns, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def by_the_loop(action: Callable[[], object]) -> asyncio.Future[None]:
    """Do this as a reader's callback would: not in a task."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def run() -> None:
        action()
        done.set_result(None)

    asyncio.get_running_loop().call_soon(run)
    return done


async def started(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


@in_a_loop
async def test_who_waits_goes_on_before_go_on_returns_and_in_its_own_context() -> None:
    waiter: Waiter[int] = Waiter()
    seen: list[object] = []

    async def wait() -> None:
        WHO.set("waiting")
        seen.append(await waiter)
        seen.append(WHO.get())
        seen.append(asyncio.current_task())

    task = await started(wait())

    def go_on() -> None:
        waiter.go_on(7)
        seen.append("returned")
        assert asyncio.current_task() is None

    await by_the_loop(go_on)
    assert seen == [7, "waiting", task, "returned"]
    await task


@in_a_loop
async def test_called_by_a_task_it_only_has_a_result() -> None:
    waiter: Waiter[int] = Waiter()

    async def wait() -> int:
        return await waiter

    task = await started(wait())
    waiter.go_on(7)
    assert not task.done()
    assert await task == 7


@in_a_loop
async def test_nobody_has_to_wait() -> None:
    waiter: Waiter[int] = Waiter()
    await by_the_loop(lambda: waiter.go_on(7))
    assert await waiter == 7


@in_a_loop
async def test_what_a_waiting_task_raises_is_its_own() -> None:
    waiter: Waiter[int] = Waiter()

    async def wait() -> None:
        await waiter
        raise ValueError("mine")

    task = await started(wait())
    await by_the_loop(lambda: waiter.go_on(7))
    with pytest.raises(ValueError, match="mine"):
        await task


@in_a_loop
async def test_called_in_the_very_context_of_who_waits_it_comes_a_turn_later() -> None:
    loop, context, waiter = asyncio.get_running_loop(), copy_context(), Waiter[int]()

    async def wait() -> int:
        return await waiter

    task = loop.create_task(wait(), context=context)
    await asyncio.sleep(0)
    loop.call_soon(waiter.go_on, 7, context=context)
    assert await task == 7


@in_a_loop
async def test_a_cancelled_task_is_not_called_again() -> None:
    waiter: Waiter[int] = Waiter()

    async def wait() -> None:
        await waiter

    task = await started(wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiter.cancelled()


@in_a_loop
async def test_of_those_at_a_gate_the_first_goes_on_at_once() -> None:
    gate = Gate(at_once=True)
    order: list[str] = []

    async def wait(name: str) -> None:
        for _ in range(2):
            await gate.wait()
            order.append(name)

    tasks = [await started(wait(name)) for name in "ab"]

    def open_it() -> None:
        assert gate.open(at_once=True)
        assert gate.is_awaited
        order.append("opened")

    await by_the_loop(open_it)
    gate.open()
    await asyncio.gather(*tasks)
    assert order == ["a", "opened", "b", "a", "b"]
    assert not gate.open()


@in_a_loop
async def test_who_has_just_given_up_is_passed_over() -> None:
    gate = Gate(at_once=True)
    first, second = [await started(gate.wait()) for _ in "ab"]

    def open_it() -> None:
        first.cancel()
        assert gate.open(at_once=True)

    await by_the_loop(open_it)
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


@in_a_loop
async def test_for_anybody_else_it_is_a_future_like_any() -> None:
    waiter: Waiter[int] = Waiter()
    called: list[str] = []
    context = copy_context()
    for name in ("first", "second"):
        waiter.add_done_callback(lambda _, name=name: called.append(name), context=context)
    waiter.set_exception(ValueError("none"))
    waiter.add_done_callback(lambda _: called.append("late"), context=context)
    await asyncio.sleep(0)
    assert called == ["first", "second", "late"]
    with pytest.raises(ValueError, match="none"):
        await waiter
    refused: Waiter[int] = Waiter()
    refused.add_done_callback(lambda _: called.append("refused"), context=context)
    refused.set_exception(ValueError("no"))
    await asyncio.sleep(0)
    assert called.pop() == "refused"
    assert refused.exception()
    forgotten: Waiter[int] = Waiter()
    forgotten.add_done_callback(called.append, context=context)  # type: ignore[arg-type]
    assert forgotten.remove_done_callback(called.append) == 1  # type: ignore[arg-type]
    forgotten.go_on(7)
    await asyncio.sleep(0)
    assert len(called) == 3


@in_a_loop
async def test_turns_are_taken_in_order() -> None:
    turns = Turns(1)
    order: list[str] = []
    turns.free -= 1

    async def take(name: str) -> None:
        await turns.take()
        order.append(name)
        turns.give()

    tasks = [await started(take(name)) for name in "abc"]
    turns.give()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]
    assert turns.free == 1


@in_a_loop
async def test_who_gives_up_leaves_nothing_behind() -> None:
    turns = Turns(0)
    tasks = [await started(turns.take()) for _ in range(3)]
    tasks[0].cancel()
    turns.give()  # before the first has noticed
    await asyncio.wait(tasks[:1])
    await tasks[1]
    tasks[2].cancel()
    await asyncio.wait(tasks[2:])
    assert not turns.waiters
    assert turns.free == 0
    turns.give()
    assert turns.free == 1


@in_a_loop
async def test_a_turn_that_came_too_late_goes_to_the_next() -> None:
    turns = Turns(0)
    first, second = [await started(turns.take()) for _ in range(2)]
    turns.give()
    first.cancel()  # it has the turn, and never comes to use it
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert turns.free == 0
