"""A member that sends without end, and writes down what it delivers. Lines on standard input:

the path of a config file, and a name of its own
"stop": send no more, and answer when everybody has taken everything
a path: write there what was delivered, one message a line, and leave
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast import join
from ringcast.config_file import load_config
from ringcast.model import Stream

if TYPE_CHECKING:
    from ringcast.aio.group import Group

PAUSE_S = 0.04
BURST = 5
LARGE_EVERY = 50
LARGE_BYTES = 150_000
"""More than a datagram holds."""


async def send(group: Group, name: str, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        burst = [f"{name} {number}.{at}".encode() for at in range(BURST)]
        if number % LARGE_EVERY == 0:
            burst[1] = burst[1].ljust(LARGE_BYTES, b".")
        await group.send_many(burst, guarantee="uniform" if number % 3 == 0 else "fifo")
        await asyncio.sleep(PAUSE_S)
    await group.flush()


async def read(group: Group, delivered: list[str]) -> None:
    async for batch in group.batches():
        run, sender = batch.run, batch.sender
        stream = "uniform" if run.stream is Stream.UNIFORM else "fifo"
        for seqno, payload in enumerate(run.payloads, run.first):
            content = hashlib.sha256(payload).hexdigest()
            key = [str(sender), str(sender.incarnation), stream, seqno, content]
            delivered.append(json.dumps(key))


def write(path: str, lines: list[str]) -> None:
    Path(path).write_text("\n".join(lines))


async def main() -> None:
    loop = asyncio.get_running_loop()

    async def line() -> str:
        return (await loop.run_in_executor(None, sys.stdin.readline)).rstrip("\n")

    config = Path(await line())
    name = await line()
    delivered: list[str] = []
    async with join(config=load_config(config, group="orders", name=name)) as group:
        reading = asyncio.create_task(read(group, delivered))
        stop = asyncio.Event()
        sending = asyncio.create_task(send(group, name, stop))
        print("sending", flush=True)  # noqa: T201
        assert await line() == "stop"
        stop.set()
        await sending
        print("flushed", flush=True)  # noqa: T201
        write(await line(), delivered)
        print("written", flush=True)  # noqa: T201
        reading.cancel()


if __name__ == "__main__":
    asyncio.run(main())
