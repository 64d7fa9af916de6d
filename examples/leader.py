"""One member at a time does the work: `python leader.py NAME`.

The first member of a view leads, and all members of a view agree on who that is. The number of the
view goes with everything that the leader does: whoever does something for it refuses a number lower
than the last, so that a leader which was cut off and does not know yet does no harm. With
`min_members` a part that is too small has no leader at all.
"""

import asyncio
import sys

import ringcast

MIN_MEMBERS = 2


async def work(name: str, epoch: int) -> None:
    count = 0
    while True:
        count += 1
        print(f"{name} does job {count} of epoch {epoch}", flush=True)
        await asyncio.sleep(0.2)


async def main(name: str) -> None:
    async with ringcast.join("jobs", name=name) as group:
        leading: asyncio.Task[None] | None = None
        try:
            async for event in group.events():
                if isinstance(event, ringcast.ViewInstalled):
                    if leading is not None:
                        leading.cancel()
                        leading = None
                    view = event.view
                    if view.coordinator == group.me and len(view) >= MIN_MEMBERS:
                        leading = asyncio.create_task(work(name, view.counter))
        finally:
            if leading is not None:
                leading.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
