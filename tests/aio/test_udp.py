"""One socket: what the kernel tells about datagrams, and where none is sent."""

from __future__ import annotations

import asyncio
import select
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ringcast
from ringcast import Address, GroupConfig, Member, View
from ringcast.aio import udp
from ringcast.aio.sources import ListSource
from ringcast.aio.udp import UdpSocket
from ringcast.model import ViewId
from ringcast.window.send import SendWindow
from support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast.config import TransportName

DEADLINE_S = 20.0


@pytest.fixture
def sock() -> Iterator[UdpSocket]:
    with closing(UdpSocket(Address("127.0.0.1", 0))) as sock:
        yield sock


def nobody() -> Address:
    return Address("127.0.0.1", free_ports(1)[0])


def members(count: int) -> View:
    found = tuple(Member(Address("127.0.0.1", 7000 + n), n + 1, f"m{n}") for n in range(count))
    return View(ViewId(found[0], 1), found)


@pytest.mark.parametrize(("count", "room"), [(2, 6), (4, 6), (7, 6), (8, 7), (16, 15)])
def test_datagrams_of_all_members_fit_a_small_buffer(count: int, room: int) -> None:
    """By what loopback itself takes of it, not by what we believe."""
    with (
        closing(UdpSocket(Address("127.0.0.1", 0), buffer_bytes=212_992)) as receiver,
        closing(UdpSocket(Address("127.0.0.1", 0), buffer_bytes=212_992)) as sender,
    ):
        assert receiver.receive_buffer == 212_992
        sender.enter_view(members(count))
        for _ in range(room):
            sender.send(bytes(sender.datagram_bytes), receiver.address)
        assert sum(map(len, receiver.drain(200))) == room
        sender.enter_view(members(2))
        assert sender.datagram_bytes == 54_612


@pytest.mark.parametrize("size", [1, 9000, 16_384, 20_000, 35_000, 54_612])
def test_what_a_sender_may_have_out_fits_a_small_buffer(size: int) -> None:
    with (
        closing(UdpSocket(Address("127.0.0.1", 0), buffer_bytes=212_992)) as receiver,
        closing(UdpSocket(Address("127.0.0.1", 0))) as sender,
    ):
        window = SendWindow(4096, max_bytes=receiver.receive_buffer, datagram_bytes=54_612)
        window.bulk_bytes = receiver.bulk_bytes
        while window.append_run([bytes(size)]):
            sender.send(bytes(size), receiver.address)
        assert sum(map(len, receiver.drain(4096))) == window.high


def test_beyond_loopback_every_byte_counts() -> None:
    with closing(UdpSocket(Address("0.0.0.0", 0), insecure=True)) as sock:
        assert sock.bulk_bytes is None


@pytest.mark.parametrize("kind", ["udp", "multicast"])
def test_join_says_what_the_kernel_did_not_grant(
    kind: TransportName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(udp, "_SO_RCVBUFFORCE", 9999)  # as for who is not root
    wanted = 1 << 30
    config = GroupConfig(group=f"short-{kind}", transport=kind, receive_buffer_bytes=wanted)

    async def main() -> list[str]:
        async with ringcast.join(config=config, discovery=ListSource([])) as group:
            return group.explain()

    with caplog.at_level("INFO", logger="ringcast"):
        said = asyncio.run(main())
    (reason,) = said
    granted = Path("/proc/sys/net/core/rmem_max").read_text().strip()
    assert f"a receive buffer of {granted} bytes, and {wanted} were asked for" in reason
    assert f"sysctl -w net.core.rmem_max={wanted}" in reason
    (record,) = [record for record in caplog.records if "rmem_max" in record.getMessage()]
    assert record.levelname == "INFO"
    assert reason in record.getMessage()


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_nothing_is_said_where_all_was_granted(
    kind: TransportName, caplog: pytest.LogCaptureFixture
) -> None:
    config = GroupConfig(group=f"enough-{kind}", transport=kind, receive_buffer_bytes=1 << 16)

    async def main() -> list[str]:
        async with ringcast.join(config=config, discovery=ListSource([])) as group:
            return group.explain()

    with caplog.at_level("INFO", logger="ringcast"):
        assert asyncio.run(main()) == []
    assert "rmem_max" not in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1"])
def test_a_refused_port_is_told(host: str) -> None:
    gone = nobody()._replace(host=host)
    try:
        opened = UdpSocket(Address(host, 0))
    except ringcast.UsageError:
        pytest.skip(f"no {host} here")
    with closing(opened) as sock:
        sock.send(b"anybody?", gone)
        assert list(sock.drain(16)) == []
        assert sock.hints == {gone}
        assert list(sock.refused) == [gone]
        (reason,) = sock.explain({gone: "B"}, sock.refused[gone] + 10**9)
    assert reason == f"nobody listens at {gone}: told so 1.0 s ago"


def test_who_is_there_gets_what_follows_a_refusal(sock: UdpSocket) -> None:
    with closing(UdpSocket(Address("127.0.0.1", 0))) as other:
        for number in range(5):
            sock.send(b"anybody?", nobody())
            sock.send(b"%d" % number, other.address)
        assert [bytes(one) for burst in other.drain(16) for one in burst] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]
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
        assert list(sock.drain(16)) == []
        assert {*sock.refused, *sock.hints} <= sock._admitted
    assert sock.sent == 10
    assert 1 <= len(sock.refused) <= len(sock._admitted) <= 3


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
        received.extend(bytes(one) for burst in sock.drain(16) for one in burst)

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
