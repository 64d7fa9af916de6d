"""A member process that sends numbered messages and reads everybody's, and says what came of it.

    {"op": "report"}    what it has sent and read, its view, what it refused, its memory
    {"op": "fork"}      make a copy of this process, which ends at once
    {"op": "stop"}      send no more; how many were sent

Each message says who sent it and the how manieth it is, so whatever is lost, doubled or altered
shows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast import MembershipConfig, join
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.sim.member_process import say, serve

if TYPE_CHECKING:
    from ringcast import Group, Member
    from ringcast.sim.member_process import Commands

PAUSE_S = 0.005
PADDING = b"." * 500
ERRORS: list[str] = []


def key(member: Member) -> str:
    return f"{member.name}#{member.incarnation}"


def key_ids(group: Group) -> list[str]:
    lock = group._driver._lock
    assert lock is not None
    return [each.id.hex() for each in lock.keys.keys]


class Errors(logging.Handler):
    """What must not be said while strangers knock."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            ERRORS.append(record.getMessage())


class Traffic:
    def __init__(self, group: Group) -> None:
        self._group = group
        self.sent = 0
        self.read: dict[str, int] = {}
        self.wrong: list[str] = []

    async def send(self) -> None:
        for number in count(1):
            await self._group.send(f"{key(self._group.me)} {number} ".encode() + PADDING)
            self.sent = number
            await asyncio.sleep(PAUSE_S)

    async def take(self) -> None:
        async for message in self._group:
            who = key(message.sender)
            said, _, rest = message.payload.decode().rpartition(" ")
            name, _, number = said.rpartition(" ")
            expected = self.read[who] + 1 if who in self.read else int(number)
            if (name, int(number), rest.encode()) != (who, expected, PADDING):
                self.wrong.append(f"{who}: {said} in place of {expected}")
            self.read[who] = int(number)


def memory_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


async def member(place: dict[str, Any], commands: Commands) -> None:
    logging.getLogger().addHandler(Errors())
    joining = join(
        place["group"],
        name=place["name"],
        listen=place["listen"],
        advertise=place["advertise"],
        discovery=DirectorySource(place["meet"]),
        key=place["key_file"],
        membership=MembershipConfig(**place["membership"]),
    )
    async with joining as group:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: ERRORS.append(str(context))
        )
        traffic = Traffic(group)
        sending = asyncio.create_task(traffic.send())
        taking = asyncio.create_task(traffic.take())
        say({"me": key(group.me)})
        stats: Any
        async for command in commands:
            match command["op"]:
                case "report":
                    say(
                        {
                            "me": key(group.me),
                            "view": str(group.view.id),
                            "members": sorted(map(str, group.view)),
                            "sent": traffic.sent,
                            "read": traffic.read,
                            "wrong": traffic.wrong,
                            "errors": ERRORS,
                            "keys": key_ids(group),
                            "rejected": (stats := group.stats())["rejected"],
                            "received": stats["transport"]["received"],
                            "explain": group.explain(),
                            "memory_kb": memory_kb(),
                        }
                    )
                case "fork":
                    if not (pid := os.fork()):
                        os._exit(0)
                    await asyncio.to_thread(os.waitpid, pid, 0)
                    say({})
                case "view":
                    size = command["size"]
                    await group.wait_for_view(lambda view: len(view) == size)  # noqa: B023
                    say({"view": str(group.view.id)})
                case "stop":
                    sending.cancel()
                    say({"sent": traffic.sent})
        taking.cancel()


if __name__ == "__main__":
    run(serve(member))
