"""One member process whose application has a state: what it has read of everybody, and ballast.

Speaks JSON lines with its launcher, as member.py does. The first line is its place, the second lets
it join; it answers once it is in. If its place says `pause_at`, it says when so many bytes of the
state have come, and waits for a line before it takes more. Then:

    {"op": "send", …}     send at a pace from now on, beside reading
    {"op": "memory"}      the most memory it has had so far
    {"op": "stop"}        send no more; how many were sent
    {"op": "finish", …}   read on until so many of each sender's are known; everything it knows
    {"op": "view", …}     wait for a view of just these names

The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.bench.member import input_lines, say, view_of
from ringcast.config import MembershipConfig, MulticastConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ringcast.aio.group import Group
    from ringcast.events import Delivered

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
    """The application: of each sender, how many messages it knows and a checksum over them."""

    def __init__(self, size: int, pause_at: int, lines: asyncio.StreamReader) -> None:
        self.known: dict[str, tuple[int, int]] = {}
        self.calls = 0
        self.took_s = 0.0
        """Of the last call."""
        self.began = self.ended = 0
        self.is_ballast_right = False
        self.progress = asyncio.Event()
        self._size = size
        self._pause_at = pause_at
        self._lines = lines

    def read(self, batch: Delivered) -> None:
        name, payloads = batch.sender.name, batch.run.payloads
        count, checksum = self.known.get(name, (0, 0))
        checksum = zlib.crc32(b"".join(payloads), checksum)
        self.known[name] = (count + len(payloads), checksum)
        self.progress.set()

    def give(self) -> Iterator[bytes]:
        known = json.dumps(self.known).encode()
        yield HEADING.pack(len(known)) + known
        yield from ballast(self._size)

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        self.calls += 1
        started = time.monotonic_ns()
        self.began = self.began or started
        heading = await anext(chunks)
        (length,) = HEADING.unpack_from(heading)
        known = json.loads(heading[HEADING.size : HEADING.size + length])
        rest = heading[HEADING.size + length :]
        size, checksum = len(rest), zlib.crc32(rest)
        async for chunk in chunks:
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
            if self._pause_at and size >= self._pause_at:
                await self._pause(size)
        self.ended = time.monotonic_ns()
        self.took_s = (self.ended - started) / 1e9
        self.known = {name: (count, crc) for name, (count, crc) in known.items()}
        self.is_ballast_right = size == self._size and checksum == _checksum(ballast(size))

    async def _pause(self, size: int) -> None:
        self._pause_at = 0
        say({"came": size})
        await self._lines.readline()


class Sender:
    """Messages at a pace, and a note every so often of how many that were."""

    def __init__(self, group: Group, name: str) -> None:
        self.sent = 0
        self.samples: list[tuple[int, int, bool]] = []
        """When, how many so far, and whether a joiner held senders up."""
        self._group = group
        self._name = name
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, task: dict[str, Any]) -> None:
        sending = self._send(task["rate"], task["size"])
        self._tasks = [asyncio.create_task(what) for what in (sending, self._sample())]

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
            is_blocked = any("holds senders up" in reason for reason in self._group.explain())
            self.samples.append((time.monotonic_ns(), self.sent, is_blocked))
            await asyncio.sleep(SAMPLE_S)


async def _member(place: dict[str, Any], lines: asyncio.StreamReader) -> None:
    before_mb = _peak_mb()
    book = Book(place["state_bytes"], place.get("pause_at", 0), lines)
    started = time.monotonic_ns()
    async with join(
        place["group"],
        name=place["name"],
        discovery=DirectorySource(place["meet"]),
        config=MulticastConfig(**place["config"]),
        membership=MembershipConfig(**place["membership"]),
        give_state=book.give,
        take_state=book.take,
    ) as group:
        say(
            {
                "join_s": (time.monotonic_ns() - started) / 1e9,
                "took_s": book.took_s,
                "calls": book.calls,
                "began": book.began,
                "ended": book.ended,
                "is_ballast_right": book.is_ballast_right,
                "state_lost": group.state_lost,
                "memory_before_mb": before_mb,
                "memory_mb": _peak_mb(),
            }
        )
        reading = asyncio.create_task(_read(group, book))
        sender = Sender(group, place["name"])
        while line := await lines.readline():
            task = json.loads(line)
            match task["op"]:
                case "send":
                    sender.start(task)
                case "memory":
                    say({"memory_mb": _peak_mb()})
                case "stop":
                    await sender.stop()
                    say({"sent": sender.sent, "samples": sender.samples})
                case "finish":
                    say(await _finish(group, book, task["expect"]))
                case "view":
                    say(await view_of(group, task["names"]))
        reading.cancel()


async def _read(group: Group, book: Book) -> None:
    async for batch in group.batches():
        book.read(batch)


async def _finish(group: Group, book: Book, expect: dict[str, int]) -> dict[str, Any]:
    while any(book.known.get(name, (0, 0))[0] < count for name, count in expect.items()):
        book.progress.clear()
        await book.progress.wait()
    await group.flush()
    return {"known": book.known, "memory_mb": _peak_mb()}


def _checksum(blocks: Iterator[bytes]) -> int:
    checksum = 0
    for block in blocks:
        checksum = zlib.crc32(block, checksum)
    return checksum


def _peak_mb() -> float:
    """The most that was resident. What getrusage says would count the parent's, before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) / 1024


async def _main() -> None:
    lines = await input_lines()
    place = json.loads(await lines.readline())
    if await lines.readline():
        await _member(place, lines)


if __name__ == "__main__":
    run(_main())
