"""Caches that invalidate each other: `python cache.py DIRECTORY`.

Each process keeps what it has read of the files in a directory. Type `get NAME` to read one, and
`set NAME TEXT` to write one: the writer tells everybody to forget it, and goes on when all have.
Whoever was cut off, or joins, may have missed something, and forgets everything it has.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import ringcast


class Cache:
    def __init__(self, group: ringcast.Group, directory: Path) -> None:
        self.group = group
        self.directory = directory
        self.texts: dict[str, str] = {}

    def get(self, name: str) -> str:
        if name not in self.texts:
            self.texts[name] = (self.directory / name).read_text()
            return f"{self.texts[name]} (read)"
        return f"{self.texts[name]} (cached)"

    async def set(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        receipt = await self.group.send(name.encode(), receipt=True)
        self.texts.pop(name, None)
        with suppress(ringcast.NotDelivered):  # who has left has no cache any more
            await receipt.delivered()

    async def follow(self) -> None:
        async for event in self.group.events():
            match event:
                case ringcast.Delivered(_, run):
                    for payload in run.payloads:
                        self.texts.pop(payload.decode(), None)
                case ringcast.ViewInstalled():
                    if set(event.view) - set(event.together):
                        self.texts.clear()


async def main(directory: Path) -> None:
    async with ringcast.join("cache") as group, asyncio.TaskGroup() as tasks:
        cache = Cache(group, directory)
        following = tasks.create_task(cache.follow())
        while line := await asyncio.to_thread(sys.stdin.readline):
            match line.split(maxsplit=2):
                case ["get", name]:
                    print(cache.get(name), flush=True)
                case ["set", name, text]:
                    await cache.set(name, text.strip())
                    print("set", flush=True)
                case _:
                    print("get NAME, or set NAME TEXT", flush=True)
        await group.leave()
        await following


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
