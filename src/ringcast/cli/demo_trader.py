"""One trader of `ringcast demo`: sends orders to its group, and adds up everybody's.

A process of its own that uses what any application may use: `ringcast.join` and what it returns. It
speaks JSON lines with the demo. The first is its place in the group, the second lets it join; it
answers once it is in. Then:

    {"op": "address"}       where it can be found
    {"op": "trade", …}      once these names are in the group: send orders until told to stop
    {"op": "stop"}          send no more; how many orders all have delivered
    {"op": "totals", …}     once these names are the group: what was delivered of whom, and what
                            is still waited for

The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import ringcast
from ringcast.aio.loop import run
from ringcast.sim.processes import say, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.sim.processes import Commands

PRICES = {"apples": 349, "bread": 420, "coffee": 1190, "olive oil": 1499, "pasta": 215, "tea": 680}
"""In cents."""

CUSTOMERS = 5000
BATCH = 10
PAUSE_S = 0.02


class Ledger:
    """How many orders came from each sender by each guarantee, and for how many cents."""

    def __init__(self) -> None:
        self.orders: Counter[tuple[str, str]] = Counter()
        self.cents: Counter[tuple[str, str]] = Counter()

    def add(self, sender: str, guarantee: str, payloads: Sequence[bytes]) -> None:
        orders = json.loads(b"[%s]" % b",".join(payloads))
        self.orders[sender, guarantee] += len(orders)
        self.cents[sender, guarantee] += sum(order["cents"] for order in orders)

    def rows(self) -> list[tuple[str, str, int, int]]:
        """Sender, guarantee, orders, cents."""
        return [(*key, orders, self.cents[key]) for key, orders in sorted(self.orders.items())]


def make_orders(dice: random.Random, count: int) -> list[bytes]:
    """What customers might buy, as small JSON objects."""
    orders = [
        {"item": item, "cents": PRICES[item] * dice.randint(1, 4), "customer": customer}
        for item in dice.choices(list(PRICES), k=count)
        for customer in [dice.randrange(CUSTOMERS)]
    ]
    return [json.dumps(order).encode() for order in orders]


class Trader:
    """Sends and reads at the same time."""

    def __init__(self, group: ringcast.Group, dice: random.Random, *, is_uniform: bool) -> None:
        self.ledger = Ledger()
        self._group = group
        self._guarantee: Literal["fifo", "uniform"] = "uniform" if is_uniform else "fifo"
        self._dice = dice
        self._is_open = True

    async def read(self) -> None:
        async for batch in self._group.batches():
            guarantee = "uniform" if batch.run.stream is ringcast.Stream.UNIFORM else "fifo"
            self.ledger.add(batch.sender.name, guarantee, batch.run.payloads)

    async def send(self, names: list[str]) -> int:
        """Orders at a pace from when these are in the group until `stop`, and until everybody has
        taken them; how many."""
        await self.gathered(names)
        sent = 0
        while self._is_open:
            orders = make_orders(self._dice, BATCH)
            await self._group.send_many(orders, guarantee=self._guarantee)
            sent += len(orders)
            await asyncio.sleep(PAUSE_S)
        await self._group.flush()
        return sent

    def stop(self) -> None:
        self._is_open = False

    async def gathered(self, names: list[str]) -> None:
        """Return when the group has these members, and no others."""
        wanted = set(names)
        await self._group.wait_for_view(lambda view: {member.name for member in view} == wanted)


async def _member(place: dict[str, Any], commands: Commands) -> None:
    dice, faults = random.Random(place["seed"]), random.Random(-place["seed"] - 1)
    name, loss = place["name"], place["loss"]
    async with ringcast.join(
        config=ringcast.load_config(place["settings"], group=place["group"], name=name),
        discovery=ringcast.DirectorySource(place["meet"]),
        record=place["record"],
        lose=lambda: faults.random() < loss,
    ) as group:
        say({"view": [member.name for member in group.view]})
        trader = Trader(group, dice, is_uniform=name == place["uniform"])
        await _obey(trader, group, commands)


async def _obey(trader: Trader, group: ringcast.Group, commands: Commands) -> None:
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(trader.read())
        sending: asyncio.Task[int] | None = None
        async for command in commands:
            match command["op"]:
                case "address":
                    say({"address": str(group.me.address)})
                case "trade":
                    sending = tasks.create_task(trader.send(command["names"]))
                case "stop" if sending is not None:
                    trader.stop()
                    say({"sent": await sending})
                case "totals":
                    await trader.gathered(command["names"])
                    say({"waits": group.explain(), "totals": trader.ledger.rows()})
        reading.cancel()
        if sending is not None:
            sending.cancel()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # a terminal's Ctrl-C is the demo's, and so is the word on it
        run(serve(_member))
