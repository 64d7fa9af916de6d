"""A member with structures, for tests that kill it: `replicated_member.py NAME STORE`.

It counts, and writes to the store under a lock, until it hears "stop". The store is a file that
refuses tokens lower than its last.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
from pathlib import Path

from ringcast import replicated


def write(store: Path, token: bytes, name: str) -> bool:
    with store.open("a+") as lines:
        fcntl.flock(lines, fcntl.LOCK_EX)
        lines.seek(0)
        *_, last = ("", *lines)
        if token.hex() < last.partition(" ")[0]:
            return False
        lines.write(f"{token.hex()} {name}\n")
        return True


def say(**what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


async def main(name: str, store: Path) -> None:
    space = replicated.Space()
    counter, items, lock = space.counter("count"), space.dict("items"), space.lock("store")
    is_stopped = asyncio.Event()

    async def count() -> None:
        while not is_stopped.is_set():
            number = await counter.add()
            await items.update({f"{name}": number, "last": [name, number]})
            say(added=number)
            await asyncio.sleep(0.01)

    async def hold() -> None:
        while not is_stopped.is_set():
            async with lock as token:
                say(written=write(store, bytes(token), name))
            await asyncio.sleep(0.01)

    async with space.join("replicated", name=name), asyncio.TaskGroup() as tasks:
        say(view=len(space.view))
        works = [tasks.create_task(count()), tasks.create_task(hold())]
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            match line.split():
                case ["stop"]:
                    is_stopped.set()
                    await asyncio.wait(works)
                    say(stopped=True)
                case ["tell"]:
                    await counter.get(fresh=True)
                    say(count=counter.value, items=dict(items.items()), view=len(space.view))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
