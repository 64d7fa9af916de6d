"""A member with a key file: says which keys it has, and once more for each line it is given. It
looks at its file once, and then not for an hour: only SIGHUP makes it read that again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ringcast import blocking, join
from ringcast.aio import driver
from ringcast.aio.loop import run


def say(group: object) -> None:
    inner = getattr(group, "_group", group)
    print(*(key.id.hex() for key in inner._driver._lock.keys.keys), flush=True)  # noqa: T201


async def member(path: Path) -> None:
    async with join("hangup", key=path) as group:
        say(group)
        while await asyncio.to_thread(sys.stdin.readline):
            say(group)


def main(how: str, path: Path) -> None:
    if how == "asyncio":
        run(member(path))
        return
    with blocking.join("hangup", key=path) as group:
        say(group)
        for _ in sys.stdin:
            say(group)


if __name__ == "__main__":
    driver.LOOK_S = driver.LOOK_AGAIN_S = 3600.0
    main(sys.argv[1], Path(sys.argv[2]))
