"""A member process for tests of partitions. Speaks JSON lines with the test.

The first line is its place in the group; it answers once it is in. Then, one after the other:

    {"op": "send"}         send numbered messages from now on, at a pace
    {"op": "more", …}      wait until so many more have been sent; how many that makes
    {"op": "quiet"}        send no more
    {"op": "view", …}      wait for a view of just these names
    {"op": "read", …}      read until these numbers have come from these senders; what was read

Whoever waits too long answers with an error that says what it is waiting for. The end of the input
ends the process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast import Delivered, DirectorySource, MembershipConfig, ViewInstalled, join
from ringcast.aio.loop import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast import Group

DEADLINE_S = 60.0
BATCH = 5
PAUSE_S = 0.02


class Member:
    """Sends, reads, and keeps what it has seen."""

    def __init__(self, group: Group) -> None:
        self.sent = 0
        self.views: list[dict[str, Any]] = []
        self.read: defaultdict[str, list[list[int]]] = defaultdict(list)
        """Of each sender, the numbers in the order they came, as ranges."""
        self._group = group
        self._is_sending = False
        self._changed = asyncio.Event()

    async def obey(self, task: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._do(task)
        except TimeoutError:
            return {"error": f"{task}: {self.answer()}; {self._group.explain()}"}

    async def _do(self, task: dict[str, Any]) -> dict[str, Any]:
        match task["op"]:
            case "send":
                self._is_sending = True
                self._changed.set()
            case "more":
                goal = self.sent + task["count"]
                await self._until(lambda: self.sent >= goal)
            case "quiet":
                self._is_sending = False
            case "view":
                names = set(task["names"])
                await self._group.wait_for_view(lambda view: {who.name for who in view} == names)
            case "read":
                expect = task["expect"]
                await self._until(
                    lambda: all(self._last_of(name) >= last for name, last in expect.items())
                )
        return self.answer()

    def answer(self) -> dict[str, Any]:
        me = self._group.me
        return {
            "sent": self.sent,
            "incarnation": me.incarnation,
            "address": str(me.address),
            "view": [member.name for member in self._group.view],
            "views": self.views,
            "read": self.read,
        }

    async def sending(self) -> None:
        while True:
            await self._until(lambda: self._is_sending)
            numbers = range(self.sent + 1, self.sent + 1 + BATCH)
            self.sent += BATCH
            await self._group.send_many([str(number).encode() for number in numbers])
            self._changed.set()
            await asyncio.sleep(PAUSE_S)  # a pace, not a wait

    async def reading(self) -> None:
        async for event in self._group.events():
            match event:
                case Delivered(sender, run):
                    self._note(self.read[sender.name], list(map(int, run.payloads)))
                case ViewInstalled(view, parts):
                    names = [[member.name for member in each] for each in (view, *parts)]
                    self.views.append({"names": names[0], "parts": names[1:]})
            self._changed.set()

    @staticmethod
    def _note(ranges: list[list[int]], numbers: list[int]) -> None:
        for number in numbers:
            if ranges and ranges[-1][1] + 1 == number:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])

    def _last_of(self, name: str) -> int:
        ranges = self.read.get(name)
        return ranges[-1][1] if ranges else 0

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    place = json.loads(await lines.readline())
    async with join(
        "test",
        name=place["name"],
        listen=place["listen"],
        advertise=place["advertise"],
        discovery=DirectorySource(place["meet"]),
        membership=MembershipConfig(**place["membership"]),
        record=Path(place["record"]),
        record_level="full",
    ) as group:
        member = Member(group)
        say(member.answer())
        tasks = [asyncio.create_task(member.sending()), asyncio.create_task(member.reading())]
        while line := await lines.readline():
            say(await member.obey(json.loads(line)))
        for task in tasks:
            task.cancel()


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(main())
