"""Messages that are sent one at a time, and leave as one run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import numbered, read, vanish, with_members

from ringcast import GroupClosed, MulticastConfig

if TYPE_CHECKING:
    from ringcast import Group


async def first_run(group: Group) -> list[bytes]:
    async for batch in group.batches():
        return batch.run.payloads
    raise AssertionError("there was none")


def sent(group: Group) -> int:
    transport: Any = group.stats()["transport"]
    return int(transport["sent"])


def test_the_messages_of_one_turn_are_one_run_in_one_datagram() -> None:
    async def exchange(a: Group, b: Group) -> None:
        before = sent(a)
        for payload in numbered("A", 300):
            await a.send(payload)
        assert await first_run(b) == numbered("A", 300)
        assert sent(a) - before < 10  # acks and beats among them

    with_members(2)(exchange)


def test_many_tasks_send_in_the_order_in_which_they_come() -> None:
    async def exchange(a: Group, b: Group) -> None:
        async with asyncio.TaskGroup() as tasks:
            for payload in numbered("A", 300):
                tasks.create_task(a.send(payload))
        assert await read(b, 300) == [("A", payload) for payload in numbered("A", 300)]

    with_members(2)(exchange)


def test_what_is_sent_otherwise_keeps_its_place() -> None:
    """Large messages, many at once, and messages for which somebody waits."""

    async def exchange(a: Group, b: Group) -> None:
        wanted = []
        for number in range(20):
            one, two, three = (b"%d %d" % (number, kind) for kind in range(3))
            large = b"%d " % number + bytes(100_000)
            await a.send(one)
            assert a.try_send(two)
            await a.send_many([three, three])
            await a.send(one)
            await a.send(large)
            receipt = await a.send(two, receipt=True)
            assert receipt is not None
            await a.send(three)
            wanted += [one, two, three, three, one, large, two, three]
        got = [payload for _, payload in await read(b, len(wanted))]
        assert got == wanted
        assert [payload for _, payload in await read(a, len(wanted))] == wanted
        await receipt.delivered()

    with_members(2)(exchange)


def test_messages_to_one_member_and_to_all_go_side_by_side() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for payload in numbered("A", 50):
            await a.send(payload)
            await a.send(b"to " + payload, to=b.me)
            await a.send(b"all " + payload, guarantee="uniform")
        got = [payload for _, payload in await read(b, 150)]
        for kind in (b"A", b"to ", b"all "):
            wanted = [(b"" if kind == b"A" else kind) + one for one in numbered("A", 50)]
            assert [payload for payload in got if payload.startswith(kind)] == wanted

    with_members(2)(exchange)


@pytest.mark.parametrize("config", [{"capacity": 8}, {"window_bytes": 1 << 18}])
def test_a_full_window_holds_single_sends_back(config: dict[str, int]) -> None:
    async def exchange(a: Group, b: Group) -> None:
        size = 3000 if "window_bytes" in config else 10
        payloads = [one.ljust(size, b".") for one in numbered("A", 200)]
        returned = 0

        async def send() -> None:
            nonlocal returned
            for payload in payloads:
                await a.send(payload)
                returned += 1

        sending = asyncio.create_task(send())
        for _ in range(20):
            await asyncio.sleep(0)
        held = returned
        window = a._driver.node.multicast.senders
        (high,) = [each.window.high for each in window.values() if each.window.high]
        assert 0 < held == high < 200  # what it has returned for has its seqno
        got = [payload for _, payload in await read(b, 1)]
        reading = asyncio.create_task(read(a, 200))
        got += [payload for _, payload in await read(b, 199)]
        await sending
        assert got == payloads
        assert [payload for _, payload in await reading] == payloads

    with_members(2, multicast=MulticastConfig(**({"datagram_bytes": 4096} | config)))(exchange)


def test_a_large_message_takes_its_share_of_the_window() -> None:
    """It goes another way; what follows it counts on no room that it has taken."""

    async def exchange(a: Group, b: Group) -> None:
        payloads = [bytes(20_000), *numbered("A", 8)]

        async def send() -> None:
            for payload in payloads:
                await a.send(payload)

        sending = asyncio.create_task(send())
        reading = asyncio.create_task(read(a, len(payloads)))
        assert [payload for _, payload in await read(b, len(payloads))] == payloads
        await reading
        await sending

    with_members(2, multicast=MulticastConfig(datagram_bytes=4096, capacity=8))(exchange)


def test_what_send_returned_for_is_sent_though_the_member_leaves_in_that_turn() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for payload in numbered("A", 30):
            await a.send(payload)
        await asyncio.gather(a.leave(), read(b, 30))

    with_members(2)(exchange)


def test_who_is_gone_sends_nothing() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"before")
        vanish(a)
        with pytest.raises(GroupClosed):
            await a.send(b"after")
        with pytest.raises(GroupClosed):
            a.try_send(b"after")

    with_members(2)(exchange)


def test_what_is_counted_has_left() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"one")
        stats: Any = a.stats()
        assert stats["ViewStreams"]["sent"]["fifo"]["high"] == 1
        await a.send(b"two")
        flushing = asyncio.create_task(a.flush())
        assert len(await read(b, 2)) == 2
        await flushing

    with_members(2)(exchange)
