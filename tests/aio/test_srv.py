"""SRV records: members that are found by the name of their service, at a real name server."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest
from namespace import in_own_network

import ringcast
from ringcast.aio import sources, srv
from ringcast.aio.sources import look_up
from ringcast.aio.srv import Resolver, read_answer
from ringcast.model import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "_ringcast._udp.orders.example"
NO_SUCH_NAME, REFUSED = 3, 5


def labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def record(port: int, host: bytes, kind: int = 33) -> bytes:
    """One whose owner is the name in the question: a pointer to it, as servers have it."""
    content = struct.pack("!3H", 0, 1, port) + host
    return b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 5, len(content)) + content


class NameServer:
    """Answers over UDP on loopback, until the block ends."""

    def __init__(self, port: int = 0) -> None:
        self.known: dict[str, list[tuple[str, int]]] = {}
        self.asked: list[str] = []
        self.code = NO_SUCH_NAME
        self.first = b""
        """Sent before every answer: what a stranger might say."""
        self._sock = socket.socket(type=socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", port))
        self.address = Address(*self._sock.getsockname())
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as end:
            end.sendto(b"", self.address)
        self._thread.join()
        self._sock.close()

    def _serve(self) -> None:
        while True:
            question, who = self._sock.recvfrom(4096)
            if not question:
                return
            end = question.index(b"\0", 12) + 5
            name, place = [], 12
            while question[place]:
                name.append(question[place + 1 : place + 1 + question[place]].decode())
                place += 1 + question[place]
            asked = ".".join(name)
            self.asked.append(asked)
            found = [record(port, labels(host)) for host, port in self.known.get(asked, [])]
            flags = 0x8180 | (0 if found else self.code)
            head = question[:2] + struct.pack("!5H", flags, 1, len(found), 0, 0)
            if self.first:
                self._sock.sendto(self.first, who)
            self._sock.sendto(head + question[12:end] + b"".join(found), who)


@pytest.fixture
def server() -> Iterator[NameServer]:
    with NameServer() as made:
        yield made


def test_hosts_and_ports_are_found(server: NameServer) -> None:
    server.known[NAME] = [("a.orders.example", 7801), ("b.orders.example", 7802)]
    assert asyncio.run(Resolver([server.address]).services(NAME)) == [
        Address("a.orders.example", 7801),
        Address("b.orders.example", 7802),
    ]


def test_short_names_are_searched_for_as_the_system_says(
    server: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# of a pod\nnameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local\n"
        "options ndots:5 edns0\n"
    )
    monkeypatch.setattr(srv, "RESOLV_CONF", file)
    monkeypatch.setattr(srv, "PORT", server.address.port)
    server.known["_ringcast._udp.orders.svc.cluster.local"] = [("a", 7801)]
    found = asyncio.run(Resolver.of_system().services("_ringcast._udp.orders"))
    assert found == [Address("a", 7801)]
    assert server.asked == [
        "_ringcast._udp.orders.shop.svc.cluster.local",
        "_ringcast._udp.orders.svc.cluster.local",
    ]
    resolver = Resolver.of_system()
    assert resolver.names("a.b.c.d.e.f")[0] == "a.b.c.d.e.f"
    assert resolver.names("whole.") == ["whole."]
    monkeypatch.setattr(srv, "RESOLV_CONF", tmp_path / "none")
    assert Resolver.of_system().servers == [Address("127.0.0.1", server.address.port)]


def test_a_server_that_cannot_say_is_passed_over(server: NameServer) -> None:
    server.code = REFUSED
    with NameServer() as other:
        other.known[NAME] = [("a", 7801)]
        resolver = Resolver([server.address, other.address])
        assert asyncio.run(resolver.services(NAME)) == [Address("a", 7801)]
    assert server.asked == [NAME]


def test_a_name_that_is_not_there_is_asked_for_once(server: NameServer) -> None:
    assert asyncio.run(Resolver([server.address]).services(NAME)) == []
    assert server.asked == [NAME]


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srv, "TRY_S", 0.05)
    with socket.socket(type=socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        resolver = Resolver([Address(*deaf.getsockname())])
        assert asyncio.run(resolver.services(NAME)) == []
    assert asyncio.run(resolver.services(NAME)) == []  # and the port is closed now


def test_what_is_no_answer_is_waited_out(server: NameServer) -> None:
    server.known[NAME] = [("a", 7801)]
    server.first = b"\0" * 40
    assert asyncio.run(Resolver([server.address]).services(NAME)) == [Address("a", 7801)]


@pytest.mark.parametrize("name", ["_x._udp." + "a" * 64, "_x._udp..a", "_x._udp.é", "_a._b" * 60])
def test_what_is_no_name_is_not_asked_for(server: NameServer, name: str) -> None:
    assert asyncio.run(Resolver([server.address]).services(name)) == []
    assert server.asked == []


QUESTION = labels(NAME) + struct.pack("!2H", 33, 1)


def answer(*records: bytes, count: int | None = None, flags: int = 0x8180) -> bytes:
    number = len(records) if count is None else count
    return struct.pack("!6H", 7, flags, 1, number, 0, 0) + QUESTION + b"".join(records)


def test_an_answer_that_is_cut_off_counts_as_far_as_it_goes() -> None:
    whole = answer(record(1, labels("a")), record(2, labels("b")))
    assert read_answer(whole, 7, QUESTION) == [Address("a", 1), Address("b", 2)]
    assert read_answer(whole[:-3], 7, QUESTION) == [Address("a", 1)]
    assert read_answer(answer(record(1, labels("a")), count=2), 7, QUESTION) == [Address("a", 1)]


def test_other_records_and_services_that_are_not_there_are_left_out() -> None:
    found = answer(record(1, labels("a"), kind=5), record(0, labels("b")), record(3, b"\0"))
    assert read_answer(found, 7, QUESTION) == []


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        answer(flags=0x0100),  # a question
        struct.pack("!6H", 8, 0x8180, 1, 0, 0, 0) + QUESTION,  # of another number
        struct.pack("!6H", 7, 0x8180, 1, 0, 0, 0) + QUESTION[:-1] + b"\2",  # of another class
        answer(record(1, b"\xc0\xff")),  # a pointer beyond the end
        answer(record(1, b"\x7f")),
        answer(b"\xc0" + bytes([12 + len(QUESTION)]) + bytes(10)),  # a pointer to itself
    ],
)
def test_what_does_not_answer_is_refused(wrong: bytes) -> None:
    with pytest.raises((ValueError, LookupError, struct.error)):
        read_answer(wrong, 7, QUESTION)


def test_no_bytes_do_harm() -> None:
    dice = random.Random(1)
    whole = answer(record(1, labels("a.b")), record(2, b"\1c\xc0\x0c"))
    assert read_answer(whole, 7, QUESTION) == [Address("a.b", 1), Address(f"c.{NAME}", 2)]
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        with contextlib.suppress(ValueError, LookupError, struct.error):
            read_answer(bytes(changed[: dice.randint(0, len(changed))]), 7, QUESTION)


def test_what_a_name_of_a_service_is() -> None:
    place = Address.parse_place(NAME)
    assert (place, place.is_service) == (Address(NAME, 0), True)
    place = Address.parse_place("orders.example:1")
    assert (place, place.is_service) == (Address("orders.example", 1), False)


@in_own_network
def test_members_meet_by_the_name_of_their_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pods of a headless service do: in a network of its own, whose name server has a record for
    each that runs; who is first finds nobody, and records come and go."""
    file = tmp_path / "resolv.conf"
    file.write_text("nameserver 127.0.0.1\nsearch shop.svc.cluster.local\noptions ndots:5\n")
    monkeypatch.setattr(srv, "RESOLV_CONF", file)
    monkeypatch.setattr(sources, "AGAIN_S", 0.05)

    async def meet(server: NameServer) -> None:
        join = {"members": ["_ringcast._udp.orders"], "listen": "127.0.0.1:0"}
        async with ringcast.join("orders", name="orders-0", **join) as first:
            assert len(first.view) == 1
            pods = server.known.setdefault("_ringcast._udp.orders.shop.svc.cluster.local", [])
            pods.append(("localhost", first.me.address.port))
            assert await look_up(Address("_ringcast._udp.orders", 0)) == [first.me.address]
            async with ringcast.join("orders", name="orders-1", **join) as second:
                async with asyncio.timeout(30):
                    await second.wait_for_view(lambda view: "orders-0" in view)
                await second.send(b"hello")
                assert (await anext(aiter(first))).payload == b"hello"

    with NameServer(srv.PORT) as server:
        asyncio.run(meet(server))
