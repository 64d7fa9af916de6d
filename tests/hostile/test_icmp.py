"""Anybody on the network can say what hosts and routers say by ICMP. That does no harm."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import AsyncExitStack, ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from aio.loopback_groups import read, until
from aio.namespace import in_own_network, open_tunnel
from ringcast import MembershipConfig, join
from ringcast.aio.loop import run
from ringcast.aio.multicast_socket import MulticastSocket, group_address
from ringcast.aio.udp import UdpSocket
from ringcast.model import Address, Member, View, ViewId

if TYPE_CHECKING:
    from ringcast import Group

HERE, THERE, LOOPBACK = "10.1.0.1", "10.1.0.2", "127.0.0.1"
KEY = bytes(range(32))
BURST = 500
UNREACHABLE, PORT, TOO_LONG = 3, 3, 4


def unreachable(source: Address, dest: Address, code: int = PORT, mtu: int = 0) -> bytes:
    """Says to `source` that what it sent to `dest` cannot get there: that nobody listens."""
    udp = struct.pack("!HHHH", source.port, dest.port, 60, 0)
    ip = struct.pack(
        *("!BBHHHBBH4s4s", 0x45, 0, 20 + 60, 1, 0, 64, socket.IPPROTO_UDP, 0),
        *(socket.inet_aton(source.host), socket.inet_aton(dest.host)),
    )
    body = ip + udp + bytes(32)
    head = struct.pack("!BBHI", UNREACHABLE, code, 0, mtu)
    return struct.pack("!BBHI", UNREACHABLE, code, checksum(head + body), mtu) + body


def come(tunnel: int, icmp: bytes, teller: str = THERE) -> None:
    """From another machine, or from one that says it is that."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(icmp), 0, 0, 64, socket.IPPROTO_ICMP, 0)
    way = socket.inet_aton(teller) + socket.inet_aton(HERE)
    os.write(tunnel, head[:10] + struct.pack("!H", checksum(head + way)) + way + icmp)


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


@in_own_network
def test_a_port_that_was_never_written_to_is_not_remembered() -> None:
    tunnel = open_tunnel(HERE)
    known = Address(THERE, 7800)
    with closing(UdpSocket(Address(HERE, 0), insecure=True)) as sock:
        for port in range(1, 1 + BURST):
            come(tunnel, unreachable(sock.address, Address(THERE, port)))
        assert list(sock.drain(16)) == []
        assert (sock.refused, sock.hints) == ({}, set())
        sock.send(b"anybody?", known)
        come(tunnel, unreachable(sock.address, known))
        assert list(sock.drain(16)) == []
        assert list(sock.refused) == [known]
        assert sock.hints == {known}


@in_own_network
def test_of_a_port_on_loopback_only_this_machine_is_believed() -> None:
    tunnel = open_tunnel(HERE)
    with closing(UdpSocket(Address(LOOPBACK, 0))) as sock:
        with closing(UdpSocket(Address(LOOPBACK, 0))) as other:
            sock.send(b"anybody?", other.address)
            for teller in (THERE, HERE, LOOPBACK, other.address.host):
                come(tunnel, unreachable(sock.address, other.address), teller)
            assert list(sock.drain(16)) == []
            assert (sock.refused, sock.hints) == ({}, set())
        sock.send(b"anybody?", other.address)
        assert list(sock.drain(16)) == []
        assert sock.hints == {other.address}


@in_own_network
def test_nothing_that_icmp_can_say_ends_sending_in_bursts() -> None:
    tunnel = open_tunnel(HERE)
    there = Address(THERE, 7800)
    with closing(UdpSocket(Address(HERE, 0), insecure=True)) as sock:
        can_segment = sock.offload.can_segment
        for code in range(16):
            come(tunnel, unreachable(sock.address, there, code))
            sock.send_burst([bytes(500)] * 3, there)
        assert sock.offload.can_segment == can_segment
        assert (sock.sent, sock.dropped) == (3 * 16, 0)


def view_of(*addresses: Address) -> View:
    members = tuple(Member(address, 1, "") for address in addresses)
    return View(ViewId(members[0], 1), members)


@in_own_network
def test_a_narrow_path_is_believed_of_members_alone_and_within_bounds() -> None:
    tunnel = open_tunnel(HERE)
    member, known, unknown = (Address(f"10.1.0.{number}", 7800) for number in (2, 3, 4))
    with closing(UdpSocket(Address(HERE, 0), insecure=True)) as sock:
        sock.enter_view(view_of(sock.address, member))
        sock.send(b"hello", known)
        for dest in (unknown, known, sock.address):
            come(tunnel, unreachable(sock.address, dest, TOO_LONG, 68))
            sock.send(bytes(1472), member)
        assert (sock.datagram_bytes, sock.fragmented) == (1472, 0)
        for mtu in (68, 576, 65_535):
            come(tunnel, unreachable(sock.address, member, TOO_LONG, mtu))
            sock.send(bytes(1472), member)
            sock.send_burst([bytes(1252)] * 3, member)
        assert (sock.datagram_bytes, sock.fragmented, sock.dropped) == (1252, 0, 0)


@pytest.mark.parametrize("to_group", [False, True])
@in_own_network
def test_nothing_is_heard_of_narrow_paths_on_loopback(to_group: bool) -> None:
    tunnel = open_tunnel(HERE)
    group = group_address("forged")
    with ExitStack() as stack:
        socks = [MulticastSocket(Address(LOOPBACK, 0), group) for _ in range(2)]
        a, b = (stack.enter_context(closing(sock)) for sock in socks)
        a.enter_view(view_of(a.address, b.address))
        dest, before = group if to_group else b.address, a.datagram_bytes
        for _ in range(3):
            come(tunnel, unreachable(a.address, dest, TOO_LONG, 68))
            assert list(a.drain(16)) == []
            a.send(bytes(before), dest)
        assert [len(one) for burst in b.drain(16) for one in burst] == [before] * 3
        assert (a.datagram_bytes, a.fragmented) == (before, 0)


@pytest.mark.parametrize("host", [HERE, LOOPBACK])
@in_own_network
def test_forged_icmp_excludes_nobody(host: str) -> None:
    tunnel = open_tunnel(HERE)

    async def exchange(groups: list[Group]) -> None:
        views = [group.view for group in groups]
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
            for _ in range(BURST):
                for group in groups:
                    for other in groups:
                        if other is not group:
                            said = unreachable(group.me.address, other.me.address)
                            sock.sendto(said, (HERE, 0))
                            come(tunnel, said)
                await asyncio.sleep(0.002)
        stats: list[Any] = [group.stats()["transport"] for group in groups]
        assert any(each["refused"] for each in stats) == (host == HERE)  # there it was believed
        await groups[0].send(b"all here")
        for group in groups[1:]:
            assert [payload for _, payload in await read(group, 1)] == [b"all here"]
        assert [group.view for group in groups] == views

    async def main() -> None:
        patient = MembershipConfig(verify_s=1.0, suspect_after_s=10.0)
        async with AsyncExitStack() as stack:
            groups: list[Group] = []
            for name in "ABC":
                joining = join(
                    *("test",),
                    name=name,
                    listen=f"{host}:0",
                    members=[str(group.me.address) for group in groups],
                    key=KEY,
                    membership=patient,
                )
                groups.append(await stack.enter_async_context(joining))
            await until(lambda: all(len(group.view) == 3 for group in groups))
            await asyncio.wait_for(exchange(groups), 30)

    run(main())
