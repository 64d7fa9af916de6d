"""Messages to one member on real sockets, and everything that happens in one order."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import (
    PATIENT,
    Losing,
    exclude,
    numbered,
    read,
    restart,
    until,
    vanish,
    with_members,
)

from ringcast import (
    Address,
    Closed,
    Delivered,
    GroupClosed,
    Member,
    MulticastConfig,
    Undeliverable,
    UnicastConfig,
    UsageError,
    ViewInstalled,
    join,
)
from support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast import Group, Message

FAST = UnicastConfig(xmit_interval_s=0.05, max_retransmit_s=30.0)


async def messages(group: Group, count: int) -> list[Message]:
    found = []
    async for message in group:
        found.append(message)
        if len(found) == count:
            break
    return found


def sent_to(group: Group, peer: Member) -> dict[str, Any]:
    stats: Any = group.stats()["ReliableUnicast"]
    entry: dict[str, Any] = stats["to"][str(peer)]
    return entry


@contextmanager
def echo_process(listen: str, known: Group) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, which joins this group."""
    program = Path(__file__).with_name("echo_member.py")
    place = {"listen": listen, "members": [str(known.me.address)]}
    with subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(place) + "\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


# Delivery


def test_a_fifth_of_all_datagrams_is_lost_and_no_message_to_one_member_is() -> None:
    losing = Losing(11)
    count = 200

    async def exchange(*groups: Group) -> None:
        sends = [
            sender.send_many(numbered(f"{sender.me}{peer}", count), to=peer)
            for sender in groups
            for peer in sender.view
        ]
        sends += [group.send_many(numbered(group.me.name, count)) for group in groups]
        with losing:
            *_, got_a, got_b, got_c = await asyncio.gather(
                *sends, *(messages(group, 6 * count) for group in groups)
            )
        for me, got in zip("ABC", (got_a, got_b, got_c), strict=True):
            for sender in "ABC":
                own = [m for m in got if m.sender.name == sender and m.to_me]
                assert [m.payload for m in own] == numbered(sender + me, count)
                assert [m.seqno for m in own] == list(range(1, count + 1))
                shared = [m for m in got if m.sender.name == sender and not m.to_me]
                assert [m.payload for m in shared] == numbered(sender, count)
        await asyncio.gather(*(group.flush() for group in groups))  # who has left acks no more

    config = MulticastConfig(datagram_bytes=600, xmit_interval_s=0.05)
    with_members(3, multicast=config, unicast=FAST, lose=losing)(exchange)


def test_a_member_may_send_to_itself() -> None:
    async def exchange(a: Group) -> None:
        assert all(a.try_send(payload, to=a.me) for payload in numbered("A", 8))
        assert not a.try_send(b"no room", to=a.me)
        waiting = asyncio.create_task(a.send(b"last", to=a.me))
        found = await messages(a, 9)
        await waiting
        assert [message.payload for message in found] == [*numbered("A", 8), b"last"]
        assert all(message.to_me and message.sender == a.me for message in found)

    with_members(1, unicast=UnicastConfig(capacity=8))(exchange)


def test_a_large_message_to_one_member_travels_in_pieces() -> None:
    payload = random.Random(1).randbytes(1_000_000)

    async def exchange(a: Group, b: Group) -> None:
        _, _, at_a, at_b = await asyncio.gather(
            *(a.send(payload, to=b.me), a.send(payload, to=a.me), read(a, 1), read(b, 1))
        )
        assert at_a == [("A", payload)]
        assert at_b == [("A", payload)]

    with_members(
        2,
        multicast=MulticastConfig(datagram_bytes=8192, window_bytes=64_000),
        unicast=UnicastConfig(window_bytes=64_000),
    )(exchange)


def test_a_member_that_does_not_read_blocks_only_what_is_sent_to_it() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        sending = asyncio.create_task(a.send_many(numbered("B", 100), to=b.me))
        await until(lambda: any("send to B blocked" in reason for reason in a.explain()))
        assert not a.try_send(b"no room", to=b.me)
        reading = asyncio.create_task(read(c, 101))
        await a.send_many(numbered("C", 100), to=c.me)
        await a.send(b"to all")
        # What is sent to all and what is sent to one have no order between them.
        got = [payload for _, payload in await reading if payload != b"to all"]
        assert got == numbered("C", 100)
        assert not sending.done()
        got = [payload for _, payload in await read(b, 101) if payload != b"to all"]
        assert got == numbered("B", 100)
        await sending
        assert await read(a, 1) == [("A", b"to all")]

    with_members(3, unicast=UnicastConfig(capacity=8))(exchange)


def test_a_blocked_send_ends_when_its_member_is_gone_and_all_of_it_is_reported() -> None:
    async def exchange(a: Group, b: Group) -> None:
        gone = b.me
        sending = asyncio.create_task(a.send_many(numbered("B", 12), to=gone))
        await until(lambda: any("send to B blocked" in reason for reason in a.explain()))
        vanish(b)
        with pytest.raises(Undeliverable, match="B is not in the view") as refused:
            await sending
        assert (refused.value.to, refused.value.sent) == (gone, 8)
        with pytest.raises(Undeliverable):
            a.try_send(b"more", to=gone)
        events = (event async for event in a.events() if isinstance(event, Undeliverable))
        loss = await anext(events)
        assert (loss.to, loss.first, loss.last) == (gone, 1, 8)
        assert "answered nothing" in loss.reason
        await a.flush()

    unicast = UnicastConfig(capacity=8, xmit_interval_s=0.05, max_retransmit_s=1.0)
    with_members(2, unicast=unicast)(exchange)


async def take(events: Any, count: int) -> Any:
    for _ in range(count):
        yield await anext(events)


def test_messages_to_a_member_that_is_left_out_by_mistake_reach_it() -> None:
    """Those that were sent before; what is sent meanwhile is refused, or reaches it too."""

    async def exchange(a: Group, b: Group) -> None:
        await a.send_many(numbered("B", 8), to=b.me)
        exclude(b.me, by=a)
        await a.wait_for_view(lambda view: b.me not in view)
        assert await read(b, 8) == [("A", payload) for payload in numbered("B", 8)]
        await a.wait_for_view(lambda view: b.me in view)
        await a.send(b"after", to=b.me)
        (message,) = await messages(b, 1)
        assert (message.payload, message.seqno) == (b"after", 9)
        await a.flush()

    with_members(2, unicast=UnicastConfig(xmit_interval_s=0.05))(exchange)


def test_flush_waits_for_what_was_sent_to_one() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"wait for me", to=b.me)
        flushing = asyncio.create_task(a.flush())
        await until(lambda: any("ready" in reason for reason in b.explain()))
        assert not flushing.done()
        assert await read(b, 1) == [("A", b"wait for me")]
        await flushing
        assert sent_to(a, b.me)["acked"] == 1

    with_members(2)(exchange)


def test_leaving_waits_for_what_was_sent_to_one(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(a: Group) -> None:
        async with join("test", members=[str(a.me.address)], name="B", membership=PATIENT) as b:
            await b.send(bytes(100_000), to=a.view["A"])
            reading = asyncio.create_task(messages(a, 1))
        (message,) = reading.result()  # not awaited: it was read before the block ended
        assert len(message.payload) == 100_000

    with_members(1)(exchange)
    assert caplog.messages == []


def test_leaving_tells_what_was_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send_many([b"1", b"2"], to=b.me)
        await b.send(b"to all")  # which B's flush brings to A, though nobody reads it there

    with caplog.at_level(logging.WARNING, "ringcast"):
        with_members(2, membership=replace(PATIENT, leave_timeout_s=0.05))(exchange)
    assert any("messages 1..2 to B were given up" in text for text in caplog.messages)
    assert not any(text.startswith("B ") for text in caplog.messages)


# Mistakes


@pytest.mark.parametrize("to", ["B", ("127.0.0.1", 7800), Address("127.0.0.1", 7800), 2])
def test_only_a_member_can_be_sent_to(to: Any) -> None:
    async def exchange(a: Group, b: Group) -> None:
        hint = r"a member is meant, not .*: pass group\.view\['its name'\]"
        with pytest.raises(UsageError, match=hint):
            await a.send(b"x", to=to)
        with pytest.raises(UsageError, match=hint):
            a.try_send(b"x", to=to)
        with pytest.raises(UsageError, match=hint):
            a.sync(to)

    with_members(2)(exchange)


def test_nothing_leaves_the_machine() -> None:
    async def exchange(a: Group) -> None:
        with pytest.raises(UsageError, match="not a loopback address"):
            await a.send(b"x", to=Member(Address("192.0.2.1", 7800), 1, "far"))

    with_members(1)(exchange)


def test_after_the_end_nothing_is_sent_to_one_either() -> None:
    async def exchange(a: Group, b: Group) -> None:
        blocked = asyncio.create_task(a.send_many(numbered("A", 20), to=b.me))
        await until(lambda: any("send to B blocked" in reason for reason in a.explain()))
        vanish(a)
        with pytest.raises(GroupClosed, match="closed"):
            await blocked
        with pytest.raises(GroupClosed):
            a.try_send(b"x", to=b.me)

    with_members(2, unicast=UnicastConfig(capacity=8))(exchange)


# Sync


def test_an_operator_may_ask_where_a_sender_stands() -> None:
    async def exchange(a: Group, b: Group) -> None:
        with pytest.raises(UsageError, match="nothing has come from A yet"):
            b.sync(a.me)
        await a.send_many([b"1", b"2"], to=b.me)
        assert await read(b, 1) == [("A", b"1")]
        await a.flush()
        assert sent_to(a, b.me)["connection"].endswith(".1")
        b.sync(a.me)
        await until(lambda: sent_to(a, b.me)["sync_confirmed"] and sent_to(a, b.me)["sync_nonce"])
        assert sent_to(a, b.me)["connection"].endswith(".2")
        await a.send(b"3", to=b.me)
        assert await read(b, 2) == [("A", b"2"), ("A", b"3")]
        await a.flush()

    with_members(2, unicast=FAST)(exchange)


# Processes that die


def test_a_killed_member_is_given_up_and_the_application_is_told() -> None:
    patience_s = 1.0
    config = UnicastConfig(xmit_interval_s=0.1, max_retransmit_s=patience_s)

    async def exchange(a: Group) -> None:
        with echo_process("127.0.0.1:0", a) as process:
            b = (await a.wait_for_view(lambda view: len(view) == 2))["B"]
            process.kill()
            process.wait()
            started = time.monotonic()
            await a.send_many([b"1", b"2", b"3"], to=b)
            async for event in a.events():
                if isinstance(event, Undeliverable):
                    break
            assert (event.to, event.first, event.last) == (b, 1, 3)
            assert "answered nothing" in event.reason
            assert time.monotonic() - started >= patience_s
            await a.flush()  # there is nothing left to wait for

    with_members(1, unicast=config)(exchange)


def test_a_send_that_waits_for_a_killed_member_ends_with_the_view_without_it() -> None:
    async def exchange(a: Group) -> None:
        with echo_process("127.0.0.1:0", a) as process:
            b = (await a.wait_for_view(lambda view: len(view) == 2))["B"]
            process.kill()
            process.wait()
            with pytest.raises(Undeliverable, match="B is not in the view") as refused:
                await a.send_many(numbered("B", 100), to=b)
            assert b not in a.view
            assert (refused.value.to, refused.value.sent) == (b, 8)
            assert (refused.value.first, refused.value.last) == (1, 8)

    with_members(1, unicast=UnicastConfig(capacity=8))(exchange)


def test_a_restarted_member_is_another_one() -> None:
    async def exchange(a: Group) -> None:
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        with echo_process(listen, a) as process:
            old = (await a.wait_for_view(lambda view: len(view) == 2))["B"]
            await a.send(b"one", to=old)
            assert await read(a, 1) == [("B", b"echo of one")]
            await a.flush()
            process.kill()
            process.wait()
        await a.send(b"for the old one", to=old)
        with echo_process(listen, a):
            view = await a.wait_for_view(lambda view: len(view) == 2 and old not in view)
            new = view["B"]
            assert (new.address, new.name) == (old.address, old.name)
            await a.send(b"two", to=new)
            (answer,) = await messages(a, 1)
            assert (answer.sender, answer.seqno, answer.payload) == (new, 1, b"echo of two")
            await a.flush()  # what was for the old one is given up by now

    with_members(1, unicast=FAST)(exchange)


# Everything in one order


def described(event: object) -> object:
    match event:
        case Delivered():
            return event.run.payloads
        case ViewInstalled():
            return event.view.counter
        case Undeliverable():
            return (event.to.name, event.first, event.last)
        case _:
            return type(event)


def test_messages_views_losses_and_the_end_come_in_one_order() -> None:
    async def exchange(a: Group, b: Group) -> None:
        events = b.events()
        assert described(await anext(events)) == 2
        await b.send(b"never taken", to=a.me)
        await a.send_many([b"1", b"2", b"3"], to=b.me)
        assert await read(b, 1) == [("A", b"1")]  # all three were taken with it
        await a.flush()
        vanish(a)
        await b.wait_for_view(lambda view: len(view) == 1)
        async with restart(a, known=b) as new:
            await b.wait_for_view(lambda view: new.me in view)
            await b.send_many([b"4", b"5"], to=b.me)
            got = [described(event) async for event in take(events, 5)]
            assert got == [[b"2", b"3"], 3, ("A", 1, 1), 4, [b"4", b"5"]]
        await b.wait_for_view(lambda view: len(view) == 1)
        assert described(await anext(events)) == 5
        vanish(b)
        assert [described(event) async for event in events] == [Closed]
        assert [described(event) async for event in b.events()] == [Closed]
        assert await read(b, 1) == []

    with_members(2)(exchange)


def test_what_is_lost_stands_before_the_end() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"never taken", to=b.me)
        vanish(a)
        assert [described(event) async for event in a.events()] == [1, 2, ("B", 1, 1), Closed]

    with_members(2)(exchange)


def test_a_wait_for_events_may_be_cancelled_and_loses_nothing() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        assert [described(event) async for event in take(b.events(), 2)] == [2, 3]
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(b.events()), 0.001)
        await a.send_many([b"1", b"2"], to=b.me)
        waiting = asyncio.create_task(anext(b.events()))
        await until(waiting.done)
        assert described(waiting.result()) == [b"1", b"2"]
        vanish(c)
        await b.wait_for_view(lambda view: len(view) == 2)
        await a.send(b"3", to=b.me)
        assert [described(event) async for event in take(b.events(), 2)] == [4, [b"3"]]
        assert not b._reading.readable.is_awaited

    with_members(3)(exchange)


def test_a_member_that_only_sends_reads_events_without_messages() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        await a.send_many(numbered("A", 100), to=b.me)
        await a.flush()  # they were taken and dropped
        vanish(c)
        assert [described(event) async for event in take(b.events(), 3)] == [2, 3, 4]

    unicast = UnicastConfig(capacity=8)
    with_members(3, unicast=unicast, per_member=[{}, {"receive": False}, {}])(exchange)


@pytest.mark.parametrize("reader", ["reads it", "leaves before", "never comes"])
def test_no_loss_is_silent(caplog: pytest.LogCaptureFixture, reader: str) -> None:
    async def exchange(a: Group, b: Group) -> None:
        gone = b.me
        await a.send(b"never taken", to=gone)
        events = a.events()
        if reader != "never comes":
            assert [described(event) async for event in take(events, 2)] == [1, 2]
        vanish(b)
        await a.wait_for_view(lambda view: len(view) == 1)
        async with restart(b, known=a) as new:
            await a.wait_for_view(lambda view: new.me in view)
            if reader == "reads it":
                assert [described(e) async for e in take(events, 3)] == [3, ("B", 1, 1), 4]
            await events.aclose()

    with caplog.at_level(logging.WARNING, "ringcast"):
        with_members(2)(exchange)
    told = "A: messages 1..1 to B were given up and may not have arrived: B has been restarted"
    assert caplog.messages.count(told) == (reader != "reads it")


# Recording


@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_what_is_sent_to_one_is_not_recorded_yet(tmp_path: Path, level: str) -> None:
    pytest.importorskip("pyarrow", reason="needs ringcast[spark]")
    from ringcast.trace.segments import Segment, segment_paths

    async def exchange(a: Group, b: Group) -> None:
        await a.send(bytes(100_000), to=b.me)
        await a.send(b"to itself", to=a.me)
        await a.send(b"to all")
        await asyncio.gather(read(a, 2), read(b, 2))

    per_member = [{"record": tmp_path / name} for name in "AB"]
    with_members(2, record_level=level, per_member=per_member)(exchange)
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            delivered = [row for row in segment.rows() if row.event == "deliver"]
        assert [(row.peer, row.seqno, row.seqno2) for row in delivered] == [("A", 1, 1)]
