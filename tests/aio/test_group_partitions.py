"""Groups that a network parts and brings together again, as an application sees it.

Members reach each other through a proxy only, at the addresses that they advertise.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import PATIENT, read, with_members

from ringcast import MembershipConfig, UsageError, ViewInstalled, join
from ringcast.aio.loop import run
from support.proxy import Link, Proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringcast import Group, View

SOON = MembershipConfig(
    heartbeat_s=0.1, suspect_after_s=0.8, verify_s=0.5, discovery_wait_s=30.0, leave_timeout_s=1.0
)
"""Who is cut off is missed in a second or two."""

LAST = b"together"


def through(proxy: Proxy, **options: Any) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a coroutine function on members of which each listens behind the proxy."""
    names = list(proxy.listen)
    places = [{"listen": proxy.listen[name], "advertise": proxy.advertise[name]} for name in names]
    return with_members(len(names), per_member=places, **options)


async def await_views(*sides: list[Group]) -> None:
    """Each of these sides has come to a view of its own."""
    for side in sides:
        addresses = {group.me.address for group in side}
        for group in side:
            await group.wait_for_view(lambda v, want=addresses: {m.address for m in v} == want)


async def views_until_merged(group: Group) -> list[tuple[list[str], list[list[str]]]]:
    """The names in each view, and in its parts, up to the second view of all three."""
    found: list[tuple[list[str], list[list[str]]]] = []
    async with aclosing(group.events()) as events:
        async for event in events:
            if isinstance(event, ViewInstalled):
                found.append((names(event.view), list(map(names, event.parts))))
                if sum(len(view) == 3 for view, _ in found) == 2:
                    break
    return found


async def read_until(group: Group, last: bytes) -> list[bytes]:
    found = []
    async for message in group:
        found.append(message.payload)
        if message.payload == last:
            break
    return found


async def read_to_the_end(group: Group) -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
    """What comes to all and to this member alone, until everybody's last of both is here."""
    to_all, to_me = [], []
    async for message in group:
        seen = to_me if message.to_me else to_all
        seen.append((message.sender.name, message.payload))
        if [payload for _, payload in to_all + to_me].count(LAST) == 2 * len(group.view) - 1:
            break
    return sorted(to_all), sorted(to_me)


def names(view: View) -> list[str]:
    return [member.name for member in view]


# Where a member is reached


def test_a_member_behind_a_forwarder_is_known_by_the_address_it_advertises() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for group in (a, b):
            name = group.me.name
            assert str(group.me.address) == proxy.advertise[name]
            transport: Any = group.stats()["transport"]
            assert transport["address"] == proxy.listen[name]
        assert [str(member.address) for member in a.view] == list(proxy.advertise.values())
        await a.send(b"to all")
        await a.send(b"to one", to=b.me)
        assert sorted(await read(b, 2)) == [("A", b"to all"), ("A", b"to one")]

    with Proxy("AB") as proxy:
        through(proxy)(exchange)
        assert proxy.forwarded.keys() == {("A", "B"), ("B", "A")}
        assert not proxy.dropped


@pytest.mark.parametrize(
    ("advertise", "complaint"),
    [
        ("192.0.2.1:7800", "192.0.2.1:7800 is not a loopback address"),
        ("somewhere.invalid:7800", "no address was found for 'somewhere.invalid'"),
    ],
)
def test_an_address_outside_this_machine_is_not_advertised(advertise: str, complaint: str) -> None:
    async def main() -> None:
        async with join("test", advertise=advertise, membership=PATIENT):
            raise AssertionError("it must not begin")

    with pytest.raises(UsageError, match=complaint):
        run(main())


def test_links_that_lose_and_delay_lose_no_message() -> None:
    async def exchange(a: Group, b: Group) -> None:
        proxy.set("AB", "AB", Link(loss=0.3, delay_s=0.002))
        reading = asyncio.create_task(read_until(b, b"the end"))
        sent = []
        while min(proxy.dropped["A", "B"], proxy.dropped["B", "A"]) < 3:
            sent.append(str(len(sent)).encode())
            await a.send(sent[-1])
            await a.flush()
        await a.send(b"the end")
        assert await reading == [*sent, b"the end"]
        proxy.heal()

    with Proxy("AB") as proxy:
        through(proxy)(exchange)


# Parted


def test_a_merge_is_an_event_that_says_of_what(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(*groups: Group) -> None:
        a, b, c = groups
        before = [group.me for group in groups]
        reading = [asyncio.create_task(views_until_merged(group)) for group in groups]
        proxy.part("AB", "C")
        await await_views([a, b], [c])
        proxy.heal()
        views = await asyncio.gather(*reading)
        for found in views:
            assert found[-1] == (["A", "B", "C"], [["A", "B"], ["C"]])
        assert [found[-2][0] for found in views] == [["A", "B"], ["A", "B"], ["C"]]
        assert [group.me for group in groups] == before

    with Proxy("ABC") as proxy, caplog.at_level("INFO", logger="ringcast"):
        through(proxy, membership=SOON)(exchange)
    said = "\n".join(caplog.messages)
    assert re.search(r"^[AB] suspects C: no sign of life for \d\.\d s, asked 5 times$", said, re.M)
    assert re.search(r"^C: merged from <View \d+: A, B>, <View \d+: C>$", said, re.M)


def test_what_is_sent_apart_stays_on_its_side_but_for_messages_to_one_member() -> None:
    async def exchange(*groups: Group) -> None:
        a, b, c = groups
        await a.send(b"before", to=c.me)  # the stream that goes on
        proxy.part("AB", "C")
        await await_views([a, b], [c])
        await a.send(b"apart")
        await a.send(b"to C", to=c.me)
        await c.send(b"alone")
        proxy.heal()
        await await_views([*groups])
        for group in groups:
            await group.send(LAST)
            for peer in group.view:
                if peer != group.me:
                    await group.send(LAST, to=peer)
        found = {group.me.name: await read_to_the_end(group) for group in groups}
        of_all = [(name, LAST) for name in "ABC"]
        assert found == {
            "A": ([("A", b"apart"), *of_all], [("B", LAST), ("C", LAST)]),
            "B": ([("A", b"apart"), *of_all], [("A", LAST), ("C", LAST)]),
            "C": (
                [*of_all[:2], ("C", b"alone"), of_all[2]],
                [("A", b"before"), ("A", b"to C"), *of_all[:2]],
            ),
        }

    with Proxy("ABC") as proxy:
        through(proxy, membership=SOON)(exchange)
