"""ringcast bench steps: what a member does, in calls of functions.

The interpreter tells every call (`sys.setprofile`). Background work (heartbeats, delayed acks, and
what an ack changes for the next round) falls into many rounds where the machine is busy, so the
first quartile counts. Compare figures of one interpreter only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ringcast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import CodeType

    from benchmarks.workload import Row
    from ringcast.aio.group import Group

C = TypeVar("C", bound="Calls")

ROUNDS = 200
IDLE_ROUNDS = 4
MTU = 1500
BURST = 40
"""Messages of 1000 B: one system call sends them, and few bring them."""
GROUP = f"calls-{os.getpid()}"
SOURCE = str(Path(ringcast.__file__).parent)

PARTS = {
    "a sent datagram": ("Driver._send_datagrams", "UdpSocket.send"),
    "a received datagram": ("Driver._on_readable", "ReliableMulticast._on_data"),
}
"""What is counted apart: a function and all that it calls, whenever it comes to that other one."""


def name_of(code: CodeType) -> str:
    return f"{code.co_filename[len(SOURCE) + 1 :]} {code.co_qualname}"


class Calls:
    """What was called during one round."""

    def __init__(self) -> None:
        self.python: Counter[str] = Counter()
        self.c = 0
        self.codes: set[CodeType] = set()

    def note(self, frame: Any, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(SOURCE):
                self.python[name_of(code)] += 1
                self.codes.add(code)
        elif event == "c_call" and frame.f_code.co_filename.startswith(SOURCE):
            self.c += 1

    @property
    def lines(self) -> dict[str, int]:
        """From the head of each function to its last line."""
        spans = ((code, [line for *_, line in code.co_lines() if line]) for code in self.codes)
        return {code.co_qualname: max(at) - code.co_firstlineno + 1 for code, at in spans}

    @property
    def files(self) -> int:
        return len({name.split()[0] for name in self.python})


class Parts(Calls):
    """The same, and what was called within some functions. To note that takes longer."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[Calls]] = {what: [] for what in PARTS}
        self._began: list[CodeType] = []
        self._within: list[tuple[int, int]] = []  # calls before each function that goes on

    def note(self, frame: Any, event: str, argument: object) -> None:
        before = self.python.total(), self.c
        super().note(frame, event, argument)
        code = frame.f_code
        if event == "call" and self.python.total() > before[0]:
            self._within.append(before)
            self._began.append(code)
        elif event == "return" and code.co_filename.startswith(SOURCE) and self._within:
            start, c = self._within.pop()
            for what, (whole, part) in PARTS.items():
                codes = self._began[start:] if code.co_qualname == whole else []
                if any(each.co_qualname == part for each in codes):
                    found = Calls()
                    found.python.update(map(name_of, codes))
                    found.codes.update(codes)
                    found.c = self.c - c
                    self.parts[what].append(found)


async def rounds_of(
    act: Callable[[], Awaitable[None]], kind: type[C], rounds: int = ROUNDS
) -> list[C]:
    """Many rounds, each counted alone."""
    found = []
    for _ in range(rounds):
        calls = kind()
        sys.setprofile(calls.note)
        try:
            await act()
        finally:
            sys.setprofile(None)
        found.append(calls)
        await asyncio.sleep(0)
    return found


def typical(found: list[Calls]) -> Calls:
    """A quarter of the rounds takes fewer."""
    return sorted(found, key=lambda calls: calls.python.total())[len(found) // 4]


def bench_steps(*, functions: bool) -> Iterator[Row]:
    for what, calls in asyncio.run(_measure()).items():
        if functions:
            for name, count in calls.python.most_common():
                yield {"what": what, "function": name, "calls": count}
        else:
            yield {
                "what": what,
                "python_calls": calls.python.total(),
                "files": calls.files,
                "calls_into_c": calls.c,
                "longest_function": max(calls.lines.values(), default=0),
            }


async def _measure() -> dict[str, Calls]:
    async with (
        ringcast.join(GROUP, name="a", receive=False) as a,
        ringcast.join(GROUP, name="b") as b,
    ):
        await a.wait_for_view(lambda view: len(view) == 2)
        await b.wait_for_view(lambda view: len(view) == 2)
        replying = asyncio.create_task(_reply(b))
        messages, batches = b.__aiter__(), b.batches().__aiter__()
        to_b = next(member for member in a.view if member.name == "b")

        async def message(size: int = 100) -> None:
            await a.send(b"x" * size)
            await messages.__anext__()

        async def message_to_one() -> None:
            await a.send(b"x" * 100, to=to_b)
            await messages.__anext__()

        async def burst() -> None:
            await a.send_many([b"x" * 1000] * BURST)
            got = 0
            while got < BURST:
                got += len((await batches.__anext__()).run.payloads)

        async def request() -> None:
            await a.request(to_b, b"x" * 100, timeout=5)

        await message()
        await request()
        found = {
            "a message": typical(await rounds_of(message, Calls)),
            "a message of 1000 B": typical(await rounds_of(partial(message, 1000), Calls)),
            "a request and its reply": typical(await rounds_of(request, Calls)),
        }
        messages_sent = await rounds_of(message, Parts)
        for what in PARTS:
            found[what] = typical([calls for each in messages_sent for calls in each.parts[what]])
        replying.cancel()
        idle = await rounds_of(partial(asyncio.sleep, 1), Calls, IDLE_ROUNDS)
        found["two idle members, a second"] = typical(idle)
        await message_to_one()  # opens a connection, which costs idle members something too
        found["a message to one member"] = typical(await rounds_of(message_to_one, Calls))
        for group in (a, b):
            transport: Any = group._driver.transport
            transport._narrow_down("127.0.0.1", MTU)
        await message()
        found[f"{BURST} messages in a burst"] = typical(await rounds_of(burst, Calls))
    return found


async def _reply(group: Group) -> None:
    async for request in group.requests():
        request.reply(b"y" * 100)
