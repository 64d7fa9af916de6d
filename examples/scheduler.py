"""Jobs that one member at a time begins: `python scheduler.py NAME`.

The leader begins a job now and then, under the epoch in which it leads: if it was cut off and
others have another leader by then, its job is refused. What has been begun stands in a dict that
all members have, so the next leader goes on where this one ended. Kill the leader and see.
"""

import asyncio
import sys
from contextlib import suppress

import ringcast
from ringcast import replicated

PAUSE_S = 0.2


async def lead(name: str, jobs: replicated.Dict, epoch: replicated.Token) -> None:
    with suppress(ringcast.StaleToken):  # another leads by now
        while True:
            number = await jobs.get("next", 1, fresh=True)
            await jobs.update({"next": number + 1, f"job {number}": name}, token=epoch)
            print(f"{name} begins job {number}", flush=True)
            await asyncio.sleep(PAUSE_S)


async def main(name: str) -> None:
    space = replicated.Space()
    jobs, leader = space.dict("jobs"), space.leader("leader")
    async with space.join("scheduler", name=name):
        leading: asyncio.Task[None] | None = None
        async for member, epoch in leader.terms():
            if leading is not None:
                leading.cancel()
                leading = None
            if member == space.me:
                leading = asyncio.create_task(lead(name, jobs, epoch))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
