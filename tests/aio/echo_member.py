"""A process that sends back what is sent to it alone. Its place is one JSON line on standard input.

    {"listen": …, "members": […]}

It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys

from ringcast import join


async def main() -> None:
    place = json.loads(sys.stdin.readline())
    async with join("test", name="B", must_exist=True, **place) as group:
        async for message in group:
            if message.to_me:
                await group.send(b"echo of " + message.payload, to=message.sender)


if __name__ == "__main__":
    asyncio.run(main())
