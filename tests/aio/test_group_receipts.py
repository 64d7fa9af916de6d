"""Receipts and flush on real sockets, with asyncio and without."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from blocking_groups import members, read, threads, until
from loopback_groups import DEADLINE_S, vanish, with_members
from loopback_groups import read as read_here

from ringcast import GroupClosed, MulticastConfig, NotDelivered, Stream, TimedOut, blocking

if TYPE_CHECKING:
    from ringcast import Group
    from ringcast.aio.read_queue import Guarantee


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_receipt_is_given_when_the_others_have_read(transport: str) -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        receipt = await a.send(b"x", receipt=True)
        waiting = asyncio.create_task(receipt.delivered())
        assert await read_here(b, 1) == [("A", b"x")]
        await asyncio.sleep(0)
        assert not waiting.done()  # C has not read it
        assert await read_here(c, 1) == [("A", b"x")]
        await waiting

    with_members(3, transport=transport)(exchange)


def test_who_has_vanished_is_named() -> None:
    async def exchange(a: Group, b: Group) -> None:
        gone = b.me
        receipt = await a.send(b"x", receipt=True)
        vanish(b)
        with pytest.raises(NotDelivered) as caught:
            await receipt.delivered()
        assert caught.value.missing == (gone,)

    with_members(2)(exchange)


@pytest.mark.parametrize("guarantee", ["fifo", "uniform"])
def test_a_thread_waits_for_a_receipt(guarantee: Guarantee) -> None:
    with threads(1) as pool, members(2) as (a, b):
        receipt = a.send(b"x", guarantee=guarantee, receipt=True)
        assert isinstance(receipt, blocking.Receipt)
        with pytest.raises(TimedOut, match=r"not everybody has delivered it within 0\.01 s"):
            receipt.delivered(timeout=0.01)
        waiting = pool.submit(receipt.delivered)
        assert read(b, 1) == [("A", b"x")]
        waiting.result(DEADLINE_S)
        a.leave()
        receipt.delivered()  # it is known
        assert receipt.is_delivered()


def test_a_thread_gets_a_receipt_of_a_message_to_one() -> None:
    with members(2) as (a, b):
        receipt = a.send(b"x", to=b.me, receipt=True)
        assert not receipt.is_delivered()
        assert read(b, 1) == [("A", b"x")]
        receipt.delivered(timeout=DEADLINE_S)


def test_a_receipt_that_was_never_given_says_so() -> None:
    with threads(1) as pool, members(2) as (a, b):
        receipt = a.send(b"x", receipt=True)
        waiting = pool.submit(receipt.delivered)
        a.leave()
        with pytest.raises(GroupClosed):
            waiting.result(DEADLINE_S)
        with pytest.raises(GroupClosed):
            receipt.delivered()
        assert b.view


def test_a_flush_ends_while_another_thread_sends() -> None:
    config = MulticastConfig(capacity=64)
    with threads(1) as pool, members(2, multicast=config, receive=False) as (a, _):

        def chatter() -> None:
            with suppress(GroupClosed):
                while True:
                    a.send_many([b"x" * 100] * 50)

        sending = pool.submit(chatter)
        until(lambda: a._group._driver.node.multicast.highest_sent(Stream.FIFO) > 100)
        for _ in range(5):
            a.flush(timeout=DEADLINE_S)
        assert not sending.done()
        a.leave()
        sending.result(DEADLINE_S)
