"""Uniform messages on real sockets: all who stay deliver them, or nobody does."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import numbered, read, until, vanish, waits, with_members

from ringcast import Delivered, MulticastConfig, Stream, UsageError, ViewInstalled
from ringcast.model import Origin
from ringcast.trace.content import BLOCK_MESSAGES

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast import Group, Message
    from ringcast.trace.rows import Row

EIGHT = MulticastConfig(capacity=8)


class Deafness:
    """For `lose=`: whether a member hears anything, as a switch."""

    def __init__(self) -> None:
        self.is_on = False

    def __call__(self) -> bool:
        return self.is_on


async def take_turns() -> None:
    """All members share one event loop: each reads what has arrived by now."""
    for _ in range(3):
        await asyncio.sleep(0)


def with_deaf_third(test: Any, **options: Any) -> Deafness:
    """Run it on three members, of which the last can be made deaf with what is returned."""
    deafness = Deafness()
    per_member: list[dict[str, Any]] = [{}, {}, {"lose": deafness}]
    with_members(3, per_member=per_member, **options)(lambda *groups: test(*groups, deafness))
    return deafness


async def messages(group: Group, count: int) -> list[Message]:
    found = []
    async for message in group:
        found.append(message)
        if len(found) == count:
            break
    return found


def sent(group: Group, guarantee: str) -> dict[str, Any]:
    stats: Any = group.stats()["ViewStreams"]
    entry: dict[str, Any] = stats["sent"][guarantee]
    return entry


def received(group: Group, sender: Group) -> int:
    stats: Any = group.stats()["ViewStreams"]
    through: int = stats["received"][str(Origin(sender.me, Stream.UNIFORM))]["received"]
    return through


# Sending


def test_each_guarantee_has_its_own_order_and_messages_say_which() -> None:
    async def exchange(*groups: Group) -> None:
        a, b, c = groups
        for number in range(50):
            await a.send(b"u%d" % number, guarantee="uniform")
            await a.send(b"f%d" % number)
        await b.send_many(numbered("B", 50), guarantee="uniform")
        assert c.try_send(b"C", guarantee="uniform")
        for group in groups:
            found = await messages(group, 151)
            by_origin: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
            for message in found:
                place = (message.sender.name, message.guarantee)
                by_origin.setdefault(place, []).append((message.seqno, message.payload))
            assert by_origin == {
                ("A", "uniform"): [(at + 1, b"u%d" % at) for at in range(50)],
                ("A", "fifo"): [(at + 1, b"f%d" % at) for at in range(50)],
                ("B", "uniform"): list(enumerate(numbered("B", 50), 1)),
                ("C", "uniform"): [(1, b"C")],
            }

    with_members(3)(exchange)


def test_batches_bear_their_stream() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send_many(numbered("A", 10), guarantee="uniform")
        async for batch in b.batches():
            assert batch.run.stream is Stream.UNIFORM
            assert batch.sender == a.me
            if batch.run.last == 10:
                break

    with_members(2)(exchange)


def test_a_large_message_travels_in_fragments() -> None:
    large = bytes(range(256)) * 4000

    async def exchange(*groups: Group) -> None:
        await groups[0].send_many([b"before", large, b"after"], guarantee="uniform")
        for group in groups:
            expected = [("A", b"before"), ("A", large), ("A", b"after")]
            assert await read(group, 3) == expected

    with_members(3)(exchange)


def test_uniform_is_for_the_group_and_a_guarantee_has_a_name() -> None:
    async def exchange(a: Group, b: Group) -> None:
        to_one = "guarantee='uniform' is for messages to the group: .* leave out to="
        with pytest.raises(UsageError, match=to_one):
            await a.send(b"x", to=b.me, guarantee="uniform")
        with pytest.raises(UsageError, match=to_one):
            await a.send_many([b"x"], to=b.me, guarantee="uniform")
        with pytest.raises(UsageError, match=to_one):
            a.try_send(b"x", to=b.me, guarantee="uniform")
        unknown: Any = "causal"
        with pytest.raises(
            UsageError, match="guarantee is 'fifo', 'uniform' or 'total', not 'causal'"
        ):
            await a.send(b"x", guarantee=unknown)
        await a.send(b"to B alone", to=b.me, guarantee="fifo")
        (message,) = await messages(b, 1)
        assert (message.payload, message.to_me, message.guarantee) == (b"to B alone", True, "fifo")

    with_members(2)(exchange)


def test_alone_one_takes_its_own_at_once() -> None:
    async def exchange(a: Group) -> None:
        await a.send_many(numbered("A", 5), guarantee="uniform")
        assert await read(a, 5) == [("A", payload) for payload in numbered("A", 5)]

    with_members(1)(exchange)


# When it is delivered


def test_nobody_takes_a_message_before_everybody_holds_it() -> None:
    async def exchange(a: Group, b: Group, c: Group, deafness: Deafness) -> None:
        deafness.is_on = True
        await a.send_many(numbered("A", 5), guarantee="uniform")
        await until(lambda: received(b, a) == 5)
        await a.send(b"plain")
        # What is plain comes after and is taken first: C does not hold the others.
        assert await read(a, 1) == [("A", b"plain")]
        assert await read(b, 1) == [("A", b"plain")]
        assert not a._driver.node.has_ready
        assert not b._driver.node.has_ready
        deafness.is_on = False
        for group in (a, b):
            assert await read(group, 5) == [("A", payload) for payload in numbered("A", 5)]
        of_c = await messages(c, 6)
        assert [m.payload for m in of_c if m.guarantee == "uniform"] == numbered("A", 5)

    with_deaf_third(exchange)


def test_who_does_not_read_holds_nobody_else_back() -> None:
    """It holds what it has not read: that is enough for the others."""

    async def exchange(a: Group, b: Group, c: Group) -> None:
        await a.send_many(numbered("A", 8), guarantee="uniform")
        for group in (a, b):
            assert await read(group, 8) == [("A", payload) for payload in numbered("A", 8)]
        assert sent(a, "uniform")["low"] == 0  # but it is kept for C
        assert await read(c, 8) == [("A", payload) for payload in numbered("A", 8)]

    with_members(3, multicast=EIGHT)(exchange)


def test_each_guarantee_has_a_window_of_its_own() -> None:
    async def exchange(a: Group, b: Group) -> None:
        sending = asyncio.create_task(a.send_many(numbered("A", 20), guarantee="uniform"))
        await until(lambda: sent(a, "uniform")["high"] == 8)
        assert not a.try_send(b"no room", guarantee="uniform")
        assert a.try_send(b"plain")
        found = asyncio.gather(messages(a, 21), messages(b, 21))
        await sending
        for of_one in await found:
            uniform = [m.payload for m in of_one if m.guarantee == "uniform"]
            assert uniform == numbered("A", 20)
            assert [m.payload for m in of_one if m.guarantee == "fifo"] == [b"plain"]

    with_members(2, multicast=EIGHT)(exchange)


def test_flush_waits_for_uniform_messages() -> None:
    async def exchange(a: Group, b: Group, c: Group, deafness: Deafness) -> None:
        deafness.is_on = True
        await a.send(b"x", guarantee="uniform")
        flushing = asyncio.create_task(a.flush())
        await until(lambda: received(b, a) == 1)
        assert not flushing.done()
        deafness.is_on = False
        assert await read(b, 1) == await read(c, 1) == [("A", b"x")]
        await flushing
        assert sent(a, "uniform")["acks"]["C"] == [1, 1]

    with_deaf_third(exchange)


def test_uniform_messages_of_who_has_left_are_delivered(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await b.send_many(numbered("B", 500), guarantee="uniform")
        await b._presence.leave(10.0)
        assert await read(a, 500) == [("B", payload) for payload in numbered("B", 500)]

    with caplog.at_level(logging.WARNING, "ringcast"):
        with_members(2)(exchange)
    assert caplog.messages == []


# The sender dies


def test_what_one_survivor_holds_of_a_dead_sender_all_deliver() -> None:
    async def exchange(a: Group, b: Group, c: Group, deafness: Deafness) -> None:
        deafness.is_on = True
        await a.send_many(numbered("A", 5), guarantee="uniform")
        await until(lambda: received(b, a) == 5)
        assert received(c, a) == 0
        gone = a.me
        vanish(a)
        await take_turns()
        deafness.is_on = False
        for group in (b, c):
            runs = []
            async for event in group.events():  # they come before the view without their sender
                if isinstance(event, Delivered):
                    runs.append(event)
                elif isinstance(event, ViewInstalled) and gone not in event.view:
                    break
            assert {run.sender for run in runs} == {gone}
            assert [payload for run in runs for payload in run.run.payloads] == numbered("A", 5)

    with_deaf_third(exchange)


def test_what_no_survivor_holds_nobody_delivers() -> None:
    async def exchange(a: Group, b: Group) -> None:
        b._driver._lose = lambda: True
        await a.send_many(numbered("A", 5), guarantee="uniform")
        await a.send(b"plain")
        assert await read(a, 1) == [("A", b"plain")]  # its own uniform ones it does not take
        vanish(a)
        await b.wait_for_view(lambda view: len(view) == 1)
        b._driver._lose = None
        await b.send(b"after", guarantee="uniform")
        assert await read(b, 1) == [("B", b"after")]

    with_members(2)(exchange)


def test_the_view_without_the_dead_waits_for_no_reader_and_explain_says_who_is_behind() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        await c.send(b"x", guarantee="uniform")
        await until(lambda: received(a, c) == received(b, c) == 1)
        vanish(c)
        for group in (a, b):
            await group.wait_for_view(lambda view: len(view) == 2)
        behind = "1 view waits for this member's application to read what came before them"
        assert behind in a.explain()
        assert await read(b, 1) == await read(a, 1) == [("C", b"x")]
        await until(lambda: waits(a) == waits(b) == [])

    with_members(3)(exchange)


@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_the_trace_shows_that_messages_of_the_dead_come_before_the_view(
    tmp_path: Path, level: str
) -> None:
    pytest.importorskip("pyarrow", reason="needs ringcast[spark]")
    members = []
    count = BLOCK_MESSAGES + 76

    async def exchange(a: Group, b: Group, c: Group, deafness: Deafness) -> None:
        members[:] = [b.me, c.me]
        deafness.is_on = True
        await a.send_many(numbered("A", count), guarantee="uniform")
        await until(lambda: received(b, a) == count)
        vanish(a)
        await take_turns()
        deafness.is_on = False
        assert await read(b, count) == await read(c, count)

    with_deaf_third(exchange, record=tmp_path, record_level=level)
    for member in members:
        rows = rows_of(tmp_path, member.name)
        delivered = [row for row in rows if row.event == "deliver" and row.peer == "A"]
        assert delivered[0].seqno == 1
        assert all(later.seqno == row.seqno2 + 1 for row, later in pairwise(delivered))
        assert delivered[-1].seqno2 == count
        assert {row.view for row in delivered} == {3}
        (shown,) = (row for row in rows if row.event == "shown" and row.view == 4)
        assert delivered[-1].idx < shown.idx
        (block,) = (row for row in rows if row.event == "block" and row.peer == "A")
        assert (block.seqno, block.seqno2) == (1, BLOCK_MESSAGES)


def rows_of(directory: Path, node: str) -> list[Row]:
    """What a member recorded of views and of uniform messages."""
    from ringcast.trace.segments import Segment, segment_paths

    found = []
    for path in segment_paths(directory):
        with Segment(path) as segment:
            found += [
                row
                for row in segment.rows()
                if row.node == node and (row.event == "shown" or row.stream == Stream.UNIFORM)
            ]
    return sorted(found, key=lambda row: row.idx)
