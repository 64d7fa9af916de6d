"""One of two member processes that ask each other. Speaks JSON lines with its launcher.

The first line on standard input is its place in the group, the second lets it join; it answers
once it is in. Then:

    {"op": "reply"}      reply to every request with what was asked, from now on
    {"op": "ask", …}     ask the other member so many times, one after the other; the times it took

The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource
from ringcast.bench.member import input_lines, say

if TYPE_CHECKING:
    from ringcast.aio.group import Group


async def _member(place: dict[str, Any], lines: asyncio.StreamReader) -> None:
    async with join(
        place["group"],
        name=place["name"],
        discovery=DirectorySource(place["meet"]),
        transport=place["transport"],
        spin_s=place["spin_s"],
    ) as group:
        say({"view": [member.name for member in group.view]})
        async with asyncio.TaskGroup() as tasks:
            replying: asyncio.Task[None] | None = None
            while line := await lines.readline():
                task = json.loads(line)
                match task["op"]:
                    case "reply":
                        replying = tasks.create_task(_reply(group))
                    case "ask":
                        say({"times_ns": await _ask(group, task)})
            if replying is not None:
                replying.cancel()


async def _reply(group: Group) -> None:
    async for request in group.requests():
        request.reply(request.payload)


async def _ask(group: Group, task: dict[str, Any]) -> list[int]:
    other = group.view[task["to"]]
    payload = bytes(task["size"])
    times = []
    for _ in range(task["count"]):
        started = time.perf_counter_ns()
        await group.request(other, payload)
        times.append(time.perf_counter_ns() - started)
    return times


async def _main() -> None:
    lines = await input_lines()
    place = json.loads(await lines.readline())
    if await lines.readline():
        await _member(place, lines)


if __name__ == "__main__":
    run(_main())
