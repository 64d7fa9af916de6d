"""Groups in virtual time whose members use structures at random, as one history of all."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from support.histories import History, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    import ringcast
    from ringcast.testing import Cluster, Process

ROUNDS = 6
PAUSE_S = 0.2


class Town:
    """Processes that each have a worker, and one history of all."""

    def __init__(self, c: Cluster) -> None:
        self.c = c
        self.history = History()
        self.workers: dict[Process, Worker] = {}
        self._may_end = asyncio.Event()

    def add(self, name: str = "", **options: Any) -> Process:
        """Another member; it serves its space until the end."""
        worker = Worker(name or f"m{len(self.workers)}", self.history)
        hooks: Any = {
            "give_state": worker.space.give_state,
            "take_state": worker.space.take_state,
        }
        process = self.c.run(self.c.join(worker.name, **hooks, **options))
        self.workers[process] = worker

        async def serve(group: ringcast.Group) -> None:
            async with worker.space.serve(group):
                await self._may_end.wait()

        process.start(serve)
        self.c.run(until(lambda: not worker.space._closed))
        return process

    def work(self, seed: int, rounds: int = ROUNDS, *, of: list[Process] | None = None) -> None:
        """Begin with it, twice at each."""
        for number, (process, worker) in enumerate(self.workers.items()):
            if process.is_running and (of is None or process in of):
                for task in range(2):
                    dice = Random(f"{seed}/{number}/{task}")

                    async def app(_: object, worker: Worker = worker, dice: Random = dice) -> None:
                        await worker.work(dice, rounds, PAUSE_S)

                    process.start(app)

    @property
    def alive(self) -> list[Worker]:
        return [worker for process, worker in self.workers.items() if process.is_running]

    async def until_same(self) -> None:
        """All have answers to everything, and the same."""
        await until(self._is_same)

    def _is_same(self) -> bool:
        alive = self.alive
        views = {worker.space.view.id for worker in alive}
        is_quiet = not any(worker.space._open for worker in alive)
        return len(views) == 1 and is_quiet and len({worker.told() for worker in alive}) == 1

    async def until_views_of(self, count: int, *workers: Worker) -> None:
        await until(lambda: all(len(each.space.view) == count for each in workers or self.alive))


async def until(condition: Callable[[], object]) -> None:
    """Of virtual time."""
    while not condition():  # noqa: ASYNC110 (of virtual time)
        await asyncio.sleep(0.02)


def a_town(c: Cluster, count: int = 3) -> Town:
    town = Town(c)
    for _ in range(count):
        town.add()
    c.run(town.until_views_of(count))
    return town
