"""Messages that are sent one at a time, and leave as one run."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import blocking_groups
import pytest
from loopback_groups import PATIENT, exclude, numbered, read, until, vanish, with_members

from ringcast import (
    Closed,
    Delivered,
    GroupClosed,
    MulticastConfig,
    TooFewMembers,
    Undeliverable,
    UnicastConfig,
    UsageError,
    ViewInstalled,
)
from ringcast.model import Stream

if TYPE_CHECKING:
    from ringcast import Group, blocking


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


def narrow_path(mtu: int, *groups: Group) -> None:
    """As if their datagrams had to fit packets of this size."""
    for group in groups:
        transport: Any = group._driver.transport
        transport._narrow_down("127.0.0.1", mtu)


def test_what_is_sent_one_at_a_time_leaves_in_bursts_where_datagrams_are_small() -> None:
    async def exchange(a: Group, b: Group) -> None:
        narrow_path(1500, a, b)
        await a.send(b"first")  # whose datagram finds out what datagrams may have
        assert len(await read(b, 1)) == 1
        transport: Any = a._driver.transport
        calls: Counter[str] = Counter()
        sending = {name: getattr(transport, name) for name in ("send", "send_burst")}

        def count(name: str, *arguments: Any) -> None:
            calls[name] += 1
            sending[name](*arguments)

        for name in sending:
            setattr(transport, name, partial(count, name))
        for _ in range(300):
            await a.send(bytes(1000))
        await read(b, 300)
        assert 5 <= calls["send_burst"] <= 15
        assert calls["send"] <= 15  # what is left over of a burst, acks and heartbeats

    with_members(2)(exchange)


def test_messages_are_gathered_where_datagrams_are_smaller_than_what_they_are_charged() -> None:
    async def exchange(a: Group, b: Group) -> None:
        narrow_path(576, a, b)
        await a.send(b"first")
        assert len(await read(b, 1)) == 1
        for payload in numbered("A", 100):
            await a.send(payload)
        assert a._to_all.run == numbered("A", 100)
        assert [payload for _, payload in await read(b, 100)] == numbered("A", 100)

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


# Room that was promised, and is gone


@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_is_sent_on_a_reply_is_sent_though_the_view_changes_in_that_read(at: int) -> None:
    """The reply and a proposal come together: whoever asked sends between the two."""

    async def exchange(a: Group, b: Group, c: Group) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what))

        async def serve() -> None:
            number = 0
            async for request in a.requests():
                number += 1
                request.reply(b"yes")
                if number == at:
                    exclude(c.me, by=a)

        serving = asyncio.create_task(serve())
        await asyncio.sleep(0.05)
        for payload in numbered("B", 3):
            await b.request(a.me, b"?")
            await b.send(payload)
        told: list[object] = []  # messages and views in one order
        async for event in a.events():
            if isinstance(event, ViewInstalled):
                told.append(len(event.view))
            elif isinstance(event, Delivered):
                told += event.run.payloads
            if told.count(2) == 2 and b"B2" in told:  # before C came, and when it had gone
                break
        assert [each for each in told if isinstance(each, bytes)] == numbered("B", 3)
        if at > 1:  # the first reply opens a connection: whoever asked goes on a turn later
            assert told.index(b"B%d" % (at - 1)) < len(told) - told[::-1].index(2)
        assert errors == []
        serving.cancel()

    with_members(3)(exchange)


def window_of(group: Group) -> Any:
    return group._driver.node.multicast.senders[Stream.FIFO].window


def narrow(group: Group) -> None:
    """As if an ack had said so before the end of this turn, and then something came."""
    window_of(group).limit = 10
    group.stats()
    assert window_of(group).high == 10


def test_what_finds_no_room_all_the_same_is_the_first_to_be_sent_later() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for payload in numbered("A", 30):
            await a.send(payload)
        narrow(a)
        assert not a.try_send(b"refused")
        many = asyncio.create_task(a.send_many(numbered("B", 30)))
        await asyncio.sleep(0)
        assert window_of(a).high == 10
        reading = asyncio.create_task(read(a, 61))
        flushing = asyncio.create_task(a.flush())
        got = await read(b, 60)
        await many
        await a.send(b"last")
        assert [payload for _, payload in got] == numbered("A", 30) + numbered("B", 30)
        assert await read(b, 1) == [("A", b"last")]
        await asyncio.gather(flushing, reading)

    with_members(2)(exchange)


def test_a_flush_waits_for_what_is_kept() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for payload in numbered("A", 30):
            await a.send(payload)
        narrow(a)
        flushing = asyncio.create_task(a.flush())
        assert len(await read(b, 10)) == 10  # and that is all that has a seqno, until A reads too
        await asyncio.sleep(0.05)
        assert not flushing.done()
        await asyncio.gather(flushing, read(a, 30), read(b, 20))

    with_members(2)(exchange)


def test_who_leaves_waits_until_what_is_kept_is_sent() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for payload in numbered("A", 30):
            await a.send(payload)
        narrow(a)
        leaving = asyncio.create_task(a.leave())
        reading = asyncio.create_task(read(a, 30))
        assert [payload for _, payload in await read(b, 30)] == numbered("A", 30)
        await asyncio.gather(leaving, reading)

    with_members(2)(exchange)


def test_what_is_kept_when_it_ends_is_counted() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for payload in numbered("A", 30):
            await a.send(payload)
        narrow(a)
        assert not a.try_send(b"refused")
        vanish(a)
        (closed,) = [event async for event in a.events() if isinstance(event, Closed)]
        assert closed.unsent == 20
        assert closed.unacked == ((Stream.FIFO, 1, 30),)

    with_members(2)(exchange)


def test_what_is_kept_while_there_are_too_few_members_waits_for_more() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        few = a._driver.node.minimum
        for payload in numbered("A", 5):
            await a.send(payload)
        few.since = 0  # as if the view had changed before the end of this turn
        a.stats()
        with pytest.raises(TooFewMembers):
            await a.send(b"refused")
        few.since = None
        await a.send(b"last")
        wanted = [*numbered("A", 5), b"last"]
        assert [payload for _, payload in await read(b, 6)] == wanted

    with_members(3, membership=replace(PATIENT, min_members=2))(exchange)


# To one member


def test_the_messages_of_one_turn_to_one_member_are_one_run() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"first", to=b.me)  # opens the connection
        assert await read(b, 1) == [("A", b"first")]
        before = sent(a)
        for number, payload in enumerate(numbered("A", 300)):
            kind = (bytes, bytearray, memoryview)[number % 3]
            if number % 2:
                await a.send(kind(payload), to=b.me)
            else:
                assert a.try_send(kind(payload), to=b.me)
        assert await first_run(b) == numbered("A", 300)
        assert sent(a) - before < 10

    with_members(2)(exchange)


def test_what_is_sent_to_one_member_otherwise_keeps_its_place() -> None:
    async def exchange(a: Group, b: Group) -> None:
        wanted = []
        for number in range(20):
            one, two, three = (b"%d %d" % (number, kind) for kind in range(3))
            large = b"%d " % number + bytes(100_000)
            await a.send(one, to=b.me)
            assert a.try_send(two, to=b.me)
            await a.send_many([three, three], to=b.me)
            await a.send(one, to=b.me)
            await a.send(large, to=b.me)
            receipt = await a.send(two, to=b.me, receipt=True)
            assert receipt is not None
            await a.send(three, to=b.me)
            wanted += [one, two, three, three, one, large, two, three]
        assert [payload for _, payload in await read(b, len(wanted))] == wanted
        await receipt.delivered()

    with_members(2)(exchange)


def test_a_member_that_does_not_read_blocks_single_sends_to_it_alone() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        returned = 0

        async def send() -> None:
            nonlocal returned
            for payload in numbered("A", 100):
                await a.send(payload, to=b.me)
                returned += 1

        sending = asyncio.create_task(send())
        for payload in numbered("C", 20):
            await a.send(payload, to=c.me)
            await read(c, 1)
        assert 0 < returned == a._driver.node.unicast.senders[b.me].window.high < 100
        assert not a.try_send(b"refused", to=b.me)
        assert [payload for _, payload in await read(b, 100)] == numbered("A", 100)
        await sending

    with_members(3, unicast=UnicastConfig(capacity=8))(exchange)


def test_what_to_one_member_finds_no_room_all_the_same_is_the_first_to_be_sent_later() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"first", to=b.me)
        for payload in numbered("A", 30):
            await a.send(payload, to=b.me)
        a._driver.node.unicast.senders[b.me].window.limit = 10
        await a.send(b"to all")  # is not behind them
        many = asyncio.create_task(a.send_many(numbered("B", 30), to=b.me))
        flushing = asyncio.create_task(a.flush())
        got = [payload for _, payload in await read(b, 62)]
        assert got.index(b"to all") <= 30
        got.remove(b"to all")
        assert got == [b"first", *numbered("A", 30), *numbered("B", 30)]
        await asyncio.gather(many, flushing, read(a, 1))

    with_members(2)(exchange)


def test_what_is_kept_for_a_member_that_departs_is_undeliverable() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"first", to=b.me)
        for payload in numbered("A", 30):
            await a.send(payload, to=b.me)
        a._driver.node.unicast.senders[b.me].window.limit = 10
        a.stats()
        vanish(b)
        await a.wait_for_view(lambda view: len(view) == 1)
        async for event in a.events():
            if isinstance(event, Undeliverable):
                break
        assert (event.to, event.last - event.first + 1) == (b.me, 21)
        assert "is not in the view" in event.reason
        with pytest.raises(Undeliverable):
            await a.send(b"after", to=b.me)

    with_members(2)(exchange)


def test_what_is_kept_for_one_member_when_it_ends_is_undeliverable() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"first", to=b.me)
        for payload in numbered("A", 30):
            await a.send(payload, to=b.me)
        a._driver.node.unicast.senders[b.me].window.limit = 10
        a.stats()
        vanish(a)
        lost = [event async for event in a.events() if isinstance(event, Undeliverable)]
        assert sum(event.last - event.first + 1 for event in lost) == 31

    with_members(2)(exchange)


@pytest.mark.parametrize("to", ["b", ["unhashable"], ("like", 1, "a member"), 5])
def test_only_a_member_is_sent_to(to: Any) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"first", to=b.me)
        with pytest.raises(UsageError, match="a member is meant"):
            await a.send(b"x", to=to)
        with pytest.raises(UsageError, match="a member is meant"):
            await a.send(b"x", to=tuple(b.me))  # type: ignore[arg-type]

    with_members(2)(exchange)


# Who sends is stopped, or is not alone


def test_too_few_members_are_told_by_a_single_send() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"one")
        vanish(b)
        await a.wait_for_view(lambda view: len(view) == 1)
        with pytest.raises(TooFewMembers) as few:
            await a.send(b"two")
        assert (few.value.have, few.value.need, few.value.sent) == (1, 2, 0)
        with pytest.raises(TooFewMembers):
            a.try_send(b"two")
        assert window_of(a).high == 1

    with_members(2, membership=replace(PATIENT, min_members=2))(exchange)


def test_what_send_returned_for_before_it_was_cancelled_is_sent_and_no_more() -> None:
    async def exchange(a: Group, b: Group) -> None:
        returned = 0

        async def send() -> None:
            nonlocal returned
            for payload in numbered("A", 100):
                await a.send(payload)
                returned += 1

        sending = asyncio.create_task(send())
        await until(lambda: returned > 0)
        await asyncio.sleep(0)  # it waits for room
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert 0 < returned < 100
        count = returned
        reading = asyncio.create_task(read(a, count + 1))
        got = [payload for _, payload in await read(b, count)]
        await a.send(b"next")
        assert got + [payload for _, payload in await read(b, 1)] == [
            *numbered("A", count),
            b"next",
        ]
        await reading

    with_members(2, multicast=MulticastConfig(capacity=8))(exchange)


def test_each_of_several_threads_keeps_its_order() -> None:
    each = 200

    def send(group: blocking.Group, name: str) -> None:
        for payload in numbered(name, each):
            group.send(payload)

    with blocking_groups.members(2) as (a, b), blocking_groups.threads() as pool:
        sending = [pool.submit(send, a, name) for name in "XYZ"]
        reading = pool.submit(blocking_groups.read, a, 3 * each)
        got = [payload for _, payload in blocking_groups.read(b, 3 * each)]
        for done in (*sending, reading):
            done.result()
    for name in "XYZ":
        assert [one for one in got if one.startswith(name.encode())] == numbered(name, each)
