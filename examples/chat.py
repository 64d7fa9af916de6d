"""A chat: `python chat.py NAME`. Lines that you type go to everybody; Ctrl-D leaves."""

import asyncio
import sys

import ringcast


async def follow(group: ringcast.Group) -> None:
    async for event in group.events():
        match event:
            case ringcast.ViewInstalled(view):
                print("*", ", ".join(map(str, view)))
            case ringcast.Delivered(sender, run):
                for payload in run.payloads:
                    print(f"{sender}: {payload.decode(errors='replace')}")


async def main(name: str) -> None:
    async with ringcast.join("chat", name=name) as group, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow(group))
        while line := await asyncio.to_thread(sys.stdin.readline):
            await group.send(line.strip().encode())
        await group.leave()
        await following


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
