"""A process that sends, and is then told to end: by what its arguments name."""

import asyncio
import atexit
import os
import signal
import sys
import threading
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace

from loopback_groups import PATIENT

import ringcast
from ringcast import MulticastConfig, blocking
from ringcast.aio.sources import ListSource

MESSAGES = 2000
SIZE = 1000


def options(place: str, name: str, leave_timeout_s: float) -> dict:
    return {
        "name": name,
        "discovery": ListSource([ringcast.Address.parse(place)]),
        "membership": replace(PATIENT, leave_timeout_s=leave_timeout_s),
        "multicast": MulticastConfig(datagram_bytes=8000),
        "receive": False,
    }


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number + b"x" * SIZE for number in range(count)]


def say(what: str) -> None:
    os.write(1, f"{what}\n".encode())


class Member:
    """By asyncio."""

    def __init__(self, place: str, count: int, leave_timeout_s: float) -> None:
        self.place = place
        self.count = count
        self.leave_timeout_s = leave_timeout_s

    def join(self, name: str = "S", **more: object) -> object:
        return ringcast.join("test", **options(self.place, name, self.leave_timeout_s), **more)

    async def send(self, group: ringcast.Group, count: int | None = None) -> None:
        for payload in payloads(self.count if count is None else count):
            await group.send(payload)
        say(f"{group.me.name} accepted")

    async def wait(self) -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            say("cancelled")
            raise

    async def alone(self) -> None:
        """One group, in the main task."""
        try:
            async with self.join() as group:
                await self.send(group)
                await self.wait()
        finally:
            await asyncio.sleep(0)  # whatever is left to do is done
            say("finally")

    async def exception(self) -> None:
        async with self.join() as group:
            await self.send(group)
            raise ZeroDivisionError

    async def task(self) -> None:
        """The main task ends, and asyncio cancels the others."""
        sent = asyncio.Event()

        async def work() -> None:
            async with self.join() as group:
                await self.send(group)
                sent.set()
                await self.wait()

        working = asyncio.create_task(work())
        await sent.wait()
        assert not working.done()

    async def nested(self) -> None:
        async with AsyncExitStack() as stack:
            groups = [await stack.enter_async_context(self.join(name)) for name in "ST"]
            for group in groups:
                await self.send(group, self.count // 2)
            await self.wait()

    async def two(self) -> None:
        """The first to be done ends `gather`, and so the program: the other needs longer."""

        async def work(name: str, count: int) -> None:
            async with self.join(name) as group:
                await self.send(group, count)
                await self.wait()

        await asyncio.gather(work("S", 1), work("T", self.count - 1))

    async def quiet(self) -> None:
        async with self.join(signals=False) as group:
            await self.send(group)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            await self.wait()

    async def handled(self) -> None:
        """Somebody else handles it, from before or from within the block."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        handler = signal.getsignal(signal.SIGTERM)
        async with self.join() as group:
            assert signal.getsignal(signal.SIGTERM) is handler
            await self.send(group)
            await stop.wait()
        assert signal.getsignal(signal.SIGTERM) is handler
        say("handled")

    async def swallowed(self) -> None:
        """The application takes the cancellation for its own affair."""
        async with self.join() as group:
            await self.send(group, self.count - 1)
            try:
                await self.wait()
            except asyncio.CancelledError:
                await group.send(b"goodbye")
        await asyncio.sleep(0.1)
        say("survived")


class Thread:
    """Without asyncio."""

    def __init__(self, place: str, count: int, leave_timeout_s: float) -> None:
        self.place = place
        self.count = count
        self.leave_timeout_s = leave_timeout_s

    def join(self, name: str = "S", **more: object) -> object:
        return blocking.join("test", **options(self.place, name, self.leave_timeout_s), **more)

    def send(self, group: blocking.Group, count: int) -> None:
        for payload in payloads(count):
            group.send(payload)

    def wait(self) -> None:
        try:
            say("S accepted")  # from here on it may be told to end
            threading.Event().wait(600)
        except BaseException:
            say("cancelled")
            raise

    def alone(self) -> None:
        try:
            with self.join() as group:
                self.send(group, self.count)
                self.wait()
        finally:
            say("finally")

    def exception(self) -> None:
        with self.join() as group:
            self.send(group, self.count)
            say("S accepted")
            raise ZeroDivisionError

    def nested(self) -> None:
        with ExitStack() as stack:
            groups = [stack.enter_context(self.join(name)) for name in "ST"]
            for group in groups:
                self.send(group, self.count // 2)
            self.wait()

    def quiet(self) -> None:
        with self.join(signals=False) as group:
            self.send(group, self.count)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            self.wait()


if __name__ == "__main__":
    api, how, place, count, leave_timeout_s = sys.argv[1:]
    atexit.register(say, "atexit")
    signal.alarm(240)
    os.environ.pop("PYTHONASYNCIODEBUG", None)
    kind = Member if api == "asyncio" else Thread
    work = getattr(kind(place, int(count), float(leave_timeout_s)), how)
    if api == "asyncio":
        asyncio.run(work())
    else:
        work()
