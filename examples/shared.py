"""A dict that all members have, changed in one order: `python shared.py`.

Type `set KEY VALUE`, `get KEY` or `all`. Everybody reads its own copy. The first member of the view
sends all changes, so that they have one order; as uniform messages, so that survivors have the same
ones if it dies. A change that it may not have sent is asked for again: twice does no harm. Whoever
joins gets the dict before anything else.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import ringcast


class Shared:
    def __init__(self) -> None:
        self.items: dict[str, str] = {}

    def give(self) -> Iterator[bytes]:
        yield json.dumps(self.items).encode()

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        self.items = json.loads(b"".join([chunk async for chunk in chunks]))

    async def follow(self, group: ringcast.Group) -> None:
        async for message in group:
            self.items.update(json.loads(message.payload))


async def change(group: ringcast.Group, payload: bytes) -> bytes:
    """The first member does it; others say that they are not."""
    if group.view.coordinator != group.me:
        return b"ask another"
    receipt = await group.send(payload, guarantee="uniform", receipt=True)
    with suppress(ringcast.NotDelivered):  # who has left needs it no more
        await receipt.delivered()
    return b"set"


async def ask(group: ringcast.Group, payload: bytes) -> None:
    """Until the first member, whoever that is by then, has done it."""
    answer = b""
    while answer != b"set":
        first = group.view.coordinator
        try:
            is_mine = first == group.me
            answer = await (change(group, payload) if is_mine else group.request(first, payload))
        except (ringcast.RequestFailed, ringcast.TimedOut):
            await asyncio.sleep(0.1)


async def main() -> None:
    shared = Shared()
    joining = ringcast.join("shared", give_state=shared.give, take_state=shared.take)
    async with joining as group, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(shared.follow(group))
        answer = group.serve(lambda request: change(group, request.payload))
        serving = tasks.create_task(answer)
        while line := await asyncio.to_thread(sys.stdin.readline):
            match line.split():
                case ["set", key, value]:
                    await ask(group, json.dumps({key: value}).encode())
                    print("set", flush=True)
                case ["get", key]:
                    print(shared.items.get(key, "nothing"), flush=True)
                case ["all"]:
                    print(json.dumps(shared.items, sort_keys=True), flush=True)
                case _:
                    print("set KEY VALUE, get KEY, or all", flush=True)
        await group.leave()
        await following
        await serving


if __name__ == "__main__":
    asyncio.run(main())
