"""Groups over UDP multicast, on loopback."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from ipaddress import ip_address, ip_network
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import FIRST, numbered, read, until, vanish, with_members

from ringcast import join
from ringcast.aio.loop import run
from ringcast.aio.multicast_socket import MulticastSocket, group_address
from ringcast.errors import ConfigError, JoinTimeout, UsageError
from ringcast.model import Address, Member, View, ViewId

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast import Group

SO_DETACH_FILTER = 27
LOOPBACK = Address("127.0.0.1", 0)
MAKER = Member(Address("127.0.0.1", 1), 1, "A")
VIEW = View(ViewId(MAKER, 1), (MAKER,))
NAME = "a group of the multicast tests"


def arrivals(sock: MulticastSocket, count: int) -> list[bytes]:
    """The next datagrams, as soon as there are so many."""
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        select.select([sock._socket, sock._listener], [], [], 1.0)
        found += [bytes(one) for burst in sock.drain(16) for one in burst]
    return found


def sent(group: Group) -> int:
    transport = group.stats()["transport"]
    assert isinstance(transport, dict)
    return int(transport["sent"])


def test_a_name_is_an_address() -> None:
    addresses = {group_address(f"group {number}") for number in range(100)}
    assert len(addresses) == 100
    assert all(ip_address(host) in ip_network("239.255.0.0/16") for host, _ in addresses)
    assert group_address("orders") == group_address("orders")


@pytest.mark.parametrize("is_filtered", [True, False])
def test_a_datagram_to_the_group_reaches_all_others_once(is_filtered: bool) -> None:
    group = group_address(NAME)
    socks = [MulticastSocket(LOOPBACK, group) for _ in range(3)]
    try:
        first = socks[0]
        for sock in socks:
            sock.enter_view(VIEW)
        if not is_filtered:
            first._listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        first.send(b"to all" * 10_000, group)
        for sock in socks[1:]:
            assert arrivals(sock, 1) == [b"to all" * 10_000]
            sock.send(b"thanks", first.address)
        assert arrivals(first, 2) == [b"thanks", b"thanks"]
        assert first.sent == 1
        assert first.received == 2
        assert first.own == (0 if is_filtered else 1)
        first.send(b"elsewhere", Address("239.255.255.255", group.port))
        assert first.dropped == 1
    finally:
        for sock in socks:
            sock.close()


def test_what_is_sent_to_all_leaves_once() -> None:
    payloads = [bytes(50_000)] * 100  # one datagram each

    def datagrams(transport: str) -> int:
        counts = []

        @with_members(5, transport=transport)
        async def test(*groups: Group) -> None:
            before = sent(groups[0])
            reading = [asyncio.create_task(read(group, len(payloads))) for group in groups]
            await groups[0].send_many(payloads)
            for task in reading:
                assert len(await task) == len(payloads)
            counts.append(sent(groups[0]) - before)

        return counts[0]

    assert datagrams("multicast") < 2 * len(payloads) < 4 * len(payloads) <= datagrams("udp")


def test_who_has_not_read_of_the_view_hears_and_is_heard_in_it() -> None:
    @with_members(3, transport="multicast")
    async def test(a: Group, b: Group, c: Group) -> None:
        await c.send(b"before")
        await until(lambda: all(group._driver.node.has_ready for group in (a, b)))
        vanish(c)
        for group in (a, b):
            await group.wait_for_view(lambda view: len(view) == 2)
        assert await read(a, 1) == [("C", b"before")]
        await b.send(b"of B, which reads nothing")
        assert await read(a, 1) == [("B", b"of B, which reads nothing")]
        await a.send(b"of A", guarantee="uniform")
        assert await read(a, 1) == [("A", b"of A")]  # so B holds it
        assert len(await read(b, 3)) == 3


def test_losses_are_made_good() -> None:
    dice = Random(5)
    options: list[dict[str, Any]] = [{"lose": lambda: dice.random() < 0.1}] * 3

    @with_members(3, transport="multicast", per_member=options)
    async def test(*groups: Group) -> None:
        names = [group.me.name for group in groups]
        reading = [asyncio.create_task(read(group, 3 * 2 * 500)) for group in groups]
        for group in groups:
            messages = numbered(group.me.name, 1000)
            await group.send_many(messages[:500])
            await group.send_many(messages[500:], guarantee="uniform")
        for task in reading:
            found = await task
            for name in names:
                mine = [payload for sender, payload in found if sender == name]
                expected = numbered(name, 1000)
                early = set(expected[:500])
                assert [payload for payload in mine if payload in early] == expected[:500]
                assert [payload for payload in mine if payload not in early] == expected[500:]


def test_one_member_is_written_to_alone() -> None:
    @with_members(3, transport="multicast")
    async def test(a: Group, b: Group, c: Group) -> None:
        await a.send(b"just you", to=a.view["B"])
        assert await read(b, 1) == [("A", b"just you")]
        await a.send(b"everybody")
        assert await read(c, 1) == [("A", b"everybody")]


def test_who_dies_is_missed() -> None:
    @with_members(3, transport="multicast")
    async def test(a: Group, b: Group, c: Group) -> None:
        vanish(a)
        await b.wait_for_view(lambda view: len(view) == 2)
        await c.send(b"still here")
        assert await read(b, 1) == [("C", b"still here")]
        await until(lambda: len(c.view) == 2)


def test_for_another_transport_it_is_another_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with join(NAME, transport="multicast", membership=FIRST) as group:
            known = [str(group.me.address)]
            with pytest.raises(JoinTimeout, match="nobody answered"):
                async with join(NAME, members=known, membership=FIRST, must_exist=True):
                    raise AssertionError
            async with join(NAME, transport="multicast", members=known) as other:
                assert len(other.view) == 2

    run(main())


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ConfigError, {"transport": "pigeon"}),
        (UsageError, {"transport": "multicast", "listen": "[::1]:0"}),
        (UsageError, {"transport": "multicast", "advertise": "127.0.0.1:7801"}),
        (ConfigError, {"transport": "multicast", "group": "a" * 60}),
    ],
)
def test_what_cannot_be_is_refused(error: type[Exception], options: dict[str, Any]) -> None:
    async def main() -> None:
        async with join(**{"group": NAME, **options}):
            raise AssertionError

    with pytest.raises(error):
        run(main())


def test_a_port_that_somebody_else_has_is_named() -> None:
    group = group_address(NAME)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as selfish:
        selfish.bind(group)
        with pytest.raises(UsageError, match=f"cannot listen on {group}: "):
            MulticastSocket(LOOPBACK, group)
