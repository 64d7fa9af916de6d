"""Calls of the blocking API that are interrupted, at every point: no hole, no stall, no silence."""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import contextmanager, suppress
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, Any

import pytest
from blocking_groups import LARGE, engines, members, read, threads, until
from interrupts import Interrupted, Interrupter, interrupted_everywhere, no_garbage_collection
from loopback_groups import DEADLINE_S, FIRST

from ringcast import blocking
from ringcast.aio.engine import Engine
from ringcast.aio.send_queue import RING_CAPACITY
from ringcast.aio.sources import ListSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ringcast import Message


pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="3.14 interrupts `with lock` when it has the lock already"
)


@pytest.fixture(autouse=True)
def _no_garbage_collection() -> Iterator[None]:
    with no_garbage_collection():
        yield


def check_lane(group: blocking.Group) -> None:
    """Nothing is left in it, and no room is lost."""
    queue = group._queues["fifo"]
    until(lambda: queue._room.qsize() == RING_CAPACITY)
    assert queue.is_empty
    assert queue.stats() == {"waiting": 0, "given_up": 0}


def read_all(group: blocking.Group) -> list[Message]:
    return list(takewhile(lambda message: message.payload != b"end", group))


def check_seqnos(messages: list[Message]) -> None:
    assert [message.seqno for message in messages] == list(range(1, len(messages) + 1))


def test_what_is_handled_when_an_interrupt_comes_is_over_with_it() -> None:
    """Or it would be the context of what other tests raise."""

    @contextmanager
    def swallowing() -> Iterator[None]:
        with suppress(ValueError):
            yield

    def work() -> None:
        with swallowing(), suppress(KeyError), swallowing():
            raise ValueError

    for _ in interrupted_everywhere(work):
        assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("large", [False, True])
def test_a_send_that_is_interrupted_at_any_point_leaves_no_hole(large: bool) -> None:
    with threads(1) as pool, members(1) as (a,):
        reading = pool.submit(read_all, a)
        queue = a._queues["fifo"]
        numbers = count()
        sent: list[bytes] = []

        def send() -> None:
            payload = b"%d" % next(numbers)
            if large:
                payload = payload.ljust(len(LARGE[0]))
            a.send(payload)
            sent.append(payload)

        interrupts = 0
        for is_done in interrupted_everywhere(send):
            interrupts += not is_done
            # The next one is to find a pump that sleeps, unless this one could not wake it.
            until(lambda: queue._asleep)
        assert interrupts > 50
        a.send(b"end", timeout=DEADLINE_S)
        messages = reading.result(DEADLINE_S)
        check_seqnos(messages)
        got = [message.payload for message in messages]
        assert set(sent) <= set(got)
        assert got == sorted(set(got), key=int)  # in order, and none twice
        check_lane(a)


def test_two_interrupts_leave_no_hole_either() -> None:
    with threads(1) as pool, members(1) as (a,):
        reading = pool.submit(read_all, a)
        pairs = 0
        for first in count():
            for second in count():
                interrupter = Interrupter(first, second)
                interrupter.run(lambda: a.send(b"x"))
                if interrupter.raised < 2:
                    break
                pairs += 1
            if not interrupter.raised:
                break
        assert 2 * pairs > first > 50  # how many second points there are hangs on who is awake
        check_lane(a)  # also if the last ones could not wake the pump
        a.send(b"end", timeout=DEADLINE_S)
        check_seqnos(reading.result(DEADLINE_S))


def test_what_was_put_by_who_could_not_say_so_is_sent_all_the_same() -> None:
    def is_wake(frame: FrameType) -> bool:
        return frame.f_code.co_name == "_wake"

    with threads(1) as pool, members(1) as (a,):
        until(lambda: a._queues["fifo"]._asleep)
        interrupter = Interrupter(0, where=is_wake)
        assert not interrupter.run(lambda: a.send(b"in the ring"))
        reading = pool.submit(read, a, 1)
        assert reading.result(DEADLINE_S) == [("A", b"in the ring")]  # nobody sends anything more


CALLS: dict[str, Callable[[blocking.Group], Any]] = {
    "send to one": lambda group: group.send(b"x", to=group.me),
    "try_send": lambda group: group.try_send(b"x"),
    "flush": lambda group: group.flush(),
    "wait_for_view": lambda group: group.wait_for_view(lambda view: len(view) == 1),
    "explain": lambda group: group.explain(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_interrupted_at_any_point_leaves_nothing_behind(name: str) -> None:
    with members(1, receive=False) as (a,):
        interrupts = sum(not done for done in interrupted_everywhere(lambda: CALLS[name](a)))
        assert interrupts > 20
        assert not a._engine._calls
        check_lane(a)


def test_who_is_interrupted_while_reading_misses_at_most_what_was_on_its_way() -> None:
    with members(1) as (a,):
        got: list[int] = []
        readers: list[Iterator[Message]] = []  # not freed, and so closed, where it is interrupted

        def read_one() -> None:
            readers.append(iter(a))
            got.extend(int(message.payload) for message in islice(readers[-1], 1))

        sent = interrupts = 0
        for point in count():
            a.send(b"%d" % (sent := sent + 1))  # it has to be fetched
            interrupter = Interrupter(point)
            interrupts += not interrupter.run(read_one)
            a.send(b"%d" % (sent := sent + 1))
            while got[-1:] != [sent]:
                read_one()
            readers.clear()
            if not interrupter.raised:
                break
        assert interrupts > 50
        assert got == sorted(set(got))
        assert len(got) >= sent - interrupts


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.proof)])
def test_who_is_interrupted_at_any_point_of_a_block_is_out_of_the_group(step: int) -> None:
    def live() -> None:
        with blocking.join("test", discovery=ListSource([]), membership=FIRST) as group:
            group.send(b"x")
            readers.append(iter(group))
            assert next(readers[-1]).payload == b"x"

    readers: list[Iterator[object]] = []  # not freed, and so closed, where it is interrupted

    def is_ours(frame: FrameType) -> bool:
        return frame.f_code.co_filename != threading.__file__  # how Python starts a thread

    for point in count(0, step):
        interrupter = Interrupter(point, where=is_ours)
        interrupter.run(live)
        readers.clear()
        until(lambda: not engines())
        if not interrupter.raised:
            break
    assert point > 150


def test_what_is_interrupted_before_it_begins_does_not_begin() -> None:
    begun: list[bool] = []

    async def main() -> None:
        begun.append(True)

    engine = Engine("ringcast test")
    engine.abort()
    engine.start(main)
    engine.join()
    assert not begun
    assert engine.error is None


def test_a_thread_that_sends_may_be_interrupted_again_and_again() -> None:
    """By what really comes between two steps of a thread, while the others go on."""
    rounds = 200
    with threads(2) as pool, members(1) as (a,):
        begun: list[int] = []  # the thread, each time that it can be interrupted once
        interrupts = 0

        def keep_sending() -> None:
            nonlocal interrupts
            while interrupts < rounds:
                try:
                    begun.append(threading.get_ident())
                    while True:
                        a.send(b"x")
                except Interrupted:
                    interrupts += 1

        sending = pool.submit(keep_sending)
        reading = pool.submit(read_all, a)
        for number in range(1, rounds + 1):
            until(lambda number=number: len(begun) == number)  # type: ignore[misc]
            ident, error = ctypes.c_ulong(begun[-1]), ctypes.py_object(Interrupted)
            assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error) == 1
        sending.result(DEADLINE_S)
        assert interrupts == rounds
        a.send(b"end", timeout=DEADLINE_S)
        check_seqnos(reading.result(DEADLINE_S))
        check_lane(a)
