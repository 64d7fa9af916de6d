"""A mesh of connections: against itself, and against raw sockets that behave as ours never do."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_groups import DEADLINE_S, until

from ringcast import Address, Member, UsageError, View, ViewId
from ringcast.aio import acceptor, connector, peers, tcp
from ringcast.aio.framing import head_of
from ringcast.aio.loop import run
from ringcast.aio.peers import QUEUE_BYTES, Link, Peer, trouble_of
from ringcast.aio.tcp import TcpMesh

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ringcast.aio.handshake import Handshake

HEAD_BYTES = 8
HERE = Address("127.0.0.1", 7800)
A_WHILE = 200
"""Turns of the loop in which what can happen without further input has happened."""


class Mesh(TcpMesh):
    """One that keeps what has arrived, and what it was told."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, handshake: Handshake | None = None
    ) -> None:
        super().__init__(Address(host, port), handshake=handshake)
        self.got: list[bytes] = []
        self.told: list[Address] = []
        self.start(asyncio.get_running_loop(), self._on_any_input)

    def _on_any_input(self) -> None:
        self.got += [bytes(one) for burst in self.drain(16) for one in burst]
        self.told += self.hints
        self.hints.clear()

    def peer(self, address: Address) -> dict[str, Any]:
        peers: Any = self.stats()["peers"]
        found: dict[str, Any] = peers[str(address)]
        return found

    @property
    def connections(self) -> int:
        return len(self.links)


class Raw:
    """A listener, and what connects to it, without any protocol."""

    def __init__(self, stack: ExitStack, host: str = "127.0.0.1") -> None:
        self._stack = stack
        self.listener = stack.enter_context(socket.create_server((host, 0)))
        self.listener.setblocking(False)
        self.address = Address(*self.listener.getsockname())

    async def accept(self) -> socket.socket:
        sock, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        return self._stack.enter_context(sock)

    async def connect(self, mesh: TcpMesh, hello: bytes = b"") -> socket.socket:
        sock = self._stack.enter_context(socket.socket())
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, mesh.address)
        await loop.sock_sendall(sock, hello)
        return sock


def framed(*datagrams: bytes) -> bytes:
    return b"".join(head_of(datagram) + datagram for datagram in datagrams)


def hello(
    address: Address,
    number: int = 1,
    *,
    magic: bytes = b"mesh",
    version: int = 1,
    host: bytes = b"",
) -> bytes:
    fields = struct.pack("<4sBIH", magic, version, number, address.port)
    return framed(fields + (host or address.host.encode()))


async def read_frame(sock: socket.socket) -> bytes:
    """The next whole frame; nothing if the connection has ended."""
    head = await read_bytes(sock, HEAD_BYTES)
    if not head:
        return b""
    return await read_bytes(sock, int.from_bytes(head[2:4], "little"))


async def read_bytes(sock: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < count:
        chunk = await loop.sock_recv(sock, count - len(found))
        if not chunk:
            assert not found  # nothing is cut
            return b""
        found += chunk
    return found


async def read_hello(sock: socket.socket) -> tuple[int, Address]:
    body = await read_frame(sock)
    magic, version, number, port = struct.unpack_from("<4sBIH", body)
    assert (magic, version) == (b"mesh", 1)
    return number, Address(body[11:].decode(), port)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def turns(count: int = A_WHILE) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def with_stack(test: Callable[[ExitStack], Awaitable[None]]) -> None:
    async def main() -> None:
        with ExitStack() as stack:
            await asyncio.wait_for(test(stack), DEADLINE_S)

    run(main())


def meshes(stack: ExitStack, count: int) -> list[Mesh]:
    found = [stack.enter_context(closing(Mesh())) for _ in range(count)]
    return sorted(found, key=lambda mesh: mesh.address)


def nobody() -> Address:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Address(*sock.getsockname())


# One connection for each pair


def test_both_use_the_connection_that_one_has_opened() -> None:
    async def test(stack: ExitStack) -> None:
        a, b = meshes(stack, 2)
        b.send(b"from b", a.address)
        await until(lambda: a.got == [b"from b"])
        a.send(b"from a", b.address)
        await until(lambda: b.got == [b"from a"])
        assert (a.connections, b.connections) == (1, 1)
        assert (a.sent, a.received, a.dropped) == (b.sent, b.received, b.dropped) == (1, 1, 0)
        assert a.stats()["strangers"] == 0

    with_stack(test)


def test_datagrams_of_all_sizes_come_whole_and_in_order() -> None:
    async def test(stack: ExitStack) -> None:
        a, b = meshes(stack, 2)
        sent = [os.urandom(size) for size in (1, 2, 1000, 65_507, 7, 65_507, 60_000) * 40]
        for datagram in sent:
            a.send(datagram, b.address)
        await until(lambda: len(b.got) == len(sent))
        assert b.got == sent
        assert (a.sent, a.dropped) == (len(sent), 0)
        for wrong in (b"", bytes(65_508)):
            a.send(wrong, b.address)
        a.send(b"the end", b.address)
        await until(lambda: b.got[-1] == b"the end")
        assert (a.dropped, b.received, b.malformed) == (2, len(sent) + 1, 0)

    with_stack(test)


def test_six_sent_to_all_have_fifteen_connections() -> None:
    async def test(stack: ExitStack) -> None:
        everybody = meshes(stack, 6)
        for mesh in everybody:
            for other in everybody:
                mesh.send(str(mesh.address).encode(), other.address)
        for mesh in everybody:
            expected = sorted(str(o.address).encode() for o in everybody if o is not mesh)
            await until(lambda mesh=mesh, expected=expected: sorted(mesh.got) == expected)
        await until(lambda: all(mesh.connections == 5 for mesh in everybody))
        await turns()
        assert sum(mesh.connections for mesh in everybody) == 2 * 15
        assert [mesh.dropped for mesh in everybody] == [0] * 6

    with_stack(test)


@pytest.mark.parametrize("count", [1, 100])
def test_of_two_opened_at_once_that_of_the_lower_address_stays(count: int) -> None:
    """With many, sockets are full at that moment, and datagrams are begun on both."""

    async def test(stack: ExitStack) -> None:
        a, b = meshes(stack, 2)
        from_a = [b"a%05d" % number + bytes(59_000) for number in range(count)]
        from_b = [b"b%05d" % number + bytes(59_000) for number in range(count)]
        for own, others in zip(from_a, from_b, strict=True):
            a.send(own, b.address)
            b.send(others, a.address)
        await until(lambda: len(a.got) == len(b.got) == count)
        await until(lambda: a.connections == b.connections == 1)
        await turns()
        assert sorted(a.got) == from_b  # once, each of them
        assert sorted(b.got) == from_a
        assert [link.is_ours for link in a.links] == [True]
        assert [link.is_ours for link in b.links] == [False]
        assert (a.dropped, b.dropped) == (0, 0)
        assert a.peer(b.address)["reconnects"] == b.peer(a.address)["reconnects"] == 0
        a.send(b"on", b.address)
        b.send(b"on", a.address)
        await until(lambda: a.got[-1] == b.got[-1] == b"on")

    with_stack(test)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "turn", "cut a", "cut b"]), max_size=40))
def test_whatever_happens_nothing_comes_twice_and_one_connection_stays(script: list[str]) -> None:
    async def test(stack: ExitStack) -> None:
        a, b = meshes(stack, 2)
        sent: dict[str, list[bytes]] = {"a": [], "b": []}
        for number, step in enumerate(script):
            match step:
                case "turn":
                    await asyncio.sleep(0)
                case "a" | "b":
                    mesh, other = (a, b) if step == "a" else (b, a)
                    sent[step].append(b"%d" % number)
                    mesh.send(sent[step][-1], other.address)
                case _:
                    mesh = a if step == "cut a" else b
                    for link in list(mesh.links)[:1]:
                        mesh._on_end(link, "cut by a test")
        while b"the end of a" not in b.got or b"the end of b" not in a.got:
            a.send(b"the end of a", b.address)
            b.send(b"the end of b", a.address)
            await turns(20)
        await until(lambda: a.connections == b.connections == 1)
        for mesh, datagrams in ((a, sent["b"]), (b, sent["a"])):
            got = [datagram for datagram in mesh.got if not datagram.startswith(b"the end")]
            assert len(set(got)) == len(got)
            assert set(got) <= set(datagrams)
            if not any(step.startswith("cut") for step in script):
                assert sorted(got) == sorted(datagrams)

    with_stack(test)


def test_a_later_round_wins_whoever_opened_it() -> None:
    """One end has noticed that the connection is dead, the other has not."""

    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        mesh.send(b"one", raw.address)
        first = await raw.accept()
        assert await read_hello(first) == (1, mesh.address)
        assert await read_frame(first) == b"one"
        second = await raw.connect(mesh, hello(raw.address, 2) + framed(b"here again"))
        await until(lambda: mesh.got == [b"here again"])
        mesh.send(b"two", raw.address)
        assert await read_frame(second) == b"two"
        assert await read_frame(first) == b""  # ended by who had opened it
        first.close()
        await until(lambda: mesh.connections == 1)
        reset(second)
        third = await raw.accept()  # at once, with nothing to send
        assert await read_hello(third) == (3, mesh.address)
        assert mesh.peer(raw.address)["reconnects"] == 1

    with_stack(test)


def test_an_earlier_round_is_read_and_not_written_to() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        older = await raw.connect(mesh, hello(raw.address, 3))
        newer = await raw.connect(mesh, hello(raw.address, 4))
        oldest = await raw.connect(mesh, hello(raw.address, 2))
        for sock in (older, newer, oldest):
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"heard"))
        await until(lambda: mesh.got == [b"heard"] * 3)
        mesh.send(b"to the newest", raw.address)
        assert await read_frame(newer) == b"to the newest"
        newer.close()
        await until(lambda: mesh.connections == 2)
        mesh.send(b"to the next", raw.address)
        assert await read_frame(older) == b"to the next"
        assert mesh.dropped == 0

    with_stack(test)


def test_connections_of_one_peer_are_bounded() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        socks = [await raw.connect(mesh, hello(raw.address, 10 - at)) for at in range(8)]
        await until(lambda: mesh.turned_away == 4)
        assert mesh.connections == tcp.LINKS_MAX == 4
        for sock in socks[4:]:
            assert await read_frame(sock) == b""
        mesh.send(b"still here", raw.address)
        assert await read_frame(socks[0]) == b"still here"

    with_stack(test)


# What comes


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
)
def test_a_stream_may_come_in_any_pieces(datagrams: list[bytes], pieces: list[int]) -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        sock = await raw.connect(mesh)
        stream = hello(raw.address) + framed(*datagrams)
        at = turn = 0
        while at < len(stream):
            size = pieces[turn % len(pieces)]
            await asyncio.get_running_loop().sock_sendall(sock, stream[at : at + size])
            await turns(3)
            at, turn = at + size, turn + 1
        await until(lambda: mesh.got == datagrams and mesh.stats()["strangers"] == 0)
        assert (mesh.received, mesh.malformed) == (len(datagrams), 0)

    with_stack(test)


def test_a_large_datagram_may_come_byte_by_byte_at_its_ends() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        sock = await raw.connect(mesh)
        datagram = os.urandom(65_507)
        stream = hello(raw.address) + framed(datagram, b"next")
        loop = asyncio.get_running_loop()
        for at in range(100):
            await loop.sock_sendall(sock, stream[at : at + 1])
            await turns(2)
        await loop.sock_sendall(sock, stream[100:-100])
        for at in range(len(stream) - 100, len(stream)):
            await loop.sock_sendall(sock, stream[at : at + 1])
            await turns(2)
        await until(lambda: mesh.got == [datagram, b"next"])

    with_stack(test)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(HEAD_BYTES),
        b"\xc3\xa5\x00\x00" + bytes(4),
        b"\xc3\xa5\xff\xff" + bytes(4),
        b"\xc3\xa5\x39\x00" + bytes(4),  # a byte more than any hello has
        hello(HERE, magic=b"mess"),
        hello(HERE, version=2),
        hello(HERE, 0),
        hello(HERE, 2**31),
        hello(Address("127.0.0.1", 0)),
        hello(Address("192.0.2.1", 7800)),
        hello(Address("localhost", 7800)),
        hello(Address("::1", 7800)),
        hello(HERE, host=b"127.0.0.\xff"),
        hello(HERE, host=b"127.0.0.1\n"),
        framed(b"mesh\x01\x01\x00\x00\x00\x78\x1e"),  # no host
        framed(b"mesh"),
        framed(b"what a datagram may be"),
        hello(HERE)[:-1] + b"2",  # not what the checksum says
    ],
)
def test_who_does_not_say_who_it_is_is_not_listened_to(first: bytes) -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        sock = await raw.connect(mesh, first + framed(b"ignored"))
        with_reset = False
        try:
            assert await read_frame(sock) == b""
        except ConnectionResetError:
            with_reset = True  # it was closed with something unread
        assert (mesh.malformed, mesh.connections, mesh.got) == (1, 0, []), with_reset
        await raw.connect(mesh, hello(raw.address) + framed(b"welcome"))
        await until(lambda: mesh.got == [b"welcome"])

    with_stack(test)


def test_nobody_is_oneself() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        await Raw(stack).connect(mesh, hello(mesh.address))
        await until(lambda: mesh.malformed == 1)
        mesh.send(b"to myself", mesh.address)
        assert (mesh.sent, mesh.dropped, mesh.connections) == (0, 0, 0)

    with_stack(test)


@pytest.mark.parametrize(
    "garbage",
    [
        framed(b"flipped")[:-1] + b"D",
        framed(b"tag").replace(b"\xc3\xa5", b"\xc3\xa4"),
        b"\xc3\xa5\xe4\xff" + bytes(4),  # a byte more than any datagram has
        framed(b"cut out of the middle")[4:] + framed(b"never"),
    ],
)
def test_what_came_before_the_garbage_counts(garbage: bytes) -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        await raw.connect(mesh, hello(raw.address) + framed(b"good", b"too") + garbage)
        await until(lambda: mesh.malformed == 1)
        assert mesh.got == [b"good", b"too"]
        again = await raw.accept()  # it had a connection, and wants one
        assert await read_hello(again) == (2, mesh.address)

    with_stack(test)


def test_strangers_are_few_and_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        monkeypatch.setattr(acceptor, "STRANGERS_MAX", 3)
        silent = [await raw.connect(mesh) for _ in range(5)]
        for sock in silent[:2]:
            assert await read_frame(sock) == b""
        assert (mesh.turned_away, mesh.connections) == (2, 3)
        known = await raw.connect(mesh, hello(raw.address) + framed(b"I am known"))
        await until(lambda: mesh.got == [b"I am known"])
        assert await read_frame(silent[2]) == b""
        monkeypatch.setattr(connector, "PATIENCE_S", 0.01)
        slow = await raw.connect(mesh, hello(raw.address)[:10])
        assert await read_frame(slow) == b""
        mesh.send(b"you stay", raw.address)
        assert await read_frame(known) == b"you stay"

    with_stack(test)


# What goes


@pytest.mark.parametrize(("count", "size"), [(500, 60_000), (8_000, 4_000)])
def test_a_peer_that_does_not_read_holds_nobody_up(count: int, size: int) -> None:
    async def test(stack: ExitStack) -> None:
        mesh, other = meshes(stack, 2)
        raw = Raw(stack)
        datagrams = [b"%06d" % number + bytes(size - 6) for number in range(count)]
        for datagram in datagrams:  # in one turn of the loop
            mesh.send(datagram, raw.address)
        peer = mesh.peer(raw.address)
        assert 0 < peer["queued_bytes"] <= QUEUE_BYTES
        assert peer["dropped"] == mesh.dropped > 0
        (reason,) = mesh.explain({raw.address: "B"}, time.monotonic_ns())
        assert reason == f"{peer['queued']} datagrams wait for B: its connection takes no more"
        mesh.send(b"meanwhile", other.address)
        await until(lambda: other.got == [b"meanwhile"])
        sock = await raw.accept()
        await read_hello(sock)
        for datagram in datagrams[: len(datagrams) - mesh.dropped]:  # the first so many
            assert await read_frame(sock) == datagram
        mesh.send(b"there is room again", raw.address)
        assert await read_frame(sock) == b"there is room again"
        assert mesh.explain({raw.address: "B"}, time.monotonic_ns()) == []
        assert mesh.peer(raw.address)["queued_bytes"] == 0

    with_stack(test)


@pytest.mark.parametrize("size", [60_000, 4_000])
def test_what_was_begun_is_finished_first_though_there_is_room_by_now(size: int) -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        mesh.send(b"first", raw.address)
        (link,) = mesh.links
        sock = await raw.accept()
        datagrams = [b"first"]
        stream = b""
        while link.rest is None:
            if mesh.peer(raw.address)["queued"]:  # full between two datagrams: once more
                stream += await asyncio.get_running_loop().sock_recv(sock, 1 << 20)
                continue
            datagrams.append(os.urandom(size))
            mesh.send(datagrams[-1], raw.address)
        with suppress(BlockingIOError):
            while True:
                stream += sock.recv(1 << 20)
        datagrams.append(b"last")
        mesh.send(b"last", raw.address)
        (number,) = {link.rank[0] for link in mesh.links}
        expected = hello(mesh.address, number) + framed(*datagrams)
        while len(stream) < len(expected):
            stream += await asyncio.get_running_loop().sock_recv(sock, 1 << 20)
        assert stream == expected

    with_stack(test)


class Full:
    """A socket that takes nothing when it is first asked to."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.refused = 0

    def send(self, data: bytes) -> int:
        if not self.refused:
            self.refused = 1
            raise BlockingIOError
        return self._sock.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def test_a_short_datagram_that_finds_no_room_at_all_waits() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        mesh.send(b"first", raw.address)
        sock = await raw.accept()
        await read_hello(sock)
        (link,) = mesh.links
        link.sock = full = Full(link.sock)  # type: ignore[assignment]
        mesh.send(b"second", raw.address)
        assert (full.refused, mesh.peer(raw.address)["queued"]) == (1, 1)
        mesh.send(b"third", raw.address)
        assert [await read_frame(sock) for _ in range(3)] == [b"first", b"second", b"third"]
        assert mesh.dropped == 0

    with_stack(test)


def test_what_waits_is_a_copy() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raws = [Raw(stack) for _ in range(2)]
        for raw in raws:
            mesh.send(b"first", raw.address)
        socks = [await raw.accept() for raw in raws]
        for link in mesh.links:
            link.sock = Full(link.sock)  # type: ignore[assignment]
        space = bytearray(3)
        for word in (b"one", b"two"):
            space[:] = word
            datagram = memoryview(space)  # as of a seal, which uses its memory again
            for raw in raws:
                mesh.send(datagram, raw.address)
        space[:] = bytes(3)
        for sock in socks:
            await read_hello(sock)
            assert [await read_frame(sock) for _ in range(3)] == [b"first", b"one", b"two"]

    with_stack(test)


def test_what_was_not_begun_goes_on_the_next_connection() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        datagrams = [b"%06d" % number + bytes(59_994) for number in range(160)]
        for datagram in datagrams:
            mesh.send(datagram, raw.address)
        begun, waiting = mesh.sent, mesh.peer(raw.address)["queued"]
        is_one_cut = begun + waiting < len(datagrams)
        assert waiting > 0
        sock = await raw.accept()
        reset(sock)
        second = await raw.accept()
        assert await read_hello(second) == (2, mesh.address)
        for datagram in datagrams[len(datagrams) - waiting :]:
            assert await read_frame(second) == datagram
        assert mesh.dropped == is_one_cut
        assert mesh.peer(raw.address)["reconnects"] == 1

    with_stack(test)


@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=40),
    st.lists(st.integers(0, 100), min_size=1),
)
def test_a_socket_may_take_any_part_of_what_is_written(
    datagrams: list[bytes], sizes: list[int]
) -> None:
    peer = Peer(HERE)
    with socket.socket() as sock:
        link = peer.main = Link(sock, is_ours=True)
        for datagram in datagrams:
            assert peer.enqueue((head_of(datagram), datagram))
        stream, count = b"", 0
        while buffers := peer.next_buffers(link):
            taken = b"".join(buffers)[: sizes[len(stream) % len(sizes)] or 1]
            stream += taken
            count += peer.wrote(link, len(taken))
    assert stream == framed(*datagrams)
    assert count == len(datagrams)
    assert (peer.queued_bytes, link.rest) == (0, None)


def test_who_has_hung_up_is_noticed_by_writing_too() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        mesh.send(b"one", raw.address)
        reset(await raw.accept())
        mesh.send(b"two", raw.address)  # before anything could be read
        assert (mesh.sent, mesh.dropped) == (1, 1)
        again = await raw.accept()
        assert await read_hello(again) == (2, mesh.address)

    with_stack(test)


def test_who_does_not_answer_is_waited_for_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its listener has no room for more connections: the system lets us wait."""

    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        raw.listener.listen(0)
        filler = stack.enter_context(socket.create_connection(raw.address))
        mesh.send(b"one", raw.address)
        (reason,) = mesh.explain({raw.address: "B"}, time.monotonic_ns())
        assert reason == "no connection to B yet: no answer for 0.0 s"
        assert mesh.peer(raw.address)["connection"] == "connecting"
        (await raw.accept()).close()
        await until(lambda: mesh.sent == 1)  # when the system tries again
        sock = await raw.accept()
        assert await read_hello(sock) == (1, mesh.address)
        assert await read_frame(sock) == b"one"

        monkeypatch.setattr(connector, "PATIENCE_S", 0.01)
        other = Raw(stack)
        other.listener.listen(0)
        filler = stack.enter_context(socket.create_connection(other.address))
        mesh.send(b"never", other.address)
        await until(lambda: mesh.dropped == 1)
        (reason,) = mesh.explain({other.address: "C"}, time.monotonic_ns())
        assert reason == "no connection to C: no answer, next try with the next datagram"
        assert mesh.told == []
        filler.close()

    with_stack(test)


@pytest.mark.parametrize("number", [1, 2])
def test_who_cannot_be_reached_may_come_by_itself(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With round 2 it is used at once; with round 1, when our own try has failed."""

    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack, "127.0.0.2")  # higher than the mesh's
        raw.listener.listen(0)
        stack.enter_context(socket.create_connection(raw.address))
        monkeypatch.setattr(connector, "PATIENCE_S", 0.1)
        mesh.send(b"one", raw.address)
        assert mesh.peer(raw.address)["connection"] == "connecting"
        monkeypatch.setattr(connector, "PATIENCE_S", 5.0)
        sock = await raw.connect(mesh, hello(raw.address, number))
        assert await read_frame(sock) == b"one"
        assert (mesh.connections, mesh.sent, mesh.dropped) == (1, 1, 0)
        assert mesh.explain({raw.address: "B"}, time.monotonic_ns()) == []

    with_stack(test)


@pytest.mark.parametrize("host", ["192.0.2.1", "example.invalid", "localhost", "::1", "127.1", ""])
def test_nothing_leaves_the_machine_and_no_name_is_looked_up(host: str) -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        mesh.send(b"x", Address(host, 7800))
        assert (mesh.sent, mesh.dropped, mesh.connections) == (0, 1, 0)

    with_stack(test)


def test_where_nobody_listens_is_told_and_tried_again() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        gone = nobody()
        mesh.send(b"anybody?", gone)
        await until(lambda: mesh.told == [gone])
        mesh.send(b"really?", gone)  # the probe that follows is not blocked
        await until(lambda: mesh.told == [gone] * 2)
        mesh.send(b"and now?", gone)
        while not (explained := mesh.explain({gone: "B"}, time.monotonic_ns())):
            await asyncio.sleep(0)
        assert explained[0].startswith("no connection to B: refused, next try ")
        while mesh.peer(gone)["dropped"] < 6:
            mesh.send(b"anybody?", gone)
            await asyncio.sleep(0)
        assert "refused, next try in 0." in mesh.explain({gone: "B"}, time.monotonic_ns())[0]
        assert mesh.stats()["refused"] == [str(gone)]
        assert mesh.explain({}, time.monotonic_ns()) == []
        with closing(Mesh(*gone)) as late:  # and it comes, without further sends
            await until(lambda: late.connections == 1 and mesh.connections == 1)
            mesh.send(b"there you are", gone)
            await until(lambda: late.got == [b"there you are"])
            assert mesh.explain({gone: "B"}, time.monotonic_ns()) == []
            assert mesh.stats()["refused"] == []

    with_stack(test)


def test_tries_become_rare() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        gone = nobody()
        started = time.monotonic()
        while time.monotonic() - started < 0.6:
            mesh.send(b"anybody?", gone)
            await asyncio.sleep(0)
        # Three at once, then after 0.05, 0.1, 0.2 and 0.4 s.
        assert 4 <= len(mesh.told) <= 7

    with_stack(test)


def test_after_a_new_view_nobody_is_kept_waiting() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        gone = nobody()
        for count in range(1, 4):
            mesh.send(b"anybody?", gone)
            await until(lambda count=count: len(mesh.told) >= count)
        mesh.send(b"too early", gone)
        me = Member(mesh.address, 1, "A")
        mesh.enter_view(View(ViewId(me, 1), (me,)))
        assert mesh.explain({gone: "B"}, time.monotonic_ns()) == []
        with closing(Mesh(*gone)) as late:
            mesh.send(b"at once", gone)
            await until(lambda: late.got == [b"at once"])

    with_stack(test)


def test_who_accepts_and_hangs_up_is_not_asked_all_the_time() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        accepted = 0
        started = time.monotonic()
        while time.monotonic() - started < 0.5:
            mesh.send(b"hello?", raw.address)
            await asyncio.sleep(0)
            try:
                sock, _ = raw.listener.accept()
            except BlockingIOError:
                continue
            accepted += 1
            reset(sock)
        assert 3 <= accepted <= 8
        assert mesh.told == []  # somebody does listen

    with_stack(test)


def test_who_comes_back_to_its_port_is_found_there() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        place = Address("127.0.0.1", 0)
        for life in range(3):
            with closing(Mesh(*place)) as other:
                place = other.address
                while not other.got:  # some may be lost to who was there before
                    mesh.send(b"life %d" % life, place)
                    await turns(5)
                assert set(other.got) == {b"life %d" % life}
                other.send(b"answer %d" % life, mesh.address)
                await until(lambda life=life: mesh.got[-1:] == [b"answer %d" % life])
        await until(lambda: mesh.told != [])

    with_stack(test)


def test_our_end_of_a_connection_is_in_nobodys_way() -> None:
    """The system may have chosen for it the port of a member that comes back."""

    async def test(stack: ExitStack) -> None:
        a, b = meshes(stack, 2)
        a.send(b"one", b.address)
        await until(lambda: b.got == [b"one"])
        (link,) = a.links
        late = stack.enter_context(closing(Mesh(*link.sock.getsockname())))
        b.send(b"two", late.address)
        await until(lambda: late.got == [b"two"])
        assert a.connections == 1

    with_stack(test)


def test_a_socket_that_is_connected_with_itself_has_reached_nobody() -> None:
    """The system may choose for our end the very port where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert trouble_of(sock) == "refused"


# Limits of the system


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_without_descriptors_nobody_is_accepted_until_there_are_some() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raw = Raw(stack)
        sock = stack.enter_context(socket.socket())
        with no_descriptors_left():
            sock.connect(mesh.address)
            sock.sendall(hello(raw.address) + framed(b"patience"))
            await until(lambda: mesh._acceptor.exhausted == 1)
            await turns()
            assert mesh._acceptor.exhausted == 1  # it does not try all the time
            mesh.send(b"no socket for this", nobody_at_all)
            assert (mesh._acceptor.exhausted, mesh.dropped) == (2, 1)
        await until(lambda: mesh.got == [b"patience"])
        assert mesh.told == []

    nobody_at_all = nobody()
    with_stack(test)


def test_a_port_in_use_is_said() -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        with pytest.raises(UsageError, match=f"cannot listen on {mesh.address}: Address already"):
            TcpMesh(mesh.address)

    with_stack(test)


def test_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stack: ExitStack) -> None:
        (mesh,) = meshes(stack, 1)
        raws = [Raw(stack) for _ in range(4)]
        monkeypatch.setattr(peers, "PEERS_MAX", 3)
        for _ in range(10):
            mesh.send(b"x", nobody())
            assert len(mesh._peers) <= 3
        for raw in raws[:3]:
            mesh.send(b"x", raw.address)
        assert mesh.connections == len(mesh._peers) == 3
        sock = await raws[3].connect(mesh, hello(raws[3].address))
        assert await read_frame(sock) == b""
        assert (mesh.turned_away, mesh.malformed, mesh.connections) == (1, 0, 3)

    with_stack(test)


def test_a_mesh_that_was_stopped_goes_on_where_it_was() -> None:
    async def test(stack: ExitStack) -> None:
        a, b = meshes(stack, 2)
        a.send(b"one", b.address)
        await until(lambda: b.got == [b"one"])
        b.stop()
        a.send(b"two", b.address)
        b.send(b"still sending", a.address)
        await until(lambda: a.got == [b"still sending"])
        assert b.got == [b"one"]
        b.start(asyncio.get_running_loop(), b._on_any_input)
        await until(lambda: b.got == [b"one", b"two"])

    with_stack(test)


def test_the_other_family_of_addresses() -> None:
    async def test(stack: ExitStack) -> None:
        try:
            a, b = (stack.enter_context(closing(Mesh("::1"))) for _ in range(2))
        except UsageError:
            pytest.skip("no ::1 here")
        a.send(b"six", b.address)
        await until(lambda: b.got == [b"six"])
        b.send(b"six too", a.address)
        await until(lambda: a.got == [b"six too"])
        assert (a.connections, b.connections) == (1, 1)
        a.send(b"x", Address("127.0.0.1", 7800))
        assert a.dropped == 1

    with_stack(test)
