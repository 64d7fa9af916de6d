"""Total messages as applications see them: on a virtual network, and on real sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from blocking_groups import members, threads
from loopback_groups import DEADLINE_S, read, with_members

from ringcast import (
    Delivered,
    GroupClosed,
    NotOrdered,
    OutcomeUnknown,
    Place,
    Stream,
    UsageError,
    View,
    ViewId,
    ViewInstalled,
)
from ringcast.testing import cluster

if TYPE_CHECKING:
    from ringcast import (
        Group,
        Message,
    )


def test_a_replicated_dict_is_the_same_everywhere() -> None:
    data: dict[str, dict[bytes, bytes]] = {}
    positions: dict[str, list[int]] = {}

    async def app(group: Group) -> None:
        name = group.me.name
        mine, at = data.setdefault(name, {}), positions.setdefault(name, [])

        async def follow() -> None:
            async for message in group:
                key, value = message.payload.split()
                mine[key] = value
                at.append(message.position)
                assert message.place == Place(message.view, message.position)

        following = asyncio.create_task(follow())
        for number in range(50):
            await group.send(b"k%d %s" % (number, name.encode()), guarantee="total")
            await asyncio.sleep(0.05)
        await following

    with cluster(3, seed=1, delay_s=0.002) as town:
        town.start(app)
        town.run(asyncio.sleep(10))
    assert data["m0"] == data["m1"] == data["m2"]
    assert len(data["m0"]) == 50
    assert list(positions.values()) == [list(range(1, 151))] * 3


@pytest.mark.parametrize("victim", [0, 1])
def test_the_order_goes_on_when_the_sequencer_dies_and_every_message_comes_once(
    victim: int,
) -> None:
    taken: dict[str, list[bytes]] = {}

    async def app(group: Group) -> None:
        mine = taken.setdefault(group.me.name, [])

        async def follow() -> None:
            async for message in group:
                mine.append(message.payload)

        following = asyncio.create_task(follow())
        for number in range(200):
            await group.send(b"%s %d" % (group.me.name.encode(), number), guarantee="total")
            await asyncio.sleep(0.01)
        await following

    with cluster(4, seed=3, delay_s=0.002, loss=0.02) as town:
        town.start(app)
        town.run(asyncio.sleep(0.7))
        town.members[victim].crash()
        town.run(asyncio.sleep(30))
        living = [process.name for process in town.members if process.is_running]
    orders = [taken[name] for name in living]
    assert orders[0] == orders[1] == orders[2]
    assert len(set(orders[0])) == len(orders[0])
    for name in living:
        mine = [each for each in orders[0] if each.startswith(name.encode() + b" ")]
        assert mine == [b"%s %d" % (name.encode(), number) for number in range(200)]


@pytest.mark.parametrize("sender", [0, 1])
def test_a_receipt_tells_the_place_and_that_all_have_read(sender: int) -> None:
    async def exchange(*groups: Group) -> None:
        group, *others = groups[sender:] + groups[:sender]
        await group.send(b"one", guarantee="total")
        receipt = await group.send(b"two", guarantee="total", receipt=True)
        assert receipt is not None
        assert await receipt.ordered() == Place(group.view.id, 2)
        assert not receipt.is_delivered()
        for other in others:
            assert await read(other, 2) == [(group.me.name, b"one"), (group.me.name, b"two")]
        await receipt.delivered()
        await group.flush()

    with_members(3)(exchange)


def test_a_plain_message_has_no_place() -> None:
    async def exchange(a: Group, b: Group) -> None:
        receipt = await a.send(b"x", receipt=True)
        with pytest.raises(UsageError, match="guarantee='total'"):
            await receipt.ordered()
        message: Message = await anext(aiter(b))
        assert (message.position, message.guarantee) == (0, "fifo")
        with pytest.raises(UsageError, match="guarantee='total'"):
            _ = message.place
        with pytest.raises(UsageError, match="leave out to="):
            await a.send(b"x", to=b.me, guarantee="total")

    with_members(2)(exchange)


def test_who_reads_nothing_holds_all_back_and_no_number_is_lost() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        count = 0
        while c.try_send(bytes(10_000), guarantee="total"):
            count += 1
            await asyncio.sleep(0)
            assert count < 10_000
        assert not b.try_send(bytes(10_000), guarantee="total") or count
        waiting = asyncio.create_task(c.send(b"last", guarantee="total"))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert any("total" in reason for reason in c.explain())

        async def numbers(group: Group) -> list[int]:
            found = []
            async for message in group:
                if message.sender == c.me:
                    found.append(message.seqno)
                if message.payload == b"last":
                    return found
            raise AssertionError

        found = await asyncio.gather(*map(numbers, (a, b, c)))
        assert found == [list(range(1, count + 2))] * 3
        await waiting

    with_members(3)(exchange)


def test_who_is_closed_is_told_what_became_of_its_messages() -> None:
    async def exchange(a: Group, b: Group) -> None:
        receipts = []
        for number in range(30):
            receipt = await b.send(b"%d" % number, guarantee="total", receipt=True)
            assert receipt is not None
            receipts.append(receipt)
        b._driver.node.close(b._driver.now())
        b._driver.take(0)
        with pytest.raises(OutcomeUnknown, match="total message 1 was sent"):
            await receipts[0].ordered()
        with pytest.raises(NotOrdered, match=r"30\.\.30") as caught:
            await receipts[-1].ordered()
        assert (caught.value.first, caught.value.last) == (30, 30)
        with pytest.raises(GroupClosed):
            await receipts[-1].delivered()

    with_members(2)(exchange)


def test_views_stand_in_the_order_and_say_who_came() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await b.send(b"x", guarantee="total")
        found: list[object] = []
        async for event in a.events():
            found.append(event)
            if isinstance(event, Delivered):
                break
        views = [event for event in found if isinstance(event, ViewInstalled)]
        assert [(view.position, view.came) for view in views[-1:]] == [(0, (b.me,))]
        (said,) = [event for event in found if isinstance(event, Delivered)]
        assert (said.run.stream, said.run.first, said.position) == (Stream.TOTAL, 1, 1)

    with_members(2)(exchange)


def test_threads_send_and_wait_for_a_place() -> None:
    with threads(2) as pool, members(2) as (a, b):

        def send(group: object) -> list[Place]:
            receipts = [
                group.send(b"%d" % n, guarantee="total", receipt=True)  # type: ignore[attr-defined]
                for n in range(20)
            ]
            return [receipt.ordered(timeout=DEADLINE_S) for receipt in receipts]

        of_a, of_b = pool.map(send, (a, b))
        assert of_a == sorted(of_a)
        assert of_b == sorted(of_b)
        assert sorted(place.position for place in of_a + of_b) == list(range(1, 41))
        orders = []
        for group in (a, b):
            found = [next(iter(group)) for _ in range(40)]
            orders.append([(message.sender, message.payload) for message in found])
        assert orders[0] == orders[1]


def test_all_ways_to_send_total_messages_take_a_channel() -> None:
    total: Any = {"guarantee": "total"}
    large = b"x" * 200_000

    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"plain", **total)
        await a.send(b"one", channel="c", **total)
        await a.send_many([b"two", large, b""], channel="d", headers={"k": "v"}, **total)
        assert a.try_send(b"three", channel="c", **total)
        receipt = await a.send(b"four", channel="e", receipt=True, **total)
        assert (await receipt.ordered()).position == 7
        channels = ["", "c", "d", "d", "d", "c", "e"]
        for group in (a, b):
            got = [await anext(aiter(group)) for _ in channels]
            assert [each.channel for each in got] == channels
            assert [each.position for each in got] == list(range(1, 8))
            assert [each.payload[:5] for each in got][2:5] == [b"two", b"xxxxx", b""]
            assert got[3].payload == large
            assert got[3].headers == {"k": "v"}
        await receipt.delivered()

    with_members(2)(exchange)


def test_threads_send_total_messages_in_a_channel() -> None:
    with members(2) as (a, b):
        a.send(b"one", guarantee="total", channel="c")
        a.send_many([b"two", b"three"], guarantee="total", channel="d")
        receipt = a.send(b"four", guarantee="total", channel="e", receipt=True)
        assert receipt.ordered(timeout=DEADLINE_S).position == 4
        while not a.try_send(b"five", guarantee="total", channel="f"):
            pass
        for group in (a, b):
            assert [next(iter(group)).channel for _ in range(5)] == ["c", "d", "d", "e", "f"]


def test_places_sort_as_the_order_goes() -> None:
    view = View(ViewId(None, 1), (None,))  # type: ignore[arg-type]
    later = ViewId(view.id.creator, 2)
    places = [Place(later, 0), Place(view.id, 9), Place(later, 3), Place(view.id, 10)]
    assert [place.position for place in sorted(places)] == [9, 10, 0, 3]
    assert Place(later, 3) >= Place(later, 3) > Place(later, 2)
    assert Place(later, 2) <= Place(later, 2) < Place(later, 3)
