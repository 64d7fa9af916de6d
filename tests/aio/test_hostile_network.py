"""Narrow paths, full queues and pulled cables, in networks of the tests' own."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import time
from contextlib import ExitStack, closing
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import numbered, read, with_members
from namespace import give_up, hold_back, in_own_network, open_tunnel, release, set_mtu, set_up

from ringcast.aio import udp
from ringcast.aio.multicast_socket import MulticastSocket, group_address
from ringcast.aio.udp import UdpSocket
from ringcast.config import DATAGRAM_BYTES_MAX
from ringcast.model import Address, Member, View, ViewId

if TYPE_CHECKING:
    from ringcast import Group

LOOPBACK = Address("127.0.0.1", 0)
LARGE = bytes(range(256)) * 200
TRANSPORTS = ["udp", "multicast", "tcp"]


_behind: dict[UdpSocket, list[bytes]] = {}  # what has come with the last one


def arrived(sock: UdpSocket) -> bytes:
    """The next datagram, wherever it comes in."""
    if behind := _behind.pop(sock, None):
        _behind[sock] = behind[1:]
        return behind[0]
    sockets = [sock._socket, *([sock._listener] if isinstance(sock, MulticastSocket) else [])]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        select.select(sockets, [], [], 1.0)
        for burst in sock.drain(16):
            first, *_behind[sock] = map(bytes, burst)
            return first
    raise AssertionError("nothing came")


def view_of(*addresses: Address) -> View:
    members = tuple(Member(address, 1, "") for address in addresses)
    return View(ViewId(members[0], 1), members)


# One socket


@in_own_network
def test_a_narrow_path_is_learned_and_what_is_longer_goes_in_fragments() -> None:
    set_mtu(576)
    with ExitStack() as stack:
        a, b = (stack.enter_context(closing(UdpSocket(LOOPBACK))) for _ in range(2))
        a.enter_view(view_of(a.address, b.address))
        assert a.datagram_bytes == DATAGRAM_BYTES_MAX
        for size, fragmented in ((548, 0), (549, 1), (len(LARGE), 2), (548, 2)):
            a.send(LARGE[:size], b.address)
            assert arrived(b) == LARGE[:size]
            assert a.fragmented == fragmented
            assert a.datagram_bytes == (548 if fragmented else DATAGRAM_BYTES_MAX)
        assert (a.sent, a.dropped) == (4, 0)
        a.enter_view(view_of(a.address, b.address))
        assert a.datagram_bytes == 548  # b is still there
        a.enter_view(view_of(Address("127.0.0.9", 1)))
        assert a.datagram_bytes == DATAGRAM_BYTES_MAX


@in_own_network
def test_what_is_sent_to_a_multicast_group_fits_its_network() -> None:
    set_mtu(576)
    group = group_address("narrow")
    with ExitStack() as stack:
        socks = [MulticastSocket(LOOPBACK, group) for _ in range(2)]
        a, b = (stack.enter_context(closing(sock)) for sock in socks)
        view = view_of(a.address, b.address)
        for sock in (a, b):
            sock.enter_view(view)
        for size, fragmented in ((548, 0), (549, 1), (len(LARGE), 2)):
            a.send(LARGE[:size], group)
            assert arrived(b) == LARGE[:size]
            assert a.fragmented == fragmented
        assert a.datagram_bytes == 548
        a.enter_view(view)
        assert a.datagram_bytes == 548


@in_own_network
def test_ipv6_has_longer_headers() -> None:
    set_mtu(1280)
    with ExitStack() as stack:
        try:
            a, b = (stack.enter_context(closing(UdpSocket(Address("::1", 0)))) for _ in range(2))
        except OSError as error:
            give_up(f"no IPv6: {error.strerror}")
        a.enter_view(view_of(a.address, b.address))
        for size, fragmented in ((1232, 0), (1233, 1), (len(LARGE), 2)):
            a.send(LARGE[:size], b.address)
            assert arrived(b) == LARGE[:size]
            assert a.fragmented == fragmented
        assert a.datagram_bytes == 1232


@in_own_network
def test_a_router_that_cannot_pass_a_datagram_on_is_believed_within_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tunnel = open_tunnel("10.1.0.1")
    far = Address("10.1.0.2", 7800)
    with closing(UdpSocket(Address("10.1.0.1", 0), insecure=True)) as sock:
        sock.enter_view(view_of(sock.address, far))
        assert sock.datagram_bytes == 1472
        for mtu, learned, fragments in ((1400, 1372, 2), (1000, 1252, 1), (68, 1252, 1)):
            size = sock.datagram_bytes
            sock.send(bytes(size), far)
            (lost,) = packets(tunnel, 1)
            os.write(tunnel, too_big(lost, mtu))
            assert list(sock.drain(16)) == []
            sock.send(bytes(size), far)  # it was cut before anybody knew
            assert not any(map(is_whole_or_lost, packets(tunnel, fragments)))
            assert sock.datagram_bytes == learned
            assert sock.hints == set()
        assert (sock.sent, sock.dropped, sock.fragmented) == (6, 0, 1)
        assert not is_whole_or_lost(lost)  # whoever is behind 1000 bytes gets it from the router
        assert list(sock.drain(16)) == []
        assert sock.datagram_bytes == 1252
        monkeypatch.setattr(udp, "NARROW_NS", -1)
        assert list(sock.drain(16)) == []
        assert sock.datagram_bytes == 1472
        sock.send(bytes(1472), far)  # the kernel remembers, and tells
        assert sock.datagram_bytes == 1252


def is_whole_or_lost(packet: bytes) -> bool:
    """No router may fragment it."""
    return bool(packet[6] & 0x40)


@in_own_network
def test_a_path_to_somebody_else_narrows_nothing() -> None:
    tunnel = open_tunnel("10.1.0.1")
    near, far = Address("10.1.0.2", 7800), Address("10.1.0.3", 7800)
    with closing(UdpSocket(Address("10.1.0.1", 0), insecure=True)) as sock:
        sock.enter_view(view_of(sock.address, near))
        sock.send(bytes(1472), far)
        os.write(tunnel, too_big(*packets(tunnel, 1), 600))
        sock.send(bytes(1472), far)
        assert len(packets(tunnel, 3)) == 3
        assert (sock.fragmented, sock.datagram_bytes) == (1, 1472)
        sock.send(bytes(1472), near)
        assert all(map(is_whole_or_lost, packets(tunnel, 1)))
        sock.enter_view(view_of(sock.address, near, far))
        assert sock.datagram_bytes == 1472
        sock.send(bytes(1472), far)
        assert sock.datagram_bytes == 1252
        sock.enter_view(view_of(sock.address, near))
        assert sock.datagram_bytes == 1472
        packets(tunnel, 1)
        sock.send(bytes(1472), near)
        assert all(map(is_whole_or_lost, packets(tunnel, 1)))


@in_own_network
def test_an_interface_that_takes_less_is_believed() -> None:
    tunnel = open_tunnel("10.1.0.1")
    far = Address("10.1.0.2", 7800)
    with closing(UdpSocket(Address("10.1.0.1", 0), insecure=True)) as sock:
        sock.enter_view(view_of(sock.address, far))
        set_mtu(700, "tun0")
        sock.send(bytes(1472), far)
        assert len(packets(tunnel, 3)) == 3
        assert (sock.fragmented, sock.datagram_bytes) == (1, 672)


def packets(tunnel: int, count: int) -> list[bytes]:
    """The next so many packets with a datagram, or a fragment of one."""
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        select.select([tunnel], [], [], 1.0)
        packet = os.read(tunnel, 1 << 16)
        if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_UDP:
            found.append(packet)
    return found


def too_big(packet: bytes, mtu: int) -> bytes:
    """What a router answers, as in RFC 1191."""
    quoted = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + packet[:28]
    icmp = quoted[:2] + checksum(quoted) + quoted[4:]
    source, dest = packet[16:20], packet[12:16]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(icmp), 0, 0, 64, socket.IPPROTO_ICMP, 0)
    return head[:10] + checksum(head + source + dest) + source + dest + icmp


def checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)


@pytest.mark.parametrize("kind", ["ENOBUFS", "EAGAIN"])
@in_own_network
def test_what_a_full_queue_does_not_take_is_counted_and_nobody_waits(kind: str) -> None:
    hold_back(rate=1, burst=2500, waiting=20_000)
    with ExitStack() as stack:
        a, b = (stack.enter_context(closing(UdpSocket(LOOPBACK))) for _ in range(2))
        if kind == "EAGAIN":  # the socket's own buffer is full before the queue is
            a._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for _ in range(100):
            a.send(bytes(1000), b.address)
        assert a.dropped > 50
        assert a.sent + a.dropped == 100
        assert (a.fragmented, a.hints, a.datagram_bytes) == (0, set(), DATAGRAM_BYTES_MAX)
        with pytest.raises(OSError, match=r"\[Errno \d+\]") as caught:
            a._socket.sendto(bytes(1000), b.address)
        assert caught.value.errno == getattr(errno, kind)
        release()
        dropped = a.dropped
        a.send(b"there is room", b.address)
        assert a.dropped == dropped
        assert [arrived(b) for _ in range(3)] == [bytes(1000), bytes(1000), b"there is room"]


@in_own_network
def test_without_a_way_datagrams_are_dropped_until_there_is_one() -> None:
    far = Address("10.1.0.2", 7800)
    with closing(UdpSocket(Address("0.0.0.0", 0), insecure=True)) as sock:
        sock.send(b"lost", far)
        assert (sock.sent, sock.dropped, sock.hints) == (0, 1, set())
        tunnel = open_tunnel("10.1.0.1")
        sock.send(b"on its way", far)
        assert (sock.sent, sock.dropped) == (1, 1)
        (packet,) = packets(tunnel, 1)
        assert packet.endswith(b"on its way")


# Groups


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_own_network
def test_a_group_lives_with_paths_that_become_narrow(transport: str) -> None:
    @with_members(3, transport=transport)
    async def test(*groups: Group) -> None:
        for mtu in (65_536, 9000, 1500, 576):
            set_mtu(mtu)
            await exchange(groups, f"{mtu}: ")
        if transport == "tcp":
            return
        before = [transport_of(group)["fragmented"] for group in groups]
        await exchange(groups, "again: ")
        assert {transport_of(group)["datagram_bytes"] for group in groups} == {576 - 28}
        assert [transport_of(group)["fragmented"] for group in groups] == before
        assert min(before) > 0


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_own_network
def test_a_group_begins_where_paths_are_narrow(transport: str) -> None:
    set_mtu(576)

    @with_members(3, transport=transport)
    async def test(*groups: Group) -> None:
        await exchange(groups, "")


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_own_network
def test_a_cable_that_was_pulled_costs_time_and_nothing_else(transport: str) -> None:
    @with_members(3, transport=transport)
    async def test(*groups: Group) -> None:
        await exchange(groups, "before: ")
        during = asyncio.create_task(exchange(groups, "during: "))
        set_up(False)
        for _ in range(200):
            await asyncio.sleep(0)
        assert not during.done()
        set_up()
        await during


async def exchange(groups: tuple[Group, ...], prefix: str) -> None:
    """Everybody sends small and large messages, plain, uniform and to the next one."""

    def messages(name: str) -> list[bytes]:
        small = numbered(prefix + name, 300)
        return [*small[:150], prefix.encode() + LARGE, *small[150:]]

    async def send(group: Group, neighbour: Group) -> None:
        await group.send_many(messages(group.me.name))
        await group.send_many(messages("uniform"), guarantee="uniform")
        await group.send_many(messages("you"), to=group.view[neighbour.me.name])

    neighbours = (*groups[1:], groups[0])
    sending = [asyncio.create_task(send(*pair)) for pair in zip(groups, neighbours, strict=True)]
    count = len(messages(""))
    each = count * (2 * len(groups) + 1)
    reading = [asyncio.create_task(read(group, each)) for group in groups]
    found = await asyncio.gather(*reading)
    await asyncio.gather(*sending)
    for at, (group, taken) in enumerate(zip(groups, found, strict=True)):
        for sender in groups:
            expected = [messages(sender.me.name), messages("uniform")]
            if sender is groups[at - 1]:
                expected.append(messages("you"))
            theirs = [payload for name, payload in taken if name == sender.me.name]
            assert sorted(theirs) == sorted(chain(*expected)), group.me


def transport_of(group: Group) -> dict[str, Any]:
    stats = group.stats()["transport"]
    assert isinstance(stats, dict)
    return stats
