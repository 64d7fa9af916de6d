"""Groups on real sockets, several members in one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

import pytest
from loopback_groups import (
    FIRST,
    PATIENT,
    Losing,
    exclude,
    numbered,
    read,
    vanish,
    waits,
    with_members,
)

from ringcast import (
    Closed,
    Delivered,
    GroupClosed,
    JoinTimeout,
    MulticastConfig,
    UsageError,
    ViewInstalled,
)
from ringcast.aio.joining import join
from ringcast.aio.loop import run
from support.ports import free_ports

if TYPE_CHECKING:
    from ringcast.aio.group import Group


def test_everybody_gets_everything_in_each_senders_order() -> None:
    async def exchange(*groups: Group) -> None:
        for group in groups:
            assert [member.name for member in group.view] == ["A", "B", "C"]
        sends = [group.send_many(numbered(group.me.name, 500)) for group in groups]
        *_, got_a, got_b, got_c = await asyncio.gather(*sends, *(read(g, 1500) for g in groups))
        for got in (got_a, got_b, got_c):
            for name in "ABC":
                assert [p for sender, p in got if sender == name] == numbered(name, 500)

    with_members(3)(exchange)


def test_a_fifth_of_all_datagrams_is_lost_and_nothing_is() -> None:
    losing = Losing(7)

    async def exchange(*groups: Group) -> None:
        with losing:
            sends = [group.send_many(numbered(group.me.name, 300)) for group in groups]
            results = await asyncio.gather(*sends, *(read(group, 900) for group in groups))
        for got in results[3:]:
            for name in "ABC":
                assert [p for sender, p in got if sender == name] == numbered(name, 300)

    config = MulticastConfig(datagram_bytes=600, xmit_interval_s=0.05)
    with_members(3, multicast=config, lose=losing)(exchange)


def test_a_large_message_travels_in_pieces() -> None:
    payload = random.Random(1).randbytes(1_000_000)

    async def exchange(a: Group, b: Group) -> None:
        _, *got = await asyncio.gather(a.send(payload), read(a, 1), read(b, 1))
        assert got == [[("A", payload)], [("A", payload)]]

    with_members(2, multicast=MulticastConfig(datagram_bytes=8192, window_bytes=64_000))(exchange)


def test_a_member_that_does_not_read_holds_the_sender_back_and_is_named() -> None:
    async def exchange(a: Group, b: Group) -> None:
        sending = asyncio.create_task(a.send_many(numbered("A", 100)))
        reading = asyncio.create_task(read(a, 100))
        while not any("limited by B" in reason for reason in a.explain()):
            await asyncio.sleep(0)
        assert not sending.done()
        assert not a.try_send(b"no room")
        assert [p for _, p in await read(b, 100)] == numbered("A", 100)
        await asyncio.gather(sending, reading)

    with_members(2, multicast=MulticastConfig(capacity=8))(exchange)


def test_a_member_that_only_sends_holds_nobody_back() -> None:
    async def exchange(a: Group, b: Group) -> None:
        with pytest.raises(UsageError, match="receive=False"):
            await read(b, 1)
        _, got = await asyncio.gather(a.send_many(numbered("A", 100)), read(a, 100))
        assert [p for _, p in got] == numbered("A", 100)

    config = MulticastConfig(capacity=8)
    with_members(2, multicast=config, per_member=[{}, {"receive": False}])(exchange)


def test_batches_are_runs() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send_many(numbered("A", 64))
        got: list[bytes] = []
        async for batch in b.batches():
            assert batch.run.first == len(got) + 1
            got += batch.run.payloads
            if len(got) == 64:
                break
        assert got == numbered("A", 64)
        await read(a, 64)

    with_members(2)(exchange)


def test_more_messages_than_one_chunk_into_a_large_window() -> None:
    async def exchange(a: Group, b: Group) -> None:
        payloads = [b"x"] * 20_000
        _, *got = await asyncio.gather(a.send_many(payloads), read(a, 20_000), read(b, 20_000))
        assert [len(messages) for messages in got] == [20_000, 20_000]

    with_members(2, multicast=MulticastConfig(capacity=1 << 15))(exchange)


def test_reading_may_stop_and_go_on() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send_many(numbered("A", 10))
        assert [p for _, p in await read(b, 1)] == numbered("A", 10)[:1]
        assert [p for _, p in await read(b, 2)] == numbered("A", 10)[1:3]
        batch = await anext(b.batches())
        assert batch.run.first == 4
        assert batch.run.payloads == numbered("A", 10)[3:]
        await a.send(b"more")
        async for message in b:
            assert (message.seqno, message.payload) == (11, b"more")
            break

    with_members(2)(exchange)


def test_flush_tells_if_the_group_is_gone() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"never taken by B")
        flushing = asyncio.create_task(a.flush())
        await asyncio.sleep(0)
        a._close()
        with pytest.raises(GroupClosed, match="out of the group before everybody had delivered"):
            await flushing

    with_members(2)(exchange)


def test_leaving_waits_for_others_and_not_for_ones_own_reading() -> None:
    async def exchange(a: Group) -> None:
        await a.send(b"nobody will read this")
        assert a.stats()

    started = time.monotonic()
    with_members(1)(exchange)
    assert time.monotonic() - started < PATIENT.leave_timeout_s


async def leave_unread(a: Group, b: Group) -> None:
    """A sends, reads the first, and is out before it has read the rest."""
    reading = asyncio.create_task(read(b, 6))
    await a.send(b"A0")
    assert await read(a, 1) == [("A", b"A0")]
    await a.send_many([b"A1", b"A2", bytes(100_000)])
    await a.send(b"all or none", guarantee="uniform")
    await a.send(b"to myself", to=a.me)
    await b.send(b"of B")
    await a.leave()
    assert len(await reading) == 6


def test_ones_own_messages_can_be_read_after_leaving() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await leave_unread(a, b)
        rest = [message async for message in a]
        assert all(message.sender == a.me for message in rest)
        plain, uniform, to_me = rest[:3], rest[3], rest[4]
        assert [message.payload for message in plain] == [b"A1", b"A2", bytes(100_000)]
        assert [message.seqno for message in plain][:2] == [2, 3]
        assert (uniform.payload, uniform.guarantee) == (b"all or none", "uniform")
        assert (to_me.payload, to_me.to_me) == (b"to myself", True)
        assert len(rest) == 5
        assert [message async for message in a] == []

    with_members(2)(exchange)


def test_after_leaving_the_end_comes_behind_ones_own_messages() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await leave_unread(a, b)
        events = [event async for event in a.events()]
        *messages, closed = [event for event in events if not isinstance(event, ViewInstalled)]
        runs = [event.run for event in messages if isinstance(event, Delivered)]
        assert sum(len(run.payloads) for run in runs) == 5
        assert len(runs) == len(messages)
        assert closed == Closed("left")
        assert [event async for event in a.events()] == [closed]

    with_members(2)(exchange)


@pytest.mark.parametrize("option", ["receive", "receive_own"])
def test_after_leaving_nothing_is_left_that_nobody_wants(option: str) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await asyncio.gather(a.send_many(numbered("A", 3)), read(b, 3))
        await a.leave()
        unread = a.stats()["read_queue"]
        assert isinstance(unread, dict)
        assert unread["runs"] == 0

    with_members(2, per_member=[{option: False}, {}])(exchange)


def test_who_is_left_out_and_leaves_before_it_is_back_is_read_to_the_end() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await b.send(b"B0")
        exclude(b.me, by=a)
        await b.wait_for_view(lambda view: len(view) == 1)
        await b.leave()
        events = [event async for event in b.events()]
        assert [event.run.payloads for event in events if isinstance(event, Delivered)] == [[b"B0"]]
        assert [len(event.view) for event in events if isinstance(event, ViewInstalled)] == [2, 1]
        assert events[-1] == Closed("left")

    with_members(2)(exchange)


def test_a_group_can_be_looked_at_after_leaving() -> None:
    groups: list[Group] = []

    async def exchange(a: Group, b: Group) -> None:
        groups.extend((a, b))
        assert not any("nobody listens" in reason for reason in a.explain() + b.explain())

    with_members(2)(exchange)
    for group in groups:
        assert "transport" in group.stats()
        assert waits(group) == []


def test_flush_is_told_by_ones_own_last_take_too() -> None:
    async def exchange(a: Group) -> None:
        flushing = asyncio.create_task(a.flush())
        await flushing  # nobody else is there to wait for
        await a.send(bytes(100_000))
        assert len((await read(a, 1))[0][1]) == 100_000

    with_members(1, multicast=MulticastConfig(capacity=1, datagram_bytes=512))(exchange)


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def exchange(a: Group, b: Group) -> None:
        assert a.try_send(b"fills the window")
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(a.send(b"no room"), 0.001)
        assert not any(gate.is_awaited for gate in a._sending._writable.values())
        await asyncio.gather(read(a, 1), read(b, 1))

    with_members(2, multicast=MulticastConfig(capacity=1))(exchange)


def test_cancelling_a_blocked_send_leaves_no_hole() -> None:
    async def exchange(a: Group, b: Group) -> None:
        sending = asyncio.create_task(a.send_many(numbered("A", 50)))
        while not any("blocked" in reason for reason in a.explain()):
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        reading = asyncio.create_task(read(a, 9))
        after = asyncio.create_task(a.send(b"after"))
        got = [p for _, p in await read(b, 9)]
        assert got == [*numbered("A", 8), b"after"]
        await asyncio.gather(after, reading)

    with_members(2, multicast=MulticastConfig(capacity=8))(exchange)


def test_who_is_gone_without_a_goodbye_is_soon_missed() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        gone = b.me
        vanish(b)
        await c.send(b"anybody?")
        for group in (a, c):
            view = await group.wait_for_view(lambda view: gone not in view)
            assert [member.name for member in view] == ["A", "C"]
            assert await read(group, 1) == [("C", b"anybody?")]

    with_members(3)(exchange)


def test_the_coordinator_is_missed_too() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        gone = a.me
        vanish(a)
        for group in (b, c):
            view = await group.wait_for_view(lambda view: gone not in view)
            assert [member.name for member in view] == ["B", "C"]

    with_members(3)(exchange)


def test_waiting_in_vain_says_for_whom() -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        listed = [f"127.0.0.1:{port}"]
        with pytest.raises(JoinTimeout, match=f"nobody answered at {listed[0]}: is group 'test'"):
            async with join("test", members=listed, membership=FIRST, must_exist=True):
                pass
        with pytest.raises(JoinTimeout, match=f"nobody answered at {listed[0]} within 0.05 s"):
            async with join("test", members=listed, membership=PATIENT, join_timeout_s=0.05):
                pass

    run(main())


def test_who_need_not_wait_starts_the_group_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(a: Group) -> None:
        assert str(a.view) == "View 1: A"

    with caplog.at_level(logging.INFO, "ringcast"):
        with_members(1)(exchange)
    assert [text for text in caplog.messages if text.startswith("A started group 'test' alone")]


def test_a_port_in_use_is_said() -> None:
    async def exchange(a: Group) -> None:
        address = str(a.me.address)
        with pytest.raises(UsageError, match=f"cannot listen on {address}"):
            async with join("test", listen=address, members=[address], membership=FIRST):
                pass

    with_members(1)(exchange)


@pytest.mark.parametrize(
    ("listen", "members", "complaint"),
    [
        ("10.0.0.1:7800", ["127.0.0.1:7800"], "not a loopback address"),
        ("127.0.0.1:0", ["10.0.0.1:7800"], "not a loopback address"),
        ("somewhere.invalid:7800", [], "no address was found for"),
        ("nonsense", ["127.0.0.1:7801"], "must be host:port"),
    ],
)
def test_joining_wrongly_is_refused_with_a_reason(
    listen: str, members: list[str], complaint: str
) -> None:
    async def main() -> None:
        async with join("test", listen=listen, members=members):
            pass

    with pytest.raises(UsageError, match=complaint):
        run(main())
