"""One socket: what the kernel tells about datagrams, and where none is sent."""

from __future__ import annotations

import asyncio
import select
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ringcast import Address
from ringcast.aio import udp
from ringcast.aio.udp import UdpSocket
from ringcast.bench.cluster import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 20.0


@pytest.fixture
def sock() -> Iterator[UdpSocket]:
    with closing(UdpSocket(Address("127.0.0.1", 0))) as sock:
        yield sock


def nobody() -> Address:
    return Address("127.0.0.1", free_ports(1)[0])


def test_a_refused_port_is_told(sock: UdpSocket) -> None:
    gone = nobody()
    sock.send(b"anybody?", gone)
    assert list(sock.drain(16)) == []
    assert sock.hints == {gone}
    assert list(sock.refused) == [gone]


def test_who_is_there_gets_what_follows_a_refusal(sock: UdpSocket) -> None:
    with closing(UdpSocket(Address("127.0.0.1", 0))) as other:
        for number in range(5):
            sock.send(b"anybody?", nobody())
            sock.send(b"%d" % number, other.address)
        assert [bytes(datagram) for datagram in other.drain(16)] == [b"0", b"1", b"2", b"3", b"4"]
    assert (sock.sent, sock.dropped) == (10, 0)


def test_a_datagram_that_is_too_long_says_nothing_about_who_is_there(sock: UdpSocket) -> None:
    with closing(UdpSocket(Address("127.0.0.1", 0))) as other:
        sock.send(bytes(70_000), other.address)
        assert list(sock.drain(16)) == []
    assert sock.dropped == 1
    assert sock.hints == set()


@pytest.mark.parametrize("host", ["192.0.2.1", "example.invalid", "localhost", "::1", "127.1", ""])
def test_nothing_leaves_the_machine_and_no_name_is_looked_up(sock: UdpSocket, host: str) -> None:
    sock.send(b"x", Address(host, 7800))
    assert (sock.sent, sock.dropped) == (0, 1)


def test_addresses_that_were_seen_are_bounded(
    sock: UdpSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "ADMITTED_MAX", 3)
    for port in range(1, 11):
        sock.send(b"x", Address("127.0.0.1", port))
    assert sock.sent == 10
    assert len(sock._admitted) <= 3


class LooksAwayFromErrors(asyncio.SelectorEventLoop):
    """As libuv does, and so uvloop: a socket that has an error to tell is not looked at again."""

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        def look() -> None:
            poll = select.poll()
            poll.register(fd, 0)
            if poll.poll(0):  # errors are told though nobody asks for them
                self.remove_reader(fd)
            callback(*args)

        super().add_reader(fd, look)


def test_a_refusal_does_not_end_reading(sock: UdpSocket) -> None:
    received: list[bytes] = []

    def on_input() -> None:
        received.extend(map(bytes, sock.drain(16)))

    async def main() -> None:
        sock.start(asyncio.get_running_loop(), on_input)
        with closing(UdpSocket(Address("127.0.0.1", 0))) as other:
            for number in range(3):
                sock.send(b"anybody?", nobody())
                while len(sock.hints) <= number:
                    await asyncio.sleep(0)
                other.send(b"%d" % number, sock.address)
                while len(received) <= number:
                    await asyncio.sleep(0)
        sock.stop()

    with asyncio.Runner(loop_factory=LooksAwayFromErrors) as runner:
        runner.run(asyncio.wait_for(main(), DEADLINE_S))
    assert received == [b"0", b"1", b"2"]
