"""SRV records: names that stand for hosts and ports, as a headless service of Kubernetes has them.

The system's resolver knows addresses only, so this asks one question by itself: over UDP, at the
name servers of resolv.conf, with its search list. Nothing is kept. An answer that is cut off counts
as far as it goes, because a member that finds one other finds all. What arrives from elsewhere, to
another question or malformed, is no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringcast.model import Address

RESOLV_CONF = Path("/etc/resolv.conf")
PORT = 53
TRY_S = 2.0
TRIES = 2
SERVERS_MAX = 3
RECORDS_MAX = 1024
NAME_BYTES_MAX = 255
ANSWER_BYTES_MAX = 4096
"""What we tell servers that we can take."""

_SRV, _OPT, _IN = 33, 41, 1
_HEADER = struct.Struct("!6H")
_RECORD = struct.Struct("!HHIH")
_SERVICE = struct.Struct("!3H")
_ANSWER, _RECURSIVE, _CODE = 0x8000, 0x0100, 0x000F
_NO_ERROR, _NO_SUCH_NAME = 0, 3
_POINTER = 0xC0


@dataclass(frozen=True, slots=True)
class Resolver:
    """Whom to ask, and what to try after the name as it is."""

    servers: Sequence[Address]
    search: Sequence[str] = ()
    ndots: int = 1

    @classmethod
    def of_system(cls) -> Resolver:
        """As resolv.conf says; without it a server on this machine."""
        servers: list[Address] = []
        search: list[str] = []
        ndots = 1
        try:
            lines = RESOLV_CONF.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            match line.split():
                case ["nameserver", host, *_]:
                    servers.append(Address(host, PORT))
                case ["search" | "domain", *names]:
                    search = names
                case ["options", *options]:
                    for option in options:
                        if option.startswith("ndots:") and option[6:].isdigit():
                            ndots = int(option[6:])
        return cls(servers[:SERVERS_MAX] or [Address("127.0.0.1", PORT)], search, ndots)

    def names(self, name: str) -> list[str]:
        """Which to ask for, in turn. One that ends in a dot is whole."""
        if name.endswith("."):
            return [name]
        longer = [f"{name}.{domain}" for domain in self.search]
        return [name, *longer] if name.count(".") >= self.ndots else [*longer, name]

    async def services(self, name: str) -> list[Address]:
        """Hosts, by name, and ports that the first of these names stands for."""
        for each in self.names(name):
            if found := await self._ask_all(each):
                return found
        return []

    async def _ask_all(self, name: str) -> list[Address]:
        for _ in range(TRIES):
            for server in self.servers:
                found = await _ask(server, name)
                if found is not None:
                    return found
        return []


async def _ask(server: Address, name: str) -> list[Address] | None:
    """What this server says; None: nothing that is an answer, in time."""
    number = secrets.randbits(16)
    try:
        question = _name(name) + struct.pack("!2H", _SRV, _IN)
    except UnicodeError:
        return []
    # Beside it: we take answers of more than 512 bytes.
    extra = b"\0" + _RECORD.pack(_OPT, ANSWER_BYTES_MAX, 0, 0)
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TRY_S):
                # From here on the system drops what others send.
                await loop.sock_connect(sock, server)
                header = _HEADER.pack(number, _RECURSIVE, 1, 0, 0, 1)
                await loop.sock_sendall(sock, header + question + extra)
                while True:
                    answer = await loop.sock_recv(sock, ANSWER_BYTES_MAX)
                    with contextlib.suppress(ValueError, LookupError, struct.error, UnicodeError):
                        return read_answer(answer, number, question)
    return None


def read_answer(answer: bytes, number: int, question: bytes) -> list[Address] | None:
    """Hosts and ports in it; None: the server cannot say. Raises ValueError, LookupError or
    struct.error where it is no answer to this question."""
    told, flags, questions, records, _, _ = _HEADER.unpack_from(answer)
    place = _HEADER.size
    end = place + len(question)
    # Servers may answer with the letters of the name in another case.
    asked = answer[place:end].lower()
    if told != number or not flags & _ANSWER or questions != 1 or asked != question.lower():
        raise ValueError("no answer to this question")
    if flags & _CODE != _NO_ERROR:
        return [] if flags & _CODE == _NO_SUCH_NAME else None
    return list(_services(answer, end, min(records, RECORDS_MAX)))


def _services(answer: bytes, place: int, records: int) -> Iterator[Address]:
    for _ in range(records):
        if place >= len(answer):
            return  # it was cut off
        _, place = _read_name(answer, place)
        kind, family, _, size = _RECORD.unpack_from(answer, place)
        place += _RECORD.size
        if place + size > len(answer):
            return
        if kind == _SRV and family == _IN:
            _, _, port = _SERVICE.unpack_from(answer, place)
            host, _ = _read_name(answer, place + _SERVICE.size)
            if host and port:  # else: the service is not there
                yield Address(host, port)
        place += size


def _name(name: str) -> bytes:
    """As it travels: labels with their lengths."""
    made = b""
    for label in name.rstrip(".").split("."):
        raw = label.encode("ascii")
        if not 0 < len(raw) < 64:
            raise UnicodeError(f"{name!r} is no name")
        made += bytes([len(raw)]) + raw
    if len(made) >= NAME_BYTES_MAX:
        raise UnicodeError(f"{name!r} is too long")
    return made + b"\0"


def _read_name(answer: bytes, place: int) -> tuple[str, int]:
    """The name there, and where it ends. Pointers lead back, so that every name has an end."""
    labels: list[str] = []
    end = 0
    before = place
    while size := answer[place]:
        if size & _POINTER == _POINTER:
            end = end or place + 2
            place = struct.unpack_from("!H", answer, place)[0] & 0x3FFF
            if place >= before:
                raise ValueError("a pointer that does not lead back")
            before = place
        else:
            if size & _POINTER or place + size >= len(answer) or len(labels) > NAME_BYTES_MAX // 2:
                raise ValueError("no name")
            labels.append(answer[place + 1 : place + 1 + size].decode("ascii"))
            place += 1 + size
    return ".".join(labels), end or place + 1
