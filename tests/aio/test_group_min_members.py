"""Sending to a group that is too small: told at once, or waiting until it is whole again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import PATIENT, exclude, numbered, read, until, vanish, with_members

from ringcast import ConfigError, MulticastConfig, UnicastConfig, join
from ringcast.aio.loop import run
from ringcast.errors import TooFewMembers

if TYPE_CHECKING:
    from ringcast import Group

EIGHT = MulticastConfig(capacity=8)


async def waits_for_room(group: Group) -> None:
    await until(lambda: any("window full" in reason for reason in group.explain()))


async def shrinks(group: Group, size: int) -> None:
    await group.wait_for_view(lambda view: len(view) == size)


def joining(members: list[str], **options: Any) -> Any:
    return join("test", members=members, membership=PATIENT, **options)


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_members": 0}, "min_members = 0: must be a whole number from 1 to 512"),
        ({"min_members": "3"}, "min_members = '3': must be a whole number from 1 to 512"),
        ({"when_few": "block"}, "when_few = 'block': must be 'raise' or 'wait'"),
        ({"when_few": None}, "when_few = None: must be 'raise' or 'wait'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_happens(
    options: dict[str, Any], message: str
) -> None:
    async def main() -> None:
        async with join("test", **options):
            raise AssertionError("it must not begin")

    with pytest.raises(ConfigError) as caught:
        run(main())
    assert str(caught.value) == message


@pytest.mark.parametrize(("configured", "argument", "need"), [(4, None, 4), (4, 2, 2), (1, 3, 3)])
def test_what_is_said_to_join_counts_more_than_the_configuration(
    configured: int, argument: int | None, need: int
) -> None:
    async def exchange(a: Group) -> None:
        with pytest.raises(TooFewMembers) as caught:
            await a.send(b"alone")
        assert (caught.value.have, caught.value.need) == (1, need)
        assert a.explain()[0].startswith(f"sends are refused: 1 of {need} members since ")

    membership = replace(PATIENT, min_members=configured)
    with_members(1, membership=membership, min_members=argument)(exchange)


# Being told


def test_who_sends_to_a_small_group_is_told_at_once() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for refused in (a.send(b"no"), a.send_many(numbered("A", 3))):
            with pytest.raises(TooFewMembers, match="2 of 3 members are here, 1 is missing") as few:
                await refused
            assert few.value.sent == 0
        with pytest.raises(TooFewMembers):
            a.try_send(b"no")
        await a.send(b"just you", to=b.me)
        assert await read(b, 1) == [("A", b"just you")]
        async with joining([str(a.me.address)], name="C") as c:
            await a.wait_for_view(lambda view: len(view) == 3)
            await a.send(b"whole")
            for group in (a, b, c):
                assert await read(group, 1) == [("A", b"whole")]

    with_members(2, min_members=3)(exchange)


def test_who_waits_for_room_is_told_when_the_group_becomes_too_small() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        sending = asyncio.create_task(a.send_many(numbered("A", 20)))
        to_one = asyncio.create_task(a.send_many(numbered("B", 20), to=b.me))
        await waits_for_room(a)
        vanish(c)
        with pytest.raises(TooFewMembers, match="only the first 8 went") as caught:
            await sending
        assert (caught.value.have, caught.value.need, caught.value.sent) == (2, 3, 8)
        # What had been sent is delivered all the same, and so is what is for one member.
        got = [payload for _, payload in await read(b, 28)]
        await to_one
        assert [payload for payload in got if payload[:1] == b"A"] == numbered("A", 8)
        assert [payload for payload in got if payload[:1] == b"B"] == numbered("B", 20)
        assert await read(a, 8) == [("A", payload) for payload in numbered("A", 8)]
        await a.flush()

    with_members(3, min_members=3, multicast=EIGHT, unicast=UnicastConfig(capacity=8))(exchange)


# Waiting


def test_who_waits_goes_on_when_the_group_is_whole_again() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        sending = asyncio.create_task(a.send_many(numbered("A", 20)))
        await waits_for_room(a)
        vanish(c)
        await shrinks(a, 2)
        one = asyncio.create_task(a.send(b"too"))
        first = [("A", payload) for payload in numbered("A", 8)]
        assert await read(b, 8) == await read(a, 8) == first
        await a.flush()  # there is room, and still nobody may send
        await until(lambda: any("sends are refused: 2 of 3" in why for why in a.explain()))
        assert not sending.done()
        assert not one.done()
        with pytest.raises(TooFewMembers):
            a.try_send(b"cannot wait")
        async with joining([str(a.me.address)], name="D") as d:
            reading = [asyncio.create_task(read(group, 13)) for group in (a, b, d)]
            await asyncio.gather(sending, one)
            for task in reading:
                got = [payload for _, payload in await task]
                assert [p for p in got if p != b"too"] == numbered("A", 20)[8:]
                assert got.count(b"too") == 1

    with_members(3, min_members=3, when_few="wait", multicast=EIGHT)(exchange)


def test_a_first_send_may_wait_for_the_group_to_form() -> None:
    async def exchange(a: Group) -> None:
        sending = asyncio.create_task(a.send(b"all here"))
        await a.send_many([])  # nothing to wait for
        async with joining([str(a.me.address)], name="B") as b:
            await sending
            assert await read(b, 1) == [("A", b"all here")]

    with_members(1, min_members=2, when_few="wait")(exchange)


def test_waiting_for_members_can_be_cancelled() -> None:
    async def exchange(a: Group) -> None:
        sending = asyncio.create_task(a.send(b"never"))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        async with joining([str(a.me.address)], name="B") as b:
            await a.send(b"the first")
            assert await read(b, 1) == [("A", b"the first")]

    with_members(1, min_members=2, when_few="wait")(exchange)


async def read_through(group: Group, last: bytes) -> list[bytes]:
    found: list[bytes] = []
    async for message in group:
        found.append(message.payload)
        if message.payload == last:
            break
    return found


def test_who_is_left_out_and_comes_back_sends_the_rest() -> None:
    """Alone it has too few members: `send` waits for the way back."""

    async def exchange(a: Group, b: Group, c: Group) -> None:
        sending = asyncio.create_task(b.send_many(numbered("B", 20)))
        await waits_for_room(b)
        await until(lambda: a._driver.node.has_ready and c._driver.node.has_ready)
        reading = [asyncio.create_task(read_through(group, b"B19")) for group in (a, b, c)]
        exclude(b.me, by=a)
        for found in await asyncio.gather(*reading):
            assert found == numbered("B", 20)
        await sending

    few = {"min_members": 3, "when_few": "wait"}
    with_members(3, multicast=EIGHT, per_member=[{}, few, {}])(exchange)


def test_who_is_left_out_is_told_that_it_has_too_few_members() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        sending = asyncio.create_task(b.send_many(numbered("B", 20)))
        await waits_for_room(b)
        exclude(b.me, by=a)
        with pytest.raises(TooFewMembers, match="1 of 3 members are here") as few:
            await sending
        assert few.value.sent == 8

    with_members(3, multicast=EIGHT, per_member=[{}, {"min_members": 3}, {}])(exchange)
