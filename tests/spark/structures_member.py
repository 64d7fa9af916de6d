"""A member with structures, for tests that kill it: `structures_member.py NAME STORE RECORD`.

It uses a dict, a counter and a lock until it hears "stop", and says when each call begins and when
it ends: all processes of a machine go by one monotonic clock. What the lock protects is a file that
refuses tokens lower than its last.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import random
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast import replicated
from ringcast.config import MembershipConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEYS = ("a", "b", "c")
PATIENT = MembershipConfig(suspect_after_s=60.0, verify_s=10.0)
"""Who is killed refuses datagrams; nobody is to be missed because the machine is busy."""
TIMEOUT_S = 300.0


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


class Caller:
    """Says what it calls, and what comes of it."""

    def __init__(self, name: str, space: replicated.Space, store: Path) -> None:
        self.is_stopped = False
        self._name = name
        self._store = store
        self._dice = random.Random(name)
        self._numbers = count(1)
        self._items = space.dict("items")
        self._counter = space.counter("count")
        self._lock = space.lock("store")

    async def _call(self, of: str, *what: Any, doing: Awaitable[Any]) -> Any:
        number = next(self._numbers)
        say(begun=number, of=of, what=what, at=time.monotonic_ns())
        result = await doing
        said = bytes(result).hex() if what == ("acquire",) else result
        say(ended=number, result=said, at=time.monotonic_ns())
        return result

    async def use(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self.is_stopped:
            await work()
            await asyncio.sleep(self._dice.random() * 0.02)

    async def look_up(self) -> None:
        items, dice, key = self._items, self._dice, self._dice.choice(KEYS)
        value = f"{self._name}/{next(self._numbers)}"
        match dice.randrange(4):
            case 0:
                await self._call("dict", "get", key, doing=items.get(key, fresh=True))
            case 1:
                await self._call("dict", "set", key, value, doing=items.set(key, value))
            case 2:
                await self._call("dict", "delete", key, doing=items.delete(key))
            case _:
                expected = await items.get(key, "none")
                changing = items.compare_and_set(key, expected, value)
                await self._call("dict", "compare_and_set", key, expected, value, doing=changing)

    async def count(self) -> None:
        if self._dice.random() < 0.3:
            await self._call("counter", "get", doing=self._counter.get(fresh=True))
        else:
            number = self._dice.randrange(1, 9)
            counted = await self._call("counter", "add", number, doing=self._counter.add(number))
            await self._items.update({self._name: counted, "last": [self._name, counted]})
            say(added=counted)

    async def hold(self) -> None:
        token = await self._call("lock", "acquire", doing=self._lock.acquire())
        say(written=write(self._store, bytes(token), self._name))
        await self._call("lock", "release", doing=self._lock.release(token))


async def main(name: str, store: Path, record: Path) -> None:
    space = replicated.Space(timeout_s=TIMEOUT_S)
    caller = Caller(name, space, store)
    recording: dict[str, Any] = {"record": record, "run_id": "kills", "record_interval_s": 0.2}
    async with (
        space.join("structures", name=name, membership=PATIENT, **recording),
        asyncio.TaskGroup() as tasks,
    ):
        say(view=[member.name for member in space.view])
        works = [
            tasks.create_task(caller.use(work))
            for work in (caller.look_up, caller.count, caller.hold)
        ]
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            match line:
                case "who":
                    say(first=space.view.coordinator.name)
                case "why":
                    say(why=space.group.explain())
                case "stop":
                    caller.is_stopped = True
                    await asyncio.wait(works)
                    say(stopped=True)
                case "tell":
                    counted = await space.counter("count").get(fresh=True)
                    items = dict(space.dict("items").items())
                    say(count=counted, items=items, names=[each.name for each in space.view])
    say(left=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(Path, sys.argv[2:])))
