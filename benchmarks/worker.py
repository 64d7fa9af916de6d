"""A process that benchmarks start beside plain members. Speaks JSON lines with its launcher.

`python -m benchmarks.worker ROLE`, with one of these roles:

    ceiling     plain sockets that move the same bytes in the same pattern
    echo        sends back what it gets, over a plain blocking socket
    echo_loop   the same in an event loop: asyncio's own share of what a request takes
    asker       a member: {"op": "reply"} lets it reply to every request from now on, {"op": "ask"}
                lets it ask another so many times and say how long each took
    state       a member whose application has a state: what it has read of everybody, and ballast.
                If its place says `pause_at`, it says when so many bytes of the state have come, and
                waits for a command before it takes more. Its commands: send at a pace, memory (the
                most it has had), stop, finish (read until so many are known), view
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import time
import zlib
from functools import reduce
from typing import TYPE_CHECKING, Any

from benchmarks.sockets import SPACE, TcpPump, UdpPump, Wire, move, open_socket
from benchmarks.usage import peak_mb
from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.config import MembershipConfig, MulticastConfig
from ringcast.model import Address, Stream
from ringcast.sim.member_process import Reader, say, serve, view_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager

    from ringcast.aio.group import Group
    from ringcast.sim.member_process import Commands


def _hear() -> Any:
    """One line of the launcher, of those who have no event loop; None: there is no more."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def _join(place: dict[str, Any], **more: Any) -> AbstractAsyncContextManager[Group]:
    source = DirectorySource(place["meet"])
    return join(place["group"], name=place["name"], discovery=source, **more)


# The raw ceiling


def _ceiling() -> None:
    task = _hear()
    group = Address(*task["group"]) if task["transport"] == "multicast" else None
    pump = TcpPump() if task["transport"] == "tcp" else UdpPump(group)
    say({"listen": pump.address})
    peers = _hear()
    if peers is None:  # another process did not come so far
        return
    pump.connect([Address(*peer) for peer in peers["peers"]])
    datagram = bytes(task["size"]) if task["is_sender"] else b""
    rate = move(pump, datagram, task["seconds"], is_receiver=task["is_receiver"])
    say({"bytes_per_s": rate})


# Round trips


def _meet() -> socket.socket:
    """A connection to the one who asks, once it has come."""
    transport = _hear()["transport"]
    sock = open_socket(transport)
    if transport == "tcp":
        sock.listen()
    say({"listen": sock.getsockname()})
    if transport == "tcp":
        return sock.accept()[0]
    _, source = sock.recvfrom(SPACE, socket.MSG_PEEK)
    sock.connect(source)
    return sock


def _echo() -> None:
    link = _meet()
    while data := link.recv(SPACE):
        link.send(data)


async def _echo_in_loop(sock: socket.socket) -> None:
    wire = Wire(sock)
    while data := await wire.receive():
        wire.send(data)
    wire.close()


async def _asker(place: dict[str, Any], commands: Commands) -> None:
    async with _join(place, transport=place["transport"], spin_s=place["spin_s"]) as group:
        say({"view": [member.name for member in group.view]})
        async with asyncio.TaskGroup() as tasks:
            replying: asyncio.Task[None] | None = None
            async for command in commands:
                match command["op"]:
                    case "reply":
                        replying = tasks.create_task(_reply(group))
                    case "ask":
                        say({"times_ns": await _ask(group, command)})
            if replying is not None:
                replying.cancel()


async def _reply(group: Group) -> None:
    async for request in group.requests():
        request.reply(request.payload)


async def _ask(group: Group, command: dict[str, Any]) -> list[int]:
    other = group.view[command["to"]]
    payload = bytes(command["size"])
    times = []
    for _ in range(command["count"]):
        started = time.perf_counter_ns()
        await group.request(other, payload)
        times.append(time.perf_counter_ns() - started)
    return times


# A member with a state

BLOCK_BYTES = 1 << 16
SAMPLE_S = 0.02
TURN_S = 0.005
"""How often a sender that keeps a pace sends."""

HEADING = struct.Struct("<I")


def ballast(size: int) -> Iterator[bytes]:
    """So many bytes, no block of which is like another."""
    filling = bytes(range(256)) * (BLOCK_BYTES // 256)
    for start in range(0, size, BLOCK_BYTES):
        block = start.to_bytes(8) + filling[8:]
        yield block[: size - start]


def message(name: str, number: int, size: int) -> bytes:
    """What the sender of this name sends as its message of this number: no two are alike."""
    return f"{name} {number} ".encode().ljust(size, b".")


class Book:
    """The application's state: what is known of each sender, and ballast."""

    def __init__(self, size: int, pause_at: int, commands: Commands) -> None:
        self.reader = Reader()
        self.taken = {"calls": 0, "took_s": 0.0, "began": 0, "ended": 0, "is_ballast_right": False}
        """How it was taken: `took_s` is of the last call."""
        self._size = size
        self._pause_at = pause_at
        self._commands = commands

    def give(self) -> Iterator[bytes]:
        known = json.dumps(self.reader.known[Stream.FIFO]).encode()
        yield HEADING.pack(len(known)) + known
        yield from ballast(self._size)

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        started = time.monotonic_ns()
        self.taken |= {"calls": self.taken["calls"] + 1, "began": self.taken["began"] or started}
        heading = await anext(chunks)
        (length,) = HEADING.unpack_from(heading)
        known = json.loads(heading[HEADING.size : HEADING.size + length])
        rest = heading[HEADING.size + length :]
        size, checksum = len(rest), zlib.crc32(rest)
        async for chunk in chunks:
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
            if self._pause_at and size >= self._pause_at:
                self._pause_at = 0
                say({"came": size})
                await anext(self._commands, None)
        ended = time.monotonic_ns()
        self.taken |= {"ended": ended, "took_s": (ended - started) / 1e9}
        self.reader.known[Stream.FIFO] = {name: (*each,) for name, each in known.items()}
        is_right = size == self._size and checksum == checksum_of(ballast(size))
        self.taken["is_ballast_right"] = is_right


class Sender:
    """Messages at a pace, and a note every so often of how many that were."""

    def __init__(self, group: Group, name: str) -> None:
        self.sent = 0
        self.samples: list[tuple[int, int, bool]] = []
        """When, how many so far, and whether a joiner blocked senders."""
        self._group = group
        self._name = name
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, rate: int, size: int) -> None:
        self._tasks = [*map(asyncio.create_task, (self._send(rate, size), self._sample()))]

    async def stop(self) -> None:
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    async def _send(self, rate: int, size: int) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not self._is_stopping:
            due = int((loop.time() - started) * rate) - self.sent if rate else 256
            if due > 0:
                numbers = range(self.sent, self.sent + min(due, 256))
                await self._group.send_many([message(self._name, n, size) for n in numbers])
                self.sent += len(numbers)
            if due < 256:
                await asyncio.sleep(TURN_S)

    async def _sample(self) -> None:
        while not self._is_stopping:
            is_blocked = any("blocks senders" in reason for reason in self._group.explain())
            self.samples.append((time.monotonic_ns(), self.sent, is_blocked))
            await asyncio.sleep(SAMPLE_S)


async def _state(place: dict[str, Any], commands: Commands) -> None:
    before_mb = peak_mb()
    book = Book(place["state_bytes"], place.get("pause_at", 0), commands)
    started = time.monotonic_ns()
    async with _join(
        place,
        multicast=MulticastConfig(**place["config"]),
        membership=MembershipConfig(**place["membership"]),
        give_state=book.give,
        take_state=book.take,
    ) as group:
        join_s = (time.monotonic_ns() - started) / 1e9
        about = {"join_s": join_s, "state_lost": group.state_lost, "memory_before_mb": before_mb}
        say(about | book.taken)
        reading = asyncio.create_task(book.reader.read(group))
        sender = Sender(group, place["name"])
        async for command in commands:
            match command["op"]:
                case "send":
                    sender.start(command["rate"], command["size"])
                case "memory":
                    say({"memory_mb": peak_mb()})
                case "stop":
                    await sender.stop()
                    say({"sent": sender.sent, "samples": sender.samples})
                case "finish":
                    await book.reader.finish(group, command["expect"])
                    known = book.reader.known[Stream.FIFO]
                    say({"known": known, "memory_mb": peak_mb(), "stats": group.stats()})
                case "view":
                    say(await view_of(group, command["names"]))
        reading.cancel()


def checksum_of(blocks: Iterable[bytes]) -> int:
    return reduce(lambda checksum, block: zlib.crc32(block, checksum), blocks, 0)


ROLES: dict[str, Callable[[], None]] = {
    "ceiling": _ceiling,
    "echo": _echo,
    "echo_loop": lambda: run(_echo_in_loop(_meet())),
    "asker": lambda: run(serve(_asker)),
    "state": lambda: run(serve(_state)),
}

if __name__ == "__main__":
    ROLES[sys.argv[1]]()
