"""Bursts through real sockets: in one call where the system can, and else one by one."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from namespace import in_own_network, open_tunnel, set_mtu

from ringcast import Address, Member, View
from ringcast.aio import offload
from ringcast.aio.multicast_socket import MulticastSocket, group_address
from ringcast.aio.offload import mtu_of
from ringcast.aio.udp import UdpSocket
from ringcast.model import ViewId
from support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPBACK = Address("127.0.0.1", 0)
BURST = [bytes([number]) * 1000 for number in range(30)] + [b"shorter"]


def has_segmentation() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return offload._has_option(sock, offload._UDP_SEGMENT)


linux_only = pytest.mark.skipif(not has_segmentation(), reason="the system has no UDP_SEGMENT")


def pair(stack: ExitStack) -> tuple[UdpSocket, UdpSocket]:
    a, b = (stack.enter_context(closing(UdpSocket(LOOPBACK))) for _ in range(2))
    return a, b


def view_of(*addresses: Address) -> View:
    members = tuple(Member(address, 1, "") for address in addresses)
    return View(ViewId(members[0], 1), members)


def arrived(sock: UdpSocket, count: int) -> list[list[bytes]]:
    """The bursts that so many datagrams come in."""
    sockets = [sock._socket, *([sock._listener] if isinstance(sock, MulticastSocket) else [])]
    bursts: list[list[bytes]] = []
    while sum(map(len, bursts)) < count:
        ready, _, _ = select.select(sockets, [], [], 10.0)
        assert ready, "nothing came"
        bursts += [[bytes(one) for one in burst] for burst in sock.drain(16)]
    return bursts


def flat(bursts: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [datagram for burst in bursts for datagram in burst]


@linux_only
def test_a_burst_leaves_in_one_call_and_comes_in_one() -> None:
    with ExitStack() as stack:
        a, b = pair(stack)
        b.offload.join()
        a.send_burst(BURST, b.address)
        assert arrived(b, len(BURST)) == [BURST]
        assert (a.sent, a.dropped, a.offload.segmented) == (31, 0, 31)
        assert (b.received, b.offload.joined) == (31, 31)
        assert a.stats()["offload"] == "segments"
        assert b.stats()["offload"] == "segments and joins"
        assert b.stats()["received_in_bursts"] == 31


@linux_only
def test_who_does_not_join_gets_them_one_by_one() -> None:
    with ExitStack() as stack:
        a, b = pair(stack)
        a.send_burst(BURST, b.address)
        assert flat(arrived(b, len(BURST))) == BURST
        assert b.offload.joined == 0


@linux_only
def test_a_burst_to_the_group_comes_in_one() -> None:
    group = group_address("bursts")
    with ExitStack() as stack:
        a, b = (stack.enter_context(closing(MulticastSocket(LOOPBACK, group))) for _ in range(2))
        b.offload.join()
        assert [*b.drain(16)] == []
        a.send_burst(BURST, group)
        assert arrived(b, len(BURST)) == [BURST]
        assert b.stats()["received_in_bursts"] == 31
        a.offload.join()
        assert flat([*map(list, a.drain(16))]) == []


def test_where_the_system_cannot_they_leave_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_UDP_SEGMENT", 9999)
    monkeypatch.setattr(offload, "_UDP_GRO", 9999)
    with ExitStack() as stack:
        a, b = pair(stack)
        b.offload.join()
        a.send_burst(BURST, b.address)
        assert flat(arrived(b, len(BURST))) == BURST
        assert (a.sent, a.dropped, a.offload.segmented) == (31, 0, 0)
        assert a.stats()["offload"] == b.stats()["offload"] == "none"


@linux_only
def test_what_the_interface_cannot_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        a, b = pair(stack)
        assert a.offload.can_segment
        monkeypatch.setattr(offload, "_UDP_SEGMENT", 9999)  # the same error as from such a one
        a.send_burst(BURST, b.address)
        assert not a.offload.can_segment
        assert flat(arrived(b, len(BURST))) == BURST
        assert (a.sent, a.dropped) == (31, 0)
        a.enter_view(view_of(a.address, b.address))
        a._narrow_down("127.0.0.1", 1500)
        (reason,) = a.explain({}, 0)
        assert "datagrams of 1472 bytes leave one by one" in reason
        a.send_burst(BURST, b.address)
        assert flat(arrived(b, len(BURST))) == BURST


@linux_only
def test_where_nothing_gets_to_says_nothing_about_bursts() -> None:
    with ExitStack() as stack:
        a, b = pair(stack)
        a.send_burst(BURST, Address("127.0.0.1", 0))  # the same error as if the system cannot
        assert (a.sent, a.dropped) == (0, 31)
        assert a.offload.can_segment
        a.send_burst(BURST, b.address)
        assert (a.sent, a.offload.segmented) == (31, 31)


@linux_only
def test_a_refusal_told_in_place_of_a_burst_costs_nothing() -> None:
    with ExitStack() as stack:
        a, b = pair(stack)
        gone = Address("127.0.0.1", free_ports(1)[0])
        for _ in range(3):
            a.send(b"anybody?", gone)
            a.send_burst(BURST, b.address)
            assert flat(arrived(b, len(BURST))) == BURST
        assert (a.sent, a.dropped) == (3 + 3 * 31, 0)
        assert a.hints == {gone}


@linux_only
def test_an_error_behind_a_burst_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket with an error that nobody reads would wake its loop for ever."""
    with ExitStack() as stack:
        a, b = pair(stack)
        gone = Address("127.0.0.1", free_ports(1)[0])
        a.send_burst(BURST[:2], b.address)
        receive, calls = b.offload._receive, 0

        def refused_behind(view: memoryview) -> tuple[list[memoryview], object]:
            nonlocal calls
            calls += 1
            if calls == 2:
                b.send(b"anybody?", gone)
            return receive(view)

        monkeypatch.setattr(type(b.offload), "_receive", lambda _, view: refused_behind(view))
        assert flat(arrived(b, 2)) == BURST[:2]
        assert b.hints == {gone}


@linux_only
@in_own_network
def test_a_burst_that_is_too_long_for_its_path_goes_in_fragments_and_once() -> None:
    set_mtu(576)
    with ExitStack() as stack:
        a, b = pair(stack)
        a.enter_view(view_of(a.address, b.address))
        a.send_burst(BURST, b.address)
        assert flat(arrived(b, len(BURST))) == BURST
        assert (a.sent, a.dropped, a.fragmented) == (31, 0, 30)
        assert a.datagram_bytes == 548
        assert a.offload.can_segment
        a.send_burst([bytes(500)] * 9, b.address)
        assert len(flat(arrived(b, 9))) == 9
        assert (a.sent, a.fragmented, a.offload.segmented) == (40, 30, 9)


@linux_only
@in_own_network
def test_datagrams_to_other_machines_begin_with_what_the_interface_takes() -> None:
    open_tunnel("10.1.0.1")
    here, there = Address("10.1.0.1", 7800), Address("10.1.0.2", 7800)
    assert (mtu_of("10.1.0.1"), mtu_of("127.0.0.1"), mtu_of("10.1.0.9")) == (1500, 65536, None)
    with closing(UdpSocket(here, insecure=True)) as sock:
        assert sock.stats()["offload"] == "segments and joins"
        for others, size in (([here], 65_507), ([here, there], 1472), ([here], 65_507)):
            sock.enter_view(view_of(*others))
            assert sock.datagram_bytes == size
